"""Claims of users' pods on devices (DRA), and hostnames of nodes that pods name: what is looked up of both."""

from collections.abc import Callable, Container, Sequence

from tessera.binder.adoption.decide.device_claims import (
    ReadClaim,
    claim_sources,
    group_to_ask,
    nodes_named_by,
    reach_of,
    with_claims,
    with_claims_of_group,
)
from tessera.binder.adoption.decide.volumes import HOST_LABEL, claim_names
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.claims.decide.steps import run_of
from tessera.binder.workloads.node_fields import by_hostnames, nodes_named_in
from tessera.binder.workloads.reading import items, mapping, no, text
from tessera.binder.workloads.references import OwnerRef, controller_of
from tessera.binder.workloads.registry import pod_group_ref
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import has_ended
from tessera_schemas.reasons import Code, Reason


async def read_device_claims(
    owners: Owners,
    pods: Sequence[Json],
    namespace: str,
    by_themselves: bool = False,
    is_of_others: Callable[[str], bool] = lambda _: False,
) -> list[Json] | Reason:
    """
    The pods, or templates, of a namespace with what their claims ask for, or why they are not placed now.

    `by_themselves`: each pod of their owner starts by itself, so that others of it that are at work go on.
    `is_of_others` tells whether a run is known to be of another group of pods than theirs.
    Raises ApiError (NotAllowed without the right to read claims), Transient.
    """
    uids = {text(pod, "metadata", "uid") for pod in pods}
    found: list[Json] = []
    for each in pods:
        pod = await _share_with_group(owners, each, namespace)
        if isinstance(pod, Reason):
            return pod
        claims: list[ReadClaim] = []
        for field, _, ref in claim_sources(pod, namespace):
            read = await _read_one(owners, field, ref, pod, uids, by_themselves, is_of_others)
            if isinstance(read, Reason):
                return read
            claims.append(read)
        found.append(with_claims(pod, claims) if claims else pod)
    return found


def is_looked_up(pod: Json) -> bool:
    """Whether a pod or template has claims on volumes or devices, which change while it does not, or names nodes."""
    claims = claim_names(mapping(pod, "spec")) or items(pod, "spec", "resourceClaims")
    return bool(claims or nodes_named_in(pod))


async def with_hostnames(owners: Owners, pods: Sequence[Json]) -> list[Json]:
    """The pods, or templates, with hostnames of nodes in place of their names. Raises ApiError, Transient."""
    hosts = {name: await _host(owners, name) for name in sorted({name for pod in pods for name in nodes_named_in(pod)})}
    return [by_hostnames(pod, hosts) if nodes_named_in(pod) else pod for pod in pods]


async def _share_with_group(owners: Owners, pod: Json, namespace: str) -> Json | Reason:
    """The pod with the names of the claims that are its PodGroup's."""
    name = group_to_ask(pod)
    if not name:
        return pod
    # Which claims are the group's never changes, and what was read before may lack those that are made by now.
    ref, found = pod_group_ref(namespace, name), None
    for fresh in (False, True):
        group = await owners.look(ref, fresh)
        if group is None:
            return no(Code.CLAIM_NOT_READY, "spec.schedulingGroup", f"PodGroup {name} is not there")
        found = with_claims_of_group(pod, group)
        if not isinstance(found, Reason):
            return found
    assert found is not None
    return found


async def _read_one(
    owners: Owners,
    field: str,
    ref: OwnerRef,
    pod: Json,
    uids: Container[str],
    by_themselves: bool,
    is_of_others: Callable[[str], bool],
) -> ReadClaim | Reason:
    # A claim changes with each pod that has it; a template is fixed once it is there.
    known = await owners.look(ref, fresh=ref.kind == "ResourceClaim")
    if known is None:
        return no(Code.CLAIM_NOT_READY, field, f"{ref.kind} {ref.name} is not there")
    if ref.kind == "ResourceClaimTemplate":
        return ReadClaim(mapping(known, "spec", "spec"))
    if mapping(known, "metadata").get("deletionTimestamp"):
        return no(Code.CLAIM_NOT_READY, field, f"claim {ref.name} is being deleted")
    users = items(known, "status", "reservedFor")
    # Our own allocation names the pods, so that a pod that waits for its bind is still the job that it was. One of
    # another job names those that have joined it, too: they were led to its node, and are until they are bound.
    run, is_named = run_of(known), any(text(user, "uid") in uids for user in users)
    is_own = bool(run) and is_named and not is_of_others(run)
    if not mapping(known, "status", "allocation") or is_own:
        return ReadClaim(mapping(known, "spec"))
    # Devices that are about to be given back would tie the pod to a node for nothing, and make it another job after.
    # Of a gang they are those that its next pods follow: with the claim still theirs it would be another job, for which
    # the one that runs would be cancelled.
    own = None if by_themselves else controller_of(pod)
    # Others reserve a claim for a PodGroup for as long as that is there; ours is given back with its last pod.
    is_kept = not run and any(text(user, "resource") != "pods" for user in users)
    is_left = not is_named and not is_kept and bool(users or run)
    if is_left and not await _is_used_by_others(owners, users, own, ref.namespace):
        return no(Code.CLAIM_NOT_READY, field, f"claim {ref.name} still has the devices of pods that have ended")
    # A node's label of its hostname is what kubelets set, and need not be the node's name.
    hosts = {name: await _host(owners, name) for name in nodes_named_by(known)}
    reach = reach_of(field, known, hosts)
    return reach if isinstance(reach, Reason) else ReadClaim(mapping(known, "spec"), reach)


async def _is_used_by_others(owners: Owners, users: Sequence[Json], own: OwnerRef | None, namespace: str) -> bool:
    """Whether a pod of another owner than `own` has the claim, has not ended and is to stay."""
    # One living pod is enough, and each look is a call: whoever has a claim with 256 users asks for few of them.
    for user in users:
        other = await owners.look(OwnerRef("v1", "Pod", namespace, text(user, "name"), text(user, "uid")), fresh=True)
        if other is None or has_ended(other) or text(other, "metadata", "uid") != text(user, "uid"):
            continue
        if text(other, "metadata", "deletionTimestamp"):
            continue
        if own is None or controller_of(other) != own:
            return True
    return False


async def _host(owners: Owners, node: str) -> str:
    """The label by which a node is known, or its name where the node is gone."""
    found = await owners.look(OwnerRef("v1", "Node", "", node))
    return text(found, "metadata", "labels", HOST_LABEL) or node
