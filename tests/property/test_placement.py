"""Whatever the cluster and the gangs: nothing is given twice, and a gang is whole."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.resources import WHOLE_GPU, Node, RoleNeed
from tessera.engine.placement.fits import never_fits
from tessera.engine.placement.gangs import FreeCapacity, place_gang
from tessera.engine.placement.inadmissible import inadmissible
from tessera_schemas.cluster.mig import GEOMETRIES
from tessera_schemas.cluster.resource_kinds import WHOLE_NODE
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement
from tests.property.shapes import clusters, gangs, related_gangs, roomy_clusters, small_gangs


def used_by(placements: list[tuple[Placement, RoleNeed]], node: Node) -> Node:
    """The node after these pods, counted here by hand and not by the code under test."""
    gpu, cut = list(node.gpu_free), [list(taken) for taken in node.mig_taken]
    here = [(placement, role.need) for placement, role in placements if placement.node == node.name]
    seats = sorted({name for _, need in here for name, _ in need.devices if name.startswith("/")})
    for placement, _ in here:
        starts = placement.mig_starts or (placement.mig or (0,))[:1] * len(placement.devices)
        for device, start in zip(placement.devices, starts, strict=True):
            gpu[device] -= placement.gpu_milli
            for at in range(start, start + placement.mig[1]) if placement.mig else ():
                cut[device][at] += 1
    fields = {name: getattr(node, name) for name in Node.__dataclass_fields__}
    alone = any(name == WHOLE_NODE for _, need in here for name, _ in need.devices)
    assert len(here) == 1 or not alone
    left = {
        "cpu_free": node.cpu_free - sum(need.cpu_milli for _, need in here),
        "memory_free": node.memory_free - sum(need.memory_bytes for _, need in here),
        "pods_free": 0 if alone else node.pods_free - len(here),
        "gpu_free": tuple(gpu),
        "mig_taken": tuple(tuple(taken) for taken in cut),
        "devices_free": tuple(
            (name, free - sum(dict(need.devices).get(name, 0) for _, need in here))
            for name, free in (*((name, 1) for name in seats), *node.devices_free)
        ),
    }
    return Node(**{**fields, **left})


def pairs(roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...]) -> list[tuple[Placement, RoleNeed]]:
    named = {role.name: role for role in roles}
    return [(placement, named[placement.role]) for placement in placements]


EITHER = st.one_of(gangs(), small_gangs(), related_gangs())
CLUSTERS = st.one_of(clusters(), roomy_clusters(), roomy_clusters())


@given(st.lists(EITHER, max_size=5), CLUSTERS)
def test_no_sequence_of_placements_uses_more_than_there_is(
    wanted: list[tuple[RoleNeed, ...]], there: list[Node]
) -> None:
    room = FreeCapacity(there)
    placed: list[tuple[Placement, RoleNeed]] = []
    for gang in wanted:
        verdict = room.place(gang)
        if not isinstance(verdict, Reason):
            placed += pairs(gang, verdict)
    for node in there:
        left = used_by(placed, node)
        assert min(left.gpu_free, default=0) >= 0
        assert max((held for taken in left.mig_taken for held in taken), default=0) <= 1
        if left.pods_free < node.pods_free:
            assert min(left.cpu_free, left.memory_free, left.pods_free) >= 0
        before = dict(node.devices_free)
        assert all(free >= min(0, before.get(name, 0)) for name, free in left.devices_free)
        assert room.nodes[node.name] == left


@given(EITHER, CLUSTERS)
def test_a_gang_is_whole_or_nothing(gang: tuple[RoleNeed, ...], there: list[Node]) -> None:
    room = FreeCapacity(there)
    verdict = room.place(gang)
    if isinstance(verdict, Reason):
        assert list(room.nodes.values()) == there
        return
    assert [p.role for p in verdict] == [role.name for role in gang for _ in range(role.replicas)]
    assert [p.rank for p in verdict] == list(range(len(verdict)))


@given(EITHER, CLUSTERS)
def test_every_pod_gets_the_devices_it_asked_for_on_a_node_that_suits_it(
    gang: tuple[RoleNeed, ...], there: list[Node]
) -> None:
    verdict = place_gang(gang, {node.name: node for node in there})
    if isinstance(verdict, Reason):
        return
    named = {node.name: node for node in there}
    for placement, role in pairs(gang, verdict):
        need, node = role.need, named[placement.node]
        assert never_fits(need, node) is None
        parts = need.gpu_parts if need.gpu_milli or need.mig_profile else 0
        assert len(placement.devices) == (need.gpus or parts)
        assert need.mig_profile or len(set(placement.devices)) == len(placement.devices)
        milli = WHOLE_GPU if need.gpus else need.gpu_milli
        if need.mig_profile:
            profile = GEOMETRIES[node.mig_geometry].profiles[need.mig_profile]
            milli = profile.size * 125
            assert placement.mig in [(start, profile.size) for start in profile.starts]
            assert {*placement.mig_starts} <= {*profile.starts}
            assert len(placement.mig_starts) == (parts if parts > 1 else 0)
            assert len(set(placement.instances)) == parts
            assert placement.instances[0][1] == placement.mig[0]
        assert placement.gpu_milli == milli
        assert need.mig_profile or placement.mig is None
        assert all(0 <= device < node.gpus for device in placement.devices)


@given(EITHER, CLUSTERS, st.randoms(use_true_random=False))
def test_equal_inputs_give_equal_bytes_in_whatever_order_the_nodes_come(
    gang: tuple[RoleNeed, ...], there: list[Node], random: Random
) -> None:
    shuffled = list(there)
    random.shuffle(shuffled)
    one, other = (place_gang(gang, {node.name: node for node in nodes}) for nodes in (there, shuffled))
    if isinstance(one, Reason):
        assert isinstance(other, Reason)
        assert one.to_bytes() == other.to_bytes()
    else:
        assert one == other


@settings(max_examples=200)
@given(EITHER, CLUSTERS)
def test_nothing_that_is_placed_now_is_ever_called_inadmissible(gang: tuple[RoleNeed, ...], there: list[Node]) -> None:
    if not isinstance(place_gang(gang, {node.name: node for node in there}), Reason):
        assert inadmissible(gang, there) is None


@given(EITHER, CLUSTERS, st.lists(EITHER, max_size=3))
def test_what_others_hold_never_makes_a_gang_inadmissible(
    gang: tuple[RoleNeed, ...], there: list[Node], others: list[tuple[RoleNeed, ...]]
) -> None:
    room = FreeCapacity(there)
    for other in others:
        room.place(other)
    assert inadmissible(gang, room.nodes.values()) == inadmissible(gang, there)


@settings(max_examples=200)
@given(EITHER, CLUSTERS)
def test_the_tests_that_nodes_failed_add_up_to_the_nodes(gang: tuple[RoleNeed, ...], there: list[Node]) -> None:
    verdict = place_gang(gang, {node.name: node for node in there})
    if isinstance(verdict, Reason) and verdict.numbers:
        assert sum(n for name, n in verdict.numbers.items() if name.startswith("nodes_")) == verdict.numbers["nodes"]
