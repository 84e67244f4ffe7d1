"""Plans keep to the line: heads have their victims to themselves, and reclaim takes what is lent and no more."""

import pytest

from tessera.engine.preemption.plans import Plan
from tessera.engine.queueing.ordering import EQUAL_MAX, stuck_heads
from tessera_schemas.facts import DrainRequested
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.orders import HEADS_MAX
from tests.builders import node_seen
from tests.rounds import Rounds, share

MINUTE_MS = 60_000


def two_ages(**policy: object) -> Rounds:
    """Two full nodes of low singles, those of the first a minute older; min_runtime is a minute."""
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority", min_runtime_seconds=60, **policy)
    for node in "ab":
        for number in range(8):
            rounds.submit(f"{node}{number}", priority="low")
        rounds.settle()
        rounds.commit(ms=MINUTE_MS - 15_000)
    return rounds


def test_singles_behind_a_gang_do_not_evict_the_runs_that_it_waits_to_evict() -> None:
    rounds = two_ages()
    rounds.submit("gang", gpus=8, pods=2)
    for number in range(4):
        rounds.submit(f"single-{number}")
    rounds.round(plans=False)
    assert isinstance(rounds.plan("gang"), Reason), "half of its victims are too young"
    assert [type(rounds.plan(f"single-{number}")) for number in range(4)] == [Reason] * 4
    rounds.commit(ms=MINUTE_MS)
    found = rounds.plan("gang")
    assert isinstance(found, Plan)
    assert len(found.victims) == 16
    rounds.settle()
    assert rounds.running("gang")


def test_who_needs_none_of_them_evicts_at_once() -> None:
    rounds = two_ages()
    rounds.submit("head", gpus=8)
    rounds.submit("single")
    rounds.round(plans=False)
    assert len(rounds.victims("head")) == 8
    rounds.commit(ms=MINUTE_MS)
    assert len(rounds.victims("single")) == 1
    assert not set(rounds.victims("single")) & set(rounds.victims("head"))


def test_a_preemptor_takes_a_node_that_becomes_free_before_its_victim_has_stopped() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority")
    rounds.submit("low", gpus=8, priority="low")
    rounds.submit("other", gpus=8, priority="urgent")
    rounds.settle()
    rounds.held_back = {rounds.run("low").run_id}
    rounds.submit("urgent", gpus=8, priority="urgent")
    rounds.settle()
    assert not rounds.running("urgent")
    free = rounds.run("other").placements[0].node
    rounds.finish("other")
    rounds.settle()
    assert rounds.running("urgent")
    assert rounds.run("urgent").placements[0].node == free
    assert rounds.state.earmarks.get(rounds.job("urgent").job_id) is None


def test_a_gang_starts_with_the_free_nodes_of_its_own_room_and_others_and_spares_its_victim() -> None:
    rounds = Rounds(nodes=dict.fromkeys(("node-a", "node-b", "node-c"), 8), preset="priority")
    rounds.submit("low", gpus=8, priority="low")
    rounds.submit("other", gpus=8, priority="urgent")
    rounds.settle()
    rounds.held_back = {rounds.run("low").run_id}
    rounds.submit("gang", gpus=8, pods=2, priority="urgent")
    rounds.settle()
    assert not rounds.running("gang")
    assert not rounds.run("low").unneeded
    used = {rounds.run(key).placements[0].node for key in ("low", "other")}
    rounds.finish("other")
    rounds.settle()
    assert rounds.running("gang")
    nodes = {place.node for place in rounds.run("gang").placements}
    assert rounds.run("low").placements[0].node not in nodes
    assert nodes - used
    assert rounds.run("low").unneeded


@pytest.mark.parametrize("useless", [0, 31, 40, HEADS_MAX + 50])
def test_jobs_that_no_plan_can_help_take_nobodys_place_among_those_that_are_planned_for(useless: int) -> None:
    nodes = [node_seen("sick", 8, gpu_model="h100"), node_seen("node-a", 8, gpu_model="a100")]
    rounds = Rounds(nodes=nodes, preset="priority")
    rounds.commit(DrainRequested(kind="drain_requested", node="sick"))
    for number in range(8):
        rounds.submit(f"low-{number}", priority="low", gpu_models=("a100",))
    rounds.settle()
    for number in range(useless):
        rounds.submit(f"useless-{number}", gpu_models=("h100",), gpus=1 + number % 8)
    rounds.submit("helped", gpus=8, gpu_models=("a100",))
    rounds.round(plans=False)
    assert [job.name for job in stuck_heads(rounds.state, rounds.ts, 32)] == ["helped"]
    assert rounds.settle().running("helped")


def test_of_equal_jobs_the_first_are_planned_for() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="priority")
    rounds.submit("runs", gpus=8)
    rounds.settle()
    for number in range(EQUAL_MAX + 5):
        rounds.submit(f"equal-{number}", gpus=8)
    rounds.submit("other", gpus=4)
    rounds.round(plans=False)
    names = [job.name for job in stuck_heads(rounds.state, rounds.ts, 32)]
    assert names == [*(f"equal-{number}" for number in range(EQUAL_MAX)), "other"]


def lent() -> Rounds:
    """`a` holds its nominal 8 by an old and dear run, and two GPUs of `b`'s 2 by young singles."""
    queues = share("all", 0, parent=None), share("a", 8), share("b", 2)
    rounds = Rounds(*queues, nodes={"node-a": 8, "node-b": 2}, preset="fair", min_runtime_seconds=60)
    rounds.submit("dear", gpus=8, queue="a", priority="high")
    rounds.settle()
    rounds.commit(ms=2 * MINUTE_MS)
    for number in range(2):
        rounds.submit(f"young-{number}", queue="a", priority="low")
    rounds.settle()
    rounds.submit("owner", queue="b")
    rounds.round(plans=False)
    return rounds


def test_an_owner_waits_for_young_runs_on_lent_quota_rather_than_stop_what_is_the_borrowers_own() -> None:
    rounds = lent()
    found = rounds.plan("owner", "reclaim")
    assert isinstance(found, Reason)
    assert found.numbers[f"runs_kept_by_{Code.EVICTION_BUDGET_SPENT.value}"] == 3
    rounds.commit(ms=MINUTE_MS)
    assert rounds.victims("owner", "reclaim") in (["young-0"], ["young-1"])
    rounds.settle()
    assert rounds.running("dear", "owner")


@pytest.mark.parametrize(("limit", "victims"), [(900, []), (60, [["low"]])])
def test_a_plan_lies_on_no_room_that_is_kept_for_a_job_before_it(limit: int, victims: list[list[str]]) -> None:
    """The head may evict one half of the node alone, and waits for the end of both."""
    rounds = Rounds(share("research", 8, parent=None), backfill="reserve")
    rounds.submit("busy", 4, time_limit_seconds=100)
    rounds.submit("low", 4, priority="low", time_limit_seconds=100)
    rounds.settle()
    rounds.submit("head", 8, time_limit_seconds=100)
    rounds.settle()
    rounds.submit("late", 4, time_limit_seconds=limit)
    rounds.settle()
    assert rounds.evicted() == victims


def test_a_plan_beside_kept_room_takes_other_victims() -> None:
    nodes = [node_seen("node-a", 8, gpu_model="h100"), node_seen("node-b", 4, gpu_model="a100")]
    rounds = Rounds(share("research", 12, parent=None), nodes=nodes, backfill="reserve")
    rounds.submit("other", 4, priority="low", gpu_models=("a100",), time_limit_seconds=3600)
    rounds.settle()
    rounds.commit(ms=MINUTE_MS)
    rounds.submit("busy", 4, gpu_models=("h100",), time_limit_seconds=100)
    rounds.submit("low", 4, priority="low", gpu_models=("h100",), time_limit_seconds=100)
    rounds.settle()
    rounds.submit("head", 8, gpu_models=("h100",), time_limit_seconds=100)
    rounds.settle()
    rounds.submit("late", 4, time_limit_seconds=900)
    rounds.settle()
    assert rounds.evicted() == [["other"]], "low costs less, and its end is the head's"
