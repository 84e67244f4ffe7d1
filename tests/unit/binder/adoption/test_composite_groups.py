"""CompositePodGroups: one job of all PodGroups below one, each domain a group of the contract; refused by name."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tessera.binder.adoption.decide.spec import Adoption, spec_of
from tessera.binder.workloads.port import MEMBERS, Group
from tessera.binder.workloads.references import OwnerRef
from tessera.binder.workloads.registry import domain_beyond, group_of, size_of
from tessera_schemas.cluster.gang_groups import RoleGroup
from tessera_schemas.cluster.node_terms import Topology
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import an_object, pod
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld

Json = dict[str, Any]
ROOT = Path(__file__).parents[4]
API = {"CompositePodGroup": "scheduling.k8s.io/v1alpha3", "PodGroup": "scheduling.k8s.io/v1beta1"}
ZONE, RACK, HOST = "topology.kubernetes.io/zone", "example.org/rack", "kubernetes.io/hostname"


def spec(count: int, within: str = "", template: str = "", domain: str = "", of_pods: bool = True, **more: Any) -> Json:
    policy = {"gang": {"minCount" if of_pods else "minGroupCount": count}} if count else {"basic": {}}
    found: Json = {"schedulingPolicy": policy, "workloadRef": {"workloadName": "serve", "templateName": template}}
    found |= {"schedulingConstraints": {"topology": [{"key": domain}]}} if domain else {}
    return found | ({"parentCompositePodGroupName": within} if within else {}) | more


def groups(name: str, count: int, within: str = "", template: str = "", domain: str = "", **more: Any) -> Json:
    asked = spec(count, within, template or name, domain, of_pods=False, **more)
    return an_object(API["CompositePodGroup"], "CompositePodGroup", name, **asked)


def pods_of(name: str, count: int, within: str, template: str = "", domain: str = "", **more: Any) -> Json:
    return an_object(API["PodGroup"], "PodGroup", name, **spec(count, within, template or name, domain, **more))


def members(group: str, count: int, **more: Any) -> list[Json]:
    return [pod(f"{group}-{at}", schedulingGroup={"podGroupName": group}, **more) for at in range(count)]


def group(of: Json, made: list[Json]) -> Group | Reason | None:
    """The pod's group, as the objects are looked up one after the other."""
    there = {kind: [one for one in made if one["kind"] == kind] for kind in API}
    by_name = {(one["kind"], one["metadata"]["name"]): {**one, MEMBERS: there} for one in made}
    known: dict[OwnerRef, Json | None] = {}
    for _ in range(8):
        found = group_of(of, known)
        if not isinstance(found, OwnerRef):
            return found
        known[found] = by_name.get((found.kind, found.name))
    return None


def adopted(pods: list[Json], *made: Json) -> Adoption | Reason:
    found = group(pods[0], list(made))
    if isinstance(found, Reason):
        return found
    assert isinstance(found, Group), found
    assert found.owner is not None
    root = next(one for one in made if one["metadata"]["name"] == found.owner.name)
    owner = {**root, MEMBERS: {kind: [one for one in made if one["kind"] == kind] for kind in API}}
    size = size_of(found, owner, pods)
    return size if isinstance(size, Reason) else spec_of(found, pods, size, owner)


def replica(number: int, within: str = "serve", decode: int = 2) -> list[Json]:
    name = f"serve-{number}"
    return [
        groups(name, 2, within, "replica", RACK),
        pods_of(f"{name}-decode", decode, name, "decode", HOST),
        pods_of(f"{name}-prefill", 1, name, "prefill"),
    ]


def test_a_tree_is_one_job_and_groups_of_one_template_are_copies() -> None:
    made = [groups("serve", 2, domain=ZONE), *replica(2), *replica(10)]
    pods = [*members("serve-10-decode", 2), *members("serve-2-decode", 2)]
    pods += [*members("serve-10-prefill", 1), *members("serve-2-prefill", 1)]
    found = adopted(pods, *made)
    assert isinstance(found, Adoption), found
    assert {role.name: role.replicas for role in found.spec.roles} == {"decode": 4, "prefill": 2}
    assert found.spec.groups == (
        RoleGroup(name="serve-groups", topology=Topology(level=ZONE)),
        RoleGroup(
            name="replica-groups",
            within="serve-groups",
            pods={"decode": 2, "prefill": 1},
            topology=Topology(level=RACK),
        ),
        RoleGroup(name="decode", within="replica-groups", pods={"decode": 2}, topology=Topology(level=HOST)),
    )
    ranks = ["serve-2-decode-0", "serve-2-decode-1", "serve-10-decode-0", "serve-10-decode-1"]
    assert [uid.removeprefix("uid-") for uid in found.uids] == [*ranks, "serve-2-prefill-0", "serve-10-prefill-0"]


def test_groups_that_differ_are_groups_of_their_own() -> None:
    made = [groups("serve", 2), *replica(0), *replica(1, decode=1)]
    pods = [*members("serve-0-decode", 2), *members("serve-0-prefill", 1)]
    pods += [*members("serve-1-decode", 1), *members("serve-1-prefill", 1)]
    found = adopted(pods, *made)
    assert isinstance(found, Adoption), found
    assert [(one.name, one.within, one.pods) for one in found.spec.groups] == [
        ("serve-0-groups", None, {"serve-0-decode": 2, "serve-0-prefill": 1}),
        ("serve-0-decode", "serve-0-groups", {"serve-0-decode": 2}),
        ("serve-1-groups", None, {"serve-1-decode": 1, "serve-1-prefill": 1}),
        ("serve-1-decode", "serve-1-groups", {"serve-1-decode": 1}),
    ]


def test_a_leader_that_asks_for_more_than_its_workers_is_a_role_of_the_same_group() -> None:
    made = [groups("lws", 2), *(pods_of(f"lws-{at}", 3, "lws", "replica", RACK) for at in range(2))]
    pods = [one for at in range(2) for one in members(f"lws-{at}", 3)]
    for leader in pods[::3]:
        leader["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2"}
    found = adopted(pods, *made)
    assert isinstance(found, Adoption), found
    assert [(role.name, role.replicas) for role in found.spec.roles] == [("replica", 4), ("replica-2", 2)]
    assert [dict(one.pods) for one in found.spec.groups] == [{"replica": 2, "replica-2": 1}]


def test_the_priority_is_that_of_the_topmost_gang() -> None:
    made = [groups("all", 1, priority=9, priorityClassName="soon"), pods_of("workers", 1, "all", priority=3)]
    found = adopted(members("workers", 1, priority=1), *made)
    assert isinstance(found, Adoption), found
    assert (found.adopted.priority, found.adopted.priority_class) == (9, "soon")


def test_groups_below_a_basic_one_are_gangs_of_their_own() -> None:
    made = [groups("all", 0), groups("one", 1, "all"), pods_of("a", 1, "one"), pods_of("b", 1, "all")]
    below, flat = group(members("a", 1)[0], made), group(members("b", 1)[0], made)
    assert isinstance(below, Group)
    assert isinstance(flat, Group)
    assert [(one.kind, one.name) for one in (below, flat)] == [("CompositePodGroup", "one"), ("PodGroup", "b")]


def test_pods_of_a_tree_wait_until_as_many_groups_are_there_as_it_counts() -> None:
    found = adopted(members("a", 1), groups("all", 2), pods_of("a", 1, "all"))
    assert isinstance(found, Reason)
    assert (found.code, found.detail) == (Code.GANG_INCOMPLETE, "1 of 2 groups are there")
    later = adopted(members("a", 1), groups("all", 2), pods_of("a", 1, "all"), pods_of("b", 2, "all"))
    assert isinstance(later, Reason)
    assert (later.code, later.numbers) == (Code.GANG_INCOMPLETE, {"pods": 1, "pods_wanted": 3})


def test_a_pod_beyond_the_least_number_is_not_kept_in_a_domain() -> None:
    made = [groups("all", 2), pods_of("a", 1, "all", domain=RACK), pods_of("b", 1, "all")]
    beyond = [members("a", 2)[1], members("b", 2)[1]]
    found = group(beyond[0], made)
    assert isinstance(found, Group)
    owner = {**made[0], MEMBERS: {"PodGroup": made[1:]}}
    assert [domain_beyond(found, owner, each)[0] for each in beyond] == [{"level": RACK}, None]


REFUSED: dict[str, tuple[list[Json], Code, str]] = {
    "more groups than it counts": (
        [groups("all", 1), pods_of("a", 1, "all"), pods_of("b", 1, "all")],
        Code.NOT_SUPPORTED_YET,
        "CompositePodGroup.spec.schedulingPolicy.gang.minGroupCount",
    ),
    "pods one by one below a gang": (
        [groups("all", 1), pods_of("a", 0, "all")],
        Code.NOT_SUPPORTED_YET,
        "PodGroup.spec.schedulingPolicy.basic",
    ),
    "groups one by one below a gang": (
        [groups("all", 1), groups("mid", 0, "all"), pods_of("a", 1, "mid")],
        Code.NOT_SUPPORTED_YET,
        "CompositePodGroup.spec.schedulingPolicy.basic",
    ),
    "one domain of groups that start one by one": (
        [groups("all", 0, domain=RACK), pods_of("a", 1, "all")],
        Code.NOT_SUPPORTED_YET,
        "CompositePodGroup.spec.schedulingConstraints.topology",
    ),
    "one that preempts nobody": (
        [groups("all", 1, preemptionPolicy="Never"), pods_of("a", 1, "all")],
        Code.NOT_SUPPORTED_YET,
        "CompositePodGroup.spec.preemptionPolicy",
    ),
    "a field of later": (
        [groups("all", 1, elastic=True), pods_of("a", 1, "all")],
        Code.NOT_SUPPORTED_YET,
        "CompositePodGroup.spec.elastic",
    ),
    "too deep": (
        [*(groups(f"g{at}", 1, f"g{at + 1}" if at < 3 else "") for at in range(4)), pods_of("a", 1, "g0")],
        Code.NOT_SUPPORTED_YET,
        "CompositePodGroup.spec.parentCompositePodGroupName",
    ),
    "a circle": (
        [groups("one", 1, "two"), groups("two", 1, "one"), pods_of("a", 1, "one")],
        Code.NOT_SUPPORTED_YET,
        "CompositePodGroup.spec.parentCompositePodGroupName",
    ),
    "a parent that is not there": ([pods_of("a", 1, "all")], Code.OWNER_NOT_FOUND, "CompositePodGroup lab/all"),
}


@pytest.mark.parametrize(("made", "code", "field"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_honoured_is_refused_by_its_field(made: list[Json], code: Code, field: str) -> None:
    found = adopted(members("a", 1), *made)
    assert isinstance(found, Reason), found
    assert (found.code, found.field) == (code, field)


# -- in a cluster -----------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld(nodes=("node-a", "node-b")) as world:
        yield world


SHELVES = {"CompositePodGroup": "compositepodgroups", "PodGroup": "podgroups.scheduling.k8s.io"}


def make(world: AdoptionWorld, *made: Json) -> None:
    for one in made:
        meta = {"name": one["metadata"]["name"]}
        world.core.create(SHELVES[one["kind"]], NS, {"metadata": meta, "spec": one["spec"]})


def nodes(world: AdoptionWorld, name: str) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in world.owned(name) if pod["spec"].get("nodeName")}


def status(world: AdoptionWorld, kind: str, name: str) -> list[tuple[str, str]]:
    found = world.core.get(SHELVES[kind], NS, name).object.get("status", {}).get("conditions", [])
    return [(one["type"], one["status"]) for one in found]


async def test_a_tree_starts_once_all_of_its_groups_are_there_and_each_says_so(world: AdoptionWorld) -> None:
    make(world, groups("all", 2), pods_of("one", 2, "all", "replica", HOST))
    for at in range(2):
        world.make_pod(f"one-{at}", gpus=1, seconds=600, schedulingGroup={"podGroupName": "one"})
    await world.run(10)
    assert nodes(world, "one") == set()
    assert status(world, "CompositePodGroup", "all") == [("CompositePodGroupInitiallyScheduled", "False")]
    make(world, pods_of("two", 2, "all", "replica", HOST))
    for at in range(2):
        world.make_pod(f"two-{at}", gpus=1, seconds=600, schedulingGroup={"podGroupName": "two"})
    await world.run(20)
    assert [len(nodes(world, name)) for name in ("one", "two")] == [1, 1]
    (job,) = world.adopted("all")
    assert job.pods == 4
    assert status(world, "CompositePodGroup", "all") == [("CompositePodGroupInitiallyScheduled", "True")]
    assert all(("PodGroupScheduled", "True") in status(world, "PodGroup", name) for name in ("one", "two"))


async def test_the_example_of_the_page_is_placed_as_it_says(world: AdoptionWorld) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text().partition("### Trees of PodGroups")[2]
    make(world, *yaml.safe_load_all(page.partition("```yaml\n")[2].partition("```")[0]))
    for name, count in (("decode", 2), ("prefill", 1)):
        for at in range(count):
            world.make_pod(f"{name}-{at}", gpus=2, seconds=600, schedulingGroup={"podGroupName": name})
    await world.run(20)
    assert [len(nodes(world, name)) for name in ("decode", "prefill")] == [1, 1]
    assert [job.pods for job in world.adopted("serve")] == [3]


async def test_pods_of_a_group_that_the_tree_does_not_count_are_refused_and_the_others_go_on(
    world: AdoptionWorld,
) -> None:
    make(world, groups("all", 1), pods_of("one", 1, "all"))
    world.make_pod("one-0", gpus=1, seconds=600, schedulingGroup={"podGroupName": "one"})
    await world.run(10)
    make(world, pods_of("two", 1, "all"))
    world.make_pod("two-0", gpus=1, seconds=600, schedulingGroup={"podGroupName": "two"})
    await world.run(20)
    assert (len(nodes(world, "one")), nodes(world, "two")) == (1, set())
    (refused,) = world.owned("two")
    assert any("minGroupCount" in one.get("message", "") for one in refused["status"].get("conditions", ()))
