"""
The allocation of a claim, from the devices that were decided and from what claim, classes and slices say. Pure.

Parameters for drivers come first from the classes of the chosen requests, each class once, then from the claim.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.binder.claims.decide.objects import format_amounts, requests_of
from tessera.binder.workloads.reading import at, items, mapping, no, text
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import DrawnDevice

ON_THIS_NODE = "metadata.name"


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device as its slice has it; `node_bound`: its claim is good on the pod's node alone."""

    device: Json
    node_bound: bool = True
    selector: Json | None = None

    @property
    def is_shared(self) -> bool:
        """Tells whether several claims may have shares of the device."""
        return at(self.device, "allowMultipleAllocations") is True


@dataclass(frozen=True, slots=True)
class ClaimReservation:
    """
    One claim of a pod and the devices drawn for it, with the pod, its run and node.

    `published` and `classes` are as the cluster has them, by device id and by name; what is gone is not in them.
    `peers` are the UIDs of all pods of the run.
    """

    run_id: str
    rank: int
    pod: str
    uid: str
    node: str
    drawn: tuple[DrawnDevice, ...]
    published: Mapping[str, AllocatedDevice]
    classes: Mapping[str, Json]
    peers: frozenset[str] = frozenset()


def allocation_of(claim: Json, wanted: ClaimReservation, now: str) -> Json | Reason:
    """`status.allocation` of the claim, or why it cannot be written."""
    requests = {text(request, "name"): request for request in requests_of(claim)}
    for one in wanted.drawn:
        if one.id not in wanted.published:
            return conflict(claim, f"device {one.id} is published no more")
        if _chosen(requests, one) is None:
            return conflict(claim, f"it has no request {one.request}")
    chosen = {one.request.partition("/")[0]: _chosen(requests, one) or {} for one in wanted.drawn}
    missing = [name for name in map(_class, chosen.values()) if name not in wanted.classes]
    if missing:
        return conflict(claim, f"the cluster has no DeviceClass {missing[0]}")
    results = [_result(wanted, index, _chosen(requests, one) or {}) for index, one in enumerate(wanted.drawn)]
    config = [*_class_config(claim, wanted, chosen), *_claim_config(claim, wanted)]
    selector = _node_selector(wanted)
    return {
        "devices": {"results": results} | ({"config": config} if config else {}),
        "allocationTimestamp": now,
    } | ({"nodeSelector": selector} if selector else {})


def conflict(claim: Json, detail: str) -> Reason:
    """The claim's devices cannot be had, with the claim's name."""
    return no(Code.CLAIM_CONFLICT, "", f"claim {text(claim, 'metadata', 'name')}: {detail}")


def has_these(claim: Json, drawn: Sequence[DrawnDevice]) -> bool:
    """Tells whether the allocation of a claim is of exactly these devices, whoever wrote it."""
    requests = {text(request, "name"): request for request in requests_of(claim)}
    there = [
        (text(one, "request"), text(one, "driver"), text(one, "pool"), text(one, "device")) for one in results_of(claim)
    ]
    return sorted(there) == sorted((_name_of(requests, one), one.driver, one.pool, one.device) for one in drawn)


def results_of(claim: Json) -> list[Json]:
    """The devices that a claim has; none while it is not allocated."""
    return items(mapping(claim, "status", "allocation", "devices"), "results")


def id_of(result: Json) -> str:
    """`driver/pool/device` of one of them."""
    return f"{text(result, 'driver')}/{text(result, 'pool')}/{text(result, 'device')}"


def _chosen(requests: Mapping[str, Json], drawn: DrawnDevice) -> Json | None:
    """The request, or the alternative of it, that a device answers."""
    name, _, choice = drawn.request.partition("/")
    request = requests.get(name)
    if request is None or isinstance(exactly := request.get("exactly"), dict):
        return None if request is None else exactly
    return next((one for one in items(request, "firstAvailable") if text(one, "name") == choice), None)


def _name_of(requests: Mapping[str, Json], drawn: DrawnDevice) -> str:
    """The request as the API names it: an alternative has the name of its request before its own."""
    name = drawn.request.partition("/")[0]
    return name if at(requests.get(name), "exactly") else drawn.request


def _class(chosen: Json) -> str:
    return text(chosen, "deviceClassName")


def _result(wanted: ClaimReservation, index: int, chosen: Json) -> Json:
    drawn = wanted.drawn[index]
    published = wanted.published[drawn.id]
    exactly = "name" not in chosen
    result: Json = {
        "request": drawn.request.partition("/")[0] if exactly else drawn.request,
        "driver": drawn.driver,
        "pool": drawn.pool,
        "device": drawn.device,
    }
    for name in ("bindingConditions", "bindingFailureConditions"):
        if conditions := at(published.device, name):
            result[name] = conditions
    if tolerations := items(chosen, "tolerations"):
        result["tolerations"] = tolerations
    if drawn.admin:
        result["adminAccess"] = True
    elif published.is_shared:
        result["shareID"] = share_id(wanted.run_id, wanted.rank, drawn.claim, index)
        if drawn.capacity:
            result["consumedCapacity"] = format_amounts(drawn.capacity)
    return result


def share_id(run_id: str, rank: int, claim: str, index: int) -> str:
    """Identity of a share of a device: the same whenever it is written, another for each share of a run."""
    digest = hashlib.sha256(f"{run_id}/{rank}/{claim}/{index}".encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


def _class_config(claim: Json, wanted: ClaimReservation, chosen: Mapping[str, Json]) -> list[Json]:
    of_class: dict[str, list[str]] = {}
    for name in (text(request, "name") for request in requests_of(claim)):
        if (of := chosen.get(name)) is not None:
            full = f"{name}/{text(of, 'name')}" if "name" in of else name
            of_class.setdefault(_class(of), []).append(full)
    return [
        {"source": "FromClass", "requests": requests} | config
        for name, requests in of_class.items()
        for config in items(wanted.classes[name], "spec", "config")
    ]


def _claim_config(claim: Json, wanted: ClaimReservation) -> list[Json]:
    """Parameters of the claim, without those for another alternative than the chosen one."""
    chosen = {one.request for one in wanted.drawn} | {one.request.partition("/")[0] for one in wanted.drawn}
    return [
        {"source": "FromClaim"} | config
        for config in items(mapping(claim, "spec", "devices"), "config")
        if not config.get("requests") or chosen.intersection(config["requests"])
    ]


def _node_selector(wanted: ClaimReservation) -> Json | None:
    """The pod's node where any device is bound to it, else what the slices say together; None: good everywhere."""
    devices = [wanted.published[one.id] for one in wanted.drawn]
    if any(one.node_bound for one in devices):
        here = {"key": ON_THIS_NODE, "operator": "In", "values": [wanted.node]}
        return {"nodeSelectorTerms": [{"matchFields": [here]}]}
    term: dict[str, list[Json]] = {}
    for one in devices:
        for said in items(one.selector, "nodeSelectorTerms")[:1]:
            for part in ("matchFields", "matchExpressions"):
                term[part] = [*term.get(part, []), *(e for e in items(said, part) if e not in term.get(part, []))]
    return (
        {"nodeSelectorTerms": [{part: all_of for part, all_of in term.items() if all_of}]}
        if any(term.values())
        else None
    )
