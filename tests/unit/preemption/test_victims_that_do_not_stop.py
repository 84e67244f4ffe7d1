"""A victim that never stops keeps its devices, and no longer the job that was to have them."""

from tessera.domain.work.phases import Phase
from tessera.engine.explain.explanation import explain
from tessera_schemas.facts import CancelRequested
from tessera_schemas.ledger import EarmarkEnded, Waiting
from tessera_schemas.reasons import Code
from tests.rounds import Rounds, share

STOPS_MS = 90_000
"""The grace of these jobs, and the patience of the policy."""


def stuck(**policy: object) -> Rounds:
    """Two nodes full of low jobs; an urgent one has stopped the run on one of them, which does not stop."""
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, **{"preset": "priority", **policy})  # type: ignore[arg-type]
    for key in ("one", "two"):
        rounds.submit(key, gpus=8, priority="low")
        rounds.settle()
    rounds.held_back = {rounds.run(key).run_id for key in ("one", "two")}
    rounds.submit("urgent", gpus=8, priority="urgent")
    rounds.settle()
    rounds.held_back &= {run.run_id for run in rounds.state.runs.values() if run.stopping}
    assert len(rounds.held_back) == 1
    return rounds


def victim(rounds: Rounds) -> str:
    return next(key for key in ("one", "two") if rounds.run(key).stopping)


def test_another_plan_is_made_around_it_once_its_notice_grace_and_patience_are_over() -> None:
    rounds = stuck()
    key = victim(rounds)
    rounds.commit(ms=STOPS_MS - 5_000)
    rounds.settle()
    assert (rounds.run("urgent"), len(rounds.plans)) == (None, 1)
    rounds.commit(ms=6_000)
    rounds.settle()
    assert rounds.running("urgent")
    assert len(rounds.plans) == 2
    (held,) = rounds.held_back
    run = rounds.state.runs.get(held)
    assert run is not None, "its devices are not free"
    (node,) = {placement.node for placement in run.placements}
    assert rounds.run("urgent").placements[0].node != node
    assert rounds.job(key).phase is Phase.EVICTING


def test_both_are_told_and_both_explanations_say_so() -> None:
    rounds = stuck()
    key, urgent = victim(rounds), rounds.job("urgent").job_id
    message = rounds.commit(ms=STOPS_MS + 1_000)
    (ended,) = [record for record in message.records if isinstance(record, EarmarkEnded)]
    assert (ended.owner, ended.why) == (urgent, "stuck")
    told = [record for record in message.records if isinstance(record, Waiting)]
    told = [record for record in told if record.reason.code is Code.DOES_NOT_STOP]
    assert {record.job_id for record in told} == {urgent, rounds.job(key).job_id}
    assert all(record.reason.numbers["stopping_seconds"] >= STOPS_MS // 1000 for record in told)
    rounds.round(plans=False)
    answer = explain(rounds.state, urgent, rounds.ts)
    assert answer is not None
    assert any("told to stop and do not" in sentence for sentence in answer.sentences)
    answer = explain(rounds.state, rounds.job(key).job_id, rounds.ts)
    assert answer is not None
    assert any("should have been gone" in sentence for sentence in answer.sentences)


def test_a_run_that_stops_late_is_evicted_once_and_starts_again() -> None:
    rounds = stuck()
    key = victim(rounds)
    rounds.commit(ms=STOPS_MS + 1_000)
    rounds.settle()
    rounds.held_back = set()
    rounds.finish("urgent")
    rounds.settle()
    assert rounds.running("one", "two")
    assert rounds.job(key).evictions == 1


def test_no_plan_is_given_up_during_a_long_notice() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority")
    for key in ("one", "two"):
        rounds.submit(key, gpus=8, priority="low", checkpoint={"interval_seconds": 60, "notice_seconds": 300})
        rounds.settle()
    rounds.held_back = {rounds.run(key).run_id for key in ("one", "two")}
    rounds.submit("urgent", gpus=8, priority="urgent")
    rounds.settle()
    rounds.commit(ms=380_000)
    rounds.settle()
    assert len(rounds.plans) == 1
    rounds.commit(ms=20_000)
    rounds.settle()
    assert len(rounds.plans) == 2


def test_room_under_a_run_that_was_stopping_before_the_plan_is_given_up_too() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority")
    for key in ("one", "two"):
        rounds.submit(key, gpus=8, priority="low", cpu_milli=1000)
        rounds.settle()
    rounds.submit("small", gpus=4, priority="low")
    rounds.held_back = {rounds.run("one").run_id}
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=rounds.job("one").job_id))
    rounds.submit("urgent", gpus=8, pods=2, priority="urgent")
    rounds.settle()
    assert rounds.state.earmarks.get(rounds.job("urgent").job_id) is not None
    message = rounds.commit(ms=STOPS_MS + 1_000)
    assert [record.why for record in message.records if isinstance(record, EarmarkEnded)] == ["stuck"]


def test_lent_quota_that_does_not_come_back_is_taken_from_another() -> None:
    queues = (share("all", 0, parent=None), share("a", 8), share("b", 8))
    rounds = Rounds(*queues, nodes={"node-a": 8, "node-b": 8})
    for key in ("one", "two"):
        rounds.submit(key, gpus=8, queue="b")
        rounds.settle()
    rounds.held_back = {rounds.run(key).run_id for key in ("one", "two")}
    rounds.submit("owner", gpus=8, queue="a")
    rounds.settle()
    assert len(rounds.plans) == 1
    rounds.held_back &= {run.run_id for run in rounds.state.runs.values() if run.stopping}
    rounds.commit(ms=STOPS_MS + 1_000)
    rounds.settle()
    assert rounds.running("owner")


def test_a_run_whose_surplus_does_not_stop_goes_on_and_waits_for_nothing() -> None:
    """Its job was told in the ledger that it waits, since 1970."""
    rounds = Rounds(nodes={"node-a": 8}, preset="priority", grow_after_seconds=0)
    rounds.submit("elastic", gpus=1, max_replicas=8, priority="low")
    rounds.settle()
    rounds.held_back = {rounds.run("elastic").run_id}
    rounds.submit("urgent", gpus=4, priority="urgent")
    rounds.settle()
    urgent, elastic = rounds.job("urgent").job_id, rounds.job("elastic").job_id
    message = rounds.commit(ms=STOPS_MS + 1_000)
    assert [record.why for record in message.records if isinstance(record, EarmarkEnded)] == ["stuck"]
    told = [record for record in message.records if isinstance(record, Waiting)]
    told = [record for record in told if record.reason.code is Code.DOES_NOT_STOP]
    assert [record.job_id for record in told] == [urgent]
    assert STOPS_MS // 1000 <= told[0].reason.numbers["stopping_seconds"] < 2 * STOPS_MS // 1000
    answer = explain(rounds.state, elastic, rounds.ts)
    assert answer is not None
    assert any(sentence.startswith("They were told to stop") for sentence in answer.sentences)
