"""Kubernetes' own PodGroups: what they ask for is honoured or refused by the field, and their status follows."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.binder.adoption.decide.owner_conditions import PLACED, placed_patch
from tessera.binder.adoption.decide.roles import role_of
from tessera.binder.adoption.decide.spec import Adoption, spec_of
from tessera.binder.adoption.decide.verdicts import Verdict
from tessera.binder.workloads.kinds.pod_group import policy_of
from tessera.binder.workloads.port import Group, GroupKind, GroupPolicy
from tessera.binder.workloads.references import OwnerRef
from tessera.binder.workloads.registry import POD_GROUP, group_of, size_of
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import an_object, batch_job, known, pod, ref
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld

Json = dict[str, Any]
API, RACK = "scheduling.k8s.io/v1alpha2", "example.com/rack"
SHELF = "podgroups.scheduling.k8s.io"


def gang(count: int, **more: Any) -> Json:
    return {"schedulingPolicy": {"gang": {"minCount": count}}, **more}


def pod_group(name: str = "pg", owner: Json | None = None, **spec: Any) -> Json:
    return an_object(API, "PodGroup", name, owner, **spec)


def member(name: str = "a", group: str = "pg", **more: Any) -> Json:
    return pod(name, schedulingGroup={"podGroupName": group}, **more)


def group(of: Json, found: Json | None, *objects: Json) -> Group | Reason | OwnerRef:
    asked = group_of(of, {})
    assert isinstance(asked, OwnerRef)
    return group_of(of, {asked: found, **known(*objects)})


# -- what it asks for -------------------------------------------------------------------------------------------------


def test_a_gang_is_read_with_its_topology_and_priority() -> None:
    constraints = {"topology": [{"key": RACK}]}
    said = gang(3, schedulingConstraints=constraints, priority=7, priorityClassName="high", disruptionMode="PodGroup")
    assert policy_of(pod_group(**said)) == GroupPolicy(3, RACK, 7, "high")


@pytest.mark.parametrize("mode", ["Pod", "PodGroup", {"single": {}}, {"all": {}}], ids=str)
def test_a_group_as_the_job_controller_of_each_version_makes_it_is_honoured(mode: Any) -> None:
    made = {
        "v1alpha2": {"podGroupTemplateRef": {"workload": {"workloadName": "w", "podGroupTemplateName": "t"}}},
        "v1beta1": {
            "workloadRef": {"workloadName": "w", "templateName": "t"},
            "preemptionPolicy": "PreemptLowerPriority",
        },
    }
    for version, fields in made.items():
        its = pod_group(**gang(3, disruptionMode=mode, **fields))
        assert policy_of(its) == GroupPolicy(3, "", None, ""), version


REFUSED: dict[str, tuple[str, Json]] = {
    "who preempts nobody": ("PodGroup.spec.preemptionPolicy", gang(2, preemptionPolicy="Never")),
    "a mode of later": ("PodGroup.spec.disruptionMode", gang(2, disruptionMode={"half": {}})),
    "together without a gang": (
        "PodGroup.spec.disruptionMode",
        {"schedulingPolicy": {"basic": {}}, "disruptionMode": "PodGroup"},
    ),
    "all together without a gang": (
        "PodGroup.spec.disruptionMode",
        {"schedulingPolicy": {"basic": {}}, "disruptionMode": {"all": {}}},
    ),
    "a field of later": ("PodGroup.spec.parent", gang(2, parent="x")),
    "a policy of later": ("PodGroup.spec.schedulingPolicy.elastic", {"schedulingPolicy": {"elastic": {}}}),
    "no count": ("PodGroup.spec.schedulingPolicy.gang.minCount", gang(0)),
    "two domains": (
        "PodGroup.spec.schedulingConstraints.topology",
        gang(2, schedulingConstraints={"topology": [{"key": "a"}, {"key": "b"}]}),
    ),
    "a constraint of later": (
        "PodGroup.spec.schedulingConstraints.placement",
        gang(2, schedulingConstraints={"placement": [1]}),
    ),
    "a domain without a gang": (
        "PodGroup.spec.schedulingConstraints.topology",
        {"schedulingPolicy": {"basic": {}}, "schedulingConstraints": {"topology": [{"key": RACK}]}},
    ),
}


@pytest.mark.parametrize(("field", "spec"), REFUSED.values(), ids=REFUSED)
def test_what_it_asks_for_and_nobody_does_is_refused_by_the_groups_field(field: str, spec: Json) -> None:
    found = policy_of(pod_group(**spec))
    assert isinstance(found, Reason)
    assert found.field == field


def test_a_scheduling_group_of_a_kind_to_come_is_refused_by_its_field() -> None:
    found = role_of(pod(schedulingGroup={"compositeName": "x"}))
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (Code.NOT_SUPPORTED_YET, "spec.schedulingGroup")


# -- which pods it gathers --------------------------------------------------------------------------------------------


def test_its_pods_are_one_group_and_wait_for_it() -> None:
    missing = group(member(), None)
    assert isinstance(missing, Reason)
    assert missing.code is Code.OWNER_NOT_FOUND
    one, other = (group(member(name), pod_group(**gang(3))) for name in "ab")
    assert isinstance(one, Group)
    assert one == other
    assert (one.kind, size_of(one, None), one.at_least) == (GroupKind.POD_GROUP, 3, True)


def test_a_basic_group_gathers_nothing() -> None:
    found = group(member(), pod_group(schedulingPolicy={"basic": {}}))
    assert isinstance(found, Group)
    assert (found.kind, found.at_least) == (GroupKind.POD, False)


def test_a_group_that_a_job_made_for_its_pods_is_the_jobs_group() -> None:
    job = batch_job(parallelism=4, completions=4)
    found = group(member(owner=job), pod_group(owner=job, **gang(4)), job)
    assert isinstance(found, Group)
    assert (found.kind, found.owner, size_of(found, job)) == (GroupKind.JOB, ref(job), 4)
    assert found.id == getattr(group_of(pod(owner=job), known(job)), "id", "")
    done = job | {"status": {"succeeded": 1}}
    assert size_of(found, done) == 3, "what has succeeded is not waited for"


def test_its_pods_share_the_domain_and_have_its_priority() -> None:
    its = pod_group(**gang(2, schedulingConstraints={"topology": [{"key": RACK}]}, priority=9, priorityClassName="p"))
    pods = [member(name, priority=1, priorityClassName="q") for name in "ab"]
    pods[0]["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2"}
    found = group(pods[0], its)
    assert isinstance(found, Group)
    job = spec_of(found, pods, 2)
    assert isinstance(job, Adoption), job
    assert {(role.topology.level, role.topology.group) for role in job.spec.roles if role.topology} == {
        (RACK, "pod-group")
    }
    assert len(job.spec.roles) == 2
    assert (job.adopted.priority, job.adopted.priority_class) == (9, "p")


# -- its status -------------------------------------------------------------------------------------------------------


def test_the_newer_versions_condition_is_written_until_its_first_success_and_never_taken_back() -> None:
    its = pod_group() | {"apiVersion": "scheduling.k8s.io/v1beta1"}
    why = Verdict("NoFit", "no room", warning=False)
    patch = placed_patch(its, POD_GROUP, why, "2026-01-01T00:00:00Z")
    assert patch is not None
    (said,) = patch["status"]["conditions"]
    assert (said["type"], said["status"]) == ("PodGroupInitiallyScheduled", "False")
    placed = placed_patch(its | {"status": patch["status"]}, POD_GROUP, PLACED, "2026-01-02T00:00:00Z")
    assert placed is not None
    assert placed["status"]["conditions"][0]["status"] == "True"
    again = its | {"status": placed["status"]}
    assert placed_patch(again, POD_GROUP, why, "2026-01-03T00:00:00Z") is None


def test_the_status_is_written_when_it_changes_and_keeps_what_others_wrote() -> None:
    its = pod_group() | {"status": {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}}
    why = Verdict("NoFit", "no room", warning=False)
    patch = placed_patch(its, POD_GROUP, why, "2026-01-01T00:00:00Z")
    assert patch is not None
    assert [one["type"] for one in patch["status"]["conditions"]] == ["DisruptionTarget", "PodGroupScheduled"]
    told = its | {"status": patch["status"]}
    assert placed_patch(told, POD_GROUP, why, "2026-01-02T00:00:00Z") is None
    after = placed_patch(told, POD_GROUP, PLACED, "2026-01-02T00:00:00Z")
    assert after is not None
    assert after["status"]["conditions"][1]["lastTransitionTime"] == "2026-01-02T00:00:00Z"


# -- in a cluster -----------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


def make(world: AdoptionWorld, name: str, count: int) -> None:
    world.core.create(SHELF, NS, {"metadata": {"name": name}, "spec": gang(count)})


def status(world: AdoptionWorld, name: str) -> tuple[str, str]:
    conditions = world.core.get(SHELF, NS, name).object.get("status", {}).get("conditions", [])
    return next(((one["status"], one["reason"]) for one in conditions), ("", ""))


async def test_a_gang_starts_whole_and_its_group_says_so(world: AdoptionWorld) -> None:
    for name in ("one", "two"):
        make(world, name, 3)
    for number in range(3):
        for name in ("one", "two"):
            world.make_pod(f"{name}-{number}", gpus=2, seconds=20, schedulingGroup={"podGroupName": name})
    await world.run(10)
    bound = {name: sum(bool(pod["spec"].get("nodeName")) for pod in world.owned(name)) for name in ("one", "two")}
    assert sorted(bound.values()) == [0, 3]
    first, second = sorted(bound, key=lambda name: -bound[name])
    assert (status(world, first), status(world, second)) == (("True", "Scheduled"), ("False", "Unschedulable"))
    await world.run(40)
    assert status(world, second) == ("True", "Scheduled")


async def test_pods_beyond_the_least_number_start_by_themselves(world: AdoptionWorld) -> None:
    make(world, "one", 2)
    for number in range(4):
        world.make_pod(f"one-{number}", gpus=2, schedulingGroup={"podGroupName": "one"})
    await world.run(20)
    assert all(pod["spec"].get("nodeName") for pod in world.owned("one"))
    assert sorted(job.pods for job in world.adopted("one")) == [1, 1, 2]
