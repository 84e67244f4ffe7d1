"""A committer that keeps room ahead: jobs of so many GPUs and hours, placed, started and ended."""

from typing import Any

from tessera.domain.entities import Job
from tessera_schemas.config import Policy, Queue, Quota
from tessera_schemas.facts import AnyFact, PodsMade, RunEnded
from tessera_schemas.ledger import AnyRecord
from tests.builders import admitted, config_body, node_seen, role, run_absent
from tests.builders import job_spec as spec
from tests.ledgers import Committed
from tests.unit.scheduler.committer_world import started

HOUR = 3600


def shard(*nodes: AnyFact, quota: int | None = None, **policy: Any) -> Committed:
    quotas = () if quota is None else (Quota(resource="gpu_milli", nominal=quota * 1000),)
    body = config_body(
        Queue(name="research", quotas=quotas), policy=Policy.model_validate({"backfill": "reserve", **policy})
    )
    return Committed().begin(*(nodes or (node_seen("node-a"),)), body=body)


def submit(ledger: Committed, *jobs: tuple[str, int, int], cpu: int = 1, gang: int = 1) -> tuple[AnyRecord, ...]:
    """(key, GPUs, hours of the time limit) each, in one message; the records of the next one, which has the order."""
    ledger.commit(
        *(
            admitted(key, spec(role(replicas=gang, gpus=gpus, cpu_milli=cpu * 1000), time_limit_seconds=hours * HOUR))
            for key, gpus, hours in jobs
        )
    )
    return ledger.commit(orders=(ledger.line(),)).records


def job(ledger: Committed, key: str) -> Job:
    found = ledger.state.jobs.get(admitted(key).job_id)
    assert isinstance(found, Job)
    return found


def start(ledger: Committed) -> None:
    """All runs that were allocated start."""
    waiting = [run for run in ledger.state.runs.values() if not run.started_ts]
    for run in waiting:
        ledger.commit(PodsMade(kind="pods_made", run_id=run.run_id, uids=tuple(map(str, range(run.gang.pods)))))
        ledger.commit(started(run.run_id))


def end(ledger: Committed, *jobs: str, ms: int = 1) -> None:
    """The first runs of these jobs end; then the line is walked."""
    start(ledger)
    runs = [f"{job_id}-1" for job_id in jobs]
    ledger.commit(*(RunEnded(kind="run_ended", run_id=run) for run in runs), ms=ms)
    ledger.commit(*map(run_absent, runs))
    ledger.commit(orders=(ledger.line(),))


def ids(*keys: str) -> list[str]:
    return [admitted(key).job_id for key in keys]


def of_model(key: str, model: str, gpus: int = 8, hours: int = 1, cpu: int = 1) -> AnyFact:
    needs = role(gpus=gpus, gpu_models=(model,), cpu_milli=cpu * 1000)
    return admitted(key, spec(needs, time_limit_seconds=hours * HOUR))


def passed_within_a_strict_queue() -> Committed:
    """Room is kept for `kept`; then `first`, of a higher class and larger than any node, comes before it in line."""
    queues = (Queue(name="research", queueing_strategy="strict_fifo"), Queue(name="batch"))
    body = config_body(*queues, policy=Policy(backfill="reserve", backfill_patience_seconds=0))
    ledger = Committed().begin(node_seen("node-a"), body=body)
    for key, gpus, hours, queue, priority_class in (
        ("runs", 4, 2, "research", "normal"),
        ("kept", 8, 1, "research", "normal"),
        ("long", 1, 3, "batch", "low"),
        ("first", 9, 1, "research", "high"),
    ):
        limit = hours * HOUR
        asked = spec(role(gpus=gpus), queue=queue, priority_class=priority_class, time_limit_seconds=limit)
        ledger.commit(admitted(key, asked))
        ledger.commit(orders=(ledger.line(),))
    return ledger
