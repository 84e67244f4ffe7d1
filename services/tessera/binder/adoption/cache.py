"""Cache of the last look at each group of users' pods; a group is looked at several times on its way to a node."""

from dataclasses import dataclass, replace
from functools import partial

from tessera.binder.adoption.decide.cluster_marks import ClusterMarks
from tessera.binder.adoption.decide.spec import Adoption, spec_of
from tessera.binder.adoption.decide.suspending import explain_other_suspender, wish_of
from tessera.binder.adoption.owners.device_claims import is_looked_up, read_device_claims, with_hostnames
from tessera.binder.adoption.owners.known import NotAllowed, Owners
from tessera.binder.adoption.owners.late_pods import with_late_pods
from tessera.binder.adoption.volume_claims import VolumeClaims
from tessera.binder.bounded import BoundedDict
from tessera.binder.workloads.port import Group, GroupKind
from tessera.binder.workloads.reading import text
from tessera.binder.workloads.references import OwnerRef, ref_of
from tessera.binder.workloads.registry import kind_of, size_of, survives_eviction
from tessera.domain.state import State
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import LATE_PODS_FROM

REMEMBERED = 16_384  # 5 KB each; one that is forgotten is worked out anew at every look, in 0.4 ms of CPU


@dataclass(frozen=True, slots=True)
class _Look:
    """All that the answer follows from. What an informer shows is never changed in place, only replaced."""

    group: Group
    pods: tuple[Json, ...]
    owner: Json | None
    found: Adoption | Reason

    def is_of(self, group: Group, pods: list[Json], owner: Json | None) -> bool:
        if len(pods) != len(self.pods) or self.group != group or self.owner is not owner:
            return False
        return all(before is now for before, now in zip(self.pods, pods, strict=True))


class Adoptions:
    """Shared by whoever asks, so that one answer serves to submit, to compare and to claim."""

    def __init__(self, owners: Owners, volumes: VolumeClaims, marks: ClusterMarks, state: State) -> None:
        self._owners, self._volumes, self._marks, self._state = owners, volumes, marks, state
        self._known: BoundedDict[str, _Look] = BoundedDict(REMEMBERED)

    async def of(self, group: Group, waiting: list[Json]) -> Adoption | Reason:
        """The job that these pods amount to, as their owner is now. Raises ApiError, Transient."""
        found = await self._of(group, waiting)
        if isinstance(found, Adoption) and group.owner is not None:
            found = self.with_late(found, await self._owners.look(group.owner))
        if not isinstance(found, Adoption) or not found.spec.preemptible or group.owner is None:
            return found
        pods = [pod for pod in waiting if text(pod, "metadata", "uid") in found.uids]
        owner = await self._owners.look(group.owner)
        if survives_eviction(group, pods, owner) or await self._may_be_suspended(group.owner, owner):
            return found
        # It was to be stopped by suspension alone, which is refused here: an eviction would end it for good.
        told = f"suspension: the binder may not patch a {group.owner.kind} here, so that it is not preempted"
        wishes = (*found.wishes, f"{told} and does not borrow")
        return replace(found, spec=found.spec.model_copy(update={"preemptible": False}), wishes=wishes)

    def with_late(self, found: Adoption, owner: Json | None) -> Adoption:
        """The same, with the late pods of its owner, once the ledger knows of such."""
        return with_late_pods(found, owner) if self._state.format >= LATE_PODS_FROM else found

    async def _may_be_suspended(self, ref: OwnerRef, owner: Json | None) -> bool:
        """Whether we are let suspend the owner, and nobody else suspends what hands its suspension down to it."""
        if owner is None:
            return await self._owners.may_suspend(ref)
        above = await self._owners.suspended_by(owner)
        if above is None or explain_other_suspender(above, wish_of(above)) is not None:
            return False
        return await self._owners.may_suspend(ref_of(above))

    async def _of(self, group: Group, waiting: list[Json]) -> Adoption | Reason:
        # The owner is asked each time, since it may have changed while no pod did; mostly its watch answers without a
        # call.
        owner = None if group.owner is None else await self._owners.look(group.owner)
        # Only pods whose answer follows from nothing but themselves and their owner can be remembered.
        if any(is_looked_up(pod) or self._marks.are_on(pod, owner) for pod in waiting):
            return await self._or_never(group, waiting, await self._looked_up(group, waiting, owner))
        known = self._known.get(group.id)
        # By identity of the objects, not by their content: a comparison of whole pods would cost what it is to save.
        if known is not None and known.is_of(group, waiting, owner):
            return await self._or_never(group, waiting, known.found)
        size = size_of(group, owner, waiting)
        found = size if isinstance(size, Reason) else spec_of(group, waiting, size, owner)
        self._known[group.id] = _Look(group, tuple(waiting), owner, found)
        return await self._or_never(group, waiting, found)

    async def _or_never(self, group: Group, waiting: list[Json], found: Adoption | Reason) -> Adoption | Reason:
        """The same; of pods that will never be all there at once, that. Without the right to look, they wait."""
        maker = maker_of(group, waiting[0])
        # Only a gang that is not whole can be one that never will be; all other answers stand.
        if maker is None or not isinstance(found, Reason) or found.code is not Code.GANG_INCOMPLETE:
            return found
        try:
            workers = await self._owners.look(maker)
        except NotAllowed:
            return found
        kind = kind_of(maker)
        return (kind.never_whole(workers) if kind is not None and workers is not None else None) or found

    async def _looked_up(self, group: Group, waiting: list[Json], owner: Json | None) -> Adoption | Reason:
        """Claims change while their pods do not, and GPUs and configuration, too, so that nothing is remembered."""
        size = size_of(group, owner, waiting)
        if isinstance(size, Reason):
            return size
        pods = await self._volumes.placeable(group.namespace, self._marks.read(waiting, owner))
        if not isinstance(pods, Reason):
            alone = group.kind is GroupKind.POD
            of_others = partial(self._is_of_others, group.id)
            pods = await read_device_claims(self._owners, pods, group.namespace, alone, of_others)
        if not isinstance(pods, Reason):
            pods = await with_hostnames(self._owners, pods)
        return pods if isinstance(pods, Reason) else spec_of(group, pods, size, owner)

    def _is_of_others(self, group_id: str, run_id: str) -> bool:
        """Whether the ledger has the run, and not as one of this group's."""
        run = self._state.runs.get(run_id)
        if run is None:
            return False
        # A job may have ended before its run, whose devices are held for the pods that have joined it.
        job = self._state.jobs.get(run.job_id)
        return job is None or job.adopted is None or job.adopted.group != group_id

    def forget(self, group_id: str) -> None:
        """Forget a group of which no pod waits."""
        self._known.pop(group_id, None)


def maker_of(group: Group, pod: Json) -> OwnerRef | None:
    """The object that makes the gang's pods, where its mark names one."""
    api_version, kind, label = ("", "", "") if group.mark is None else group.mark.made_by
    name = text(pod, "metadata", "labels", label)
    return OwnerRef(api_version, kind, group.namespace, name) if name else None
