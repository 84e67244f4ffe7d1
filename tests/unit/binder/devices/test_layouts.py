"""From what drivers publish to what a node offers, whatever drivers say."""

import pytest

from tessera.binder.devices.decide.layouts import TaintRule
from tessera.binder.devices.decide.slices import SliceReader
from tessera.binder.devices.decide.taken import list_taken, taken_by
from tessera.binder.devices.index import DeviceIndex, reduced_claim, reduced_slice
from tessera.kernel.kubernetes.informer import Delta
from tessera_schemas.cluster.device_layouts import DEVICES_MAX, NodeOffer
from tessera_schemas.cluster.device_vendors import is_identity
from tests.unit.binder.devices.published import Json, counters, gpu, mig, node_devices, pool_of, read, slice_object


def offered(*objects: Json, node: str = "node-a"):
    found = node_devices(*objects, node=node)
    assert found.offered is not None, found.missing
    return found.offered


def why(*objects: Json, node: str = "node-a") -> str:
    found = node_devices(*objects, node=node)
    assert found.offered is None
    assert len(found.missing) == 1
    NodeOffer(missing=tuple(name for name, _ in found.missing))
    return found.missing[0][1]


def test_equal_nodes_have_one_layout_though_their_cards_and_pools_have_names_of_their_own():
    a = offered(slice_object([gpu(0), gpu(1)]))
    b = offered(slice_object([gpu(1, "node-b"), gpu(0, "node-b")], "node-b"), node="node-b")
    assert a.digest == b.digest
    assert a.layout == b.layout
    assert [pool.name for pool in a.layout.pools] == [""]


def test_another_value_that_a_selector_may_look_at_is_another_layout():
    newer = gpu(0, attributes={"driverVersion": {"version": "590.0.0"}})
    assert offered(slice_object([gpu(0)])).digest != offered(slice_object([newer])).digest
    larger = gpu(0) | {"capacity": {"memory": {"value": "96Gi"}}}
    assert offered(slice_object([gpu(0)])).digest != offered(slice_object([larger])).digest


def test_equal_values_of_an_attribute_have_equal_numbers():
    layout = offered(slice_object([gpu(at) for at in range(4)])).layout
    assert [each.same["resource.kubernetes.io/pcieRoot"] for each in layout.devices] == [0, 0, 1, 1]
    assert [each.same["gpu.nvidia.com/uuid"] for each in layout.devices] == [0, 1, 2, 3]


def test_devices_stand_in_order_of_the_numbers_in_their_names():
    layout = offered(slice_object([gpu(at) for at in (10, 2, 0)])).layout
    assert [each.name for each in layout.devices] == ["gpu-0", "gpu-2", "gpu-10"]


def test_instances_of_a_gpu_use_its_counters_and_count_by_their_memory():
    whole = gpu(0, consumesCounters=mig(0, "7g.80gb", 8, 0)["consumesCounters"])
    instances = [mig(0, "3g.40gb", 4, 4), mig(0, "1g.10gb", 1, 0)]
    found = offered(
        slice_object([whole, *instances, gpu(1)], count=2), slice_object(sharedCounters=[counters(0)], count=2)
    )
    by_name = {each.name: each for each in found.layout.devices}
    assert [(each.gpu, each.gpu_milli) for each in by_name.values()] == [(0, 1000), (0, 125), (0, 500), (1, 1000)]
    assert by_name["gpu-0-mig-3g40gb-4"].uses == ((4, 1000), (5, 1000), (6, 1000), (7, 1000))
    assert found.layout.counters == (1000,) * 8
    assert (found.gpus.count, found.gpus.model) == (2, "NVIDIA H100 80GB HBM3")
    assert found.gpus.memory_bytes == 80 * 2**30


def test_parts_without_a_published_gpu_are_of_one_by_their_parent_and_count_by_their_profile():
    parts = [mig(0, "3g.40gb", 4, 0), mig(0, "3g.40gb", 4, 4), mig(1, "1g.10gb", 1, 0)]
    found = offered(slice_object([each | {"consumesCounters": []} for each in parts]))
    assert [each.gpu for each in found.layout.devices] == [0, 0, 1]
    assert all(0 < each.gpu_milli < 1000 for each in found.layout.devices)


def test_partitions_of_amd_are_of_the_gpu_on_their_bus():
    def device(name: str, kind: str, memory: str) -> Json:
        attributes = {"type": {"string": kind}, "resource.kubernetes.io/pciBusID": {"string": "0000:19:00.0"}}
        return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}}

    whole, part = device("gpu-0", "amdgpu", "192Gi"), device("gpu-1", "amdgpu-partition", "25Gi")
    found = offered(slice_object([whole, part], driver="gpu.amd.com"))
    assert [(each.gpu, each.gpu_milli) for each in found.layout.devices] == [(0, 1000), (0, 131)]


def test_a_device_of_an_unknown_driver_is_no_gpu():
    nic = {"name": "eth1", "attributes": {"mac": {"string": "00:11"}, "rdma": {"bool": True}}}
    found = offered(slice_object([nic], driver="dra.net"))
    assert found.layout.devices[0].gpu is None
    assert found.gpus.count == 0


def test_a_shared_capacity_keeps_its_policy_in_thousandths():
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "512Mi"}}
    shared = gpu(0, allowMultipleAllocations=True) | {
        "capacity": {"memory": {"value": "80Gi", "requestPolicy": policy}, "cores": {"value": "500m"}}
    }
    device = offered(slice_object([shared])).layout.devices[0]
    assert device.is_shared
    memory = device.capacity["memory"]
    assert (memory.default, memory.step, memory.most) == (2**30 * 1000, 2**29 * 1000, 2**33 * 1000)
    assert device.capacity["cores"].value == 500


# -- generations and what is missing ------------------------------------------------------------------------------


def test_a_pool_without_all_slices_of_its_newest_generation_is_missing():
    assert why(slice_object([gpu(0)], count=2)) == "1 of 2 slices of generation 1 are there"
    assert node_devices(slice_object([gpu(0)], count=2)).missing[0][0] == "gpu.nvidia.com/node-a"


def test_a_newer_generation_replaces_all_of_the_older_one():
    old = slice_object([gpu(0), gpu(1)], generation=1)
    assert [each.name for each in offered(old, slice_object([gpu(5)], generation=2)).layout.devices] == ["gpu-5"]
    assert "generation 2" in why(old, slice_object([gpu(5)], generation=2, count=3))


def test_a_driver_that_counts_anew_is_believed_once_its_older_slices_are_gone():
    old, new = slice_object([gpu(0)], generation=7), slice_object([gpu(1)], generation=1)
    assert offered(old, new).layout.devices[0].name == "gpu-0"
    assert offered(new).layout.devices[0].name == "gpu-1"


def test_slices_that_disagree_about_their_number_are_a_pool_that_is_missing():
    assert "slices" in why(slice_object([gpu(0)], count=2), slice_object([gpu(1)], count=3))


def test_two_drivers_may_have_pools_of_one_name():
    found = offered(slice_object([gpu(0)]), slice_object([{"name": "gpu-0"}], driver="gpu.example.com"))
    assert [(each.driver, each.name) for each in found.layout.pools] == [
        ("gpu.example.com", ""),
        ("gpu.nvidia.com", ""),
    ]


def test_a_pool_beside_one_that_is_missing_is_offered():
    found = node_devices(slice_object([gpu(0)]), slice_object([{"name": "x"}], driver="dra.net", count=2))
    assert found.offered is not None
    assert [name for name, _ in found.missing] == ["dra.net/node-a"]


# -- drivers that lie ---------------------------------------------------------------------------------------------

USES = [{"counterSet": "gpu-0-counters", "counters": {"memory-slice-0": {"value": "1"}}}]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"consumesCounters": USES}, id="a counter set that the pool has not"),
        pytest.param({"capacity": {"memory": {"value": "-1"}}}, id="a capacity below nothing"),
        pytest.param({"capacity": {"memory": {"value": "9E20"}}}, id="a capacity beyond all bounds"),
        pytest.param({"capacity": {"memory": "80Gi"}}, id="a capacity of another type"),
        pytest.param({"capacity": {f"c{at}": {"value": "1"} for at in range(40)}}, id="too many capacities"),
        pytest.param({"attributes": {"type": {"string": 7}}}, id="an attribute of another type"),
        pytest.param({"attributes": {"type": {}}}, id="an attribute without a value"),
        pytest.param({"attributes": {"x" * 120: {"int": 1}}}, id="an attribute with a long name"),
        pytest.param({"name": "g" * 253}, id="a device with a long name"),
        pytest.param({"name": None}, id="a device without a name"),
        pytest.param({"name": 7}, id="a device whose name is a number"),
        pytest.param({"consumesCounters": {"a": 1}}, id="counters that are no list"),
    ],
)
def test_a_device_that_cannot_be_read_makes_its_pool_missing_and_nothing_fails(more: Json):
    assert why(slice_object([gpu(0, **more)]))


@pytest.mark.parametrize(
    "amounts",
    [{"memory-slice-0": {"value": "-1"}}, {"memory-slice-0": {"value": "many"}}, {"memory-slice-0": 1}, None],
)
def test_counters_below_nothing_or_unreadable_make_the_pool_missing(amounts: Json | None):
    shared = slice_object(sharedCounters=[{"name": "gpu-0-counters", "counters": amounts}], count=2)
    assert why(slice_object([gpu(0, consumesCounters=USES)], count=2), shared)


def test_a_device_or_counter_set_that_is_there_twice_makes_the_pool_missing():
    assert why(slice_object([gpu(0)], count=2), slice_object([gpu(0)], count=2)) == "device gpu-0 is there 2 times"
    twice = slice_object(sharedCounters=[counters(0), counters(0)])
    assert "counter set gpu-0-counters" in why(twice)


def test_a_hundred_thousand_devices_are_missing_and_told():
    many = [{"name": f"d-{at}"} for at in range(100_000)]
    assert why(slice_object(many)) == f"100000 devices are more than the {DEVICES_MAX} of a node"


def test_a_layout_of_too_many_bytes_is_missing_and_told():
    devices = [
        {"name": f"d-{at}", "attributes": {f"a{n}": {"int": at} for n in range(32)}} for at in range(DEVICES_MAX)
    ]
    assert "bytes" in why(slice_object(devices))


def test_a_pool_with_a_name_of_253_characters_is_offered_under_it():
    name = "a" * 253
    assert offered(slice_object([gpu(0)], pool=name)).layout.pools[0].name == name
    missing = node_devices(slice_object([gpu(0)], pool=name, count=2, driver="d" * 63)).missing
    NodeOffer(missing=tuple(each for each, _ in missing))


def test_a_slice_without_a_pool_or_driver_is_left_out():
    for spec in (None, [], {}, {"driver": "d"}, {"driver": 1, "pool": {"name": "p"}}, {"driver": "d", "pool": {}}):
        assert SliceReader().read({"metadata": {}, "spec": spec}) is None


def test_devices_may_name_their_nodes_themselves():
    devices = [gpu(0) | {"nodeName": "node-a"}, gpu(1) | {"nodeName": "node-b"}]
    pool = pool_of(slice_object(devices, None, perDeviceNodeSelection=True))
    assert {reach.node: [each.shape.name for each in there] for reach, there in pool.devices.items()} == {
        "node-a": ["gpu-0"],
        "node-b": ["gpu-1"],
    }
    assert not pool.is_network


def test_devices_of_one_make_are_one_object_in_memory():
    reader = SliceReader()
    a, b = reader.read(slice_object([gpu(0)])), reader.read(slice_object([gpu(0, "node-b")], "node-b"))
    assert a is not None
    assert b is not None
    assert a.devices[0].shape is b.devices[0].shape
    reader.keep_only([a])
    assert reader.read(slice_object([gpu(0)])) == a


# -- taints, claims -----------------------------------------------------------------------------------------------


def test_taints_of_drivers_and_of_administrators_are_told_beside_the_layout():
    sick = gpu(0, taints=[{"key": "sick", "effect": "NoExecute"}, {"key": "old", "effect": "None"}])
    rule = TaintRule("gpu.nvidia.com", None, "gpu-1", ("repair", "yes", "NoSchedule"))
    found = node_devices(slice_object([sick, gpu(1)]), rules=(rule,))
    assert [(each.device, each.key, each.value, each.effect) for each in found.tainted] == [
        ("gpu.nvidia.com/node-a/gpu-0", "sick", "", "NoExecute"),
        ("gpu.nvidia.com/node-a/gpu-1", "repair", "yes", "NoSchedule"),
    ]
    assert found.offered is not None
    assert found.offered.digest == offered(slice_object([gpu(0), gpu(1)])).digest


def claim(*results: Json, **labels: str) -> Json:
    return {"metadata": {"labels": labels}, "status": {"allocation": {"devices": {"results": list(results)}}}}


RESULT = {"request": "a", "driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0"}


def test_devices_of_claims_that_are_not_ours_are_taken_and_of_admins_are_not():
    shared = RESULT | {"device": "gpu-1", "consumedCapacity": {"memory": "1500m"}}
    found = taken_by(claim(RESULT, shared, RESULT | {"adminAccess": True}))
    assert list(found) == [("gpu.nvidia.com", "node-a")]
    assert [(each.device, each.capacity) for each in list_taken(found["gpu.nvidia.com", "node-a"])] == [
        ("gpu.nvidia.com/node-a/gpu-0", {}),
        ("gpu.nvidia.com/node-a/gpu-1", {"memory": 1500}),
    ]


@pytest.mark.parametrize("mark", ["labels", "annotations"])
def test_devices_of_a_claim_that_a_run_marked_are_taken_by_others_once_the_run_has_ended(mark: str):
    live = {"r"}
    index = DeviceIndex(live.__contains__)
    slices = slice_object([gpu(0)], "node-a")
    index.take_slices([Delta("ADDED", reduced_slice(index.reader, slices), None)])
    marked = reduced_claim({"metadata": {"uid": "u", mark: {"tessera.io/run": "r"}}, "status": claim(RESULT)["status"]})
    index.take_claims([Delta("ADDED", marked, None)])
    assert index.offer("node-a").taken == ()
    live.clear()
    assert index.take_runs(["r", "another"]) == ["node-a"]
    assert [each.device for each in index.offer("node-a").taken] == ["gpu.nvidia.com/node-a/gpu-0"]
    assert index.take_claims([Delta("DELETED", marked, marked)]) == ["node-a"]
    assert index.offer("node-a").taken == ()


def test_devices_of_a_claim_that_was_seen_before_its_run_are_the_runs_from_then_on():
    live = set[str]()
    index = DeviceIndex(live.__contains__)
    index.take_slices([Delta("ADDED", reduced_slice(index.reader, slice_object([gpu(0)], "node-a")), None)])
    mark = {"annotations": {"tessera.io/run": "r"}}
    seen = reduced_claim({"metadata": {"uid": "u", **mark}, "status": claim(RESULT)["status"]})
    index.take_claims([Delta("ADDED", seen, None)])
    assert index.offer("node-a").taken
    live.add("r")
    assert index.take_runs(["r"]) == ["node-a"]
    assert index.offer("node-a").taken == ()


@pytest.mark.parametrize(
    "status", [None, [], {"allocation": None}, {"allocation": {"devices": {"results": [{"driver": 1}, 7]}}}]
)
def test_a_claim_without_devices_takes_none(status: object):
    assert taken_by({"metadata": {}, "status": status}) == {}


def test_what_names_one_device_is_told_by_the_attributes_name():
    ours = [
        "gpu.nvidia.com/uuid",
        "parentUUID",
        "serial_number",
        "resource.kubernetes.io/pciBusID",
        "dra.net/mac",
        "ipv4",
    ]
    assert all(map(is_identity, ours))
    assert not any(map(is_identity, ["type", "productName", "resource.kubernetes.io/pcieRoot", "numaNode", "profile"]))


def test_slices_in_any_order_are_the_same_pool():
    slices = read(slice_object([gpu(0)], count=2), slice_object([gpu(1)], count=2))
    assert len(slices) == 2
    one, two = slice_object([gpu(0)], count=2), slice_object([gpu(1)], count=2)
    assert offered(one, two).digest == offered(two, one).digest
