"""Pods of one anti-affinity group stand on different nodes: within a gang, and between jobs of a tenant."""

import pytest

from tessera.domain.devices.resources import Node, RoleNeed, role_need
from tessera.domain.work.evidence import FitFailure
from tessera.domain.work.gang import gang_of
from tessera.engine.placement.fits import count_bundles, fits, kind_of
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.placement.inadmissible import inadmissible
from tessera_schemas.job import AntiAffinity
from tessera_schemas.reasons import Code, Reason
from tests.builders import placement, role
from tests.unit.engine.engine_builders import node


def asked(job: str = "one", group: str | None = None, tenant: str = "lab", pods: int = 1, **more: int) -> RoleNeed:
    wanted = role(replicas=pods, anti_affinity=(AntiAffinity(group=group),), **more)
    return role_need(wanted, tenant=tenant, job_id=job)


def holding(need: RoleNeed, on: Node | None = None) -> Node:
    return (on or node("node-a")).taking(need.need, placement(role=need.name), 1)


def used(found: object) -> list[str]:
    assert isinstance(found, tuple), found
    return [place.node for place in found]


@pytest.mark.parametrize(
    ("there", "here", "apart"),
    [
        pytest.param(asked("one"), asked("one"), True, id="of one job"),
        pytest.param(asked("one"), asked("two"), False, id="of two jobs without a name in common"),
        pytest.param(asked("one", "web"), asked("two", "web"), True, id="of two jobs of one group"),
        pytest.param(asked("one", "web"), asked("two", "db"), False, id="of two groups"),
        pytest.param(asked("one", "web", "lab"), asked("two", "web", "other"), False, id="of two tenants"),
        pytest.param(asked("web"), asked("two", "web"), False, id="of a job whose name is a group's"),
        pytest.param(asked("one", "web"), role_need(role()), False, id="of no group"),
        pytest.param(role_need(role()), asked("one", "web"), False, id="beside one of no group"),
    ],
)
def test_a_node_takes_one_pod_of_a_group(there: RoleNeed, here: RoleNeed, apart: bool) -> None:
    assert fits(here.need, holding(there)) is (FitFailure.APART if apart else None)


def test_an_empty_node_takes_one_pod_however_much_is_free() -> None:
    assert count_bundles(kind_of((asked().need,)), node("node-a")) == 1
    assert count_bundles(kind_of((asked().need,)), holding(asked())) == 0


def test_a_pod_that_leaves_gives_the_node_back_as_it_was() -> None:
    before = node("node-a", devices={"rdma/hca": 2})
    both = role_need(role(anti_affinity=(AntiAffinity(group="a"), AntiAffinity(group="b"))))
    there = holding(asked("one", "c"), holding(both, before))
    for each in (both, asked("one", "c")):
        there = there.taking(each.need, placement(role=each.name), -1)
    assert there == before


def test_two_pods_of_a_group_on_a_node_both_have_to_leave() -> None:
    web = asked(group="web")
    there = holding(web, holding(web))
    for left in (FitFailure.APART, None):
        there = there.taking(web.need, placement(role=web.name), -1)
        assert fits(web.need, there) is left


def test_each_pod_of_a_gang_is_on_a_node_of_its_own() -> None:
    room = FreeCapacity([node(name, 8) for name in ("node-a", "node-b", "node-c")])
    assert sorted(used(room.place(gang_of((asked(pods=3),))))) == ["node-a", "node-b", "node-c"]
    assert used(room.place(gang_of((asked("two", pods=2),)))) == ["node-a", "node-b"]


def test_the_next_job_of_a_group_goes_elsewhere_and_then_waits_with_the_number() -> None:
    room = FreeCapacity([node(name, 8) for name in ("node-a", "node-b")])
    assert used(room.place(gang_of((asked("one", "web"),)))) == ["node-a"]
    assert used(room.place(gang_of((asked("two", "web"),)))) == ["node-b"]
    refused = room.find(gang_of((asked("three", "web"),)))
    assert isinstance(refused, Reason)
    assert (refused.code, refused.numbers["nodes_with_pods_to_keep_apart_from"]) == (Code.NO_FIT, 2)
    assert not any("lab" in name for name in refused.numbers)
    one = gang_of((asked("one", "web"),))
    room.give_back(one, (placement(role=one[0].name),))
    assert used(room.place(gang_of((asked("three", "web"),)))) == ["node-a"]


def test_a_node_that_lacks_devices_too_says_so() -> None:
    wanted = role_need(role(anti_affinity=(AntiAffinity(group="web"),), devices={"rdma/hca": 1}))
    assert fits(wanted.need, holding(wanted, node("node-a", devices={"rdma/hca": 1}))) is FitFailure.DEVICES


def test_a_gang_of_more_pods_than_nodes_is_refused_for_good() -> None:
    nodes = [node(name, 8) for name in ("node-a", "node-b")]
    assert inadmissible((asked(pods=2),), nodes) is None
    refused = inadmissible((asked(pods=3),), nodes)
    assert refused is not None
    assert refused.detail == "at most 2 of its 3 pods fit into the empty pool"
    assert inadmissible((asked(pods=2),), [holding(asked("two"), nodes[0]), nodes[1]]) is None
