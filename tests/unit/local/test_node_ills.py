"""What happens to pods on machines that fail, are turned off, refuse or start nothing, in a real cluster's words."""

from contextlib import nullcontext
from typing import Any

import orjson
import pytest

from tessera.kernel.ports import ApiError
from tessera_local.cluster.api.admin import apply_fault
from tessera_local.cluster.machines.pod_statuses import Left
from tests.unit.local.cluster_world import NS, World, annotations

IMAGE = "registry.example/team/train:1"


def condition(world: World, name: str, kind: str = "DisruptionTarget") -> tuple[str, str]:
    found = [one for one in world.status(name).get("conditions", ()) if one["type"] == kind]
    return (found[0]["status"], found[0].get("reason", "")) if found else ("", "")


def state(world: World, name: str, key: str = "containerStatuses") -> dict[str, Any]:
    """State of the pod's first container."""
    found: dict[str, Any] = world.status(name)[key][0]["state"]
    return found


def node(world: World, name: str = "n1") -> dict[str, Any]:
    found: dict[str, Any] = world.core.get("nodes", "", name).object
    return found


def taints(world: World, name: str = "n1") -> list[tuple[str, str]]:
    return [(one["key"], one["effect"]) for one in node(world, name)["spec"].get("taints", ())]


def bind(world: World, name: str, tolerations: tuple[dict[str, Any], ...] = (), **more: Any) -> None:
    """A pod of one container with an image, on n1."""
    notes = {"simulate_seconds": "60"} | more.pop("notes", {})
    containers = [{"name": "main", "image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    spec = {"containers": containers, "tolerations": list(tolerations), **more}
    meta = {"name": name, "annotations": annotations(notes), "finalizers": ["tessera.io/held"]}
    world.core.create("pods", NS, {"metadata": meta, "spec": spec})
    world.core.bind(NS, name, {"target": {"name": "n1"}})


@pytest.fixture
def world() -> World:
    world = World()
    world.node()
    return world


# -- who ends pods ------------------------------------------------------------------------------------------------


def test_an_eviction_through_the_api_marks_the_pod_and_deletes_it_with_grace(world: World) -> None:
    bind(world, "p")
    world.wait(1000)
    world.core.evict(NS, "p")
    assert condition(world, "p") == ("True", "EvictionByEvictionAPI")
    assert (world.phase("p"), world.get("p").meta["deletionGracePeriodSeconds"]) == ("Running", 30)
    world.wait(1000)
    assert (world.phase("p"), state(world, "p")["terminated"]["exitCode"]) == ("Failed", 143)
    assert condition(world, "p") == ("True", "EvictionByEvictionAPI"), "the kubelet's last word keeps it"


def test_a_taint_of_no_execute_deletes_who_does_not_tolerate_it(world: World) -> None:
    bind(world, "goes")
    bind(world, "stays", ({"key": "maintenance", "operator": "Exists"},))
    world.wait(1000)
    world.core.set_taint("n1", "maintenance", "NoExecute")
    world.wait(10)
    assert condition(world, "goes") == ("True", "DeletionByTaintManager")
    assert world.get("goes").deleting
    assert not world.get("stays").deleting


def test_who_tolerates_a_taint_for_some_seconds_goes_after_them_unless_it_is_off_by_then(world: World) -> None:
    bind(world, "p", ({"key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},))
    world.wait(1000)
    world.core.set_taint("n1", "maintenance", "NoExecute")
    world.wait(4000)
    world.core.set_taint("n1", "maintenance", "NoExecute", on=False)
    world.wait(10_000)
    assert not world.get("p").deleting
    world.core.set_taint("n1", "maintenance", "NoExecute")
    world.wait(5000)
    assert world.get("p").deleting


def test_a_pod_that_is_bound_under_such_a_taint_goes_at_once_and_other_effects_evict_nobody(world: World) -> None:
    world.core.set_taint("n1", "gpu", "NoSchedule", value="present")
    bind(world, "stays")
    world.wait(1000)
    assert not world.get("stays").deleting
    world.core.set_taint("n1", "maintenance", "NoExecute")
    bind(world, "late")
    world.wait(10)
    assert world.phase("late") == "Failed"


def test_a_shutdown_in_order_ends_pods_with_the_kubelets_words_and_takes_none(world: World) -> None:
    bind(world, "p", notes={"simulate_term_ms": "500"})
    world.wait(1000)
    world.core.begin_shutdown("n1")
    ready = next(one for one in node(world)["status"]["conditions"] if one["type"] == "Ready")
    assert (ready["status"], ready["message"]) == ("False", "node is shutting down")
    assert taints(world) == [("node.kubernetes.io/not-ready", "NoSchedule")]
    bind(world, "late")
    world.wait(600)
    said = world.status("p")
    assert (said["phase"], said["reason"]) == ("Failed", "Terminated")
    assert said["message"] == "Pod was terminated in response to imminent node shutdown."
    assert condition(world, "p") == ("True", "TerminationByKubelet")
    assert state(world, "p")["terminated"]["exitCode"] == 143
    assert world.status("late")["reason"] == "NodeShutdown"
    world.core.begin_reboot("n1")
    world.core.set_reachable("n1", True)
    assert taints(world) == []
    bind(world, "again")
    world.wait(100)
    assert world.phase("again") == "Running"


def test_a_pod_that_ends_by_itself_before_the_shutdown_reaches_it_has_ended_by_itself(world: World) -> None:
    bind(world, "p", notes={"simulate_seconds": "1", "simulate_term_ms": "5000"})
    world.wait(900)
    world.core.begin_shutdown("n1")
    world.wait(5000)
    assert (world.phase("p"), condition(world, "p")) == ("Succeeded", ("", ""))


def test_an_eviction_for_pressure_kills_at_once_and_says_what_was_low(world: World) -> None:
    bind(world, "p", notes={"simulate_term_ms": "5000"})
    world.wait(1000)
    world.core.set_pressure("n1", True)
    world.core.evict_for_pressure(NS, "p")
    world.wait(10)
    said = world.status("p")
    assert (said["phase"], said["reason"]) == ("Failed", "Evicted")
    assert said["message"].startswith("The node was low on resource: memory.")
    assert condition(world, "p") == ("True", "TerminationByKubelet")
    assert state(world, "p")["terminated"]["exitCode"] == 137
    assert taints(world) == [("node.kubernetes.io/memory-pressure", "NoSchedule")]
    world.core.set_pressure("n1", False)
    assert taints(world) == []
    assert not world.use().used_devices[0]


# -- machines that begin anew -------------------------------------------------------------------------------------


def test_a_machine_that_begins_anew_while_its_object_is_gone_registers_with_another_boot_id(world: World) -> None:
    bind(world, "p")
    world.wait(1000)
    before = node(world)
    world.core.begin_reboot("n1", "stopped")
    world.core.remove_node("n1")
    world.core.create("nodes", "", {"metadata": {"name": "n1"}, "status": {"capacity": before["status"]["capacity"]}})
    world.wait(10)
    assert (world.phase("p"), state(world, "p")["terminated"]["exitCode"]) == ("Failed", 143)
    assert node(world)["status"]["nodeInfo"]["bootID"] != before["status"]["nodeInfo"]["bootID"]


@pytest.mark.parametrize(
    ("left", "code", "reason"),
    [("killed", 137, "Error"), ("stopped", 143, "Error"), ("unknown", 137, "ContainerStatusUnknown")],
)
def test_a_reboot_fails_the_pods_and_gives_the_node_another_boot_id(
    world: World, left: Left, code: int, reason: str
) -> None:
    bind(world, "p")
    world.wait(1000)
    before = node(world)["status"]["nodeInfo"]["bootID"]
    world.core.begin_reboot("n1", left)
    bind(world, "meanwhile")
    world.wait(6000)
    assert (world.phase("p"), taints(world)) == ("Running", []), "a silent node is not called lost so fast"
    world.core.set_reachable("n1", True)
    world.wait(10)
    ended = state(world, "p")["terminated"]
    assert (world.phase("p"), ended["exitCode"], ended["reason"]) == ("Failed", code, reason)
    assert (ended["finishedAt"] is None) == (left == "unknown")
    assert "reason" not in world.status("p")
    assert node(world)["status"]["nodeInfo"]["bootID"] != before
    assert world.phase("meanwhile") == "Running"
    with pytest.raises(ApiError) if left == "unknown" else nullcontext():
        assert world.core.read_log(NS, "p").is_whole


def test_a_boot_id_lasts_as_long_as_the_machine_runs(world: World) -> None:
    before = node(world)["status"]["nodeInfo"]["bootID"]
    world.core.set_reachable("n1", False)
    world.core.set_reachable("n1", True)
    world.core.remove_node("n1")
    world.node()
    assert node(world)["status"]["nodeInfo"]["bootID"] == before
    world.core.set_reachable("n1", False)
    world.core.set_out_of_service("n1", True)
    world.core.set_reachable("n1", True)
    assert node(world)["status"]["nodeInfo"]["bootID"] != before


def test_a_pod_that_had_not_started_when_its_machine_lost_power_is_collected(world: World) -> None:
    world.core.set_starting_nothing("n1", True)
    bind(world, "p")
    world.wait(1000)
    world.core.set_reachable("n1", False)
    world.core.power_off("n1")
    world.core.set_reachable("n1", True)
    world.wait(10)
    assert (world.phase("p"), condition(world, "p")) == ("Failed", ("True", "DeletionByPodGC"))


def test_the_node_controller_taints_a_node_by_its_condition(world: World) -> None:
    world.core.set_reachable("n1", False)
    assert taints(world) == [("node.kubernetes.io/unreachable", "NoSchedule")]
    world.core.set_reachable("n1", True)
    assert taints(world) == []


# -- devices ------------------------------------------------------------------------------------------------------


def test_a_device_plugin_that_is_away_leaves_pods_alone_and_capacity_as_it_was(world: World) -> None:
    bind(world, "p")
    world.wait(1000)
    world.core.set_device_plugins("n1", False)
    status = node(world)["status"]
    assert (status["capacity"]["nvidia.com/gpu"], status["allocatable"]["nvidia.com/gpu"]) == ("2", "0")
    assert status["allocatable"]["cpu"] == "8"
    bind(world, "late")
    world.wait(1000)
    assert (world.phase("p"), world.status("late")["reason"]) == ("Running", "UnexpectedAdmissionError")
    world.core.set_device_plugins("n1", True)
    bind(world, "then")
    world.wait(1000)
    assert world.phase("then") == "Running"


@pytest.mark.parametrize("lose", ["set_unhealthy", "set_gpus"])
def test_a_gpu_that_is_lost_takes_all_its_replicas_with_it(world: World, lose: str) -> None:
    world.node("n3", device_profile="time-slicing", replicas=4)
    getattr(world.core, lose)("n3", 1)
    assert node(world, "n3")["status"]["allocatable"]["nvidia.com/gpu"] == "4"


def test_one_unhealthy_gpu_leaves_room_for_one_less_whichever_slot_runs(world: World) -> None:
    world.pod("last", devices="1", gpu_milli="1000", simulate_seconds="60")
    world.wait(10)
    world.core.set_unhealthy("n1", 1)
    status = node(world)["status"]
    assert (status["capacity"]["nvidia.com/gpu"], status["allocatable"]["nvidia.com/gpu"]) == ("2", "1")
    bind(world, "more")
    world.wait(10)
    assert (world.phase("last"), world.status("more")["reason"]) == ("Running", "UnexpectedAdmissionError")
    world.core.delete("pods", NS, "last")
    world.wait(100)
    world.pod("next", devices="1", gpu_milli="1000", simulate_seconds="60")
    world.wait(10)
    assert world.phase("next") == "Running", "a slot of the book is no card"


# -- pods that do not start ---------------------------------------------------------------------------------------


def test_a_node_that_refuses_pods_though_it_has_room_says_so_until_it_is_over(world: World) -> None:
    world.core.set_refusing("n1")
    bind(world, "p")
    world.wait(10)
    said = world.status("p")
    assert (said["phase"], said["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert said["message"].startswith("Pod was rejected: Allocate failed")
    assert "containerStatuses" not in said
    world.core.set_refusing("n1", "")
    bind(world, "later")
    world.wait(10)
    assert world.phase("later") == "Running"


def test_a_node_that_starts_nothing_leaves_containers_being_created_and_holds_their_devices(world: World) -> None:
    world.core.set_starting_nothing("n1", True)
    bind(world, "p")
    world.wait(600_000)
    assert (world.phase("p"), state(world, "p")["waiting"]) == ("Pending", {"reason": "ContainerCreating"})
    assert world.use().used_devices == {0: 1000}
    world.core.delete("pods", NS, "p")
    world.wait(10)
    assert (world.phase("p"), world.use().used_devices) == ("Failed", {0: 0})
    bind(world, "q")
    world.wait(1000)
    world.core.set_starting_nothing("n1", False)
    world.wait(10)
    assert world.phase("q") == "Running"


def test_a_node_that_cannot_prepare_pods_says_why_in_events_alone(world: World) -> None:
    world.core.set_preparing_nothing("n1")
    bind(world, "p")
    uid = world.core.get("pods", NS, "p").uid
    world.wait(25_000)
    assert (world.phase("p"), state(world, "p")["waiting"]) == ("Pending", {"reason": "ContainerCreating"})
    (event,) = (one.object for one in world.core.list("events", "", f"involvedObject.uid={uid}")[0])
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "FailedCreatePodSandBox", 3)
    assert event["source"] == {"component": "kubelet", "host": "n1"}
    assert event["firstTimestamp"] < event["lastTimestamp"]
    world.core.set_preparing_nothing("n1", "")
    world.wait(10)
    assert world.phase("p") == "Running"


@pytest.mark.parametrize("where", [{}, {"node": "n1"}, {"begins": "registry.example/"}])
def test_an_image_that_cannot_be_pulled_is_named_and_the_pod_starts_when_it_can(
    world: World, where: dict[str, str]
) -> None:
    world.core.set_images_out(**where)
    bind(world, "p")
    world.wait(10)
    said = state(world, "p")["waiting"]
    assert (world.phase("p"), said["reason"], IMAGE in said["message"]) == ("Pending", "ErrImagePull", True)
    world.wait(2000)
    said = state(world, "p")["waiting"]
    assert (said["reason"], IMAGE in said["message"]) == ("ImagePullBackOff", True)
    world.core.set_images_out(**where, why="")
    world.wait(10)
    assert world.phase("p") == "Running"


@pytest.mark.parametrize("where", [{"node": "n2"}, {"begins": "other.example/"}])
def test_registries_and_nodes_that_are_not_concerned_pull(world: World, where: dict[str, str]) -> None:
    world.core.set_images_out(**where)
    bind(world, "p")
    world.wait(10)
    assert world.phase("p") == "Running"


def test_init_containers_run_while_a_slow_start_lasts(world: World) -> None:
    bind(world, "p", notes={"simulate_start_seconds": "1200"}, initContainers=[{"name": "stage", "image": "stage:1"}])
    world.wait(1_199_000)
    assert world.phase("p") == "Pending"
    assert "running" in state(world, "p", "initContainerStatuses")
    assert state(world, "p")["waiting"] == {"reason": "PodInitializing"}
    assert condition(world, "p", "Initialized") == ("False", "ContainersNotInitialized")
    world.wait(1_100)
    assert world.phase("p") == "Running"
    assert state(world, "p", "initContainerStatuses")["terminated"]["exitCode"] == 0
    assert condition(world, "p", "Initialized") == ("True", "")


def test_without_init_containers_a_slow_start_is_a_pull(world: World) -> None:
    bind(world, "p", notes={"simulate_start_seconds": "20"})
    world.wait(19_000)
    assert state(world, "p")["waiting"] == {"reason": "ContainerCreating"}
    world.wait(1_100)
    assert world.phase("p") == "Running"


def test_new_pods_of_a_namespace_are_forbidden_for_a_while(world: World) -> None:
    world.core.faults.forbid_creates(NS)
    with pytest.raises(ApiError) as caught:
        world.pod("p")
    assert (caught.value.status, caught.value.reason) == (403, "Forbidden")
    assert "exceeded quota" in caught.value.message
    world.core.create("pods", "other", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}})
    world.core.create("events", NS, {"metadata": {"name": "e"}})
    world.core.faults.forbid_creates(NS, on=False)
    world.pod("p")


# -- pods that are told to stop -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "phase"), [("0", "Succeeded"), ("3", "Failed")])
def test_a_program_may_end_by_itself_in_its_notice(world: World, code: str, phase: str) -> None:
    bind(world, "p", notes={"simulate_notice_seconds": "2", "simulate_exit_code": code})
    world.wait(1000)
    notice = {"tessera.io/evict-at": "2030-01-01T00:00:00Z"}
    world.core.patch("pods", NS, "p", {"metadata": {"annotations": notice}})
    world.wait(1_900)
    assert world.phase("p") == "Running"
    world.wait(200)
    assert (world.phase("p"), state(world, "p")["terminated"]["exitCode"]) == (phase, int(code))


def test_a_program_that_no_signal_stops_stays_terminating(world: World) -> None:
    bind(world, "p", notes={"simulate_term_ms": "never", "simulate_seconds": "3600"})
    world.wait(1000)
    world.core.delete("pods", NS, "p")
    world.wait(600_000)
    assert (world.phase("p"), world.get("p").deleting) == ("Running", True)


def test_on_a_node_that_is_stuck_no_container_stops_until_it_is_over(world: World) -> None:
    bind(world, "p")
    world.wait(1000)
    world.core.set_stuck("n1", True)
    world.core.delete("pods", NS, "p")
    world.wait(50_000)
    assert (world.phase("p"), world.get("p").deleting) == ("Running", True)
    world.core.set_stuck("n1", False)
    world.wait(100)
    assert world.phase("p") == "Failed"


def test_a_program_on_a_node_that_is_stuck_saves_on_without_its_object(world: World) -> None:
    """The kubelet must not look at it again and again in the same moment."""
    bind(world, "p", notes={"simulate_checkpoint_seconds": "4"})
    world.wait(1000)
    world.core.set_stuck("n1", True)
    world.core.vanish(NS, "p")
    world.wait(20_000)
    assert world.use().used_devices == {0: 1000}
    world.core.set_stuck("n1", False)
    world.wait(100)
    assert world.use().used_devices == {0: 0}


# -- orders over HTTP ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order",
    [
        {"fault": "node_taint", "node": "n1", "key": "k", "effect": "NoExecute"},
        {"fault": "node_reboot", "node": "n1", "left": "unknown"},
        {"fault": "node_shutdown", "node": "n1"},
        {"fault": "node_healed", "node": "n1"},
        {"fault": "node_refusing", "node": "n1"},
        {"fault": "node_preparing_nothing", "node": "n1"},
        {"fault": "node_starting_nothing", "node": "n1"},
        {"fault": "node_stuck", "node": "n1"},
        {"fault": "node_pressure", "node": "n1", "resource": "pids"},
        {"fault": "device_plugins", "node": "n1", "there": False},
        {"fault": "unhealthy_gpus", "node": "n1"},
        {"fault": "images_out", "begins": "x"},
        {"fault": "forbid_creates", "namespace": "lab"},
        {"fault": "evict_pod", "namespace": NS, "name": "p"},
        {"fault": "evict_pod", "namespace": NS, "name": "p", "pressure": "memory"},
    ],
    ids=lambda order: str(order["fault"]),
)
def test_each_of_these_can_be_ordered(world: World, order: dict[str, Any]) -> None:
    bind(world, "p")
    world.wait(100)
    apply_fault(world.core, orjson.dumps(order))
    if "node" in order:
        with pytest.raises(ApiError):
            apply_fault(world.core, orjson.dumps(order | {"node": "nobody"}))


def test_a_node_that_is_healed_starts_and_stops_pods_again_and_has_all_its_devices(world: World) -> None:
    core = world.core
    core.set_cordoned("n1", True)
    core.set_pressure("n1", True, "pids")
    core.set_refusing("n1")
    core.set_preparing_nothing("n1")
    core.set_starting_nothing("n1", True)
    core.set_stuck("n1", True)
    core.set_unhealthy("n1", 2)
    core.begin_shutdown("n1")
    core.heal("n1")
    assert (taints(world), node(world)["spec"]["unschedulable"]) == ([], False)
    bind(world, "p")
    world.wait(100)
    assert world.phase("p") == "Running"
    core.delete("pods", NS, "p")
    world.wait(100)
    assert world.phase("p") == "Failed"


def test_pods_that_a_node_has_taken_are_put_back_as_they_were(world: World) -> None:
    world.core.set_images_out()
    bind(world, "p")
    world.wait(10)
    fresh = World()
    fresh.core.put_back(world.core.saved())
    fresh.node()
    assert fresh.use().used_devices == {0: 1000}
    fresh.wait(100)
    assert fresh.phase("p") == "Running"
