"""
Positions of a node's MIG instances in its GPUs, as far as the state needs them, and changes of its geometry.

A node reports how many instances of each profile an operator made on it, not where. Instances of one profile are
interchangeable, since the device plugin picks one: any legal layout of the counts gives the same answers, and all
services use this one. Pure; the same counts give the same layout.
"""

from dataclasses import dataclass
from functools import lru_cache

from tessera.domain.storing.fast import fast_init
from tessera_schemas.cluster.mig import GEOMETRIES, Geometry

Layout = tuple[tuple[tuple[str, int], ...], ...]
"""Of each GPU the instances, as (profile, first slice)."""


@fast_init
@dataclass(frozen=True, slots=True)
class MigChange:
    """
    The last change of a node's MIG geometry, which was begun at `since_ts` for a job; `ended_ts` 0: it is not over.

    `config` is what the node is being cut to, `before` what it had; with `undo` a failed change is taken back. No other
    change begins before `until_ts`; `times` in a row failed. `took_ms` is how long the last one took that was done.
    """

    node: str
    job_id: str
    config: str
    before: str
    gpus: int
    since_ts: int
    ended_ts: int = 0
    until_ts: int = 0
    times: int = 0
    took_ms: int = 0
    undo: bool = False


@lru_cache(maxsize=4096)
def layout(mig_geometry: str, instances: tuple[tuple[str, int], ...]) -> Layout:
    """
    The counts laid into as few GPUs as this finds; () for a geometry that is not known.

    Profiles with the fewest places to begin go first, each into the first GPU that can take it, where it leaves most to
    the others.
    """
    geometry = GEOMETRIES.get(mig_geometry)
    if geometry is None:
        return ()
    gpus: list[list[tuple[str, int]]] = []
    for profile in sorted(_each(geometry, instances), key=lambda name: _hardest_first(geometry, name)):
        for gpu in gpus:
            start = _best_start(geometry, gpu, profile)
            if start is not None:
                gpu.append((profile, start))
                break
        else:
            start = _best_start(geometry, [], profile)
            gpus.append([(profile, start or 0)])
    return tuple(tuple(gpu) for gpu in gpus)


def geometry_of(profiles: frozenset[str], named: str, memory_bytes: int) -> str | None:
    """
    The geometry that has all of these profiles: the one that is said, the only one, or the one nearest in memory.

    None when there is none, or when several would do and neither is said. `memory_bytes` is of one GPU; 0: not known.
    """
    known = [name for name, geometry in GEOMETRIES.items() if profiles <= geometry.profiles.keys()]
    if named:
        return named if named in known else None
    if len(known) > 1 and memory_bytes:
        return min(known, key=lambda name: (abs(int(name.removesuffix("gb")) * 2**30 - memory_bytes), name))
    return known[0] if len(known) == 1 else None


def _each(geometry: Geometry, instances: tuple[tuple[str, int], ...]) -> list[str]:
    return [profile for profile, count in instances if profile in geometry.profiles for _ in range(count)]


def _hardest_first(geometry: Geometry, profile: str) -> tuple[int, int, str]:
    shape = geometry.profiles[profile]
    return len(shape.starts), -shape.size, profile


def _best_start(geometry: Geometry, gpu: list[tuple[str, int]], profile: str) -> int | None:
    """The start of the profile in the GPU that costs other profiles the fewest positions; ties go to the lowest."""
    taken = _taken(geometry, gpu)
    size = geometry.profiles[profile].size
    free = [start for start in geometry.profiles[profile].starts if not taken & _span(start, size)]
    return min(free, key=lambda start: (-_usable(geometry, taken | _span(start, size)), start), default=None)


def _taken(geometry: Geometry, gpu: list[tuple[str, int]]) -> frozenset[int]:
    return frozenset().union(*(_span(start, geometry.profiles[profile].size) for profile, start in gpu))


def _span(start: int, size: int) -> frozenset[int]:
    return frozenset(range(start, start + size))


def _usable(geometry: Geometry, taken: frozenset[int]) -> int:
    return sum(
        shape.size * sum(not taken & _span(start, shape.size) for start in shape.starts)
        for shape in geometry.profiles.values()
    )
