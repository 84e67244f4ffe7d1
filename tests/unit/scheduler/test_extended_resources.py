"""Counted resources that a class of published devices answers: `gpus` of a job on nodes of a driver."""

from typing import Any

from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.placement.faults import placement_faults
from tessera_schemas.cluster.device_layouts import DeviceLayout, DeviceTaint, TakenDevice
from tessera_schemas.job import Role
from tessera_schemas.reasons import Code
from tessera_schemas.work.placement import EXTENDED_CLAIM
from tests.builders import admitted, job_spec, node_seen, role
from tests.published_devices import (
    DRIVER,
    claim,
    class_seen,
    cut_gpus,
    layout_seen,
    offering,
    shared_gpus,
    whole_gpus,
)
from tests.rounds import Rounds, share

GPU = "nvidia.com/gpu"
NIC = "example.com/nic"
FOUR = whole_gpus(4)


def cluster(layout: DeviceLayout = FOUR, *more: Any, answers: str = GPU, gpus: int = 4, **offer: Any) -> Rounds:
    """A node of a driver whose class answers a counted resource, and more nodes."""
    driven = offering("driven", layout, gpus, **offer)
    seen = class_seen(extended_resource=answers)
    return Rounds(share("research", 64, None), nodes=[layout_seen(layout), seen, driven, *more])


def submit(world: Rounds, key: str, *roles: Role, **spec: Any) -> None:
    world.commit(admitted(key, job_spec(*roles, name=key, **spec)))
    world.settle()


def counting(gpus: int = 0, **devices: int) -> Role:
    """A role of one pod that counts on devices."""
    made = role(gpus=gpus)
    named = {NIC if name == "nic" else name: count for name, count in devices.items()}
    return made.model_copy(update={"resources": made.resources.model_copy(update={"devices": named})})


def drawn(world: Rounds, key: str) -> list[tuple[str, str]]:
    """Request and device of each device that the job's pods have by claims."""
    run = world.run(key)
    return [] if run is None else [(d.request, d.device) for p in run.all_placements for d in p.drawn]


def free(world: Rounds, node: str = "driven") -> tuple[int, ...]:
    found: tuple[int, ...] = world.state.nodes.get(node).gpu_free
    return found


def test_gpus_are_answered_by_devices_of_the_class_and_are_free_again_once_the_run_is_absent() -> None:
    world = cluster()
    submit(world, "one", role(gpus=3))
    (place,) = world.run("one").all_placements
    assert (place.node, place.devices, place.gpu_milli) == ("driven", (), 0)
    assert [(d.claim, d.request, d.driver, d.device) for d in place.drawn] == [
        (EXTENDED_CLAIM, GPU, DRIVER, f"gpu-{at}") for at in range(3)
    ]
    assert free(world) == (0, 0, 0, 1000)
    assert world.job("one").amount.gpu_milli == 3000
    submit(world, "two", role(gpus=2))
    reason = world.job("two").reason
    assert (reason.code, reason.numbers["most_gpus_free_on_a_node"]) == (Code.NO_FIT, 1)
    world.finish("one")
    world.settle()
    assert drawn(world, "two") == [(GPU, "gpu-0"), (GPU, "gpu-1")]


def test_one_gang_has_pods_on_nodes_of_a_device_plugin_and_of_a_driver() -> None:
    world = cluster(FOUR, node_seen("plugged", 4))
    submit(world, "gang", role(gpus=4, replicas=2))
    places = {place.node: place for place in world.run("gang").all_placements}
    assert places["plugged"].devices == (0, 1, 2, 3)
    assert places["plugged"].drawn == ()
    assert places["driven"].devices == ()
    assert len(places["driven"].drawn) == 4
    assert free(world, "plugged") == free(world) == (0,) * 4


def test_what_another_claim_has_and_what_is_tainted_is_not_given() -> None:
    had = TakenDevice(device=f"{DRIVER}/driven/gpu-0")
    bad = DeviceTaint(device=f"{DRIVER}/driven/gpu-2", key="sick", effect="NoSchedule")
    world = cluster(taken=(had,), tainted=(bad,))
    submit(world, "one", role(gpus=3))
    assert drawn(world, "one") == []
    assert "1 tainted by sick" in world.job("one").reason.detail
    submit(world, "two", role(gpus=2))
    assert drawn(world, "two") == [(GPU, "gpu-1"), (GPU, "gpu-3")]


def test_gpus_by_number_and_a_claim_of_ones_own_get_distinct_devices() -> None:
    world = cluster()
    both = role(gpus=2)
    asked = both.resources.model_copy(update={"claims": (claim(count=2),)})
    submit(world, "one", both.model_copy(update={"resources": asked}))
    (place,) = world.run("one").all_placements
    assert len({d.id for d in place.drawn}) == 4
    assert sorted({d.claim for d in place.drawn}) == [EXTENDED_CLAIM, "gpu"]


def test_a_job_waits_and_starts_once_a_class_answers_and_no_class_of_parts_does() -> None:
    world = cluster(answers="")
    submit(world, "one", role(gpus=1))
    assert world.job("one").reason.numbers["nodes_of_other_device_profile"] == 1
    world.commit(class_seen(extended_resource=GPU))
    world.settle()
    assert drawn(world, "one") == [(GPU, "gpu-0")]
    for layout in (cut_gpus(2), shared_gpus(2)):
        parts = cluster(layout, gpus=2)
        submit(parts, "one", role(gpus=1))
        assert drawn(parts, "one") == []


def test_shares_and_instances_are_not_answered_by_a_class() -> None:
    world = cluster()
    half = role(gpus=0)
    asked = half.resources.model_copy(update={"gpu_milli": 500})
    submit(world, "half", half.model_copy(update={"resources": asked}))
    assert drawn(world, "half") == []


def test_other_devices_are_answered_by_a_class_where_no_plugin_has_them() -> None:
    world = cluster(FOUR, node_seen("plugged", 0, devices={NIC: 1}), answers=NIC)
    for key in ("one", "two"):
        submit(world, key, counting(nic=1))
    assert {world.run(key).all_placements[0].node for key in ("one", "two")} == {"plugged", "driven"}
    submit(world, "four", counting(nic=4))
    assert world.job("four").reason.numbers[f"most_{NIC}_free_on_a_node"] == 3
    submit(world, "three", counting(nic=3))
    assert [request for request, _ in drawn(world, "three")] == [NIC] * 3


def test_a_placement_of_devices_is_judged_by_the_class() -> None:
    world = cluster()
    submit(world, "one", role(gpus=2))
    run, nodes = world.run("one"), {node.name: node for node in world.state.nodes.values()}
    roles = world.job("one").roles
    world.finish("one")
    empty = {node.name: node for node in world.state.nodes.values()}
    assert list(placement_faults(roles, run.placements, empty)) == []
    assert any("cannot have" in fault for fault in placement_faults(roles, run.placements, nodes))


def test_a_restored_state_is_the_same() -> None:
    world = cluster()
    submit(world, "one", role(gpus=2))
    restored = load(iter(list(dump(world.state))))
    assert StateHash().of(restored) == StateHash().of(world.state)
    assert restored.nodes.get("driven") == world.state.nodes.get("driven")
