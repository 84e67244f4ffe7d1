"""Devices of no single node, as slices say them: from which nodes they can be had, and what such a node offers."""

from typing import Any

import pytest

from tessera.binder.devices.decide.layouts import NodeDevices
from tessera.binder.devices.decide.reach import UnreadableSlice, read_reach
from tessera.binder.devices.index import DeviceIndex, reduced_claim, reduced_slice
from tessera.kernel.kubernetes.informer import Delta
from tessera_schemas.cluster.device_layouts import DEVICES_MAX
from tests.unit.binder.devices.published import Json, counters, gpu, mig, node_devices, pool_of, slice_object

FABRIC = "fabric.example.com"
OF_RACK = {"key": "rack", "operator": "In", "values": ["1"]}
RACK = {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [OF_RACK]}]}}


def fabric(*names: str, **more: Any) -> Json:
    """A slice of devices on the network; on every node, where nothing else is said."""
    return slice_object([{"name": name} for name in names], None, **{"driver": FABRIC, "allNodes": True, **more})


def in_rack(*names: str, **more: Any) -> Json:
    return fabric(*names, allNodes=False, **RACK, **more)


def names(found: NodeDevices) -> list[str]:
    return [] if found.offered is None else [each.name for each in found.offered.layout.devices]


def reach(**said: Any):
    return read_reach(said, "the slice")


def on(key: str, operator: str, *values: str, part: str = "matchExpressions"):
    return reach(nodeSelector={"nodeSelectorTerms": [{part: [{"key": key, "operator": operator, "values": values}]}]})


@pytest.mark.parametrize(
    ("condition", "labels", "holds"),
    [
        (("rack", "In", "1", "2"), {"rack": "2"}, True),
        (("rack", "In", "1"), {}, False),
        (("rack", "NotIn", "1"), {}, True),
        (("rack", "NotIn", "1"), {"rack": "1"}, False),
        (("rack", "Exists"), {"rack": ""}, True),
        (("rack", "Exists"), {}, False),
        (("rack", "DoesNotExist"), {}, True),
        (("level", "Gt", "3"), {"level": "4"}, True),
        (("level", "Gt", "3"), {"level": "3"}, False),
        (("level", "Lt", "3"), {"level": "2"}, True),
        (("level", "Lt", "3"), {"level": "low"}, False),
        (("level", "Lt", "3"), {}, False),
    ],
)
def test_a_node_selector_holds_as_kubernetes_reads_it(condition: Any, labels: dict[str, str], holds: bool):
    assert on(*condition).includes("node-a", labels) is holds


def test_a_selector_may_name_nodes_and_all_nodes_are_every_one():
    assert on("metadata.name", "In", "node-a", part="matchFields").includes("node-a", {})
    assert not on("metadata.name", "In", "node-a", part="matchFields").includes("node-b", {})
    assert reach(allNodes=True).includes("node-b", {})
    assert not reach(nodeName="node-a").includes("node-b", {})


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"allNodes": True, "nodeName": "node-a"},
        {"nodeSelector": {"nodeSelectorTerms": []}},
        {"nodeSelector": {"nodeSelectorTerms": [{}]}},
        {"nodeSelector": "rack=1"},
        {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "Near"}]}]}},
        {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "spec.x", "operator": "Exists"}]}]}},
        {"nodeName": 3},
    ],
)
def test_what_does_not_say_its_nodes_in_one_way_is_not_read(said: Json):
    with pytest.raises(UnreadableSlice):
        read_reach(said, "the slice")


def test_a_pool_of_several_nodes_is_offered_by_those_that_it_reaches_beside_their_own():
    here = node_devices(slice_object([gpu(0)]), in_rack("link-0", "link-1"), labels={"rack": "1"})
    assert names(here) == ["link-0", "link-1", "gpu-0"]
    assert here.offered is not None
    pools = here.offered.layout.pools
    assert [(each.driver, each.name, each.network) for each in pools] == [
        (FABRIC, "fabric", True),
        ("gpu.nvidia.com", "", False),
    ]
    assert names(node_devices(slice_object([gpu(0)]), in_rack("link-0"), labels={"rack": "2"})) == ["gpu-0"]


def test_gpus_of_several_nodes_are_no_nodes_gpus():
    found = node_devices(slice_object([gpu(0)]), slice_object([gpu(1)], None, allNodes=True)).offered
    assert found is not None
    assert found.gpus.count == 1
    assert sorted((each.name, each.gpu, each.gpu_milli) for each in found.layout.devices) == [
        ("gpu-0", 0, 1000),
        ("gpu-1", None, 0),
    ]


def test_equal_nodes_that_reach_one_pool_have_one_layout():
    a = node_devices(slice_object([gpu(0)]), fabric("link-0")).offered
    b = node_devices(slice_object([gpu(0, "node-b")], "node-b"), fabric("link-0"), node="node-b").offered
    assert a is not None
    assert b is not None
    assert a.digest == b.digest


def test_each_device_may_say_its_nodes_and_a_node_is_told_of_others_that_draw_on_its_counters():
    devices = [
        mig(0, "1g.10gb", 1, 0) | {"nodeName": "node-a"},
        mig(0, "1g.10gb", 1, 1) | {"nodeName": "node-b"},
        gpu(7) | {"nodeName": "node-b"},
    ]
    slices = (
        slice_object(devices, None, perDeviceNodeSelection=True, count=2),
        slice_object(None, None, perDeviceNodeSelection=True, sharedCounters=[counters(0)], count=2),
    )
    assert pool_of(*slices).is_network
    found = node_devices(*slices).offered
    assert found is not None
    # The GPU of node-b draws on no counter, and nothing of it changes what node-a has.
    assert [(each.name, each.beyond) for each in found.layout.devices] == [
        ("gpu-0-mig-1g10gb-0", False),
        ("gpu-0-mig-1g10gb-1", True),
    ]


def test_an_incomplete_pool_is_missing_on_each_node_that_it_reaches():
    assert node_devices(in_rack("link-0", count=2), labels={"rack": "1"}).missing == (
        (f"{FABRIC}/fabric", "1 of 2 slices of generation 1 are there"),
    )


def test_a_network_that_is_too_large_takes_no_node_its_own_devices():
    large = fabric(*(f"link-{at}" for at in range(DEVICES_MAX)))
    found = node_devices(slice_object([gpu(0)]), large)
    assert names(found) == ["gpu-0"]
    why = f"{DEVICES_MAX + 1} devices are more than the {DEVICES_MAX} of a node"
    assert found.missing == ((f"{FABRIC}/fabric", why),)
    assert names(node_devices(large)) == [f"link-{at}" for at in range(DEVICES_MAX)]


def test_a_pool_of_several_nodes_that_is_called_as_one_of_them_is_missing_there():
    found = node_devices(slice_object([gpu(0)]), fabric("link-0", pool="node-a"))
    assert names(found) == ["gpu-0"]
    assert found.missing == ((f"{FABRIC}/node-a", "it is of several nodes and called as this one"),)
    assert names(node_devices(fabric("link-0", pool="node-a"), node="node-b")) == ["link-0"]


# -- as nodes and slices come and go ------------------------------------------------------------------------------


def added(thing: Json, kind: Any = "ADDED") -> list[Delta]:
    return [Delta(kind, thing, None)]


def labelled(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}}


def published(index: DeviceIndex, *things: Json) -> list[str]:
    return index.take_slices([Delta("ADDED", reduced_slice(index.reader, thing), None) for thing in things])


def offers(index: DeviceIndex, node: str) -> list[str]:
    return names(index.devices(node))


def test_nodes_and_slices_may_come_in_any_order_and_labels_change():
    index = DeviceIndex()
    index.take_nodes(added(labelled("node-a", rack="1")))
    assert published(index, in_rack("link-0")) == ["node-a"]
    index.take_nodes(added(labelled("node-b", rack="1")))
    assert [offers(index, name) for name in ("node-a", "node-b", "node-c")] == [["link-0"], ["link-0"], []]
    index.take_nodes(added(labelled("node-b", rack="2"), "MODIFIED"))
    index.take_nodes(added(labelled("node-a", rack="1"), "DELETED"))
    assert [offers(index, name) for name in ("node-a", "node-b")] == [[], []]


def test_what_claims_of_others_have_is_taken_on_each_node_that_the_pool_reaches():
    index = DeviceIndex()
    for name in ("node-a", "node-b"):
        index.take_nodes(added(labelled(name, rack="1")))
    published(index, in_rack("link-0"))
    result = {"driver": FABRIC, "pool": "fabric", "device": "link-0"}
    claim = {"metadata": {"uid": "c"}, "status": {"allocation": {"devices": {"results": [result]}}}}
    assert index.take_claims(added(reduced_claim(claim))) == ["node-a", "node-b"]
    assert [index.offer(name).taken[0].device for name in ("node-a", "node-b")] == [f"{FABRIC}/fabric/link-0"] * 2
