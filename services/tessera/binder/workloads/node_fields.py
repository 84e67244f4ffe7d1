"""
Conditions of a pod on the names of nodes (`matchFields`), said by the label of hostnames. Pure.

Decisions know a node's labels as conditions, and its name as none. A kubelet's hostname need not be its node's name, so
that whoever rewrites a condition says the hostnames of the nodes that it names.
"""

from collections.abc import Iterator, Mapping

from tessera.binder.workloads.reading import items, mapping, text
from tessera_schemas.base import Json
from tessera_schemas.cluster.node_terms import HOSTNAME_LABEL

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NAMES_MAX = 64
"""Nodes that conditions of a pod may name: each is looked up."""


def nodes_named_in(pod: Json) -> list[str]:
    """Names of nodes that conditions and preferences of the pod name; none where not all of them are looked up."""
    found = sorted({name for term in _terms(pod) for name in _names(term)})
    return found if len(found) <= NAMES_MAX else []


def by_hostnames(pod: Json, hosts: Mapping[str, str]) -> Json:
    """The pod, which says by hostnames what it says by these names of nodes; anything else stays as it is."""
    affinity, of_nodes = mapping(pod, "spec", "affinity"), mapping(pod, "spec", "affinity", "nodeAffinity")
    required = [_rewritten(term, hosts) for term in items(of_nodes, REQUIRED, "nodeSelectorTerms")]
    preferred = [
        {**each, "preference": _rewritten(mapping(each, "preference"), hosts)} for each in items(of_nodes, PREFERRED)
    ]
    changed: Json = {REQUIRED: {"nodeSelectorTerms": required}} if required else {}
    changed |= {PREFERRED: preferred} if preferred else {}
    return {**pod, "spec": {**mapping(pod, "spec"), "affinity": {**affinity, "nodeAffinity": {**of_nodes, **changed}}}}


def _terms(pod: Json) -> Iterator[Json]:
    of_nodes = mapping(pod, "spec", "affinity", "nodeAffinity")
    yield from items(of_nodes, REQUIRED, "nodeSelectorTerms")
    yield from (mapping(each, "preference") for each in items(of_nodes, PREFERRED))


def _names(term: Json) -> set[str]:
    """Names of nodes in the term's fields; none where a field is anything else, which no API server lets through."""
    fields = items(term, "matchFields")
    by_name = all(text(each, "key") == "metadata.name" and text(each, "operator") in ("In", "NotIn") for each in fields)
    return {name for each in fields for name in _values(each)} if by_name and all(map(_values, fields)) else set()


def _values(field: Json) -> list[str]:
    values = field.get("values")
    return [name for name in values if isinstance(name, str)] if isinstance(values, list) else []


def _rewritten(term: Json, hosts: Mapping[str, str]) -> Json:
    names = _names(term)
    if not names or not names <= hosts.keys():
        return term
    by_host = [
        {"key": HOSTNAME_LABEL, "operator": each["operator"], "values": [hosts[name] for name in _values(each)]}
        for each in items(term, "matchFields")
    ]
    rest = {part: value for part, value in term.items() if part != "matchFields"}
    return {**rest, "matchExpressions": [*items(term, "matchExpressions"), *by_host]}
