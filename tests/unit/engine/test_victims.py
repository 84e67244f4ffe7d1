"""Plans: the fewest and cheapest victims, and none without a proved placement."""

from typing import Any

import pytest

from tessera.domain.storing.fast import replace
from tessera.engine.preemption.plans import Plan, plan
from tessera.engine.preemption.rules import protected
from tessera_schemas.facts import CancelRequested, CheckpointSaved, RunStarted
from tessera_schemas.job import Topology
from tessera_schemas.reasons import Code, Reason
from tests.builders import node_seen
from tests.rounds import Rounds, share


def full(*keys: str, gpus: int = 2, priority: str = "low", **policy: Any) -> Rounds:
    """A node of eight GPUs, filled by jobs that started one after the other."""
    rounds = Rounds(nodes={"node-a": 8}, **{"preset": "priority"} | policy)
    for key in keys or ("a", "b", "c", "d"):
        rounds.submit(key, gpus=gpus, priority=priority)
        rounds.settle()
    return rounds


def why_not(found: Plan | Reason) -> Reason:
    assert isinstance(found, Reason)
    return found


def made(found: Plan | Reason) -> Plan:
    assert isinstance(found, Plan), found
    return found


# -- whom


def test_one_victim_is_taken_when_one_is_enough_and_the_job_goes_where_it_was() -> None:
    rounds = full()
    rounds.submit("urgent", gpus=2, priority="urgent")
    found = made(rounds.plan("urgent"))
    (victim,) = found.victims
    assert found.placements[0].devices == rounds.run(rounds.name(victim.job_id)).placements[0].devices


def test_the_least_work_is_thrown_away_of_one_class() -> None:
    rounds = full()
    rounds.submit("urgent", gpus=4, priority="urgent")
    assert rounds.victims("urgent") == ["c", "d"]


def test_work_that_was_saved_is_not_lost() -> None:
    rounds = full()
    rounds.commit(CheckpointSaved(kind="checkpoint_saved", run_id=rounds.run("a").run_id))
    rounds.submit("urgent", gpus=2, priority="urgent")
    assert rounds.victims("urgent") == ["a"]


def test_the_lowest_class_goes_first_however_much_it_has_done() -> None:
    rounds = Rounds(nodes={"node-a": 2}, preset="priority")
    rounds.submit("low", priority="low")
    rounds.settle()
    rounds.commit(ms=86_400_000)
    rounds.submit("normal", priority="normal")
    rounds.settle()
    rounds.submit("urgent", priority="urgent")
    assert rounds.victims("urgent") == ["low"]


def test_ten_small_victims_are_not_cheaper_than_one_large_one() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority")
    for number in range(8):
        rounds.submit(f"small-{number}", priority="low")
    rounds.submit("large", gpus=8, priority="low")
    rounds.settle()
    rounds.submit("urgent", gpus=8, priority="urgent")
    assert rounds.victims("urgent") == ["large"]


def test_a_gang_goes_whole_and_only_one_is_taken_where_two_would_do() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority")
    rounds.submit("over-both", gpus=4, pods=2, priority="low")
    rounds.settle()
    rounds.submit("rest", gpus=4, pods=2, priority="low")
    rounds.settle()
    rounds.submit("urgent", gpus=4, pods=2, priority="urgent")
    found = made(rounds.plan("urgent"))
    assert len(found.victims) == 1
    assert found.victims[0].gpu_milli == 8000


def test_pods_that_an_elastic_run_grew_by_go_before_anybody_is_evicted() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="priority", grow_after_seconds=0)
    rounds.submit("fixed", gpus=2, priority="low")
    rounds.submit("elastic", gpus=2, max_replicas=3, priority="low")
    rounds.settle()
    assert len(rounds.run("elastic").extra) == 2
    rounds.submit("urgent", gpus=2, priority="urgent")
    (victim,) = made(rounds.plan("urgent")).victims
    assert (rounds.name(victim.job_id), victim.ranks) == ("elastic", (2,))


def test_elastic_runs_shrink_for_their_equals_under_preset_off_without_any_eviction() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="off", grow_after_seconds=0)
    rounds.submit("elastic", gpus=2, max_replicas=4)
    rounds.settle()
    rounds.submit("equal", gpus=4)
    assert len(made(rounds.plan("equal")).victims[0].ranks) == 2
    rounds.submit("whole", gpus=8, priority="urgent")
    assert why_not(rounds.plan("whole")).code is Code.NO_FIT


# -- who never


def test_nobody_is_evicted_under_the_preset_off() -> None:
    rounds = full(preset="off")
    rounds.submit("urgent", gpus=2, priority="urgent")
    assert why_not(rounds.plan("urgent")).code is Code.NOT_ALLOWED_BY_PRESET


def test_an_equal_and_a_job_that_is_not_preemptible_are_nobodys_victims() -> None:
    rounds = full("a", "b", "c", priority="urgent")
    rounds.submit("fixed", gpus=2, priority="low", preemptible=False)
    rounds.settle()
    rounds.submit("urgent", gpus=2, priority="urgent")
    reason = why_not(rounds.plan("urgent"))
    assert reason.code is Code.NO_FIT
    assert reason.numbers["runs_kept_by_NotAllowedByPreset"] == 3
    assert reason.numbers["runs_kept_by_EvictionBudgetSpent"] == 1
    assert "runs_kept" not in reason.sentence().replace(" ", "_"), "a sentence names no code of another"


@pytest.mark.parametrize("code", [Code.VICTIM_GONE, Code.NOT_ALLOWED_BY_PRESET, Code.EVICTION_BUDGET_SPENT,
                                  Code.BLOCKED_BY_DISRUPTION_BUDGET])  # fmt: skip
def test_why_runs_are_kept_is_said_in_words(code: Code) -> None:
    reason = Reason(code=Code.NO_FIT, numbers={f"runs_kept_by_{code.value}": 2})
    assert code.value not in reason.sentence()


def test_the_sentence_of_a_run_that_is_kept_fits_each_of_its_causes() -> None:
    rounds = full("old")
    rounds.submit("fixed", gpus=2, priority="low", preemptible=False)
    rounds.settle()
    kept = protected(rounds.state, rounds.job("fixed"), rounds.run("fixed"))
    assert kept is not None
    assert "not preemptible, started just now, or was evicted too often" in kept.sentence()
    assert kept.numbers["evictions"] == 0


def test_a_run_younger_than_the_least_runtime_is_spared_until_it_is_old_enough() -> None:
    rounds = full("a", gpus=8, min_runtime_seconds=60)
    rounds.submit("urgent", gpus=2, priority="urgent")
    assert why_not(rounds.plan("urgent")).numbers["runs_kept_by_EvictionBudgetSpent"] == 1
    due = rounds.run("a").started_ts + 60_000
    job = rounds.job("urgent")
    assert isinstance(plan(rounds.state, job, due - 1, "preemption"), Reason)
    assert isinstance(plan(rounds.state, job, due, "preemption"), Plan)


def test_a_job_that_was_evicted_as_often_as_allowed_is_spared() -> None:
    rounds = full("a", gpus=8, evictions_max=1)
    rounds.submit("first", gpus=8, priority="urgent")
    rounds.settle().finish("first")
    rounds.settle()
    rounds.submit("second", gpus=8, priority="urgent")
    rounds.settle()
    assert rounds.running("a")
    assert len(rounds.plans) == 1


# -- where


def test_eight_gpus_on_one_node_are_freed_on_one_node() -> None:
    """kueue#5243: eight GPUs freed over four nodes, and the pod that wants eight on one is still stuck."""
    rounds = Rounds(nodes={f"node-{x}": 8 for x in "abcd"}, preset="priority")
    for number in range(16):
        rounds.submit(f"old-{number:02}", gpus=2, priority="low")
        rounds.settle()
    rounds.submit("urgent", gpus=8, priority="urgent")
    found = made(rounds.plan("urgent"))
    assert len(found.victims) == 4
    assert {node for victim in found.victims for node in victim.nodes} == {found.placements[0].node}


def test_what_the_job_could_never_use_is_not_freed() -> None:
    """volcano#4926: counting stops at the quantity, whatever the constraints say."""
    nodes = [node_seen("node-a", 8), node_seen("node-b", 8, gpu_model="a100")]
    rounds = Rounds(nodes=nodes, preset="priority")
    for number in range(8):
        rounds.submit(f"young-{number}", gpus=1, gpu_models=("a100",), priority="low")
    rounds.submit("old", gpus=8, gpu_models=("h100",), priority="low")
    rounds.settle()
    rounds.submit("urgent", gpus=8, gpu_models=("h100",), priority="urgent")
    assert rounds.victims("urgent") == ["old"]


def test_a_gang_that_must_share_a_rack_takes_from_one_rack() -> None:
    nodes = [node_seen(f"node-{r}{n}", 8, labels={"rack": r}) for r in "xy" for n in range(2)]
    rounds = Rounds(nodes=nodes, preset="priority")
    for number in range(8):
        rounds.submit(f"low-{number}", gpus=4, priority="low")
        rounds.settle()
    rack = Topology(level="rack", required=True)
    rounds.submit("urgent", gpus=8, pods=2, topology=rack, priority="urgent")
    found = made(rounds.plan("urgent"))
    assert len(found.victims) == 4
    assert len({p.node[:6] for p in found.placements}) == 1


def test_no_plan_is_made_where_even_all_victims_would_not_make_room() -> None:
    """volcano#4926: victims are evicted although the preemptor does not fit afterwards."""
    rounds = full("a", "b", "c", "d")
    rounds.submit("fixed", gpus=8, priority="urgent", preemptible=False)
    rounds.settle()
    rounds.submit("second", gpus=8, priority="urgent")
    assert why_not(rounds.plan("second")).code is Code.NO_FIT


def test_nodes_that_failed_the_job_are_used_only_where_there_is_nothing_else() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority")
    rounds.submit("a", gpus=8, priority="low")
    rounds.settle()
    rounds.submit("b", gpus=8, priority="low")
    rounds.settle()
    rounds.submit("urgent", gpus=8, priority="urgent")
    young = made(rounds.plan("urgent")).placements[0].node
    job = rounds.job("urgent")
    shy = replace(job, avoid=(young,))
    assert made(plan(rounds.state, shy, rounds.ts, "preemption")).placements[0].node != young
    lost = replace(job, avoid=("node-a", "node-b"))
    assert made(plan(rounds.state, lost, rounds.ts, "preemption")).placements[0].node == young


# -- what comes free by itself


def test_nobody_is_evicted_for_a_job_that_only_waits_for_pods_that_are_going() -> None:
    """volcano#5994 and others: a planner that forgets what it evicted a moment ago evicts again."""
    rounds = full("a", "b", gpus=4)
    rounds.submit("first", gpus=4, priority="urgent")
    rounds.held_back = {rounds.run("a").run_id, rounds.run("b").run_id}
    rounds.settle()
    assert len(rounds.plans) == 1
    rounds.submit("second", gpus=4, priority="urgent")
    assert rounds.victims("second") == ["a"]
    rounds.settle()
    assert len(rounds.plans) == 2
    rounds.submit("third", gpus=4, priority="urgent")
    assert why_not(rounds.plan("third")).code is Code.NO_FIT


def test_a_run_that_has_been_stopping_for_too_long_is_not_waited_for() -> None:
    rounds = full("a", "b", gpus=4, stop_patience_seconds=30)  # after a grace of 30 s
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=rounds.job("a").job_id))
    rounds.submit("urgent", gpus=4, priority="urgent")
    assert why_not(rounds.plan("urgent")).code is Code.WAITING_FOR_PREEMPTED
    rounds.commit(ms=61_000)
    assert rounds.victims("urgent") == ["b"]


def test_a_plan_of_a_higher_class_ends_a_lesser_earmark_and_evicts_nobody_for_it() -> None:
    rounds = full("a", gpus=8)
    rounds.held_back = {rounds.run("a").run_id}
    rounds.submit("high", gpus=8, priority="high")
    rounds.settle()
    rounds.submit("urgent", gpus=8, priority="urgent")
    found = made(rounds.plan("urgent"))
    assert (found.victims, found.outranked) == ((), (rounds.job("high").job_id,))
    rounds.settle()
    assert rounds.state.earmarks.get(rounds.job("urgent").job_id) is not None
    rounds.held_back = set()
    rounds.settle()
    assert rounds.running("urgent")


# -- quota


def test_quota_alone_is_freed_by_the_cheapest_that_hold_enough_of_it() -> None:
    rounds = Rounds(share("research", 4, parent=None), nodes={"node-a": 8}, preset="priority")
    for key in ("a", "b"):
        rounds.submit(key, gpus=2, priority="low")
        rounds.settle()
    rounds.submit("urgent", gpus=2, priority="urgent")
    assert rounds.victims("urgent") == ["b"]


def test_a_plan_says_what_each_victim_loses() -> None:
    rounds = full("a", gpus=8)
    rounds.commit(ms=600_000)
    rounds.submit("urgent", gpus=2, priority="urgent")
    (victim,) = made(rounds.plan("urgent")).victims
    assert (victim.queue, victim.priority_class, victim.gpu_milli, victim.nodes) == (
        "research",
        "low",
        8000,
        ("node-a",),
    )
    assert 600 <= victim.lost_seconds < 660


def test_a_job_that_does_not_wait_has_no_plan() -> None:
    rounds = full("a", gpus=8)
    assert why_not(rounds.plan("a")).code is Code.NOT_WAITING
    started = RunStarted(kind="run_started", run_id=rounds.run("a").run_id)
    rounds.commit(started)
    rounds.submit("fits", gpus=0)
    assert why_not(rounds.plan("fits")).code is Code.WAITING_FOR_TURN
