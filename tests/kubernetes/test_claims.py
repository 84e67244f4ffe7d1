"""The binder's hands on claims of devices, with the rights that the chart gives it, on a real API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tessera.binder.claims.calls import PodClaims
from tessera.binder.claims.decide.objects import claim_names_of
from tessera.binder.claims.published import PublishedDevices
from tessera.domain.storing.fast import replace
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ports import ApiError
from tessera.kernel.tasks.task_group import run_beside
from tessera.reclamation.absence.decide import uids_in_use
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_claims import DeviceChoice, DeviceToleration, DriverConfig
from tessera_schemas.cluster.labels import CLAIMS_API, DELETE_PROTECTION, GPU_RESOURCE, RUN_ANNOTATION, RUN_LABEL
from tessera_schemas.job import Resources
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import EXTENDED_CLAIM
from tests.builders import job_spec, placement, role
from tests.kubernetes.control_plane import ControlPlane, wait_until
from tests.kubernetes.deployed import deploy, let_in, token_of
from tests.unit.binder.binder_builders import RUN, node, run
from tests.unit.binder.claim_builders import (
    CLASS,
    DRIVER,
    claim,
    device_claim,
    device_class,
    drawn,
    opaque,
    protected,
    resource_slice,
)

NAMESPACE = "lab"
NODE = "node-a"
ON = replace(node(), name=NODE)
PLACE = replace(placement(devices=(), gpu_milli=0), drawn=(drawn(),))


@pytest.fixture(scope="module")
def shared(plane: ControlPlane) -> ControlPlane:
    """Two whole devices, one with conditions to be bound, and one that is shared."""
    deploy(plane)
    let_in(plane, NAMESPACE)
    api = plane.api()
    memory = {"memory": {"value": "80Gi"}}
    devices = [
        {"name": "gpu-0"},
        {"name": "gpu-1"},
        {"name": "slow", "bindsToNode": True, "bindingConditions": ["up"], "bindingFailureConditions": ["broken"]},
        {"name": "shared", "allowMultipleAllocations": True, "capacity": memory},
    ]
    api.create(resource_slice(NODE, *devices))
    answering = stripped(device_class(CLASS, opaque({"of": "class"})))
    answering["spec"]["extendedResourceName"] = GPU_RESOURCE
    api.create(answering)
    return plane


@pytest.fixture
async def hands(shared: ControlPlane) -> AsyncIterator[PodClaims]:
    async with hands_on(shared) as (claims, _):
        yield claims


@asynccontextmanager
async def hands_on(plane: ControlPlane) -> AsyncIterator[tuple[PodClaims, HttpCluster]]:
    """As the binder has them: by its account alone."""
    cluster, clock = plane.cluster(token=token_of(plane, "binder")), SystemClock()
    published = PublishedDevices(cluster, clock)
    async with run_beside(published.follow()):
        for _ in range(600):
            try:
                published.check_synced()
                break
            except Transient:
                await asyncio.sleep(0.05)
        yield PodClaims(cluster, clock, published), cluster
    await published.close()
    await cluster.close()


async def test_a_pods_own_claim_is_made_reserved_and_goes_with_the_pod(shared: ControlPlane, hands: PodClaims) -> None:
    asked = device_claim(
        "gpu",
        DeviceChoice(device_class=CLASS, tolerations=(DeviceToleration(key="sick", operator="Exists"),)),
        config=(DriverConfig(driver=DRIVER, parameters={"of": "claim"}),),
    )
    pod = add_pod(shared, "own-0", {"name": "gpu", "resourceClaimName": "own-0-gpu"})
    worker = role(gpus=0).model_copy(update={"resources": Resources(cpu_milli=1, memory_bytes=1, claims=(asked,))})
    for _ in range(2):  # the second time as by a binder that died before it said so
        assert await hands.make(pod, worker, ()) is None
        assert await hands.reserve(run(job_spec(worker)), PLACE, pod, ON) is None
    made = get(shared, "own-0-gpu")
    assert made["metadata"]["finalizers"] == [DELETE_PROTECTION]
    assert made["metadata"]["labels"][RUN_LABEL] == RUN
    assert made["status"]["reservedFor"] == [{"resource": "pods", "name": "own-0", "uid": pod["metadata"]["uid"]}]
    allocation = made["status"]["allocation"]
    (result,) = allocation["devices"]["results"]
    assert (result["pool"], result["device"], result["tolerations"][0]["key"]) == (NODE, "gpu-0", "sick")
    assert [one["opaque"]["parameters"] for one in allocation["devices"]["config"]] == [
        {"of": "class"},
        {"of": "claim"},
    ]
    assert allocation["allocationTimestamp"]
    assert uids_in_use(replace(run(), uids=(pod["metadata"]["uid"],)), [made]) == {pod["metadata"]["uid"]}
    shared.api().delete(f"/api/v1/namespaces/{NAMESPACE}/pods/own-0")
    wait_until(lambda: get(shared, "own-0-gpu") == {}, "the claim has gone with its pod")


async def test_a_claim_of_a_template_is_reserved_and_all_of_it_is_undone(
    shared: ControlPlane, hands: PodClaims
) -> None:
    template = {"apiVersion": CLAIMS_API, "kind": "ResourceClaimTemplate"}
    shared.api().create(template | {"metadata": meta("one-gpu"), "spec": {"spec": claim()["spec"]}})
    pod = add_pod(shared, "users-0", {"name": "gpu", "resourceClaimTemplateName": "one-gpu"})
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/users-0"
    wait_until(lambda: bool(claim_names_of(shared.api().get(path))), "the claim is made")
    pod = shared.api().get(path)
    (name,) = claim_names_of(pod)
    before = get(shared, name)
    assert await hands.reserve(run(), PLACE, pod, ON) is None
    assert get(shared, name)["metadata"]["annotations"][RUN_ANNOTATION] == RUN
    for _ in range(2):
        await hands.undo(NAMESPACE, (name,), pod["metadata"]["uid"], RUN)
        after = get(shared, name)
        assert after.get("status", {}) == before.get("status", {}) == {}
        assert "finalizers" not in after["metadata"]
        assert RUN_ANNOTATION not in after["metadata"].get("annotations", {})
    assert await hands.reserve(run(), PLACE, pod, ON) is None  # by the next attempt
    shared.api().delete(path)
    wait_until(lambda: get(shared, name) == {}, "the claim has gone with its pod")


async def test_a_device_of_another_scheduler_is_a_conflict_and_what_it_allocated_stays(
    shared: ControlPlane, hands: PodClaims
) -> None:
    allocate(shared, "theirs", "gpu-1")
    shared.api().create(stripped(claim("ours")))
    pod = add_pod(shared, "late-0", {"name": "gpu", "resourceClaimName": "ours"})
    on_one = replace(PLACE, drawn=(drawn("gpu-1"),))
    against = await hands.reserve(run(), on_one, pod, ON)
    while against is None:  # until the watch shows theirs
        await hands.undo(NAMESPACE, ("ours",), pod["metadata"]["uid"], RUN)
        await asyncio.sleep(0.1)
        against = await hands.reserve(run(), on_one, pod, ON)
    assert isinstance(against, Reason)
    assert against.code is Code.CLAIM_CONFLICT
    assert "claim theirs has device gpu.example.com/node-a/gpu-1" in against.detail
    with_theirs = add_pod(shared, "late-1", {"name": "gpu", "resourceClaimName": "theirs"})
    refused = await hands.reserve(run(), PLACE, with_theirs, ON)
    assert isinstance(refused, Reason)
    assert "it was allocated meanwhile and has gpu.example.com/node-a/gpu-1" in refused.detail
    await hands.undo(NAMESPACE, ("theirs",), with_theirs["metadata"]["uid"], RUN)
    assert get(shared, "theirs")["status"]["allocation"]
    shared.api().patch(f"{path_of('theirs')}/status", {"status": {"allocation": None, "reservedFor": None}})


async def test_pods_of_a_gang_share_a_claim_at_once_and_leave_it_one_by_one(
    shared: ControlPlane, hands: PodClaims
) -> None:
    shared.api().create(stripped(claim("of-all")))
    pods = [add_pod(shared, f"gang-{rank}", {"name": "gpu", "resourceClaimName": "of-all"}) for rank in range(4)]
    assert await asyncio.gather(*(hands.reserve(run(), PLACE, pod, ON) for pod in pods)) == [None] * 4
    uids = [pod["metadata"]["uid"] for pod in pods]
    assert users(get(shared, "of-all")) == set(uids)
    for uid in uids[:3]:
        await hands.undo(NAMESPACE, ("of-all",), uid, RUN)
    left = get(shared, "of-all")
    assert (users(left), bool(left["status"]["allocation"])) == ({uids[3]}, True)
    await hands.undo(NAMESPACE, ("of-all",), uids[3], RUN)
    assert "allocation" not in get(shared, "of-all").get("status", {})


async def test_shares_and_conditions_are_as_the_api_server_wants_them(shared: ControlPlane, hands: PodClaims) -> None:
    shared.api().create(stripped(claim("part")))
    part = add_pod(shared, "part-0", {"name": "gpu", "resourceClaimName": "part"})
    share = drawn("shared", capacity=(("memory", 2**33 * 1000),))
    assert await hands.reserve(run(), replace(PLACE, drawn=(share,)), part, ON) is None
    (result,) = get(shared, "part")["status"]["allocation"]["devices"]["results"]
    assert (len(result["shareID"]), result["consumedCapacity"]) == (36, {"memory": str(2**33)})

    shared.api().create(stripped(claim("slow")))
    slow = add_pod(shared, "slow-0", {"name": "gpu", "resourceClaimName": "slow"})
    on_slow = replace(PLACE, drawn=(drawn("slow"),))
    with pytest.raises(Transient, match=r"gpu\.example\.com/node-a/slow is being made ready"):
        await hands.reserve(run(), on_slow, slow, ON)
    say(shared, "slow", "up")
    assert await hands.reserve(run(), on_slow, slow, ON) is None
    await hands.undo(NAMESPACE, ("slow",), slow["metadata"]["uid"], RUN)
    assert get(shared, "slow").get("status", {}) == {}


async def test_what_a_pod_counts_on_is_a_claim_that_its_status_names_and_all_of_it_is_undone(
    shared: ControlPlane, hands: PodClaims
) -> None:
    pod = add_counting_pod(shared, "counts-0", 2)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/counts-0"
    on_two = replace(PLACE, drawn=tuple(drawn(f"gpu-{at}", EXTENDED_CLAIM, GPU_RESOURCE) for at in range(2)))
    for _ in range(2):  # the second time as by a binder that died before it bound
        assert await hands.reserve(run(), on_two, pod, ON) is None
        pod = shared.api().get(path)
        said = pod["status"]["extendedResourceClaimStatus"]
        (name,) = claim_names_of(pod)
        assert said["resourceClaimName"] == name
        made = get(shared, name)
        (request,) = made["spec"]["devices"]["requests"]
        assert (request["exactly"]["deviceClassName"], request["exactly"]["count"]) == (CLASS, 2)
        asked = {"containerName": "main", "resourceName": GPU_RESOURCE, "requestName": request["name"]}
        assert said["requestMappings"] == [asked]
        assert made["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true"
        results = made["status"]["allocation"]["devices"]["results"]
        assert [(one["request"], one["device"]) for one in results] == [
            (request["name"], f"gpu-{at}") for at in range(2)
        ]
        assert users(made) == {pod["metadata"]["uid"]}
    await hands.undo(NAMESPACE, (name,), pod["metadata"]["uid"], RUN)
    assert "allocation" not in get(shared, name).get("status", {})
    # The next attempt of a user's pod, on a node whose device plugin answers.
    assert await hands.reserve(run(), replace(PLACE, drawn=()), pod, ON) is None
    assert "extendedResourceClaimStatus" not in shared.api().get(path)["status"]
    wrong = replace(PLACE, drawn=on_two.drawn[:1])
    refused = await hands.reserve(run(), wrong, pod, ON)
    assert isinstance(refused, Reason)
    assert refused.detail == f"1 devices were chosen for 2 of {GPU_RESOURCE}"
    shared.api().delete(path)
    wait_until(lambda: get(shared, name) == {}, "the claim has gone with its pod")


@pytest.mark.parametrize("calls", range(1, 5))
async def test_whatever_call_a_binder_dies_before_the_next_one_goes_on_and_no_claim_has_devices_unnamed(
    shared: ControlPlane, calls: int
) -> None:
    """Made, named, protected and allocated, in this order."""
    name = f"dies-{calls}"
    pod = add_counting_pod(shared, name, 1)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
    place = replace(PLACE, drawn=(drawn("gpu-0", EXTENDED_CLAIM, GPU_RESOURCE),))
    async with hands_on(shared) as (claims, cluster):
        left = calls

        def dying(write: Any) -> Any:
            async def call(*args: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise ConnectionError("dead")
                return await write(*args)

            return call

        for write in ("create_object", "patch_object", "patch_status", "patch_pod_status"):
            setattr(cluster, write, dying(getattr(cluster, write)))
        if calls < 4:
            with pytest.raises(ConnectionError):
                await claims.reserve(run(), place, pod, ON)
        else:
            assert await claims.reserve(run(), place, pod, ON) is None
    found = shared.api().get(path)
    named = claim_names_of(found)
    had = [one for one in owned(shared, found) if (one.get("status") or {}).get("allocation")]
    assert len(owned(shared, found)) == 1
    assert [one["metadata"]["name"] for one in had] == list(named if calls == 4 else ())
    async with hands_on(shared) as (claims, _):
        assert await claims.reserve(run(), place, found, ON) is None
        found = shared.api().get(path)
        assert [one["metadata"]["name"] for one in owned(shared, found)] == list(claim_names_of(found))
        await claims.undo(NAMESPACE, claim_names_of(found), found["metadata"]["uid"], RUN)
    shared.api().delete(path)
    wait_until(lambda: not owned(shared, found), "the claim has gone with its pod")


async def test_the_right_of_the_whole_cluster_writes_no_claim_where_no_namespace_binds_the_role(
    shared: ControlPlane,
) -> None:
    shared.add_namespace("no-tenant")
    shared.api().create(stripped(claim("strange"), "no-tenant"))
    async with hands_on(shared) as (_, cluster):
        for write in (cluster.patch_object, cluster.patch_status):
            with pytest.raises(ApiError) as refused:
                await write(CLAIMS_API, "ResourceClaim", "no-tenant", "strange", {"status": {"reservedFor": []}})
            assert refused.value.status == 403


# -- what others do


def meta(name: str, namespace: str = NAMESPACE) -> Json:
    return {"name": name, "namespace": namespace}


def stripped(obj: Json, namespace: str = NAMESPACE) -> Json:
    """The object as it is sent: the server says UID and version."""
    named = {"name": obj["metadata"]["name"]}
    return obj | {"metadata": named if obj["kind"] == "DeviceClass" else named | {"namespace": namespace}}


def add_pod(plane: ControlPlane, name: str, *claims: Json) -> Json:
    """Unbound, and seen by nobody but our hands."""
    container = {"name": "main", "image": "img", "resources": {"claims": [{"name": one["name"]} for one in claims]}}
    pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": meta(name) | {"labels": {RUN_LABEL: RUN}}}
    return plane.api().create(
        pod | {"spec": {"schedulerName": "tessera", "containers": [container], "resourceClaims": list(claims)}}
    )


def add_counting_pod(plane: ControlPlane, name: str, gpus: int) -> Json:
    """The same, of a pod that counts on GPUs."""
    resources = {"limits": {GPU_RESOURCE: str(gpus)}}
    container = {"name": "main", "image": "img", "resources": resources}
    pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": meta(name) | {"labels": {RUN_LABEL: RUN}}}
    return plane.api().create(pod | {"spec": {"schedulerName": "tessera", "containers": [container]}})


def owned(plane: ControlPlane, pod: Json) -> list[Json]:
    """The claims of a pod."""
    there: list[Json] = plane.api().items(f"/apis/{CLAIMS_API}/namespaces/{NAMESPACE}/resourceclaims")
    uid = pod["metadata"]["uid"]
    return [one for one in there if uid in {owner["uid"] for owner in one["metadata"].get("ownerReferences", ())}]


def path_of(name: str) -> str:
    return f"/apis/{CLAIMS_API}/namespaces/{NAMESPACE}/resourceclaims/{name}"


def get(plane: ControlPlane, name: str) -> Json:
    try:
        return plane.api().get(path_of(name))
    except ApiError as error:
        if error.status != 404:
            raise
        return {}


def allocate(plane: ControlPlane, name: str, device: str) -> None:
    """As another scheduler does."""
    user = plane.api().create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta(f"of-{name}")}
        | {"spec": {"schedulerName": "another", "containers": [{"name": "main", "image": "img"}]}}
    )
    wanted = stripped(claim(name))
    wanted["metadata"] |= {"finalizers": protected(claim())["metadata"]["finalizers"]}
    plane.api().create(wanted)
    result = {"request": "one", "driver": DRIVER, "pool": NODE, "device": device}
    reserved = [{"resource": "pods", "name": f"of-{name}", "uid": user["metadata"]["uid"]}]
    status: dict[str, Any] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
    plane.api().patch(f"{path_of(name)}/status", {"status": status})


def say(plane: ControlPlane, name: str, condition: str) -> None:
    """As a driver does of the one device of a claim."""
    (result,) = get(plane, name)["status"]["allocation"]["devices"]["results"]
    said = {
        "type": condition,
        "status": "True",
        "reason": "Said",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    device = {key: result[key] for key in ("driver", "pool", "device")} | {"conditions": [said]}
    plane.api().patch(f"{path_of(name)}/status", {"status": {"devices": [device]}})


def users(found: Json) -> set[str]:
    return {one["uid"] for one in found["status"]["reservedFor"]}
