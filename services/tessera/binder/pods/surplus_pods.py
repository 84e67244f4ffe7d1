"""
The pods by which an elastic run is larger than its gang: each is made, bound, reported and stopped for itself.

One that fails, is refused or vanishes does not end the run: it is said to be lost, and the committer shrinks it away.
"""

import asyncio
from collections.abc import Mapping

from tessera.binder.decide.ends import reason_for
from tessera.binder.decide.steps import Boots, Pod, find_broken_surplus
from tessera.binder.pods.calls import Calls, RefusedByCluster, all_of
from tessera.binder.pods.stopping import Stopping
from tessera.binder.pods.templates import Templates
from tessera.domain.entities import Job, Run, SurplusPod
from tessera.domain.state import State
from tessera.kernel.messaging.facts import Facts
from tessera_schemas.facts import PodsLost, PodsMade
from tessera_schemas.reasons import Reason


class SurplusPods:
    """Every step may be repeated. What was said and bound is remembered, by run and rank, only to save messages."""

    def __init__(
        self, calls: Calls, stopping: Stopping, facts: Facts, templates: Templates, state: State, boots: Boots
    ) -> None:
        self._calls, self._stopping, self._facts, self._boots = calls, stopping, facts, boots
        self._templates, self._state = templates, state
        self._made: dict[str, set[int]] = {}
        self._bound: dict[str, set[int]] = {}
        self._lost: dict[str, set[int]] = {}

    def forget(self, run_id: str) -> None:
        """Forgets which surplus pods of a run were made, bound or said to be lost."""
        for remembered in (self._made, self._bound, self._lost):
            remembered.pop(run_id, None)

    async def work(self, job: Job, run: Run, pods: Mapping[str, Pod]) -> None:
        """Advance the surplus pods of a run that goes on; one in trouble keeps no other waiting."""
        if not run.next_rank:
            return  # it never grew
        staying = list(run.surplus)
        await all_of([self._make(job, run, staying), self._bind(job, run, staying, pods), self._clear(run, pods)])

    async def _make(self, job: Job, run: Run, staying: list[SurplusPod]) -> None:
        made_ranks = self._made.setdefault(run.run_id, set())
        lost = self._lost.setdefault(run.run_id, set())
        ranks = [e.placement.rank for e in staying if not e.uid and e.placement.rank not in made_ranks | lost]
        if not ranks:
            return
        spec = await self._templates.of(job)
        calls = [self._calls.make(job, run, rank, spec) for rank in ranks]
        results = dict(zip(ranks, await asyncio.gather(*calls, return_exceptions=True), strict=True))
        made = {rank: uid for rank, uid in results.items() if isinstance(uid, str)}
        if made:
            uids = tuple(made.values())
            # No identity: ranks that were said together may be said again in other company after a restart.
            await self._facts.publish(PodsMade(kind="pods_made", run_id=run.run_id, uids=uids, ranks=tuple(made)))
            made_ranks |= made.keys()
        await self._settle(run, {rank: e for rank, e in results.items() if isinstance(e, BaseException)})

    async def _bind(self, job: Job, run: Run, staying: list[SurplusPod], pods: Mapping[str, Pod]) -> None:
        """Bind every permitted UID that is not bound yet, then say which of them are lost."""
        bound = self._bound.setdefault(run.run_id, set())
        lost = self._lost.setdefault(run.run_id, set())
        permitted = {e.placement.rank: e for e in staying if e.uid and e.placement.rank not in lost}
        todo = [extra for rank, extra in permitted.items() if rank not in bound]
        calls = [self._bind_one(job, run, extra) for extra in todo]
        failed: dict[int, BaseException] = {}
        for extra, result in zip(todo, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(result, BaseException):
                failed[extra.placement.rank] = result
            else:
                bound.add(extra.placement.rank)
        await self._report_lost(run, await self._broken(job, run, permitted, pods))
        await self._settle(run, failed)

    async def _bind_one(self, job: Job, run: Run, extra: SurplusPod) -> None:
        await self._calls.reserve(job, run, extra.placement, extra.uid)
        await self._calls.bind(job, run, extra.placement, extra.uid)

    async def _broken(
        self, job: Job, run: Run, permitted: Mapping[int, SurplusPod], pods: Mapping[str, Pod]
    ) -> dict[int, Reason]:
        """The ranks whose pods ended otherwise than by success, and those that were bound and are not there."""
        there = {rank: pods[extra.uid] for rank, extra in permitted.items() if extra.uid in pods}
        found = find_broken_surplus(there, self._boots)
        for rank, extra in permitted.items():
            if extra.uid not in pods and rank in self._bound[run.run_id]:
                reason = await self._calls.vanished(job, run, rank, extra.uid)
                if reason is not None:
                    found[rank] = reason
        return found

    async def _settle(self, run: Run, failed: Mapping[int, BaseException]) -> None:
        """Say what was refused for good; raise what is worth another try."""
        await self._report_lost(
            run, {rank: error.reason for rank, error in failed.items() if isinstance(error, RefusedByCluster)}
        )
        for error in failed.values():
            if not isinstance(error, RefusedByCluster):
                raise error

    async def _report_lost(self, run: Run, found: Mapping[int, Reason]) -> None:
        if found:
            ranks = tuple(sorted(found))
            fact = PodsLost(
                kind="pods_lost", run_id=run.run_id, ranks=ranks, reason=reason_for(found[ranks[0]], self._state.format)
            )
            await self._facts.publish(fact)
            self._lost.setdefault(run.run_id, set()).update(ranks)

    async def _clear(self, run: Run, pods: Mapping[str, Pod]) -> None:
        """Pods that are to leave are stopped; ones that the ledger has let go of are cleared away."""
        leaving = {extra.placement.rank for extra in run.extra if extra.leaving}
        known = {placement.rank for placement in run.all_placements}
        going = [self._stopping.stop(run, pod) for pod in list(pods.values()) if pod.rank in leaving]
        strays = [pod for pod in pods.values() if pod.rank not in known]
        await all_of([*going, *(self._stopping.clear_away(run.run_id, pod) for pod in strays)])
