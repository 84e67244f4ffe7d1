"""What `kubectl describe pod` says: a typed code, a sentence with numbers, a way out; written when the code changes."""

from dataclasses import replace
from typing import Any

import pytest

from tessera.binder.adoption.decide.verdicts import (
    WAYS_OUT,
    Verdict,
    condition_patch,
    describe_blocked_eviction,
    describe_ended,
    describe_finding,
    describe_job,
    describe_refusal,
    make_event,
)
from tessera.domain.devices.resources import NOTHING
from tessera.domain.entities import EndedJob
from tessera.domain.work.phases import Phase
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import pod
from tests.unit.binder.binder_builders import job

Json = dict[str, Any]
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"
NO_FIT = Reason(code=Code.NO_FIT, numbers={"gpus_free": 3, "gpus_wanted": 8})


def waiting(reason: Reason = NO_FIT) -> Verdict:
    verdict = describe_job(replace(job(), reason=reason), ts=0)
    assert verdict is not None
    return verdict


def said(patch: Json | None) -> Json:
    assert patch is not None
    (condition,) = (one for one in patch["status"]["conditions"] if one["type"] == "PodScheduled")
    return dict(condition)


def test_a_waiting_jobs_pods_say_why_with_numbers_and_how_to_go_on() -> None:
    verdict = waiting()
    assert verdict.code == "NoFit"
    assert "no node has room for it now (gpus free 3, gpus wanted 8)" in verdict.message
    assert WAYS_OUT[Code.NO_FIT] in verdict.message
    assert not verdict.warning


def test_a_job_with_a_run_or_of_which_nothing_was_said_gives_no_condition() -> None:
    assert describe_job(job(), ts=0) is None
    assert describe_job(replace(job(), phase=Phase.RUNNING, reason=NO_FIT), ts=0) is None


def test_pods_after_a_failed_one_say_how_long_their_back_off_lasts() -> None:
    again = replace(job(), attempt=3, not_before=61_000, reason=Reason(code=Code.WAITING_FOR_TURN))
    verdict, later = describe_job(again, ts=1_500), describe_job(again, ts=61_000)
    assert verdict is not None
    assert (verdict.code, verdict.warning) == ("Backoff", False)
    assert "attempts 3" in verdict.message
    assert "time left 1m" in verdict.message
    assert later is not None
    assert later.code == "WaitingForTurn"


@pytest.mark.parametrize("code", [Code.ON_HOLD, Code.HELD_BY_OPERATOR])
def test_a_held_job_in_its_back_off_says_that_it_is_held(code: Code) -> None:
    held = replace(job(), not_before=61_000, held=True, reason=Reason(code=code))
    verdict = describe_job(held, ts=0)
    assert verdict is not None
    assert verdict.code == code.value


def test_a_refusal_says_all_its_reasons_under_the_code_of_the_first() -> None:
    queue, limit = Reason(code=Code.NO_SUCH_QUEUE), Reason(code=Code.EXCEEDS_JOB_LIMIT, numbers={"gpus": 9})
    verdict = describe_refusal([queue, limit])
    assert (verdict.code, verdict.warning) == ("NoSuchQueue", True)
    assert "ExceedsJobLimit" in verdict.message


@pytest.mark.parametrize(
    ("code", "warning"),
    [
        (Code.GANG_INCOMPLETE, False),
        (Code.OWNER_NOT_FOUND, False),
        (Code.GANG_DISAGREES, True),
        (Code.NOT_SUPPORTED_YET, True),
    ],
)
def test_what_one_waits_for_is_no_warning_and_what_one_has_to_change_is(code: Code, warning: bool) -> None:
    assert describe_finding(Reason(code=code)).warning is warning


def test_pods_whose_job_has_ended_are_told_how_it_ended_and_that_nothing_more_comes() -> None:
    its = job()
    ended = EndedJob(its.job_id, "lab", "default", "train", "k", "h", Phase.CANCELLED, 1, 1, NOTHING, 0, 0, 0, 0)
    verdict = describe_ended(ended)
    assert (verdict.code, verdict.warning) == ("AlreadyEnded", True)
    assert "was cancelled" in verdict.message


def test_an_eviction_that_a_budget_forbids_is_said_by_that_name() -> None:
    verdict = describe_blocked_eviction(Reason(code=Code.BLOCKED_BY_DISRUPTION_BUDGET, detail="pdb web"))
    assert (verdict.code, "pdb web" in verdict.message) == ("BlockedByDisruptionBudget", True)


def test_a_message_is_never_longer_than_an_event_may_have() -> None:
    verdict = describe_refusal([Reason(code=Code.INVALID_FIELD, detail="x" * 1024)] * 20)
    assert len(verdict.message) <= 1024


def test_the_condition_is_written_when_the_code_changes_and_not_when_the_numbers_do() -> None:
    first = condition_patch(pod(), waiting(), NOW)
    assert said(first)["reason"] == "NoFit"
    told = pod() | {"status": {"conditions": [said(first)]}}
    assert condition_patch(told, waiting(Reason(code=Code.NO_FIT, numbers={"gpus_free": 4})), LATER) is None
    assert said(condition_patch(told, waiting(Reason(code=Code.BACKOFF)), LATER))["reason"] == "Backoff"


def test_the_condition_keeps_its_transition_time_and_leaves_other_conditions_alone() -> None:
    other = {"type": "Initialized", "status": "True"}
    told = pod() | {"status": {"conditions": [other, said(condition_patch(pod(), waiting(), NOW))]}}
    patch = condition_patch(told, waiting(Reason(code=Code.BACKOFF)), LATER)
    assert said(patch)["lastTransitionTime"] == NOW
    assert patch is not None
    assert other in patch["status"]["conditions"]


def test_an_event_has_a_name_that_a_repeat_finds_and_another_for_another_code() -> None:
    one = make_event(pod(), waiting(), NOW)
    assert one == make_event(pod(), waiting(), NOW)
    names = {one["metadata"]["name"]}
    names.add(make_event(pod(), waiting(Reason(code=Code.BACKOFF)), NOW)["metadata"]["name"])
    names.add(make_event(pod(), waiting(), LATER)["metadata"]["name"])
    assert len(names) == 3
    assert (one["type"], one["reason"], one["involvedObject"]["uid"]) == ("Normal", "NoFit", "uid-train-0")


def test_an_event_is_about_the_object_that_it_is_given() -> None:
    suspended = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "t" * 253, "namespace": "lab", "uid": "u"},
    }
    event = make_event(suspended, waiting(), NOW)
    assert (event["involvedObject"]["kind"], event["involvedObject"]["apiVersion"]) == ("Job", "batch/v1")
    assert len(event["metadata"]["name"]) <= 253
