"""Volume claims decide where pods go, or keep them waiting by the claim's name: never are they passed over."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.binder.adoption.decide.volumes import ClaimReach, find_reach, reaches, with_conditions
from tessera_schemas.base import Json
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.job import Retry, Template, Volume
from tests.builders import admitted, job_spec, role
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, user_pod
from tests.unit.binder.binder_builders import node
from tests.unit.binder.cluster_world import train

FIELD = "spec.volumes[0].persistentVolumeClaim"
LATER = {"metadata": {"name": "fast"}, "volumeBindingMode": "WaitForFirstConsumer", "provisioner": "csi.example.com"}
AT_ONCE = LATER | {"volumeBindingMode": "Immediate"}
BY_HAND = LATER | {"provisioner": "kubernetes.io/no-provisioner"}


def claim(phase: str = "Bound", volume: str = "pv-1", **more: Any) -> Json:
    spec = {"storageClassName": "fast"} | ({"volumeName": volume} if volume else {}) | more.pop("spec", {})
    return {"metadata": {"name": "data", **more}, "spec": spec, "status": {"phase": phase}}


def volume(*terms: list[Json], labels: dict[str, str] | None = None) -> Json:
    needed = {"required": {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}}
    spec = {"nodeAffinity": needed} if terms else {}
    return {"metadata": {"name": "pv-1", "labels": labels or {}}, "spec": spec}


def on(key: str, *values: str, operator: str = "In") -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


FREE = claim("Pending", "")
REACH: dict[str, tuple[Json | None, Json | None, Json | None, ClaimReach]] = {
    "a volume that every node reaches": (claim(), volume(), None, ClaimReach()),
    "a volume of one node": (claim(), volume([on("host", "a")]), None, ClaimReach((on("host", "a"),))),
    "a volume of two zones, said in two terms": (
        claim(),
        volume([on("zone", "a")], [on("zone", "b")]),
        None,
        ClaimReach((on("zone", "a", "b"),)),
    ),
    "a volume with the labels of two zones": (
        claim(),
        volume(labels={"topology.kubernetes.io/zone": "b__a"}),
        None,
        ClaimReach((on("topology.kubernetes.io/zone", "a", "b"),)),
    ),
    "a claim that waits for its first consumer": (FREE, None, LATER, ClaimReach(provisions=True)),
    "one whose class has volumes in one zone only": (
        FREE,
        None,
        LATER | {"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]},
        ClaimReach((on("zone", "a"),), provisions=True),
    ),
    "one for which a volume is being made on a node already": (
        claim("Pending", "", annotations={"volume.kubernetes.io/selected-node": "node-b"}),
        None,
        LATER,
        ClaimReach((on("kubernetes.io/hostname", "node-b"),), provisions=True),
    ),
}


@pytest.mark.parametrize("what", REACH)
def test_a_claim_says_which_nodes_its_pod_may_go_to(what: str) -> None:
    of, its_volume, kind, reach = REACH[what]
    assert find_reach(FIELD, "data", of, its_volume, kind) == reach


AGAINST: dict[str, tuple[Json | None, Json | None, Json | None, str, str]] = {
    "a claim that nobody made": (None, None, None, "VolumeNotReady", "is not there"),
    "a claim that is being deleted": (
        claim(deletionTimestamp="2026-01-01T00:00:00Z"),
        volume(),
        None,
        "VolumeNotReady",
        "being deleted",
    ),
    "a claim whose volume is gone": (claim(), None, None, "VolumeNotReady", "volume pv-1 of claim data"),
    "a claim that lost its volume": (claim("Lost"), None, LATER, "VolumeNotReady", "has lost its volume"),
    "a claim that is to be bound at once, and is not": (FREE, None, AT_ONCE, "VolumeNotReady", "not bound"),
    "a claim without a class": (FREE, None, None, "VolumeNotReady", "not bound"),
    "a claim for a certain volume that is not bound yet": (
        claim("Pending", "pv-1"),
        None,
        LATER,
        "VolumeNotReady",
        "not bound",
    ),
    "a claim for volumes that nobody makes": (FREE, None, BY_HAND, "NotSupportedYet", "volumeName"),
    "a volume of nodes that cannot be said in one term": (
        claim(),
        volume([on("zone", "a")], [on("rack", "b")]),
        None,
        "NotSupportedYet",
        "node affinity",
    ),
    "a volume of nodes by an unknown operator": (
        claim(),
        volume([on("n", "1", operator="Ge")]),
        None,
        "NotSupportedYet",
        "",
    ),
}


@pytest.mark.parametrize("what", AGAINST)
def test_any_other_claim_is_named_with_what_is_wrong(what: str) -> None:
    of, its_volume, kind, code, words = AGAINST[what]
    reason = find_reach(FIELD, "data", of, its_volume, kind)
    assert not isinstance(reason, ClaimReach)
    assert (reason.code, reason.field) == (code, FIELD)
    assert "claim data" in reason.detail
    assert words in reason.detail


def test_the_conditions_of_volumes_hold_beside_those_of_the_pod() -> None:
    pod = {"spec": {"affinity": {"podAffinity": {"kept": True}}, "nodeSelector": {"a": "b"}}}
    made = with_conditions(pod, (on("zone", "a"),))
    assert made["spec"]["nodeSelector"] == {"a": "b"}
    assert made["spec"]["affinity"]["podAffinity"] == {"kept": True}
    again = with_conditions(made, (on("rack", "r"),))
    terms = again["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms == {"nodeSelectorTerms": [{"matchExpressions": [on("zone", "a"), on("rack", "r")]}]}


def test_a_node_is_within_reach_by_its_labels() -> None:
    there = node(labels={"zone": "a"})
    assert reaches((on("zone", "a", "b"), on("zone", operator="Exists")), there)
    assert not reaches((on("zone", "b"),), there)
    assert not reaches((on("rack", operator="Exists"),), there)
    assert reaches((on("zone", "b", operator="NotIn"), on("rack", operator="DoesNotExist")), there)


# -- at a cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


def with_claim(name: str, claimed: str = "data") -> Json:
    return user_pod(name, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": claimed}}])


def make_claim(world: AdoptionWorld, bound: str = "", **spec: Any) -> None:
    status = {"phase": "Bound" if bound else "Pending"}
    own = {"storageClassName": "fast", **({"volumeName": bound} if bound else {}), **spec}
    world.core.create("persistentvolumeclaims", NS, {"metadata": {"name": "data"}, "spec": own, "status": status})


def make_volume(world: AdoptionWorld, *terms: list[Json]) -> None:
    world.core.create("persistentvolumes", "", volume(*terms))


def node_of(world: AdoptionWorld, name: str) -> str:
    return str(world.core.get("pods", NS, name).object["spec"].get("nodeName") or "")


def told(world: AdoptionWorld, name: str) -> Json:
    return world.condition(world.core.get("pods", NS, name).object)


async def test_a_pod_waits_for_its_claim_by_name_and_starts_once_it_is_bound(world: AdoptionWorld) -> None:
    world.core.create("pods", NS, with_claim("reader"))
    await world.run(10)
    assert (told(world, "reader")["reason"], node_of(world, "reader")) == ("VolumeNotReady", "")
    assert "claim data is not there" in told(world, "reader")["message"]
    make_volume(world)
    make_claim(world, "pv-1")
    await world.run(25)
    assert node_of(world, "reader") == "node-a"


async def test_a_pod_does_not_go_where_its_volume_is_not(world: AdoptionWorld) -> None:
    make_volume(world, [on("zone", "elsewhere")])
    make_claim(world, "pv-1")
    world.core.create("pods", NS, with_claim("reader"))
    await world.run(10)
    assert node_of(world, "reader") == ""
    assert told(world, "reader")["reason"] in ("NoFit", "Inadmissible")


async def test_a_volume_is_made_where_its_pod_goes_before_the_pod_is_bound(world: AdoptionWorld) -> None:
    world.core.create("storageclasses", "", LATER)
    make_claim(world)
    world.core.create("pods", NS, with_claim("reader"))
    await world.run(10)
    found = world.core.get("persistentvolumeclaims", NS, "data").object
    assert found["metadata"]["annotations"] == {"volume.kubernetes.io/selected-node": "node-a"}
    assert node_of(world, "reader") == ""
    make_volume(world)
    world.core.patch("persistentvolumeclaims", NS, "data", {"spec": {"volumeName": "pv-1"}})
    await world.run(10)
    assert node_of(world, "reader") == ""
    world.core.patch("persistentvolumeclaims", NS, "data", {"status": {"phase": "Bound"}}, "status")
    await world.run(15)
    assert node_of(world, "reader") == "node-a"


async def test_a_claim_for_one_pod_is_not_given_to_a_second(world: AdoptionWorld) -> None:
    make_volume(world)
    make_claim(world, "pv-1", accessModes=["ReadWriteOncePod"])
    world.core.create("pods", NS, with_claim("first"))
    await world.run(5)
    assert node_of(world, "first") == "node-a"
    world.core.create("pods", NS, with_claim("second"))
    await world.run(10)
    assert node_of(world, "second") == ""
    assert "pod first has it" in told(world, "second")["message"]


async def test_of_two_pods_that_come_together_one_gets_the_claim_and_the_other_waits_without_gpus(
    world: AdoptionWorld,
) -> None:
    make_volume(world)
    make_claim(world, "pv-1", accessModes=["ReadWriteOncePod"])
    for name in ("first", "second"):
        world.core.create("pods", NS, with_claim(name))
    await world.run(20)
    assert sorted(node_of(world, name) for name in ("first", "second")) == ["", "node-a"]
    await world.run(60)
    assert sorted(node_of(world, name) for name in ("first", "second")) == ["", "node-a"]
    (waits,) = [name for name in ("first", "second") if not node_of(world, name)]
    assert told(world, waits)["reason"] == "VolumeNotReady"


async def test_a_node_whose_hostname_is_not_its_name_gets_the_volume_of_its_first_consumer(
    world: AdoptionWorld,
) -> None:
    world.core.patch("nodes", "", "node-a", {"metadata": {"labels": {"kubernetes.io/hostname": "ip-10-0-0-1"}}})
    world.core.create("storageclasses", "", LATER)
    make_claim(world)
    await world.run(5)
    world.core.create("pods", NS, with_claim("reader"))
    await world.run(10)
    found = world.core.get("persistentvolumeclaims", NS, "data").object
    assert found["metadata"]["annotations"] == {"volume.kubernetes.io/selected-node": "node-a"}
    await world.run(10)
    assert "revoked" not in world.kinds(), "its run waits for the volume that is being made"
    make_volume(world)
    world.core.patch("persistentvolumeclaims", NS, "data", {"spec": {"volumeName": "pv-1"}})
    world.core.patch("persistentvolumeclaims", NS, "data", {"status": {"phase": "Bound"}}, "status")
    await world.run(30)
    assert node_of(world, "reader") == "node-a"


def job_with_claims(*claims: str, **more: Any) -> JobAdmitted:
    """One role for each claim, of one pod."""
    annotations = train().roles[0].template.annotations
    roles = []
    for claimed in claims:
        volume = Volume(kind="claim", name=claimed, mount_path="/data")
        template = Template(image="train:1", annotations=annotations, volumes=(volume,))
        roles.append(role(f"with-{claimed}", **more).model_copy(update={"template": template}))
    return admitted("k1", job_spec(*roles, retry=Retry(backoff_seconds=0)))


def make_local(world: AdoptionWorld, claimed: str, node: str) -> None:
    """A claim bound to a volume of one node."""
    local = volume([on("kubernetes.io/hostname", node)])
    world.core.create("persistentvolumes", "", {**local, "metadata": {"name": f"pv-{claimed}"}})
    bound = {"metadata": {"name": claimed}, "spec": {"volumeName": f"pv-{claimed}"}, "status": {"phase": "Bound"}}
    world.core.create("persistentvolumeclaims", NS, bound)


async def test_a_job_of_ours_is_not_bound_without_its_volume(world: AdoptionWorld) -> None:
    await world.commit(job_with_claims("data"))
    await world.run(5)
    reasons = [said.reason for said in world.said("bind_failed")]
    assert reasons
    assert reasons[0].code == "VolumeNotReady"
    assert "claim data is not there" in reasons[0].detail
    assert not world.pods(), "and no pod is made for nothing"


@pytest.mark.parametrize("nodes", [("a", "b", "c"), ("c", "a", "b")])
async def test_a_job_of_ours_goes_where_the_volumes_of_each_of_its_roles_are(nodes: tuple[str, str, str]) -> None:
    async with AdoptionWorld(nodes=("node-a", "node-b", "node-c")) as world:
        claims = ("one", "two", "three")
        for claimed, node in zip(claims, nodes, strict=True):
            make_local(world, claimed, f"node-{node}")
        fact = job_with_claims(*claims, gpus=2)
        await world.commit(fact)
        await world.run(10)
        job = world.job(fact.job_id)
        assert (job.phase, job.attempt <= 2) == ("running", True), "at most one attempt is lost for all roles together"
        run = world.current(job.job_id)
        assert [place.node for place in run.placements] == [f"node-{node}" for node in nodes]
        assert len(world.pods()) == 3


async def test_what_an_elastic_job_grows_by_goes_where_its_volumes_are_as_well() -> None:
    async with AdoptionWorld(nodes=("node-a", "node-b")) as world:
        make_local(world, "data", "node-a")
        fact = job_with_claims("data", min_replicas=1, replicas=2, gpus=4)
        await world.commit(fact)
        await world.run(10)
        job = world.job(fact.job_id)
        assert job.phase == "running"
        (need,) = [role.need for role in world.current(job.job_id).roles]
        assert need.affinity == (("kubernetes.io/hostname", "In", ("node-a",)),), "so further pods go there, too"


async def test_nodes_of_volumes_bind_later_attempts_beside_the_other_conditions() -> None:
    async with AdoptionWorld(nodes=("node-a", "node-b")) as world:
        make_local(world, "data", "node-b")
        fact = job_with_claims("data", node_selector={"kubernetes.io/hostname": "node-a"})
        await world.commit(fact)
        await world.run(10)
        job = world.job(fact.job_id)
        assert (job.phase, job.attempt) == ("queued", 1)
        assert job.reason is not None
        assert job.reason.code in ("NoFit", "Inadmissible"), "no node is both, and it is not tried again in vain"
