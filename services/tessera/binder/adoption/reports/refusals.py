"""
Refused work of users, said to the ledger so that `tessera ls` lists it; no object of Kubernetes' own does in one place.

Level-triggered: what the ledger's state shows is compared with what was found at the last look, so that a restart
mends both ways. Few a second, and only as many of a tenant as are shown.
"""

from collections.abc import Sequence

from tessera.binder.adoption.decide.spec import QUEUE
from tessera.binder.bounded import BoundedDict
from tessera.binder.workloads.marks import find_queue
from tessera.binder.workloads.port import Group
from tessera.binder.workloads.reading import mapping, text
from tessera.domain.state import State
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Clock
from tessera_schemas.base import Json, job_id
from tessera_schemas.facts import REFUSED_PER_TENANT, WorkRefused
from tessera_schemas.reasons import Reason

REASONS_MAX = 8
SECONDS_EACH, AT_ONCE = 0.2, 8
AGAIN_SECONDS = 15.0
REMEMBERED = 4096


class RefusalReports:
    """Publisher of what was found of groups; nothing is published twice while it is on its way."""

    def __init__(self, state: State, facts: Facts, clock: Clock, shard: str) -> None:
        self._state, self._facts, self._clock, self._shard = state, facts, clock, shard
        self._reported: BoundedDict[str, float] = BoundedDict(REMEMBERED)
        self._next = 0.0

    @property
    def are_any(self) -> bool:
        """Whether the ledger shows any refused work."""
        return bool(len(self._state.refused))

    def groups(self) -> list[str]:
        """Groups with refused work in the ledger; they may be gone, or mended, by now."""
        return [work.group for work in self._state.refused.values()]

    async def report(self, group_id: str, reasons: Sequence[Reason], group: Group | None, thing: Json | None) -> None:
        """
        Report that the group is refused for these reasons; without any, that it is not, or is gone.

        `thing` is one of its pods, or the Job that has none yet.
        """
        work_id, tenant = job_id(self._shard, "", group_id), text(thing, "metadata", "namespace")
        known, now = self._state.refused.get(work_id), self._clock.monotonic()
        # The committer has the same bound and would drop the fact: here it saves the message.
        if known is None and (not reasons or self._is_full(tenant)):
            return
        if known is not None and list(map(_code, known.reasons)) == list(map(_code, reasons[:REASONS_MAX])):
            return
        if now < max(self._next, self._reported.get(work_id, 0.0)):
            return  # the next look reports it
        self._reported[work_id] = now + AGAIN_SECONDS
        self._next = max(self._next, now - AT_ONCE * SECONDS_EACH) + SECONDS_EACH
        # A withdrawal is about what is known, and its object may be gone: whose it was, only the ledger says.
        whose = tenant if known is None else known.tenant
        owner, queue, shown = _owner_of(group, thing), _queue_of(thing), tuple(reasons[:REASONS_MAX])
        fact = WorkRefused(
            kind="work_refused",
            work_id=work_id,
            tenant=whose,
            group=group_id,
            owner=owner[:320],
            queue=queue[:63],
            reasons=shown,
        )
        await self._facts.publish(fact)

    def _is_full(self, tenant: str) -> bool:
        return sum(work.tenant == tenant for work in self._state.refused.values()) >= REFUSED_PER_TENANT


def _code(reason: Reason) -> tuple[str, str]:
    """Numbers change with each look."""
    return reason.code, reason.field


def _owner_of(group: Group | None, thing: Json | None) -> str:
    """Kind and name of the owner for people: `Job/train`."""
    if group is None:
        return f"{text(thing, 'kind') or 'Pod'}/{text(thing, 'metadata', 'name')}"
    return f"{group.kind}/{group.name}" if group.owner is None else f"{group.owner.kind}/{group.owner.name}"


def _queue_of(thing: Json | None) -> str:
    pod = mapping(thing, "spec", "template") or thing
    return "" if pod is None else find_queue(pod)[0] or QUEUE
