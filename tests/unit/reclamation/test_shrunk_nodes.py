"""Which nodes are short of what their runs hold, and which runs have lost it: only those whose pods say so."""

from dataclasses import replace

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Node
from tessera.domain.entities import Run
from tessera.reclamation.lost_runs.decide import broken, is_short
from tessera_schemas.reasons import Code, Reason
from tests.builders import node_seen, placement
from tests.unit.binder.binder_builders import run

GPU = "nvidia.com/gpu"


def node(**size: object) -> Node:
    return empty_node(node_seen("node-a", **size))  # type: ignore[arg-type]


def holding(name: str, *devices: int, hcas: int = 0, **more: object) -> Run:
    """A run of one pod on node-a."""
    one = run()
    need = replace(one.roles[0].need, devices=(("rdma/hca", hcas),) if hcas else ())
    roles = (replace(one.roles[0], need=need),)
    return replace(one, run_id=name, roles=roles, placements=(placement(devices=devices),), **more)  # type: ignore[arg-type]


def test_only_the_sum_of_what_is_held_compares_where_the_kubelet_picks_the_cards() -> None:
    assert not is_short(node(gpus=7), [holding("a", 6, 7), holding("b", 0, 1, 2, 3)])
    assert is_short(node(gpus=5), [holding("a", 6, 7), holding("b", 0, 1, 2, 3)])


def test_a_node_that_is_silent_or_gone_says_nothing_of_its_size() -> None:
    assert not is_short(node(gpus=0, ready=False), [holding("a", 0)])
    assert not is_short(node(gpus=0, gone=True), [holding("a", 0)])


def test_a_cordoned_node_does() -> None:
    assert is_short(node(gpus=0, ready=False, cordoned=True), [holding("a", 0)])


def test_less_memory_or_cpu_makes_no_node_short() -> None:
    assert not is_short(node(gpus=1, cpu_milli=1, memory_bytes=1, pods=0), [holding("a", 0)])


def test_further_devices_compare_by_their_number() -> None:
    small, large = holding("a", 0, hcas=1), holding("b", 1, hcas=3)
    assert not is_short(node(gpus=2, devices={"rdma/hca": 4}), [small, large])
    assert is_short(node(gpus=2, devices={"rdma/hca": 3}), [small, large])
    assert is_short(node(gpus=2), [small, large])


def test_a_node_that_names_other_cards_than_its_runs_hold_is_short() -> None:
    changed = Reason(code=Code.DEVICES_CHANGED, field="nodes.node-a")
    assert is_short(node(gpus=8, ready=False, trouble=changed), [holding("a", 0)])


def test_a_run_has_lost_its_device_when_its_own_pod_says_so_and_else_never() -> None:
    short = node(gpus=0)
    assert broken(run(), short, {}) is None
    fact = broken(run(), short, {0: (GPU,)})
    assert fact is not None
    assert (fact.reason.code, fact.nodes, fact.ranks) == (Code.NODE_SHRUNK, ("node-a",), ())
    assert GPU in fact.reason.detail
