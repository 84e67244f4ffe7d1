"""What a job's runs held and how long it waited, over all of them: preempted, elastic and ended ones."""

import pytest

from tessera.domain.folding import jobs as fold_jobs
from tessera.domain.folding import steps as fold_steps
from tessera.domain.state import State
from tessera.projection.views import Views
from tessera.testkit.sim.planner import plan_for
from tessera_schemas.facts import PodsMade, RunEnded, RunStarted
from tessera_schemas.ledger import FORMAT
from tessera_schemas.views import JobView
from tests.builders import admitted, config_body, first_run, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

PREEMPTS = {"preset": "priority", "min_runtime_seconds": 0}
SECOND = 1000
LOW, HIGH = first_run("k1")[:-2], first_run("k2")[:-2]


def shown(state: State, job_id: str) -> JobView:
    value = Views(state).value(("jobs", job_id))
    assert value is not None
    return JobView.from_bytes(value)


def preempted() -> Committed:
    """The low job waits 2 s, holds 1 GPU for 12 s of which it runs 10, and is queued again 1 s after its stop began."""
    ledger = Committed().begin(node_seen("node-a", 1), body=config_body(policy=PREEMPTS))
    ledger.commit(admitted("k1", job_spec(priority_class="low")))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(PodsMade(kind="pods_made", run_id=first_run(), uids=("uid-0",)))
    ledger.commit(RunStarted(kind="run_started", run_id=first_run()))
    ledger.commit(admitted("k2", job_spec(priority_class="high")), ms=9 * SECOND)
    ledger.commit(plan_for(ledger.state, ledger.state.jobs.get(HIGH), [ledger.state.runs.get(first_run())]))
    ledger.commit(run_absent(first_run()))
    return ledger


def test_a_wait_ends_when_the_run_starts_and_the_waits_before_each_run_add_up() -> None:
    ledger = preempted()
    job = shown(ledger.state, LOW)
    assert job.waited_ms(ledger.ts) == 3 * SECOND  # before its run; since then no time has passed
    assert job.waited_ms(ledger.ts + 5 * SECOND) == 8 * SECOND
    _end(ledger, f"{HIGH}-1")
    again = f"{LOW}-2"
    ledger.commit(orders=(ledger.line(),), ms=60 * SECOND)
    ledger.commit(PodsMade(kind="pods_made", run_id=again, uids=("uid-2",)))
    ledger.commit(RunStarted(kind="run_started", run_id=again))
    started, job = ledger.ts, shown(ledger.state, LOW)
    assert job.started_ts == started
    assert job.waited_ms(started + 99 * SECOND) == started - job.submitted_ts - 11 * SECOND
    assert (job.restarts, job.evictions) == (1, 1)
    ledger.commit(RunEnded(kind="run_ended", run_id=again), ms=20 * SECOND)
    assert shown(ledger.state, LOW).waited_ms(ledger.ts) == job.waited_ms(started)


def _end(ledger: Committed, run: str) -> None:
    ledger.commit(PodsMade(kind="pods_made", run_id=run, uids=("uid-1",)))
    ledger.commit(RunStarted(kind="run_started", run_id=run))
    ledger.commit(RunEnded(kind="run_ended", run_id=run))
    ledger.commit(run_absent(run))


def test_what_a_preempted_run_held_counts_until_its_release() -> None:
    ledger = preempted()
    assert shown(ledger.state, LOW).held_gpu_milli_ms(ledger.ts + 77) == 1000 * 13 * SECOND


def test_a_run_that_ended_counts_once_whatever_its_release_takes() -> None:
    ledger = Committed().begin()
    ledger.commit(admitted("k1", job_spec(role(gpus=2))))
    run = ledger.start(LOW, "k1")
    assert shown(ledger.state, LOW).held_gpu_milli_ms(ledger.ts + SECOND) == 2000 * 3 * SECOND
    ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=8 * SECOND)
    assert shown(ledger.state, LOW).held_gpu_milli_ms(ledger.ts + 5 * SECOND) == 2000 * 10 * SECOND
    ledger.commit(run_absent(run), ms=30 * SECOND)
    assert shown(ledger.state, LOW).held_gpu_milli_ms(ledger.ts) == 2000 * 10 * SECOND


def test_an_elastic_run_counts_at_the_size_that_it_had_at_each_time() -> None:
    ledger = Committed().begin(body=config_body(policy={"grow_after_seconds": 0}))
    ledger.commit(admitted("k1", job_spec(role(replicas=2, max_replicas=5, gpus=2))))
    run = ledger.start(LOW, "k1")  # 2 s with 4 GPUs, then with 10
    ledger.commit(run_absent(run).model_copy(update={"ranks": (0,)}), ms=10 * SECOND)
    held = 4000 * 2 * SECOND + 10_000 * 10 * SECOND
    assert shown(ledger.state, LOW).held_gpu_milli_ms(ledger.ts) == held
    assert shown(ledger.state, LOW).held_gpu_milli_ms(ledger.ts + 5 * SECOND) == held + 8000 * 5 * SECOND


def test_nothing_is_written_into_a_ledger_of_an_older_format(monkeypatch: pytest.MonkeyPatch) -> None:
    job = preempted().state.jobs.get(LOW)
    assert (job.earlier_ms, job.gpu_milli_ms) == (11 * SECOND, 13 * 1000 * SECOND)
    _be_older(monkeypatch)
    job = preempted().state.jobs.get(LOW)
    assert (job.earlier_ms, job.gpu_milli_ms) == (0, 0)


def _be_older(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fold_jobs, fold_steps):
        monkeypatch.setattr(module, "RUN_SUMS_FROM", FORMAT + 1)


def test_a_job_that_ended_before_its_shard_counted_is_shown_by_its_last_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _be_older(monkeypatch)
    ledger = Committed().begin()
    ledger.run_to_its_end("k1", gpus=2)
    assert shown(ledger.state, LOW).held_gpu_milli_ms(ledger.ts) == 2000 * SECOND
