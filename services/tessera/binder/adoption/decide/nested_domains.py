"""
Slices of pods by Kueue's marks whose pod set has a domain, too: groups within each other. Pure.

A slice is a role of its own (`ranks`). Of a pod set with a domain of its own each slice's domain lies within that one,
which no field of a role says: so both become groups of the job, and the roles name none.
"""

from collections.abc import Sequence

from tessera.binder.workloads.mark_table import PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY, SLICE_TOPOLOGY
from tessera.binder.workloads.marks import read_mark
from tessera.binder.workloads.registry import part_of
from tessera_schemas.base import Json
from tessera_schemas.job import Role


def nest_slices(roles: Sequence[Role], pods: Sequence[Json]) -> tuple[list[Role], list[Json]]:
    """The role of each pod, and the groups of those in slices within a domain, in the order of the pods."""
    sets: dict[str, dict[str, Role]] = {}
    wide: dict[str, Json] = {}
    for role, pod in zip(roles, pods, strict=True):
        if (topology := _around_slices(pod)) is not None:
            sets.setdefault(part_of(pod), {})[role.name] = role
            wide.setdefault(part_of(pod), topology)
    groups = list[Json]()
    for part, slices in sets.items():
        name = f"{part[:55]}-podset"
        counts = {role.name: role.replicas for role in slices.values()}
        groups.append({"name": name, "pods": counts, "topology": wide[part]})
        groups += [
            {"name": role.name, "within": name, "pods": {role.name: role.replicas}, "topology": role.topology}
            for role in slices.values()
        ]
    # The groups say the domains from here on; a role that said one as well would be asked twice.
    nested = {name for slices in sets.values() for name in slices}
    return [role.model_copy(update={"topology": None}) if role.name in nested else role for role in roles], groups


def _around_slices(pod: Json) -> Json | None:
    """The domain of the pod set, where the pod is in a slice of it."""
    if not read_mark(pod, SLICE_TOPOLOGY):
        return None
    for key, required in ((REQUIRED_TOPOLOGY, True), (PREFERRED_TOPOLOGY, False)):
        if level := read_mark(pod, key):
            return {"level": level, "required": required}
    return None
