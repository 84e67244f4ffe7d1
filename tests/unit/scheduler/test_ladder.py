"""The ladder of a job's restarts: in place, then elsewhere, then outside of a whole rack; told in its story."""

from typing import Any

import pytest

from tessera.domain.devices.levels import unknown_levels
from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record
from tessera.engine.explain.explanation import explain
from tessera_schemas.facts import RunLost
from tessera_schemas.job import JobProgress, RetryLadder
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import RungTaken, Stalled
from tests.builders import run_absent
from tests.unit.scheduler.ladder_jobs import RACK, fail, node, running, spec, stall, told


def test_a_job_starts_again_in_place_then_elsewhere_and_then_outside_of_the_rack() -> None:
    rounds = running(RetryLadder(in_place=2, domain_after=2))
    first = node(rounds)
    assert "failure 1" in fail(rounds)
    assert "failure 2" in fail(rounds)
    assert (node(rounds), rounds.job("one").avoid) == (first, ())
    assert fail(rounds) == f"starts again elsewhere: avoids {first}"
    second = node(rounds)
    assert second != first
    assert second.startswith("r1"), "the next node of the rack"
    assert fail(rounds) == f"starts again elsewhere: failed on 2 nodes of {RACK}=r1, avoids all of it"
    assert node(rounds).startswith("r2")
    assert rounds.job("one").avoid == (first, second, f"{RACK}=r1")


def test_a_domain_to_avoid_is_better_than_none() -> None:
    rounds = running(RetryLadder(domain_after=1))
    fail(rounds)
    assert node(rounds).startswith("r2")
    fail(rounds)
    assert rounds.job("one").avoid[1::2] == (f"{RACK}=r1", f"{RACK}=r2")
    assert rounds.run("one") is not None


def test_what_a_node_did_is_never_answered_in_place() -> None:
    rounds = running(RetryLadder(in_place=5))
    first = node(rounds)
    why = Reason(code=Code.NODE_LOST, field=f"nodes.{first}")
    lost = RunLost(kind="run_lost", run_id=rounds.run("one").run_id, reason=why, nodes=(first,))
    assert told(rounds, lost) == f"starts again elsewhere: avoids {first}"
    assert node(rounds) != first


def test_without_a_ladder_nothing_is_another() -> None:
    rounds = running(None)
    first = node(rounds)
    assert fail(rounds) == ""
    assert (rounds.job("one").avoid, node(rounds) == first) == ((first,), False)


def test_without_levels_only_nodes_are_avoided() -> None:
    rounds = running(RetryLadder(domain_after=1), levels=False)
    assert fail(rounds) == "starts again elsewhere: avoids r1-0"


def test_a_level_that_nobody_configured_is_refused_by_name() -> None:
    (reason,) = unknown_levels(spec(RetryLadder(level="block")), {"rack": RACK})
    assert (reason.code, reason.field) == (Code.NO_SUCH_TOPOLOGY_LEVEL, "retry.ladder.level")
    assert unknown_levels(spec(RetryLadder(level="rack")), {"rack": RACK}) == []


RULE = JobProgress(hang_seconds=60, then="elsewhere")


def test_a_hang_climbs_the_ladder_as_a_failure_does() -> None:
    rounds = running(RetryLadder(in_place=1), progress=RULE)
    first = node(rounds)
    assert "failure 1" in told(rounds, stall(rounds))
    assert node(rounds) == first
    assert told(rounds, stall(rounds)) == f"starts again elsewhere: avoids {first}"


@pytest.mark.parametrize(
    "fact",
    [
        pytest.param({"seconds": 59}, id="too short"),
        pytest.param({"code": Code.STRAGGLES, "seconds": 1000}, id="stragglers that nobody asked for"),
    ],
)
def test_a_report_that_the_job_did_not_ask_for_changes_nothing(fact: dict[str, Any]) -> None:
    rounds = running(None, progress=RULE)
    assert rounds.commit(stall(rounds, **fact)).records == ()
    rounds = running(None)
    assert rounds.commit(stall(rounds)).records == ()


def test_a_job_whose_runs_hang_too_often_in_a_row_is_put_on_hold() -> None:
    rounds = running(None, progress=JobProgress(hang_seconds=60, then="restart"))
    rounds.configure(requeues_max=2)
    rounds.commit(stall(rounds))
    rounds.commit(run_absent(rounds.job("one").run_id))
    rounds.commit(ms=60_000)
    rounds.settle()
    rounds.commit(stall(rounds))
    rounds.commit(run_absent(rounds.job("one").run_id))
    job = rounds.job("one")
    assert (job.held, job.reason.code, job.strikes) == (True, Code.HELD_AFTER_REQUEUES, 0)


def test_explain_says_how_it_stalls_and_what_follows() -> None:
    rounds = running(RetryLadder(domain_after=2), progress=JobProgress(hang_seconds=60))

    def said() -> str:
        found = explain(rounds.state, rounds.job("one").job_id, rounds.ts)
        assert found is not None
        return " ".join(found.sentences)

    assert "none for 1m, it hangs: a warning says so" in said()
    rounds.commit(stall(rounds))
    assert "It stalls: Hung: its pods have reported no progress for too long" in said()
    assert "asks for no more than this warning" in said()


@pytest.mark.parametrize(
    "record",
    [
        RungTaken(kind="rung_taken", job_id="x" * 20, rung="in_place", count=1),
        Stalled(kind="stalled", run_id="x" * 20 + "-1"),
    ],
)
def test_records_that_the_job_did_not_ask_for_are_contradictions(record: Any) -> None:
    rounds = running(None)
    named = {"job_id": rounds.job("one").job_id} if isinstance(record, RungTaken) else {}
    named |= {"run_id": rounds.run("one").run_id} if isinstance(record, Stalled) else {}
    with pytest.raises(Contradiction):
        apply_record(rounds.state, record.model_copy(update=named), ())
