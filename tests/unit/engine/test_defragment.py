"""Defragmentation: jobs that move so that one that waits finds its room in one piece, and only when that gains."""

from copy import copy
from typing import Any

import pytest

from tessera.client.commands.jobs.preempt import plan_lines, planned
from tessera.client.ledger.replay import verify
from tessera.domain.storing.fast import replace
from tessera.engine.defragmentation.relocations import GPU_SECOND, gained, may_move
from tessera.engine.defragmentation.search import defragmentation
from tessera.engine.preemption.plans import Plan, proposal
from tessera.testkit.checker.report import Report
from tessera.testkit.checker.story import Story
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.config import Queue
from tessera_schemas.facts import CancelRequested, CheckpointSaved, DrainRequested, HoldRequested, Move
from tessera_schemas.ledger import EarmarkSet, PlanRefused, Revoked
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, config_proposed, job_spec, node_seen, role
from tests.ledgers import rechain
from tests.rounds import Rounds, share
from tests.scattered import HOUR_MS, scattered, stuck


def plan(rounds: Rounds, key: str = "gang") -> Plan | Reason:
    return defragmentation(rounds.state, rounds.job(key), rounds.ts)


def made(rounds: Rounds, key: str = "gang") -> Plan:
    found = plan(rounds, key)
    assert isinstance(found, Plan), found
    return found


def why_not(rounds: Rounds, key: str = "gang") -> Reason:
    found = plan(rounds, key)
    assert isinstance(found, Reason), found
    return found


def moved(rounds: Rounds) -> dict[str, list[str]]:
    """Of each job that the plan for `gang` moves, the nodes that it goes on to."""
    return {
        rounds.name(move.run_id.rsplit("-", 1)[0]): [place.node for place in move.placements]
        for move in made(rounds).moves
    }


def test_relocating_two_runs_starts_a_job_of_eight_gpus_and_both_go_on_where_promised() -> None:
    rounds = stuck(scattered())
    assert moved(rounds) == {"a": ["node-b"], "b": ["node-b"]}
    promised = {move.run_id.rsplit("-", 1)[0]: move.placements for move in made(rounds).moves}
    rounds.settle()
    assert rounds.running("gang", "a", "b", "c")
    assert rounds.run("gang").placements[0].node == "node-a"
    for key in ("a", "b"):
        assert rounds.run(key).placements == promised[rounds.job(key).job_id]
        assert rounds.run(key).attempt == 2
    assert rounds.refusals == []
    assert verify(rounds.stored).findings == []


def test_the_next_place_of_a_run_is_kept_in_the_message_that_stops_it() -> None:
    rounds = stuck(scattered())
    made_plan = made(rounds)
    message = rounds.commit(proposal(rounds.state, made_plan, rounds.ts), ms=0)
    stopped = {r.run_id.rsplit("-", 1)[0] for r in message.records if isinstance(r, Revoked)}
    kept = {r.owner for r in message.records if isinstance(r, EarmarkSet)}
    assert stopped == {rounds.job("a").job_id, rounds.job("b").job_id}
    assert kept == stopped | {rounds.job("gang").job_id}


def test_each_starts_again_as_soon_as_its_own_pods_are_gone_whatever_the_others_take() -> None:
    rounds = stuck(scattered())
    rounds.held_back = {rounds.run("b").run_id}
    rounds.settle()
    assert rounds.running("a")
    assert not rounds.running("gang")
    rounds.held_back = set()
    rounds.settle()
    assert rounds.running("gang", "b")


def test_nothing_moves_unless_the_policy_says_so() -> None:
    rounds = stuck(scattered(defragment=False))
    assert why_not(rounds).code is Code.NOT_ALLOWED_BY_PRESET
    rounds.settle()
    assert rounds.plans == []


def test_nothing_moves_before_the_job_has_lost_more_by_waiting_than_the_moved_would_lose() -> None:
    """Two GPUs for an hour and a bit, and five minutes of each for the restart, against eight GPUs that wait."""
    rounds = stuck(scattered(), hours=0)
    assert why_not(rounds).code is Code.NO_NET_GAIN
    rounds.commit(ms=15 * 60_000)
    assert why_not(rounds).code is Code.NO_NET_GAIN
    rounds.commit(ms=15 * 60_000)
    assert made(rounds).net_gpu_seconds > 0


def test_the_net_gain_is_what_was_lost_by_waiting_less_what_the_moved_lose() -> None:
    rounds = stuck(scattered())
    state, gang = rounds.state, rounds.job("gang")
    gained = 8 * (rounds.ts - gang.told_ts)
    lost = sum(rounds.ts - rounds.run(key).started_ts + 300_000 for key in ("a", "b"))
    assert made(rounds).net_gpu_seconds == (gained - lost) * 1000 // GPU_SECOND
    assert proposal(state, made(rounds), rounds.ts).net_gpu_seconds == made(rounds).net_gpu_seconds


def test_a_least_gain_can_be_asked_for() -> None:
    net = made(stuck(scattered())).net_gpu_seconds
    assert made(stuck(scattered(defragment_min_gain_gpu_seconds=net)))
    reason = why_not(stuck(scattered(defragment_min_gain_gpu_seconds=net + 1)))
    assert reason.code is Code.NO_NET_GAIN


def test_where_even_the_cheapest_run_loses_too_much_its_loss_is_said_as_the_least() -> None:
    """Two runs would have to move; which, nobody has searched."""
    rounds = stuck(scattered(), hours=0)
    numbers = why_not(rounds).numbers
    assert numbers["lost_gpu_seconds_at_least"] > numbers["gained_gpu_seconds"]
    assert "lost_gpu_seconds" not in numbers


def test_whoever_asks_is_told_what_the_plan_loses_and_not_what_its_cheapest_run_does() -> None:
    rounds = stuck(scattered(), hours=0)
    lost = sum(rounds.ts - rounds.run(key).started_ts + 300_000 for key in ("a", "b"))
    told = planned(rounds.state, rounds.job("gang"), rounds.ts)
    assert isinstance(told, Reason)
    assert told.numbers["lost_gpu_seconds"] == -(-lost // 1000)
    assert "lost_gpu_seconds_at_least" not in told.numbers


def test_work_that_was_saved_is_not_lost_so_that_its_job_moves_sooner() -> None:
    rounds = stuck(scattered(), hours=0)
    rounds.commit(ms=3 * 60_000)
    assert why_not(rounds).code is Code.NO_NET_GAIN
    for key in ("a", "b"):
        rounds.commit(CheckpointSaved(kind="checkpoint_saved", run_id=rounds.run(key).run_id))
    assert made(rounds)


def test_the_cheapest_move_is_taken_wherever_it_is() -> None:
    """Any one of three would do: each leaves one of three nodes. The one that has saved its work goes."""
    rounds = Rounds(nodes={f"node-{n}": 4 for n in range(3)}, preset="off", defragment=True)
    for number in range(3):
        rounds.submit(f"j{number}", gpus=2, cpu_milli=30_000)
        rounds.submit(f"full{number}", gpus=2, cpu_milli=30_000)
        rounds.settle()
    for number in range(3):
        rounds.finish(f"full{number}")
    rounds.commit(ms=HOUR_MS)
    rounds.commit(CheckpointSaved(kind="checkpoint_saved", run_id=rounds.run("j1").run_id))
    stuck(rounds, gpus=4)
    assert list(moved(rounds)) == ["j1"]
    rounds.settle()
    assert rounds.running("gang", "j0", "j1", "j2")


@pytest.mark.parametrize(
    ("policy", "more", "code"),
    [
        pytest.param({"min_runtime_seconds": 86_400}, {}, Code.NO_FIT, id="too young"),
        pytest.param({"evictions_max": 0}, {}, Code.NO_FIT, id="its budget is spent"),
        pytest.param({}, {"priority": "low"}, Code.NO_FIT, id="of a higher class than the job that waits"),
        pytest.param({"defragment_moves_max": 1}, {}, Code.NO_NET_GAIN, id="too many, and one alone is too dear"),
    ],
)
def test_who_may_not_move_stays(policy: dict[str, Any], more: dict[str, Any], code: Code) -> None:
    rounds = stuck(scattered(**policy), **more)
    assert why_not(rounds).code is code
    rounds.settle()
    assert rounds.plans == []


def test_a_run_that_finds_no_room_elsewhere_stays() -> None:
    rounds = scattered()
    rounds.submit("fills", gpus=2, preemptible=False)
    rounds.settle()
    assert rounds.run("fills").placements[0].node == "node-b"
    assert why_not(stuck(rounds)).code is Code.NO_FIT


def test_a_run_moves_within_its_node_when_that_is_enough() -> None:
    """Two halves on two GPUs: put on one they leave one whole."""
    rounds = Rounds(nodes=[node_seen("node-a", 2, device_profile="plugin")], preset="off", defragment=True)
    for key in ("x", "y", "z"):
        rounds.commit(admitted(key, job_spec(role(gpus=0, gpu_milli=500), name=key)))
    rounds.settle()
    rounds.finish("x")
    rounds.commit(ms=60_000)
    stuck(rounds, gpus=1)
    assert len(made(rounds).moves) == 1
    rounds.settle()
    assert rounds.running("gang", "y", "z")


def test_an_elastic_run_that_has_grown_stays_since_it_would_lose_what_it_grew_by() -> None:
    rounds = scattered(grow_after_seconds=0)
    rounds.finish("b")
    rounds.submit("elastic", gpus=1, max_replicas=2)
    rounds.settle()
    rounds.commit()
    stuck(rounds)
    grown = [run for run in rounds.state.runs.values() if run.extra]
    assert all(may_move(rounds.state, rounds.job("gang"), run) is not None for run in grown)
    assert [rounds.state.jobs.get(run.job_id).name for run in grown] == ["elastic"]


def test_a_run_of_a_queue_that_has_less_quota_by_now_stays_since_it_could_not_start_again() -> None:
    rounds = scattered(Queue(name="research"), share("other", 2, parent=None), queue="other")
    rules = rounds.state.config.body.model_copy(
        update={"queues": (Queue(name="research"), share("other", 1, parent=None))}
    )
    rounds.commit(config_proposed(rules, expected_version=1))
    assert why_not(stuck(rounds)).code is Code.NO_NET_GAIN  # only `c` is left, which is too dear


def test_a_drained_node_is_nobodys_next_place() -> None:
    rounds = scattered()
    rounds.commit(DrainRequested(kind="drain_requested", node="node-b"))
    stuck(rounds)
    assert why_not(rounds).code is Code.NO_FIT


def test_a_job_that_waits_for_quota_has_lost_nothing_that_moves_would_bring() -> None:
    rounds = stuck(scattered(share("research", 14, parent=None)))
    assert why_not(rounds).code is Code.NOT_WAITING


def test_jobs_of_other_queues_of_the_pool_move_too_and_their_quota_stays_their_own() -> None:
    rounds = scattered(Queue(name="research"), share("other", 2, parent=None), queue="other")
    stuck(rounds)
    rounds.settle()
    assert rounds.running("gang", "a", "b")
    assert rounds.state.held_by_queue("other").gpu_milli == 2000


def reserved(rounds: Rounds, seconds: int) -> Rounds:
    """`gang` was told that room is reserved for it from then on."""
    gang, at = rounds.job("gang"), rounds.ts + seconds * 1000
    reason = Reason(code=Code.RESERVED, numbers={"from_ts": at, "seconds": seconds})
    rounds.state.put_job(replace(gang, reason=reason, told_ts=rounds.ts))
    return rounds


def test_where_room_is_reserved_the_gain_is_the_time_until_then() -> None:
    rounds = reserved(stuck(scattered(backfill="reserve"), hours=0), 7200)
    assert gained(rounds.state, rounds.job("gang")) == 8000 * 7_200_000
    assert made(rounds).moves
    assert why_not(reserved(rounds, 60)).code is Code.NO_NET_GAIN


def test_a_job_without_anybody_behind_it_gains_the_time_until_room_comes_by_itself() -> None:
    """Two runs of 24 hours on two nodes, and a job for most of a node that nobody is behind."""
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="off", defragment=True, backfill="reserve")
    rounds.submit("a", gpus=5, time_limit_seconds=86_400)
    rounds.submit("b", gpus=4, time_limit_seconds=86_400)
    rounds.settle()
    assert {run.placements[0].node for run in rounds.state.runs.values()} == {"node-a", "node-b"}
    rounds.submit("gang", gpus=7)
    rounds.round(plans=False)
    assert rounds.job("gang").reason.code is Code.NO_FIT  # type: ignore[union-attr]
    assert gained(rounds.state, rounds.job("gang")) > 7000 * 20 * HOUR_MS


def test_a_reserved_start_that_has_passed_says_nothing_and_the_wait_so_far_counts_again() -> None:
    rounds = reserved(stuck(scattered(backfill="reserve"), hours=0), 60)
    now = copy(rounds.state)
    now.ts = rounds.ts + HOUR_MS
    assert gained(now, rounds.job("gang")) == 8000 * HOUR_MS


def test_nothing_moves_for_a_job_behind_one_for_which_room_is_reserved() -> None:
    rounds = stuck(scattered(backfill="reserve"), hours=0)
    rounds.submit("later", gpus=8)
    rounds.round(plans=False)
    rounds.state.put_job(replace(rounds.job("later"), reason=Reason(code=Code.NO_FIT)))
    reserved(rounds, 7200)
    assert why_not(rounds, "later").code is Code.BEHIND_RESERVATION


def test_the_plan_is_told_before_it_is_carried_out() -> None:
    rounds = stuck(scattered())
    found = planned(rounds.state, rounds.job("gang"), rounds.ts)
    assert isinstance(found, Plan)
    lines = plan_lines(rounds.state, rounds.job("gang"), found)
    assert f"  {rounds.run('a').run_id} continues on node-b" in lines
    assert any(line.startswith("net gain: ") for line in lines)
    assert all(len(line) <= 80 for line in lines)


# -- the committer


def refused(rounds: Rounds, **changes: Any) -> Reason:
    fact = proposal(rounds.state, made(rounds), rounds.ts).model_copy(update=changes)
    (record,) = [r for r in rounds.commit(fact, ms=0).records if isinstance(r, PlanRefused)]
    return record.reason


def test_a_move_onto_a_free_gpu_that_the_job_itself_is_to_have_is_refused() -> None:
    rounds = stuck(scattered())
    first, *rest = made(rounds).moves
    free = rounds.state.nodes.get("node-a").gpu_free.index(1000)
    (place,) = first.placements
    here = Move(run_id=first.run_id, placements=(replace(place, node="node-a", devices=(free,)),))
    assert refused(rounds, moves=(here, *rest)).code is Code.PLAN_DOES_NOT_FIT


def test_a_plan_with_more_moves_than_the_policy_has_by_now_is_refused() -> None:
    fact = proposal(*(lambda r: (r.state, made(r), r.ts))(stuck(scattered())))
    rounds = stuck(scattered(defragment_moves_max=1))
    (record,) = [r for r in rounds.commit(fact, ms=0).records if isinstance(r, PlanRefused)]
    assert record.reason.field == "policy.defragment_moves_max"


def test_two_moves_onto_one_device_are_refused() -> None:
    rounds = stuck(scattered())
    first, second = made(rounds).moves
    moves = (first, second.model_copy(update={"placements": first.placements}))
    assert refused(rounds, moves=moves).code is Code.PLAN_DOES_NOT_FIT


def test_a_plan_without_gain_at_the_head_is_refused() -> None:
    """As one of a proposer that counts wrongly: the job has only just been told to wait."""
    wrong = proposal(*(lambda r: (r.state, made(r), r.ts))(stuck(scattered())))
    rounds = stuck(scattered(), hours=0)
    (record,) = [r for r in rounds.commit(wrong, ms=0).records if isinstance(r, PlanRefused)]
    assert record.reason.code is Code.NO_NET_GAIN


def test_a_plan_is_refused_once_the_policy_forbids_it() -> None:
    fact = proposal(*(lambda r: (r.state, made(r), r.ts))(stuck(scattered())))
    rounds = stuck(scattered(defragment=False))
    (record,) = [r for r in rounds.commit(fact, ms=0).records if isinstance(r, PlanRefused)]
    assert (record.reason.code, record.reason.field) == (Code.NOT_ALLOWED_BY_PRESET, "policy.defragment")


def stopping(rounds: Rounds) -> Rounds:
    """The plan is carried out, and the pods of those that move take their time."""
    rounds.held_back = {rounds.run(key).run_id for key in ("a", "b")}
    return rounds.settle()


def test_a_job_that_is_cancelled_while_it_moves_gives_its_next_place_up() -> None:
    rounds = stopping(stuck(scattered()))
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=rounds.job("a").job_id))
    assert rounds.state.earmarks.get(rounds.job("a").job_id) is None
    rounds.held_back = set()
    rounds.settle()
    assert rounds.running("gang", "b")
    assert len(rounds.state.earmarks) == 0


def test_a_job_put_on_hold_while_it_is_relocated_gives_its_target_up_and_stays_held() -> None:
    rounds = stopping(stuck(scattered()))
    rounds.commit(HoldRequested(kind="hold_requested", job_id=rounds.job("a").job_id))
    assert rounds.state.earmarks.get(rounds.job("a").job_id) is None
    rounds.held_back = set()
    rounds.settle()
    assert rounds.running("gang", "b")
    assert not rounds.running("a")


def found_wrong(rounds: Rounds) -> list[str]:
    """What the checkers say, which read the ledger themselves."""
    report = Report()
    story = Story(report)
    for data in rounds.stored:
        story.take(data)
    check_rules(report, rounds.stored)
    return [f"{violation.invariant}: {violation.text}" for violation in report.violations]


@pytest.mark.parametrize("preset", ["off", "fair"])
def test_the_checkers_find_nothing_wrong_with_moves(preset: str) -> None:
    rounds = stuck(scattered(preset=preset))
    rounds.settle()
    assert len(rounds.plans) == 1
    assert found_wrong(rounds) == []


def test_the_checkers_find_moves_that_the_policy_forbids() -> None:
    rounds = stuck(scattered())
    rounds.settle()

    def forbid(message: dict[str, Any]) -> None:
        message["facts"][0]["fact"]["body"]["policy"]["defragment"] = False

    rounds.stored = rechain(rounds.stored, 2, forbid)
    assert any("the preset does not allow it" in text for text in found_wrong(rounds))


def test_moves_end_with_the_budget_so_that_nothing_moves_for_ever() -> None:
    rounds = stuck(scattered(evictions_max=1))
    rounds.settle()
    assert [sorted(names) for names in rounds.evicted()] == [["a", "b"]]
    rounds.finish("gang")
    rounds.commit(ms=HOUR_MS)
    rounds.submit("again", gpus=8)
    rounds.settle()
    for _ in range(4):
        rounds.commit(ms=10 * HOUR_MS)
        rounds.settle()
    assert len(rounds.plans) == 1
