"""The checker of ledgers finds published devices that claims may not have, without the engine that draws them."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tessera.domain.devices.claims import claim_needs, weighed
from tessera.domain.devices.offers import DeviceClass, Offer, Selection
from tessera.testkit.checker import check
from tessera.testkit.devices_checker import CheckedDevices, part_of_gpu
from tessera_schemas import ledger as m
from tessera_schemas.cluster.device_claims import DeviceClaim
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.cluster.device_layouts import (
    DeviceCapacity,
    DeviceLayout,
    DevicePool,
    DeviceTaint,
    OfferedDevice,
    TakenDevice,
    selectors_digest,
)
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.work.placement import EXTENDED_CLAIM, DrawnDevice, Placement
from tests.builders import first_run, job_spec, placement, role
from tests.published_devices import (
    DRIVER,
    NIC_DRIVER,
    claim,
    claiming,
    class_seen,
    cut_gpus,
    layout_seen,
    offering,
    selected,
    shared_gpus,
    whole_gpus,
    with_network,
)
from tests.unit.testkit.stored_ledgers import Shard

CUT = cut_gpus(2)
QUARTERS = sum(1 << at for at, device in enumerate(CUT.devices) if "quarter" in device.name)
PART = claim(selectors=("small",))


def shard(**offer: Any) -> Shard:
    """A node of two GPUs that may be cut, a class, and what the selector `small` takes: the quarters."""
    made = Shard(offering("node-a", CUT, 2, **offer))
    note(made, layout_seen(CUT))
    note(made, class_seen())
    note(made, selected(CUT, QUARTERS, "small"))
    return made


def note(made: Shard, fact: LayoutSeen | ClassSeen | DevicesSelected) -> None:
    made.add(m.DevicesNoted(kind="devices_noted", fact=0), facts=[fact])


def drawn(name: str = "gpu-0-quarter-0", **more: Any) -> DrawnDevice:
    return DrawnDevice(
        **{"claim": "gpu", "request": "devices", "driver": DRIVER, "pool": "node-a", "device": name, **more}
    )


def placed(*devices: DrawnDevice) -> Placement:
    return replace(placement(devices=()), gpu_milli=0, drawn=devices)


def allocate(made: Shard, place: Placement, key: str = "k1", wanted: DeviceClaim = PART) -> None:
    made.queued(key, spec=job_spec(claiming(wanted)))
    made.allocated(place, key=key)


def broken(made: Shard) -> set[str]:
    return {violation.invariant for violation in check(made.stored).violations}


def test_devices_that_answer_the_claims_are_right() -> None:
    made = shard()
    allocate(made, placed(drawn()))
    allocate(made, placed(drawn("gpu-0-quarter-1")), "k2")
    allocate(made, placed(drawn("gpu-0-half-1")), "k3", claim())
    assert check(made.stored).violations == []


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(placed(), id="no device"),
        pytest.param(placed(drawn(), drawn("gpu-0-quarter-1")), id="one device too many"),
        pytest.param(placed(drawn("gpu-9-quarter-0")), id="none that the node has"),
        pytest.param(placed(drawn(pool="node-b")), id="of another pool"),
        pytest.param(placed(drawn("gpu-0-whole")), id="none that the selector takes"),
        pytest.param(placed(drawn(claim="other")), id="of another claim"),
        pytest.param(placed(drawn(request="other")), id="of another request"),
        pytest.param(placed(drawn(admin=True)), id="with access that was not asked for"),
        pytest.param(placed(drawn(capacity=(("memory", 1),))), id="a part of what is not shared"),
    ],
)
def test_devices_that_do_not_answer_the_claims_are_found(place: Placement) -> None:
    made = shard()
    allocate(made, place)
    assert broken(made) == {"I1"}


def test_a_device_is_given_once_and_again_after_its_run_is_released() -> None:
    made = shard()
    allocate(made, placed(drawn()))
    made.permitted()
    assert broken(made) == set()
    made.revoked(then="failed")
    made.released(run=first_run("k1"))
    allocate(made, placed(drawn()), "k2")
    assert broken(made) == set()
    allocate(made, placed(drawn()), "k3")
    assert broken(made) == {"I1"}


def test_gpus_by_number_are_judged_by_their_devices_though_the_driver_has_lost_one() -> None:
    two, one = whole_gpus(2), whole_gpus(1)
    made = Shard(offering("node-a", two, 2))
    for fact in (layout_seen(two), layout_seen(one), class_seen(extended_resource=GPU_RESOURCE)):
        note(made, fact)

    def count(key: str, device: str) -> None:
        made.queued(key, spec=job_spec(role(gpus=1)))
        made.allocated(placed(drawn(device, claim=EXTENDED_CLAIM, request=GPU_RESOURCE)), key=key)

    count("k1", "gpu-1")
    made.add(m.NodeChanged(kind="node_changed", fact=0), facts=[offering("node-a", one, 1)])
    count("k2", "gpu-0")
    assert check(made.stored).violations == []
    count("k3", "gpu-0")
    assert broken(made) == {"I1"}


def test_counters_are_spent_by_devices_that_overlap() -> None:
    made = shard()
    allocate(made, placed(drawn("gpu-0-whole")), wanted=claim())
    assert broken(made) == set()
    allocate(made, placed(drawn("gpu-1-quarter-0")), "k2")
    assert broken(made) == set()
    allocate(made, placed(drawn("gpu-0-quarter-0")), "k3")
    assert broken(made) == {"I1"}


def test_a_device_that_somebody_else_has_or_that_is_tainted_is_found() -> None:
    name = f"{DRIVER}/node-a/gpu-0-quarter-0"
    for offer in (
        {"taken": (TakenDevice(device=name),)},
        {"taken": (TakenDevice(device=f"{DRIVER}/node-a/gpu-0-whole"),)},
        {"tainted": (DeviceTaint(device=name, key="sick", effect="NoSchedule"),)},
    ):
        made = shard(**offer)
        allocate(made, placed(drawn("gpu-1-quarter-0")))
        assert broken(made) == set()
        allocate(made, placed(drawn()), "k2")
        assert broken(made) == {"I1"}


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (placed(drawn()), placed(), set()),
        (placed(), placed(drawn()), {"I1"}),
        (placed(drawn()), placed(drawn("gpu-0-quarter-1")), {"I1"}),
        (placed(drawn()), replace(placed(), node="node-b"), {"I1"}),
    ],
    ids=["drawn once", "drawn for the second", "drawn twice", "on two nodes"],
)
def test_a_claim_that_pods_share_is_drawn_for_the_first_and_all_are_on_its_node(
    first: Placement, second: Placement, found: set[str]
) -> None:
    made = shard()
    other = offering("node-b", CUT, 2)
    made.add(m.NodeChanged(kind="node_changed", fact=0), facts=[other])
    wanted = PART.model_copy(update={"shared": True})
    made.queued("k1", spec=job_spec(claiming(wanted, replicas=2)))
    made.allocated(first, replace(second, rank=1), key="k1")
    assert broken(made) == found


# -- devices of no single node ------------------------------------------------------------------------------------


def network(counters: int = 0, beyond: int = 0) -> Shard:
    """Two nodes that reach three links, of which the last `beyond` are of other nodes alone."""
    layout = with_network(whole_gpus(1), 3, beyond, counters)
    made = Shard(offering("node-a", layout, 1), offering("node-b", layout, 1))
    note(made, layout_seen(layout))
    note(made, class_seen())
    return made


def linked(node: str, number: int, **more: Any) -> Placement:
    link = drawn(f"link-{number}", driver=NIC_DRIVER, pool="fabric", **more)
    return replace(placement(node=node, devices=()), gpu_milli=0, drawn=(link,))


def test_a_device_of_several_nodes_is_given_once_whichever_node_has_it() -> None:
    made = network()
    for key, node, number in (("k1", "node-a", 0), ("k2", "node-b", 1), ("k3", "node-a", 2)):
        allocate(made, linked(node, number), key, claim())
        assert broken(made) == set()
    allocate(made, linked("node-b", 0), "k4", claim())
    assert broken(made) == {"I1"}


def test_counters_of_several_nodes_are_spent_on_all_of_them() -> None:
    made = network(counters=2)
    allocate(made, linked("node-a", 0), "k1", claim())
    allocate(made, linked("node-b", 1), "k2", claim())
    assert broken(made) == set()
    allocate(made, linked("node-b", 2), "k3", claim())
    assert broken(made) == {"I1"}


def test_a_device_of_other_nodes_alone_is_found_on_this_one() -> None:
    made = network(beyond=1)
    allocate(made, linked("node-a", 1), "k1", claim())
    assert broken(made) == set()
    allocate(made, linked("node-a", 2), "k2", claim())
    assert broken(made) == {"I1"}


def test_a_share_is_as_much_of_its_gpu_to_the_checker_as_to_the_books() -> None:
    rng = Random(30)
    for _ in range(300):
        names = rng.sample(("memory", "example.com/memory", "cores", "threads"), rng.randint(0, 3))
        capacity = {name: DeviceCapacity(value=rng.randint(0, 9)) for name in names}
        device = OfferedDevice(
            pool=0,
            name="gpu",
            gpu=0,
            gpu_milli=rng.choice((0, 125, 1000)),
            is_shared=rng.random() < 0.8,
            capacity=capacity,
        )
        had = {name: rng.randint(0, each.value) for name, each in capacity.items()} if rng.random() < 0.9 else {}
        layout = DeviceLayout(pools=(DevicePool(driver=DRIVER),), devices=(device,), kinds="55" * 32)
        assert part_of_gpu(device, had) == Offer("", layout).devices[0].part(had)


@pytest.mark.parametrize(
    ("asked", "milli"),
    [
        ({"selectors": ("small",)}, 250),
        ({"selectors": ("small",), "count": 3}, 750),
        ({}, 1000),
        ({"admin": True}, 0),
        ({"capacity": {"memory": 2_500}}, 300),
        ({"capacity": {"memory": 20_000}}, 0),
        ({"device_class": "unknown"}, 0),
    ],
    ids=["quarter", "quarters", "whole", "admin", "a share", "too large a share", "no class"],
)
def test_a_claim_counts_for_the_largest_device_that_may_answer_it(asked: dict[str, Any], milli: int):
    shared, facts = shared_gpus(2), [layout_seen(CUT), class_seen(), selected(CUT, QUARTERS, "small")]
    known = CheckedDevices({})
    for fact in [*facts, layout_seen(shared)] if "capacity" in asked else facts:
        known.take(fact)
    assert known.gpu_milli(claim(**asked)) == milli
    (layouts, class_of) = [CUT, *([shared] if "capacity" in asked else [])], DeviceClass(DRIVER)
    taken = {selectors_digest(("small",)): Selection(QUARTERS)}
    offers = [Offer(each.digest(), each, {DRIVER: class_of}, taken if each is CUT else {}) for each in layouts]
    (need,) = weighed(claim_needs((claim(**asked),)), offers)
    assert need.gpu_milli == milli, "as decisions count it"


def test_every_device_of_a_kind_counts_for_all_of_the_largest_node():
    known = CheckedDevices({})
    for fact in (layout_seen(whole_gpus(3)), layout_seen(CUT), class_seen(), selected(CUT, QUARTERS, "small")):
        known.take(fact)
    assert known.gpu_milli(claim(selectors=("small",), every=True)) == 2000
