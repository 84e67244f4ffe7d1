"""Whose runs may be evicted for whom, and whether placements fit: the rules that proposers and the committer share."""

from dataclasses import replace

import pytest

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Need, RoleNeed
from tessera.domain.entities import Job, Run
from tessera.engine.placement.capacity import leaving
from tessera.engine.placement.faults import placement_faults
from tessera.engine.preemption.rules import may_evict, outranked
from tessera_schemas.facts import CancelRequested, PlanCause
from tessera_schemas.reasons import Code
from tessera_schemas.work.placement import Placement
from tests.builders import GIB, node_seen
from tests.rounds import Rounds, share


def lending(victim: str = "normal", owner: str = "normal", own: int = 4, used: int = 8, **policy: object) -> Rounds:
    """Queue b uses `used` GPUs, four of them its own; a job of queue a, which owns `own`, waits."""
    queues = (share("all", 0, parent=None), share("a", own), share("b", 4))
    rounds = Rounds(*queues, nodes={"node-a": 8}, **policy)  # type: ignore[arg-type]
    rounds.submit("victim", gpus=used, queue="b", priority=victim)
    rounds.settle()
    rounds.submit("owner", gpus=4, queue="a", priority=owner)
    rounds.round(plans=False)
    return rounds


def spent(rounds: Rounds) -> Rounds:
    rounds.configure(evictions_max=0)
    return rounds


def verdict(rounds: Rounds, cause: PlanCause = "reclaim") -> Code | None:
    state, owner, run = rounds.state, rounds.job("owner"), rounds.run("victim")
    against = may_evict(state, owner, run, cause, state.quota_book())
    return None if against is None else against.code


@pytest.mark.parametrize(
    ("sentence", "rounds", "cause", "code"),
    [
        ("it holds what was lent", lending(), "reclaim", None),
        ("a lower class that holds what was lent", lending(victim="low"), "reclaim", None),
        ("a higher class that holds what was lent", lending(victim="high"), "reclaim", None),
        ("it holds only its own", lending(used=4), "reclaim", Code.NOT_ALLOWED_BY_PRESET),
        ("preemption is for one queue", lending(victim="low"), "preemption", Code.NOT_ALLOWED_BY_PRESET),
        ("what was lent goes back under every preset", lending(preset="off"), "reclaim", None),
        ("the preset allows nothing", lending(preset="off"), "preemption", Code.NOT_ALLOWED_BY_PRESET),
        ("it is too young", lending(min_runtime_seconds=3600), "reclaim", Code.EVICTION_BUDGET_SPENT),
        ("its budget is spent since it borrowed", spent(lending()), "reclaim", None),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_the_rules_of_who_gives_way(sentence: str, rounds: Rounds, cause: PlanCause, code: Code | None) -> None:
    assert verdict(rounds, cause) is code, sentence


def test_a_queue_gives_back_no_more_than_it_was_lent() -> None:
    rounds = lending()
    state, run = rounds.state, rounds.run("victim")
    book = state.quota_book()
    book.add("b", "", run.amount, -1)
    against = may_evict(state, rounds.job("owner"), run, "reclaim", book)
    assert against is not None
    assert against.code is Code.NOT_ALLOWED_BY_PRESET


def test_what_is_lent_counts_only_of_what_both_ask_for() -> None:
    rounds = lending()
    owner: Job = replace(rounds.job("owner"), amount=replace(rounds.job("owner").amount, gpu_milli=0))
    against = may_evict(rounds.state, owner, rounds.run("victim"), "reclaim", rounds.state.quota_book())
    assert against is not None


def test_a_run_that_is_being_stopped_is_nobodys_victim_and_counts_as_leaving_for_a_while() -> None:
    rounds = lending(stop_patience_seconds=30)  # after a grace of 30 s
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=rounds.job("victim").job_id))
    assert verdict(rounds) is Code.VICTIM_GONE
    run: Run = rounds.run("victim")
    assert leaving(rounds.state) == [(run, run.places)]
    rounds.commit(ms=60_000)
    assert leaving(rounds.state) == []


def test_only_earmarks_of_a_strictly_lower_class_on_the_same_nodes_are_outranked() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority")
    rounds.submit("low", gpus=8, pods=2, priority="low")
    rounds.settle()
    rounds.held_back = {rounds.run("low").run_id}
    rounds.submit("high", gpus=8, priority="high")
    rounds.settle()
    (mark,) = rounds.state.earmarks.values()
    node = mark.placements[0].node
    other = ({"node-a", "node-b"} - {node}).pop()
    for priority, nodes, found in (("urgent", [node], [mark]), ("urgent", [other], []), ("high", [node], [])):
        assert outranked(rounds.state, replace(rounds.job("high"), priority_class=priority), nodes) == found


MIG = RoleNeed("worker", 1, Need(1000, GIB, mig_profile="3g.20gb"))


@pytest.mark.parametrize(
    ("sentence", "placement", "fits"),
    [
        ("at a position of the profile", Placement(0, "worker", "node-a", (0,), 500, (4, 4)), True),
        ("where no instance of it may begin", Placement(0, "worker", "node-a", (0,), 500, (2, 4)), False),
        ("smaller than the profile", Placement(0, "worker", "node-a", (0,), 250, (4, 2)), False),
        ("with another share of the device", Placement(0, "worker", "node-a", (0,), 400, (4, 4)), False),
        ("on a device that is not there", Placement(0, "worker", "node-a", (7,), 500, (4, 4)), False),
        ("on no place inside its device", Placement(0, "worker", "node-a", (0,), 500), False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_instance_of_a_gpu_is_placed_where_it_may_be(sentence: str, placement: Placement, fits: bool) -> None:
    node = empty_node(node_seen("node-a", 1, device_profile="mig", mig_geometry="40gb"))
    assert (list(placement_faults((MIG,), (placement,), {"node-a": node})) == []) is fits, sentence


def test_an_instance_is_not_placed_on_another() -> None:
    node = empty_node(node_seen("node-a", 1, device_profile="mig", mig_geometry="40gb"))
    there = Placement(0, "worker", "node-a", (0,), 500, (4, 4))
    taken = node.taking(MIG.need, there, 1)
    assert list(placement_faults((MIG,), (there,), {"node-a": taken}))


def test_pods_that_must_lie_in_one_domain_are_not_placed_in_two() -> None:
    nodes = {n: empty_node(node_seen(n, 8, labels={"rack": n})) for n in ("node-a", "node-b")}
    roles = (RoleNeed("worker", 2, Need(1000, GIB, gpus=1), levels=("rack",), bound=True),)
    apart = tuple(Placement(rank, "worker", name, (0,), 1000) for rank, name in enumerate(nodes))
    assert any("one domain" in fault for fault in placement_faults(roles, apart, nodes))
    together = tuple(Placement(rank, "worker", "node-a", (rank,), 1000) for rank in range(2))
    assert list(placement_faults(roles, together, nodes)) == []
