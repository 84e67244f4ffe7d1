"""
One pod of a user as a role of the contract: what it takes, and on which nodes it may be. Pure.

A condition that Kubernetes' own scheduler would hold is either part of the role or refused by the name of its field,
and so are the marks of other systems; a preference is said in a condition of the pod (`marks.not_honoured`).
"""

from collections.abc import Iterator
from itertools import chain

from pydantic import ValidationError

from tessera.binder.adoption.decide.amounts import resources_of
from tessera.binder.adoption.decide.device_claims import Unsupported, claims_of
from tessera.binder.adoption.decide.spreading import spread_of
from tessera.binder.workloads.marks import preferred_nodes, refused_mark, topology_of
from tessera.binder.workloads.pod_terms import neighbours_of, read_pod_terms
from tessera.binder.workloads.reading import at, items, mapping, no, text
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import (
    EXCLUSIVE_ANNOTATION,
    GPU_MODELS_ANNOTATION,
    MIXED_MODELS_ANNOTATION,
    RELEASE_ANNOTATION,
)
from tessera_schemas.job import Operator, Role, Template
from tessera_schemas.reasons import Code, Reason

TEMPLATE = Template(image="adopted")
"""Stands where the contract wants a template: the pods are there already, and none is made from it."""

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERMS = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
OF_GPUS = ("gpus", "gpu_milli", "mig_profile")
BY_NAME = "names of nodes are honoured, by In or NotIn of metadata.name, at most 64 of them"
FOR_A_WHILE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class _Refused(ValueError):
    def __init__(self, code: Code, field: str, detail: str, **numbers: int) -> None:
        super().__init__(field)
        self.reason = no(code, field, detail, **numbers)


def role_of(pod: Json) -> Role | Reason:
    """The role of one replica; or the first field, in the order of the pod's own parts, that cannot be honoured."""
    spec = mapping(pod, "spec")
    against = refused_mark(pod)
    if against is not None:
        return against
    try:
        _check_what_is_not_placed_by(spec)
        wanted = resources_of(spec, mapping(pod, "metadata", "annotations"))
        if isinstance(wanted, Reason):
            return wanted
        spread = spread_of(spec)
        if isinstance(spread, tuple):
            return no(Code.NOT_SUPPORTED_YET, *spread)
        if claims := list(claims_of(spec)):
            wanted = {**wanted, "claims": claims}
        return Role.model_validate(
            {
                "name": "pods",
                "resources": wanted,
                "gpu_models": _gpu_models(pod) if any(wanted.get(name) for name in OF_GPUS) else (),
                "node_selector": mapping(spec, "nodeSelector"),
                "tolerations": _unique(_tolerations(spec)),
                **_affinity(spec),
                "affinity_preferred": preferred_nodes(spec),
                **_about_pods(pod),
                "topology": topology_of(pod),
                **spread,
                "template": TEMPLATE,
                "release": _release(pod),
                "mixed_models": _says_so(pod, MIXED_MODELS_ANNOTATION),
                "exclusive": _has_whole_nodes(pod, wanted),
            }
        )
    except (_Refused, Unsupported) as refused:
        return refused.reason
    except ValidationError as error:
        return invalid(error, "spec")


def _release(pod: Json) -> str:
    given = text(mapping(pod, "metadata", "annotations"), RELEASE_ANNOTATION) or "pod"
    if given not in ("pod", "together"):
        field = f"metadata.annotations[{RELEASE_ANNOTATION}]"
        raise _Refused(Code.INVALID_FIELD, field, f"{given!r} is neither pod nor together")
    return given


def _gpu_models(pod: Json) -> list[str]:
    """The acceptable models in the order of the annotation; each once."""
    words = text(mapping(pod, "metadata", "annotations"), GPU_MODELS_ANNOTATION).split(",")
    return list(dict.fromkeys(model for word in words if (model := word.strip())))


def _says_so(pod: Json, annotation: str) -> bool:
    given = text(mapping(pod, "metadata", "annotations"), annotation) or "false"
    if given not in ("true", "false"):
        field = f"metadata.annotations[{annotation}]"
        raise _Refused(Code.INVALID_FIELD, field, f"{given!r} is neither true nor false")
    return given == "true"


def _has_whole_nodes(pod: Json, wanted: Json) -> bool:
    """Whether each pod is to have a node to itself; only with GPUs, since quotas count what a pod itself asks for."""
    asked = _says_so(pod, EXCLUSIVE_ANNOTATION)
    if asked and not wanted.get("gpus"):
        field = f"metadata.annotations[{EXCLUSIVE_ANNOTATION}]"
        raise _Refused(Code.INVALID_FIELD, field, "goes with all GPUs of a node; a pod without has no node to itself")
    return asked


def invalid(error: ValidationError, below: str) -> Reason:
    """The first thing that the contract has against it, named as the contract does."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return no(Code.INVALID_FIELD, f"{below}.{where}" if where else below, first["msg"].removeprefix("Value error, "))


def _check_what_is_not_placed_by(spec: Json) -> None:
    """Raises _Refused for conditions that nothing here looks at."""
    for field, detail in chain(_by_other_pods(spec), _by_volumes(spec), _by_ports(spec)):
        raise _Refused(Code.NOT_SUPPORTED_YET, f"spec.{field}", detail)
    if spec.get("preemptionPolicy") == "Never":
        raise _Refused(Code.NOT_SUPPORTED_YET, "spec.preemptionPolicy", "use a PriorityClass that may preempt")


def _by_other_pods(spec: Json) -> Iterator[tuple[str, str]]:
    if spec.get("workloadRef"):
        yield "workloadRef", "servers have schedulingGroup instead, since 1.36"
    if spec.get("schedulingGroup") and not text(spec, "schedulingGroup", "podGroupName"):
        yield "schedulingGroup", "a podGroupName is honoured"


def _by_volumes(spec: Json) -> Iterator[tuple[str, str]]:
    for index, volume in enumerate(items(spec, "volumes")):
        if "ephemeral" in volume:
            yield f"volumes[{index}].ephemeral", "its place depends on its node; use a claim that is bound"


def _by_ports(spec: Json) -> Iterator[tuple[str, str]]:
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(items(spec, kind)):
            if any(port.get("hostPort") for port in items(container, "ports")):
                yield f"{kind}[{index}].ports", "Tessera keeps no book of a node's ports"


def _tolerations(spec: Json) -> Iterator[Json]:
    """Tolerations of taints that keep pods off a node or drive them away; no node with a passing trouble is chosen."""
    for index, toleration in enumerate(items(spec, "tolerations")):
        field = f"spec.tolerations[{index}]"
        key, effect, value = (text(toleration, name) for name in ("key", "effect", "value"))
        operator = text(toleration, "operator") or "Equal"
        # A soft taint keeps nobody out. Toleration for a time is about a trouble that passes, and a node in such a
        # trouble takes nothing new.
        if effect == "PreferNoSchedule" or (key in FOR_A_WHILE and "tolerationSeconds" in toleration):
            continue
        if not key:
            raise _Refused(Code.NOT_SUPPORTED_YET, f"{field}.key", "name the taints that it tolerates")
        if operator not in ("Equal", "Exists"):
            raise _Refused(Code.NOT_SUPPORTED_YET, f"{field}.operator", f"{operator} is not known here")
        # An empty value means the empty one with `Equal`, and any with `Exists`: without the operator both would look
        # alike.
        empty_alone = {"operator": "Equal"} if operator == "Equal" and not value else {}
        yield {"key": key, "value": value if operator == "Equal" else "", "effect": effect} | empty_alone


def _affinity(spec: Json) -> Json:
    """The required node affinity: the conditions of its one term, or those of each where there are several."""
    needed = at(spec, "affinity", "nodeAffinity", REQUIRED)
    if not needed:
        return {}
    terms = [_unique(_conditions(index, term)) for index, term in enumerate(items(needed, "nodeSelectorTerms"))]
    if not terms:
        raise _Refused(Code.INVALID_FIELD, TERMS, "no term fits no node")
    return {"affinity": terms[0]} if len(terms) == 1 else {"affinity_any": sorted(terms, key=repr)}


def _about_pods(pod: Json) -> Json:
    """Fields of a role that the pod's terms about other pods amount to."""
    terms = read_pod_terms(pod)
    for term in terms:
        if term.wrong and term.is_required:
            raise _Refused(Code.NOT_SUPPORTED_YET, f"{term.field}.{term.wrong}", term.detail)
    groups = sorted({term.group for term in terms if term.group})
    return {"anti_affinity": [{"group": group} for group in groups], "neighbours": neighbours_of(pod)}


def _conditions(index: int, term: Json) -> Iterator[Json]:
    """The conditions of a term of the required node affinity."""
    if items(term, "matchFields"):
        raise _Refused(Code.NOT_SUPPORTED_YET, f"{TERMS}[{index}].matchFields", BY_NAME)
    conditions = items(term, "matchExpressions")
    if not conditions:
        raise _Refused(
            Code.INVALID_FIELD, f"{TERMS}[{index}].matchExpressions", "a term without conditions fits no node"
        )
    for each, condition in enumerate(conditions):
        operator = text(condition, "operator")
        if operator not in frozenset(Operator):
            field = f"{TERMS}[{index}].matchExpressions[{each}].operator"
            raise _Refused(Code.NOT_SUPPORTED_YET, field, f"{operator} is not known here")
        values = condition.get("values") or []
        yield {"key": text(condition, "key"), "operator": operator, "values": sorted(map(str, values))}


def _unique(found: Iterator[Json]) -> list[Json]:
    """Distinct entries, in an order that does not depend on how the pod was written."""
    return [dict(pairs) for pairs in sorted({tuple(sorted(_hashable(one).items())) for one in found})]


def _hashable(one: Json) -> Json:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in one.items()}
