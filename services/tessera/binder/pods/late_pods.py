"""
The late pods of users' runs: each is bound to the room that its run holds for it once it is there and permitted.

One that does not come to its node, fails or goes ends no run: it is said to be lost, and the others go on.
"""

from collections.abc import Mapping

from tessera.binder.adoption.runs import AdoptedRuns
from tessera.binder.decide.steps import Pod, broken_of, is_broken, no_boots, reason_of
from tessera.binder.pods.calls import Calls, RefusedByCluster
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.kernel.messaging.facts import Facts
from tessera_schemas.facts import PodsLost
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement


class LatePods:
    """Every step may be repeated. What was said to be lost is remembered, by run and rank, only to save messages."""

    def __init__(self, calls: Calls, adopted: AdoptedRuns, facts: Facts, state: State) -> None:
        self._calls, self._adopted, self._facts, self._state = calls, adopted, facts, state
        self._lost: dict[str, set[int]] = {}

    def forget(self, run_id: str) -> None:
        """Forgets which late pods of a run were said to be lost."""
        self._lost.pop(run_id, None)

    async def work(self, job: Job, run_id: str, pods: Mapping[str, Pod]) -> None:
        """Bind each permitted late pod of a run that goes on, or say that it is lost."""
        run = self._state.runs.get(run_id)
        if run is None or not run.late or not run.started or run.stopping:
            return
        lost = self._lost.setdefault(run_id, set())
        for placement in run.placements[len(run.placements) - run.late :]:
            rank, uid = placement.rank, run.uids[placement.rank]
            if not uid or rank in lost or rank in run.released_ranks:
                continue
            why = await self._bind(job, run, placement, uid, pods.get(uid))
            if why is not None:
                await self._facts.publish(PodsLost(kind="pods_lost", run_id=run_id, ranks=(rank,), reason=why))
                lost.add(rank)

    async def _bind(self, job: Job, run: Run, placement: Placement, uid: str, pod: Pod | None) -> Reason | None:
        """Bind the pod unless it is bound; the reason why it is lost, if it is."""
        if pod is None:
            return await self._adopted.vanished(job, run, placement.rank, uid)
        if is_broken(pod):
            return reason_of(broken_of(pod, placement.rank, True, no_boots))
        if not pod.node:
            try:
                await self._calls.reserve(job, run, placement, uid)
                await self._calls.bind(job, run, placement, uid)
            except RefusedByCluster as refused:
                return refused.reason
        return None
