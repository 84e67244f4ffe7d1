"""Claims of users' pods on devices (DRA), looked up in their templates, or in the claims they name."""

from collections.abc import Sequence

from tessera.binder.adoption.decide.device_claims import claim_sources, with_claims
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.workloads.reading import items, mapping, no, text
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason


async def read_device_claims(owners: Owners, pods: Sequence[Json]) -> list[Json] | Reason:
    """
    The pods with what their claims ask for, or why they are not placed now.

    Raises ApiError (NotAllowed without the right to read claims), Transient.
    """
    named = [ref for pod in pods for _, _, ref in claim_sources(pod) if ref.kind == "ResourceClaim"]
    found: list[Json] = []
    for pod in pods:
        specs: list[Json] = []
        for field, _, ref in claim_sources(pod):
            # A claim changes with each pod that has it; a template is fixed once it is there.
            known = await owners.look(ref, fresh=ref.kind == "ResourceClaim")
            if known is None:
                return no(Code.CLAIM_NOT_READY, field, f"{ref.kind} {ref.name} is not there")
            if ref.kind == "ResourceClaim" and (against := _against(field, known, text(pod, "metadata", "uid"))):
                return against
            if named.count(ref) > 1:
                detail = f"claim {ref.name} is named by several pods of one gang; use a template"
                return no(Code.NOT_SUPPORTED_YET, field, detail)
            specs.append(
                mapping(known, "spec", "spec") if ref.kind == "ResourceClaimTemplate" else mapping(known, "spec")
            )
        found.append(with_claims(pod, specs) if specs else pod)
    return found


def _against(field: str, claim: Json, uid: str) -> Reason | None:
    """Why a pod cannot have a claim that it names: others have it, or somebody else chose its devices."""
    name = text(claim, "metadata", "name")
    if mapping(claim, "metadata").get("deletionTimestamp"):
        return no(Code.CLAIM_NOT_READY, field, f"claim {name} is being deleted")
    reserved = [text(each, "uid") for each in items(claim, "status", "reservedFor")]
    # Our own allocation names the pod, so that a pod that waits for its bind is still the job that it was.
    if mapping(claim, "status", "allocation") and uid not in reserved:
        return no(
            Code.CLAIM_NOT_READY, field, f"claim {name} has devices already; delete them with it, or use a template"
        )
    return None
