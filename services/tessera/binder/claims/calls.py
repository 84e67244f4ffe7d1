"""
The claims of one pod, made with it, reserved for it before its bind, and given back when it can no longer be bound.

Each step reads the claim and makes one write, held to what was read, until nothing is left to be written; so whatever
an earlier try did, or another scheduler does meanwhile, is seen.
"""

import asyncio
from collections.abc import Collection, Mapping
from weakref import WeakValueDictionary

import structlog

from tessera.binder.claims.decide.allocation import ClaimReservation, conflict
from tessera.binder.claims.decide.extended import (
    STATUS,
    ExtendedClaim,
    extended_claim,
    is_extended,
    named_extended_claim,
)
from tessera.binder.claims.decide.objects import (
    claim_names_of,
    claim_object,
    claims_to_make,
    is_owned_by,
    named_claims,
)
from tessera.binder.claims.decide.steps import (
    Write,
    find_unready,
    next_freeing,
    next_joining,
    next_undo,
    next_write,
    uses_conditions,
)
from tessera.binder.claims.published import PublishedDevices
from tessera.binder.workloads.reading import at, format_time, mapping, no, text
from tessera.domain.devices.resources import Node
from tessera.domain.entities import Run
from tessera.domain.storing.fast import replace
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError, Clock, Cluster, without_managed_fields
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import CLAIMS_API, has_ended
from tessera_schemas.job import Role
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import EXTENDED_CLAIM, Placement

KIND = "ResourceClaim"
WRITES_MAX = 8
"""Looks at one claim in a row, until the rest waits for a back-off: two writes, and others' changes in between."""

log = structlog.get_logger()


class PodClaims:
    """Raises ApiError and Transient; a `Reason` is a no that a repeat does not change."""

    def __init__(self, cluster: Cluster, clock: Clock, published: PublishedDevices) -> None:
        self._cluster, self._clock, self._published = cluster, clock, published
        # Pods leave a claim that they share one after the other: side by side all but one of them would be refused.
        self._turns = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    async def make(self, pod: Json, role: Role, drawn: Collection[str]) -> Reason | None:
        """
        The objects of the pod's own claims, made now or by an earlier try, and of those that it shares and that have
        their devices with it (`drawn`). `pod` is as the cluster has it.
        """
        for claim in claims_to_make(role, drawn):
            against = await self._make_one(pod, claim_object(pod, claim))
            if against is not None:
                return against
        return None

    async def _make_one(self, pod: Json, wanted: Json) -> Reason | None:
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        try:
            await self._cluster.create_object(namespace, wanted)
        except ApiError as error:
            if error.status != 409:
                raise
            there = await self._claim(namespace, name)
            if there is None or at(there, "metadata", "deletionTimestamp"):
                raise Transient(f"claim {namespace}/{name} of an earlier pod is going") from error
            if not is_owned_by(there, pod["metadata"]["uid"]):
                return conflict(there, "it exists and is not this pod's")
        return None

    async def reserve(self, run: Run, placement: Placement, pod: Json, node: Node) -> Reason | None:
        """
        Give each claim of an unbound pod its devices, and the pod as a user, then wait until they are ready.

        A claim for which no device was chosen has its devices already, maybe with a pod of the run that came before.
        Raises Transient while a device is made ready, or a claim is still to be made.
        """
        extended = await self._make_extended(placement, pod)
        if isinstance(extended, Reason):
            return extended
        objects = named_claims(pod)
        if extended is not None:
            own = tuple(one for one in placement.drawn if not is_extended(one))
            placement = replace(placement, drawn=own + extended.drawn)
            objects[EXTENDED_CLAIM] = extended.object["metadata"]["name"]
        strange = {one.claim for one in placement.drawn} - objects.keys()
        if strange:
            return no(Code.CLAIM_CONFLICT, "", f"pod {text(pod, 'metadata', 'name')} has no claim {min(strange)}")
        if placement.drawn:
            self._published.check_synced()
        waits = ""
        for name, of_object in objects.items():
            if not of_object:
                raise Transient(f"claim {name} of pod {text(pod, 'metadata', 'name')} is still to be made")
            found = await self._reserve_one(run, placement, pod, name, of_object, node)
            if isinstance(found, Reason):
                return found
            waits = waits or found
        # Raised after all claims were written, so that devices of one pod are made ready side by side.
        if waits:
            raise Transient(f"device {waits} is being made ready for pod {text(pod, 'metadata', 'name')}")
        return None

    async def _make_extended(self, placement: Placement, pod: Json) -> ExtendedClaim | Reason | None:
        """
        The claim for what the pod counts on, made and named in the pod's status; None where nodes' plugins answer.

        Named before it has devices: whoever undoes what a binder left behind finds in the pod which claims have any.
        """
        drawn = tuple(one for one in placement.drawn if is_extended(one))
        if not drawn:
            # An earlier attempt may have named one: under a device plugin the kubelet would wait for its devices.
            if named_extended_claim(pod):
                await self._name_extended(pod, None)
            return None
        self._published.check_synced()
        extended = extended_claim(pod, drawn, self._published.classes())
        if isinstance(extended, Reason):
            return extended
        against = await self._make_one(pod, extended.object)
        if against is not None:
            return against
        if mapping(pod, "status", STATUS) != extended.status:
            await self._name_extended(pod, extended.status)
        return extended

    async def _name_extended(self, pod: Json, status: Json | None) -> None:
        meta = pod["metadata"]
        patch = {"metadata": {"uid": meta["uid"]}, "status": {STATUS: status}}
        await self._cluster.patch_pod_status(meta["namespace"], meta["name"], patch)

    async def _reserve_one(
        self, run: Run, placement: Placement, pod: Json, name: str, of_object: str, node: Node
    ) -> str | Reason:
        """The device that is still to be made ready, "" once the pod may be bound with the claim."""
        wanted = self._wanted(run, placement, pod, name)
        namespace = text(pod, "metadata", "namespace")
        for _ in range(WRITES_MAX):
            claim = await self._claim(namespace, of_object)
            if claim is None:
                return no(Code.CLAIM_CONFLICT, "", f"claim {of_object} is gone")
            if wanted.drawn:
                write = next_write(claim, wanted, format_time(self._clock.now_ms()))
            else:
                write = next_joining(claim, wanted, node)
            if write is None:
                return find_unready(claim) if uses_conditions(claim) else ""
            if isinstance(write, Reason):
                return write
            if write.what == "status" and not at(claim, "status", "allocation"):
                against = await self._find_holder(claim, wanted)
                if against is not None:
                    return against
            await self._write(claim, write)
        raise Transient(f"claim {namespace}/{of_object} changes all the time")

    def _wanted(self, run: Run, placement: Placement, pod: Json, name: str) -> ClaimReservation:
        drawn = tuple(one for one in placement.drawn if one.claim == name)
        classes: Mapping[str, Json] = self._published.classes()
        name_of_pod, uid = text(pod, "metadata", "name"), text(pod, "metadata", "uid")
        devices = self._published.devices(drawn)
        peers = frozenset(run.permitted)
        return ClaimReservation(
            run.run_id, placement.rank, name_of_pod, uid, placement.node, drawn, devices, classes, peers
        )

    async def _find_holder(self, claim: Json, wanted: ClaimReservation) -> Reason | None:
        """
        Why a device that is drawn is another claim's, whole or by the counters that it shares with others.

        What our copy shows is looked at anew: the claim may have let go of the device, whose end the ledger knows.
        """
        uid = text(claim, "metadata", "uid")
        whole = [one for one in wanted.drawn if not one.admin and not wanted.published[one.id].is_shared]
        for drawn in whole:
            for seen in self._published.holders(drawn.id):
                if text(seen, "metadata", "uid") != uid and await self._still_holds(seen):
                    return _held_by(claim, f"device {drawn.id}", seen)
        for what, seen in self._published.holders_beside(wanted.drawn, uid):
            if await self._still_holds(seen):
                return _held_by(claim, what, seen)
        return None

    async def _still_holds(self, seen: Json) -> bool:
        now = await self._claim(text(seen, "metadata", "namespace"), text(seen, "metadata", "name"))
        same = now is not None and text(now, "metadata", "uid") == text(seen, "metadata", "uid")
        return same and bool(at(now, "status", "allocation"))

    async def undo(self, namespace: str, names: tuple[str, ...], uid: str, run_id: str) -> None:
        """Take a pod that can no longer be bound off these claims, which lose their devices when no other uses them."""
        for name in names:
            await self._undo_one(namespace, name, uid, run_id)

    async def free(self, run: Run) -> None:
        """
        Give back the devices of a run without pods at work that its claims keep for its PodGroup alone.

        A pod that joins such a claim writes its name there first: then the version is another, and nothing is given
        back.
        """
        names = {claim.shared_as for role in run.roles for claim in role.need.claims if claim.shared_as}
        if not names or not any(place.drawn for place in run.places):
            return
        self._published.check_synced()  # whose watch names the run once a claim is left to its group
        for name in sorted(names):
            await self._free_one(run, name)

    async def _free_one(self, run: Run, name: str) -> None:
        for _ in range(WRITES_MAX):
            claim = await self._claim(run.tenant, name)
            write = None if claim is None else next_freeing(claim, run.run_id)
            if claim is None or write is None or await self._is_at_work(run.tenant, name):
                return
            await self._write(claim, write)
        raise Transient(f"claim {run.tenant}/{name} changes all the time")

    async def _is_at_work(self, namespace: str, name: str) -> bool:
        """Whether a pod that has the claim has a node and has not ended; it may be another scheduler's."""
        pods, _ = await self._cluster.list("pods", "", f"metadata.namespace={namespace}", without_managed_fields)
        at_work = (pod for pod in pods if text(pod, "spec", "nodeName") and not has_ended(pod))
        return any(name in claim_names_of(pod) for pod in at_work)

    async def _undo_one(self, namespace: str, name: str, uid: str, run_id: str) -> None:
        async with self._turns.setdefault((namespace, name), asyncio.Lock()):
            for _ in range(WRITES_MAX):
                claim = await self._claim(namespace, name)
                write = None if claim is None else next_undo(claim, uid, run_id)
                if claim is None or write is None:
                    return
                await self._write(claim, write)
        raise Transient(f"claim {namespace}/{name} changes all the time")

    async def _write(self, claim: Json, write: Write) -> None:
        """Patch a claim; a lost race, or a claim that is gone, is seen by the next look."""
        namespace, name = text(claim, "metadata", "namespace"), text(claim, "metadata", "name")
        patch = self._cluster.patch_object if write.what == "metadata" else self._cluster.patch_status
        try:
            await patch(CLAIMS_API, KIND, namespace, name, write.patch)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return
        log.info("claim_written", claim=name, namespace=namespace, what=write.what)

    async def _claim(self, namespace: str, name: str) -> Json | None:
        try:
            return await self._cluster.get_object(CLAIMS_API, KIND, namespace, name)
        except ApiError as error:
            if error.status != 404:
                raise
            return None


def _held_by(claim: Json, what: str, holder: Json) -> Reason:
    """Another claim has `what`; its name is told where its namespace is the claim's own, since tenants read it."""
    namespace, name = text(holder, "metadata", "namespace"), text(holder, "metadata", "name")
    log.info("claim_held_up", claim=text(claim, "metadata", "name"), what=what, holder=f"{namespace}/{name}")
    is_own = namespace == text(claim, "metadata", "namespace")
    return conflict(claim, f"{f'claim {name}' if is_own else 'a claim of another namespace'} has {what}")
