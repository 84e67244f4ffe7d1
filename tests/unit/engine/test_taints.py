"""Taints that a pod bears without saying so, and refusals that name those that it does not."""

import pytest

from tessera.domain.devices.resources import Need, Node, role_need
from tessera.domain.storing.fast import replace
from tessera.domain.work.evidence import FitFailure
from tessera.engine.placement.fits import count_spared, fits, kind_of, never_key
from tessera.engine.placement.gangs import FeasibleNodes, place_gang
from tessera.engine.placement.inadmissible import inadmissible
from tessera_schemas.reasons import Reason
from tests.builders import role
from tests.unit.engine.engine_builders import cluster, cut, need, node, roles, taint

GPU_TAINT = taint("nvidia.com/gpu", "present")

BEAR: dict[str, tuple[Need, Node]] = {
    "whole GPUs": (need(gpus=1), node(taints=(GPU_TAINT,))),
    "a share": (need(gpu_milli=500), node(taints=(GPU_TAINT,), device_profile="shares")),
    "a MIG instance, by the vendor's name": (need(mig_profile="1g.5gb"), cut(taints=(GPU_TAINT,))),
    "a MIG instance, by its own name": (need(mig_profile="1g.5gb"), cut(taints=(taint("nvidia.com/mig-1g.5gb"),))),
    "another device": (
        need(devices=(("amd.com/gpu", 1),)),
        node(devices={"amd.com/gpu": 8}, taints=(taint("amd.com/gpu", "x"),)),
    ),
    "pods of others, too": (need(gpus=1, as_made=True), node(taints=(GPU_TAINT,))),
}


@pytest.mark.parametrize(("wanted", "where"), BEAR.values(), ids=BEAR)
def test_who_asks_for_a_device_bears_taints_whose_key_is_its_name(wanted: Need, where: Node) -> None:
    assert fits(wanted, where) is None


SUFFER: dict[str, tuple[Need, Node]] = {
    "a pod without GPUs": (need(), node(taints=(GPU_TAINT,))),
    "another key": (need(gpus=1), node(taints=(taint("nvidia.com/gpus"),))),
    "another device": (need(gpus=1), node(taints=(taint("amd.com/gpu"),))),
    "NoExecute, as in Kubernetes": (need(gpus=1), node(taints=(taint("nvidia.com/gpu", effect="NoExecute"),))),
}


@pytest.mark.parametrize(("wanted", "where"), SUFFER.values(), ids=SUFFER)
def test_other_taints_keep_the_pod_out(wanted: Need, where: Node) -> None:
    assert fits(wanted, where) is FitFailure.TAINT


def test_a_pool_bears_taints_for_the_pods_that_we_make_there() -> None:
    where = replace(node(taints=(taint("own", "x", "NoExecute"),)), tolerated=(("own", "", ""),))
    assert fits(need(), where) is None
    # The kubelet looks at the tolerations of a pod that somebody else made.
    assert fits(need(as_made=True), where) is FitFailure.TAINT
    assert fits(need(as_made=True, tolerations=(("own", "", ""),)), where) is None
    softer = replace(node(taints=(taint("own", "x"),)), tolerated=(("own", "x", "NoSchedule"),))
    assert fits(need(as_made=True), softer) is None


def test_a_tenant_bears_taints_for_the_pods_that_we_make_of_it_on_every_node() -> None:
    where = node(taints=(taint("own", "x", "NoExecute"),))
    bearing = need(tolerated=(("own", "", ""),))
    assert fits(bearing, where) is None
    assert fits(need(tolerated=(("own", "y", ""),)), where) is FitFailure.TAINT
    assert fits(replace(bearing, as_made=True), where) is FitFailure.TAINT
    assert fits(replace(bearing, as_made=True), node(taints=(taint("own", "x"),))) is None


def test_jobs_of_a_tenant_that_bears_more_share_no_verdict_with_those_of_others() -> None:
    mine, theirs = need(tolerated=(("own", "", ""),)), need()
    assert never_key(mine) != never_key(theirs)
    assert never_key(mine) != never_key(need(tolerations=(("own", "", ""),), as_made=True))
    only = cluster(node("a", taints=(taint("own", "x"),)))
    places = FeasibleNodes(only)
    verdicts = [place_gang(roles((1, one)), only, places) for one in (theirs, mine, theirs)]
    assert [isinstance(verdict, Reason) for verdict in verdicts] == [True, False, True]


def test_a_refusal_names_the_taints_and_how_many_nodes_have_them() -> None:
    tainted = (node("a", taints=(taint("own", "x"),)), node("b", taints=(taint("own", "x"),)), node("c", gpus=0))
    verdict = place_gang(roles((1, need(gpus=1))), cluster(*tainted))
    assert isinstance(verdict, Reason)
    assert verdict.detail == "not tolerated: own=x:NoSchedule (2 nodes)"
    never = inadmissible(roles((1, need(gpus=1))), tainted)
    assert never is not None
    assert "the largest suitable node has 0 GPUs" in never.detail
    assert never.detail.endswith("; not tolerated: own=x:NoSchedule (2 nodes)")


def test_of_many_taints_those_of_most_nodes_are_named() -> None:
    tainted = [node(f"n{at}", taints=(taint(f"t{at}"),)) for at in range(5)] + [node("m", taints=(taint("t4"),))]
    verdict = place_gang(roles((1, need())), cluster(*tainted))
    assert isinstance(verdict, Reason)
    named = "t4:NoSchedule (2 nodes), t0:NoSchedule (1 node), t1:NoSchedule (1 node)"
    assert verdict.detail == f"not tolerated: {named} and 2 more"


# -- what is scarce and not asked for ---------------------------------------------------------------------------------


def chosen(wanted: Need, *nodes: Node) -> str:
    verdict = place_gang(roles((1, wanted)), cluster(*nodes))
    assert not isinstance(verdict, Reason)
    return verdict[0].node


SPARED: dict[str, tuple[Need, Node]] = {
    "AMD's GPUs": (need(), node("a", gpus=0, gpu_model="", devices={"amd.com/gpu": 8})),
    "InfiniBand": (need(), node("a", gpus=0, gpu_model="", devices={"rdma/hca": 1})),
    "devices whose plugin is away": (need(), node("a", gpus=0, gpu_model="", devices={"rdma/hca": 0})),
    "GPUs whose plugin is away": (need(), node("a", gpus=0)),
    "the autoscaler's candidate": (
        need(),
        node("a", gpus=0, gpu_model="", taints=(taint("DeletionCandidate", effect="PreferNoSchedule"),)),
    ),
}


@pytest.mark.parametrize(("wanted", "scarce"), SPARED.values(), ids=SPARED)
def test_of_equal_nodes_the_one_with_less_that_is_not_asked_for_is_taken(wanted: Need, scarce: Node) -> None:
    plain = node("b", gpus=0, gpu_model="")
    assert chosen(wanted, scarce, plain) == "b"
    assert chosen(wanted, scarce) == "a"


def test_devices_count_before_soft_taints_and_both_before_the_name() -> None:
    soft, rare = {"taints": (taint("x", effect="PreferNoSchedule"),)}, {"devices": {"rdma/hca": 1}}
    assert chosen(need(gpus=1), node("a", **rare), node("b", **soft), node("c")) == "c"
    assert chosen(need(gpus=1), node("a", **rare), node("b", **soft)) == "b"
    assert chosen(need(gpus=1), node("b"), node("a")) == "a"


def test_what_is_asked_for_or_tolerated_is_not_spared() -> None:
    asked = kind_of((need(gpus=1, devices=(("rdma/hca", 1),), tolerations=(("x", "", ""),)),))
    soft = (taint("x", effect="PreferNoSchedule"), taint("nvidia.com/gpu", effect="PreferNoSchedule"))
    assert count_spared(asked, node(devices={"rdma/hca": 1}, taints=soft)) == 0
    assert count_spared(kind_of((need(),)), node(devices={"rdma/hca": 1}, taints=soft)) == (2 << 8) + 2


def test_the_score_comes_first() -> None:
    """Best fit goes to the fuller node, whatever else is there."""
    fuller = node("a", gpus=0, gpu_model="", devices={"rdma/hca": 1}, cpu_free=2000)
    assert chosen(need(), fuller, node("b", gpus=0, gpu_model="")) == "a"


def test_the_names_of_devices_are_those_that_kubernetes_has() -> None:
    asked = role_need(role(gpus=0, mig_profile="1g.5gb", devices={"rdma/hca": 1}, hugepages_2mi_bytes=2**21)).need
    assert asked.device_names == ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "rdma/hca")
    assert role_need(role(gpus=0)).need.device_names == ()
