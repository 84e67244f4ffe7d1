"""
Meaning of other systems' marks on users' objects (`mark_table`). Pure.

Refused marks keep the pod from being adopted, by name; a condition of the pod names marks that are not honoured, and
every mark under these systems' prefixes that the table does not know. Every mark that changes meaning is reported.
"""

from collections.abc import Container, Iterable, Iterator, Sequence

from pydantic import ValidationError

from tessera.binder.workloads.mark_table import (
    ARMADA_TOPOLOGY,
    GROUP_FIELDS,
    KOORDINATOR_QUEUE,
    KUEUE_QUEUE,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    SHARED_DOMAIN,
    SLICE_SIZE,
    SLICE_TOPOLOGY,
    SLURM_PARTITION,
    SLURM_WCKEY,
    VOLCANO,
    YUNIKORN,
    Mark,
    Treatment,
    mark_of,
)
from tessera.binder.workloads.pod_terms import PREFERRED, REQUIRED, read_pod_terms
from tessera.binder.workloads.reading import items, mapping, no, number_in, text
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import FOUND_BY_ANNOTATION, PREEMPTIBLE_ANNOTATION, PROJECT_LABEL, QUEUE_LABEL
from tessera_schemas.job import PREFERRED_MAX, PreferredTerm
from tessera_schemas.reasons import Code, Reason

UNKNOWN_FIELD = "Tessera does not know this field"
GANG = "gang"


def refused_mark(thing: Json, among: str = "metadata") -> Reason | None:
    """The first mark of a pod, or of its owner, that has no equivalent and changes what its program may rely on."""
    for field, key, mark in _marks(thing):
        if mark.treatment is Treatment.REFUSED:
            return no(Code.NOT_SUPPORTED_YET, f"{among}.{field}[{key}]", mark.detail)
    return None


def not_honoured(pod: Json) -> list[str]:
    """Marks and preferences of a pod or its owner that are not honoured, a sentence for each."""
    marks = [f"{key}: {mark.detail}" for _, key, mark in _marks(pod) if mark.treatment is Treatment.TOLD]
    if read_mark(pod, SHARED_DOMAIN) and topology_of(pod) is None:
        marks.append(f"{SHARED_DOMAIN}: no domain is shared, since {REQUIRED_TOPOLOGY} or the preferred one names none")
    return [*marks, *_preferences(pod)]


def said_preemptible(pods: Sequence[Json], owner: Json | None) -> bool | None:
    """
    Whether pods say that they may be preempted: all of them by our annotation, or else one of them, or their owner, by
    another system's mark; None where they say nothing.
    """
    said = {text(pod, "metadata", "annotations", PREEMPTIBLE_ANNOTATION) for pod in pods}
    if said in ({"true"}, {"false"}):
        return said == {"true"}
    things = [*pods, owner or {}]
    return False if said == {""} and any(mark.keeps for thing in things for _, _, mark in _marks(thing)) else None


def _marks(thing: Json) -> Iterator[tuple[str, str, Mark]]:
    meta = mapping(thing, "metadata")
    for field in ("labels", "annotations"):
        for key in _keys(meta.get(field)):
            mark = mark_of(key, meta[field][key])
            if mark is not None and not _is_settled(thing, mark):
                yield field, key, mark


def _keys(found: object) -> Iterable[str]:
    return sorted(key for key in found if isinstance(key, str)) if isinstance(found, dict) else ()


def _is_settled(thing: Json, mark: Mark) -> bool:
    """Tell whether another mark beside it leaves nothing to say."""
    key, value = mark.settled_by
    return bool(key) and (found := read_mark(thing, key)) != "" and value in ("", found)


def not_honoured_fields(group: Json, below: str, honoured: Container[str]) -> list[str]:
    """Fields of a group's spec that are set and not honoured, a sentence for each."""
    others = sorted(name for name, value in group.items() if name not in honoured and value)
    return [f"{below}.{name}: {GROUP_FIELDS.get(name, UNKNOWN_FIELD)}" for name in others]


def preferred_nodes(spec: Json) -> list[PreferredTerm]:
    """Preferences for nodes that are honoured, in an order that does not depend on how the pod was written."""
    honoured = (term for _, term in _read_preferred_nodes(spec) if term is not None)
    return sorted(honoured, key=lambda term: (term.weight, repr(term.terms)))


def _read_preferred_nodes(spec: Json) -> Iterator[tuple[int, PreferredTerm | None]]:
    """Each preferred term of the node affinity by its index; None for one that is not honoured."""
    count = 0
    for index, each in enumerate(items(spec, "affinity", "nodeAffinity", PREFERRED)):
        asked = mapping(each, "preference")
        if not items(asked, "matchExpressions") and not items(asked, "matchFields"):
            continue  # as for Kubernetes, no condition is no preference
        terms = [
            {
                "key": text(condition, "key"),
                "operator": text(condition, "operator"),
                "values": sorted(map(str, condition.get("values") or [])),
            }
            for condition in items(asked, "matchExpressions")
        ]
        terms.sort(key=repr)
        try:
            term = PreferredTerm.model_validate({"weight": each.get("weight"), "terms": terms})
        except ValidationError:
            yield index, None
            continue
        count += 1
        yield index, None if items(asked, "matchFields") or count > PREFERRED_MAX else term


def _preferences(pod: Json) -> Iterator[str]:
    spec = mapping(pod, "spec")
    for index, term in _read_preferred_nodes(spec):
        if term is None:
            yield f"spec.affinity.nodeAffinity.{PREFERRED}[{index}]: nodes are chosen without it"
    terms = read_pod_terms(pod)
    yield from (f"{term.field}.{term.wrong}: nodes are chosen without it" for term in terms if term.wrong)
    if any(term.group for term in terms):
        field = f"spec.affinity.podAntiAffinity.{REQUIRED}"
        yield f"{field}: kept from pods that Tessera places and that have an equal term; others are not looked at"
    if any(not (term.group or term.wrong) for term in terms):
        yield (
            "spec.affinity: of other pods those are looked at that Tessera places, and that have a term about pods or "
            f"name their labels in {FOUND_BY_ANNOTATION}"
        )
    for index, constraint in enumerate(items(spec, "topologySpreadConstraints")):
        if constraint.get("whenUnsatisfiable") == "ScheduleAnyway":
            yield f"spec.topologySpreadConstraints[{index}]: nodes are chosen without it"


# -- what several readers ask for -------------------------------------------------------------------------------------


def read_mark(thing: Json, *keys: str) -> str:
    """The value of the first of these marks that is there, as a label or else as an annotation; "" for none."""
    return found_in(thing, *keys)[0]


def found_in(thing: Json, *keys: str) -> tuple[str, str]:
    """Value of the first mark found, and the field that holds it."""
    for key in keys:
        for field in ("labels", "annotations"):
            if value := text(thing, "metadata", field, key):
                return value, f"metadata.{field}[{key}]"
    return "", ""


QUEUES = (
    QUEUE_LABEL,
    KUEUE_QUEUE,
    "scheduling.volcano.sh/queue-name",
    f"{VOLCANO}queue-name",
    f"{YUNIKORN}queue",
    "kai.scheduler/queue",
    "runai/queue",
    KOORDINATOR_QUEUE,
    SLURM_PARTITION,
)


APPLICATION = (f"{YUNIKORN}app-id", "applicationId")


def find_queue(pod: Json) -> tuple[str, str]:
    """
    The queue that the pod names, by ours or another system's mark, and the field; ("", "") for none.

    YuniKorn's older label has no prefix, so it counts beside the name of an application alone.
    """
    return found_in(pod, *QUEUES, *(("queue",) if read_mark(pod, *APPLICATION) else ()))


def find_project(thing: Json) -> tuple[str, str]:
    """The project that a pod or its owner names, and the field; ("", "") for none."""
    return found_in(thing, PROJECT_LABEL, SLURM_WCKEY)


def topology_of(pod: Json) -> Json | None:
    """
    The contract's `Topology` that Kueue's marks ask for, of a slice too: one domain, or as few as there can be; or
    Armada's, of which a gang's pods share one.
    """
    for key, required in ((SLICE_TOPOLOGY, True), (REQUIRED_TOPOLOGY, True), (PREFERRED_TOPOLOGY, False)):
        if level := read_mark(pod, key):
            return {"level": level, "required": required, "group": read_mark(pod, SHARED_DOMAIN) or None}
    level = read_mark(pod, ARMADA_TOPOLOGY)
    return {"level": level, "required": True, "group": GANG} if level else None


def slice_size(pod: Json) -> int | Reason:
    """Number of pods of a role that share a domain, by Kueue's marks of slices; 0 without them."""
    level, field = found_in(pod, SLICE_TOPOLOGY)
    words, where = found_in(pod, SLICE_SIZE)
    if not level and not words:
        return 0
    if not level or not words:
        missing = SLICE_SIZE if level else SLICE_TOPOLOGY
        return no(Code.MISSING_FIELD, f"metadata.annotations[{missing}]", "a slice has a level and a size")
    if read_mark(pod, SHARED_DOMAIN):
        return no(Code.NOT_SUPPORTED_YET, field, f"slices are honoured without {SHARED_DOMAIN}")
    return number_in(words) or no(Code.INVALID_FIELD, where, f"{words!r} is no number of pods")
