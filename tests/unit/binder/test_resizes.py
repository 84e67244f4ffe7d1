"""Pods of a run get another size in place: each is patched once, and the end is said once all nodes have taken it."""

from typing import Any

import pytest

from tessera.binder.decide.resizes import resize_of, unfit, wanted_resources
from tessera_local.cluster.machines.behaviour import NEVER, RESIZE
from tessera_schemas.base import Json
from tessera_schemas.job import Role
from tessera_schemas.reasons import Code
from tessera_schemas.shard.records import ResizeRequested
from tessera_schemas.work.pod_template import ContainerResources, InitContainer
from tessera_schemas.work.spec_changes import PodSize, RoleAmounts, resized_role
from tests.builders import role
from tests.unit.binder.cluster_world import World, train

GIB = 2**30


async def resize(world: World, job: str, key: str = "one", **size: Any) -> None:
    said = PodSize.model_validate(size)
    await world.commit(ResizeRequested(kind="resize_requested", job_id=job, size=said, key=key, tenant="lab"))


def sizes(world: World) -> list[tuple[str, str]]:
    resources = [pod["spec"]["containers"][0]["resources"] for pod in world.pods()]
    assert all(each["requests"][name] == each["limits"][name] for each in resources for name in ("cpu", "memory"))
    return [(each["requests"]["cpu"], each["requests"]["memory"]) for each in resources]


def ends(world: World) -> list[Code | None]:
    return [r.reason and r.reason.code for r in world.records if r.kind == "resize_ended"]


async def test_all_pods_of_a_run_get_the_new_size_and_none_is_stopped() -> None:
    async with World() as world:
        job = await world.submit(spec=train(replicas=3))
        before = [pod["metadata"]["uid"] for pod in world.pods()]
        await resize(world, job, cpu_milli=2000, memory_bytes=3 * GIB)
        await world.run(2)
        assert sizes(world) == [("2000m", str(3 * GIB))] * 3
        assert [pod["metadata"]["uid"] for pod in world.pods()] == before
        assert ends(world) == [None]
        assert (world.job(job).phase, world.job(job).attempt) == ("running", 1)


async def test_a_size_that_a_node_can_never_hold_is_taken_back_from_all_pods() -> None:
    async with World() as world:
        spec = train(replicas=2)
        (worker,) = spec.roles
        notes = worker.template.annotations | {RESIZE: NEVER}
        template = worker.template.model_copy(update={"annotations": notes})
        spec = spec.model_copy(update={"roles": (worker.model_copy(update={"template": template}),)})
        job = await world.submit(spec=spec)
        before = sizes(world)
        await resize(world, job, cpu_milli=2000)
        await world.run(3)
        assert ends(world) == [Code.RESIZE_REFUSED, None]
        assert sizes(world) == before
        assert world.job(job).resized == ()


async def test_a_binder_that_was_away_resizes_once_it_is_back() -> None:
    async with World() as world:
        job = await world.submit(spec=train(replicas=2))
        await world.stop("binder")
        await resize(world, job, cpu_milli=2000)
        await world.run(3)
        assert ends(world) == []
        world.start_binder()
        await world.run(3)
        assert [cpu for cpu, _ in sizes(world)] == ["2000m"] * 2
        assert ends(world) == [None]


async def test_a_pod_is_patched_once_and_nothing_is_asked_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with World() as world:
        job = await world.submit(spec=train(replicas=2))
        patched, patch = list[str](), world.core.patch

        def counted(resource: str, namespace: str, name: str, *more: Any, **named: Any) -> Any:
            patched.append(name)
            return patch(resource, namespace, name, *more, **named)

        monkeypatch.setattr(world.core, "patch", counted)
        await resize(world, job, cpu_milli=2000)
        await world.run(60)
        assert sorted(patched) == sorted({*patched})
        assert len(patched) == 2


# -- what a pod shows ------------------------------------------------------------------------------------------------


def shown(asked: Json, told: Json | None = None, *conditions: Json, **status: Any) -> Json:
    """A pod whose container asks for this, and of which its kubelet has told that."""
    container = {"name": "worker", **status} | ({} if told is None else {"resources": told})
    said = {"containerStatuses": [container], "conditions": list(conditions)}
    return {
        "metadata": {"generation": 3},
        "spec": {"containers": [{"name": "worker", "resources": asked}]},
        "status": said,
    }


def amounts(cpu: str, memory: str = "1073741824") -> Json:
    return {part: {"cpu": cpu, "memory": memory} for part in ("requests", "limits")}


WANTED = role(gpus=0, cpu_milli=1500, memory_bytes=GIB)
NEW, OLD = amounts("1500m", "1Gi"), amounts("1")
INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": "too much"}
DEFERRED = INFEASIBLE | {"reason": "Deferred"}


@pytest.mark.parametrize(
    ("pod", "taken", "why"),
    [
        (shown(NEW, NEW), True, ""),
        (shown(NEW, NEW, allocatedResources=NEW["requests"]), True, ""),
        (shown(NEW, NEW, allocatedResources=OLD["requests"]), False, ""),
        (shown(NEW, OLD), False, ""),
        (shown(NEW, NEW, {"type": "PodResizeInProgress", "status": "True"}), False, ""),
        (shown(NEW, OLD, DEFERRED), False, ""),
        (shown(NEW, OLD, INFEASIBLE), False, "too much"),
        (shown(NEW, OLD, INFEASIBLE | {"observedGeneration": 2}), False, ""),
        (shown(NEW), False, ""),
    ],
    ids=[
        "in force",
        "allocated and in force",
        "not allocated yet",
        "not in force yet",
        "being carried out",
        "no room for now",
        "never",
        "never, of an earlier size",
        "a kubelet that says nothing of sizes",
    ],
)
def test_a_node_has_taken_a_size_once_it_says_so_of_the_container(pod: Json, taken: bool, why: str) -> None:
    step = resize_of(pod, WANTED, as_it_was=False)
    assert (step.patch, step.taken, step.why) == (None, taken, why)


def test_a_pod_of_another_size_is_patched_and_one_that_never_left_its_own_is_back() -> None:
    assert resize_of(shown(OLD, OLD), WANTED, as_it_was=False).patch == wanted_resources(WANTED)
    assert resize_of(shown(NEW), WANTED, as_it_was=True).taken


def test_sidecars_and_init_containers_count_in_the_size_of_a_pod() -> None:
    beside = InitContainer(
        name="proxy", image="proxy:1", sidecar=True, resources=ContainerResources(cpu_milli=500, memory_bytes=GIB)
    )
    first = InitContainer(name="load", image="load:1", resources=ContainerResources(cpu_milli=4000, memory_bytes=GIB))
    made: Role = role(gpus=0, cpu_milli=1000, memory_bytes=GIB)
    pod = made.model_copy(update={"template": made.template.model_copy(update={"init_containers": (beside, first)})})
    assert (pod.cpu_milli, pod.memory_bytes) == (4500, 2 * GIB)
    grown = RoleAmounts(role="worker", cpu_milli=6000, memory_bytes=2 * GIB)
    assert (resized_role(pod, grown).resources.cpu_milli, resized_role(pod, grown).cpu_milli) == (5500, 6000)
    assert resized_role(pod, grown).resources.memory_bytes == GIB
    assert unfit(resized_role(pod, grown), grown) == ""
    small = grown.model_copy(update={"cpu_milli": 2000})
    assert "sidecars and init containers" in unfit(resized_role(pod, small), small)


def test_a_limit_above_the_request_stays_as_long_as_the_request_is_within() -> None:
    made: Role = role(gpus=0, cpu_milli=1000, memory_bytes=GIB)
    higher = made.model_copy(update={"resources": made.resources.model_copy(update={"cpu_limit_milli": 4000})})
    for asked, limit in ((2000, "4000m"), (6000, "6000m")):
        size = RoleAmounts(role="worker", cpu_milli=asked, memory_bytes=GIB)
        assert wanted_resources(resized_role(higher, size))["limits"]["cpu"] == limit
