"""PodGangs of Grove: one job of all pod groups, each domain a group of the contract; refused by name what is not."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.binder.adoption.decide.spec import Adoption, spec_of
from tessera.binder.workloads.port import Group
from tessera.binder.workloads.registry import group_of, size_of
from tessera_schemas.cluster.gang_groups import RoleGroup
from tessera_schemas.cluster.node_terms import Topology
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import an_object, pod
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld

Json = dict[str, Any]
ZONE, RACK, HOST = "topology.kubernetes.io/zone", "example.org/rack", "kubernetes.io/hostname"


def packed(required: str = "", preferred: str = "") -> Json:
    asked = {"required": required, "preferred": preferred}
    return {"topologyConstraint": {"packConstraint": {key: value for key, value in asked.items() if value}}}


def pod_group(name: str, least: int, pods: int | None = None, **more: Any) -> Json:
    names = [{"namespace": NS, "name": f"{name}-{at}"} for at in range(least if pods is None else pods)]
    return {"name": name, "minReplicas": least, "podReferences": names, **more}


def members(**counts: int) -> list[Json]:
    return [
        pod(f"{name}-{at}", labels={"grove.io/podgang": "serve-0", "grove.io/podclique": name})
        for name, count in counts.items()
        for at in range(count)
    ]


def adopted(pods: list[Json], **spec: Any) -> Adoption | Reason:
    gang = an_object("scheduler.grove.io/v1alpha1", "PodGang", "serve-0", **spec)
    asked = group_of(pods[0], {})
    found = group_of(pods[0], {asked: gang})  # type: ignore[dict-item]
    assert isinstance(found, Group), found
    size = size_of(found, gang, pods)
    return size if isinstance(size, Reason) else spec_of(found, pods, size, gang)


def test_each_constraint_is_a_group_within_that_of_the_whole() -> None:
    found = adopted(
        members(prefill=2, decode=4, router=1),
        podgroups=[pod_group("prefill", 2), pod_group("decode", 4, **packed(HOST)), pod_group("router", 1)],
        topologyConstraintGroupConfigs=[{"name": "model", "podGroupNames": ["prefill", "decode"], **packed(RACK)}],
        **packed(ZONE, RACK),
    )
    assert isinstance(found, Adoption), found
    assert {role.name: role.replicas for role in found.spec.roles} == {"prefill": 2, "decode": 4, "router": 1}
    assert found.spec.groups == (
        RoleGroup(name="podgang", topology=Topology(level=RACK, wider=(ZONE,))),
        RoleGroup(name="model-set", within="podgang", pods={"prefill": 2, "decode": 4}, topology=Topology(level=RACK)),
        RoleGroup(name="decode", within="model-set", pods={"decode": 4}, topology=Topology(level=HOST)),
    )


def test_a_gang_without_constraints_has_no_groups() -> None:
    found = adopted(members(prefill=1, decode=2), podgroups=[pod_group("prefill", 1), pod_group("decode", 2)])
    assert isinstance(found, Adoption), found
    assert (found.spec.groups, found.spec.pods()) == ((), 3)


def test_the_least_numbers_start_and_the_pods_beyond_them_are_not_of_the_gang() -> None:
    found = adopted(members(prefill=3, decode=2), podgroups=[pod_group("prefill", 1, 3), pod_group("decode", 2)])
    assert isinstance(found, Adoption), found
    assert {role.name: role.replicas for role in found.spec.roles} == {"prefill": 1, "decode": 2}


def test_what_is_only_preferred_is_a_preference() -> None:
    found = adopted(members(decode=2), podgroups=[pod_group("decode", 2, **packed(preferred=HOST))])
    assert isinstance(found, Adoption), found
    assert found.spec.groups == (
        RoleGroup(name="decode", pods={"decode": 2}, topology=Topology(level=HOST, required=False)),
    )


def test_a_pod_group_that_lacks_pods_waits_by_its_name() -> None:
    groups = [pod_group("prefill", 1), pod_group("decode", 2)]
    found = adopted(members(prefill=2, decode=1), podgroups=groups)
    assert isinstance(found, Reason)
    assert (found.code, found.detail, found.numbers) == (
        Code.GANG_INCOMPLETE,
        "of decode",
        {"pods": 1, "pods_wanted": 2},
    )


REFUSED: dict[str, tuple[Json, str]] = {
    "pods beyond the least number that a domain holds": (
        {"podgroups": [pod_group("decode", 1, 2, **packed(RACK))]},
        "PodGang.spec.podgroups[decode].minReplicas",
    ),
    "pods beyond it where the whole has a domain": (
        {"podgroups": [pod_group("decode", 1, 2)], **packed(ZONE)},
        "PodGang.spec.podgroups[decode].minReplicas",
    ),
    "a pod group in two sets": (
        {
            "podgroups": [pod_group("decode", 2)],
            "topologyConstraintGroupConfigs": [
                {"name": name, "podGroupNames": ["decode"], **packed(RACK)} for name in ("one", "two")
            ],
        },
        "PodGang.spec.topologyConstraintGroupConfigs",
    ),
    "no least number": ({"podgroups": []}, "PodGang.spec.podgroups"),
}


@pytest.mark.parametrize(("spec", "field"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_honoured_is_refused_by_its_field(spec: Json, field: str) -> None:
    found = adopted(members(decode=2), **spec)
    assert isinstance(found, Reason)
    assert found.field == field


def test_other_fields_of_a_gang_are_told() -> None:
    found = adopted(members(decode=1), podgroups=[pod_group("decode", 1)], priorityClassName="high")
    assert isinstance(found, Adoption), found
    assert any(sentence.startswith("PodGang.spec.priorityClassName") for sentence in found.wishes)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


async def test_a_gang_starts_once_all_of_its_pod_groups_are_there_each_on_a_node(world: AdoptionWorld) -> None:
    spec = {"podgroups": [pod_group("prefill", 2, **packed(HOST)), pod_group("decode", 2, **packed(HOST))]}
    world.core.create("podgangs", NS, {"metadata": {"name": "serve-0"}, "spec": spec})
    for name in ("prefill", "decode"):
        await world.run(5)
        assert not any(pod["spec"].get("nodeName") for pod in world.owned(""))
        for at in range(2):
            labels = {"grove.io/podgang": "serve-0", "grove.io/podclique": name}
            world.make_pod(f"{name}-{at}", labels=labels, gpus=1, seconds=600)
    await world.run(20)
    assert [len({pod["spec"]["nodeName"] for pod in world.owned(name)}) for name in ("prefill", "decode")] == [1, 1]
