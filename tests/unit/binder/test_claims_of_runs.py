"""Claims of a run from the making of its pods to their end, on a simulated API server."""

from typing import Any

import pytest

from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.cluster.labels import DELETE_PROTECTION, FINALIZER, RUN_LABEL
from tessera_schemas.config import Policy
from tessera_schemas.facts import CancelRequested
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code
from tests.builders import admitted
from tests.unit.binder.claim_builders import claim, device_claim, protected
from tests.unit.binder.claim_worlds import claims, with_claims, world_of_devices
from tests.unit.binder.cluster_world import World, train

GPU = "gpu.example.com/node-a/gpu-0"


def calls(world: World) -> list[str]:
    """What the binder does to pods and claims, as it does it."""
    done: list[str] = []
    core = world.core
    create, patch, bind = core.create, core.patch, core.bind

    def creating(resource: str, namespace: str, obj: Any) -> Any:
        done.append(f"create {resource}")
        return create(resource, namespace, obj)

    def patching(resource: str, namespace: str, name: str, changes: Any, sub: str = "", **more: Any) -> Any:
        done.append(f"patch {resource} {sub}".strip())
        return patch(resource, namespace, name, changes, sub, **more)

    def binding(*arguments: Any) -> Any:
        done.append("bind pods")
        return bind(*arguments)

    core.create, core.patch, core.bind = creating, patching, binding  # type: ignore[method-assign, assignment]
    return done


async def test_claims_are_made_with_the_pod_and_have_their_devices_before_it_is_bound() -> None:
    async with world_of_devices() as world:
        done = calls(world)
        job_id = await world.submit(spec=with_claims())
        run = world.job(job_id).run_id
        assert [call for call in done if "events" not in call][:5] == [
            "create pods",
            "create resourceclaims",
            "patch resourceclaims",
            "patch resourceclaims status",
            "bind pods",
        ]
        (pod,), (made,) = world.pods(run), claims(world)
        assert made["metadata"]["labels"][RUN_LABEL] == run
        assert made["metadata"]["finalizers"] == [DELETE_PROTECTION]
        assert made["status"]["reservedFor"] == [
            {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        ]
        assert made["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"


async def test_all_claims_of_a_gang_have_their_devices_before_any_pod_is_bound() -> None:
    async with world_of_devices() as world:
        done = calls(world)
        await world.submit(spec=with_claims(2))
        assert done.index("bind pods") > max(at for at, call in enumerate(done) if "resourceclaims" in call)
        assert done.count("bind pods") == 2


async def test_nothing_is_left_of_the_claims_of_a_run_that_ended() -> None:
    async with world_of_devices() as world:
        job_id = await world.submit(spec=with_claims(seconds=5))
        await world.run(20)
        assert world.job(job_id).phase == "succeeded"
        assert not claims(world)


async def run_by_a_second_binder(world: World, spec: JobSpec, lost: int, answer: str) -> None:
    """The first binder's call number `lost` is its last; `answer`: it did not arrive, or its answer did not."""
    done: list[str] = []

    async def dies(operation: str) -> None:
        done.append(operation)
        if len([one for one in done if one in ("create", "patch", "bind", "get")]) > lost:
            raise Transient("the binder is gone")

    setattr(world.api, answer, dies)
    fact = admitted("k1", spec)
    await world.commit(fact)
    await world.run(2)
    assert world.job(fact.job_id).phase != "running"
    await world.stop("binder")
    world.start_binder()
    await world.run(15)
    assert world.job(fact.job_id).phase == "running"


@pytest.mark.parametrize("lost", range(18))
@pytest.mark.parametrize("answer", ["before", "after"])
async def test_a_binder_that_dies_between_any_two_calls_is_continued_by_another(lost: int, answer: str) -> None:
    """Call number `lost` of the binder is its last: it did not arrive, or its answer did not."""
    async with world_of_devices() as world:
        await run_by_a_second_binder(world, with_claims(2), lost, answer)
        users = [one["status"]["reservedFor"][0]["uid"] for one in claims(world)]
        assert sorted(users) == sorted(pod["metadata"]["uid"] for pod in world.pods())
        assert all(len(one["status"]["reservedFor"]) == 1 for one in claims(world))


async def test_a_refused_bind_gives_the_devices_back() -> None:
    async with world_of_devices() as world:
        world.core.faults.answer("bind", 422, count=1)
        fact = admitted("k1", with_claims())
        await world.commit(fact)
        await world.run(4)
        (failed,) = world.said("bind_failed")
        assert failed.reason.code is Code.BIND_REFUSED
        await world.run(20)
        assert world.job(fact.job_id).phase == "running"
        (left,) = claims(world)
        assert left["metadata"]["name"].startswith(world.job(fact.job_id).run_id)


async def test_a_run_that_is_cancelled_before_its_bind_leaves_nothing() -> None:
    """No controller of claims helps: the pod is held by our finalizer until its claims are let go of."""
    async with world_of_devices(bindingConditions=["up"]) as world:
        fact = admitted("k1", with_claims())
        await world.commit(fact)
        await world.run(4)
        assert claims(world)[0]["status"]["reservedFor"]
        world.core._store._release_claims = lambda uid: None  # type: ignore[method-assign]
        undone: list[bool] = []
        remove = world.api.remove_finalizer

        async def removing(namespace: str, name: str, uid: str, finalizer: str) -> None:
            undone.append(finalizer == FINALIZER and not claims(world)[0].get("status"))
            await remove(namespace, name, uid, finalizer)

        world.api.remove_finalizer = removing  # type: ignore[method-assign]
        await world.commit(CancelRequested(kind="cancel_requested", job_id=fact.job_id, tenant="lab"))
        await world.run(10)
        assert world.job(fact.job_id).phase == "cancelled"
        assert undone == [True]
        (left,) = claims(world)  # its owner's collector takes it away
        assert not left["metadata"].get("finalizers")


async def test_a_pod_waits_for_its_device_to_be_ready_and_is_bound_then() -> None:
    async with world_of_devices(bindingConditions=["up"], bindingFailureConditions=["broken"]) as world:
        fact = admitted("k1", with_claims())
        await world.commit(fact)
        await world.run(5)
        assert not world.pods()[0]["spec"].get("nodeName")
        say(world, "up")
        await world.run(15)
        assert world.job(fact.job_id).phase == "running"


async def test_a_device_that_cannot_be_made_ready_ends_the_run_by_name() -> None:
    async with world_of_devices(bindingConditions=["up"], bindingFailureConditions=["broken"]) as world:
        await world.commit(admitted("k1", with_claims()))
        await world.run(5)
        say(world, "broken")
        await world.run(15)
        failed = world.said("bind_failed")[0]
        assert failed.reason.code is Code.DEVICE_NOT_READY
        assert failed.reason.detail.endswith(f"device {GPU}: broken")


def say(world: World, condition: str) -> None:
    """What the driver says of the one claim's device."""
    (there,) = claims(world)
    (result,) = there["status"]["allocation"]["devices"]["results"]
    told = {name: result[name] for name in ("driver", "pool", "device")}
    told["conditions"] = [{"type": condition, "status": "True"}]
    world.core.patch("resourceclaims", "lab", there["metadata"]["name"], {"status": {"devices": [told]}}, "status")


async def check_conflict(world: World, device: str, why: str, namespace: str = "lab") -> None:
    """A job whose claim meets that of others, which has the device, is told why, and runs once they give it back."""
    others = protected(claim("others"))
    others["metadata"]["namespace"] = namespace
    result = {"request": "one", "driver": "gpu.example.com", "pool": "node-a", "device": device}
    others["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"uid": "x"}]}
    world.core.create("resourceclaims", namespace, others)
    fact = admitted("k1", with_claims())
    await world.commit(fact)
    await world.run(5)
    failed = world.said("bind_failed")[0]
    assert failed.reason.code is Code.CLAIM_CONFLICT
    assert failed.reason.detail.endswith(why)
    world.core.patch("resourceclaims", namespace, "others", {"status": {"allocation": None}}, "status")
    await world.run(30)
    assert world.job(fact.job_id).phase == "running"


async def test_a_device_that_another_claim_has_is_a_fact_and_a_retry() -> None:
    async with world_of_devices() as world:
        await check_conflict(world, "gpu-0", f"claim others has device {GPU}")


async def test_a_tenant_does_not_learn_which_claim_of_another_namespace_has_a_device() -> None:
    async with world_of_devices() as world:
        await check_conflict(world, "gpu-0", f": a claim of another namespace has device {GPU}", namespace="secret")


async def test_a_counter_that_another_claim_has_is_a_fact_and_a_retry() -> None:
    """Somebody else's claim has the whole card, of which the drawn device is a part."""
    uses = [{"counterSet": "card", "counters": {"ports": {"value": "1"}}}]
    async with world_of_devices(consumesCounters=uses) as world:
        spec = world.core.list("resourceslices")[0][0].object["spec"]
        whole = {"name": "card", "consumesCounters": [{"counterSet": "card", "counters": {"ports": {"value": "2"}}}]}
        counters = [{"name": "card", "counters": {"ports": {"value": "2"}}}]
        newer = {"devices": [*spec["devices"], whole], "sharedCounters": counters}
        world.core.patch("resourceslices", "", world.core.list("resourceslices")[0][0].meta["name"], {"spec": newer})
        await world.run(3)
        await check_conflict(world, "card", "claim others has ports of card")


async def test_a_claim_that_changed_under_the_write_is_read_again() -> None:
    async with world_of_devices() as world:
        patch, raced = world.core.patch, []

        def racing(resource: str, namespace: str, name: str, changes: Any, sub: str = "", **more: Any) -> Any:
            if resource == "resourceclaims" and len(raced) < 3:
                raced.append(sub)
                patch(resource, namespace, name, {"metadata": {"labels": {"seen": str(len(raced))}}})
            return patch(resource, namespace, name, changes, sub, **more)

        world.core.patch = racing  # type: ignore[method-assign]
        await world.submit(spec=with_claims())
        assert raced == ["", "", ""]
        assert claims(world)[0]["status"]["reservedFor"]


async def test_a_claim_of_that_name_which_is_not_the_pods_refuses_the_run() -> None:
    async with world_of_devices() as world:
        create = world.core.create

        def squatting(resource: str, namespace: str, obj: Any) -> Any:
            if resource == "resourceclaims" and not claims(world):
                create(resource, namespace, claim(obj["metadata"]["name"]))
            return create(resource, namespace, obj)

        world.core.create = squatting  # type: ignore[method-assign]
        await world.commit(admitted("k1", with_claims()))
        await world.run(5)
        assert world.said("bind_failed")[0].reason.code is Code.CLAIM_CONFLICT


async def test_a_no_of_the_api_server_to_a_claim_is_a_refusal() -> None:
    async with world_of_devices() as world:
        patch = world.core.patch

        def refusing(resource: str, *rest: Any, **more: Any) -> Any:
            if resource == "resourceclaims":
                raise ApiError(403, "Forbidden", "resourceclaims/binding")
            return patch(resource, *rest, **more)

        world.core.patch = refusing  # type: ignore[method-assign]
        await world.commit(admitted("k1", with_claims()))
        await world.run(5)
        failed = world.said("bind_failed")[0]
        assert failed.reason.code is Code.BIND_REFUSED
        assert "resourceclaims/binding" in failed.reason.detail


async def test_a_cluster_without_claims_is_asked_for_nothing_of_them() -> None:
    async with World() as world:
        enter, asked = world.api._enter, set[str]()

        async def noting(verb: str, kind: str = "pods") -> None:
            asked.add(kind)
            await enter(verb, kind)

        world.api._enter = noting  # type: ignore[method-assign]
        await world.submit(spec=train())
        assert not asked & {"resourceslices", "deviceclasses", "resourceclaims"}


def with_one_claim(replicas: int, **more: Any) -> JobSpec:
    """A gang whose pods share a device."""
    spec = with_claims(replicas, **more)
    (role,) = spec.roles
    asked = role.resources.model_copy(update={"claims": (device_claim(shared=True),)})
    return spec.model_copy(update={"roles": (role.model_copy(update={"resources": asked}),)})


async def test_pods_of_a_run_that_share_a_claim_have_one_object_which_goes_with_them() -> None:
    async with world_of_devices() as world:
        done = calls(world)
        job_id = await world.submit(spec=with_one_claim(3))
        run = world.job(job_id).run_id
        (made,), pods = claims(world), world.pods(run)
        assert made["metadata"]["name"] == f"{run}-shared-gpu"
        assert {pod["spec"]["resourceClaims"][0]["resourceClaimName"] for pod in pods} == {f"{run}-shared-gpu"}
        assert {user["uid"] for user in made["status"]["reservedFor"]} == {pod["metadata"]["uid"] for pod in pods}
        assert done.index("bind pods") > max(at for at, call in enumerate(done) if "resourceclaims" in call)
        await world.commit(CancelRequested(kind="cancel_requested", job_id=job_id, tenant="lab"))
        await world.run(20)
        assert world.job(job_id).phase == "cancelled"
        assert not claims(world)
        assert world.state.nodes.get("node-a").drawn == ()


@pytest.mark.parametrize("lost", range(14))
@pytest.mark.parametrize("answer", ["before", "after"])
async def test_a_binder_that_dies_while_pods_join_a_claim_is_continued_by_another(lost: int, answer: str) -> None:
    async with world_of_devices() as world:
        await run_by_a_second_binder(world, with_one_claim(2), lost, answer)
        (made,) = claims(world)
        users = [user["uid"] for user in made["status"]["reservedFor"]]
        assert sorted(users) == sorted(pod["metadata"]["uid"] for pod in world.pods())


async def test_the_devices_of_a_shared_claim_are_held_until_its_last_pod_has_ended() -> None:
    async with world_of_devices() as world:
        job_id = await world.submit(spec=with_one_claim(2, rank_seconds=15, seconds=5))
        run = world.job(job_id).run_id
        await world.run(10)
        assert [pod["status"]["phase"] for pod in world.pods(run)] == ["Succeeded", "Running"]
        assert [place.rank for place in world.state.runs.get(run).places if place.drawn] == [0]
        await world.run(30)
        assert world.job(job_id).phase == "succeeded"
        assert world.state.nodes.get("node-a").drawn == ()
        assert not claims(world)


async def test_a_pod_that_an_elastic_run_grows_by_has_its_device_before_its_bind_and_leaves_none() -> None:
    async with world_of_devices(policy=Policy(grow_after_seconds=0)) as world:
        spec = with_claims(seconds=60)
        (role,) = spec.roles
        fact = admitted("k1", spec.model_copy(update={"roles": (role.model_copy(update={"max_replicas": 2}),)}))
        await world.commit(fact)
        await world.run(10)
        run = world.current(fact.job_id)
        assert [[d.device for d in place.drawn] for place in run.all_placements] == [["gpu-0"], ["gpu-1"]]
        assert len(world.pods(run.run_id)) == len(claims(world)) == 2
        assert all(pod["spec"].get("nodeName") for pod in world.pods(run.run_id))
        assert all(made["status"]["reservedFor"] and made["status"]["allocation"] for made in claims(world))
        world.core.delete("pods", "lab", f"{run.run_id}-1")
        await world.run(30)
        # Its device is free once its claim is, and the next pod has it.
        assert [place.rank for place in world.current(fact.job_id).places] == [0, 2]
        assert sorted(made["metadata"]["name"] for made in claims(world)) == [f"{run.run_id}-{at}-gpu" for at in (0, 2)]
        await world.commit(CancelRequested(kind="cancel_requested", job_id=fact.job_id, tenant="lab"))
        await world.run(20)
        assert not claims(world)
        assert world.state.nodes.get("node-a").drawn == ()
        report = check(world.books.stored)
        check_rules(report, world.books.stored)
        assert [violation.text for violation in report.violations] == []
