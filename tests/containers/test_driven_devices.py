"""
Devices that a real driver publishes beside a real kubelet: containers see those that the ledger names, and when all has
ended the driver has nothing prepared.
"""

import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
import pytest_asyncio

from tessera_schemas.config import Policy
from tessera_schemas.job import JobSpec, Retry, Template
from tests.containers.node import DRIVEN, DRIVER, IMAGE, Driver, Host, Node, NoNode, api_flags, bridge
from tests.e2e.live import configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes import binaries
from tests.kubernetes.conftest import running
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users
from tests.kubernetes.users_objects import Json, batch_job
from tests.published_devices import claim

pytestmark = pytest.mark.asyncio(loop_scope="module")
GPUS = 2
PROGRAM = """\
env | grep -E '^GPU_DEVICE_[0-9]+=' | sort
echo these
until [ -e /tmp/go ]; do sleep 0.1; done
exit {code}
"""
TEMPLATE: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpu"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}},
}


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Driver]]:
    """A cluster of one node, whose GPUs a driver publishes."""
    folder = tmp_path_factory.mktemp("kubernetes")
    try:
        with (
            bridge(DRIVEN),
            running(folder, address=DRIVEN.address, api_flags=api_flags(folder), kubelets=False) as plane,
            Node(plane, tmp_path_factory.mktemp("node"), host=Host.here(DRIVEN), for_drivers=True) as node,
            Driver(plane, node, GPUS) as driver,
        ):
            yield plane, driver
    except (NoNode, binaries.Unavailable) as why:
        pytest.skip(str(why))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    driven: tuple[ControlPlane, Driver], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubernetesLive]:
    """A higher class evicts a lower one at once."""
    body = configuration(policy=Policy(preset="priority", min_runtime_seconds=0))
    plane, _ = driven
    async with live_on(plane, tmp_path_factory.mktemp("platform"), body) as live:
        Users(live).create(TEMPLATE)
        yield live


@dataclass(frozen=True)
class Seats:
    """What the ledger, the API server, the driver and the containers say of devices."""

    live: KubernetesLive
    driver: Driver
    users: Users

    def drawn(self, job_id: str) -> list[list[str]]:
        """The devices of each pod of a job that runs, by rank, in the ledger."""
        (run,) = (run for run in self.live.state.runs.values() if run.job_id == job_id)
        return [sorted(device.device for device in placement.drawn) for placement in run.placements]

    async def shown(self, pod: str) -> list[str]:
        """The devices that a pod's container found in its environment."""
        said = ""

        def is_whole() -> bool:
            nonlocal said
            found = self.users.pod(pod)
            if found is None or found["status"].get("phase") != "Running":
                return False
            said = self.users.kubectl("logs", "--namespace", self.users.namespace, pod)
            return "these" in said

        await eventually(is_whole, f"the container of {pod} says what it has")
        return [line.partition("=")[2] for line in said.splitlines()[:-1]]

    def let_go(self, *pods: str) -> None:
        for pod in pods:
            self.users.kubectl("exec", "--namespace", self.users.namespace, pod, "--", "touch", "/tmp/go")

    def claims(self) -> dict[str, list[str]]:
        """The devices of every claim that is allocated, by its UID."""
        found = self.users.api.items(f"/apis/resource.k8s.io/v1/namespaces/{self.users.namespace}/resourceclaims")
        return {
            one["metadata"]["uid"]: sorted(each["device"] for each in one["status"]["allocation"]["devices"]["results"])
            for one in found
            if one.get("status", {}).get("allocation")
        }

    async def sees(self, job_id: str, *pods: str) -> list[list[str]]:
        """The devices of each pod, once its container, the ledger, its claim and the driver agree on them."""
        shown = [await self.shown(pod) for pod in pods]
        assert shown == self.drawn(job_id)
        prepared = self.driver.prepared()
        assert all(devices in prepared.values() for devices in shown)
        assert set(Counter(chain.from_iterable(prepared.values())).values()) == {1}
        assert prepared.items() <= self.claims().items()
        return shown

    async def nothing_is_left(self) -> None:
        """No claim, and nothing that the driver has prepared; the books agree with themselves."""
        await eventually(lambda: self.claims() == {}, "no claim has a device")
        assert self.driver.prepared() == {}
        assert self.driver.edits() == []
        await assert_all_is_well(self.live)


@pytest.fixture
def seats(live: KubernetesLive, driven: tuple[ControlPlane, Driver]) -> Seats:
    return Seats(live, driven[1], Users(live))


def claiming(name: str, gpus: int = 1, code: int = 0, **more: Any) -> JobSpec:
    """A job whose pods say which devices they have, wait until they are let go, and end with this code."""
    spec = job(name, gpus=0, **more)
    template = Template(image=IMAGE, command=("sh", "-c", PROGRAM.format(code=code)))
    resources = spec.roles[0].resources.model_copy(update={"cpu_milli": 100, "claims": (claim(count=gpus),)})
    role = spec.roles[0].model_copy(update={"template": template, "resources": resources})
    return spec.model_copy(update={"roles": (role,)})


async def test_a_gang_of_two_sees_a_device_each(live: KubernetesLive, seats: Seats) -> None:
    job_id = (await live.submit(claiming("gang", replicas=2))).job_id
    pods = (f"{job_id}-1-0", f"{job_id}-1-1")
    assert sorted(await seats.sees(job_id, *pods)) == [["gpu-0"], ["gpu-1"]]
    seats.let_go(*pods)
    await live.until_ended(job_id)
    assert live.phase(job_id) == "succeeded"
    await seats.nothing_is_left()


async def test_a_job_that_fails_leaves_nothing_prepared(live: KubernetesLive, seats: Seats) -> None:
    done = await live.submit(claiming("fails", gpus=2, code=3, retry=Retry(max_attempts=1)))
    pod = f"{done.job_id}-1-0"
    assert await seats.sees(done.job_id, pod) == [["gpu-0", "gpu-1"]]
    seats.let_go(pod)
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "failed"
    await seats.nothing_is_left()


async def test_a_preempted_job_gives_its_devices_up_and_has_them_again(live: KubernetesLive, seats: Seats) -> None:
    low = (await live.submit(claiming("low", gpus=2, priority_class="low"))).job_id
    assert await seats.sees(low, f"{low}-1-0") == [["gpu-0", "gpu-1"]]
    urgent = (await live.submit(claiming("urgent", gpus=1, priority_class="urgent"))).job_id
    assert await seats.sees(urgent, f"{urgent}-1-0") in ([["gpu-0"]], [["gpu-1"]])
    assert live.phase(low) == "queued"
    assert len(seats.driver.prepared()) == 1
    seats.let_go(f"{urgent}-1-0")
    assert await seats.sees(low, f"{low}-2-0") == [["gpu-0", "gpu-1"]]
    seats.let_go(f"{low}-2-0")
    await live.until_ended(low, urgent)
    assert {live.phase(job_id) for job_id in (low, urgent)} == {"succeeded"}
    await seats.nothing_is_left()


async def test_a_users_job_sees_the_devices_of_its_claims(live: KubernetesLive, seats: Seats) -> None:
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["sh", "-c", PROGRAM.format(code=0)],
        "resources": {"requests": {"cpu": "100m"}, "claims": [{"name": "gpu"}]},
    }
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    seats.users.create(batch_job("users", template={"containers": [container], "resourceClaims": claims}))
    pod = (await seats.users.until_running("users"))["metadata"]["name"]
    (job_id,) = {run.job_id for run in live.state.runs.values()}
    assert await seats.sees(job_id, pod) in ([["gpu-0"]], [["gpu-1"]])
    seats.let_go(pod)
    await seats.users.until_complete("users")
    seats.users.delete("job", "users")
    await live.until_ended(job_id)
    await seats.nothing_is_left()


async def test_a_device_is_given_again_only_when_the_driver_has_unprepared_it(
    live: KubernetesLive, seats: Seats
) -> None:
    first = (await live.submit(claiming("first", gpus=2))).job_id
    await seats.sees(first, f"{first}-1-0")
    before = seats.claims()
    second = (await live.submit(claiming("second", gpus=2))).job_id
    seats.driver.process.freeze()
    try:
        seats.let_go(f"{first}-1-0")
        await eventually(lambda: has_ended(seats.users.pod(f"{first}-1-0")), "its container has ended")
        other = (await live.submit(without_claims("other"))).job_id
        await live.until_ended(other)  # so whoever gives devices out had the time to
        assert (live.phase(first), live.phase(second)) == ("running", "queued")
        assert seats.claims() == seats.driver.prepared() == before
    finally:
        seats.driver.process.thaw()
    assert await seats.sees(second, f"{second}-1-0") == [["gpu-0", "gpu-1"]]
    assert seats.claims().keys().isdisjoint(before)
    seats.let_go(f"{second}-1-0")
    await live.until_ended(first, second)
    assert {live.phase(job_id) for job_id in (first, second, other)} == {"succeeded"}
    await seats.nothing_is_left()


async def test_what_runs_goes_on_when_the_driver_is_killed_and_what_comes_starts_once_it_is_back(
    live: KubernetesLive, seats: Seats
) -> None:
    first = (await live.submit(claiming("stays", gpus=1))).job_id
    has = await seats.sees(first, f"{first}-1-0")
    seats.driver.process.stop(signal.SIGKILL)
    second = (await live.submit(claiming("comes", gpus=1))).job_id
    await eventually(lambda: is_bound(seats.users.pod(f"{second}-1-0")), "the second pod is bound")
    seats.driver.process.start()
    assert sorted([*has, *await seats.sees(second, f"{second}-1-0")]) == [["gpu-0"], ["gpu-1"]]
    assert await seats.sees(first, f"{first}-1-0") == has
    seats.let_go(f"{first}-1-0", f"{second}-1-0")
    await live.until_ended(first, second)
    assert {live.phase(job_id) for job_id in (first, second)} == {"succeeded"}
    await seats.nothing_is_left()


def without_claims(name: str) -> JobSpec:
    """A job of one real pod that ends at once."""
    spec = claiming(name)
    resources = spec.roles[0].resources.model_copy(update={"claims": ()})
    template = Template(image=IMAGE, command=("true",))
    role = spec.roles[0].model_copy(update={"resources": resources, "template": template})
    return spec.model_copy(update={"roles": (role,)})


def has_ended(pod: Json | None) -> bool:
    """Tells whether the kubelet says of the pod's container that it has ended."""
    statuses = (pod or {}).get("status", {}).get("containerStatuses", [])
    return any("terminated" in one["state"] for one in statuses)


def is_bound(pod: Json | None) -> bool:
    return bool((pod or {}).get("spec", {}).get("nodeName"))
