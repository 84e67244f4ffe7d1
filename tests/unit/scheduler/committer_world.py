"""A configured shard with one node and one job, and the facts that move it on."""

from typing import Any

from tessera.domain.entities import Job, Run
from tessera_schemas.base import job_id
from tessera_schemas.facts import (
    AnyFact,
    BindFailed,
    CancelRequested,
    PodsBound,
    PodsMade,
    RunEnded,
    RunStarted,
)
from tessera_schemas.job import Role
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.run_ends import end_of
from tests.builders import (
    SHARD,
    admitted,
    job_spec,
    node_seen,
)
from tests.ledgers import Committed

K1 = job_id(SHARD, "lab", "k1")
RUN = f"{K1}-1"
FAILED = Reason(code=Code.POD_FAILED, numbers={"exit_code": 3}, detail="boom")
DELETED = Reason(code=Code.POD_DELETED, detail="by hand")


class World(Committed):
    """A configured shard with one node of 8 GPUs, and one job brought to where a test needs it."""

    def __init__(self, *nodes: AnyFact, **config: Any) -> None:
        super().__init__()
        self.begin(*(nodes or (node_seen(),)), **config)

    def say(self, *facts: AnyFact, ms: int = 1000) -> list[str]:
        """The kinds of the records that follow from these facts."""
        return kinds(self.commit(*facts, ms=ms))

    def place(self, ms: int = 1000) -> LedgerMessage:
        self.ts += ms
        return self.commit(orders=(self.line(),), ms=0)

    def queued(self, *roles: Role, **spec: Any) -> "World":
        self.commit(admitted("k1", job_spec(*roles, **spec)))
        return self

    def allocated(self, **spec: Any) -> "World":
        self.queued(**spec).place()
        return self

    def binding(self, **spec: Any) -> "World":
        self.allocated(**spec).commit(made())
        return self

    def running(self, **spec: Any) -> "World":
        self.binding(**spec).commit(started())
        return self

    def evicting(self, **spec: Any) -> "World":
        """Somebody deleted a pod, so that the job is to be tried again."""
        self.running(**spec).commit(ended(reason=DELETED))
        return self

    @property
    def job(self) -> Job:
        found = self.state.jobs.get(K1)
        assert isinstance(found, Job)
        return found

    @property
    def run(self) -> Run:
        found = self.state.runs.get(self.job.run_id)
        assert isinstance(found, Run)
        return found


def kinds(message: LedgerMessage) -> list[str]:
    return [record.kind for record in message.records]


def made(run: str = RUN, pods: int = 1) -> PodsMade:
    return PodsMade(kind="pods_made", run_id=run, uids=tuple(f"uid-{index}" for index in range(pods)))


def bound(run: str = RUN) -> PodsBound:
    return PodsBound(kind="pods_bound", run_id=run)


def started(run: str = RUN) -> RunStarted:
    return RunStarted(kind="run_started", run_id=run)


def ended(run: str = RUN, reason: Reason | None = FAILED) -> RunEnded:
    """The run's program failed, or with another `reason` the run ended for that; None: it succeeded."""
    own = reason is not None and end_of(reason.code).spends
    return RunEnded(kind="run_ended", run_id=run, reason=reason, own=own)


def bind_failed(run: str = RUN) -> BindFailed:
    return BindFailed(kind="bind_failed", run_id=run, rank=0, reason=Reason(code=Code.BIND_REFUSED, detail="quota"))


def cancel(job: str = K1, tenant: str = "lab", why: str = "enough") -> CancelRequested:
    return CancelRequested(kind="cancel_requested", job_id=job, tenant=tenant, why=why)


def reasons(message: LedgerMessage) -> list[Code]:
    return [record.reason.code for record in message.records if record.kind == "waiting"]
