"""
A PodGang of Grove: a gang of its pod groups, with a least number of pods of each, and domains for all of it, for some
of the groups together and for each of them. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from tessera.binder.workloads.marks import not_honoured_fields
from tessera.binder.workloads.port import PARTS_MAX, GangMark, GroupKind, KindRights, Workload
from tessera.binder.workloads.reading import as_part, items, mapping, no, text, whole
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason

GROVE_API = "scheduler.grove.io/v1alpha1"
GROUPS = "PodGang.spec.podgroups"
SETS = "topologyConstraintGroupConfigs"
MARK = GangMark(("grove.io/podgang",), api_version=GROVE_API, kind="PodGang", at_least=True)
WHOLE = "podgang"


class PodGang(Workload):
    """A gang whose operator makes the pods, and names the gang and the pod group of each by labels."""

    kind: ClassVar[GroupKind | None] = GroupKind.POD_GANG
    api_group: ClassVar[str] = "scheduler.grove.io"
    kinds: ClassVar[tuple[str, ...]] = ("PodGang",)
    marks: ClassVar[tuple[GangMark, ...]] = (MARK,)
    role_labels: ClassVar[tuple[str, ...]] = ("grove.io/podclique",)
    index_labels: ClassVar[tuple[str, ...]] = ("grove.io/podclique-pod-index",)
    rights: ClassVar[tuple[KindRights, ...]] = (KindRights("scheduler.grove.io", ("podgangs",), ("get",)),)

    def size(self, owner: Json) -> int | Reason:
        """The sum of the least numbers of its pod groups."""
        return sum(_least(owner).values()) or no(Code.MISSING_FIELD, GROUPS)

    def parts(self, mark: GangMark | None, owner: Json | None, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
        """The least number of pods of each pod group."""
        found = _least(owner or {})
        if len(found) > PARTS_MAX:
            return no(Code.NOT_SUPPORTED_YET, GROUPS, f"{len(found)} of them", most=PARTS_MAX)
        return found

    def groups(self, owner: Json | None, ranks: Sequence[tuple[str, Json]] = ()) -> list[Json] | Reason:
        """A group of the contract for each domain, widest first."""
        spec, least = mapping(owner, "spec"), _least(owner or {})
        found = [*_group(WHOLE, "", {}, mapping(spec, "topologyConstraint"))]
        around = WHOLE if found else ""
        within = dict.fromkeys(least, around)
        for each in items(spec, SETS):
            names = [name for name in each.get("podGroupNames") or () if name in least]
            if any(within[name] != around for name in names):
                return no(Code.NOT_SUPPORTED_YET, f"PodGang.spec.{SETS}", "a pod group is in several of them")
            name, pods = as_part(f"{text(each, 'name')[:58]}-set"), {as_part(name): least[name] for name in names}
            made = [*_group(name, around, pods, mapping(each, "topologyConstraint"))] if pods else []
            within |= dict.fromkeys(names, name) if made else {}
            found += made
        for each in items(spec, "podgroups"):
            name = text(each, "name")
            pods = {as_part(name): least[name]} if name in least else {}
            found += _group(as_part(name), within.get(name, ""), pods, mapping(each, "topologyConstraint"))
        return found

    def domain(self, owner: Json | None) -> tuple[Json | Reason | None, str]:
        """No domain but those of its groups; refused are pods beyond the least number, which would start elsewhere."""
        required = [group for group in self._made(owner) if group["topology"]["required"]]
        for each in items(mapping(owner, "spec"), "podgroups"):
            name = text(each, "name")
            bound = any(not group["pods"] or as_part(name) in group["pods"] for group in required)
            if bound and len(items(each, "podReferences")) > (whole(each, "minReplicas") or 0):
                detail = "pods beyond them would start outside of the domain; make them all of its pods"
                return no(Code.NOT_SUPPORTED_YET, f"{GROUPS}[{name}].minReplicas", detail), GROUPS
        return None, GROUPS

    def wishes(self, owner: Json) -> list[str]:
        """A sentence about each field of its spec that is not honoured."""
        return not_honoured_fields(mapping(owner, "spec"), "PodGang.spec", ("podgroups", "topologyConstraint", SETS))

    def _made(self, owner: Json | None) -> list[Json]:
        found = self.groups(owner)
        return [] if isinstance(found, Reason) else found


def _least(owner: Json) -> dict[str, int]:
    each = ((text(group, "name"), whole(group, "minReplicas") or 0) for group in items(owner, "spec", "podgroups"))
    return {name: least for name, least in each if name and least > 0}


def _group(name: str, within: str, pods: Mapping[str, int], constraint: Json) -> Iterator[Json]:
    """The group of a constraint: by its labels the preferred one is tried first, and the required one is the bound."""
    asked = mapping(constraint, "packConstraint")
    required, preferred = text(asked, "required"), text(asked, "preferred")
    narrow = preferred if preferred != required else ""
    levels = [level for level in (narrow, required) if level]
    if levels and (pods or name == WHOLE):
        topology = {"level": levels[0], "wider": levels[1:], "required": bool(required)}
        yield {"name": name, "within": within or None, "pods": dict(pods), "topology": topology}
