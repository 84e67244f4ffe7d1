"""The last word of a run's first pod: how it is read, whatever stands there, and what the binder makes of it."""

import pytest

from tessera.binder.decide.ends import end_for
from tessera.binder.decide.steps import find_cancel, find_own_end, read_pod, to_report
from tessera.domain.entities import Run
from tessera.domain.last_words import BYTES_MAX, MARK, PodWord, read_word
from tessera.domain.storing.fast import replace
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import SESSION_LABEL
from tessera_schemas.facts import RunEnded
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import SCRIPT_WORDS_FROM
from tessera_schemas.work.run_steps import RunStep, RunSteps
from tests.builders import job_spec, role
from tests.unit.binder.binder_builders import api_pod, run
from tests.unit.binder.last_words import first_pod, word

TWO = job_spec(role(replicas=2))
WHO = "scontrol requeue by the script, in a-0"
ROW = ["python", 8, 0, 5, 0]


def end(*pods: Json, of: Run | None = None) -> RunEnded:
    (fact,) = to_report(of or run(TWO, pods=2, bound=True, started=True), [read_pod(pod) for pod in pods])
    assert isinstance(fact, RunEnded)
    return fact


def stopping(then: str) -> Run:
    reason = Reason(code=Code.PREEMPTED)
    return replace(run(TWO, pods=2, bound=True, started=True), revoked=reason, then=then, stopped_ts=1)


def unread(message: str) -> str:
    found = read_word(message)
    assert found is not None
    assert (found.ask, found.who) == (None, "")
    assert found.steps is not None
    assert found.steps.steps == ()
    return found.steps.unread


def test_steps_are_read_with_their_numbers_times_and_names() -> None:
    found = read_word(word(steps=250, **{"from": 1000}, head=[ROW, ["", 1, 10, 2, 9]], tail=[["", 1, 600, 3, 137]]))
    assert found is not None
    first, last = RunStep(0, "python", 8, 1000, 5, 0), RunStep(249, "python", 1, 1610, 3, 137)
    assert found.steps == RunSteps(count=250, steps=(first, RunStep(1, "python", 1, 1010, 2, 9), last))


def test_the_word_is_the_last_line_of_its_form_behind_what_the_program_wrote() -> None:
    forged = word(ask="cancel")
    assert read_word(f"out of memory\n{forged}\nin layer 7\n{word(ask='requeue', who=WHO)}\n") == PodWord(
        Code.REQUEUED_BY_SCRIPT, WHO
    )
    assert read_word(f"it said {forged}") is None
    assert read_word("") is None


ODD = [
    ("of another version", f"{MARK}2 {{}}", "version '2'"),
    ("without a version", MARK, "version ''"),
    ("with a version that clears screens", f"{MARK}\x1b[2J {{}}", "version"),
    ("too long", word(who="x") + " " * BYTES_MAX, "longer than 4096 bytes"),
    ("no JSON", f"{MARK}1 requeue", "Invalid JSON"),
    ("cut off", word(steps=9, head=[ROW])[:-9], "Invalid JSON"),
    ("not UTF-8", f'{MARK}1 {{"who": "\udcff"}}', "unicode string"),
    ("another wish", word(ask="delete"), "ask"),
    ("another field", word(ask="cancel", job="other"), "job"),
    ("a name that moves the cursor", word(steps=1, head=[["\x1b[2J", 1, 0, 0, 0]]), "head.0.0"),
    ("a name that is long", word(steps=1, head=[["x" * 33, 1, 0, 0, 0]]), "head.0.0"),
    ("who is long", word(ask="cancel", who="x" * 161), "who"),
    ("a step of four fields", word(steps=1, head=[ROW[:4]]), "head.0"),
    ("a negative time", word(steps=1, head=[["x", 1, -1, 0, 0]]), "head.0.2"),
    ("a number in a text", word(steps="1"), "steps"),
    ("a truth for a number", word(steps=True), "steps"),
    ("a fraction", word(steps=1.5), "steps"),
    ("an exit code beyond a byte", word(steps=1, head=[["x", 1, 0, 0, 256]]), "head.0.4"),
    ("more steps than it counts", word(steps=1, head=[ROW, ROW]), "2 and 0 steps of 1"),
    ("more than a hundred steps", word(steps=101, head=[["", 1, 0, 0, 0]] * 101), "head"),
    ("more steps than anybody makes", word(steps=2**40), "steps"),
    ("deep", f"{MARK}1 {'[' * 2000}", ""),
]


@pytest.mark.parametrize(("message", "why"), [case[1:] for case in ODD], ids=[case[0] for case in ODD])
def test_a_word_that_is_not_in_form_is_put_aside_and_told(message: str, why: str) -> None:
    told = unread(message)
    assert why in told
    assert 0 < len(told) <= 200
    assert told.isprintable()
    fact = end(first_pod(message), api_pod(1))
    assert fact.reason is not None
    assert fact.reason.code is Code.POD_FAILED
    assert fact.steps is not None
    assert fact.steps.unread == told


def test_a_million_steps_are_counted_and_two_hundred_told() -> None:
    rows = [["", 1, 1, 1, 0]] * 100
    fact = end(first_pod(word(steps=1_000_000, head=rows, tail=rows), "Succeeded", 0), api_pod(1, "Succeeded"))
    assert fact.steps is not None
    assert (fact.steps.count, len(fact.steps.steps)) == (1_000_000, 200)
    assert fact.steps.steps[-1].number == 999_999
    assert len(fact.to_bytes()) < 8192


def test_a_script_puts_its_job_back_in_line_and_that_is_no_failure() -> None:
    fact = end(first_pod(word(ask="requeue", who=WHO, steps=1, head=[ROW])), api_pod(1, "Failed", exit_code=1))
    assert fact.reason == Reason(code=Code.REQUEUED_BY_SCRIPT, detail=WHO)
    assert (fact.own, fact.exit_code) == (False, None)
    assert fact.steps is not None
    assert fact.steps.count == 1


def test_a_script_cancels_its_job() -> None:
    assert end(first_pod(word(ask="cancel", who=WHO)), api_pod(1)).reason == Reason(
        code=Code.CANCELLED_BY_SCRIPT, detail=WHO
    )


@pytest.mark.parametrize(("ask", "code"), [("pause", Code.PAUSED_AS_IDLE), ("end", Code.ENDED_AS_IDLE)])
def test_a_session_has_a_last_word_without_a_runner_by_the_label_that_is_ours_to_set(ask: str, code: Code) -> None:
    pod = first_pod(word(ask=ask, who="no kernel was busy for 2h"), runner="mine")
    alone = run(job_spec(role(replicas=1)), pods=1, bound=True, started=True)
    plain = end(pod, of=alone).reason
    assert plain is not None
    assert plain.code is Code.POD_FAILED
    pod["metadata"].setdefault("labels", {})[SESSION_LABEL] = "notebook"
    assert end(pod, of=alone).reason == Reason(code=code, detail="no kernel was busy for 2h")


def test_only_the_first_pod_speaks_only_with_a_runner_and_only_where_it_failed() -> None:
    asks = word(ask="cancel")
    other = first_pod(asks)
    other["metadata"] |= {"uid": "uid-1", "name": "a-1"}
    for pods in ([api_pod(0), other], [first_pod(asks, runner="mine"), api_pod(1)]):
        reason = end(*pods).reason
        assert reason is not None
        assert reason.code is Code.POD_FAILED
    assert end(first_pod(asks, "Succeeded", 0), api_pod(1, "Succeeded")).reason is None


def test_of_a_pod_that_was_stopped_from_outside_a_wish_to_begin_anew_changes_nothing_and_a_cancel_holds() -> None:
    away = {"disrupted": "EvictionByEvictionAPI"}
    evicted = end(first_pod(word(ask="requeue"), **away), api_pod(1)).reason
    assert evicted is not None
    assert evicted.code is Code.POD_EVICTED
    cancelled = end(first_pod(word(ask="cancel"), **away), api_pod(1)).reason
    assert cancelled is not None
    assert cancelled.code is Code.CANCELLED_BY_SCRIPT


def test_an_eviction_stands_against_a_wish_to_begin_anew_and_not_against_a_cancel() -> None:
    again, cancel = (read_pod(first_pod(word(ask=ask), deleting=True)) for ask in ("requeue", "cancel"))
    peer = read_pod(api_pod(1, deleting=True))
    assert find_cancel(stopping("requeue"), [again, peer]) is None
    found = find_cancel(stopping("requeue"), [cancel, peer])
    assert found is not None
    assert found.reason is not None
    assert found.reason.code is Code.CANCELLED_BY_SCRIPT
    assert find_cancel(stopping("cancelled"), [cancel, peer]) is None
    in_notice = read_pod(first_pod(word(ask="requeue")))
    assert find_own_end(stopping("requeue"), [in_notice, read_pod(api_pod(1))]) is None


@pytest.mark.parametrize(
    ("ask", "code"), [("requeue", Code.POD_DELETED), ("cancel", Code.POD_FAILED), ("pause", Code.POD_DELETED)]
)
def test_an_older_committer_gets_what_it_can_read(ask: str, code: Code) -> None:
    fact = end(first_pod(word(ask=ask, steps=1, head=[ROW])), api_pod(1))
    assert end_for(fact, SCRIPT_WORDS_FROM) == fact
    older = end_for(fact, SCRIPT_WORDS_FROM - 1)
    assert older.steps is None
    assert older.reason is not None
    assert older.reason.code is code
