"""
The volume claims of pods, looked up: where they let their pods go, and the node said to those that wait for one.

Kubernetes' handshake for a claim that waits for its first consumer: the scheduler writes the node on the claim, whoever
makes volumes makes one there, and only then the pod is bound. A claim that was given up loses the mark again. On a
claim for one pod stands the pod that is about to be bound with it, so that of two that come together one waits.
"""

from collections.abc import Sequence

import structlog

from tessera.binder.adoption.decide.volumes import (
    BEING_BOUND_ANNOTATION,
    HOST_LABEL,
    SELECTED_NODE_ANNOTATION,
    ClaimReach,
    being_bound,
    claim_names,
    find_reach,
    judge_single_claim,
    on_one_pod_only,
    reaches,
    volume_of,
    with_conditions,
)
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.workloads.reading import mapping, text
from tessera.binder.workloads.references import OwnerRef
from tessera.domain.devices.resources import Node
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import has_ended
from tessera_schemas.reasons import Code, Reason

log = structlog.get_logger()


class VolumeClaims:
    def __init__(self, cluster: Cluster, clock: Clock, owners: Owners) -> None:
        self._cluster, self._clock, self._owners = cluster, clock, owners

    async def placeable(self, namespace: str, pods: Sequence[Json]) -> list[Json] | Reason:
        """
        The pods with the nodes that their claims let them go to, or why they are not placed now.

        Raises ApiError (NotAllowed without the right to read claims), Transient.
        """
        found: list[Json] = []
        # Counted over the whole gang: a claim for one pod that two of them name can never be had by both.
        named = [name for pod in pods for _, name in claim_names(mapping(pod, "spec"))]
        for pod in pods:
            conditions: list[Json] = []
            for field, name in claim_names(mapping(pod, "spec")):
                reach = await self._reach(namespace, field, name, text(pod, "metadata", "uid"), named.count(name))
                if isinstance(reach, Reason):
                    return reach
                conditions += reach.conditions
            found.append(with_conditions(pod, conditions))
        return found

    async def conditions(self, namespace: str, names: Sequence[tuple[str, str]], pods: int) -> list[Json] | Reason:
        """Conditions on the node of each of `pods` pods that have all of these claims. Raises ApiError, Transient."""
        found: list[Json] = []
        for field, name in names:
            reach = await self._reach(namespace, field, name, "", pods)
            if isinstance(reach, Reason):
                return reach
            found += reach.conditions
        return found

    async def prepare(self, namespace: str, names: Sequence[tuple[str, str]], node: Node, uid: str) -> Reason | None:
        """
        All claims bound to volumes that the node reaches, or why a pod may not be bound there.

        Raises Transient while a volume is being made.
        """
        making = ""
        for field, name in names:
            reach = await self._reach(namespace, field, name, uid, 1)
            if isinstance(reach, Reason):
                return reach
            # Asked once more at the bind: between allocation and now the claim may have got a volume elsewhere.
            if not reaches(reach.conditions, node):
                detail = f"claim {name}: its volume is not within reach of node {node.name}"
                return Reason(code=Code.VOLUME_NOT_READY, field=field, detail=detail)
            against = await self._give(namespace, field, name, uid)
            if against is not None:
                return against
            # On the newest version, since a write on an older one is refused: makers of volumes write on claims, too.
            if reach.provisions:
                await self._annotate(namespace, await self._fresh(namespace, name), SELECTED_NODE_ANNOTATION, node.name)
                making = making or name
        # Raised after all claims were written, so that volumes of one pod are made side by side and not one per try.
        if making:
            raise Transient(f"the volume of claim {namespace}/{making} is being made for node {node.name}")
        return None

    async def _reach(self, namespace: str, field: str, name: str, uid: str, pods: int) -> ClaimReach | Reason:
        claim = await self._claim(namespace, name)
        volume = await self._owners.look(OwnerRef("v1", "PersistentVolume", "", volume_of(claim))) if claim else None
        kind = await self._class(claim) if claim and not volume_of(claim) else None
        if claim is not None and on_one_pod_only(claim):
            against = judge_single_claim(field, name, pods, await self._holder(namespace, claim, uid))
            if against is not None:
                return against
        return find_reach(field, name, claim, volume, kind, await self._host(kind, claim))

    async def _claim(self, namespace: str, name: str) -> Json | None:
        """One that is bound stays so for as long as it is there; any other is looked at anew."""
        ref = OwnerRef("v1", "PersistentVolumeClaim", namespace, name)
        known = await self._owners.look(ref)
        return known if known is not None and volume_of(known) else await self._owners.look(ref, fresh=True)

    async def _class(self, claim: Json) -> Json | None:
        name = text(claim, "spec", "storageClassName")
        return await self._owners.look(OwnerRef("storage.k8s.io/v1", "StorageClass", "", name)) if name else None

    async def _host(self, kind: Json | None, claim: Json | None) -> str:
        """The label by which the node is known that was chosen for a claim; it may differ from the node's name."""
        chosen = text(claim, "metadata", "annotations", SELECTED_NODE_ANNOTATION) if kind else ""
        node = await self._owners.look(OwnerRef("v1", "Node", "", chosen)) if chosen else None
        return text(node, "metadata", "labels", HOST_LABEL) or chosen

    async def _holder(self, namespace: str, claim: Json, uid: str) -> str:
        """The other pod that has the claim, or is about to be bound with it; "" for none."""
        name, soon = text(claim, "metadata", "name"), being_bound(claim, self._clock.now_ms())
        pods, _ = await self._cluster.list("pods", "", f"metadata.namespace={namespace}")
        for pod in pods:
            its_uid = text(pod, "metadata", "uid")
            there = (text(pod, "spec", "nodeName") or its_uid == soon) and not has_ended(pod) and its_uid != uid
            if there and any(name == used for _, used in claim_names(mapping(pod, "spec"))):
                return text(pod, "metadata", "name")
        return ""

    async def _give(self, namespace: str, field: str, name: str, uid: str) -> Reason | None:
        """
        Write on a claim for one pod that this pod is about to be bound with it, or why it is another one's.

        Who has it is asked after the claim was read, so that of two that write on one version one has a conflict.
        """
        claim = await self._owners.look(OwnerRef("v1", "PersistentVolumeClaim", namespace, name))
        if not on_one_pod_only(claim):
            return None
        claim = await self._fresh(namespace, name)
        against = judge_single_claim(field, name, 1, await self._holder(namespace, claim, uid))
        if against is None and being_bound(claim, self._clock.now_ms()) != uid:
            await self._annotate(namespace, claim, BEING_BOUND_ANNOTATION, f"{uid} {self._clock.now_ms()}")
        return against

    async def _fresh(self, namespace: str, name: str) -> Json:
        claim = await self._owners.look(OwnerRef("v1", "PersistentVolumeClaim", namespace, name), fresh=True)
        if claim is None:
            raise Transient(f"claim {namespace}/{name} is gone")
        return claim

    async def _annotate(self, namespace: str, claim: Json, key: str, value: str) -> None:
        """Write it on exactly this version of the claim, unless it is there."""
        meta = mapping(claim, "metadata")
        if text(meta, "annotations", key) == value:
            return
        name, chosen = meta["name"], {"resourceVersion": meta["resourceVersion"], "annotations": {key: value}}
        try:
            await self._cluster.patch_object("v1", "PersistentVolumeClaim", namespace, name, {"metadata": chosen})
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            raise Transient(f"claim {namespace}/{name} has changed: {error.message}") from error
        log.info("claim_annotated", claim=name, namespace=namespace, annotation=key, value=value)
