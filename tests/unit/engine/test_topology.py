"""Pods that must lie in one domain, on one node, or evenly apart: which place is chosen, and why there is none."""

from collections import Counter

from tessera.domain.devices.levels import NEAR
from tessera.domain.devices.resources import Node, RoleNeed
from tessera.engine.placement.gangs import FreeCapacity, place_gang
from tessera.engine.placement.inadmissible import inadmissible
from tessera.engine.placement.relations import broken
from tessera.engine.placement.topology import TRIES_MAX
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement
from tests.unit.engine.engine_builders import cluster, lying, need, node, taint

RACK, ZONE = ("rack",), ("rack", "zone")


def racks(**sizes: int) -> dict[str, Node]:
    """`racks(a=2)`: two nodes of 8 GPUs in rack a."""
    return cluster(
        *(node(f"{rack}{number}", labels={"rack": rack}) for rack, size in sizes.items() for number in range(size))
    )


def placed(nodes: dict[str, Node], *gang: RoleNeed) -> tuple[Placement, ...]:
    verdict = place_gang(gang, nodes)
    assert not isinstance(verdict, Reason), verdict
    return verdict


def refused(nodes: dict[str, Node], *gang: RoleNeed) -> Reason:
    verdict = place_gang(gang, nodes)
    assert isinstance(verdict, Reason)
    return verdict


def per_rack(placements: tuple[Placement, ...]) -> dict[str, int]:
    return dict(Counter(placement.node[0] for placement in placements))


def never(nodes: dict[str, Node], *gang: RoleNeed) -> Reason:
    reason = inadmissible(gang, nodes.values())
    assert reason is not None
    return reason


# -- one domain -----------------------------------------------------------------------------------------------------


def test_all_pods_of_a_role_go_into_the_tightest_domain_that_holds_them() -> None:
    assert per_rack(placed(racks(a=3, b=2, c=1), lying(12, levels=RACK, bound=True))) == {"b": 12}


def test_of_equally_tight_domains_the_one_with_fewer_free_gpus_is_taken_then_the_first_by_name() -> None:
    nodes = racks(a=1, b=1) | cluster(node("a9", 4, labels={"rack": "a"}, cpu_free=0))
    assert per_rack(placed(nodes, lying(8, levels=RACK, bound=True))) == {"b": 8}
    assert per_rack(placed(racks(b=1, a=1), lying(8, levels=RACK, bound=True))) == {"a": 8}


def test_of_equal_domains_the_one_without_devices_that_are_not_asked_for_is_taken() -> None:
    nodes = cluster(
        node("a0", labels={"rack": "a"}, devices={"rdma/hca": 1}),
        node("b0", labels={"rack": "b"}, taints=(taint("x", effect="PreferNoSchedule"),)),
        node("c0", labels={"rack": "c"}),
    )
    assert per_rack(placed(nodes, lying(8, levels=RACK, bound=True))) == {"c": 8}
    asking = need(gpus=8, devices=(("rdma/hca", 1),))
    assert per_rack(placed(nodes, lying(1, asking, levels=RACK, bound=True))) == {"a": 1}


def test_where_nobody_asked_for_a_domain_the_score_chooses_among_those_that_hold_the_pods() -> None:
    nodes = cluster(*(node(name, gpus, labels={"rack": name[0]}) for name, gpus in {"a0": 4, "b0": 2, "b1": 8}.items()))
    asked = lying(2, levels=RACK, group="near")
    assert {placement.node for placement in placed(nodes, asked)} == {"a0"}
    unasked = lying(2, levels=RACK, group=NEAR)
    assert {placement.node for placement in placed(nodes, unasked)} == {"b0"}
    assert FreeCapacity(nodes.values()).place((unasked,)) == placed(nodes, unasked)


def test_a_gang_too_large_to_be_tried_in_several_domains_takes_the_tightest_unasked() -> None:
    sizes = {"b": (129, 8), "s": (259, 4)}
    nodes = cluster(
        *(
            node(f"{rack}{at}", gpus, labels={"rack": rack})
            for rack, (count, gpus) in sizes.items()
            for at in range(count)
        )
    )
    tight = need(gpus=1, cpu_milli=1)
    assert per_rack(placed(nodes, lying(8, tight, levels=RACK, group=NEAR))) == {"s": 8}
    assert per_rack(placed(nodes, lying(1024, tight, levels=RACK, group=NEAR))) == {"b": 1024}


def test_a_role_bound_to_a_domain_waits_while_none_holds_it_and_names_the_nearest_miss() -> None:
    nodes = racks(a=2, b=1) | cluster(node("x", labels={}))
    reason = refused(nodes, lying(20, levels=RACK, bound=True))
    assert (reason.code, reason.field) == (Code.NO_FIT, "roles.worker.topology")
    assert reason.numbers == {
        "nodes_without_label": 1,
        "nodes_with_room_for_a_part": 3,
        "nodes": 4,
        "pods_placed": 0,
        "pods": 20,
        "gpus_wanted": 1,
        "most_gpus_free_on_a_node": 8,
        "domains": 2,
        "pods_wanted_in_one_domain": 20,
        "most_pods_that_fit_one_domain": 16,
        "pods_that_fit_all_nodes": 32,
    }
    assert reason.detail == "rack: no domain holds its pods"


def test_nodes_without_the_label_are_in_no_domain() -> None:
    nodes = cluster(node("x"), node("y"))
    assert refused(nodes, lying(1, levels=RACK, bound=True)).numbers["domains"] == 0
    assert len(placed(nodes, lying(9, levels=RACK))) == 9


def zoned() -> dict[str, Node]:
    """Zone z1: racks a and b of 8; zone z2: racks c of 16 and d of 8 GPUs."""
    where = {"a": "z1", "b": "z1", "c": "z2", "d": "z2"}
    return {
        name: node(name, labels={"rack": name[0], "zone": where[name[0]]}) for name in ("a0", "b0", "c0", "c1", "d0")
    }


def test_the_narrowest_level_that_holds_the_pods_is_taken() -> None:
    assert per_rack(placed(zoned(), lying(9, levels=ZONE, bound=True))) == {"c": 9}
    assert per_rack(placed(zoned(), lying(16, levels=ZONE, bound=True))) == {"c": 16}


def test_where_no_rack_holds_them_the_pods_go_into_the_tightest_zone_and_few_racks_of_it() -> None:
    assert per_rack(placed(zoned(), lying(20, levels=ZONE, bound=True))) == {"c": 16, "d": 4}
    small = {name: there for name, there in zoned().items() if name != "c1"}
    assert per_rack(placed(small, lying(9, levels=ZONE, bound=True))) == {"a": 8, "b": 1}


def test_a_preferred_domain_falls_back_to_as_few_domains_as_there_can_be() -> None:
    assert per_rack(placed(racks(a=1, b=3, c=2), lying(30, levels=RACK))) == {"b": 24, "a": 6}
    assert refused(racks(a=1, b=1), lying(17, levels=RACK)).field == "roles.worker"


def test_roles_of_one_group_share_the_domain_and_others_do_not_have_to() -> None:
    def gang(group: str) -> tuple[RoleNeed, ...]:
        return tuple(lying(8, name=name, levels=RACK, bound=True, group=group) for name in ("ps", "worker"))

    assert per_rack(placed(racks(a=1, b=2), *gang("g"))) == {"b": 16}
    assert per_rack(placed(racks(a=1, b=1), *gang(""))) == {"a": 8, "b": 8}
    reason = refused(racks(a=1, b=1), *gang("g"))
    assert reason.detail == "rack: no domain holds its pods together with those of its group"


def test_of_very_many_domains_that_may_hold_a_group_the_roomiest_is_tried_in_any_case() -> None:
    """Each holds both roles alone, and only the last both."""
    wanted = (("big", need(gpus=8)), ("small", need(gpus=1)))
    gang = tuple(lying(1, each, name=name, levels=RACK, bound=True, group="g") for name, each in wanted)
    crowd = [node(f"n{number:03}", labels={"rack": f"r{number:03}"}) for number in range(TRIES_MAX + 9)]
    assert isinstance(place_gang(gang, cluster(*crowd)), Reason)
    verdict = placed(cluster(*crowd, *racks(z=2).values()), *gang)
    assert {placement.node[0] for placement in verdict} == {"z"}


def test_a_gang_that_does_not_find_its_domain_takes_nothing() -> None:
    room = FreeCapacity(racks(a=1, b=1).values())
    before = dict(room.nodes)
    assert isinstance(room.place((lying(1, name="first"), lying(9, levels=RACK, bound=True))), Reason)
    assert room.nodes == before


# -- one node -------------------------------------------------------------------------------------------------------


def test_pods_join_the_equal_pod_of_the_other_role_in_any_order_of_roles() -> None:
    loaders, workers = lying(2, need(), name="loader", beside="worker"), lying(3, need(gpus=8))
    for gang in ((loaders, workers), (workers, loaders)):
        verdict = placed(racks(a=4), *gang)
        at = {role.name: [p.node for p in verdict if p.role == role.name] for role in gang}
        assert at["loader"] == at["worker"][:2]
        assert [p.rank for p in verdict] == list(range(5))
        assert not list(broken(gang, verdict, racks(a=4)))


def test_a_node_with_room_for_one_of_two_pods_that_go_together_takes_neither() -> None:
    gang = (lying(1, need(gpus=1)), lying(1, need(gpus=8), name="other", beside="worker"))
    reason = refused(racks(a=2), *gang)
    assert (reason.field, reason.numbers["nodes_short_of_gpu"]) == ("roles.worker", 2)
    reason = never(racks(a=2), *gang)
    assert reason.field == "roles.other.same_node_as"
    assert reason.numbers == {"pods_wanted": 1, "pods_that_fit_empty_nodes": 0}


def test_pods_that_go_together_count_as_many_pods_of_their_node() -> None:
    gang = (lying(1, need()), lying(1, need(), name="other", beside="worker"))
    assert refused(cluster(node(pods_free=1)), *gang).numbers["nodes_full_of_pods"] == 1
    assert len(placed(cluster(node(pods_free=2)), *gang)) == 2


# -- evenly apart ---------------------------------------------------------------------------------------------------


def test_the_numbers_of_pods_differ_by_at_most_one_and_the_tightest_domain_gets_one_more() -> None:
    assert per_rack(placed(racks(a=3, b=1, c=2), lying(7, spread="rack"))) == {"a": 2, "b": 3, "c": 2}


def test_a_domain_that_is_full_keeps_a_role_waiting_as_do_not_schedule_does() -> None:
    nodes = racks(a=2) | cluster(node("b0", labels={"rack": "b"}, free=(0,) * 8))
    reason = refused(nodes, lying(4, spread="rack"))
    assert reason.field == "roles.worker.spread"
    wanted = {"domains": 2, "pods_per_domain": 2, "domains_short": 1, "pods_that_fit_all_nodes": 16}
    assert wanted.items() <= reason.numbers.items()


def test_a_full_domain_lets_others_have_more_as_far_as_the_skew_goes() -> None:
    nodes = racks(a=1) | cluster(
        node("b0", labels={"rack": "b"}, free=(1000,) + (0,) * 7),
        node("c0", labels={"rack": "c"}, free=(1000,) * 2 + (0,) * 6),
    )
    assert refused(nodes, lying(6, spread="rack")).field == "roles.worker.spread"
    assert per_rack(placed(nodes, lying(6, spread="rack", max_skew=2))) == {"a": 3, "b": 1, "c": 2}
    reason = refused(nodes, lying(7, spread="rack", max_skew=2))
    assert (reason.field, reason.numbers["max_skew"]) == ("roles.worker.spread", 2)


def test_a_skew_is_used_only_where_it_has_to_be() -> None:
    assert per_rack(placed(racks(a=3, b=1, c=2), lying(7, spread="rack", max_skew=4))) == {"a": 2, "b": 3, "c": 2}


def test_a_domain_whose_nodes_are_away_or_could_never_take_a_pod_does_not_count() -> None:
    nodes = racks(a=1) | cluster(
        node("b0", labels={"rack": "b"}, ready=False), node("c0", gpus=0, labels={"rack": "c"}), node("d0")
    )
    assert per_rack(placed(nodes, lying(4, spread="rack"))) == {"a": 4}


def test_fewer_pods_than_domains_go_to_different_ones() -> None:
    assert sorted(per_rack(placed(racks(a=1, b=1, c=1), lying(2, spread="rack"))).values()) == [1, 1]


def test_a_spread_inside_a_domain_counts_its_nodes_only() -> None:
    labels = {"a0": ("a", "x"), "a1": ("a", "y"), "b0": ("b", "x"), "b1": ("b", "z")}
    nodes = cluster(*(node(n, 2, labels={"rack": rack, "row": row}) for n, (rack, row) in labels.items()))
    gang = (lying(4, levels=RACK, bound=True, spread="row"),)
    assert Counter(p.node for p in placed(nodes, *gang)) == {"a0": 2, "a1": 2}


# -- never ----------------------------------------------------------------------------------------------------------


def test_a_role_larger_than_every_domain_is_inadmissible_and_the_largest_is_named() -> None:
    reason = never(racks(a=1, b=2), lying(17, levels=RACK, bound=True))
    assert (reason.code, reason.field) == (Code.INADMISSIBLE, "roles.worker.topology")
    assert reason.numbers == {"domains": 2, "pods_wanted": 17, "most_pods_that_fit_one_empty_domain": 16}
    assert inadmissible((lying(17, levels=RACK),), racks(a=1, b=2).values()) is None


def test_a_spread_that_only_small_domains_prevent_may_come_true_when_they_are_away() -> None:
    nodes = racks(a=2) | cluster(node("b0", 1, labels={"rack": "b"}))
    assert isinstance(place_gang((lying(10, spread="rack"),), nodes), Reason)
    assert inadmissible((lying(10, spread="rack"),), nodes.values()) is None
    assert never(nodes, lying(17, spread="rack", max_skew=14)).field == "roles.worker.spread"
    assert inadmissible((lying(17, spread="rack", max_skew=15),), nodes.values()) is None


# -- relations ------------------------------------------------------------------------------------------------------


def test_placements_that_break_what_their_roles_ask_are_told() -> None:
    nodes = racks(a=1, b=1)
    lie = tuple(Placement(rank, "worker", name, (rank,), 1000) for rank, name in enumerate(("a0", "a0", "b0")))
    assert "one domain of rack" in next(broken((lying(3, levels=RACK, bound=True),), lie, nodes))
    assert not list(broken((lying(3, levels=RACK),), lie, nodes))
    assert not list(broken((lying(3, spread="rack"),), lie, nodes))
    uneven = (*lie, Placement(3, "worker", "a0", (3,), 1000))
    assert "evenly spread" in next(broken((lying(4, spread="rack"),), uneven, nodes))
    assert not list(broken((lying(4, spread="rack", max_skew=2),), uneven, nodes))
    beside = (*lie[:2], Placement(2, "other", "b0", (2,), 1000))
    assert "nodes of those of worker" in next(
        broken((lying(2), lying(1, name="other", beside="worker")), beside, nodes)
    )
