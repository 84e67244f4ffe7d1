"""Explain recomputes with the functions that decide, and says as of which record."""

from tessera.client.views.explain import explanation_lines
from tessera.client.views.story import story
from tessera.engine.explain.explanation import explain
from tessera.gateway.reading.explaining import explained
from tessera_schemas.base import job_id
from tessera_schemas.facts import PodsMade, RunEnded, RunStarted
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.reasons import Code, Reason
from tests.builders import (
    SHARD,
    admitted,
    config_body,
    config_proposed,
    job_spec,
    node_seen,
    queue,
    role,
    run_absent,
    work_refused,
)
from tests.ledgers import Committed


def of(key: str) -> str:
    return job_id(SHARD, "lab", key)


def ledger(*submits: tuple[str, int], gpus: int = 8, quota: int | None = None) -> Committed:
    """Jobs of so many GPUs each, taken in and placed as far as they fit."""
    body = config_body(queue() if quota is None else queue(gpu_milli=quota))
    made = Committed().begin(node_seen("node-a", gpus=gpus), body=body)
    made.commit(*(admitted(key, job_spec(role(gpus=wanted), name=key)) for key, wanted in submits))
    made.commit(orders=(made.line(),))
    return made


def reason_of(made: Committed, key: str) -> Reason:
    answer = explain(made.state, of(key), made.ts)
    assert answer is not None
    assert answer.as_of == made.state.n
    assert answer.reason is not None
    return answer.reason


def test_a_job_without_room_hears_the_numbers_of_now_its_place_and_who_holds_what() -> None:
    made = ledger(("k1", 6), ("k2", 4), ("k3", 4))
    answer = explain(made.state, of("k3"), made.ts)
    assert answer is not None
    assert answer.reason is not None
    assert answer.reason.code is Code.NO_FIT
    assert answer.reason.numbers["most_gpus_free_on_a_node"] == 2
    assert (answer.position, answer.in_line) == (2, 2)
    (holder,) = answer.holders.named
    assert holder.describe() == f"6 GPUs held by k1 ({of('k1')}-1) of queue research"


def test_refused_work_is_explained_with_its_reason_and_the_way_out() -> None:
    made, refusal = ledger(), work_refused()
    made.commit(refusal)
    answer = explained(made.state, refusal.work_id, None, made.ts)
    assert answer is not None
    assert (answer.phase, answer.position) == ("refused", 0)
    assert answer.sentence.startswith(f"train ({refusal.work_id}) refused: ")
    lines = explanation_lines(answer.model_dump(mode="json") | {"story": []}, made.ts)
    assert "\n".join(lines).count("Job/train is in no queue") == 1


def test_a_job_that_no_empty_node_holds_hears_that_it_is_hopeless() -> None:
    made = ledger(("k1", 16))
    answer = explain(made.state, of("k1"), made.ts)
    assert answer is not None
    assert any("Even empty" in note for note in answer.notes)


def test_a_job_over_quota_hears_the_quota() -> None:
    made = ledger(("k1", 3), ("k2", 3), quota=4000)
    reason = reason_of(made, "k2")
    assert reason.code is Code.WAITING_FOR_QUOTA
    assert reason.numbers == {"wanted": 3000, "available": 1000, "used": 3000, "nominal_quota": 4000}


def test_a_job_larger_than_its_quota_hears_that_it_never_starts() -> None:
    made = ledger(("k1", 5), quota=4000)
    answer = explain(made.state, of("k1"), made.ts)
    assert answer is not None
    assert any("never starts" in note for note in answer.notes)


def test_a_job_that_fits_waits_for_its_turn() -> None:
    made = Committed().begin(node_seen("node-a"))
    made.commit(admitted("k1"))
    reason = reason_of(made, "k1")
    assert (reason.code, reason.numbers) == (Code.WAITING_FOR_TURN, {"position": 1})


def test_a_job_whose_queue_is_gone_hears_so() -> None:
    made = ledger(("k1", 16))
    made.commit(config_proposed(config_body(queue("other")), expected_version=1, abandon=True))
    assert reason_of(made, "k1").code is Code.NO_SUCH_QUEUE


def test_a_job_in_back_off_hears_how_long() -> None:
    made = ledger(("k1", 1))
    run = f"{of('k1')}-1"
    made.commit(PodsMade(kind="pods_made", run_id=run, uids=("u",)))
    made.commit(RunStarted(kind="run_started", run_id=run))
    made.commit(RunEnded(kind="run_ended", run_id=run, reason=Reason(code=Code.POD_REFUSED_BY_NODE)))
    made.commit(run_absent(run))
    reason = reason_of(made, "k1")
    assert (reason.code, reason.numbers) == (Code.BACKOFF, {"seconds_left": 1, "attempts": 1})
    assert "PodRefusedByNode" in reason.detail


def test_a_running_job_says_what_it_holds_and_an_ended_one_how_it_ended() -> None:
    made = ledger(("k1", 2))
    running = explain(made.state, of("k1"), made.ts)
    assert running is not None
    assert running.notes == (
        "Attempt 1 holds 1 place on node-a.",
        "All its pods have to run within 10m, else it is tried again.",
        "Pod 0 has on node-a: GPUs 0, 1 (isolation: hardware).",
    )
    job = made.run_to_its_end("k9")
    ended = explain(made.state, job, made.ts)
    assert ended is not None
    assert ended.sentence() == f"train ({job}) succeeded"


def test_nobody_explains_a_job_that_was_never_taken_in() -> None:
    assert explain(ledger().state, of("k1"), 0) is None


def test_the_story_of_a_job_is_what_the_ledger_says_about_it_and_nothing_else() -> None:
    made = Committed().begin()
    job = made.run_to_its_end("k1")
    made.run_to_its_end("k2")
    told = [line for data in made.stored for line in story(LEDGER_MESSAGE.validate_json(data), job)]
    assert [line.text for line in told] == [
        "queued in research, key k1",
        "allocated, 1 pod on node-a (attempt 1)",
        "pods exist and may be bound",
        "bound",
        "running",
        "succeeded",
        "nothing of it is left; its devices are free",
    ]
    assert [line.n for line in told] == [4, 5, 6, 7, 7, 8, 9]
