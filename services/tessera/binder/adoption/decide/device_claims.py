"""
Claims of users' pods on devices that drivers publish (DRA), as the contract has them. Pure.

What Kubernetes' own scheduler would hold is part of the claim or refused by the name of its field.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tessera.binder.adoption.decide.volumes import HOST_LABEL, in_one_term, with_conditions
from tessera.binder.workloads.reading import items, mapping, no, text, whole
from tessera.binder.workloads.references import OwnerRef
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.quantities import QuantityError, quantity

API_VERSION = "resource.k8s.io/v1"
READ = "tessera.io/read"
"""Within a pod's entry of `resourceClaims`: the spec of the claim that it names, put there by whoever looked it up."""
ALLOCATED = "tessera.io/allocated"
"""Beside it, where the claim has devices already."""


class Unsupported(ValueError):
    """A field of a claim that cannot be honoured, or that says nothing that can be read; `reason` names it."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.field)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ReadClaim:
    """The spec of a claim; `reach` are conditions on nodes where it has devices already, None where it has none."""

    spec: Json
    reach: tuple[Json, ...] | None = None


def group_to_ask(pod: Json) -> str:
    """The PodGroup of a pod with claims from templates, which may be the group's claims; "" where there is none."""
    templates = any(text(entry, "resourceClaimTemplateName") for entry in items(pod, "spec", "resourceClaims"))
    return text(pod, "spec", "schedulingGroup", "podGroupName") if templates else ""


def with_claims_of_group(pod: Json, group: Json) -> Json | Reason:
    """
    The pod as if it named the claims that it shares with its PodGroup: those of one name and template with the group's.

    Kubernetes makes them with the group, and not with its pods; they live as long as the group.
    """
    shared = {
        (text(one, "name"), text(one, "resourceClaimTemplateName")) for one in items(group, "spec", "resourceClaims")
    }
    made = {
        text(one, "name"): text(one, "resourceClaimName") for one in items(group, "status", "resourceClaimStatuses")
    }
    named = []
    for index, entry in enumerate(items(pod, "spec", "resourceClaims")):
        name, template = text(entry, "name"), text(entry, "resourceClaimTemplateName")
        if not template or (name, template) not in shared:
            named.append(entry)
        elif made.get(name):
            named.append({"name": name, "resourceClaimName": made[name]})
        else:
            detail = f"claim {name} of PodGroup {text(group, 'metadata', 'name')} is still to be made"
            return no(Code.CLAIM_NOT_READY, f"spec.resourceClaims[{index}]", detail)
    return {**pod, "spec": {**mapping(pod, "spec"), "resourceClaims": named}}


def claim_sources(pod: Json, namespace: str) -> list[tuple[str, str, OwnerRef]]:
    """For each claim of a pod: its field, its name within the pod, and the template or claim that says what it asks."""
    found = []
    for index, entry in enumerate(items(pod, "spec", "resourceClaims")):
        # The template, where there is one, and not the claim made of it: that is made some time after the pod, and a
        # gang whose pods come one by one would be another job each time.
        template, claim = text(entry, "resourceClaimTemplateName"), text(entry, "resourceClaimName")
        ref = OwnerRef(
            API_VERSION, "ResourceClaimTemplate" if template else "ResourceClaim", namespace, template or claim
        )
        found.append((f"spec.resourceClaims[{index}]", text(entry, "name"), ref))
    return found


def with_claims(pod: Json, claims: Sequence[ReadClaim]) -> Json:
    """The pod with what its claims ask for, one for each entry, and as if its owner had asked for nodes they reach."""
    entries = zip(items(pod, "spec", "resourceClaims"), claims, strict=True)
    read = [{**entry, READ: claim.spec, ALLOCATED: claim.reach is not None} for entry, claim in entries]
    # As conditions of the owner, so that whoever judges a placement judges these, too, and no decision knows of claims
    # that others allocated.
    conditions = [each for claim in claims for each in claim.reach or ()]
    return with_conditions({**pod, "spec": {**mapping(pod, "spec"), "resourceClaims": read}}, conditions)


def nodes_named_by(claim: Json) -> list[str]:
    """The names of nodes that the allocation of a claim is good on; empty where it goes by labels alone."""
    terms = items(claim, "status", "allocation", "nodeSelector", "nodeSelectorTerms")
    return [name for term in terms for each in items(term, "matchFields") for name in each.get("values") or ()]


def reach_of(field: str, claim: Json, hosts: Mapping[str, str]) -> tuple[Json, ...] | Reason:
    """Conditions on the nodes where the devices of a claim can be had; `hosts` are nodes' hostnames by their names."""
    terms = items(claim, "status", "allocation", "nodeSelector", "nodeSelectorTerms")
    found = in_one_term([_by_labels(term, hosts) for term in terms])
    if found is None:
        detail = f"claim {text(claim, 'metadata', 'name')}: the nodes of its allocation cannot be said in one term"
        return no(Code.NOT_SUPPORTED_YET, field, detail, terms=len(terms))
    return found


def _by_labels(term: Json, hosts: Mapping[str, str]) -> Json:
    """The term, which says by the label of hostnames what it says by names of nodes."""
    # Decisions know a node's labels as conditions, and its name as none: no condition of a role could hold it.
    fields, conditions = items(term, "matchFields"), items(term, "matchExpressions")
    if any(text(each, "key") != "metadata.name" or text(each, "operator") != "In" for each in fields):
        return term
    by_name = [
        {"key": HOST_LABEL, "operator": "In", "values": sorted(hosts.get(name, name) for name in each["values"])}
        for each in fields
    ]
    return {"matchExpressions": [*conditions, *by_name]}


def claims_of(spec: Json) -> Iterator[Json]:
    """The claims of a pod's spec, as `DeviceClaim` has them. Raises Unsupported."""
    for index, entry in enumerate(items(spec, "resourceClaims")):
        field = f"spec.resourceClaims[{index}]"
        # Without pods nobody looks claims up, and a job of unknown devices would start anywhere.
        if READ not in entry:
            detail = "claims of a workload without pods are not looked at; start it unsuspended"
            raise Unsupported(no(Code.NOT_SUPPORTED_YET, field, detail))
        devices = mapping(entry, READ, "devices")
        yield {
            "name": text(entry, "name"),
            "requests": [
                _request(each, f"{field}.requests[{at}]") for at, each in enumerate(items(devices, "requests"))
            ],
            "constraints": [_constraint(each, field) for each in items(devices, "constraints")],
            "object_name": text(entry, "resourceClaimName"),
            "allocated": entry.get(ALLOCATED) is True,
        }


def _request(request: Json, field: str) -> Json:
    # One of both by the API's own rules; a request with neither has no choices, which the contract refuses.
    exactly, several = mapping(request, "exactly"), items(request, "firstAvailable")
    choices = [_choice({**exactly, "name": ""}, f"{field}.exactly")] if exactly else []
    choices += [_choice(each, f"{field}.firstAvailable[{at}]") for at, each in enumerate(several)]
    return {"name": text(request, "name"), "choices": choices}


def _choice(choice: Json, field: str) -> Json:
    # Servers fill both in; what a suspended owner's template says was filled in by nobody.
    mode = text(choice, "allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise Unsupported(no(Code.NOT_SUPPORTED_YET, f"{field}.allocationMode", f"{mode} is not known here"))
    # A count that is no number is left to the contract, which refuses it by its field.
    count = whole(choice, "count")
    return {
        "name": text(choice, "name"),
        "device_class": text(choice, "deviceClassName"),
        "selectors": [
            _expression(each, f"{field}.selectors[{at}]") for at, each in enumerate(items(choice, "selectors"))
        ],
        "count": 1 if count is None else count,
        "every": mode == "All",
        "admin": choice.get("adminAccess") is True,
        "tolerations": [
            {name: text(each, name) for name in ("key", "value", "effect")}
            | {"operator": text(each, "operator") or "Equal"}
            for each in items(choice, "tolerations")
        ],
        "capacity": {
            name: _milli(amount, f"{field}.capacity.requests[{name}]")
            for name, amount in mapping(choice, "capacity", "requests").items()
        },
    }


def _expression(selector: Json, field: str) -> str:
    expression = text(selector, "cel", "expression")
    if not expression:
        raise Unsupported(no(Code.NOT_SUPPORTED_YET, field, "a selector is an expression in CEL"))
    return expression


def _constraint(constraint: Json, field: str) -> Json:
    match, distinct = text(constraint, "matchAttribute"), text(constraint, "distinctAttribute")
    # A newer server may know further kinds of constraints: one that is not understood must not be passed over.
    if bool(match) is bool(distinct):
        detail = "a constraint is a matchAttribute or a distinctAttribute"
        raise Unsupported(no(Code.NOT_SUPPORTED_YET, f"{field}.constraints", detail))
    return {"requests": constraint.get("requests") or [], "match": match, "distinct": distinct}


def _milli(amount: Any, field: str) -> int:
    try:
        # Up, never down: a share must not be smaller than asked for by a part that cannot be counted.
        return ceil(quantity(amount) * 1000)
    except QuantityError as error:
        raise Unsupported(no(Code.INVALID_FIELD, field, str(error))) from error
