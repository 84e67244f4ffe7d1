"""Which runs a node that shrank has lost: the fewest, and none for what the kubelet settles by itself."""

from dataclasses import replace

from tessera.domain.entities import Run
from tessera.domain.resources import Node, empty_node
from tessera.reclamation.lost_runs.decide import shrunk_under
from tests.builders import node_seen, placement
from tests.unit.binder.binder_builders import run


def node(**size: object) -> Node:
    return empty_node(node_seen("node-a", **size))  # type: ignore[arg-type]


def holding(name: str, *devices: int, hcas: int = 0, **more: object) -> Run:
    """A run of one pod on node-a."""
    one = run()
    need = replace(one.roles[0].need, devices=(("rdma/hca", hcas),) if hcas else ())
    roles = (replace(one.roles[0], need=need),)
    return replace(one, run_id=name, roles=roles, placements=(placement(devices=devices),), **more)  # type: ignore[arg-type]


def lost(at: Node, *runs: Run) -> list[str]:
    return sorted(one.run_id for one in shrunk_under(at, runs))


def test_who_holds_a_gpu_that_is_not_there_any_more_has_lost_it() -> None:
    assert lost(node(gpus=4), holding("a", 0, 1), holding("b", 2, 3), holding("c", 3, 4)) == ["c"]


def test_a_run_that_is_on_its_way_out_is_not_lost_again() -> None:
    assert lost(node(gpus=0), holding("a", 0, over=True)) == []


def test_a_node_that_is_not_ready_says_nothing_of_its_size() -> None:
    assert lost(node(gpus=0, ready=False), holding("a", 0)) == []


def test_less_memory_or_cpu_costs_nobody_a_run() -> None:
    assert lost(node(gpus=1, cpu_milli=1, memory_bytes=1, pods=0), holding("a", 0)) == []


def test_of_further_devices_the_fewest_runs_make_room() -> None:
    small, large = holding("a", 0, hcas=1), holding("b", 1, hcas=3)
    assert lost(node(gpus=2, devices={"rdma/hca": 4}), small, large) == []
    assert lost(node(gpus=2, devices={"rdma/hca": 2}), small, large) == ["b"]
    assert lost(node(gpus=2), small, large) == ["a", "b"]


def test_who_lost_a_gpu_gives_its_further_devices_back_too() -> None:
    assert lost(node(gpus=1, devices={"rdma/hca": 1}), holding("a", 0, hcas=1), holding("b", 1, hcas=3)) == ["b"]
