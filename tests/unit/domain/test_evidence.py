"""What may refuse a job for good, cause by cause: by what each node has had, and not by what it shows this second."""

from dataclasses import replace
from typing import Any

import pytest

from tessera.admission.decide.policy import NodeShapes
from tessera.domain.devices.claims import claim_needs
from tessera.domain.devices.resources import Need, RoleNeed
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.domain.work.evidence import EVIDENCE, REMEMBERED_MAX, REMEMBERED_MS, FitFailure, at_their_best
from tessera.engine.placement.fits import fits
from tessera.engine.placement.inadmissible import inadmissible
from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ports import Message
from tessera.projection.views import Views, all_views
from tessera_schemas.cluster.device_layouts import NodeOffer, TakenDevice
from tessera_schemas.facts import NodeSeen, Others
from tests.builders import config_body, config_proposed, node_seen
from tests.ledgers import Committed
from tests.published_devices import DRIVER, claim, class_seen, layout_seen, whole_gpus
from tests.unit.engine.engine_builders import GIB, need, taint

DAY_MS = 24 * 3600 * 1000
CUT = {"device_profile": "mig", "mig_geometry": "40gb", "gpus": 2}
RDMA = {"devices": {"rdma/hca": 2}}
Fields = dict[str, Any]

LAYOUT = whole_gpus(1)
PUBLISHED = NodeOffer(layout=LAYOUT.digest())
TAKEN = NodeOffer(layout=LAYOUT.digest(), taken=(TakenDevice(device=f"{DRIVER}/node-a/gpu-0"),))


def claiming_need(**choice: Any) -> Need:
    """A pod that claims a device of the class that the ledger knows."""
    return need(claims=claim_needs((claim(**choice),)))


CAUSES: dict[FitFailure, tuple[Need, Fields, Fields]] = {
    FitFailure.NOT_READY: (need(), {}, {"ready": False}),
    FitFailure.CORDONED: (need(), {}, {"ready": False, "cordoned": True}),
    FitFailure.GPU_RESOURCE: (
        need(gpus=1, gpu_resource="amd.com/gpu"),
        {"gpu_resource": "amd.com/gpu"},
        {"gpu_resource": "", "gpus": 0},
    ),
    FitFailure.GPU_MODEL: (need(gpus=1, gpu_models=("h100",)), {}, {"gpu_model": ""}),
    FitFailure.GPU_NUMBER: (need(gpus=8, devices=(("whole_node", 1),)), {}, {"gpus": 16}),
    FitFailure.GPU_MEMORY: (
        need(gpus=1, gpu_memory_bytes=80 * GIB),
        {"gpu_memory_bytes": 80 * GIB},
        {"gpu_memory_bytes": 0},
    ),
    FitFailure.SELECTOR: (need(node_selector=(("zone", "a"),)), {"labels": {"zone": "a"}}, {"labels": {}}),
    FitFailure.AFFINITY: (need(affinity=(("zone", "In", ("a",)),)), {"labels": {"zone": "a"}}, {"labels": {}}),
    FitFailure.TAINT: (need(), {}, {"taints": (taint("maintenance"),)}),
    FitFailure.DEVICE_PROFILE: (
        need(gpu_milli=500),
        {"device_profile": "plugin"},
        {"device_profile": "whole", "gpus": 0},
    ),
    FitFailure.SHARE_SIZE: (
        need(gpu_milli=250),
        {"device_profile": "mps", "share_milli": 250},
        {"device_profile": "mps", "share_milli": 500, "gpus": 0},
    ),
    FitFailure.ISOLATION: (
        need(gpu_milli=250, isolation="memory"),
        {"device_profile": "hami"},
        {"device_profile": "plugin", "gpus": 0},
    ),
    FitFailure.MIG_PROFILE: (need(mig_profile="3g.20gb"), CUT, {"mig_geometry": "", "gpus": 0}),
    FitFailure.UNKNOWN_CLAIMS: (claiming_need(selectors=("unheard-of",)), {}, {"offer": PUBLISHED}),
    FitFailure.CLAIMS: (claiming_need(), {"offer": PUBLISHED}, {"offer": NodeOffer()}),
    FitFailure.NO_ZONES: (need(gpus=1, single_numa=True), {"zones": ({"nvidia.com/gpu": 8},)}, {"zones": ()}),
    FitFailure.GPU: (need(gpus=8), {}, {"gpus": 0}),
    FitFailure.DEVICES: (need(devices=(("rdma/hca", 2),)), RDMA, {"devices": {"rdma/hca": 0}}),
    FitFailure.CPU: (need(cpu_milli=60_000), {}, {"cpu_milli": 1000}),
    FitFailure.MEMORY: (need(memory_bytes=500 * GIB), {}, {"memory_bytes": GIB}),
    FitFailure.PODS: (need(), {}, {"pods": 0}),
    FitFailure.ZONES: (need(gpus=8), {}, {"zones": ({"nvidia.com/gpu": 4}, {"nvidia.com/gpu": 4})}),
    FitFailure.CLAIMED: (claiming_need(), {"offer": PUBLISHED}, {"offer": TAKEN}),
    FitFailure.KEPT: (need(cpu_milli=60_000), {"others": Others(gpus=8)}, {"others": Others()}),
}
"""For each test a pod, the node on which it fits, and the same node as it fails the test."""
BY_PODS_OF_RUNS = (FitFailure.APART, FitFailure.FAR)
"""Tests that no fact about a node makes a pod fail, but pods of other runs (`tests/unit/scheduler/test_neighbours`)."""


def seen(**fields: Any) -> NodeSeen:
    return node_seen(**fields)


def after(*facts: NodeSeen, days: int = 0) -> Committed:
    """A ledger of the present format that took in these facts, a minute apart, and lived on for some days."""
    made = Committed()
    made.commit(holder="scheduler-1")
    made.commit(config_proposed(config_body(policy={"kept_beside_gpus_percent": 50})))
    made.commit(layout_seen(LAYOUT), class_seen())
    for fact in facts:
        made.commit(fact, ms=60_000)
    made.commit(ms=days * DAY_MS)
    return made


def may_never_hold(state: State, wanted: Need) -> bool:
    """Whether admission refuses the job for good, by the views that projection writes."""
    rows: dict[str, dict[str, bytes]] = {"nodes": {}, "remembered_nodes": {}}
    for change in all_views(state):
        if change.view in rows and change.value is not None:
            rows[change.view][change.key] = change.value
    shapes = NodeShapes()
    nodes = shapes.update(rows["nodes"], rows["remembered_nodes"]).nodes
    assert list(nodes) == at_their_best(state.nodes.values(), state.remembered_nodes.values())
    return inadmissible((RoleNeed("worker", 1, wanted),), nodes) is not None


def test_every_test_that_a_node_may_fail_has_a_row_and_a_cause() -> None:
    assert list(EVIDENCE) == list(FitFailure)
    assert [cause for cause in FitFailure if cause not in BY_PODS_OF_RUNS] == list(CAUSES)
    assert not any(EVIDENCE[cause].refuses for cause in BY_PODS_OF_RUNS)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_job_is_not_refused_for_good_for_what_a_node_has_had(cause: FitFailure) -> None:
    wanted, good, bad = CAUSES[cause]
    made = after(seen(**good), seen(**{**good, **bad}))
    assert fits(wanted, made.state.nodes.get("node-a")) is cause
    assert not may_never_hold(made.state, wanted)
    # Once nobody remembers it, or where it never was, what the node shows is all that is known.
    refuses = EVIDENCE[cause].refuses
    assert may_never_hold(after(seen(**good), seen(**{**good, **bad}), days=7).state, wanted) is refuses
    assert may_never_hold(after(seen(**{**good, **bad})).state, wanted) is refuses


def test_every_field_that_a_row_looks_at_makes_a_change_be_looked_at() -> None:
    """Else a loss would be taken for use by pods of others, which comes and goes."""
    for cause, (_, good, bad) in CAUSES.items():
        lost = after(seen(**good), seen(**{**good, **bad})).state.remembered_nodes.get("node-a") is not None
        assert lost is EVIDENCE[cause].refuses


CONDITIONS = (
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/not-ready",
    "node.cilium.io/agent-not-ready",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/unregistered",
)


@pytest.mark.parametrize("key", CONDITIONS)
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_taint_that_tells_a_condition_never_refuses_for_good(key: str, effect: str) -> None:
    made = after(seen(taints=(taint(key, effect=effect),)))
    assert fits(need(), made.state.nodes.get("node-a")) is FitFailure.TAINT
    assert not may_never_hold(made.state, need())


def test_the_capacity_counts_while_a_device_plugin_was_never_seen_at_work() -> None:
    away = {"gpus": 0, "devices": {"rdma/hca": 0}, "capacity": {"nvidia.com/gpu": 8, "rdma/hca": 2}}
    state = after(seen(**away)).state
    assert not may_never_hold(state, need(gpus=8, devices=(("rdma/hca", 2),)))
    assert may_never_hold(state, need(gpus=9))
    assert may_never_hold(state, need(devices=(("rdma/hca", 3),)))


def test_a_node_that_is_gone_counts_as_it_was_while_its_pool_has_others() -> None:
    gone = NodeSeen(kind="node_seen", name="node-a", gone=True, ready=False)
    small = seen(name="node-b", gpus=0)
    assert not may_never_hold(after(seen(), small, gone).state, need(gpus=8))
    assert may_never_hold(after(seen(), small, gone).state, need(gpus=9))
    assert may_never_hold(after(seen(), small, gone, days=7).state, need(gpus=8))
    assert not after(seen(), gone).state.nodes.get("node-a")
    assert not may_never_hold(after(seen(), gone).state, need(gpus=9))  # of a pool without nodes nothing is known


def test_a_node_that_has_again_what_it_had_is_not_remembered() -> None:
    assert after(seen(), seen(gpus=0)).state.remembered_nodes.get("node-a").node.gpus == 8
    assert after(seen(), seen(gpus=0), seen()).state.remembered_nodes.get("node-a") is None
    assert after(seen(), seen(ready=False)).state.remembered_nodes.get("node-a") is None


def test_what_a_node_lost_step_by_step_is_remembered_since_the_last_step() -> None:
    made = after(seen(), seen(gpus=7))
    first = made.state.remembered_nodes.get("node-a").lost_ts
    made.commit(seen(gpus=7, labels={"zone": "a"}), ms=DAY_MS)
    assert made.state.remembered_nodes.get("node-a").lost_ts == first  # it gained something
    made.commit(seen(gpus=0, labels={"zone": "a"}), ms=DAY_MS)
    row = made.state.remembered_nodes.get("node-a")
    assert (row.node.gpus, row.lost_ts - first) == (8, 2 * DAY_MS)


def test_a_node_whose_label_of_the_pool_is_away_counts_in_both_pools() -> None:
    of_pool = {"pool": "a100", "labels": {"tessera.io/pool": "a100"}}
    state = after(seen(name="other", pool="a100"), seen(**of_pool), seen()).state
    judged = at_their_best(state.nodes.values(), state.remembered_nodes.values())
    assert [(node.name, node.pool) for node in judged] == [("node-a", "a100"), ("node-a", "default"), ("other", "a100")]
    back = after(seen(name="other", pool="a100"), seen(**of_pool), seen(), seen(**of_pool)).state
    assert not list(back.remembered_nodes.values())


def test_the_memory_survives_a_snapshot_and_is_part_of_the_hash() -> None:
    state = after(seen(), seen(gpus=0)).state
    restored = load(iter(list(dump(state))))
    assert restored.remembered_nodes.get("node-a") == state.remembered_nodes.get("node-a")
    hasher = StateHash()
    before = hasher.of(state)
    assert StateHash().of(restored) == before
    assert restored.lost_due(state.ts + REMEMBERED_MS) == ["node-a"]
    state.remember_node("node-a", None)
    assert hasher.of(state) != before


def test_of_too_many_memories_the_oldest_goes() -> None:
    state = after(seen(), seen(gpus=0)).state
    row = state.remembered_nodes.get("node-a")
    for number in range(REMEMBERED_MAX):
        name = f"n{number}"
        state.remember_node(name, replace(row, name=name, lost_ts=row.lost_ts + 1))
    assert len(state.remembered_nodes) == REMEMBERED_MAX
    assert state.remembered_nodes.get("node-a") is None


def test_views_of_remembered_nodes_are_brought_up_to_date_field_by_field() -> None:
    made = Committed()
    shown, rows = Views(made.state), dict[str, bytes]()
    steps = (seen(), seen(gpus=0), seen(name="node-b"), seen(gpus=0, cpu_milli=1000), seen(), seen(gpus=0))
    for number, fact in enumerate((config_proposed(), *steps, None)):
        facts = () if fact is None else (fact,)
        other = Committed.continuing(made.stored)
        message = other.commit(*facts, ms=8 * DAY_MS if fact is None else 1000, holder="" if number else "scheduler-1")
        entry = decode_entry(Message("", message.n, other.stored[-1]))
        changed = shown.moved_by(message, lambda entry=entry: made.shard.fold(entry))
        made.stored.append(other.stored[-1])
        for field in changed:
            if field[0] == "remembered_nodes":
                value = shown.value(field)
                rows.pop(field[1], None) if value is None else rows.update({field[1]: value})
        assert rows == {c.key: c.value for c in all_views(made.state) if c.view == "remembered_nodes"}, number
    assert not rows
