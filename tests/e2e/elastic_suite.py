"""Elastic jobs on whichever cluster the fixture `live` is: simulated, or a real API server."""

from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.ledger import LEDGER_MESSAGE, AnyRecord
from tests.e2e.live import GPUS, Live, job
from tests.e2e.platform_checks import assert_all_is_well

LARGEST = GPUS // 8


def elastic(seconds: float) -> JobSpec:
    """A pod of eight GPUs that may become as many as fill the cluster."""
    spec = job("elastic", gpus=8, seconds=seconds)
    role = Role.model_validate(spec.roles[0].model_dump() | {"max_replicas": LARGEST})
    return spec.model_copy(update={"roles": (role,)})


def run_of(state: State, job_id: str) -> Run:
    run: Run | None = state.runs.get(f"{job_id}-1")
    assert run is not None, "its first attempt is over"
    return run


def has_pods(state: State, job_id: str, pods: int) -> bool:
    """Whether it runs with so many pods, all of them permitted and none on its way out."""
    run = run_of(state, job_id)
    settled = all(extra.uid and not extra.leaving for extra in run.extra)
    return run.started and settled and len(run.places) == pods


def records(live: Live) -> list[AnyRecord]:
    return [record for stored in live.stored for record in LEDGER_MESSAGE.validate_json(stored).records]


async def test_it_grows_into_an_empty_cluster_gives_way_to_who_waits_and_grows_back(live: Live) -> None:
    large = await live.submit(elastic(600))
    await live.until_phase(large.job_id, "running")
    await live.until(lambda state: has_pods(state, large.job_id, LARGEST), "it has the whole cluster")
    waiting = await live.submit(job("waiting", gpus=8, replicas=2, seconds=2))
    await live.until_ended(waiting.job_id)
    assert live.phase(waiting.job_id) == "succeeded"
    await live.until(lambda state: has_pods(state, large.job_id, LARGEST), "it has grown back")
    ranks = [extra.placement.rank for extra in run_of(live.state, large.job_id).extra]
    assert len(ranks) == 3
    assert ranks[-1] > 3  # what came back has names that were never used
    await live.clients["lab"].cancel(large.job_id)
    await assert_all_is_well(live)
    mine = [record for record in records(live) if getattr(record, "run_id", "") == f"{large.job_id}-1"]
    assert [record.kind for record in mine if record.kind in ("shrunk", "revoked")] == ["shrunk", "revoked"]


async def test_it_succeeds_with_all_that_it_grew_by(live: Live) -> None:
    large = await live.submit(elastic(20))
    await live.until(lambda state: state.jobs.get(large.job_id) is not None, "it is taken in")
    await live.until_ended(large.job_id)
    assert live.phase(large.job_id) == "succeeded"
    assert any(record.kind == "grown" and record.run_id == f"{large.job_id}-1" for record in records(live))
    await assert_all_is_well(live)
