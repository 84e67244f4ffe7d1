"""When a run is absent: only by what the kubelet reported, or by a fresh list in which nothing is left."""

from dataclasses import replace
from typing import Any

import pytest

from tessera.domain.entities import Run, SurplusPod
from tessera.reclamation.absence.decide import PresenceVerdict, has_unsaid_end, judge, judge_surplus_pod, steps_of
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import GIVEN_BACK_ANNOTATION, RANK_LABEL, RUN_LABEL, has_ended
from tessera_schemas.reasons import Code, Reason
from tests.builders import job_spec, placement, role
from tests.unit.binder.binder_builders import api_pod, run
from tests.unit.binder.last_words import first_pod, word

TWO = job_spec(role(replicas=2))


def verdict(*pods: Json, permitted: int = 2) -> PresenceVerdict:
    return judge(run(TWO, pods=permitted), pods)


DONE = [api_pod(0, "Succeeded"), api_pod(1, "Failed")]

STORIES = [
    ("all permitted pods ended", DONE, 2, PresenceVerdict.ABSENT),
    ("one still runs", [api_pod(0, "Succeeded"), api_pod(1)], 2, PresenceVerdict.PRESENT),
    ("one waits, unbound", [api_pod(0, "Pending", "")], 2, PresenceVerdict.PRESENT),
    ("one is being deleted and its kubelet has not ended it", [api_pod(0, deleting=True)], 2, PresenceVerdict.PRESENT),
    (
        "one is on a node that does not answer",
        [api_pod(0, "Unknown"), api_pod(1, "Failed")],
        2,
        PresenceVerdict.PRESENT,
    ),
    ("the cache shows none", [], 2, PresenceVerdict.ASK),
    ("the cache shows one ended and not the other", DONE[:1], 2, PresenceVerdict.ASK),
    ("there was no permit, so a pod may still be on its way", [], 0, PresenceVerdict.ASK),
    ("ended pods of another life, and no permit", DONE, 0, PresenceVerdict.ASK),
    (
        "ended pods that are not the permitted ones",
        [api_pod(0, "Failed", uid="x"), api_pod(1, "Failed", uid="y")],
        2,
        PresenceVerdict.ASK,
    ),
    ("a stranger runs beside the ended ones", [*DONE, api_pod(2, uid="x")], 2, PresenceVerdict.PRESENT),
]


@pytest.mark.parametrize(("pods", "permitted", "what"), [s[1:] for s in STORIES], ids=[s[0] for s in STORIES])
def test_a_stopping_run_is_judged_by_its_pods(pods: list[Json], permitted: int, what: PresenceVerdict) -> None:
    assert verdict(*pods, permitted=permitted) is what
    assert verdict(*reversed(pods), permitted=permitted) is what


@pytest.mark.parametrize(
    ("phase", "over"),
    [("Succeeded", True), ("Failed", True), ("Running", False), ("Unknown", False), ("Pending", False)],
)
def test_only_a_terminal_phase_is_an_end(phase: str, over: bool) -> None:
    assert has_ended(api_pod(phase=phase)) is over


def test_a_pod_that_says_nothing_of_its_phase_has_not_ended() -> None:
    assert not has_ended({"metadata": {"uid": "u"}})


GROWN = run(
    TWO, pods=2, started=True, extra=(SurplusPod(placement(2), 0, "uid-2", True), SurplusPod(placement(3), 9, "", True))
)


def select_pods_of_rank(rank: int, *args: str, **more: str) -> Json:
    return api_pod(rank, *args, **more, labels={RUN_LABEL: GROWN.run_id, RANK_LABEL: str(rank)})


def test_a_run_that_grew_is_absent_when_that_is_gone_too() -> None:
    assert judge(GROWN, DONE) is PresenceVerdict.ASK
    assert judge(GROWN, [*DONE, select_pods_of_rank(2)]) is PresenceVerdict.PRESENT
    assert judge(GROWN, [*DONE, select_pods_of_rank(2, "Failed")]) is PresenceVerdict.ABSENT


@pytest.mark.parametrize(
    ("pods", "what"),
    [
        ([select_pods_of_rank(2)], PresenceVerdict.PRESENT),
        ([select_pods_of_rank(2, "Failed")], PresenceVerdict.ABSENT),
        ([select_pods_of_rank(2, "Failed", uid="other")], PresenceVerdict.ASK),
        ([select_pods_of_rank(0), select_pods_of_rank(3)], PresenceVerdict.ASK),
        ([], PresenceVerdict.ASK),
    ],
    ids=["runs", "ended", "another one of its rank ended", "only others are there", "the cache shows none"],
)
def test_a_pod_that_is_to_leave_is_judged_by_itself(pods: list[Json], what: PresenceVerdict) -> None:
    assert judge_surplus_pod(GROWN.extra[0], pods) is what


def test_a_pod_that_never_had_a_permit_may_still_be_on_its_way() -> None:
    assert judge_surplus_pod(GROWN.extra[1], [select_pods_of_rank(2, "Failed")]) is PresenceVerdict.ASK
    assert judge_surplus_pod(GROWN.extra[1], [select_pods_of_rank(3, "Pending", "")]) is PresenceVerdict.PRESENT


# -- pods that users made


def of_user(rank: int, phase: str = "Pending", node: str = "", given_back: str = "") -> Json:
    pod = api_pod(rank, phase, node, labels={})
    return pod | {"metadata": pod["metadata"] | {"annotations": {GIVEN_BACK_ANNOTATION: given_back}}}


AT = 5_000
OF_USERS = replace(run(TWO, pods=2), allocated_ts=AT)


@pytest.mark.parametrize(
    ("pods", "gone", "what"),
    [
        ([of_user(0, given_back="5000"), of_user(1, given_back="6000")], (), PresenceVerdict.ABSENT),
        ([of_user(0, given_back="4999"), of_user(1, given_back="5000")], (), PresenceVerdict.PRESENT),
        ([of_user(0), of_user(1, given_back="5000")], (), PresenceVerdict.PRESENT),
        (
            [of_user(0, "Running", "node-a", given_back="9000"), of_user(1, "Failed", "node-a")],
            (),
            PresenceVerdict.PRESENT,
        ),
        ([of_user(0, "Failed", "node-a")], (), PresenceVerdict.ASK),
        ([of_user(0, "Failed", "node-a")], ("uid-1",), PresenceVerdict.ABSENT),
        ([], ("uid-0", "uid-1", "uid-2"), PresenceVerdict.ABSENT),
        ([], ("uid-2",), PresenceVerdict.ASK),
        ([of_user(0, given_back="x" * 30), of_user(1, given_back="-5000")], (), PresenceVerdict.PRESENT),
    ],
    ids=[
        "all were given back, by this run or one since",
        "one was given back by a run before this one only",
        "one waits, and a bind that is late may still come",
        "one was bound before it was given back",
        "one may not have been seen",
        "one has ended and one was seen to go",
        "all were seen to go",
        "others were seen to go",
        "what cannot be read says nothing",
    ],
)
def test_a_permitted_pod_is_over_once_no_bind_can_reach_it(
    pods: list[Json], gone: tuple[str, ...], what: PresenceVerdict
) -> None:
    assert judge(OF_USERS, pods, gone) is what
    assert judge(OF_USERS, pods[::-1], gone) is what


def test_without_a_permit_nothing_that_went_says_anything() -> None:
    assert judge(run(TWO), [], ("uid-0", "uid-1")) is PresenceVerdict.ASK


def revoked(code: Code, **more: Any) -> Run:
    return replace(run(TWO, pods=2, started=True), revoked=Reason(code=code), then="requeue", stopped_ts=5, **more)


def pod_that(phase: str, rank: int, **meta: str) -> Json:
    pod = api_pod(rank, phase)
    return {**pod, "metadata": {**pod["metadata"], **meta}}


def unsaid(of: Run, *phases: str) -> bool:
    return has_unsaid_end(of, [pod_that(phase, rank) for rank, phase in enumerate(phases)])


def test_the_release_of_a_run_waits_for_the_word_how_it_ended_before_it_was_stopped() -> None:
    well, lost = revoked(Code.PREEMPTED), revoked(Code.NODE_LOST)
    assert unsaid(well, "Succeeded", "Succeeded")
    assert unsaid(lost, "Succeeded", "Succeeded")
    assert unsaid(well, "Succeeded", "Failed")
    assert not unsaid(lost, "Succeeded", "Failed"), "what failed beside a lost node did not fail by itself"
    assert not unsaid(well, "Succeeded")
    assert not unsaid(well, "Succeeded", "Running")


def test_it_waits_for_no_word_where_there_is_none_to_come() -> None:
    assert not unsaid(revoked(Code.POD_FAILED), "Failed", "Succeeded"), "it was said"
    assert not unsaid(revoked(Code.PREEMPTED, saved_ts=6), "Succeeded", "Succeeded"), "it saved when told, and left"
    assert unsaid(revoked(Code.PREEMPTED, saved_ts=5), "Succeeded", "Succeeded"), "it saved before it was told"
    stopped = [pod_that("Succeeded", rank, deletionTimestamp="2026-01-01T00:00:00Z") for rank in (0, 1)]
    assert not has_unsaid_end(revoked(Code.PREEMPTED), stopped)
    assert not has_unsaid_end(run(TWO, pods=2, started=True, over=True), [])


STEPS_OF_TWO = word(steps=1, **{"from": 1_764_331_200}, head=[["train", 8, 0, 60, 143]])


@pytest.mark.parametrize(
    ("code", "tells"),
    [
        (Code.CANCELLED, True),
        (Code.PREEMPTED, True),
        (Code.TIME_LIMIT, True),
        (Code.POD_FAILED, False),
        (Code.CANCELLED_BY_SCRIPT, False),
        (Code.REQUEUED_BY_SCRIPT, False),
        (None, False),
    ],
)
def test_steps_are_told_of_a_run_that_was_stopped_and_of_no_other(code: Code | None, tells: bool) -> None:
    """Of others the binder tells with their end."""
    revoked = None if code is None else Reason(code=code)
    told = steps_of(replace(run(TWO, pods=2), revoked=revoked), [api_pod(1), first_pod(STEPS_OF_TWO)])
    assert (told is not None and [step.name for step in told.steps] == ["train"]) is tells


@pytest.mark.parametrize("pods", [[], [api_pod(1)], [api_pod(0, "Failed")], [first_pod("no word of steps")]])
def test_of_a_run_whose_first_pod_left_no_word_no_steps_are_told(pods: list[Json]) -> None:
    assert steps_of(replace(run(TWO, pods=2), revoked=Reason(code=Code.CANCELLED)), pods) is None
