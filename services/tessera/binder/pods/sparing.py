"""
Check before the first eviction of a plan: can all of what is to stop be stopped?

A plan stops several runs, ours and users', for one job. If a disruption budget keeps one of them, stopping the others
would be for nothing, so each run of the plan that nobody has touched yet is said to be untouched, and goes on. So is a
run that nobody needs to stop any more.
"""

from collections.abc import Mapping, Sequence

from tessera.binder.adoption.owners.budgets import EvictionBlock
from tessera.binder.adoption.runs import AdoptedRuns
from tessera.binder.decide.steps import Pod, is_due_notice, is_touched
from tessera.binder.pods.events import PodEvents
from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.engine.preemption.rules import is_unneeded
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.facts import RunUntouched
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.run_ends import EVICTIONS, WORTH_A_NOTICE

ASKED_SECONDS = 3.0
"""An answer is believed for so long: within it a gang is evicted, or given its notice."""
AGAIN_SECONDS = 5.0


class Sparing:
    def __init__(
        self, state: State, adopted: AdoptedRuns, facts: Facts, events: PodEvents, clock: Clock, worklist: Worklist
    ) -> None:
        self._state, self._adopted, self._facts, self._events = state, adopted, facts, events
        self._clock, self._worklist = clock, worklist
        self._asked: dict[str, float] = {}
        self._reported: dict[str, int] = {}
        self._notified: dict[str, int] = {}

    def forget(self, run_id: str) -> None:
        """Forgets what was asked and said of a run."""
        self._asked.pop(run_id, None)
        self._reported.pop(run_id, None)
        self._notified.pop(run_id, None)

    async def may_stop(self, run: Run, pods: Mapping[str, Pod]) -> bool:
        """Whether the revoked run is to be stopped now. Raises ApiError, Transient."""
        if not _may_wait(run) or is_touched(run, pods):
            return True
        now = self._clock.monotonic()
        unneeded = is_unneeded(self._state, run) and self._is_untold(run, pods)
        if not unneeded and now < self._asked.get(run.run_id, now):
            return True
        # Asked of a run, too, whose plan ended with another's budget: the bounds on what budgets keep of one plan begin
        # together, or they would add up.
        against = await self._adopted.find_eviction_block(self._asked_of(run))
        if against is not None and run.revoked is not None and run.revoked.code in EVICTIONS and run.then == "requeue":
            await self._report_untouched(run, against)
            return False
        if unneeded:
            reason = Reason(code=Code.STOP_NOT_NEEDED)
            fact = RunUntouched(kind="run_untouched", run_id=run.run_id, revoked_ts=run.stopped_ts, reason=reason)
            await self._facts.publish(fact, run.run_id)
            self._worklist.name_later(run.run_id, AGAIN_SECONDS)
            return False
        if against is None:
            self._asked[run.run_id] = now + ASKED_SECONDS
            return True
        await self._adopted.report_blocked(run, against)
        self._worklist.name_later(run.run_id, AGAIN_SECONDS)
        return False

    def _is_untold(self, run: Run, pods: Mapping[str, Pod]) -> bool:
        """Whether no pod was told to stop: nothing was done yet, or all are within a notice that can be undone."""
        now_ms = self._clock.now_ms()
        return run.run_id not in self._asked or all(
            is_due_notice(run, pod) and (pod.evict_at_ms is None or now_ms < pod.evict_at_ms)
            for pod in pods.values()
            if not pod.over
        )

    def _asked_of(self, run: Run) -> Sequence[Run]:
        """
        The run and those that stop for the same job, as long as room is kept for it; none that is called in, which
        stops whatever its budget says.
        """
        named = [mark.victims for mark in self._state.earmarks.values() if run.run_id in mark.victims]
        others = (self._state.runs.get(run_id) for run_id in dict.fromkeys(each for one in named for each in one))
        stopping = [other for other in others if other is not None and other.revoked is not None]
        every = [run, *(other for other in stopping if other.run_id != run.run_id)]
        return [each for each in every if not each.called_in]

    def notify(self, run: Run, pods: Mapping[str, Pod]) -> None:
        """Tell the pods for whom they stop, once, while room is kept for that job; another tenant's has no name."""
        if run.revoked is None or run.revoked.code not in EVICTIONS or not pods:
            return
        if self._notified.get(run.run_id) == run.stopped_ts:
            return
        self._notified[run.run_id] = run.stopped_ts
        owners = (mark.owner for mark in self._state.earmarks.values() if run.run_id in mark.victims)
        job = next((found for owner in owners if (found := self._state.jobs.get(owner)) is not None), None)
        name = "" if job is None else "a job of another tenant"
        if job is not None and job.tenant == run.tenant:
            name = f"job {job.name} ({job.job_id})"
        self._events.note_preempted(run, pods.values(), run.revoked, name)

    async def _report_untouched(self, run: Run, against: EvictionBlock) -> None:
        if self._reported.get(run.run_id) == run.stopped_ts:
            return
        kept = not against.uids.isdisjoint(run.permitted)
        # The answer is about the first budget alone, and each run has to know its own.
        if not (kept or run.called_in):
            kept = await self._adopted.find_eviction_block([run]) is not None
        fact = RunUntouched(
            kind="run_untouched", run_id=run.run_id, revoked_ts=run.stopped_ts, reason=against.reason, kept=kept
        )
        if kept:
            await self._adopted.make_blocked_events(run, against)
        await self._facts.publish(fact, run.run_id)
        self._reported[run.run_id] = run.stopped_ts


def _may_wait(run: Run) -> bool:
    """A run that is well and runs. One that broke only holds room, and whoever cancels wants what can go to go."""
    code = None if run.revoked is None else run.revoked.code
    return run.started and code in WORTH_A_NOTICE and code is not Code.CANCELLED
