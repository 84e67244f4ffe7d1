"""
Terms of a user's pod about other pods, as groups of anti-affinity and as neighbours of a role. Pure.

Required anti-affinity of pods to their own kind on one node is a group, which has a seat on each node. Every other term
that names labels by their values is one about neighbours. The pods that it means are those of its namespace that can be
found: by the labels that terms of their own name, or by those that an annotation names.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tessera.binder.workloads.reading import items, mapping, text
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import FOUND_BY_ANNOTATION
from tessera_schemas.cluster.node_terms import HOSTNAME_LABEL

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
KINDS = {"podAffinity": "near", "podAntiAffinity": "apart_from"}
GROUP_CHARACTERS, TERMS_MAX = 20, 16
BY_VALUES = "a selector is honoured that names labels, each by one value"


@dataclass(frozen=True, slots=True)
class PodTermRead:
    """
    A term of a pod. `kind` is the field of neighbours, "" of a term with a `group`; `wrong` is the part of it that is
    not honoured, and `detail` what is. `weight` is None of a condition.
    """

    field: str
    kind: str
    labels: tuple[tuple[str, str], ...] = ()
    topology: str = ""
    weight: int | None = None
    group: str = ""
    wrong: str = ""
    detail: str = ""

    @property
    def is_required(self) -> bool:
        """Whether it is a condition."""
        return REQUIRED in self.field

    @property
    def as_json(self) -> Json:
        """The term as the contract has it."""
        return {"labels": dict(self.labels), "topology": self.topology, "weight": self.weight}


def read_pod_terms(pod: Json) -> list[PodTermRead]:
    """All terms of the pod about other pods, first what it is to be near to."""
    lists = ((kind, which) for kind in KINDS for which in (REQUIRED, PREFERRED))
    found = [_read(pod, kind, which, *each) for kind, which in lists for each in _terms(pod, kind, which)]
    counted = dict.fromkeys(KINDS.values(), 0)
    for index, each in enumerate(found):
        if each.wrong or each.group:
            continue
        counted[each.kind] += 1
        if counted[each.kind] > TERMS_MAX:
            found[index] = replace(each, wrong="labelSelector", detail=f"{TERMS_MAX} terms are honoured")
    return found


def neighbours_of(pod: Json) -> Json | None:
    """Neighbours of the pod's role; None where it says nothing of other pods, and is not to be found by them."""
    terms = [each for each in read_pod_terms(pod) if not (each.wrong or each.group)]
    keys = {key for each in terms for key, _ in each.labels}
    said = text(pod, "metadata", "annotations", FOUND_BY_ANNOTATION)
    keys |= {key for word in said.split(",") if (key := word.strip())}
    labels = {key: value for key, value in sorted(mapping(pod, "metadata", "labels").items()) if key in keys}
    if not terms and not labels:
        return None
    # In one order, however the pod was written, and each once.
    unique = {repr(each.as_json): each for each in sorted(terms, key=lambda each: repr(each.as_json))}
    by_kind = {kind: [each.as_json for each in unique.values() if each.kind == kind] for kind in KINDS.values()}
    return {"labels": labels, **by_kind}


def own_gang_meant(pods: Sequence[Json]) -> PodTermRead | None:
    """The first condition of a gang's pods that means pods of the gang, about which the ledger has other rules."""
    saying = (pod for pod in pods if len(pods) > 1 and mapping(pod, "spec", "affinity"))
    terms = dict.fromkeys(term for pod in saying for term in read_pod_terms(pod) if term.is_required and term.kind)
    labels = [mapping(pod, "metadata", "labels").items() for pod in pods] if terms else []
    found = (term for term in terms if not term.wrong and any(set(term.labels) <= set(each) for each in labels))
    return next(found, None)


def _terms(pod: Json, kind: str, which: str) -> Iterator[tuple[int, Json, int | None]]:
    for index, each in enumerate(items(pod, "spec", "affinity", kind, which)):
        weight = each.get("weight")
        term = each if which == REQUIRED else mapping(each, "podAffinityTerm")
        yield index, term, None if which == REQUIRED else weight if type(weight) is int else 0


def _read(pod: Json, kind: str, which: str, index: int, term: Json, weight: int | None) -> PodTermRead:
    field, namespace = f"spec.affinity.{kind}.{which}[{index}]", text(pod, "metadata", "namespace")
    found = PodTermRead(field, KINDS[kind], topology=text(term, "topologyKey"), weight=weight)
    if not found.topology:
        return replace(found, wrong="topologyKey", detail="the domains are the values of a node's label")
    elsewhere = term.get("namespaces") not in (None, [], [namespace])
    if elsewhere or term.get("namespaceSelector") is not None:
        wrong = "namespaces" if elsewhere else "namespaceSelector"
        return replace(found, wrong=wrong, detail="pods of the pod's own namespace are looked at")
    on_a_node = kind == "podAntiAffinity" and which == REQUIRED and found.topology == HOSTNAME_LABEL
    if on_a_node and (group := _group(pod, namespace, term)):
        return replace(found, kind="", group=group)
    labels = _by_one_value(mapping(term, "labelSelector"))
    if labels is None:
        return replace(found, wrong="labelSelector", detail=BY_VALUES)
    return replace(found, labels=labels)


def _group(pod: Json, namespace: str, term: Json) -> str:
    """The group of pods with an equal term, where it selects the pod itself; else ""."""
    labels, selector = mapping(pod, "metadata", "labels"), mapping(term, "labelSelector")
    # An API server has put the values of `matchLabelKeys` among the expressions.
    expressions = items(selector, "matchExpressions")
    asked = {(text(each, "key"), tuple(sorted(map(str, each.get("values") or ())))) for each in expressions}
    asked |= {(key, (str(value),)) for key, value in mapping(selector, "matchLabels").items()}
    is_plain = all(text(each, "operator") == "In" for each in expressions)
    if not (asked and is_plain and all(labels.get(key) in values for key, values in asked)):
        return ""
    return f"pods-{hashlib.sha256(repr((namespace, sorted(asked))).encode()).hexdigest()[:GROUP_CHARACTERS]}"


def _by_one_value(selector: Json) -> tuple[tuple[str, str], ...] | None:
    """The labels that the selector asks for; None where it says anything else of them, or nothing."""
    asked = {(key, str(value)) for key, value in mapping(selector, "matchLabels").items()}
    for each in items(selector, "matchExpressions"):
        values = each.get("values")
        if text(each, "operator") != "In" or not isinstance(values, list) or len(values) != 1:
            return None
        asked.add((text(each, "key"), str(values[0])))
    keys = {key for key, _ in asked}
    return tuple(sorted(asked)) if asked and len(keys) == len(asked) else None
