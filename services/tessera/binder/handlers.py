"""
One run at a time: look at the ledger's state and at its pods, do the next step, say what came of it.

Every step may be repeated: names and UIDs are fixed, a refused repeat is compared with what is there. What was said
is remembered only to save messages; the committer takes a repeat for what it is.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tessera.binder.checkpoints import Checkpoints
from tessera.binder.decide import Pod, missing, to_report
from tessera.binder.pods import bind_annotations, pod_of, spec_label
from tessera.binder.settings import BinderSettings
from tessera.binder.stopping import Stopping
from tessera.binder.templates import Templates
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.facts import Facts
from tessera.kernel.leases import Members, partition_of
from tessera.kernel.node_troubles import NodeTroubles
from tessera.kernel.pods_by_run import PodsByRun
from tessera.kernel.ports import ApiError, JsonObject
from tessera.kernel.service import Ports
from tessera.kernel.shard import Entry
from tessera.kernel.worklist import Worklist
from tessera_schemas.facts import AnyFact, BindFailed, PodsMade, RunEnded
from tessera_schemas.labels import RUN_LABEL, SPEC_LABEL, pod_name
from tessera_schemas.ledger import Allocated, Permitted, Released, Revoked, Saved
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code, Reason

RETRY_STATUS = (408, 409, 429)
NAME_A_RUN = (Permitted, Revoked, Released, Saved)

T = TypeVar("T")


class Refused(Exception):
    """The API server said no in a way that a repeat does not change."""

    def __init__(self, rank: int, reason: Reason) -> None:
        super().__init__(reason.sentence())
        self.rank, self.reason = rank, reason


class Runs:
    """The runs of our partitions, and what is left of runs that the ledger has let go of."""

    def __init__(
        self,
        ports: Ports,
        settings: BinderSettings,
        state: State,
        pods: PodsByRun[Pod],
        troubles: NodeTroubles,
        members: Members,
    ) -> None:
        self._ports, self._settings, self._state, self._pods, self._members = ports, settings, state, pods, members
        self._facts = Facts(ports.bus, settings.shard, "binder")
        self._templates = Templates(ports.ledger)
        self._said: dict[str, dict[str, None]] = {}
        self._bound: dict[str, dict[str, None]] = {}
        self.worklist = Worklist(self._work, ports.clock, settings.runs_at_once)
        self._stopping = Stopping(ports, settings, state, troubles, self.worklist)
        self._checkpoints = Checkpoints(self._facts, settings, state, ports.clock, self.worklist)

    # -- what makes a run worth a look ----------------------------------------------------------------------------

    async def on_ledger(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._templates.note(entry)
            for record in entry.message.records:
                if type(record) is Allocated:
                    self.worklist.name(f"{record.job_id}-{record.attempt}")
                elif isinstance(record, NAME_A_RUN):
                    self.worklist.name(record.run_id)

    async def follow_pods(self) -> None:
        while True:
            for run_id in await self._pods.next():
                self.worklist.name(run_id)

    async def resync(self) -> None:
        """Look at everything now and then, and as soon as our partitions change."""
        clock = self._ports.clock
        ours, at = frozenset[int](), clock.monotonic()
        while True:
            now = self._members.partitions()
            if now != ours or clock.monotonic() - at >= self._settings.resync_seconds:
                ours, at = now, clock.monotonic()
                for run_id in dict.fromkeys([*(r.run_id for r in self._state.runs.values()), *self._pods.runs()]):
                    self.worklist.name(run_id)
            await clock.sleep(0.5)

    # -- one run --------------------------------------------------------------------------------------------------

    async def _work(self, run_id: str) -> None:
        if not self._pods.informer.synced:
            raise Transient("the pods have not been listed yet")
        if partition_of(run_id.rpartition("-")[0]) not in self._members.partitions():
            return
        run = self._state.runs.get(run_id)
        pods = self._pods.of(run_id)
        if run is None:
            self._said.pop(run_id, None)
            self._bound.pop(run_id, None)
            self._checkpoints.forget(run_id)
            for pod in list(pods.values()):
                await self._stopping.clear_away(run_id, pod)
        elif run.revoked is not None:
            await self._checkpoints.report(run, pods)
            await _all([self._stopping.stop(run, pod) for pod in list(pods.values())])
        elif not run.over:
            await self._advance(run)
            await self._checkpoints.report(run, pods)

    async def _advance(self, run: Run) -> None:
        """Make, then bind, then report."""
        job = self._state.jobs.get(run.job_id)
        if job is None:
            return
        try:
            if not run.uids:
                if "pods_made" not in self._said.get(run.run_id, {}):
                    await self._make(job, run)
                return
            if not run.bound:
                await self._bind(job, run)
        except Refused as refused:
            refusal = BindFailed(kind="bind_failed", run_id=run.run_id, rank=refused.rank, reason=refused.reason)
            await self._say(run.run_id, refusal)
            return
        pods = self._pods.of(run.run_id)
        for fact in to_report(run, pods.values()):
            await self._say(run.run_id, fact)
        for rank in missing(run, pods):
            await self._report_vanished(job, run, rank)

    async def _report_vanished(self, job: Job, run: Run, rank: int) -> None:
        """Somebody took our finalizer off and deleted the pod: nothing will ever be seen to end."""
        name = pod_name(run.run_id, rank)
        try:
            pod = await self._ports.cluster.get_pod(job.tenant, name)
            if pod["metadata"]["uid"] == run.uids[rank]:
                return
        except ApiError as error:
            if error.status != 404:
                raise
        reason = Reason(code=Code.POD_DELETED, numbers={"rank": rank}, detail=f"{name} is gone")
        await self._say(run.run_id, RunEnded(kind="run_ended", run_id=run.run_id, reason=reason, rank=rank))

    async def _say(self, run_id: str, fact: AnyFact) -> None:
        said = self._said.setdefault(run_id, {})
        if fact.kind not in said:
            await self._facts.publish(fact, run_id)
            said[fact.kind] = None

    # -- make -----------------------------------------------------------------------------------------------------

    async def _make(self, job: Job, run: Run) -> None:
        spec = await self._templates.of(job)
        ranks = range(len(run.placements))
        pods = [pod_of(job, run, rank, spec, self._state.n) for rank in ranks]
        made = await _all([self._make_one(job, run, rank, pods[rank]) for rank in ranks])
        await self._say(run.run_id, PodsMade(kind="pods_made", run_id=run.run_id, uids=tuple(made)))

    async def _make_one(self, job: Job, run: Run, rank: int, pod: JsonObject) -> str:
        """The UID of the pod of this rank, made now or by an earlier try."""
        try:
            made = await self._ports.cluster.create_pod(job.tenant, pod)
        except ApiError as error:
            if error.status != 409:
                raise self._judged(run, rank, error) from error
            made = await self._ports.cluster.get_pod(job.tenant, pod["metadata"]["name"])
            labels = made["metadata"].get("labels", {})
            if labels.get(RUN_LABEL) != run.run_id or labels.get(SPEC_LABEL) != spec_label(job):
                detail = f"pod {pod['metadata']['name']} exists and is not ours"
                raise Refused(rank, Reason(code=Code.BIND_REFUSED, detail=detail)) from error
            if "deletionTimestamp" in made["metadata"]:
                detail = f"pod {pod['metadata']['name']} is being deleted"
                raise Refused(rank, Reason(code=Code.POD_DELETED, detail=detail)) from error
        uid: str = made["metadata"]["uid"]
        return uid

    # -- bind -----------------------------------------------------------------------------------------------------

    async def _bind(self, job: Job, run: Run) -> None:
        """Bind every permitted UID that is not bound yet; one that is, is compared."""
        bound = self._bound.setdefault(run.run_id, {})
        todo = [(placement, uid) for placement, uid in zip(run.placements, run.uids, strict=True) if uid not in bound]
        await _all([self._bind_one(job, run, placement, uid, bound) for placement, uid in todo])

    async def _bind_one(self, job: Job, run: Run, placement: Placement, uid: str, bound: dict[str, None]) -> None:
        name = pod_name(run.run_id, placement.rank)
        seen = self._pods.of(run.run_id).get(uid)
        if seen is None or not seen.node:
            try:
                annotations = bind_annotations(placement, uid)
                await self._ports.cluster.bind_pod(job.tenant, name, uid, placement.node, annotations)
            except ApiError as error:
                await self._settle_bind(job, run, placement, uid, error)
        bound[uid] = None

    async def _settle_bind(self, job: Job, run: Run, placement: Placement, uid: str, error: ApiError) -> None:
        """A refused bind: a lost reply of our own, a pod that is gone, or a real no."""
        name, rank = pod_name(run.run_id, placement.rank), placement.rank
        if error.status not in (404, 409):
            raise self._judged(run, rank, error) from error
        try:
            pod = await self._ports.cluster.get_pod(job.tenant, name)
        except ApiError as missing:
            if missing.status != 404:
                raise
            pod = {"metadata": {"uid": ""}}
        if pod["metadata"]["uid"] != uid or "deletionTimestamp" in pod["metadata"]:
            raise Refused(rank, Reason(code=Code.POD_DELETED, detail=f"pod {name} went away before it was bound"))
        node = pod["spec"].get("nodeName")
        if node and node != placement.node:
            raise Refused(rank, Reason(code=Code.BIND_REFUSED, detail=f"pod {name} is on {node} already"))
        if not node:
            raise self._judged(run, rank, error) from error

    def _judged(self, run: Run, rank: int, error: ApiError) -> Exception:
        """Worth another try, or the end of this run: the budget of tries bounds what a refusal can cost."""
        passing = error.status >= 500 or error.status in RETRY_STATUS
        if (passing or error.status == 403) and self.worklist.failures(run.run_id) + 1 < self._settings.attempts:
            return error
        if passing and error.status != 409:
            return error  # the API server is in trouble, not this pod: the run's own deadline bounds the wait
        numbers = {"rank": rank, "status": error.status}
        return Refused(
            rank, Reason(code=Code.BIND_REFUSED, numbers=numbers, detail=f"{error.reason}: {error.message}"[:512])
        )


async def _all(calls: list[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all calls, made at once; when some failed, the first error after all have ended."""
    if len(calls) == 1:
        return [await calls[0]]
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
