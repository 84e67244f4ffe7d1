"""Jobs that claim devices which drivers publish (DRA): drawn with their nodes, counted, given back, explained."""

from dataclasses import replace
from typing import Any

import pytest

from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.explain.explanation import explain
from tessera.engine.placement.faults import placement_faults
from tessera.engine.placement.gangs import place_gang
from tessera_schemas.cluster.device_claims import DeviceClaim, DeviceRequest
from tessera_schemas.cluster.device_layouts import (
    DeviceCapacity,
    DeviceLayout,
    DevicePool,
    DeviceTaint,
    OfferedDevice,
    TakenDevice,
)
from tessera_schemas.facts import RequeueRequested
from tessera_schemas.job import Role
from tessera_schemas.reasons import Code
from tests.builders import admitted, job_spec, run_absent
from tests.published_devices import (
    DRIVER,
    NIC_DRIVER,
    claim,
    claiming,
    class_seen,
    cut_gpus,
    gpus_with_nics,
    layout_seen,
    offering,
    selected,
    shared_gpus,
    whole_gpus,
)
from tests.rounds import Rounds, share

FOUR = whole_gpus(4)
GPU, NIC = "it is a GPU", "it is a NIC"
SMALL = 'device.attributes["gpu.example.com"].size == "small"'


def cluster(layout: DeviceLayout = FOUR, nodes: int = 1, gpus: int = 4, **offer: Any) -> Rounds:
    """Nodes of one layout, with a class that takes all of its devices."""
    named = [offering(f"node-{number}", layout, gpus, **offer) for number in range(nodes)]
    return Rounds(share("research", 64, None), nodes=[layout_seen(layout), class_seen(), *named])


def submit(world: Rounds, key: str, *roles: Role, **spec: Any) -> None:
    world.commit(admitted(key, job_spec(*roles, name=key, **spec)))
    world.settle()


def drawn(world: Rounds, key: str) -> list[str]:
    """The devices of each pod, as node and names."""
    run = world.run(key)
    return [] if run is None else [f"{p.node}:{','.join(d.device for d in p.drawn)}" for p in run.all_placements]


def free(world: Rounds, node: str = "node-0") -> tuple[int, ...]:
    found: tuple[int, ...] = world.state.nodes.get(node).gpu_free
    return found


def test_a_gang_gets_nodes_and_devices_in_one_decision_and_no_device_twice() -> None:
    world = cluster(nodes=2)
    submit(world, "gang", claiming(claim(count=2), replicas=3))
    places = world.run("gang").all_placements
    had = [device.id for place in places for device in place.drawn]
    assert len(had) == len(set(had)) == 6
    assert {(d.claim, d.request, d.driver) for p in places for d in p.drawn} == {("gpu", "devices", DRIVER)}
    assert all(device.pool == place.node for place in places for device in place.drawn)
    assert sum(free(world, "node-0")) + sum(free(world, "node-1")) == 2000


HAMI = "hami-core-gpu.project-hami.io"


@pytest.mark.parametrize(
    ("driver", "least", "isolation"),
    [(DRIVER, "memory", ""), (HAMI, "hardware", ""), (HAMI, "compute", "compute"), (DRIVER, "none", "none")],
    ids=["nothing is enforced", "no hardware of its own", "HAMi's library limits it", "nothing is asked for"],
)
def test_a_shared_gpu_is_drawn_only_where_its_driver_enforces_what_is_asked_for(
    driver: str, least: str, isolation: str
) -> None:
    world = cluster(shared_gpus(2, driver), gpus=2)
    asks = claiming(claim())
    asked = asks.resources.model_copy(update={"isolation": least})
    submit(world, "one", asks.model_copy(update={"resources": asked}))
    assert len(drawn(world, "one")) == bool(isolation)
    told = explain(world.state, world.job("one").job_id, world.state.ts)
    assert told is not None
    said = f"Isolation of its shares ({driver}): {isolation}." in told.sentences
    assert said == bool(isolation)
    if not isolation:
        assert "2 shared with less isolation" in world.job("one").reason.detail
        world.commit(layout_seen(FOUR), offering("node-1", FOUR, 4))
        world.settle()
        assert drawn(world, "one") == ["node-1:gpu-0"]


def test_of_choices_that_isolation_hinders_the_one_that_lacks_least_is_told() -> None:
    world = cluster(shared_gpus(1), gpus=1)
    two, one = ({"name": name, "device_class": DRIVER, "count": count} for name, count in (("two", 2), ("one", 1)))
    asks = claiming(DeviceClaim(name="gpu", requests=(DeviceRequest(name="devices", choices=(two, one)),)))
    asked = asks.resources.model_copy(update={"isolation": "memory"})
    submit(world, "one", asks.model_copy(update={"resources": asked}))
    assert world.job("one").reason.numbers["claimed_devices_wanted"] == 1


def test_a_gang_that_lacks_one_device_gets_none_and_is_told_what_is_short() -> None:
    world = cluster(nodes=2)
    submit(world, "first", claiming(claim(count=3)))
    submit(world, "gang", claiming(claim(count=2), replicas=3))
    assert drawn(world, "gang") == []
    reason = world.job("gang").reason
    assert (reason.code, reason.numbers["claimed_devices_taken"]) == (Code.NO_FIT, 3)
    assert f"8 devices of class {DRIVER}, 7 taken (4 by its other pods)" in reason.detail
    world.finish("first")
    world.settle()
    assert len(drawn(world, "gang")) == 3


def test_devices_of_another_class_are_not_counted_as_taken_by_its_other_pods() -> None:
    world = cluster(gpus_with_nics(4), gpus=4)
    world.commit(class_seen(NIC_DRIVER, NIC), selected(gpus_with_nics(4), 0b11110000, NIC))
    world.commit(class_seen(DRIVER, GPU), selected(gpus_with_nics(4), 0b00001111, GPU))
    submit(world, "first", claiming(claim(count=2)))
    nics = claiming(claim("nic", device_class=NIC_DRIVER), name="a", replicas=3)
    submit(world, "gang", nics, claiming(claim(count=1), name="b", replicas=3))
    reason = world.job("gang").reason
    assert f"4 devices of class {DRIVER}, 4 taken (2 by its other pods)" in reason.detail
    assert reason.numbers["claimed_devices_taken"] == 2


def test_parts_that_a_whole_gpu_takes_are_counted_as_taken_by_the_pod_that_has_it() -> None:
    world = cluster(cut_gpus(2), gpus=2)
    whole, quarter = 0b0000001_0000001, 0b1111000_1111000
    world.commit(class_seen("whole", "w"), selected(cut_gpus(2), whole, "w"))
    world.commit(class_seen("quarter", "q"), selected(cut_gpus(2), quarter, "q"))
    submit(world, "first", claiming(claim(device_class="quarter")))
    pods = [claiming(claim(device_class=each), name=each[0], replicas=n) for each, n in (("quarter", 4), ("whole", 1))]
    submit(world, "gang", pods[1], pods[0])
    assert "8 devices of class quarter, 8 taken (7 by its other pods)" in world.job("gang").reason.detail


def test_a_gang_whose_first_pod_would_take_all_that_the_second_needs_is_placed_whole() -> None:
    world = cluster(whole_gpus(2), gpus=2)
    best, other = ({"name": name, "device_class": DRIVER, "count": count} for name, count in (("two", 2), ("one", 1)))
    wanted = DeviceClaim(name="gpu", requests=(DeviceRequest(name="devices", choices=(best, other)),))
    submit(world, "gang", claiming(wanted, replicas=2))
    assert drawn(world, "gang") == ["node-0:gpu-0", "node-0:gpu-1"]


def test_a_role_does_not_keep_the_only_device_from_another_role() -> None:
    world = cluster(whole_gpus(2), gpus=2)
    world.commit(selected(whole_gpus(2), 0b01, SMALL))
    small = claiming(claim(selectors=(SMALL,)), name="second")
    submit(world, "gang", claiming(claim(), name="first"), small)
    assert drawn(world, "gang") == ["node-0:gpu-1", "node-0:gpu-0"]


def test_a_role_does_not_keep_the_only_node_from_another_role() -> None:
    """The fuller node is the best for the first role, and the only one with a device for the second."""
    one, two = whole_gpus(1), cut_gpus(1)
    facts = [layout_seen(one), layout_seen(two), class_seen(), offering("a", one, 1), offering("b", two, 1)]
    world = Rounds(share("research", 64, None), nodes=facts)
    world.commit(selected(one, 1, SMALL), selected(two, 0, SMALL), selected(one, 1, "whole"), selected(two, 1, "whole"))
    first, second = (
        claiming(claim(selectors=("whole",)), name="first"),
        claiming(claim(selectors=(SMALL,)), name="second"),
    )
    submit(world, "gang", first, second)
    assert drawn(world, "gang") == ["b:gpu-0-whole", "a:gpu-0"]
    roles, placements = world.job("gang").roles, world.run("gang").all_placements
    world.finish("gang")
    # The same by whoever has the nodes without a table of them.
    assert place_gang(roles, dict(world.state.nodes.items())) == placements


def test_what_a_run_had_is_free_once_it_is_absent() -> None:
    world = cluster()
    submit(world, "one", claiming(claim(count=4)))
    assert free(world) == (0, 0, 0, 0)
    world.finish("one")
    assert free(world) == (1000,) * 4
    assert world.state.nodes.get("node-0").drawn == ()


def test_instances_that_overlap_exclude_each_other_and_count_as_parts_of_their_gpu() -> None:
    layout = cut_gpus(1)
    world = cluster(layout, gpus=1)
    halves = sum(1 << at for at, device in enumerate(layout.devices) if "half" in device.name)
    world.commit(class_seen("half", SMALL), selected(layout, halves, SMALL))
    submit(world, "half", claiming(claim(device_class="half")))
    assert free(world) == (500,)
    assert world.job("half").amount.gpu_milli == 500
    submit(world, "whole", claiming(claim(selectors=("whole",))))
    world.commit(selected(layout, 1, "whole"))
    world.settle()
    assert drawn(world, "whole") == []
    submit(world, "other", claiming(claim(device_class="half")))
    assert free(world) == (0,)


def test_a_job_waits_while_nobody_has_said_what_its_expression_takes() -> None:
    world = cluster()
    submit(world, "one", claiming(claim(selectors=(SMALL,))))
    reason = world.job("one").reason
    assert reason.code is Code.NO_FIT
    assert "are being looked at" in reason.detail
    world.commit(selected(FOUR, 0b0100, SMALL))
    world.settle()
    assert drawn(world, "one") == ["node-0:gpu-2"]


def test_the_error_of_an_expression_is_told_to_its_owner() -> None:
    world = cluster()
    world.commit(selected(FOUR, 0, SMALL, error="no such attribute: size"))
    submit(world, "one", claiming(claim(selectors=(SMALL,))))
    assert "no such attribute: size" in world.job("one").reason.detail


def test_the_error_is_told_to_a_job_that_waits_already_and_once() -> None:
    world = cluster()
    submit(world, "one", claiming(claim(selectors=(SMALL,))))
    submit(world, "other", claiming(claim(count=5)))
    said = world.commit(selected(FOUR, 0, SMALL, error="no such attribute: size")).records
    assert [record.kind for record in said] == ["devices_noted", "waiting"]
    assert "no such attribute: size" in world.job("one").reason.detail
    assert "no such attribute" not in world.job("other").reason.detail
    world.settle()
    assert world.commit(selected(FOUR, 0, SMALL, error="no such attribute: size")).records == ()


def test_a_class_that_the_cluster_lacks_is_named_and_waited_for() -> None:
    world = cluster()
    submit(world, "one", claiming(claim(device_class="tpu.example.com")))
    assert "tpu.example.com" in world.job("one").reason.detail
    world.commit(class_seen("tpu.example.com"))
    world.settle()
    assert drawn(world, "one") == ["node-0:gpu-0"]


def test_a_tainted_device_is_for_those_who_bear_it() -> None:
    tainted = tuple(
        DeviceTaint(device=f"{DRIVER}/node-0/gpu-{at}", key="xid", value="79", effect="NoSchedule") for at in range(3)
    )
    world = cluster(tainted=tainted)
    submit(world, "one", claiming(claim()))
    assert drawn(world, "one") == ["node-0:gpu-3"]
    submit(world, "two", claiming(claim()))
    assert "3 tainted by xid" in world.job("two").reason.detail
    submit(world, "bears", claiming(claim(tolerations=({"key": "xid", "operator": "Exists"},))))
    assert drawn(world, "bears") == ["node-0:gpu-0"]


def test_a_device_that_others_claimed_counts_as_used() -> None:
    world = cluster(taken=(TakenDevice(device=f"{DRIVER}/node-0/gpu-0"),))
    assert free(world) == (0, 1000, 1000, 1000)
    submit(world, "one", claiming(claim(count=3)))
    assert drawn(world, "one") == ["node-0:gpu-1,gpu-2,gpu-3"]


def test_a_layout_may_change_while_a_run_holds_its_devices() -> None:
    world = cluster()
    submit(world, "one", claiming(claim(count=2)))
    more = whole_gpus(6)
    world.commit(layout_seen(more), offering("node-0", more, 6))
    assert free(world) == (0, 0, 1000, 1000, 1000, 1000)
    assert world.running("one")
    submit(world, "two", claiming(claim(count=4)))
    assert drawn(world, "two") == ["node-0:gpu-2,gpu-3,gpu-4,gpu-5"]


def test_a_run_counts_against_the_quota_of_gpus() -> None:
    named = [layout_seen(FOUR), class_seen(), offering("node-0", FOUR, 4)]
    world = Rounds(share("research", 2, None), nodes=named)
    submit(world, "one", claiming(claim(count=2)))
    submit(world, "two", claiming(claim()))
    assert world.running("one")
    assert world.job("two").reason.code is Code.WAITING_FOR_QUOTA


def test_a_higher_job_evicts_for_devices() -> None:
    world = Rounds(
        share("research", 4, None),
        nodes=[layout_seen(FOUR), class_seen(), offering("node-0", FOUR, 4)],
        preset="priority",
    )
    submit(world, "low", claiming(claim(count=4)), priority_class="low")
    submit(world, "high", claiming(claim(count=2)), priority_class="high")
    assert len(drawn(world, "high")) == 1
    assert not world.running("low")


def test_devices_that_are_kept_for_a_job_are_not_given_to_one_that_runs_on() -> None:
    world = cluster()
    world.configure(backfill="reserve", backfill_patience_seconds=0)
    for key, count, hours in (("runs", 2, 2), ("head", 3, 1), ("long", 1, 3), ("longer", 1, 4), ("short", 1, 1)):
        submit(world, key, claiming(claim(count=count)), time_limit_seconds=hours * 3600)
    assert world.job("head").reason.code is Code.RESERVED
    assert world.run("longer") is None, "it would have what the head waits for"
    assert world.running("runs", "long", "short"), "one of the four is left beside the head's three"


def test_a_job_that_is_counted_anew_while_it_waits_leaves_a_line_by_expected_times() -> None:
    world = Rounds(share("research", 64, None, order="expected"), nodes=[class_seen()])
    submit(world, "early", claiming(claim(count=2)))
    assert world.job("early").amount.gpu_milli == 0, "nobody knows yet that the class is of GPUs"
    world.commit(layout_seen(FOUR), offering("node-0", FOUR, 4))
    world.settle()
    assert world.running("early")
    assert world.run("early").amount.gpu_milli == 2000


def test_a_job_that_is_queued_again_counts_by_what_was_learnt_while_it_ran() -> None:
    layout = cut_gpus(1)
    world = cluster(layout, gpus=1)
    halves = sum(1 << at for at, device in enumerate(layout.devices) if "half" in device.name)
    world.commit(class_seen("some", SMALL), selected(layout, halves, SMALL))
    submit(world, "one", claiming(claim(device_class="some")))
    world.commit(selected(layout, (1 << len(layout.devices)) - 1, SMALL))
    assert world.run("one").amount.gpu_milli == 500, "a run keeps what it counts for"
    run = world.run("one").run_id
    world.commit(RequeueRequested(kind="requeue_requested", job_id=world.job("one").job_id, tenant="lab"))
    world.commit(run_absent(run))
    assert world.job("one").amount.gpu_milli == 1000, "it may get the whole GPU"


def test_a_restored_state_offers_the_same_and_hashes_alike() -> None:
    world = cluster(nodes=2)
    submit(world, "one", claiming(claim(count=3)))
    world.commit(selected(FOUR, 0b1010, SMALL))
    restored = load(iter(list(dump(world.state))))
    assert StateHash().of(restored) == StateHash().of(world.state)
    for name in ("node-0", "node-1"):
        assert restored.nodes.get(name) == world.state.nodes.get(name)
        assert restored.nodes.get(name).offer.selected(DRIVER, (SMALL,)).devices == 0b1010


def test_a_placement_of_devices_that_are_taken_is_a_fault() -> None:
    world = cluster()
    submit(world, "one", claiming(claim()))
    submit(world, "two", claiming(claim()))
    run, nodes = world.run("one"), dict(world.state.nodes.items())
    assert list(placement_faults(run.roles, run.placements, nodes)) != []
    world.finish("one")
    assert list(placement_faults(run.roles, run.placements, dict(world.state.nodes.items()))) == []


@pytest.mark.parametrize("gone", [True, False])
def test_a_driver_that_goes_takes_its_devices_along(gone: bool) -> None:
    world = cluster()
    submit(world, "one", claiming(claim()))
    if gone:
        world.commit(class_seen(gone=True))
    else:
        world.commit(
            offering("node-0", FOUR, 0).model_copy(
                update={"offer": offering("x", FOUR, 0).offer.model_copy(update={"layout": ""})}
            )
        )
    assert world.running("one")
    submit(world, "two", claiming(claim()))
    assert drawn(world, "two") == []


def test_a_placement_on_a_part_of_a_gpu_has_no_fault_and_on_another_that_overlaps_one() -> None:
    """The other parts of the GPU are not taken because this one is looked at."""
    layout = cut_gpus(1)
    world = cluster(layout, gpus=1)
    submit(world, "parts", claiming(claim(), replicas=2))
    run, empty = world.run("parts"), cluster(layout, gpus=1).state.nodes.get("node-0")
    roles = world.job("parts").roles
    assert [*placement_faults(roles, run.all_placements, {"node-0": empty})] == []
    whole = replace(run.all_placements[0].drawn[0], device="gpu-0-whole")
    other = (replace(run.all_placements[0], drawn=(whole,)), run.all_placements[1])
    assert [fault for fault in placement_faults(roles, other, {"node-0": empty}) if "cannot have" in fault]


def shared(name: str = "fabric", count: int = 1, **more: Any) -> DeviceClaim:
    """A claim that all pods of the job have together."""
    return claim(name, count, **more).model_copy(update={"shared": True})


def test_pods_that_share_a_claim_are_on_one_node_and_its_devices_are_drawn_once() -> None:
    world = cluster(nodes=2)
    submit(world, "gang", claiming(shared(count=2), replicas=3))
    assert drawn(world, "gang") == ["node-0:gpu-0,gpu-1", "node-0:", "node-0:"]
    assert (free(world), free(world, "node-1")) == ((0, 0, 1000, 1000), (1000,) * 4)
    assert world.run("gang").amount.gpu_milli == world.job("gang").amount.gpu_milli == 2000


def test_pods_that_share_a_claim_wait_for_a_node_that_holds_all_of_them() -> None:
    world = cluster(nodes=2)
    roles = claiming(shared(), claim(), replicas=4)
    submit(world, "gang", roles)
    # Five devices, and a node has four.
    assert drawn(world, "gang") == []
    assert world.job("gang").reason.code is Code.NO_FIT
    submit(world, "less", roles.model_copy(update={"replicas": 3}))
    assert sorted(place[:6] for place in drawn(world, "less")) == ["node-0"] * 3
    assert free(world) == (0,) * 4


def test_roles_that_share_a_claim_are_on_one_node_and_others_go_where_there_is_room() -> None:
    world = cluster(nodes=2)
    first = claiming(shared(count=2), name="first")
    second = claiming(shared(count=2), claim(), name="second", replicas=2)
    submit(world, "gang", first, claiming(claim(), name="third", replicas=4), second)
    places = world.run("gang").all_placements
    assert {place.node for place in places if place.role in ("first", "second")} == {"node-0"}
    assert [place.node for place in places if place.role == "third"] == ["node-1"] * 4
    assert [len(place.drawn) for place in places] == [2, 1, 1, 1, 1, 1, 1]


def test_what_pods_share_counts_once_against_quotas_of_its_class() -> None:
    world = cluster()
    submit(world, "gang", claiming(shared(count=2), claim(), replicas=2))
    assert world.job("gang").amount.device_classes == world.run("gang").amount.device_classes == ((DRIVER, 4),)


def test_pods_that_share_a_claim_and_each_have_one_get_devices_drawn_together() -> None:
    """Drawn pod by pod the shared claim would take the only small device, which each pod wants for itself."""
    world = cluster(whole_gpus(2), gpus=2)
    world.commit(selected(whole_gpus(2), 0b01, SMALL))
    submit(world, "gang", claiming(shared()), claiming(shared(), claim("own", selectors=(SMALL,)), name="second"))
    assert drawn(world, "gang") == ["node-0:gpu-1", "node-0:gpu-0"]


def test_roles_of_one_node_have_their_claims_answered_together() -> None:
    world = cluster(whole_gpus(2), nodes=2, gpus=2)
    world.commit(selected(whole_gpus(2), 0b01, SMALL))
    small = claiming(claim(selectors=(SMALL,)), name="second", replicas=2, same_node_as="first")
    submit(world, "gang", claiming(claim(), name="first", replicas=2), small)
    assert drawn(world, "gang") == ["node-0:gpu-1", "node-1:gpu-1", "node-0:gpu-0", "node-1:gpu-0"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: replace(p[1], node="node-1"), "pods that share a claim are on several nodes"),
        (lambda p: replace(p[1], drawn=p[0].drawn), "its claims cannot have"),
    ],
)
def test_a_plan_that_parts_pods_which_share_a_claim_or_draws_for_two_of_them_has_faults(change: Any, why: str) -> None:
    world = cluster(nodes=2)
    submit(world, "gang", claiming(shared(), replicas=2))
    roles, places = world.job("gang").roles, world.run("gang").all_placements
    world.finish("gang")
    nodes = dict(world.state.nodes.items())
    assert not [*placement_faults(roles, places, nodes)]
    assert any(why in fault for fault in placement_faults(roles, (places[0], change(places)), nodes))


def test_an_elastic_run_draws_devices_for_the_pods_that_it_grows_by_and_gives_them_back() -> None:
    nodes = [layout_seen(FOUR), class_seen(), offering("node-0", FOUR, 4)]
    world = Rounds(share("research", 64, None), nodes=nodes, grow_after_seconds=0)
    submit(world, "elastic", claiming(claim(), replicas=1, max_replicas=9))
    assert drawn(world, "elastic") == [f"node-0:gpu-{at}" for at in range(4)]
    assert world.run("elastic").amount.device_classes == ((DRIVER, 4),)
    submit(world, "other", claiming(claim(count=2)))
    assert len(world.run("elastic").places) == 2
    assert len(world.run("other").placements[0].drawn) == 2
    assert free(world) == (0,) * 4
    world.finish("other")
    world.finish("elastic")
    assert free(world) == (1000,) * 4


def test_pods_of_an_elastic_role_share_no_claim() -> None:
    with pytest.raises(ValueError, match="an elastic role has no claim that its pods share"):
        job_spec(claiming(shared(), replicas=1, max_replicas=2))


def cut_by_memory(*more: str) -> DeviceLayout:
    """Two GPUs of 80 of memory, of which claims have shares in steps of one."""
    policy = DeviceCapacity(value=80_000, default=80_000, least=1_000, step=1_000)
    capacity = {"memory": policy, **{name: DeviceCapacity(value=100_000, default=50_000) for name in more}}
    devices = (
        OfferedDevice(pool=0, name=f"gpu-{at}", gpu=at, gpu_milli=1000, is_shared=True, capacity=capacity)
        for at in range(2)
    )
    return DeviceLayout(pools=(DevicePool(driver=DRIVER),), devices=tuple(devices), kinds="44" * 32)


@pytest.mark.parametrize("more", [(), ("cores",)])
def test_a_share_of_a_gpu_counts_by_its_memory(more: tuple[str, ...]) -> None:
    layout = cut_by_memory(*more)
    world = cluster(layout, gpus=2)
    for key, memory in (("quarter", 20_000), ("third", 26_700)):  # a third is rounded to 27 by the policy
        submit(world, key, claiming(claim(capacity={"memory": memory})))
    assert [world.job(key).amount.gpu_milli for key in ("quarter", "third")] == [250, 337]
    assert free(world) == (1000 - 250 - 337, 1000)
    assert load(dump(world.state)).nodes.get("node-0").gpu_free == free(world)
    world.commit(class_seen(DRIVER, 'device.driver != ""'), selected(layout, 0b11, 'device.driver != ""'))
    assert free(world) == (1000 - 250 - 337, 1000)
    world.finish("quarter")
    world.settle()
    assert free(world) == (1000 - 337, 1000)


def test_a_share_of_others_of_unknown_size_is_a_whole_gpu() -> None:
    world = cluster(cut_by_memory(), gpus=2, taken=(TakenDevice(device=f"{DRIVER}/node-0/gpu-1"),))
    assert free(world) == (1000, 0)
