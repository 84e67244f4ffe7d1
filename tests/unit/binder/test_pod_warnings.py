"""What keeps pods from network and volumes, which kubelets say in events alone: how it is read, and what follows."""

from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from tessera.binder.decide.starting import Halt, PodMemory, delay_of, is_silent, is_to_ask, read_start
from tessera.binder.decide.warnings import read_warning
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_local.cluster.machines.accidents import NO_SANDBOX
from tessera_schemas.base import Json
from tessera_schemas.config import Policy
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import NodeBackedOff, Revoked
from tessera_schemas.reasons import Code
from tests.builders import admitted
from tests.unit.binder.cluster_world import World, train

SANDBOX, MOUNT, ATTACH = "FailedCreatePodSandBox", "FailedMount", "FailedAttachVolume"
NO_CONFIG_MAP = 'MountVolume.SetUp failed for volume "settings" : configmap "train-settings" not found'
NO_SECRET = 'MountVolume.SetUp failed for volume "s" : secret "token" not found'
NO_KEY = 'MountVolume.SetUp failed for volume "s" : references non-existent secret key: api-key'
NO_CLAIM = (
    "Unable to attach or mount volumes: unmounted volumes=[d], unattached volumes=[], failed to process volumes=[d]: "
    'error processing PVC lab/d: failed to fetch PVC from API server: persistentvolumeclaims "d" not found'
)
NO_DRIVER = (
    'MountVolume.MountDevice failed for volume "d": driver name csi.x not found in the list of registered drivers'
)
NO_SERVER = 'MountVolume.SetUp failed for volume "d" : mount failed: exit status 32: mount.nfs: Connection timed out'
SUMMARY = (
    "Unable to attach or mount volumes: unmounted volumes=[settings], unattached volumes=[settings], "
    "failed to process volumes=[]: timed out waiting for the condition"
)
ELSEWHERE = 'Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node'


def event(reason: str, message: str = "why", at: int = 10, host: str = "node-a", **more: Any) -> Json:
    return {
        "metadata": {"name": f"p.{reason}"},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "source": {"component": "kubelet", "host": host},
        "lastTimestamp": f"2026-01-01T00:00:{at:02}Z",
        **more,
    }


NEWER_FORM = {
    "source": {},
    "lastTimestamp": None,
    "eventTime": "2026-01-01T00:00:01.000000Z",
    "series": {"count": 9, "lastObservedTime": "2026-01-01T00:00:30.500000Z"},
    "reportingComponent": "kubelet",
    "reportingInstance": "node-a",
}
BY_CONTROLLER = {"source": {"component": "attachdetach-controller"}}
READ: list[tuple[str, list[Json], tuple[str, str] | None]] = [
    ("nothing", [], None),
    ("the newest", [event(MOUNT, NO_SERVER, 20), event(SANDBOX, "no network", 10)], (MOUNT, NO_SERVER)),
    ("the newest, of both forms", [event(MOUNT, at=20), event(SANDBOX, "x", **NEWER_FORM)], (SANDBOX, "x")),
    (
        "what tells more than that time is over",
        [event(MOUNT, NO_CONFIG_MAP), event(MOUNT, SUMMARY, 50)],
        (MOUNT, NO_CONFIG_MAP),
    ),
    ("that time is over, where nothing tells more", [event(MOUNT, SUMMARY)], (MOUNT, SUMMARY)),
    ("a controller that cannot attach", [event(ATTACH, ELSEWHERE, **BY_CONTROLLER)], (ATTACH, ELSEWHERE)),
    ("one line of it", [event(MOUNT, "mount failed\nOutput:  busy\n")], (MOUNT, "mount failed Output: busy")),
    ("no trouble that is over", [event(SANDBOX), event("Pulling", at=10, type="Normal")], None),
    ("trouble that came back", [event("Pulling", at=10, type="Normal"), event(SANDBOX, at=11)], (SANDBOX, "why")),
    ("no other trouble", [event("FailedScheduling"), event("Unhealthy")], None),
    ("nobody else", [event(SANDBOX, source={"component": "my-operator"})], None),
    ("no other node", [event(SANDBOX, host="node-b")], None),
    ("nothing without a time", [event(SANDBOX, lastTimestamp=None)], (SANDBOX, "why")),
    ("nothing in what is no event", [{"metadata": {"name": "p.1"}, "source": None, "series": None}], None),
]


@pytest.mark.parametrize(("events", "read"), [r[1:] for r in READ], ids=[r[0] for r in READ])
def test_of_a_pods_events_is_read(events: list[Json], read: tuple[str, str] | None) -> None:
    assert read_warning(events, "node-a") == read


JUDGED = [
    (SANDBOX, NO_SANDBOX, Code.START_TIMEOUT),
    ("FailedCreatePodContainer", "no cgroup", Code.START_TIMEOUT),
    (MOUNT, NO_SERVER, Code.START_TIMEOUT),
    (MOUNT, NO_DRIVER, Code.START_TIMEOUT),
    (MOUNT, SUMMARY, Code.START_TIMEOUT),
    (ATTACH, "AttachVolume.Attach failed: rpc error", Code.START_TIMEOUT),
    (ATTACH, ELSEWHERE, Code.VOLUME_NOT_READY),
    (MOUNT, NO_CONFIG_MAP, Code.BIND_REFUSED),
    (MOUNT, NO_SECRET, Code.BIND_REFUSED),
    (MOUNT, NO_KEY, Code.BIND_REFUSED),
    (MOUNT, NO_CLAIM, Code.BIND_REFUSED),
]
CREATING = {
    "phase": "Pending",
    "containerStatuses": [{"name": "m", "state": {"waiting": {"reason": "ContainerCreating"}}}],
}
PULLS = {**CREATING, "conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]}


@pytest.mark.parametrize(("reason", "message", "code"), JUDGED)
def test_what_a_kubelet_lacks_is_the_nodes_or_around_the_job(reason: str, message: str, code: Code) -> None:
    memory = PodMemory(0.0, warning=Halt("", "", reason, message))
    delay = delay_of(3, "p", "node-a", read_start({"status": CREATING}), memory, 11.0, stuck=30.0)
    assert delay is not None
    assert (delay.reason.code, delay.reason.numbers, delay.believed) == (code, {"rank": 3}, False)
    assert delay.reason.detail == f"p on node-a: {reason}: {message}"[:480]


FULL = 'failed to pull and unpack image "train:1": write /var/lib/blob: no space left on device'
AFTER_A_MINUTE = [False, False, True]


@pytest.mark.parametrize(
    ("reason", "message", "believed"),
    [
        (MOUNT, NO_CONFIG_MAP, AFTER_A_MINUTE),
        (SANDBOX, NO_SANDBOX, AFTER_A_MINUTE),
        (MOUNT, NO_SERVER, [False] * 3),
    ],
)
def test_what_is_not_there_and_what_no_node_makes_is_believed_after_a_minute_and_a_late_volume_never(
    reason: str, message: str, believed: list[bool]
) -> None:
    memory = PodMemory(0.0, warning=Halt("", "", reason, message))
    seen = [delay_of(0, "p", "a", read_start({"status": CREATING}), memory, at, 30.0) for at in (10.0, 69.0, 71.0)]
    assert [delay is not None and delay.believed for delay in seen] == believed


def test_a_node_is_named_as_slow_no_earlier_than_one_that_says_nothing() -> None:
    memory = PodMemory(0.0, warning=Halt("", "", MOUNT, NO_SERVER))
    seen = [delay_of(0, "p", "a", read_start({"status": CREATING}), memory, at, 30.0) for at in (10.0, 29.0, 30.0)]
    assert [delay is not None and delay.node for delay in seen] == ["", "", "a"]


async def test_a_mount_that_is_only_late_does_not_hide_a_node_that_starts_nothing() -> None:
    async with world(60) as there:
        there.core.set_preparing_nothing("node-a")
        await bound(there, train(gpus=8))
        await there.run(42)
        there.core.set_preparing_nothing("node-b", NO_SERVER, MOUNT)
        late = await bound(there, train(gpus=8), "k2")
        await there.run(12)
        told = there.job(late).reason
        assert told is not None
        assert NO_SERVER in told.detail
        await there.run(8)
        assert [(revoke.reason.code, revoke.avoid) for revoke in revokes(there)] == [(Code.START_TIMEOUT, ("node-a",))]


def test_a_pod_that_is_worked_on_has_overcome_what_was_said_of_it() -> None:
    memory = PodMemory(0.0, warning=Halt("", "", SANDBOX, NO_SANDBOX))
    assert delay_of(0, "p", "a", read_start({"status": PULLS}), memory, 11.0, stuck=30.0) is None
    assert memory.warning is None


def test_events_are_asked_for_after_ten_seconds_and_less_and_less_often_while_the_status_says_nothing() -> None:
    memory, asked = PodMemory(0.0), []
    for at in range(400):
        if is_to_ask(memory, float(at), stuck=30.0):
            memory.asked, memory.asks = float(at), memory.asks + 1
            asked.append(at)
    assert asked == [10, 30, 70, 130, 190, 250, 310, 370]
    assert is_silent(read_start({"status": CREATING}), memory, 400.0)
    assert not is_silent(read_start({"status": PULLS}), memory, 400.0)


def test_who_has_little_time_asks_early() -> None:
    assert is_to_ask(PodMemory(0.0), 1.0, stuck=3.0)


# -- through binder and committer


def world(seconds: int = 60, nodes: tuple[str, ...] = ("node-a", "node-b"), **settings: Any) -> World:
    return World(nodes, Policy(node_lost_seconds=30, start_timeout_seconds=seconds), **settings)


async def bound(there: World, spec: JobSpec, key: str = "k1") -> str:
    fact = admitted(key, spec)
    await there.commit(fact)
    await there.run(3)
    assert there.current(fact.job_id).bound
    return fact.job_id


def revokes(there: World) -> list[Revoked]:
    return [record for record in there.records if isinstance(record, Revoked)]


def backed_off(there: World) -> list[NodeBackedOff]:
    return [record for record in there.records if isinstance(record, NodeBackedOff)]


async def test_jobs_leave_a_node_that_fails_sandboxes_at_no_cost_and_it_takes_nobody_for_a_time_that_doubles() -> None:
    async with world(20) as there:
        there.core.set_preparing_nothing("node-a")
        fact = admitted("k1", train(gpus=8))
        await there.commit(fact)
        await there.run(3)
        assert there.nodes_of(fact.job_id) == {"node-a"}
        await there.run(5)
        told = there.job(fact.job_id).reason
        assert told is not None
        assert told.code is Code.START_TIMEOUT
        assert f"on node-a: {SANDBOX}: Failed to create pod sandbox" in told.detail
        await there.run(20)
        (revoke,) = revokes(there)
        assert (revoke.reason.code, revoke.avoid, revoke.then) == (Code.START_TIMEOUT, ("node-a",), "requeue")
        assert f"on node-a: {SANDBOX}: " in revoke.reason.detail
        job = there.job(fact.job_id)
        assert (job.phase, job.strikes, there.nodes_of(fact.job_id)) == ("running", 0, {"node-b"})
        other = admitted("k2", train(gpus=8))
        await there.commit(other)
        await there.run(90)
        assert [record.times for record in backed_off(there)][:3] == [1, 2, 3]
        assert {record.node for record in backed_off(there)} == {"node-a"}
        assert SANDBOX in backed_off(there)[-1].reason.detail
        there.core.set_preparing_nothing("node-a", "")
        await there.run(60)
        assert there.job(other.job_id).phase == "running"
        assert there.state.backoffs.get("node-a") is None


async def test_a_node_that_makes_no_sandbox_gives_its_gpus_back_long_before_a_long_start_is_over() -> None:
    async with world(1800) as there:
        there.core.set_preparing_nothing("node-a")
        job = await bound(there, train(gpus=8))
        await there.run(80)
        (revoke,) = revokes(there)
        assert (revoke.reason.code, revoke.avoid, revoke.then) == (Code.START_TIMEOUT, ("node-a",), "requeue")
        assert [record.node for record in backed_off(there)] == ["node-a"]
        assert (there.job(job).phase, there.job(job).strikes, there.nodes_of(job)) == ("running", 0, {"node-b"})


async def test_several_nodes_that_make_no_sandbox_are_their_networks_and_none_of_them_is_kept_from_use() -> None:
    async with world(1800) as there:
        for node in ("node-a", "node-b"):
            there.core.set_preparing_nothing(node)
        await bound(there, train(replicas=2, gpus=8))
        await there.run(80)
        (revoke,) = revokes(there)
        assert (revoke.reason.code, revoke.avoid, backed_off(there)) == (Code.STARTS_STALL, (), [])
        report = Report()
        check_rules(report, there.books.stored)
        assert not report.violations


async def test_a_node_without_room_for_the_image_is_at_fault_itself_and_no_registry() -> None:
    async with world(1800) as there:
        there.core.set_images_out(node="node-a", why=FULL)
        job = await bound(there, train(gpus=8))
        await there.run(80)
        (revoke,) = revokes(there)
        assert (revoke.reason.code, revoke.avoid) == (Code.START_TIMEOUT, ("node-a",))
        assert "no space left on device" in revoke.reason.detail
        assert [record.node for record in backed_off(there)] == ["node-a"]
        assert there.nodes_of(job) == {"node-b"}


async def test_a_config_map_that_does_not_exist_is_named_and_no_node_is_blamed() -> None:
    async with world(600) as there:
        for node in ("node-a", "node-b"):
            there.core.set_preparing_nothing(node, NO_CONFIG_MAP, MOUNT)
        job = await bound(there, train(replicas=2, gpus=8))
        await there.run(12)
        told = there.job(job).reason
        assert told is not None
        assert told.code is Code.BIND_REFUSED
        assert 'configmap "train-settings" not found' in told.detail
        await there.run(62)
        (revoke,) = revokes(there)
        assert (revoke.reason.code, revoke.avoid, revoke.then) == (Code.BIND_REFUSED, (), "requeue")
        assert "train-settings" in revoke.reason.detail
        assert (there.job(job).strikes, there.job(job).avoid, backed_off(there)) == (0, (), [])


async def test_a_volume_that_is_attached_elsewhere_is_waited_for_and_no_node_is_blamed() -> None:
    async with world(20) as there:
        there.core.set_preparing_nothing("node-a", ELSEWHERE, ATTACH)
        await bound(there, train(gpus=8))
        await there.run(20)
        (revoke,) = revokes(there)
        assert (revoke.reason.code, revoke.avoid, backed_off(there)) == (Code.VOLUME_NOT_READY, (), [])


async def test_who_may_not_read_events_says_so_once_and_goes_on_as_without() -> None:
    async with world(60) as there:
        there.api.hides_events = True
        there.core.set_preparing_nothing("node-a")
        with capture_logs() as logs:
            job = await bound(there, train(gpus=8))
            await there.run(70)
        assert there.api.events_asked > 1
        assert [one["log_level"] for one in logs if one["event"] == "events_not_read"] == ["warning"]
        (revoke,) = revokes(there)
        assert (revoke.reason.code, revoke.avoid) == (Code.START_TIMEOUT, ("node-a",))
        assert "no container of it was created" in revoke.reason.detail
        assert there.job(job).phase == "running"


async def test_a_trouble_that_passes_leaves_nothing_behind() -> None:
    async with world(60) as there:
        there.core.set_preparing_nothing("node-a")
        job = await bound(there, train(gpus=8))
        await there.run(12)
        assert there.job(job).reason is not None
        there.core.set_preparing_nothing("node-a", "")
        await there.run(5)
        assert (there.job(job).phase, there.job(job).reason, backed_off(there)) == ("running", None, [])


async def test_of_a_gang_one_pod_on_each_node_is_asked_about_and_no_more_than_so_many_a_second() -> None:
    async with world(600, nodes=("node-a", "node-b", "node-c"), pod_warnings_per_second=1.0) as there:
        for node in ("node-a", "node-b", "node-c"):
            there.core.set_preparing_nothing(node)
        await bound(there, train(replicas=24, gpus=1))
        counts = []
        for _ in range(20):
            await there.run(1)
            counts.append(there.api.events_asked)
        assert counts[-1] == 3
        assert max(after - before for before, after in pairwise(counts)) == 1


async def test_the_pod_of_which_something_is_said_is_told_before_one_that_is_only_late() -> None:
    async with world(600) as there:
        there.core.set_starting_nothing("node-a", True)
        there.core.set_preparing_nothing("node-b")
        job = await bound(there, train(replicas=2, gpus=8))
        await there.run(40)
        told = there.job(job).reason
        assert told is not None
        assert f"on node-b: {SANDBOX}: " in told.detail


async def test_with_none_a_second_no_event_is_read() -> None:
    async with world(60, pod_warnings_per_second=0.0) as there:
        there.core.set_preparing_nothing("node-a")
        await bound(there, train(gpus=8))
        await there.run(40)
        assert there.api.events_asked == 0


async def test_nothing_is_asked_about_pods_that_start() -> None:
    async with world(60) as there:
        await there.submit()
        await there.run(60)
        assert there.api.events_asked == 0
