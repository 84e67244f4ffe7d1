"""Devices of no single node (network-attached): given once, whichever node has the pod, and given back to all."""

from typing import Any

import pytest

from tessera.domain.devices.networks import knowing, list_drawn
from tessera.domain.storing.fast import replace
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.domain.work.gang import gang_of
from tessera.engine.placement.attempt import Attempt
from tessera.engine.placement.faults import placement_faults
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.gangs import place_gang, try_to_place
from tessera.engine.preemption import victim_search
from tessera_schemas.cluster.device_claims import DeviceClaim, DeviceConstraint, DeviceRequest
from tessera_schemas.cluster.device_layouts import DeviceTaint, TakenDevice
from tessera_schemas.job import Role
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, job_spec, node_seen, role
from tests.published_devices import (
    DRIVER,
    NIC_DRIVER,
    claim,
    claiming,
    class_seen,
    layout_seen,
    offering,
    selected,
    whole_gpus,
    with_network,
)
from tests.rounds import Rounds, share

LINK = f"{NIC_DRIVER}/fabric/link-"
IS_LINK, IS_GPU = "link", "gpu"
ONE = whole_gpus(1)


def cluster(links: int = 2, nodes: int = 3, gpus: int = 1, preset: str = "fair", **offer: Any) -> Rounds:
    """Nodes with GPUs of their own, and a network of links that reaches all of them."""
    own = whole_gpus(gpus)
    layout = with_network(own, links)
    named = [offering(f"node-{number}", layout, gpus, **offer) for number in range(nodes)]
    classes = class_seen(DRIVER, IS_GPU), class_seen(NIC_DRIVER, IS_LINK)
    takes = (
        selected(layout, (1 << gpus) - 1, IS_GPU),
        selected(layout, ((1 << links) - 1) << gpus, IS_LINK),
    )
    return Rounds(share("research", 64, None), nodes=[layout_seen(layout), *classes, *takes, *named], preset=preset)


def linked(links: int = 1, gpus: int = 0, **more: Any) -> Role:
    """Pods of so many links, and GPUs of their node."""
    own = [claim(count=gpus)] if gpus else []
    return claiming(claim("link", links, NIC_DRIVER), *own, **more)


def submit(world: Rounds, key: str, *roles: Role, **spec: Any) -> None:
    world.commit(admitted(key, job_spec(*roles, name=key, **spec)))
    world.settle()


def had(world: Rounds, *keys: str) -> list[str]:
    """The links of these jobs' pods."""
    runs = [world.run(key) for key in keys]
    places = [place for run in runs if run is not None for place in run.all_placements]
    return sorted(device.device for place in places for device in place.drawn if device.driver == NIC_DRIVER)


def books_agree(world: Rounds) -> bool:
    """Whether each node knows what pods on other nodes have, as their own books say."""
    nodes = list(world.state.nodes.values())
    return all(knowing(node, list_drawn(nodes, node.offer.networks)) == node for node in nodes if node.offer)


def test_what_one_node_has_no_other_gets() -> None:
    world = cluster(links=2)
    for key in ("one", "two", "three"):
        submit(world, key, linked(gpus=1))
    assert had(world, "one", "two", "three") == ["link-0", "link-1"]
    assert len({place.node for key in ("one", "two") for place in world.run(key).all_placements}) == 2
    assert books_agree(world)


def test_what_is_short_of_a_network_is_counted_once() -> None:
    world = cluster(links=2)
    for key in ("one", "two", "three"):
        submit(world, key, linked())
    reason = world.job("three").reason
    assert reason.code is Code.NO_FIT
    # Three nodes reach the two links, which are two all the same.
    assert f"2 devices of class {NIC_DRIVER}, 2 taken" in reason.detail
    assert (reason.numbers["claimed_devices_matching"], reason.numbers["claimed_devices_taken"]) == (2, 2)


def test_what_a_run_had_is_free_on_every_node_once_it_is_absent() -> None:
    world = cluster(links=1)
    submit(world, "one", linked())
    submit(world, "two", linked(gpus=1))
    assert had(world, "two") == []
    world.finish("one")
    world.settle()
    assert had(world, "two") == ["link-0"]
    world.finish("two")
    assert all(node.drawn_elsewhere == node.drawn == () for node in world.state.nodes.values())


def test_a_gang_over_several_nodes_gets_each_device_once() -> None:
    world = cluster(links=4, nodes=4)
    submit(world, "gang", linked(gpus=1, replicas=4))
    assert had(world, "gang") == ["link-0", "link-1", "link-2", "link-3"]
    assert len({place.node for place in world.run("gang").all_placements}) == 4
    assert books_agree(world)
    world.finish("gang")
    assert books_agree(world)
    assert all(node.drawn_elsewhere == () for node in world.state.nodes.values())


@pytest.mark.parametrize("together", [False, True], ids=["anywhere", "in a domain"])
def test_a_try_leaves_every_node_as_its_pods_leave_it(together: bool) -> None:
    world = cluster(links=6, nodes=5, gpus=2)
    submit(world, "other", linked(gpus=1))
    topology = {"level": "kubernetes.io/os", "required": False} if together else None
    two = linked(gpus=1, replicas=3, topology=topology), linked(gpus=2, replicas=2, name="second", topology=topology)
    world.commit(admitted("gang", job_spec(*two, name="gang")))
    nodes, gang = dict(world.state.nodes.items()), gang_of(world.job("gang").roles)
    found = try_to_place(gang, nodes, FeasibleNodes(nodes))
    assert isinstance(found, Attempt)
    after = dict(nodes)
    for placement in found.placements:
        gang.take(after, (placement,))
    assert nodes | found.changed == after
    at_once = dict(nodes)
    gang.take(at_once, found.placements)
    assert at_once == after
    gang.take(at_once, found.placements, -1)
    assert at_once == nodes


def test_a_gang_that_lacks_one_device_of_a_network_gets_none() -> None:
    world = cluster(links=3, nodes=4)
    submit(world, "gang", linked(replicas=4))
    assert world.run("gang") is None
    assert f"3 devices of class {NIC_DRIVER}, 3 taken (3 by its other pods)" in world.job("gang").reason.detail
    assert all(node.drawn_elsewhere == () for node in world.state.nodes.values())
    # The same without a table of the nodes.
    found = place_gang(world.job("gang").roles, dict(world.state.nodes.items()))
    assert isinstance(found, Reason)
    submit(world, "less", linked(replicas=3))
    assert len(had(world, "less")) == 3


def test_a_gang_in_one_domain_gets_each_device_once() -> None:
    world = cluster(links=2, nodes=3)
    spread = {"level": "kubernetes.io/os", "required": False}
    submit(world, "gang", linked(gpus=1, replicas=2, topology=spread))
    assert had(world, "gang") == ["link-0", "link-1"]
    submit(world, "other", linked(gpus=1, topology=spread))
    assert had(world, "other") == []


def test_two_pods_of_one_pass_are_given_two_devices() -> None:
    world = cluster(links=2)
    world.commit(*(admitted(key, job_spec(linked(gpus=1), name=key)) for key in ("one", "two", "three")))
    world.settle()
    assert len({*had(world, "one", "two", "three")}) == 2
    assert books_agree(world)


def test_two_pods_of_one_pass_are_given_two_devices_beside_a_job_that_room_is_kept_for() -> None:
    world = cluster(links=2, nodes=2)
    world.configure(backfill="reserve", backfill_patience_seconds=0)
    world.commit(node_seen("plain", 4))
    for key, gpus, hours in (("runs", 3, 2), ("head", 4, 1)):
        submit(world, key, role(gpus=gpus), time_limit_seconds=hours * 3600)
    long = {"time_limit_seconds": 9 * 3600}
    world.commit(*(admitted(key, job_spec(linked(gpus=1), name=key, **long)) for key in ("one", "two")))
    world.settle()
    assert world.job("head").reason.code is Code.RESERVED
    assert had(world, "one", "two") == ["link-0", "link-1"]
    assert books_agree(world)


def test_links_that_are_kept_for_a_job_are_given_on_no_node_to_one_that_runs_on() -> None:
    world = cluster(links=3)
    world.configure(backfill="reserve", backfill_patience_seconds=0)
    for key, links, hours in (("runs", 2, 2), ("head", 3, 1), ("long", 1, 3), ("short", 1, 1)):
        submit(world, key, linked(links), time_limit_seconds=hours * 3600)
    assert world.job("head").reason.code is Code.RESERVED
    assert world.run("long") is None
    assert world.running("runs", "short")


def test_devices_of_the_node_and_of_the_network_are_drawn_together() -> None:
    own = whole_gpus(2)
    network = with_network(own, 2)
    same = [{"rail": at} for at in (0, 1, 1, 2)]
    devices = tuple(d.model_copy(update={"same": s}) for d, s in zip(network.devices, same, strict=True))
    layout = network.model_copy(update={"devices": devices})
    nodes = [offering(name, layout, 2) for name in ("node-0", "node-1")]
    classes = class_seen(DRIVER, IS_GPU), class_seen(NIC_DRIVER, IS_LINK)
    takes = selected(layout, 0b0011, IS_GPU), selected(layout, 0b1100, IS_LINK)
    world = Rounds(share("research", 64, None), nodes=[layout_seen(layout), *classes, *takes, *nodes])
    pair = DeviceClaim(
        name="pair",
        requests=(
            DeviceRequest(name="gpu", choices=({"device_class": DRIVER},)),
            DeviceRequest(name="link", choices=({"device_class": NIC_DRIVER},)),
        ),
        constraints=(DeviceConstraint(match="rail"),),
    )
    submit(world, "one", claiming(pair))
    assert [device.device for device in world.run("one").all_placements[0].drawn] == ["gpu-1", "link-0"]
    submit(world, "two", claiming(pair))
    assert world.run("two") is None


def test_counters_count_on_every_node_also_for_devices_that_are_of_others() -> None:
    here, there = with_network(ONE, 3, counters=1), with_network(ONE, 3, beyond=2, counters=1)
    facts = [layout_seen(here), layout_seen(there), class_seen(NIC_DRIVER, IS_LINK)]
    takes = [selected(layout, 0b1110, IS_LINK) for layout in (here, there)]
    nodes = [offering("node-0", here, 1), offering("node-1", there, 1)]
    world = Rounds(share("research", 64, None), nodes=[*facts, *takes, *nodes])
    # All three links draw on a counter of one.
    submit(world, "one", linked())
    assert len(had(world, "one")) == 1
    submit(world, "two", linked())
    assert had(world, "two") == []


def test_a_device_that_is_of_other_nodes_alone_is_drawn_on_none_of_its_neighbours() -> None:
    there = with_network(ONE, 2, beyond=1, counters=2)
    facts = [layout_seen(there), class_seen(NIC_DRIVER, IS_LINK), selected(there, 0b110, IS_LINK)]
    world = Rounds(share("research", 64, None), nodes=[*facts, offering("node-0", there, 1)])
    submit(world, "two", linked(2))
    assert had(world, "two") == []
    submit(world, "one", linked())
    assert had(world, "one") == ["link-0"]


def test_what_claims_of_others_have_and_taints_count_once() -> None:
    world = cluster(
        links=3,
        taken=(TakenDevice(device=f"{LINK}0"),),
        tainted=(DeviceTaint(device=f"{LINK}1", key="sick", effect="NoSchedule"),),
    )
    submit(world, "one", linked())
    assert had(world, "one") == ["link-2"]
    submit(world, "two", linked())
    assert f"3 devices of class {NIC_DRIVER}, 2 taken, 1 tainted by sick" in world.job("two").reason.detail


def test_a_node_that_comes_or_comes_to_reach_the_network_knows_what_is_taken() -> None:
    world = cluster(links=1, nodes=1)
    layout = with_network(ONE, 1)
    submit(world, "one", linked())
    world.commit(offering("node-new", layout, 1), layout_seen(ONE), offering("node-bare", ONE, 1))
    assert world.state.nodes.get("node-new").drawn_elsewhere == ((f"{LINK}0", ()),)
    assert world.state.nodes.get("node-bare").drawn_elsewhere == ()
    world.commit(offering("node-bare", layout, 1))
    assert books_agree(world)
    submit(world, "two", linked())
    assert had(world, "two") == []


def test_a_node_that_reaches_the_network_no_more_gives_back_what_it_had() -> None:
    world = cluster(links=1, nodes=2)
    submit(world, "one", linked())
    where = world.run("one").all_placements[0].node
    world.commit(layout_seen(ONE), offering(where, ONE, 1))
    assert books_agree(world)
    assert world.state.nodes.get("node-1" if where == "node-0" else "node-0").drawn_elsewhere != ()
    world.finish("one")
    assert all(node.drawn_elsewhere == () for node in world.state.nodes.values())
    submit(world, "two", linked())
    assert had(world, "two") == ["link-0"]


def test_a_pool_that_becomes_a_network_is_taken_as_far_as_it_was() -> None:
    world = cluster(links=1, nodes=2)
    submit(world, "one", linked())
    own = with_network(ONE, 1)
    pools = tuple(pool.model_copy(update={"network": False}) for pool in own.pools)
    apart = own.model_copy(update={"pools": pools})
    takes = selected(apart, 1, IS_GPU), selected(apart, 2, IS_LINK)
    world.commit(layout_seen(apart), *takes, *(offering(f"node-{at}", apart, 1) for at in (0, 1)))
    assert all(node.drawn_elsewhere == () for node in world.state.nodes.values())
    world.commit(*(offering(f"node-{at}", own, 1) for at in (0, 1)))
    assert books_agree(world)
    assert sum(len(node.drawn_elsewhere) for node in world.state.nodes.values()) == 1


def test_a_layout_that_the_ledger_learns_late_knows_what_is_taken() -> None:
    world = cluster(links=1, nodes=1)
    submit(world, "one", linked())
    larger = with_network(whole_gpus(2), 1)
    world.commit(offering("node-late", larger, 2))
    assert world.state.nodes.get("node-late").drawn_elsewhere == ()
    world.commit(layout_seen(larger))
    assert books_agree(world)
    assert world.state.nodes.get("node-late").drawn_elsewhere != ()


def test_a_higher_job_evicts_for_a_device_of_a_network() -> None:
    world = cluster(links=2, nodes=2, preset="priority")
    submit(world, "low", linked(2), priority_class="low")
    submit(world, "high", linked(), priority_class="high")
    assert len(had(world, "high")) == 1
    assert not world.running("low")
    assert books_agree(world)


def test_a_higher_gang_evicts_for_devices_of_a_network_on_several_nodes() -> None:
    world = cluster(links=2, nodes=2, preset="priority")
    submit(world, "low", linked(1, gpus=1, replicas=2), priority_class="low")
    submit(world, "high", linked(1, gpus=1, replicas=2), priority_class="high")
    assert had(world, "high") == ["link-0", "link-1"]
    assert books_agree(world)


@pytest.mark.parametrize("pieces", ["few", "many"])
def test_a_device_of_a_network_is_taken_from_the_cheapest_holder_on_whatever_node(
    monkeypatch: pytest.MonkeyPatch, pieces: str
) -> None:
    if pieces == "many":
        monkeypatch.setattr(victim_search, "SINGLES_MAX", 1)
    world = cluster(links=2, nodes=3, gpus=2, preset="priority")
    submit(world, "dear", linked(gpus=2), priority_class="low")
    submit(world, "top", claiming(claim(count=2)), priority_class="high")
    submit(world, "cheap", linked(), priority_class="low")
    taken = {world.run(key).all_placements[0].node for key in ("dear", "top")}
    assert world.run("cheap").all_placements[0].node in taken
    submit(world, "high", linked(gpus=2), priority_class="high")
    (place,) = world.run("high").all_placements
    assert place.node not in taken
    assert (world.running("dear"), world.running("cheap")) == (True, False)
    assert books_agree(world)


def test_a_restored_state_knows_the_same_and_hashes_alike() -> None:
    world = cluster(links=3)
    submit(world, "one", linked(gpus=1))
    submit(world, "two", linked(gpus=1))
    restored = load(iter(list(dump(world.state))))
    assert StateHash().of(restored) == StateHash().of(world.state)
    for node in world.state.nodes.values():
        assert restored.nodes.get(node.name) == node
        assert len(node.drawn) + len(node.drawn_elsewhere) >= 2


def test_a_placement_of_devices_that_another_node_has_is_a_fault() -> None:
    world = cluster(links=2)
    submit(world, "gang", linked(gpus=1, replicas=2))
    run, nodes = world.run("gang"), dict(world.state.nodes.items())
    world.finish("gang")
    free = dict(world.state.nodes.items())
    assert list(placement_faults(run.roles, run.placements, free)) == []
    assert list(placement_faults(run.roles, run.placements, nodes)) != []
    first, second = run.placements
    twice = tuple(d for d in second.drawn if d.driver == DRIVER) + tuple(
        d for d in first.drawn if d.driver == NIC_DRIVER
    )
    against = list(placement_faults(run.roles, (first, replace(second, drawn=twice)), free))
    assert len(against) == 1
    assert "cannot have" in against[0]
