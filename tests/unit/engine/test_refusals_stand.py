"""A refusal stands until a node gains room that the gang could use; its numbers are counted when somebody asks."""

from dataclasses import replace

from tessera.domain.devices.resources import RoleNeed
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.scoring.protocol import BEST_FIT
from tessera_schemas.reasons import Code, Reason
from tests.unit.engine.engine_builders import need, node, roles


def test_numbers_that_are_asked_for_later_are_of_the_nodes_at_the_time_of_the_refusal() -> None:
    room = FreeCapacity([node("a", gpus=4), node("b", gpus=4)])
    large, small = roles((1, need(gpus=8))), roles((1, need(gpus=4)))
    assert room.refusal(large) is Code.NO_FIT
    room.place(small)
    room.place(small)
    late = room.find(large)
    assert isinstance(late, Reason)
    assert late.numbers["most_gpus_free_on_a_node"] == 4
    assert room.renewed(room.nodes.values(), BEST_FIT)
    now = room.find(large)
    assert isinstance(now, Reason)
    assert now.numbers["most_gpus_free_on_a_node"] == 0


def test_roles_that_are_in_each_others_way_are_searched_again_once_a_node_of_theirs_changed() -> None:
    nodes = {
        "x": node("x", gpus=1, cpu_milli=2000),
        "y": node("y", gpus=2, cpu_milli=4000, cpu_free=1000),
        "z": node("z", gpus=8, gpu_model="a100"),
    }
    gang = roles(
        (1, need(cpu_milli=2000, gpu_models=("h100",))), (1, need(gpus=1, cpu_milli=2000, gpu_models=("h100",)))
    )
    room = FreeCapacity(nodes.values())
    assert room.refusal(gang) is None  # each of its roles has room alone
    assert isinstance(room.find(gang), Reason)
    nodes["z"] = replace(nodes["z"], cpu_free=1)
    assert room.renewed(nodes.values(), BEST_FIT)
    assert room.refusal(gang) is Code.NO_FIT
    nodes["y"] = replace(nodes["y"], cpu_free=4000)
    assert room.renewed(nodes.values(), BEST_FIT)
    assert room.refusal(gang) is None
    assert not isinstance(room.find(gang), Reason)


def test_roles_that_ask_for_more_gpus_together_than_are_free_are_refused_without_a_search() -> None:
    nodes = {name: node(name, cpu_free=64_000, free=(1000,) * 4 + (0,) * 4) for name in "ab"}
    gang = roles((6, need(gpus=1)), (1, need(gpus=3)))
    room = FreeCapacity(nodes.values())
    assert room.refusal(gang) is Code.NO_FIT  # each of its roles has room alone
    assert isinstance(room.find(gang), Reason)
    nodes["a"] = replace(nodes["a"], gpu_free=(1000,) * 5 + (0,) * 3)
    assert room.renewed(nodes.values(), BEST_FIT)
    assert room.refusal(gang) is None
    assert not isinstance(room.find(gang), Reason)


def test_a_gang_that_was_placed_is_not_known_as_refused() -> None:
    room, one = FreeCapacity([node("a", gpus=1)]), roles((1, need(gpus=1)))
    assert room.refusal(one) is None
    assert not isinstance(room.find(one), Reason)
    assert room.refusal(one) is None


def test_a_gang_bound_to_a_rack_is_refused_until_one_rack_has_the_room() -> None:
    nodes = {f"{rack}{at}": node(f"{rack}{at}", labels={"rack": rack}) for rack in "ab" for at in range(3)}
    nodes["a0"], nodes["b0"] = (replace(nodes[name], gpu_free=(0,) * 8) for name in ("a0", "b0"))
    gang = (RoleNeed("w", 3, need(gpus=8), levels=("rack",), bound=True),)
    room = FreeCapacity(nodes.values())
    assert room.refusal(gang) is Code.NO_FIT
    nodes["b0"] = replace(nodes["b0"], gpu_free=(1000,) * 8)
    assert room.renewed(nodes.values(), BEST_FIT)
    assert room.refusal(gang) is None
    found = room.find(gang)
    assert not isinstance(found, Reason)
    assert {placement.node for placement in found} == {"b0", "b1", "b2"}


def test_without_a_ready_node_the_reason_says_so() -> None:
    room, one = FreeCapacity([node("a", ready=False)]), roles((1, need(gpus=1)))
    verdict = room.find(one)
    assert isinstance(verdict, Reason)
    assert room.refusal(one) is verdict.code is Code.NO_NODES
