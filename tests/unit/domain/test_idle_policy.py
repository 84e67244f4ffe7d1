"""Whose word counts on GPUs that are held and not used: the job's, else its queue's, else the policy's."""

from typing import Any

import pytest

from tessera.domain.devices.free_slots import Unused
from tessera.domain.entities import Run
from tessera.domain.quota.idle import IdlePolicy, idle_policy
from tessera.engine.explain.explanation import explain
from tessera.engine.placement.free_slots import slots
from tessera_schemas.config import Queue
from tessera_schemas.facts import RunIdle, RunUsed
from tessera_schemas.job import JobIdle
from tessera_schemas.work.measured_use import MeasuredUse
from tests.rounds import Rounds

POLICY = {"idle": "requeue", "idle_warn_seconds": 60, "idle_reclaim_seconds": 120}
TREE = (
    Queue.model_validate({"name": "all", "idle": {"warn_seconds": 600, "busy_percent": 20}}),
    Queue.model_validate({"name": "research", "parent": "all", "idle": {"action": "fail"}}),
    Queue.model_validate({"name": "sessions", "parent": "all", "idle": {"action": "off", "warn_seconds": 5}}),
    Queue.model_validate({"name": "strict", "parent": "all", "idle": {"jobs_choose": False}}),
    Queue.model_validate({"name": "alone"}),
)


def of(queue: str, **own: Any) -> IdlePolicy:
    rounds = Rounds(*TREE, **POLICY)
    rounds.submit("one", queue="alone", idle=JobIdle(**own) if own else None)
    return idle_policy(rounds.state.tree, queue, rounds.job("one"))


def test_field_by_field_the_lowest_queue_that_says_it_counts_then_the_policy() -> None:
    assert of("alone") == IdlePolicy("requeue", 60, 120)
    assert of("research") == IdlePolicy("fail", 600, 120, 20)
    assert of("sessions") == IdlePolicy("off", 5, 120, 20)
    assert of("a-queue-that-is-gone") == IdlePolicy("requeue", 60, 120)


def test_a_job_says_its_own_where_its_queue_lets_jobs_choose() -> None:
    assert of("research", warn_seconds=7200, busy_percent=1) == IdlePolicy("fail", 7200, 120, 1)
    assert of("research", allow_idle=True) == IdlePolicy("off", 600, 120, 20, allowed=True)
    assert of("strict", allow_idle=True, warn_seconds=7200) == IdlePolicy("requeue", 600, 120, 20)


def test_a_job_turns_on_nothing_that_its_queue_leaves_off() -> None:
    assert of("sessions", warn_seconds=1).action == "off"


def idle_for(rounds: Rounds, key: str, *seconds: int, ms: int = 1000) -> Run | None:
    """The run after it was said to have been idle for so long, again and again."""
    run_id = rounds.run(key).run_id
    for each in seconds:
        rounds.commit(RunIdle(kind="run_idle", run_id=run_id, idle_seconds=each), ms=ms)
    found: Run | None = rounds.state.runs.get(run_id)
    return found


def running(queue: str, **own: Any) -> Rounds:
    rounds = Rounds(*TREE, **POLICY)
    rounds.submit("one", gpus=4, queue=queue, idle=JobIdle(**own) if own else None)
    rounds.settle()
    assert rounds.running("one")
    return rounds


def test_the_committer_goes_by_the_queue_of_the_run() -> None:
    rounds = running("research")
    run = idle_for(rounds, "one", 599)
    assert run is not None
    assert not run.idle_ts
    run = idle_for(rounds, "one", 600, 721, ms=121_000)
    assert run is not None
    assert (run.idle_ts > 0, run.then) == (True, "failed")


@pytest.mark.parametrize(("queue", "own"), [("sessions", {}), ("research", {"allow_idle": True})])
def test_who_may_be_idle_is_neither_warned_nor_stopped(queue: str, own: dict[str, Any]) -> None:
    run = idle_for(running(queue, **own), "one", 10_000, 20_000, ms=10_000_000)
    assert run is not None
    assert (run.idle_ts, run.stopping) == (0, False)


def test_slots_and_explain_say_what_is_held_and_not_used() -> None:
    rounds = running("alone")
    assert slots(rounds.state, "default").unused == Unused()
    idle_for(rounds, "one", 60)
    assert slots(rounds.state, "default").unused == Unused(runs=1, gpu_milli=4000)
    said = " ".join(explain(rounds.state, rounds.job("one").job_id, rounds.ts).sentences)
    assert "it holds GPUs and uses none; in 2m it goes back to its queue" in said
    assert rounds.job("one").idle is None


def test_explain_says_that_a_job_may_hold_gpus_and_use_none() -> None:
    rounds = running("research", allow_idle=True)
    assert (
        "It may hold GPUs and use none (idle.allow_idle)."
        in explain(rounds.state, rounds.job("one").job_id, rounds.ts).sentences
    )


@pytest.mark.parametrize(("busy", "advised"), [(3, True), (4, False)])
def test_explain_says_what_of_a_runs_gpus_was_used_and_advises_on_evidence(busy: int, advised: bool) -> None:
    rounds = running("research")
    run_id, measured = rounds.run("one").run_id, 4 * 1000 * 3_600_000
    use = MeasuredUse(measured_gpu_milli_ms=measured, worked_gpu_milli_ms=measured // 2, gpus=4, busy_gpus=busy)
    rounds.commit(RunUsed(kind="run_used", run_id=run_id, use=use), ms=3_700_000)
    said = " ".join(explain(rounds.state, rounds.job("one").job_id, rounds.ts).sentences)
    assert f"4 GPUs held 1h1m, {busy} were used (50 % of the time)." in said
    assert ("1 of its 4 GPUs was never busy: ask for fewer (--gpus 3)." in said) is advised
