"""GPUs of every vendor: read from nodes, asked for by jobs and users' pods, and never taken for one another."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.admission.decide.pods import not_the_clients
from tessera.binder.adoption.decide.amounts import resources_of
from tessera.binder.decide.nodes import node_seen
from tessera.client.ledger.replay import verify
from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import replace
from tessera.domain.devices.slots import while_held
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas.cluster.device_vendors import GPU_RESOURCES, GpuResource, known_gpu_resources
from tessera_schemas.config import Pool
from tessera_schemas.facts import Others
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, config_body, config_proposed
from tests.unit.binder.adoption.adoption_world import AdoptionWorld
from tests.unit.binder.api_nodes import api_node
from tests.unit.binder.cluster_world import World, train

AMD, NVIDIA, TPU = "amd.com/gpu", "nvidia.com/gpu", "google.com/tpu"
Json = dict[str, Any]


def offering(labels: Json | None = None, **room: str) -> Json:
    return api_node(room={NVIDIA: "0", **room}, metadata={"labels": labels or {}})


@pytest.mark.parametrize("kind", GPU_RESOURCES, ids=lambda kind: kind.resource)
def test_a_node_has_the_gpus_that_the_plugin_of_its_vendor_offers(kind: GpuResource) -> None:
    labels = {kind.model_label: "Model-1"} if kind.model_label else {}
    seen = node_seen(offering(labels, **{kind.resource: "8"}))
    resource = "" if kind.resource == NVIDIA else kind.resource
    assert (seen.gpus, seen.gpu_resource, seen.devices) == (8, resource, {})
    assert (seen.gpu_model, seen.gpu_default) == ("Model-1" if labels else "", kind.resource == NVIDIA)


def test_devices_that_are_no_gpus_stay_counted_by_their_names() -> None:
    others = {"rdma/hca": "2", "xilinx.com/fpga-xilinx_u250": "1", "amd.com/cpx_nps4": "64"}
    seen = node_seen(offering(**others))
    assert (seen.gpus, seen.devices) == (0, {name: int(count) for name, count in others.items()})


def test_memory_is_read_as_the_vendor_writes_it() -> None:
    seen = node_seen(offering({"amd.com/gpu.vram": "192G"}, **{AMD: "8"}))
    assert seen.gpu_memory_bytes == 192 * 2**30


NOT_WHOLE = {
    "AMD's GPUs are cut": (AMD, {"amd.com/compute-memory-partition": "cpx_nps4"}, "partitions (cpx_nps4)"),
    "containers share Intel's": ("gpu.intel.com/i915", {"gpu.intel.com/device.count": "2"}, "has 2 GPUs"),
}


@pytest.mark.parametrize(("resource", "labels", "why"), NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_parts_that_a_plugin_offers_as_gpus_are_counted_as_none_and_said(resource: str, labels: Json, why: str) -> None:
    seen = node_seen(offering(labels, **{resource: "8"}))
    assert seen.trouble is not None
    assert (seen.gpus, seen.trouble.code) == (0, Code.NOT_WHOLE_GPUS)
    assert why in seen.trouble.detail
    assert node_seen(offering({"amd.com/compute-memory-partition": "spx_nps1"}, **{AMD: "8"})).gpus == 8


def test_of_two_vendors_on_one_node_the_pool_says_which_and_else_nvidia_counts() -> None:
    both = offering(**{NVIDIA: "4", AMD: "2"})
    seen = node_seen(both)
    assert (seen.gpus, seen.gpu_resource, seen.devices) == (4, "", {AMD: 2})
    seen = node_seen(both, pools=(Pool(name="default", gpu_resource=AMD),))
    assert (seen.gpus, seen.gpu_resource, seen.gpu_default) == (2, AMD, True)
    neither = node_seen(offering(**{TPU: "4", AMD: "2"}))
    assert neither.trouble is not None
    assert neither.trouble.code is Code.DEVICE_CONFLICT
    assert "pools[].gpu_resource" in neither.trouble.detail


def test_what_others_have_of_the_vendors_gpus_is_not_free() -> None:
    seen = node_seen(offering(**{AMD: "8"}), Others(pods=1, devices={AMD: 3, "rdma/hca": 1}))
    assert (seen.others.gpus, seen.others.devices) == (3, {"rdma/hca": 1})


def test_profiles_that_name_nvidias_cards_hand_out_no_others() -> None:
    node = api_node(room={NVIDIA: "0", AMD: "8"}, metadata={"annotations": {"tessera.io/device-profile": "hami"}})
    trouble = node_seen(node).trouble
    assert trouble is not None
    assert (trouble.code, "8 of amd.com/gpu" in trouble.detail) == (Code.DEVICE_CONFLICT, True)


def test_the_configuration_adds_resources_that_are_gpus() -> None:
    more = GpuResource(resource="hygon.com/dcu", model_label="hygon.com/product", memory_label="hygon.com/memory")
    node = offering({"hygon.com/product": "K100", "hygon.com/memory": "65536"}, **{"hygon.com/dcu": "8"})
    assert node_seen(node).devices == {"hygon.com/dcu": 8}
    seen = node_seen(node, known=known_gpu_resources((more,)).values())
    assert (seen.gpus, seen.gpu_model, seen.gpu_memory_bytes) == (8, "K100", 2**36)


def test_gpus_that_were_counted_as_devices_serve_nobody_new_while_runs_may_hold_them() -> None:
    before = empty_node(node_seen(offering(**{AMD: "8"}), known=GPU_RESOURCES[:1]))
    now = node_seen(offering(**{AMD: "8"}))
    assert while_held(now, before) == now
    held = while_held(now, replace(before, pods_free=before.pods_free - 1))
    assert (held.trouble and held.trouble.code, held.gpus) == (Code.DEVICES_CHANGED, 0)


def test_a_users_pod_asks_for_gpus_by_its_resource() -> None:
    asked = {"containers": [{"resources": {"limits": {AMD: "2", "rdma/hca": "1"}}}]}
    wanted = resources_of(asked, {})
    assert isinstance(wanted, dict)
    assert (wanted["gpus"], wanted["gpu_resource"], wanted["devices"]) == (2, AMD, {"rdma/hca": 1})
    two = resources_of({"containers": [{"resources": {"limits": {AMD: "2", NVIDIA: "1"}}}]}, {})
    assert isinstance(two, Reason)
    assert two.code is Code.NOT_SUPPORTED_YET


def asking(**asked: Any) -> JobSpec:
    spec = train(seconds=600)
    role = spec.roles[0].model_dump()
    role["gpu_models"] = asked.pop("gpu_models", ())
    role["resources"] |= asked
    return spec.model_copy(update={"roles": (Role.model_validate(role),)})


def test_a_job_that_asks_for_gpus_as_devices_hears_how_to_say_it() -> None:
    (reason,) = not_the_clients(asking(gpus=0, devices={AMD: 2}))
    assert (reason.code, reason.detail) == (Code.INVALID_FIELD, "say gpus: 2, gpu_resource: amd.com/gpu")
    assert not_the_clients(asking(gpus=2, gpu_resource=AMD, devices={"rdma/hca": 2})) == []


@pytest.fixture
async def mixed() -> AsyncIterator[World]:
    """A cluster of one node of NVIDIA's GPUs, and one of AMD's."""
    async with World(nodes=()) as world:
        add_nodes(world)
        await world.run(2)
        yield world
    report = check(world.books.stored)
    check_rules(report, world.books.stored)
    assert report.violations == []
    assert verify(world.books.stored).findings == []


def add_nodes(world: World) -> None:
    row: Json = {"cpu": "64", "memory": "512Gi", "device_profile": "whole"}
    taints = ({"key": AMD, "effect": "NoSchedule"},)
    rows = (
        NodeRow(name="node-n", gpus=2, gpu_model="H100", **row),
        NodeRow(name="node-a", gpus=8, gpu_model="MI300X", gpu_resource=AMD, taints=taints, **row),
    )
    for each in rows:
        world.core.create("nodes", "", node_object(each, each.name))


def at(world: World, job_id: str) -> tuple[str, Json]:
    (pod,) = world.pods(world.current(job_id).run_id)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    return pod["spec"]["nodeName"], {name: count for name, count in limits.items() if "/" in name}


async def test_jobs_of_a_mixed_cluster_get_the_gpus_that_they_name(mixed: World) -> None:
    by_resource = await mixed.submit("resource", asking(gpus=2, gpu_resource=AMD))
    by_model = await mixed.submit("model", asking(gpus=1, gpu_models=("MI300X",)))
    by_default = await mixed.submit("default", asking(gpus=2))
    assert at(mixed, by_resource) == ("node-a", {AMD: "2"})
    assert at(mixed, by_model) == ("node-a", {AMD: "1"})
    assert at(mixed, by_default) == ("node-n", {NVIDIA: "2"})
    assert mixed.job(by_resource).amount.gpu_milli == 2000


async def test_a_job_that_names_no_vendor_waits_beside_free_gpus_of_another(mixed: World) -> None:
    await mixed.submit("first", asking(gpus=2))
    waits = admitted("second", asking(gpus=2))
    await mixed.commit(waits)
    await mixed.run(5)
    reason = mixed.job(waits.job_id).reason
    assert reason is not None
    assert (reason.code, reason.numbers["nodes_of_other_gpu_resource"]) == (Code.NO_FIT, 1)
    version = mixed.state.config.version
    await mixed.commit(config_proposed(config_body(pools=(Pool(name="default", gpu_resource=AMD),)), version))
    await mixed.run(30)
    assert at(mixed, waits.job_id) == ("node-a", {AMD: "2"})


async def test_a_users_pod_lands_on_the_nodes_of_its_resource() -> None:
    async with AdoptionWorld(nodes=()) as world:
        add_nodes(world)
        await world.run(2)
        asked = {"cpu": "1", "memory": "1Gi", AMD: "2"}
        container = {"name": "main", "image": "train:1", "resources": {"requests": asked, "limits": asked}}
        world.make_pod("mine", containers=[container])
        await world.run(10)
        pod = world.core.get("pods", "lab", "mine").object
        (job,) = world.state.jobs.values()
        assert (pod["spec"].get("nodeName"), job.amount.gpu_milli) == ("node-a", 2000)
    assert check(world.books.stored).violations == []
