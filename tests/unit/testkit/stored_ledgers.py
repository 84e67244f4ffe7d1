"""Ledgers written record by record, for the checkers to judge."""

from typing import Any

from tessera_schemas import ledger as m
from tessera_schemas.base import job_id
from tessera_schemas.facts import PodsBound, PodsMade, RunEnded, RunStarted
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement
from tests.builders import (
    SHARD,
    Chain,
    admitted,
    config_proposed,
    first_run,
    node_seen,
    placement,
    run_absent,
)

WHY = Reason(code=Code.POD_FAILED)
FAR = 10**15


class Shard(Chain):
    """A chain that starts with a configuration and nodes, and writes the steps of jobs' lives."""

    def __init__(self, *nodes: Any, body: Any = None) -> None:
        super().__init__()
        seen = nodes or (node_seen("node-a"), node_seen("node-b"))
        changed = [m.NodeChanged(kind="node_changed", fact=i + 1) for i in range(len(seen))]
        configured = m.ConfigSet(kind="config_set", fact=0, version=1)
        self.add(configured, *changed, facts=(config_proposed(body), *seen))

    def queued(self, key: str = "k1", spec: JobSpec | None = None) -> None:
        fact = admitted(key, spec)
        self.add(m.JobQueued(kind="job_queued", fact=0, job_id=fact.job_id), facts=[fact])

    def allocated(self, *placements: Placement, key: str = "k1", attempt: int = 1, deadline: int = FAR) -> None:
        self.add(allocation(*placements, key=key, attempt=attempt, deadline=deadline))

    def permitted(self, *uids: str, run: str = first_run()) -> None:
        uids = uids or ("uid-0",)
        self.add(permit(*uids, run=run), facts=[PodsMade(kind="pods_made", run_id=run, uids=uids)])

    def running(self, key: str = "k1") -> None:
        """Queued, placed on the first device of node-a, permitted, bound and started."""
        run = first_run(key)
        self.queued(key)
        self.allocated(placement(), key=key)
        self.permitted(run=run)
        self.add(m.Bound(kind="bound", run_id=run), facts=[PodsBound(kind="pods_bound", run_id=run)])
        self.add(m.Started(kind="started", run_id=run), facts=[RunStarted(kind="run_started", run_id=run)])

    def revoked(self, run: str = first_run(), then: Any = "requeue", why: Reason = WHY) -> None:
        ended = RunEnded(kind="run_ended", run_id=run, reason=why)
        self.add(m.Revoked(kind="revoked", run_id=run, reason=why, then=then), facts=[ended])

    def released(self, *records: m.AnyRecord, run: str = first_run()) -> None:
        self.add(m.Released(kind="released", run_id=run), *records, facts=[run_absent(run)])

    def finished(self, key: str = "k1") -> None:
        """The running job succeeds and gives back what it held."""
        ended = RunEnded(kind="run_ended", run_id=first_run(key))
        self.add(finish("succeeded", key), facts=[ended])
        self.released(run=first_run(key))


def allocation(*placements: Placement, key: str = "k1", attempt: int = 1, deadline: int = FAR) -> m.Allocated:
    id_ = job_id(SHARD, "lab", key)
    places = placements or (placement(),)
    return m.Allocated(kind="allocated", job_id=id_, attempt=attempt, deadline=deadline, placements=places)


def permit(*uids: str, run: str = first_run()) -> m.Permitted:
    return m.Permitted(kind="permitted", run_id=run, uids=uids)


def finish(phase: Any, key: str = "k1", reason: Reason | None = None) -> m.Finished:
    return m.Finished(kind="finished", job_id=job_id(SHARD, "lab", key), phase=phase, reason=reason)


def requeue(key: str = "k1", not_before: int = 0) -> m.Requeued:
    return m.Requeued(kind="requeued", job_id=job_id(SHARD, "lab", key), not_before=not_before, reason=WHY)


def unmark(key: str, why: Any = "used") -> m.EarmarkEnded:
    return m.EarmarkEnded(kind="earmark_ended", owner=job_id(SHARD, "lab", key), why=why)
