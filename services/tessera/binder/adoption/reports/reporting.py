"""Reports on waiting and refused groups: to their pods, their own object, and lists of jobs."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from tessera.binder.adoption.decide.owner_conditions import PLACED
from tessera.binder.adoption.decide.verdicts import Verdict, describe_finding, describe_wishes, is_refusal
from tessera.binder.adoption.owners.known import NotAllowed, Owners
from tessera.binder.adoption.owners.status import OwnerStatus
from tessera.binder.adoption.owners.suspended import Suspended
from tessera.binder.adoption.reports.conditions import Conditions
from tessera.binder.adoption.reports.delay import ReportDelay
from tessera.binder.adoption.reports.places import PODS_RENEWED, QueuePositions, Renewal
from tessera.binder.adoption.reports.refusals import RefusalReports
from tessera.binder.adoption.watch import ALONE, Groups
from tessera.binder.settings import BinderSettings
from tessera.binder.workloads.port import Group, GroupKind
from tessera.binder.workloads.reading import text
from tessera.binder.workloads.references import OwnerRef, controller_of, ref_of
from tessera.binder.workloads.registry import kind_of_group
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import ApiError
from tessera.kernel.service.context import Ports
from tessera_schemas.base import Json
from tessera_schemas.reasons import Reason


class GroupReports:
    """
    Reports on one group after the other; `look_later` names a group for another look after so many seconds.

    `note_refusal` is called in the course of a look, `publish_refusal` at its end: what was not noted in between is
    withdrawn.
    """

    def __init__(
        self,
        ports: Ports,
        settings: BinderSettings,
        state: State,
        groups: Groups,
        owners: Owners,
        suspended: Suspended,
        facts: Facts,
        look_later: Callable[[str, float], None],
    ) -> None:
        self._groups, self._owners, self._suspended, self._look_later = groups, owners, suspended, look_later
        self.conditions = Conditions(ports.cluster, ports.clock)
        self.status = OwnerStatus(ports.cluster, ports.clock, owners, settings.owner_conditions_per_second)
        self.delay = ReportDelay(ports.clock, settings.tell_seconds)
        self.places = QueuePositions(state)
        self._renewal = Renewal(ports.clock)
        self._refusals = RefusalReports(state, facts, ports.clock, settings.shard)
        self._refused: dict[str, Sequence[Reason]] = {}

    # -- refused work, for those who list jobs --------------------------------------------------------------------

    def refused_groups(self) -> list[str]:
        """Groups with refused work in the ledger; they may be gone, or mended, by now."""
        return self._refusals.groups()

    def note_refusal(self, group_id: str, reasons: Sequence[Reason]) -> None:
        """Note why the group is refused, as far as this look has found."""
        self._refused[group_id] = reasons

    async def publish_refusal(self, group_id: str) -> None:
        """Publish why the group is refused, or that it is not any more: the work is no job that views could show."""
        reasons = self._refused.pop(group_id, ())
        # Nearly every look ends here: nothing is refused, and nothing was.
        if not reasons and not self._refusals.are_any:
            return
        group, uid = self._groups.get(group_id), group_id.removeprefix(ALONE)
        pods = self._groups.pods(group_id) if group is not None else [self._groups.informer.objects.get(uid)]
        # Without any object left the refusal is withdrawn, whatever this look has found.
        thing = next((pod for pod in pods if pod is not None), None) or self._suspended.owner(group_id)
        await self._refusals.report(group_id, reasons if thing is not None else (), group, thing)

    # -- objects --------------------------------------------------------------------------------------------------

    async def report(self, group_id: str, waiting: list[Json], verdict: Verdict | None) -> None:
        """Show a verdict on the pods, on their owner and on a suspended owner without pods; later, if it is not due."""
        if not await self._write(group_id, waiting, verdict) or verdict is None:
            return
        group = self._groups.get(group_id)
        if group is not None and group.kind is not GroupKind.POD:
            await self._write_groups(group, verdict)
        self._note(group_id, waiting, verdict)
        owner = None if waiting else self._suspended.owner(group_id)
        if owner is None and waiting and verdict.warning:
            owner = await self._owner_of(waiting[0])
        if owner is not None:
            await self.conditions.make_event_once(owner, verdict)

    async def report_wishes(self, group_id: str, waiting: list[Json], sentences: Sequence[str]) -> None:
        """Show which settings are not honoured: on the pods, or on a suspended owner, which has none."""
        await self.conditions.write_wishes(waiting, sentences)
        owner = None if waiting else self._suspended.owner(group_id)
        if owner is not None and sentences:
            await self.conditions.make_event_once(owner, describe_wishes(sentences))

    async def report_ungrouped(self, uid: str) -> None:
        """Show on a pod that is in no group why it is in none."""
        pod, reason = self._groups.informer.objects.get(uid), self._groups.alone.get(uid)
        if pod is None or reason is None:
            self.delay.forget(f"{ALONE}{uid}")
        else:
            verdict = describe_finding(reason)
            if is_refusal(reason):
                self.note_refusal(f"{ALONE}{uid}", (reason,))
                controller = controller_of(pod)
                if controller is not None:
                    self.status.queue(controller, verdict)
            await self._write(f"{ALONE}{uid}", [pod], verdict)

    async def renew(self, group_id: str, waiting: list[Json], job: Job, verdict: Verdict | None) -> None:
        """Update the position in the queue order that the pods show, once a minute at most."""
        if verdict is not None and self.places.position_of(job) is not None and self._renewal.is_due(group_id):
            written = await self.conditions.renew(waiting[:PODS_RENEWED], verdict)
            self._renewal.spend(group_id, written)

    def forget(self, group_id: str) -> None:
        """Forget a group of which no pod waits any more."""
        self.delay.forget(group_id)
        self._renewal.forget(group_id)

    async def report_if_placed(self, group_id: str, live: list[Job]) -> None:
        """Show on the group's own object that as many of its pods as it needs have their nodes."""
        group = self._groups.get(group_id)
        if group is None or not live:
            return
        # Only an owner that says "not placed" needs to be told otherwise: what starts at once never gets a condition.
        waits = group.owner is not None and self.status.is_unplaced(group.owner)
        in_tree = group.kind is GroupKind.COMPOSITE and not self.status.says_placed(group.owner)
        if group.pod_group is None and not waits and not in_tree:
            return
        placed = sum(bool(text(pod, "spec", "nodeName")) for pod in self._groups.pods(group_id))
        late = 0 if live[0].adopted is None else live[0].adopted.late_pods
        if placed < live[0].pods - late:
            return
        await self._write_groups(group, PLACED)
        if group.owner is not None and waits:
            self.status.queue(group.owner, PLACED)

    async def _write_groups(self, group: Group, verdict: Verdict) -> None:
        """Write a verdict on Kubernetes' own groups of these pods."""
        owner = None
        if group.kind is GroupKind.COMPOSITE and group.owner is not None:
            with suppress(NotAllowed):
                owner = await self._owners.look(group.owner)
        for ref in kind_of_group(group).shown_on(group, owner):
            await self.status.write(ref, verdict)

    async def _write(self, group_id: str, waiting: list[Json], verdict: Verdict | None) -> bool:
        """Whether the verdict was due; else the group is looked at again once it is."""
        left = self.delay.left(group_id, verdict)
        if left > 0:
            self._look_later(group_id, left)
            return False
        if await self.conditions.write(waiting, verdict):
            self.delay.note_written(group_id)
        return True

    def _note(self, group_id: str, waiting: list[Json], verdict: Verdict) -> None:
        """Queue the verdict for the object whose pods these are; of pods that start one by one only warnings."""
        ref, group = self._own_object(group_id), self._groups.get(group_id)
        if ref is None and waiting and verdict.warning:
            ref = controller_of(waiting[0])
        if ref is not None and (verdict.warning or group is None or group.kind is not GroupKind.POD):
            self.status.queue(ref, verdict)

    def _own_object(self, group_id: str) -> OwnerRef | None:
        group, suspended = self._groups.get(group_id), self._suspended.owner(group_id)
        if group is not None and group.owner is not None:
            return group.owner
        return None if suspended is None else ref_of(suspended)

    async def _owner_of(self, pod: Json) -> Json | None:
        """
        The owner whose `kubectl describe` shows the reason; None without the right to read it, since pods show it, too.
        """
        ref = controller_of(pod)
        try:
            return None if ref is None else await self._owners.look(ref)
        except (NotAllowed, ApiError):
            return None
