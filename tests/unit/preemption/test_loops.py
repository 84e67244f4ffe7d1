"""
Loops and over-eviction that others have published, each as its setting here: it becomes quiet, and nobody is evicted
whose room is not used. Sizes are GPUs; a thread is named `owner#number`.
"""

from typing import Any

import pytest

from tessera.engine.preemption.plans import Plan
from tessera_schemas.config import Queue
from tests.rounds import Rounds, share


def pool(*queues: Queue, gpus: int, **policy: Any) -> Rounds:
    """Queues that share one node, under a root without quota of its own."""
    return Rounds(Queue(name="all"), *queues, nodes={"node-a": gpus}, **policy)


def test_kueue_3779_a_queue_above_its_own_takes_nothing_from_one_that_borrows_less() -> None:
    """Its fair share was larger than its victim's, so that the victim was next again as soon as it was evicted."""
    rounds = pool(share("a", 3), share("b", 3), share("best-effort", 0), gpus=6)
    rounds.submit("a1", gpus=5, queue="a")
    rounds.submit("be", gpus=1, queue="best-effort")
    rounds.settle()
    rounds.submit("a2", gpus=1, queue="a")
    rounds.settle()
    assert rounds.running("a1", "be")
    assert rounds.plans == []


def test_kueue_2821_a_high_class_that_would_have_to_borrow_evicts_nobody_of_another_queue() -> None:
    """It evicted a lower class, which came back first since it was older, and so on."""
    rounds = pool(share("a", 0), share("b", 4), share("lender", 4), gpus=8)
    rounds.submit("low", gpus=4, queue="a", priority="low")
    rounds.submit("b1", gpus=4, queue="b", priority="high")
    rounds.settle()
    rounds.submit("b2", gpus=4, queue="b", priority="high")
    rounds.settle()
    assert rounds.running("low", "b1")
    assert rounds.plans == []


@pytest.mark.parametrize("weight", [0, 1, 1_000_000], ids=["no weight", "one", "a weight that rounds shares away"])
def test_kueue_6774_two_borrowing_queues_leave_each_other_alone_whatever_their_weight(weight: int) -> None:
    rounds = Rounds(
        share("all", 8, parent=None),
        share("a", 0, weight=weight),
        share("b", 0, weight=weight),
        nodes={"node-a": 8},
    )
    for number in range(3):
        rounds.submit(f"a{number}", gpus=4, queue="a")
        rounds.submit(f"b{number}", gpus=4, queue="b")
    rounds.settle()
    assert rounds.plans == []
    assert len(rounds.state.runs) == 2


def test_kueue_4961_a_queue_without_weight_keeps_its_own_and_takes_it_back() -> None:
    rounds = pool(share("idle", 4, weight=0), share("busy", 4), gpus=8)
    for number in range(4):
        rounds.submit(f"busy-{number}", gpus=2, queue="busy")
        rounds.settle()
    rounds.submit("idle-1", gpus=4, queue="idle")
    rounds.settle()
    assert rounds.running("idle-1")
    assert rounds.evicted() == [["busy-2", "busy-3"]]
    rounds.submit("busy-4", gpus=2, queue="busy", priority="normal")
    rounds.settle()
    assert rounds.running("idle-1")
    assert len(rounds.plans) == 1


def test_kueue_7101_a_preempted_job_that_comes_back_at_once_is_not_preempted_for_ever() -> None:
    rounds = pool(share("a", 4), share("b", 4), gpus=8)
    for number in range(4):
        rounds.submit(f"b{number}", gpus=2, queue="b")
    rounds.settle()
    for number in range(2):
        rounds.submit(f"a{number}", gpus=2, queue="a")
    rounds.settle()
    assert rounds.running("a0", "a1")
    for number in range(4):
        rounds.submit(f"again-{number}", gpus=2, queue="b")
        rounds.settle()
    assert sum(len(names) for names in rounds.evicted()) == 2


def test_kueue_13797_room_of_the_first_victim_stays_earmarked_while_the_second_stops() -> None:
    rounds = pool(share("a", 4), share("b", 4), gpus=8)
    for key in ("b0", "b1", "b2", "b3"):
        rounds.submit(key, gpus=2, queue="b")
        rounds.settle()
    rounds.submit("a0", gpus=4, queue="a")
    rounds.held_back = {rounds.run("b3").run_id}
    rounds.submit("thief", gpus=2, queue="b")
    rounds.settle()
    assert rounds.evicted() == [["b2", "b3"]]
    assert rounds.run("b2") is None
    assert not rounds.running("thief")
    rounds.held_back = set()
    rounds.settle()
    assert rounds.running("a0")
    assert len(rounds.plans) == 1


def test_kueue_14543_what_keeps_the_owners_queue_within_its_own_is_not_given_back() -> None:
    """Victims of its own queue made others legal, and were given back afterwards: then two jobs evicted each other."""
    rounds = pool(share("a", 8), share("b", 0), gpus=8)
    for key in ("a0", "a1", "a2"):
        rounds.submit(key, gpus=2, queue="a", priority="low")
    rounds.submit("b0", gpus=2, queue="b", priority="low")
    rounds.settle()
    rounds.submit("whole", gpus=8, queue="a", priority="urgent")
    rounds.settle()
    assert rounds.running("whole")
    assert rounds.evicted() == [["a0", "a1", "a2", "b0"]]


def test_kueue_14543_two_jobs_never_evict_each_other() -> None:
    rounds = pool(share("a", 4), share("b", 4), gpus=8)
    rounds.submit("a0", gpus=6, queue="a")
    rounds.settle()
    rounds.submit("b0", gpus=4, queue="b")
    rounds.settle()
    assert rounds.evicted() == [["a0"]]
    assert rounds.running("b0")
    for _ in range(3):
        rounds.commit(ms=3_600_000)
        rounds.settle()
    assert len(rounds.plans) == 1


def test_volcano_5994_needed_one_and_killed_ten_never() -> None:
    rounds = Rounds(nodes={"node-a": 11}, preset="priority")
    for number in range(11):
        rounds.submit(f"low-{number:02}", gpus=1, priority="low")
    rounds.settle()
    rounds.submit("urgent", gpus=1, priority="urgent")
    rounds.settle()
    assert [len(names) for names in rounds.evicted()] == [1]
    assert rounds.running("urgent")


def test_volcano_5994_an_elastic_gang_gives_one_pod_and_not_all_it_can_spare() -> None:
    rounds = Rounds(nodes={"node-a": 11}, preset="priority", grow_after_seconds=0)
    rounds.submit("elastic", gpus=1, max_replicas=11, priority="low")
    rounds.settle()
    assert len(rounds.run("elastic").extra) == 10
    rounds.submit("urgent", gpus=1, priority="urgent")
    found = rounds.plan("urgent")
    assert isinstance(found, Plan)
    assert [len(victim.ranks) for victim in found.victims] == [1]


def test_kueue_15211_the_room_of_every_victim_is_used() -> None:
    """Victims on nodes that the preemptor then does not go to."""
    rounds = Rounds(nodes={f"node-{n}": 8 for n in range(4)}, preset="priority")
    for number in range(8):
        rounds.submit(f"low-{number}", gpus=4, priority="low")
        rounds.settle()
    rounds.submit("urgent", gpus=8, pods=2, priority="urgent")
    found = rounds.plan("urgent")
    assert isinstance(found, Plan)
    nodes = {placement.node for placement in found.placements}
    assert len(found.victims) == 4
    assert all(set(victim.nodes) <= nodes for victim in found.victims)


def test_kueue_804_two_plans_for_one_victim_give_one_eviction() -> None:
    rounds = pool(share("a", 4), share("b", 0), gpus=4)
    rounds.submit("b0", gpus=4, queue="b", priority="low")
    rounds.settle()
    for key in ("a0", "a1"):
        rounds.submit(key, gpus=4, queue="a")
    rounds.settle()
    assert rounds.evicted() == [["b0"]]
    assert len([key for key in ("a0", "a1") if rounds.running(key)]) == 1


def test_kueue_2596_the_plan_for_another_job_goes_on_while_victims_take_their_time() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority")
    for key in ("x", "y"):
        rounds.submit(key, gpus=8, priority="low")
        rounds.settle()
    rounds.held_back = {rounds.run("x").run_id, rounds.run("y").run_id}
    for key in ("u1", "u2"):
        rounds.submit(key, gpus=8, priority="urgent")
    rounds.settle()
    assert sorted(rounds.evicted()) == [["x"], ["y"]]


def test_an_earmark_that_ends_before_its_victims_are_gone_is_no_loop() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="priority", earmark_seconds=10)
    rounds.submit("low", gpus=8, priority="low")
    rounds.settle()
    rounds.held_back = {rounds.run("low").run_id}
    rounds.submit("urgent", gpus=8, priority="urgent")
    rounds.settle()
    for _ in range(5):
        rounds.commit(ms=11_000)
        rounds.settle()
    assert len(rounds.plans) == 1
    rounds.held_back = set()
    rounds.settle()
    assert rounds.running("urgent")


def test_a_class_evicts_the_next_lower_one_and_that_its_next_and_then_it_is_quiet() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority")
    for key, priority in (("low", "low"), ("normal", "normal")):
        rounds.submit(key, gpus=8, priority=priority)
        rounds.settle()
    rounds.submit("high", gpus=8, priority="high")
    rounds.settle()
    rounds.submit("urgent", gpus=8, priority="urgent")
    rounds.settle()
    assert rounds.evicted() == [["low"], ["normal"]]


def test_lent_quota_returns_to_a_queue_that_holds_more_than_its_victims_queue() -> None:
    """By the fair share of equal weights the victims would be next; what is taken back is the owner's by its quota."""
    rounds = pool(share("large", 12), share("small", 4), gpus=16)
    for number in range(4):
        rounds.submit(f"large-{number}", gpus=2, queue="large")
        rounds.submit(f"small-{number}", gpus=2, queue="small")
    rounds.settle()
    for number in range(4, 6):
        rounds.submit(f"large-{number}", gpus=2, queue="large")
    rounds.settle()
    assert rounds.state.held_by_queue("large").gpu_milli == 12_000
    assert rounds.state.held_by_queue("small").gpu_milli == 4_000
    assert rounds.refusals == []


def test_a_subtree_that_lends_only_within_itself_gives_nothing_to_others() -> None:
    """Both subtrees keep to their own; inside one, a queue uses what its sibling lent it and may ask back."""
    queues = (
        share("left", 0, parent="all"),
        share("right", 0, parent="all"),
        share("left-a", 0, parent="left"),
        share("left-b", 4, parent="left"),
        share("right-a", 8, parent="right"),
    )
    rounds = pool(*queues, gpus=8)
    rounds.submit("borrows", gpus=4, queue="left-a")
    rounds.submit("rest", gpus=4, queue="right-a")
    rounds.settle()
    rounds.submit("more", gpus=4, queue="right-a")
    rounds.settle()
    assert rounds.running("borrows", "rest")
    rounds.submit("sibling", gpus=4, queue="left-b")
    rounds.settle()
    assert rounds.evicted() == [["borrows"]]
    assert rounds.running("sibling")


def test_a_pod_that_never_goes_costs_others_one_eviction_and_not_one_after_the_other() -> None:
    """The plan counted on a pod of an elastic run that was being stopped, and went on counting on it."""
    rounds = Rounds(share("research", 4, parent=None), nodes={"node-a": 8}, preset="priority", grow_after_seconds=0)
    rounds.submit("elastic", gpus=1, max_replicas=2, priority="urgent")
    rounds.settle()
    rounds.submit("low", gpus=2, priority="low")
    rounds.settle()
    rounds.held_back = {rounds.run("elastic").run_id}
    rounds.submit("urgent", gpus=3, priority="urgent")
    rounds.settle()
    for _ in range(4):
        rounds.commit(ms=700_000)
        rounds.settle()
    assert rounds.evicted() == [["low"]]
    assert rounds.running("low")
