"""ResourceClaims of the pods that Tessera makes, and the claims that any pod names. Pure."""

from collections.abc import Collection, Iterable

from tessera.binder.claims.decide.extended import named_extended_claim
from tessera.binder.workloads.reading import items, mapping, text
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_claims import (
    DeviceChoice,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    DriverConfig,
)
from tessera_schemas.cluster.labels import CLAIMS_API
from tessera_schemas.job import Role

MILLI = 1000


def claim_name(pod: str, claim: DeviceClaim) -> str:
    """The object that a pod's claim is: one of its own, or one that pods share. A pod's name ends in its rank."""
    # No rank is called so, and no claim of one pod has the name of one that the run's pods share.
    run = pod.rpartition("-")[0]
    return claim.object_name or (f"{run}-shared-{claim.name}" if claim.shared else f"{pod}-{claim.name}")


def claims_to_make(role: Role, drawn: Collection[str]) -> list[DeviceClaim]:
    """
    Claims of which objects are made with a pod of the role: its own, and of those that the run's pods share the ones
    that have their devices (`drawn`) with this pod.
    """
    own = (claim for claim in role.resources.claims if not claim.object_name)
    return [claim for claim in own if not claim.shared or claim.name in drawn]


def claims_in_pod(pod: str, role: Role) -> Json:
    """The field of a pod's spec that names its claims; nothing for a role without any."""
    named = [{"name": one.name, "resourceClaimName": claim_name(pod, one)} for one in role.resources.claims]
    return {"resourceClaims": named} if named else {}


def claim_object(pod: Json, claim: DeviceClaim) -> Json:
    """
    The claim of a pod that was made, with the pod's labels.

    The pod owns it: once the pod has ended or is gone, and no other uses the claim, the cluster takes it away.
    """
    meta = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    return {
        "apiVersion": CLAIMS_API,
        "kind": "ResourceClaim",
        "metadata": {
            "name": claim_name(meta["name"], claim),
            "namespace": meta["namespace"],
            "labels": meta.get("labels") or {},
            "ownerReferences": [owner],
        },
        "spec": {"devices": _devices(claim)},
    }


def is_owned_by(claim: Json, pod_uid: str) -> bool:
    """Tells whether the claim goes with that pod."""
    return any(text(owner, "uid") == pod_uid for owner in items(claim, "metadata", "ownerReferences"))


def named_claims(pod: Json) -> dict[str, str]:
    """
    The objects that a pod's claims are, by the pod's names for them; "" for one that is still to be made.

    A claim from a template that Kubernetes found needless is left out.
    """
    made = {text(one, "name"): one for one in items(pod, "status", "resourceClaimStatuses")}
    found: dict[str, str] = {}
    for each in items(pod, "spec", "resourceClaims"):
        name, said = text(each, "name"), text(each, "resourceClaimName")
        if said or name not in made:
            found[name] = said
        elif text(made[name], "resourceClaimName"):
            found[name] = text(made[name], "resourceClaimName")
    return found


def claim_names_of(pod: Json) -> tuple[str, ...]:
    """The claims of a pod that are there, each once; the one for what it counts on is among them."""
    named = (*named_claims(pod).values(), named_extended_claim(pod))
    return tuple(dict.fromkeys(name for name in named if name))


def format_milli(milli: int) -> str:
    """Thousandths as the quantity that the API writes."""
    return f"{milli}m" if milli % MILLI else str(milli // MILLI)


def format_amounts(amounts: Iterable[tuple[str, int]]) -> dict[str, str]:
    """The same of several, by name."""
    return {name: format_milli(milli) for name, milli in amounts}


# -- spec -------------------------------------------------------------------------------------------------------------


def _devices(claim: DeviceClaim) -> Json:
    constraints, config = [_constraint(one) for one in claim.constraints], [_config(one) for one in claim.config]
    return (
        {"requests": [_request(request) for request in claim.requests]}
        | ({"constraints": constraints} if constraints else {})
        | ({"config": config} if config else {})
    )


def _request(request: DeviceRequest) -> Json:
    if len(request.choices) > 1:
        return {"name": request.name, "firstAvailable": [{"name": c.name} | _choice(c) for c in request.choices]}
    (choice,) = request.choices
    return {"name": request.name, "exactly": _choice(choice) | ({"adminAccess": True} if choice.admin else {})}


def _choice(choice: DeviceChoice) -> Json:
    number: Json = {"allocationMode": "ExactCount", "count": choice.count}
    asked: Json = {"deviceClassName": choice.device_class} | ({"allocationMode": "All"} if choice.every else number)
    if choice.selectors:
        asked["selectors"] = [{"cel": {"expression": expression}} for expression in choice.selectors]
    if choice.tolerations:
        asked["tolerations"] = [
            {name: value for name, value in one.model_dump().items() if value} for one in choice.tolerations
        ]
    if choice.capacity:
        asked["capacity"] = {"requests": format_amounts(choice.capacity.items())}
    return asked


def _constraint(constraint: DeviceConstraint) -> Json:
    requests = {"requests": list(constraint.requests)} if constraint.requests else {}
    if constraint.match:
        return requests | {"matchAttribute": constraint.match}
    return requests | {"distinctAttribute": constraint.distinct}


def _config(config: DriverConfig) -> Json:
    requests = {"requests": list(config.requests)} if config.requests else {}
    return requests | {"opaque": {"driver": config.driver, "parameters": config.parameters}}


def requests_of(claim: Json) -> list[Json]:
    """Requests in the spec of a claim."""
    return items(mapping(claim, "spec", "devices"), "requests")
