"""
Positions of MIG instances inside GPUs.

An instance lies on neighbouring memory slices and begins only where its profile may, so that a GPU can have enough
slices free and still no position (`tessera_schemas.cluster.mig`). Each instance goes where it costs the fewest further
positions, weighted by their slices: into GPUs that are cut already, and towards the end that large profiles cannot use.

Where an operator made the instances, those are the positions that there are, and what other pods have of a profile are
its last ones: instances of one profile are interchangeable.
"""

from collections.abc import Iterator, Sequence

from tessera.domain.devices.mig.instances import layout
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node
from tessera_schemas.cluster.labels import MIG_RESOURCE_PREFIX
from tessera_schemas.cluster.mig import GEOMETRIES, Geometry, Profile
from tessera_schemas.work.placement import Placement

NO_NEED = Need(0, 0)


def has_profile(need: Need, node: Node) -> bool:
    """Whether GPUs of this kind can be cut so at all."""
    geometry = GEOMETRIES.get(node.mig_geometry)
    if node.device_profile != "mig" or geometry is None or need.mig_profile not in geometry.profiles:
        return False
    return not node.mig_instances or any(profile == need.mig_profile for profile, _ in node.mig_instances)


def free_positions(need: Need, node: Node) -> int:
    """Number of instances of the profile that the node takes now; no two positions of one profile overlap."""
    return len(_positions(need, node)) if has_profile(need, node) else 0


def is_position(need: Need, node: Node, slot: int, start: int) -> bool:
    """Whether an instance of the profile may begin there, and nothing is in its way."""
    return has_profile(need, node) and (slot, start) in _free(need, node)


def most_free_slices(node: Node) -> int:
    """The most free slices of one device, wherever they lie."""
    return max((taken.count(0) for taken in node.mig_taken), default=0)


def place_instances(node: Node, need: Need, rank: int, role: str) -> Placement:
    """
    Placement of the pod of `rank` on a node that has room for its instances, chosen one after the other.

    However they are chosen, as many further pods fit: no two positions of one profile overlap.
    """
    geometry = GEOMETRIES[node.mig_geometry]
    size = geometry.profiles[need.mig_profile].size
    milli, found, left = size * geometry.milli_per_slice, list[tuple[int, int]](), node
    for _ in range(need.gpu_parts - 1):
        slot, start = _cheapest(need, left)
        found.append((slot, start))
        left = left.taking(NO_NEED, Placement(rank, role, node.name, (slot,), milli, (start, size)), 1)
    found = sorted([*found, _cheapest(need, left)])
    starts = tuple(start for _, start in found)
    slots, more = tuple(slot for slot, _ in found), starts if len(found) > 1 else ()
    return Placement(rank, role, node.name, slots, milli, (starts[0], size), mig_starts=more)


def _cheapest(need: Need, node: Node) -> tuple[int, int]:
    """
    Slot and start for one instance that the node has room for.

    The tie rule, in order: fewest slices in positions lost to others, fewest free slices, lowest slot, lowest start.
    """
    geometry = GEOMETRIES[node.mig_geometry]
    size = geometry.profiles[need.mig_profile].size

    def cost(found: tuple[int, int]) -> tuple[int, int, int, int]:
        slot, start = found
        taken = node.mig_taken[slot]
        # The cost is what others lose: slices of positions that are legal before and blocked after. A position that is
        # blocked already costs nothing, which fills cut GPUs first.
        after = [n + (start <= at < start + size) for at, n in enumerate(taken)]
        return _usable(geometry, taken) - _usable(geometry, after), taken.count(0), slot, start

    return min(_positions(need, node), key=cost)


def held_by_others(profile: str, node: Node) -> int:
    """MIG instances of one profile that pods which Tessera did not place have on the node."""
    return sum(count for name, count in node.others.devices if name == MIG_RESOURCE_PREFIX + profile)


def _positions(need: Need, node: Node) -> list[tuple[int, int]]:
    """Every slot and start at which an instance of the profile can be had now."""
    free = _free(need, node)
    # Which of the instances others hold nobody says, but only how many. So as many are left out from the end, and every
    # process leaves out the same.
    return free[: max(0, len(free) - held_by_others(need.mig_profile, node))] if node.others.devices else free


def _free(need: Need, node: Node) -> list[tuple[int, int]]:
    """
    Every slot and start at which nothing is in the way of an instance.

    A GPU that is held otherwise has none: its node served something else when that was placed.
    """
    geometry = GEOMETRIES[node.mig_geometry]
    profile = geometry.profiles[need.mig_profile]
    made = layout(node.mig_geometry, node.mig_instances) if node.mig_instances else None
    found: list[tuple[int, int]] = []
    for slot, taken in enumerate(node.mig_taken[: len(made)] if made is not None else node.mig_taken):
        # Slices and thousandths tell of the same GPU. Where they disagree something else than instances lies on it.
        if node.gpu_free[slot] + sum(taken) * geometry.milli_per_slice != WHOLE_GPU:
            continue
        starts = _starts(profile, taken)
        found += [(slot, start) for start in starts if made is None or (need.mig_profile, start) in made[slot]]
    return found


def _starts(profile: Profile, taken: Sequence[int]) -> Iterator[int]:
    return (start for start in profile.starts if not any(taken[start : start + profile.size]))


def _usable(geometry: Geometry, taken: Sequence[int]) -> int:
    """Slices that could still be cut: those of all positions that are free, each position counted for itself."""
    return sum(p.size * sum(1 for _ in _starts(p, taken)) for p in geometry.profiles.values())
