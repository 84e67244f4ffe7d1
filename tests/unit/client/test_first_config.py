"""`tessera config init`: a commented file for the cluster that is there, which may be applied as it stands."""

import pytest

from tessera.admission.decide.configuration import find_config_faults
from tessera.client.cluster.first_config import HINT
from tessera.domain.devices.resources import tolerated_taints
from tessera_schemas.config import FLAVORS_MAX
from tessera_schemas.shard.recommended import POLICY
from tessera_schemas.views import NodeView
from tests.builders import admitted, config_proposed, job_spec, role
from tests.rounds import Rounds
from tests.unit.client.first_configs import node, read, written

ZONE, RACK = "topology.kubernetes.io/zone", "example.org/rack"


CLUSTERS = {
    "none yet": (),
    "without GPUs": (node("a", gpus=0, model=""),),
    "one model": (node("a"), node("b")),
    "two models": (node("a", model="NVIDIA-A100-SXM4-80GB"), node("b", model="Tesla_T4", gpus=4)),
    "models whose names differ in case alone": (node("a", model="H100"), node("b", model="h100")),
    "a model of digits": (node("a", model="4090"),),
    "two pools": (node("a"), node("b", pool="notebooks", device_profile="hami"), node("c", pool="off")),
    "profiles that differ in a pool": (node("a"), node("b", device_profile="mig")),
    "every label of topology": tuple(
        node(
            f"n{at}", labels={f"{part}/{word}": "x" for part in ("a.org", "b.org") for word in ("zone", "rack", "Row")}
        )
        for at in range(3)
    ),
}


@pytest.mark.parametrize("nodes", CLUSTERS.values(), ids=CLUSTERS)
@pytest.mark.parametrize("tenants", [("demo",), ("default", "off", "1st")], ids=["one tenant", "three tenants"])
def test_the_file_is_applied_as_it_stands(nodes: tuple[NodeView, ...], tenants: tuple[str, ...]) -> None:
    body = read(written(*nodes, tenants=tenants))
    assert {tenant.name for tenant in body.tenants} == set(tenants)
    assert all(tenant.priority_classes == ("normal", "low") for tenant in body.tenants)
    assert {found.field: getattr(body.policy, found.field) for found in POLICY} == {
        found.field: found.value for found in POLICY
    }
    pools = {found.pool for found in nodes} or {"default"}
    assert {queue.pool for queue in body.queues} == pools
    for pool in pools:  # the nominal quota of a pool is all its GPUs
        parts = [q.part_percent for queue in body.queues if queue.pool == pool for q in queue.quotas]
        assert parts == [100] * any(found.gpus for found in nodes if found.pool == pool)


@pytest.mark.parametrize(
    ("pools", "queues"),
    [
        (("default", "zoo"), {"default": "default", "zoo": "zoo"}),
        (("a100", "h100"), {"a100": "a100", "default": "h100"}),
        (("notebooks",), {"default": "notebooks"}),
    ],
    ids=["a pool called so", "the pool with the most GPUs", "the only one"],
)
def test_all_tenants_submit_to_one_queue_for_each_pool_of_which_one_is_the_default(
    pools: tuple[str, ...], queues: dict[str, str]
) -> None:
    nodes = (node(f"n-{pool}", gpus=at + 1, pool=pool) for at, pool in enumerate(pools))
    body = read(written(*nodes, tenants=("demo", "lab")))
    assert {queue.name: queue.pool for queue in body.queues} == queues
    assert {queue.tenants for queue in body.queues} == {("demo", "lab")}


def test_tenants_that_want_a_queue_each_find_how_it_is_written() -> None:
    body = read(written(node("a"), tenants=("demo", "lab")).replace(HINT, ""))
    parents = {queue.name: queue.parent for queue in body.queues}
    assert parents == {
        "everyone": None,
        "demo-jobs": "everyone",
        "lab-jobs": "everyone",
        "default": "everyone",
    }
    assert find_config_faults(body) == []


def test_of_more_models_than_flavors_those_with_the_most_gpus_are_named() -> None:
    models = tuple(node(f"n{at}", model=f"m{at}", gpus=1 + at) for at in range(FLAVORS_MAX + 3))
    text = written(*models)
    assert {flavor.gpu_models[0] for flavor in read(text).flavors} == {found.gpu_model for found in models[3:]}
    assert f"Of {FLAVORS_MAX + 3} models" in text


def test_models_become_flavors_and_labels_become_levels_widest_first() -> None:
    labels = {RACK: "r1", ZONE: "z1", "kubernetes.io/hostname": "a"}
    body = read(written(node("a", model="NVIDIA-H100", labels=labels), node("b", model="T4", pool="small")))
    assert [(flavor.name, flavor.gpu_models) for flavor in body.flavors] == [
        ("nvidia-h100", ("NVIDIA-H100",)),
        ("t4", ("T4",)),
    ]
    assert [(level.name, level.label) for level in body.topology] == [("zone", ZONE), ("rack", RACK)]
    assert {pool.name: pool.device_profile for pool in body.pools} == {"default": "whole", "small": "whole"}


def test_rails_and_nvlink_domains_become_levels() -> None:
    body = read(written(node("a", labels={"nvidia.com/gpu.clique": "c.1", "example.org/rail": "r1"})))
    levels = [(level.name, level.label) for level in body.topology]
    assert levels == [("rail", "example.org/rail"), ("gpu-clique", "nvidia.com/gpu.clique")]


@pytest.mark.parametrize(
    ("labels", "levels"),
    [
        (
            {f"network.topology.nvidia.com/{name}" for name in ("accelerator", "core", "leaf", "spine")},
            ["core", "spine", "leaf", "accelerator"],
        ),
        (
            {
                *(f"fabric.topograph.run/tier-{tier}" for tier in (0, 1)),
                *("accelerator.topograph.run/domain", "accelerator.topograph.run/sub-domain"),
            },
            ["tier-1", "tier-0", "domain", "sub-domain"],
        ),
        (
            {"fabric.topograph.run/tier-0", "accelerator.topograph.run/domain", "nvidia.com/gpu.clique"},
            ["tier-0", "gpu-clique"],
        ),
    ],
    ids=["Topograph before version 1", "Topograph", "Topograph beside GPU feature discovery"],
)
def test_labels_of_topograph_become_levels_widest_first(labels: set[str], levels: list[str]) -> None:
    body = read(written(node("a", labels=dict.fromkeys(sorted(labels), "x"))))
    assert [level.name for level in body.topology] == levels


def test_of_too_many_levels_the_narrow_ones_that_divide_the_nodes_are_taken() -> None:
    tiers = {f"fabric.topograph.run/tier-{tier}": f"s{tier}" for tier in (0, 1, 10)}
    one = {"topology.kubernetes.io/region": "eu", ZONE: "eu-1", "nvidia.com/gpu.clique": "c.1", **tiers}
    other = {**one, ZONE: "eu-2", **{key: f"{value}b" for key, value in tiers.items()}, "nvidia.com/gpu.clique": "c.2"}
    alike = {**one, "a.org/rack": "r1"}
    body = read(written(node("a", labels=one), node("b", labels=other)))
    assert [level.name for level in body.topology] == ["tier-10", "tier-1", "tier-0", "gpu-clique"]
    body = read(written(node("a", labels=alike)))
    assert [level.name for level in body.topology] == ["tier-10", "tier-1", "tier-0", "gpu-clique"]


def test_nodes_that_are_gone_are_no_quota() -> None:
    assert read(written(node("a"), node("b", gone=True))).queues[0].quotas[0].part_percent == 100
    assert not read(written(node("a", gpus=0, model=""), node("b", gone=True))).queues[0].quotas


def test_each_recommended_value_says_what_it_brings_and_what_it_costs() -> None:
    text = " ".join(written(node("a")).replace("#", " ").split())
    for found in POLICY:
        assert f"Brings: {found.brings}." in text
        assert f"Costs: {found.costs}." in text


def test_no_line_is_wider_than_a_screen_of_120_columns() -> None:
    assert max(map(len, written(*CLUSTERS["two pools"]).splitlines())) <= 120


@pytest.mark.parametrize("nodes", CLUSTERS.values(), ids=CLUSTERS)
def test_the_hint_promises_no_more_than_the_pool_has_and_leaves_default_a_queue_that_takes_jobs(
    nodes: tuple[NodeView, ...],
) -> None:
    text = written(*nodes, tenants=("demo", "default", "everyone"))
    assert text.count(HINT) > 4
    before, after = read(text), read(text.replace(HINT, ""))
    assert {queue.parent for queue in after.queues} == {None, "everyone"}
    assert "default" not in {queue.parent for queue in after.queues}
    assert len(after.queues) == len(before.queues) + 4
    assert sum(q.nominal + (q.part_percent or 0) for queue in after.queues for q in queue.quotas) == sum(
        q.nominal + (q.part_percent or 0) for queue in before.queues for q in queue.quotas
    )


def test_following_the_hint_strands_no_job_and_evicts_nobody() -> None:
    """Case 5 of the issue: two jobs run on 16 GPUs, others wait, the file's own hint is followed."""
    text = written(node("a"), node("b"), tenants=("lab", "other"))
    rounds = Rounds(nodes={"a": 8, "b": 8})
    rounds.commit(config_proposed(read(text), 1, abandon=True))
    eight = job_spec(role(gpus=8), queue="default", priority_class="low")
    rounds.commit(*(admitted(f"k{at}", eight) for at in range(4)))
    rounds.settle()
    running = {run.run_id for run in rounds.state.runs.values() if run.started}
    assert len(running) == 2
    rounds.commit(config_proposed(read(text.replace(HINT, "")), rounds.state.config.version))
    assert rounds.state.config.version == 3
    rounds.commit(admitted("theirs", job_spec(role(gpus=8), queue="lab-jobs", priority_class="normal")))
    rounds.settle()
    assert {run.run_id for run in rounds.state.runs.values()} == running
    assert not any(run.stopping for run in rounds.state.runs.values())
    codes = {job.reason.code for job in rounds.state.jobs.values() if job.reason is not None}
    assert "NoSuchQueue" not in codes


def test_taints_that_all_nodes_of_a_pool_have_are_proposed_as_its_standing_tolerations() -> None:
    present, own, soft = (
        ("nvidia.com/gpu", "present", "NoSchedule"),
        ("own", "", "NoExecute"),
        ("x", "", "PreferNoSchedule"),
    )
    passing = ("node.kubernetes.io/disk-pressure", "", "NoSchedule")
    nodes = [
        node("a", taints=(present, own, soft, passing)),
        node("b", taints=(soft, own, passing, present)),
        node("c", pool="mixed", taints=(present,)),
        node("d", pool="mixed"),
    ]
    pools = {pool.name: tolerated_taints(pool.tolerations) for pool in read(written(*nodes)).pools}
    assert pools == {"default": (present, ("own", "=", "NoExecute")), "mixed": ()}
    assert not any(each.tolerations for each in read(written(node("d"))).pools)


def test_a_tenants_own_tolerations_are_left_to_the_reader_who_is_told_of_them() -> None:
    text = written(node("a", taints=(("team", "ml", "NoSchedule"),)))
    assert "# have a taint: `tolerations: [{key: KEY}]` in its entry" in text
    assert not any(tenant.tolerations for tenant in read(text).tenants)
