"""Moves that ask: a run is offered the move, answers or keeps silent, and what was planned is planned anew then."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.moves.offers import MovedRuns
from tessera.domain.storing.fast import replace
from tessera.domain.storing.snapshot import dump, load
from tessera.engine.defragmentation.budgets import MovesLeft
from tessera.engine.defragmentation.offers import AGREED_MS
from tessera.engine.defragmentation.search import defragmentation
from tessera.engine.explain.explanation import explain
from tessera.engine.preemption.plans import Plan, proposal
from tessera.kernel.service.metrics import Metrics
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.facts import AnyFact, CancelRequested, CheckpointReported, CheckpointSaved, MoveReplied
from tessera_schemas.ledger import (
    LEDGER_MESSAGE,
    EarmarkSet,
    LedgerMessage,
    MoveAnswered,
    MoveOffered,
    MoveScored,
    MoveWithdrawn,
    PlanRefused,
    Revoked,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.lending import WeekHours
from tessera_schemas.shard.moves import Moves
from tests.rounds import Rounds
from tests.scattered import HOUR_MS, scattered, stuck


def asked(**moves: Any) -> Rounds:
    """`a` and `b` are asked to move for `gang`, and have a minute."""
    rounds = stuck(scattered(move_answer_seconds=60, moves=Moves(**moves)))
    rounds.round()
    assert offers(rounds) == {"a": "", "b": ""}
    return rounds


def offers(rounds: Rounds) -> dict[str, str]:
    """How each run that was asked has answered, by the name of its job; "" while it has not."""
    return {rounds.name(row.run_id.rpartition("-")[0]): row.how for row in rounds.state.moves.values()}


def reply(rounds: Rounds, key: str, accept: bool, tenant: str = "lab", attempt: int = 0) -> MoveReplied:
    job = rounds.job(key).job_id
    return MoveReplied(kind="move_replied", job_id=job, accept=accept, tenant=tenant, attempt=attempt)


def saved(rounds: Rounds, key: str) -> CheckpointSaved:
    return CheckpointSaved(kind="checkpoint_saved", run_id=rounds.run(key).run_id, path="/data/1")


def of(kind: type, message: LedgerMessage) -> list[Any]:
    return [record for record in message.records if isinstance(record, kind)]


def whole(rounds: Rounds) -> None:
    """Replay makes every decision again, the rules hold, and the state is stored and read back."""
    assert verify(rounds.stored).findings == []
    report = Report()
    check_rules(report, rounds.stored)
    assert report.violations == []
    restored = load(iter(list(dump(rounds.state))))
    assert list(restored.moves.items()) == list(rounds.state.moves.items())


def test_a_plan_asks_first_and_stops_nobody() -> None:
    rounds = stuck(scattered(move_answer_seconds=60))
    job, found = rounds.job("gang"), defragmentation(rounds.state, rounds.job("gang"), rounds.ts)
    assert isinstance(found, Plan)
    message = rounds.commit(proposal(rounds.state, found, rounds.ts), ms=0)
    made = of(MoveOffered, message)
    assert {r.run_id for r in made} == {rounds.run(key).run_id for key in ("a", "b")}
    assert {(r.by, r.deadline - rounds.ts) for r in made} == {(job.job_id, 60_000)}
    assert {r.net_gpu_seconds for r in made} == {found.net_gpu_seconds}
    assert all(r.lost_gpu_seconds > 3600 for r in made)
    assert of(Revoked, message) == of(EarmarkSet, message) == []
    whole(rounds)


def test_nobody_plans_for_the_job_while_answers_are_to_come() -> None:
    rounds = asked()
    why = defragmentation(rounds.state, rounds.job("gang"), rounds.ts)
    assert isinstance(why, Reason)
    assert (why.code, why.numbers["runs"]) == (Code.MOVE_OFFERED, 2)
    rounds.settle()
    assert rounds.running("a", "b")


@pytest.mark.parametrize("how", ["accepted", "checkpoint", "reported", "silence"])
def test_who_agrees_saves_its_work_or_keeps_silent_moves(how: str) -> None:
    rounds = asked()
    facts: list[AnyFact] = []
    for key in ("a", "b") if how != "silence" else ():
        job = rounds.job(key).job_id
        told = CheckpointReported(kind="checkpoint_reported", job_id=job, tenant="lab", path="/data/1")
        facts.append({"accepted": reply(rounds, key, True), "checkpoint": saved(rounds, key)}.get(how, told))
    message = rounds.commit(*facts, ms=61_000 if how == "silence" else 1_000)
    said = {"reported": "checkpoint"}.get(how, how)
    assert [(r.how, r.moves) for r in of(MoveAnswered, message)] == [(said, True)] * 2
    rounds.settle()
    assert rounds.running("gang", "a", "b", "c")
    assert {rounds.run(key).attempt for key in ("a", "b")} == {2}
    assert offers(rounds) == {}
    assert rounds.refusals == []
    whole(rounds)


def test_a_fresh_checkpoint_makes_the_move_cost_less() -> None:
    rounds = asked()
    rounds.commit(saved(rounds, "a"), saved(rounds, "b"))
    rounds.settle()
    reasons = [r.reason for m in rounds.plans for r in of(Revoked, m)]
    assert [reason.code for reason in reasons] == [Code.DEFRAGMENTED] * 2
    assert all(reason.numbers["lost_gpu_seconds"] < 600 for reason in reasons)


def test_a_veto_stands_for_as_long_as_the_policy_says_and_the_gang_waits() -> None:
    rounds = asked(veto_seconds=7200)
    rounds.commit(reply(rounds, "a", False), reply(rounds, "b", True))
    rounds.settle()
    assert rounds.running("a", "b")
    rounds.commit(ms=AGREED_MS)
    assert offers(rounds) == {"a": "vetoed"}
    rounds.commit(ms=7_000_000)
    rounds.settle()
    assert rounds.running("a", "b", "c")
    rounds.commit(ms=300_000)
    rounds.round()
    assert offers(rounds) == {"a": "", "b": ""}
    whole(rounds)


def test_a_word_may_be_taken_back_until_the_run_is_stopped() -> None:
    rounds = asked()
    rounds.commit(reply(rounds, "a", True))
    rounds.commit(reply(rounds, "a", False))
    assert offers(rounds) == {"a": "vetoed", "b": ""}
    rounds.commit(reply(rounds, "a", True), reply(rounds, "b", True))
    rounds.settle()
    assert rounds.running("gang", "a", "b")


def test_a_checkpoint_takes_no_veto_back() -> None:
    rounds = asked()
    rounds.commit(reply(rounds, "a", False))
    rounds.commit(saved(rounds, "a"))
    assert offers(rounds)["a"] == "vetoed"


def test_silence_means_to_stay_where_the_policy_says_so() -> None:
    rounds = asked(silence="stay")
    message = rounds.commit(ms=61_000)
    assert [(r.how, r.moves) for r in of(MoveAnswered, message)] == [("silence", False)] * 2
    rounds.settle()
    assert rounds.running("a", "b")
    whole(rounds)


def test_answers_of_others_and_of_earlier_attempts_count_for_nothing() -> None:
    rounds = asked()
    message = rounds.commit(
        reply(rounds, "a", False, tenant="other"), reply(rounds, "a", False, attempt=7), reply(rounds, "c", False)
    )
    assert of(MoveAnswered, message) == []
    assert offers(rounds) == {"a": "", "b": ""}


@pytest.mark.parametrize("end", ["the gang goes", "a run ends"])
def test_an_offer_ends_with_the_job_that_waits_and_with_its_run(end: str) -> None:
    rounds = asked()
    if end == "the gang goes":
        job = rounds.job("gang").job_id
        message = rounds.commit(CancelRequested(kind="cancel_requested", job_id=job))
        assert [r.reason.code for r in of(MoveWithdrawn, message)] == [Code.MOVE_NOT_NEEDED] * 2
        assert offers(rounds) == {}
    else:
        rounds.finish("a")
        assert "a" not in offers(rounds)
    whole(rounds)


def test_who_agreed_is_let_go_with_a_reason_once_no_plan_needs_it() -> None:
    rounds = asked()
    rounds.commit(reply(rounds, "a", True), reply(rounds, "b", False))
    message = rounds.commit(ms=AGREED_MS)
    withdrawn = of(MoveWithdrawn, message)
    assert [(r.run_id, r.reason.code) for r in withdrawn] == [(rounds.run("a").run_id, Code.MOVE_NOT_NEEDED)]


def test_a_move_that_gains_nothing_any_more_is_withdrawn_as_such() -> None:
    rounds = asked(silence="move")
    rounds.commit(reply(rounds, "a", True), reply(rounds, "b", True))
    rounds.configure(defragment_min_gain_gpu_seconds=10**9)
    message = rounds.commit(ms=AGREED_MS)
    assert {r.reason.code for r in of(MoveWithdrawn, message)} == {Code.NO_NET_GAIN}


def test_a_run_that_is_asked_for_one_job_is_asked_for_no_other() -> None:
    rounds = asked()
    rounds.submit("gang-2", gpus=8)
    rounds.round(plans=False)
    rounds.commit(ms=30_000)
    found = defragmentation(rounds.state, rounds.job("gang-2"), rounds.ts + 3_600_000)
    assert isinstance(found, Reason)


def test_without_time_to_answer_runs_move_with_their_notice_alone() -> None:
    rounds = stuck(scattered(move_answer_seconds=0))
    rounds.settle()
    assert rounds.running("gang", "a", "b")
    whole(rounds)


def test_time_in_which_nobody_looked_is_no_silence() -> None:
    rounds = asked()
    gap_ended = rounds.ts + 59_000
    message = rounds.commit(ms=61_000, starts_since=gap_ended)
    assert of(MoveAnswered, message) == []
    assert len(of(MoveAnswered, rounds.commit(ms=59_000, starts_since=gap_ended))) == 2


def test_explain_says_whom_the_gang_waits_for_and_what_the_asked_may_say() -> None:
    rounds = asked()
    gang = explain(rounds.state, rounds.job("gang").job_id, rounds.ts)
    assert gang is not None
    said = " ".join(gang.sentences)
    assert "A move of 2 runs is near, to make room for it in one piece." in said
    assert f"Job a ({rounds.job('a').job_id}) is asked, and answers by 2025-10-09" in said
    theirs = explain(rounds.state, rounds.job("gang").job_id, rounds.ts, viewer="other")
    assert theirs is not None
    assert rounds.job("a").job_id not in " ".join(theirs.sentences)
    one = explain(rounds.state, rounds.job("a").job_id, rounds.ts)
    assert one is not None
    assert f"`tessera move {rounds.job('a').job_id} --accept` or `--veto`" in " ".join(one.sentences)
    assert "else it moves" in " ".join(one.sentences)
    rounds.commit(reply(rounds, "a", True), reply(rounds, "b", False))
    gang = explain(rounds.state, rounds.job("gang").job_id, rounds.ts)
    assert gang is not None
    assert ") has agreed." in " ".join(gang.sentences)
    assert ") was asked, and stays." in " ".join(gang.sentences)


def hours(rounds: Rounds, first: int, last: int) -> WeekHours:
    """Hours of any day, from so many after the shard's now to so many."""
    at = [f"{(datetime.fromtimestamp(rounds.ts / 1000, UTC).hour + each) % 24:02}:00" for each in (first, last)]
    return WeekHours(hours="-".join(at))


def test_runs_are_asked_in_the_hours_of_the_policy_alone() -> None:
    rounds = stuck(scattered(move_answer_seconds=60))
    rounds.configure(moves=Moves(windows=(hours(rounds, 2, 3),)))
    why = defragmentation(rounds.state, rounds.job("gang"), rounds.ts)
    assert isinstance(why, Reason)
    assert why.code is Code.OUTSIDE_MOVE_WINDOW
    gang = explain(rounds.state, rounds.job("gang").job_id, rounds.ts)
    assert gang is not None
    begins = hours(rounds, 2, 3).hours[:5]
    assert f"{begins} (UTC+00:00) on." in next(each for each in gang.sentences if each.startswith("Runs are asked"))
    rounds.settle()
    assert offers(rounds) == {}
    rounds.commit(ms=2 * HOUR_MS)
    rounds.round()
    assert set(offers(rounds)) == {"a", "b"}
    whole(rounds)


def test_who_agreed_within_the_hours_moves_after_them() -> None:
    rounds = asked()
    rounds.commit(reply(rounds, "a", True), reply(rounds, "b", True))
    rounds.configure(moves=Moves(windows=(hours(rounds, 2, 3),)))
    rounds.settle()
    assert rounds.running("gang", "a", "b")
    assert rounds.job("a").attempt == 2
    whole(rounds)


def test_a_plan_that_comes_when_the_hours_are_over_is_refused() -> None:
    rounds = stuck(scattered(move_answer_seconds=60))
    found = defragmentation(rounds.state, rounds.job("gang"), rounds.ts)
    assert isinstance(found, Plan)
    late = proposal(rounds.state, found, rounds.ts)
    rounds.configure(moves=Moves(windows=(hours(rounds, 2, 3),)))
    assert [r.reason.code for r in of(PlanRefused, rounds.commit(late, ms=0))] == [Code.OUTSIDE_MOVE_WINDOW]


@pytest.mark.parametrize(
    ("budget", "may"),
    [
        pytest.param({"per_tenant_week": 1}, False, id="one move, and two are needed"),
        pytest.param({"per_tenant_week": 2}, True, id="two moves"),
        pytest.param({"lost_gpu_seconds_per_tenant_week": 1}, False, id="next to no loss"),
        pytest.param({"lost_gpu_seconds_per_tenant_week": 10**6}, True, id="loss enough"),
    ],
)
def test_no_more_of_a_tenant_moves_in_a_week_than_its_budget_has(budget: dict[str, int], may: bool) -> None:
    rounds = stuck(scattered(moves=Moves(**budget)))
    rounds.settle()
    assert rounds.running("a", "b")
    assert rounds.running("gang") is may
    if may:
        assert [(row.tenant, row.moves) for row in rounds.state.moved.values()] == [("lab", 2)]
    whole(rounds)


def test_a_plan_beyond_the_budget_is_refused_and_explain_says_that_it_is_spent() -> None:
    rounds = stuck(scattered(moves=Moves(per_tenant_week=2)))
    found = defragmentation(rounds.state, rounds.job("gang"), rounds.ts)
    assert isinstance(found, Plan)
    late = proposal(rounds.state, found, rounds.ts)
    rounds.configure(moves=Moves(per_tenant_week=1))
    assert [r.reason.code for r in of(PlanRefused, rounds.commit(late, ms=0))] == [Code.MOVE_BUDGET_SPENT]
    rounds.configure(moves=Moves(per_tenant_week=2))
    rounds.settle()
    rounds.submit("next", gpus=8)
    rounds.round(plans=False)
    told = explain(rounds.state, rounds.job("next").job_id, rounds.ts)
    assert told is not None
    assert "No run of tenant lab is moved for it before 2025-10-13 00:00:00 UTC" in " ".join(told.sentences)
    theirs = explain(rounds.state, rounds.job("next").job_id, rounds.ts, viewer="other")
    assert theirs is not None
    assert "tenant lab" not in " ".join(theirs.sentences)
    whole(rounds)


def test_a_new_week_has_its_budget_whole() -> None:
    row = MovedRuns("lab", 7).counting(7, 1, 30).counting(7, 1, 30)
    assert (row.moves, row.lost_gpu_seconds) == (2, 60)
    assert row.counting(8, 1, 5) == MovedRuns("lab", 8, 1, 5)
    assert row.counting(7, -1, -30) == MovedRuns("lab", 7, 1, 30)


def test_what_is_asked_for_another_job_counts_against_the_budget() -> None:
    rounds = asked(per_tenant_week=2)
    other = replace(rounds.job("gang"), job_id="another")
    left = MovesLeft(rounds.state, other)
    assert left.is_spent("lab")
    assert not MovesLeft(rounds.state, rounds.job("gang")).is_spent("lab")


def scores(rounds: Rounds) -> list[MoveScored]:
    messages = [LEDGER_MESSAGE.validate_json(data) for data in rounds.stored]
    return [record for message in messages for record in of(MoveScored, message)]


def test_moves_are_scored_when_their_job_starts_by_what_was_foretold_and_what_came() -> None:
    rounds = stuck(scattered())
    found = defragmentation(rounds.state, rounds.job("gang"), rounds.ts)
    assert isinstance(found, Plan)
    rounds.settle()
    (score,) = scores(rounds)
    assert score.job_id == rounds.job("gang").job_id
    assert score.predicted_gain_gpu_seconds - score.predicted_lost_gpu_seconds >= found.net_gpu_seconds
    waited = score.predicted_gain_gpu_seconds - score.gained_gpu_seconds
    assert 8 <= waited <= 8 * 20  # eight GPUs, and some seconds until all had stopped and it had started
    assert 0 < score.lost_gpu_seconds < score.predicted_lost_gpu_seconds  # they ran again sooner than in five minutes
    assert not rounds.state.move_plans
    whole(rounds)


def test_what_a_run_saves_while_it_stops_is_not_lost() -> None:
    rounds = stuck(scattered())
    rounds.held_back = {rounds.run(key).run_id for key in ("a", "b")}
    rounds.round()
    for key in ("a", "b"):
        rounds.commit(saved(rounds, key))
    rounds.held_back = set()
    rounds.settle()
    assert scores(rounds)[0].lost_gpu_seconds < 60
    whole(rounds)


def test_moves_for_a_job_that_goes_have_gained_nothing() -> None:
    rounds = stuck(scattered())
    rounds.held_back = {rounds.run(key).run_id for key in ("a", "b")}
    rounds.round()
    job = rounds.job("gang").job_id
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=job))
    (score,) = scores(rounds)
    assert (score.gained_gpu_seconds, score.predicted_gain_gpu_seconds > 0) == (0, True)
    whole(rounds)


def test_a_score_is_counted_as_a_metric() -> None:
    metrics = Metrics("scheduler")
    metrics.moves_scored({"predicted_gain_gpu_seconds": 90, "gained_gpu_seconds": 60})
    shown = metrics.registry.get_sample_value("tessera_moves_gpu_seconds_total", {"what": "gained"})
    assert shown == 60
