"""`tessera explain` of a job that has its devices: which one each pod has, and what keeps it apart."""

from typing import Any

import pytest

from tessera.engine.explain.explanation import explain
from tessera_schemas.job import Role
from tests.builders import admitted, job_spec, node_seen, role
from tests.published_devices import (
    DRIVER,
    NIC_DRIVER,
    claim,
    claiming,
    class_seen,
    gpus_with_nics,
    layout_seen,
    offering,
    selected,
    shared_gpus,
)
from tests.rounds import Rounds, share

GPU, NIC = "it is a GPU", "it is a NIC"


def told(world: Rounds, *roles: Role) -> list[str]:
    """What is said of the devices of such a job once it has them."""
    world.commit(admitted("one", job_spec(*roles, name="one")))
    world.settle()
    found = explain(world.state, world.job("one").job_id, world.state.ts)
    assert found is not None
    return [each for each in found.sentences if each.startswith("Pod ") or "further pods" in each]


@pytest.mark.parametrize(
    ("node", "asks", "said"),
    [
        ({"device_profile": "whole"}, {"gpus": 2}, "GPUs 0, 1 (isolation: hardware)"),
        ({"device_profile": "shares"}, {"gpu_milli": 250}, "0.25 of GPU 0 (isolation: none)"),
        ({"device_profile": "mps", "share_milli": 500}, {"gpu_milli": 500}, "0.5 of GPU 0 (isolation: compute)"),
        (
            {"device_profile": "visible-devices", "gpu_uuids": ("GPU-a", "GPU-b")},
            {"gpus": 1},
            "GPU GPU-a (isolation: hardware)",
        ),
        (
            {"device_profile": "mig", "mig_geometry": "80gb"},
            {"mig_profile": "1g.10gb"},
            "MIG instance 1g.10gb at slice 6 of GPU 0 (isolation: hardware)",
        ),
        (
            {"device_profile": "hami", "gpu_uuids": ("GPU-a", "GPU-b"), "gpu_memory_bytes": 80 * 2**30},
            {"gpu_milli": 250, "gpu_parts": 2},
            "0.25 of each of GPUs GPU-a, GPU-b (isolation: compute)",
        ),
        (
            {"device_profile": "mig", "mig_geometry": "80gb"},
            {"mig_profile": "3g.40gb", "gpu_parts": 2},
            "2 MIG instances 3g.40gb at slice 0 of GPU 0, slice 4 of GPU 0 (isolation: hardware)",
        ),
    ],
    ids=["whole", "share", "replica", "a card by its name", "instance", "several shares", "several instances"],
)
def test_what_a_device_plugin_offers_is_said_by_slot_part_and_instance(
    node: dict[str, Any], asks: dict[str, Any], said: str
) -> None:
    world = Rounds(share("research", 64, None), nodes=[node_seen("node-0", 2, **node)])
    assert told(world, role(**({"gpus": 0} | asks))) == [f"Pod 0 has on node-0: {said}."]


def test_claimed_devices_are_said_by_name_with_their_gpu_and_isolation() -> None:
    layout = gpus_with_nics(4)
    classes = [class_seen(DRIVER, GPU), class_seen(NIC_DRIVER, NIC)]
    world = Rounds(share("research", 64, None), nodes=[layout_seen(layout), *classes, offering("node-0", layout, 4)])
    world.commit(selected(layout, 0b00001111, GPU), selected(layout, 0b11110000, NIC))
    pods = claiming(claim(), claim("nic", device_class=NIC_DRIVER), replicas=2)
    assert told(world, pods) == [
        f"Pod {rank} has on node-0: {DRIVER}/node-0/gpu-{rank} (claim gpu, 1 of GPU {rank}, isolation: hardware), "
        f"{NIC_DRIVER}/node-0/nic-{rank} (claim nic)."
        for rank in range(2)
    ]


def test_a_share_that_is_claimed_is_said_with_its_part_and_many_pods_are_counted() -> None:
    layout = shared_gpus(2)
    world = Rounds(
        share("research", 64, None), nodes=[layout_seen(layout), class_seen(), offering("node-0", layout, 2)]
    )
    first, *others = told(world, claiming(claim(), replicas=10))
    assert first.endswith("(claim gpu, 0.1 of GPU 0, isolation: none).")
    assert len(others) == 8
    assert others[-1] == "2 further pods have devices, too; `tessera get` lists them."


def test_a_device_that_is_published_no_more_has_its_name_alone() -> None:
    layout = shared_gpus(2)
    world = Rounds(
        share("research", 64, None), nodes=[layout_seen(layout), class_seen(), offering("node-0", layout, 2)]
    )
    told(world, claiming(claim()))
    world.commit(node_seen("node-0", 0, device_profile="dra"))
    found = explain(world.state, world.job("one").job_id, world.state.ts)
    assert found is not None
    assert f"Pod 0 has on node-0: {DRIVER}/node-0/gpu-0 (claim gpu)." in found.sentences
