"""A gang is placed whole, by the documented tie rule, or not at all and with numbers that say why."""

import random
from sys import setprofile

import pytest

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.engine.placement.gangs import FreeCapacity, place_gang
from tessera.engine.placement.inadmissible import inadmissible
from tessera_schemas.reasons import Code, Reason
from tests.builders import node_seen
from tests.unit.engine.engine_builders import GIB, cluster, need, node, roles, taint


def placed(gang: tuple[RoleNeed, ...], nodes: dict[str, Node]) -> list[tuple[str, tuple[int, ...]]]:
    verdict = place_gang(gang, nodes)
    assert not isinstance(verdict, Reason)
    return [(placement.node, placement.devices) for placement in verdict]


def refused(gang: tuple[RoleNeed, ...], nodes: dict[str, Node]) -> Reason:
    verdict = place_gang(gang, nodes)
    assert isinstance(verdict, Reason)
    return verdict


# -- the tie rule ---------------------------------------------------------------------------------------------------

TIES = [
    pytest.param([node("a"), node("b", free=(0,) * 4 + (1000,) * 4)], "b", id="least GPU left free"),
    pytest.param([node("a", cpu_free=9000), node("b", cpu_free=8000)], "b", id="equal in GPUs, so the least CPU left"),
    pytest.param(
        [node("a", memory_free=9 * GIB), node("b", memory_free=8 * GIB)], "b", id="equal in CPU, so the least memory"
    ),
    pytest.param([node("b"), node("a")], "a", id="equal in everything, so the name"),
    pytest.param([node("a", cpu_free=1000), node("b", free=(0,) * 4 + (1000,) * 4)], "b", id="GPUs come before CPU"),
]


@pytest.mark.parametrize(("nodes", "best"), TIES)
def test_the_fullest_node_is_best_by_the_documented_order(nodes: list[Node], best: str) -> None:
    for wanted in (need(gpus=1), need()):
        for order in (nodes, nodes[::-1]):
            assert placed(roles((1, wanted)), cluster(*order))[0][0] == best


def test_a_pod_without_a_gpu_prefers_a_node_without_a_free_one() -> None:
    assert placed(roles((1, need())), cluster(node("a"), node("b", gpus=0)))[0][0] == "b"


def test_empty_nodes_stay_whole_for_large_gangs() -> None:
    nodes = cluster(node("a"), node("b", free=(0, *(1000,) * 7)), node("c"))
    assert {name for name, _ in placed(roles((7, need(gpus=1))), nodes)} == {"b"}


def preferring(*each: tuple[int, str]) -> Need:
    """Prefers nodes of these racks, each with its weight."""
    return need(gpus=1, affinity_preferred=tuple((weight, (("rack", "In", (rack,)),)) for weight, rack in each))


def on_racks() -> dict[str, Node]:
    """Best fit likes `c` most, then `b`."""
    return cluster(
        node("a", labels={"rack": "r0"}),
        node("b", free=(1000,) * 3, gpus=3, labels={"rack": "r1"}),
        node("c", free=(1000,) * 2, gpus=2, labels={"rack": "r2"}),
    )


def test_what_a_pod_prefers_comes_before_the_score_and_the_highest_sum_of_weights_first() -> None:
    assert placed(roles((1, need(gpus=1))), on_racks())[0][0] == "c"
    assert placed(roles((1, preferring((1, "r0")))), on_racks())[0][0] == "a"
    assert placed(roles((1, preferring((30, "r0"), (20, "r1"), (20, "r1")))), on_racks())[0][0] == "b"
    assert placed(roles((1, preferring((30, "r9")))), on_racks())[0][0] == "c"  # nobody has it: the score alone


def test_pods_go_on_to_what_they_prefer_less_and_none_waits_for_it() -> None:
    gang = roles((6, preferring((10, "r1"))))
    assert [name for name, _ in placed(gang, on_racks())] == ["b"] * 3 + ["c"] * 2 + ["a"]
    room = FreeCapacity(on_racks().values())
    for _ in range(2):  # from the table as from every node anew
        found = room.place(gang)
        assert not isinstance(found, Reason)
        assert [each.node for each in found][:3] == ["b"] * 3
        room.give_back(gang, found)


# -- whole or not at all --------------------------------------------------------------------------------------------


def test_ranks_run_through_the_roles_in_their_order() -> None:
    gang = roles((2, need(gpus=1)), (1, need()))
    verdict = place_gang(gang, cluster(node("a")))
    assert not isinstance(verdict, Reason)
    assert [(p.rank, p.role) for p in verdict] == [(0, "role-0"), (1, "role-0"), (2, "role-1")]


def test_the_pods_of_one_gang_never_share_a_whole_device() -> None:
    devices = [device for _, taken in placed(roles((4, need(gpus=2))), cluster(node("a"))) for device in taken]
    assert sorted(devices) == list(range(8))


def test_a_gang_that_fits_only_in_part_gets_no_node_at_all() -> None:
    room = FreeCapacity([node("a"), node("b")])
    before = dict(room.nodes)
    assert isinstance(room.place(roles((3, need(gpus=8)))), Reason)
    assert room.nodes == before


def test_a_gang_that_was_placed_takes_its_room() -> None:
    room = FreeCapacity([node("a")])
    assert not isinstance(room.place(roles((1, need(gpus=5)))), Reason)
    assert isinstance(room.place(roles((1, need(gpus=4)))), Reason)
    assert not isinstance(room.place(roles((1, need(gpus=3)))), Reason)


def test_equal_gangs_share_the_first_verdict_of_a_pass_by_value_not_by_identity() -> None:
    room = FreeCapacity([node("a")])
    first = room.place(roles((9, need(gpus=1))))
    room.place(roles((3, need(gpus=1))))
    assert room.place(roles((9, need(gpus=1)))) == first


# -- why not --------------------------------------------------------------------------------------------------------


def test_no_ready_node_at_all_is_its_own_reason() -> None:
    assert refused(roles((1, need())), cluster(node("a", ready=False))).code is Code.NO_NODES
    assert refused(roles((1, need())), {}).code is Code.NO_NODES


def test_a_no_counts_how_many_nodes_failed_which_test_and_how_near_the_nearest_came() -> None:
    nodes = cluster(
        node("a", free=(0,) * 5 + (1000,) * 3),
        node("b", gpus=2),
        node("c", ready=False),
        node("d", taints=(taint("own"),)),
    )
    reason = refused(roles((1, need(gpus=4))), nodes)
    assert (reason.code, reason.field) == (Code.NO_FIT, "roles.role-0")
    assert reason.numbers == {
        "nodes_not_ready": 1,
        "nodes_tainted": 1,
        "nodes_short_of_gpu": 2,
        "nodes": 4,
        "pods_placed": 0,
        "pods": 1,
        "gpus_wanted": 4,
        "most_gpus_free_on_a_node": 3,
    }


def test_a_no_says_how_many_pods_had_found_a_place_and_for_which_role_there_was_none() -> None:
    reason = refused(roles((2, need(gpus=4)), (3, need(gpus=1))), cluster(node("a")))
    assert reason.field == "roles.role-1"
    assert (reason.numbers["pods_placed"], reason.numbers["pods"]) == (2, 5)


def test_a_no_after_a_part_was_placed_tells_how_near_the_nodes_come_as_they_are() -> None:
    """Not as they would be with the pods of the gang that had found a place: nobody could find that node."""
    reason = refused(roles((3, need(gpus=8))), cluster(node("a"), node("b")))
    assert reason.numbers["most_gpus_free_on_a_node"] == 8
    assert (reason.numbers["pods_placed"], reason.numbers["nodes_filled_by_its_own_pods"]) == (2, 2)
    assert "nodes_short_of_gpu" not in reason.numbers


def test_a_no_for_a_share_names_the_largest_share_there_is() -> None:
    reason = refused(
        roles((1, need(gpu_milli=600))), cluster(node("a", gpus=2, free=(500, 200), device_profile="shares"))
    )
    assert (reason.numbers["gpu_milli_wanted"], reason.numbers["most_gpu_milli_free_on_a_device"]) == (600, 500)


def test_a_no_is_the_same_bytes_whatever_order_the_nodes_come_in() -> None:
    nodes = [node("a", ready=False), node("b", gpus=1), node("c", cpu_free=0), node("d", taints=(taint("x"),))]
    said = set()
    for seed in range(10):
        random.Random(seed).shuffle(nodes)
        said.add(refused(roles((1, need(gpus=2))), cluster(*nodes)).to_bytes())
    assert len(said) == 1


# -- never ----------------------------------------------------------------------------------------------------------


def never(gang: tuple[RoleNeed, ...], *nodes: Node) -> Reason:
    reason = inadmissible(gang, nodes)
    assert reason is not None
    assert reason.code is Code.INADMISSIBLE
    return reason


def test_a_pod_larger_than_every_node_is_inadmissible_and_the_largest_is_named() -> None:
    reason = never(roles((1, need(gpus=16))), node("a", gpus=4), node("b", gpus=8, cpu_milli=32_000))
    assert reason.numbers["largest_gpus"] == 8
    assert reason.numbers["largest_cpu_milli"] == 64_000
    assert reason.detail == "the largest suitable node has 8 GPUs, 64 CPUs and 512Gi of memory"


def test_a_gang_larger_than_the_empty_pool_is_inadmissible() -> None:
    reason = never(roles((3, need(gpus=8))), node("a"), node("b"))
    assert reason.detail == "at most 2 of its 3 pods fit into the empty pool"


def test_a_model_that_no_node_has_is_inadmissible() -> None:
    assert "no node satisfies" in never(roles((1, need(gpus=1, gpu_models=("b200",)))), node("a")).detail


def test_roles_that_fit_alone_but_never_together_are_inadmissible() -> None:
    reason = never(roles((1, need(gpus=8)), (1, need(gpus=1))), node("a"))
    assert (reason.field, reason.numbers) == ("roles", {"wanted_gpu_milli": 9000, "gpu_milli_of_all_nodes": 8000})


@pytest.mark.parametrize(
    "busy",
    [node("a", free=(0,) * 8), node("a", cpu_free=0), node("a", ready=False), node("a", pods_free=0)],
    ids=["its GPUs are taken", "its CPUs are taken", "it is not ready", "it is full of pods"],
)
def test_a_node_that_could_hold_the_gang_at_another_time_makes_it_admissible(busy: Node) -> None:
    assert inadmissible(roles((1, need(gpus=8))), [busy]) is None


def test_nothing_is_inadmissible_before_any_node_is_known() -> None:
    assert inadmissible(roles((1, need(gpus=64))), []) is None


def test_a_gang_that_best_fit_misses_on_empty_nodes_is_admissible_if_some_state_holds_it() -> None:
    """Empty, best fit puts the first role on node a, which the second one needs; with b fuller it would not."""
    gang = roles((1, need(gpus=4)), (1, need(gpus=4, node_selector=(("only", "here"),))))
    nodes = cluster(node("a", gpus=4, labels={"only": "here"}), node("b", gpus=4))
    assert isinstance(place_gang(gang, nodes), Reason)
    fuller = cluster(nodes["a"], node("b", gpus=4, cpu_free=2000))
    assert not isinstance(place_gang(gang, fuller), Reason)
    assert inadmissible(gang, nodes.values()) is None


def names_walked_through(call) -> set[tuple[str, str]]:
    """Modules and functions of ours that a call runs, those inside functions left out."""
    found = set()

    def note(frame, event, _argument) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("tessera"):
            found.add((module, frame.f_code.co_qualname.split(".<locals>")[0]))

    setprofile(note)
    try:
        call()
    finally:
        setprofile(None)
    return found


def test_a_pod_of_a_known_kind_walks_through_33_functions_in_5_modules_of_the_engine():
    """A ratchet: these numbers may only fall."""
    room = FreeCapacity([empty_node(node_seen(f"node-{number}", 8)) for number in range(8)])
    one = (RoleNeed("worker", 1, Need(4000, 2**30, gpus=1)),)
    room.place(one)
    found = names_walked_through(lambda: room.place(one))
    assert len({module for module, _ in found if module.startswith("tessera.engine")}) <= 5
    assert len(found) <= 33
