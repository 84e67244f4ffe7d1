"""
The pods of a copy of a group that starts again by itself while its run goes on: taken off, made anew and bound.

The next pods have the names of those before them, so that the API server makes none while anything of the former is
there: that the next ones exist is the proof that those have gone. What is refused meanwhile is tried again, until the
committer ends the run for it.
"""

from collections.abc import Mapping

from tessera.binder.decide.steps import Pod
from tessera.binder.pods.calls import Calls, RefusedByCluster, all_of
from tessera.binder.pods.stopping import Stopping
from tessera.binder.pods.templates import Templates
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.domain.work.gang import RestartingCopy, ranks_out
from tessera.kernel.ledger.timestamps import LedgerTime
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.shard.records import GroupPodsMade, GroupStarted

AGAIN_SECONDS = 1.0


def without_former(run: Run, pods: Mapping[str, Pod]) -> Mapping[str, Pod]:
    """The run's pods without those that make room for their successors: their ends say nothing any more."""
    former = {run.uids[rank] for rank in ranks_out(run.restarts)}
    return {uid: pod for uid, pod in pods.items() if uid not in former} if former else pods


class GroupPods:
    """Every step may be repeated. What was said and bound is remembered, by run, only to save messages."""

    def __init__(
        self,
        calls: Calls,
        stopping: Stopping,
        facts: Facts,
        templates: Templates,
        state: State,
        clock: Clock,
        worklist: Worklist,
    ) -> None:
        self._calls, self._stopping, self._facts, self._templates = calls, stopping, facts, templates
        self._state, self._time, self._worklist = state, LedgerTime(clock, state.ts), worklist
        self._said: dict[str, set[tuple[str, int]]] = {}
        self._bound: dict[str, set[str]] = {}

    def forget(self, run_id: str) -> None:
        """Forgets what was said and bound of a run's groups."""
        self._said.pop(run_id, None)
        self._bound.pop(run_id, None)

    async def work(self, job: Job, run: Run, pods: Mapping[str, Pod]) -> None:
        """Advance each copy of a group that does not run again yet. Raises what is worth another try."""
        for copy in run.restarts:
            try:
                if copy.is_out:
                    await self._renew(job, run, copy, pods)
                elif copy.deadline:
                    await self._start(job, run, copy, pods)
            except RefusedByCluster:
                self._worklist.name_later(run.run_id, AGAIN_SECONDS)

    async def _renew(self, job: Job, run: Run, copy: RestartingCopy, pods: Mapping[str, Pod]) -> None:
        """Take the former pods off, then make the next ones."""
        former = [pods[uid] for uid in (run.uids[rank] for rank in copy.ranks) if uid in pods]
        if former:
            await all_of([self._stopping.replace(run, pod) for pod in former])
            return  # their change brings us back
        # By ledger time: a wall clock that is behind it would keep the copy away beyond its deadline.
        pause_ms = copy.not_before - self._time.now(self._state.ts)
        if pause_ms > 0:
            self._worklist.name_later(run.run_id, pause_ms / 1000)
            return
        said = self._said.setdefault(run.run_id, set())
        if ("made", copy.number) in said:
            return
        spec = await self._templates.of(job)
        uids = tuple(await all_of([self._calls.make(job, run, rank, spec) for rank in copy.ranks]))
        if not set(uids).isdisjoint(run.uids):  # one of before, which our copy of the cluster had lost sight of
            self._worklist.name_later(run.run_id, AGAIN_SECONDS)
            return
        await self._facts.publish(
            GroupPodsMade(kind="group_pods_made", run_id=run.run_id, restart=copy.number, uids=uids)
        )
        said.add(("made", copy.number))

    async def _start(self, job: Job, run: Run, copy: RestartingCopy, pods: Mapping[str, Pod]) -> None:
        """Bind the permitted pods, and say once that all of them run."""
        bound, said = self._bound.setdefault(run.run_id, set()), self._said.setdefault(run.run_id, set())
        out = ranks_out(run.restarts)  # of a copy within this one that starts again meanwhile
        todo = [rank for rank in copy.ranks if run.uids[rank] not in bound and rank not in out]
        await all_of([self._calls.bind(job, run, run.placements[rank], run.uids[rank]) for rank in todo])
        bound.update(run.uids[rank] for rank in todo)
        there = [pods.get(run.uids[rank]) for rank in copy.ranks]
        run_all = all(pod is not None and pod.phase in ("Running", "Succeeded") for pod in there)
        if run_all and ("started", copy.number) not in said:
            await self._facts.publish(GroupStarted(kind="group_started", run_id=run.run_id, restart=copy.number))
            said.add(("started", copy.number))
