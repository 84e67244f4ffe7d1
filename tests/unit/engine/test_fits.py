"""Whether one pod fits one node: every test on its own, their order, and the devices that are taken."""

from dataclasses import replace
from typing import Any

import pytest

from tessera.domain.devices.claims import claim_needs
from tessera.domain.devices.offers import DeviceClass, Offer, Selection
from tessera.domain.devices.resources import Need, Node, role_need
from tessera.domain.work.evidence import FitFailure
from tessera.engine.placement.fits import fits, kind_of, never_fits, placed_on, short_of
from tessera_schemas.cluster.device_layouts import selectors_digest
from tests.builders import role
from tests.published_devices import DRIVER, claim, whole_gpus
from tests.unit.engine.engine_builders import GIB, cut, need, node, taint

LAYOUT, CLASSES = whole_gpus(1), {DRIVER: DeviceClass(DRIVER, ("any",))}
KNOWN = Offer("ab", LAYOUT, CLASSES, {selectors_digest(("any",)): Selection(1)})
REPLICAS = node(device_profile="mps", share_milli=250)
CLAIMING = need(claims=claim_needs((claim(),)))


def offering(offer: Offer, **more: Any) -> Node:
    """A node whose one GPU a driver publishes."""
    return replace(node("node-a", 1, device_profile="dra"), offer=offer, **more)


MISSES = [
    pytest.param(
        need(gpus=4, devices=(("whole_node", 1),)), node(), FitFailure.GPU_NUMBER, id="a whole node of more GPUs"
    ),
    pytest.param(need(), node(ready=False), FitFailure.NOT_READY, id="a node that is not ready takes nothing"),
    pytest.param(need(), node(ready=False, cordoned=True), FitFailure.CORDONED, id="nor one that is cordoned"),
    pytest.param(
        need(gpus=1),
        node(gpu_resource="amd.com/gpu", gpu_default=False),
        FitFailure.GPU_RESOURCE,
        id="another vendor's GPUs than the pool's, when neither resource nor model is named",
    ),
    pytest.param(
        need(gpus=1, gpu_resource="amd.com/gpu"), node(), FitFailure.GPU_RESOURCE, id="another resource than is named"
    ),
    pytest.param(
        need(gpus=1, as_made=True),
        node(gpu_resource="amd.com/gpu"),
        FitFailure.GPU_RESOURCE,
        id="a user's pod asks for NVIDIA's GPUs, whatever the pool's are",
    ),
    pytest.param(
        need(gpus=1, gpu_models=("a100",)),
        node(),
        FitFailure.GPU_MODEL,
        id="another model than the ones that were asked for",
    ),
    pytest.param(
        need(node_selector=(("zone", "a"),)),
        node(labels={"zone": "b"}),
        FitFailure.SELECTOR,
        id="a label has another value",
    ),
    pytest.param(need(node_selector=(("zone", "a"),)), node(), FitFailure.SELECTOR, id="a label is not there"),
    pytest.param(
        need(), node(taints=(taint("own"),)), FitFailure.TAINT, id="a taint keeps out who does not tolerate it"
    ),
    pytest.param(
        need(tolerations=(("own", "x", ""),)),
        node(taints=(taint("own", "y"),)),
        FitFailure.TAINT,
        id="another value is tolerated",
    ),
    pytest.param(
        need(tolerations=(("own", "", "NoSchedule"),)),
        node(taints=(taint("own", "", "NoExecute"),)),
        FitFailure.TAINT,
        id="another effect is tolerated",
    ),
    pytest.param(
        need(gpus=1), node(device_profile="shares"), FitFailure.DEVICE_PROFILE, id="a node of shares gives no whole GPU"
    ),
    pytest.param(need(gpu_milli=500), node(), FitFailure.DEVICE_PROFILE, id="a node of whole GPUs gives no share"),
    pytest.param(
        need(gpus=1, as_made=True),
        node(device_profile="visible-devices"),
        FitFailure.DEVICE_PROFILE,
        id="cards that would have to be named to a container that others make",
    ),
    pytest.param(
        need(gpu_milli=500, isolation="memory"),
        node(device_profile="plugin"),
        FitFailure.ISOLATION,
        id="nothing keeps the shares of a plugin of one's own apart",
    ),
    pytest.param(
        need(gpu_milli=250, isolation="hardware"), REPLICAS, FitFailure.ISOLATION, id="no share has hardware of its own"
    ),
    pytest.param(need(gpus=1), REPLICAS, FitFailure.DEVICE_PROFILE, id="a replica is no whole GPU"),
    pytest.param(need(gpu_milli=200), REPLICAS, FitFailure.SHARE_SIZE, id="nor a share of another size"),
    pytest.param(
        need(gpu_milli=250, apart=True), REPLICAS, FitFailure.DEVICE_PROFILE, id="nobody says which GPU it is of"
    ),
    pytest.param(
        need(gpu_milli=250, as_made=True),
        REPLICAS,
        FitFailure.DEVICE_PROFILE,
        id="a user's pod that asks for no replica gets none",
    ),
    pytest.param(
        need(gpu_milli=250, as_made=True, gpu_resource="nvidia.com/gpu"),
        node(device_profile="plugin"),
        FitFailure.DEVICE_PROFILE,
        id="one that asks for a replica gets no share of another plugin",
    ),
    pytest.param(need(gpus=1), cut(), FitFailure.DEVICE_PROFILE, id="a GPU that is cut is no whole one"),
    pytest.param(need(gpu_milli=500), cut(), FitFailure.DEVICE_PROFILE, id="an instance is no share"),
    pytest.param(CLAIMING, node(), FitFailure.CLAIMS, id="no driver publishes devices there"),
    pytest.param(
        CLAIMING, offering(Offer("ab", LAYOUT, CLASSES)), FitFailure.UNKNOWN_CLAIMS, id="nobody looked at them yet"
    ),
    pytest.param(
        CLAIMING, offering(KNOWN, drawn=((f"{DRIVER}/node-a/gpu-0", ()),)), FitFailure.CLAIMED, id="others have them"
    ),
    pytest.param(
        need(devices=(("/lab/web", 1),)),
        replace(node(), devices_free=(("/lab/web", 0),)),
        FitFailure.APART,
        id="a pod of its anti-affinity group is there",
    ),
    pytest.param(
        need(by_pods=(("zone", "NotIn", ("a",)),)),
        node(labels={"zone": "a"}),
        FitFailure.APART,
        id="a pod to stay away from is in its zone",
    ),
    pytest.param(
        need(by_pods=(("zone", "In", ("b",)),)),
        node(labels={"zone": "a"}),
        FitFailure.FAR,
        id="the pods to be near to are in another zone",
    ),
    pytest.param(
        need(gpus=1, single_numa=True), node(), FitFailure.NO_ZONES, id="its kubelet keeps no pod within a zone"
    ),
    pytest.param(
        need(gpus=6),
        node(zones=({"nvidia.com/gpu": 4}, {"nvidia.com/gpu": 4})),
        FitFailure.ZONES,
        id="no NUMA zone has so many GPUs",
    ),
    pytest.param(need(gpus=9), node(), FitFailure.GPU, id="more GPUs than the node has"),
    pytest.param(
        need(gpus=2), node(gpus=2, free=(1000, 999)), FitFailure.GPU, id="a device of which something is taken"
    ),
    pytest.param(
        need(gpu_milli=600),
        node(gpus=2, free=(500, 500), device_profile="shares"),
        FitFailure.GPU,
        id="two halves are not more than a half",
    ),
    pytest.param(need(gpu_milli=1), node(gpus=0, device_profile="shares"), FitFailure.GPU, id="a share of no device"),
    pytest.param(need(), node(cpu_free=999), FitFailure.CPU, id="a thousandth of a CPU is missing"),
    pytest.param(need(), node(memory_free=GIB - 1), FitFailure.MEMORY, id="a byte of memory is missing"),
    pytest.param(need(), node(pods_free=0), FitFailure.PODS, id="the node is full of pods"),
    pytest.param(
        need(gpus=1, gpu_memory_bytes=40 * GIB),
        node(gpu_memory_bytes=40 * GIB - 1),
        FitFailure.GPU_MEMORY,
        id="smaller GPUs",
    ),
    pytest.param(
        need(gpus=1, gpu_memory_bytes=1), node(), FitFailure.GPU_MEMORY, id="nobody knows how much memory its GPUs have"
    ),
    pytest.param(
        need(gpu_milli=500, gpu_memory_bytes=41 * GIB),
        node(gpu_memory_bytes=80 * GIB, device_profile="shares"),
        FitFailure.GPU_MEMORY,
        id="half a GPU comes with half of its memory",
    ),
    *(
        pytest.param(need(affinity=(term,)), node(labels=labels), FitFailure.AFFINITY, id=f"{term[0]} {term[1]}")
        for term, labels in (
            (("zone", "In", ("a", "b")), {"zone": "c"}),
            (("zone", "In", ("a", "b")), {}),
            (("zone", "NotIn", ("a", "b")), {"zone": "b"}),
            (("zone", "Exists", ()), {}),
            (("zone", "DoesNotExist", ()), {"zone": ""}),
            (("slots", "Gt", ("3",)), {"slots": "3"}),
            (("slots", "Gt", ("3",)), {"slots": "many"}),
            (("slots", "Gt", ("3",)), {}),
            (("slots", "Lt", ("3",)), {"slots": "20"}),
            (("slots", "Lt", ("3",)), {"slots": "9" * 20}),
        )
    ),
    pytest.param(
        need(affinity_any=((("zone", "In", ("a",)), ("rack", "Exists", ())), (("zone", "In", ("b",)),))),
        node(labels={"zone": "a"}),
        FitFailure.AFFINITY,
        id="no list of conditions holds whole",
    ),
    pytest.param(
        need(affinity=(("rack", "Exists", ()),), affinity_any=((("zone", "Exists", ()),),)),
        node(labels={"zone": "a"}),
        FitFailure.AFFINITY,
        id="a list holds and another condition does not",
    ),
    pytest.param(
        need(affinity=(("zone", "Exists", ()), ("rack", "Exists", ()))),
        node(labels={"zone": "a"}),
        FitFailure.AFFINITY,
        id="one of two terms does not hold",
    ),
    pytest.param(
        need(devices=(("rdma/hca", 1), ("rdma/other", 1))),
        node(devices={"rdma/hca": 4}),
        FitFailure.DEVICES,
        id="one of two further devices is not there",
    ),
    pytest.param(
        need(devices=(("rdma/hca", 3),)), node(devices={"rdma/hca": 2}), FitFailure.DEVICES, id="too few NICs"
    ),
    pytest.param(
        need(gpus=1),
        cut(),
        FitFailure.DEVICE_PROFILE,
        id="a node of MIG instances gives no whole GPU, though one is free",
    ),
    pytest.param(need(gpu_milli=1), cut(), FitFailure.DEVICE_PROFILE, id="nor a share"),
    pytest.param(
        need(mig_profile="1g.5gb"), node(), FitFailure.MIG_PROFILE, id="a node of whole GPUs gives no instance"
    ),
    pytest.param(need(mig_profile="1g.18gb"), cut(), FitFailure.MIG_PROFILE, id="a profile of other GPUs"),
    pytest.param(
        need(cpu_milli=33_000), replace(node(), kept_percent=50), FitFailure.KEPT, id="no GPU, and more than is open"
    ),
]

FITS = [
    pytest.param(need(gpus=8), node(), id="all GPUs of a node"),
    pytest.param(need(cpu_milli=32_000), replace(node(), kept_percent=50), id="no GPU, and what is open"),
    pytest.param(need(gpus=1, gpu_models=("a100", "h100")), node(), id="one of several models"),
    pytest.param(
        need(node_selector=(("zone", "a"),)), node(labels={"zone": "a", "more": "x"}), id="the selected label"
    ),
    pytest.param(
        need(tolerations=(("own", "", ""),)),
        node(taints=(taint("own", "y"),)),
        id="an empty value tolerates every value",
    ),
    pytest.param(
        need(tolerations=(("own", "y", "NoSchedule"),)), node(taints=(taint("own", "y"),)), id="the very same taint"
    ),
    pytest.param(need(), node(taints=(taint("own", effect="PreferNoSchedule"),)), id="a taint that only prefers"),
    pytest.param(
        need(gpu_milli=500), node(gpus=1, free=(500,), device_profile="shares"), id="the last half of a device"
    ),
    pytest.param(
        need(gpus=1), node(gpus=2, free=(500, 1000), device_profile="plugin"), id="whole beside a share, by a plugin"
    ),
    pytest.param(
        need(gpu_milli=1),
        node(gpus=2, free=(0, 1000), device_profile="plugin"),
        id="a share beside a whole, by a plugin",
    ),
    pytest.param(
        need(gpu_milli=500, gpu_memory_bytes=40 * GIB),
        node(gpu_memory_bytes=80 * GIB, device_profile="shares"),
        id="exactly the share of the memory",
    ),
    pytest.param(
        need(affinity_any=((("zone", "In", ("a",)), ("rack", "Exists", ())), (("zone", "In", ("b",)),))),
        node(labels={"zone": "b"}),
        id="one list of conditions holds",
    ),
    pytest.param(
        need(affinity=(("slots", "Gt", ("3",)), ("slots", "Lt", ("12",)))),
        node(labels={"slots": "010"}),
        id="Gt and Lt compare integers",
    ),
    pytest.param(need(affinity=(("zone", "NotIn", ("a",)),)), node(), id="NotIn holds where the label is not there"),
    pytest.param(
        need(affinity=(("zone", "In", ("a", "b")), ("rack", "DoesNotExist", ()))),
        node(labels={"zone": "b"}),
        id="all terms hold",
    ),
    pytest.param(need(devices=(("rdma/hca", 2),)), node(devices={"rdma/hca": 2}), id="all NICs of a node"),
    pytest.param(need(mig_profile="7g.40gb"), cut(), id="an instance that is a whole GPU"),
    pytest.param(need(cpu_milli=1000), node(cpu_free=1000, memory_free=GIB, pods_free=1), id="exactly what is left"),
]


@pytest.mark.parametrize(("wanted", "there", "miss"), MISSES)
def test_a_pod_that_does_not_fit_names_the_test_that_failed(wanted: Need, there: Node, miss: FitFailure) -> None:
    assert fits(wanted, there) is miss


def test_the_table_above_knows_every_miss() -> None:
    assert {case.values[2] for case in MISSES} == set(FitFailure)


@pytest.mark.parametrize(("wanted", "there"), FITS)
def test_a_pod_fits(wanted: Need, there: Node) -> None:
    assert fits(wanted, there) is None


def test_the_first_test_that_fails_is_the_verdict() -> None:
    wrong = node(gpus=0, ready=False, taints=(taint("own"),), cpu_free=0, memory_free=0, pods_free=0)
    wanted = need(gpus=1, gpu_models=("a100",), node_selector=(("zone", "a"),))
    assert fits(wanted, wrong) is FitFailure.NOT_READY


def test_what_no_departure_changes_is_told_from_what_is_missing_now() -> None:
    full = node(gpus=1, free=(0,))
    assert never_fits(need(gpus=1), full) is None
    assert short_of(kind_of((need(gpus=1),)), full) is FitFailure.GPU


DEVICES = [
    pytest.param(need(), node(), ((), 0), id="no GPU, no device"),
    pytest.param(need(gpus=2), node(gpus=4, free=(0, 1000, 900, 1000)), ((1, 3), 1000), id="the lowest free slots"),
    pytest.param(need(gpu_milli=300), node(gpus=3, free=(1000, 400, 300)), ((2,), 300), id="the device it fills up"),
    pytest.param(need(gpu_milli=300), node(gpus=3, free=(1000, 200, 350)), ((2,), 300), id="the tightest device"),
    pytest.param(
        need(gpu_milli=300), node(gpus=3, free=(500, 500, 1000)), ((0,), 300), id="equally tight, so the lowest"
    ),
]


@pytest.mark.parametrize(("wanted", "there", "taken"), DEVICES)
def test_the_devices_that_a_pod_takes(wanted: Need, there: Node, taken: tuple[tuple[int, ...], int]) -> None:
    placed = placed_on(there, wanted, 0, "worker")
    assert (placed.devices, placed.gpu_milli) == taken


@pytest.mark.parametrize(
    ("toleration", "value", "lets"),
    [
        ({"key": "own"}, "", True),
        ({"key": "own"}, "y", True),
        ({"key": "own", "operator": "Exists"}, "y", True),
        ({"key": "own", "operator": "Equal"}, "", True),
        ({"key": "own", "operator": "Equal"}, "y", False),
        ({"key": "own", "operator": "Equal", "value": "y"}, "y", True),
        ({"key": "own", "operator": "Equal", "value": "y"}, "", False),
        ({"key": "other", "operator": "Equal"}, "", False),
        ({"key": "own", "operator": "Equal", "effect": "NoExecute"}, "", False),
    ],
)
def test_a_toleration_lets_onto_the_nodes_that_kubernetes_would_let_it_onto(
    toleration: dict[str, str], value: str, lets: bool
) -> None:
    asked = role_need(role(tolerations=(toleration,))).need
    assert (never_fits(asked, node(taints=(taint("own", value),))) is None) is lets
