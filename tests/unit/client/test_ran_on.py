"""Where an ended job ran is read from the ledger, however long ago that was."""

from typing import Any

from tessera.client.ledger import ran_on as asked
from tessera.client.ledger.ran_on import ran_on
from tessera.projection.views import all_views
from tessera_schemas.facts import PodsMade, RunAbsent, RunEnded, RunStarted
from tessera_schemas.ledger import GENESIS
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import Head
from tessera_schemas.views import JobView
from tests.builders import admitted, job_spec, node_seen, role
from tests.ledgers import Committed


class InMemory:
    """A ledger as `ran_on` reads it, which counts what was read."""

    def __init__(self, stored: list[bytes]) -> None:
        self.stored, self.read_bytes = stored, 0
        self.ledger = self

    async def begin(self) -> Head:
        return Head(0, GENESIS)

    async def count(self) -> int:
        return len(self.stored)

    async def read(self, n: int) -> Any:
        return asked.Message("", n, self.stored[n - 1])

    async def messages(self, after: int = 0) -> Any:
        for seq in range(after + 1, len(self.stored) + 1):
            self.read_bytes += len(self.stored[seq - 1])
            yield seq, self.stored[seq - 1]


def view(ledger: Committed, job: str) -> JobView:
    (found,) = (change.value for change in all_views(ledger.state) if change.key == job)
    assert found is not None
    return JobView.from_bytes(found)


async def test_an_ended_jobs_nodes_are_found_beside_others_of_long_ago_and_later() -> None:
    ledger = Committed().begin()
    for number in range(40):
        ledger.run_to_its_end(f"before-{number}")
    wide = ledger.run_to_its_end("wide", gpus=8, replicas=2)
    for number in range(40):
        ledger.run_to_its_end(f"after-{number}")
    job, stored = view(ledger, wide), InMemory(ledger.stored)
    assert (job.phase, job.placements) == ("succeeded", ())
    assert await ran_on(stored, job) == ("node-a", "node-b")  # type: ignore[arg-type]
    assert stored.read_bytes < sum(map(len, ledger.stored)) * 0.7, "it begins near the start of the run"


async def test_of_several_attempts_the_last_is_told() -> None:
    ledger = Committed().begin(node_seen("node-a"))
    job = admitted("k1", job_spec(role(gpus=8), retry={"max_attempts": 2, "backoff_seconds": 0}))
    ledger.commit(job)
    lost = Reason(code=Code.NODE_LOST)
    for attempt, node in ((1, "node-b"), (2, "")):
        if attempt == 1:  # the second starts with the release of the first, by the order that is known
            ledger.commit(orders=(ledger.line(),))
        run = f"{job.job_id}-{attempt}"
        started(ledger, run)
        ledger.commit(RunEnded(kind="run_ended", run_id=run, reason=lost if node else None))
        if node:
            ledger.commit(node_seen("node-a", ready=False), node_seen(node))
        ledger.commit(RunAbsent(kind="run_absent", run_id=run))
    assert await ran_on(InMemory(ledger.stored), view(ledger, job.job_id)) == ("node-b",)  # type: ignore[arg-type]


def started(ledger: Committed, run: str) -> None:
    ledger.commit(PodsMade(kind="pods_made", run_id=run, uids=(f"uid-{run}",)))
    ledger.commit(RunStarted(kind="run_started", run_id=run))


async def test_a_job_that_never_started_ran_nowhere() -> None:
    job = JobView(job_id="a" * 20, tenant="lab", queue="q", name="n", key="k", phase="cancelled", attempt=0, pods=1,
                  gpu_milli=0, submitted_ts=1, started_ts=0, priority=0)  # fmt: skip
    assert await ran_on(InMemory([]), job) == ()  # type: ignore[arg-type]
