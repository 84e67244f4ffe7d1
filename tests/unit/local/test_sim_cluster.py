"""The simulated cluster's core in virtual time: what its kubelets, finalizers, watches and faults do."""

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import StartupError
from tessera.kernel.ports import ApiError
from tessera_local.cluster.api.answers import AnswerLost
from tessera_local.cluster.objects.jobs import JobController
from tessera_local.cluster.objects.saved_pods import take_saved, write_saved
from tests.unit.local.cluster_world import NS, World, annotations, spec

GPU_CLAIMED = {
    "extendedResourceClaimStatus": {
        "resourceClaimName": "p-gpus",
        "requestMappings": [{"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "one"}],
    }
}


def exit_code(status: dict[str, Any]) -> int:
    return int(status["containerStatuses"][0]["state"]["terminated"]["exitCode"])


def refusal(call: Any, *arguments: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*arguments)
    return caught.value


# -- running and ending -------------------------------------------------------------------------------------------


def test_a_bound_pod_starts_after_the_start_delay_and_ends_after_its_declared_time():
    world = World(start_ms=5)
    world.node()
    world.pod("p", simulate_seconds="2.5")
    world.wait(4)
    assert world.phase("p") == "Pending"
    world.wait(1)
    assert world.phase("p") == "Running"
    world.wait(2_499)
    assert world.phase("p") == "Running"
    world.wait(1)
    assert (world.phase("p"), exit_code(world.status("p"))) == ("Succeeded", 0)


def test_a_pod_that_exits_with_a_code_has_failed():
    world = World()
    world.node()
    world.pod("p", simulate_exit_code="42")
    world.wait(2_000)
    assert (world.phase("p"), exit_code(world.status("p"))) == ("Failed", 42)


def test_a_pod_past_its_active_deadline_fails_with_that_reason():
    world = World(start_ms=0)
    world.node()
    late = {"metadata": {"name": "p", "annotations": annotations({"simulate_seconds": "9"})}}
    world.core.create("pods", NS, {**late, "spec": {**spec(), "activeDeadlineSeconds": 2}})
    world.core.bind(NS, "p", {"target": {"name": "n1"}})
    world.wait(2_000)
    assert (world.phase("p"), world.status("p")["reason"]) == ("Failed", "DeadlineExceeded")


@pytest.mark.parametrize(("seconds", "ends_after_ms"), [(5, 4_000), (1, 0)], ids=["to come", "past already"])
def test_a_pod_that_runs_ends_at_a_deadline_that_comes_earlier(seconds: int, ends_after_ms: int):
    world = World(start_ms=0)
    world.node()
    world.pod("p", simulate_seconds="9")
    world.wait(1_000)
    world.core.patch("pods", NS, "p", {"spec": {"activeDeadlineSeconds": seconds}})
    world.wait(max(0, ends_after_ms - 1))
    assert world.phase("p") == ("Running" if ends_after_ms else "Failed")
    world.wait(1)
    assert (world.phase("p"), world.status("p")["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_pod_bound_to_a_node_that_comes_later_starts_then():
    world = World()
    world.pod("p", node="later")
    world.wait(60_000)
    assert world.phase("p") == "Pending"
    world.node("later")
    world.wait(10)
    assert world.phase("p") == "Running"


# -- what a kubelet refuses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        pytest.param({"devices": "0", "gpu_milli": "1000"}, {"devices": "0", "gpu_milli": "1000"}, False, id="whole"),
        pytest.param({"devices": "0", "gpu_milli": "1000"}, {"devices": "1", "gpu_milli": "1000"}, True, id="other"),
        pytest.param({"devices": "0", "gpu_milli": "600"}, {"devices": "0", "gpu_milli": "400"}, True, id="shares"),
        pytest.param({"devices": "0", "gpu_milli": "600"}, {"devices": "0", "gpu_milli": "401"}, False, id="over"),
        pytest.param({"devices": "0", "gpu_milli": "600"}, {"gpu_milli": "600"}, True, id="the plugin picks the other"),
        pytest.param({"devices": "0,1", "gpu_milli": "1000"}, {"devices": "", "gpu_milli": "0"}, True, id="no gpu"),
    ],
)
def test_two_pods_share_a_device_only_within_a_thousand_thousandths(first, second, fits):
    world = World()
    world.node()
    world.pod("first", **first)
    world.pod("second", **second)
    world.wait(10)
    assert world.phase("first") == "Running"
    assert world.phase("second") == ("Running" if fits else "Failed")
    if not fits:
        assert world.status("second")["reason"] == "UnexpectedAdmissionError"


@pytest.mark.parametrize("notes", [{"devices": "2", "gpu_milli": "1000"}, {"devices": "0,0"}, {"devices": "x"}])
def test_devices_that_are_not_there_or_cannot_be_read_are_refused(notes):
    world = World()
    world.node()
    world.pod("p", **notes)
    world.wait(10)
    assert world.status("p")["reason"] == "UnexpectedAdmissionError"


@pytest.mark.parametrize(
    ("resources", "fits"),
    [
        ({"cpu": "8", "memory": "8Gi"}, True),
        ({"cpu": "8001m"}, False),
        ({"memory": "8589934593"}, False),
        ({"cpu": "many"}, False),
    ],
)
def test_a_pod_gets_no_more_cpu_or_memory_than_the_node_has(resources, fits):
    world = World()
    world.node()
    world.core.create("pods", NS, {"metadata": {"name": "p"}, "spec": spec(**resources)})
    world.core.bind(NS, "p", {"target": {"name": "n1"}})
    world.wait(10)
    assert world.phase("p") == ("Running" if fits else "Failed")


def test_whole_gpus_by_limit_take_the_free_devices():
    world = World()
    world.node()
    for name in ("a", "b", "c"):
        limits = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
        world.core.create("pods", NS, {"metadata": {"name": name}, "spec": limits})
        world.core.bind(NS, name, {"target": {"name": "n1"}})
    world.wait(10)
    assert [world.phase(name) for name in ("a", "b", "c")] == ["Running", "Running", "Failed"]


def test_further_devices_are_counted_by_name_and_come_back():
    world = World()
    world.node(devices={"rdma/hca": 2})

    def pod(name: str, count: int) -> None:
        limits = {"containers": [{"name": "main", "resources": {"limits": {"rdma/hca": str(count)}}}]}
        meta = {"name": name, "annotations": annotations({"simulate_seconds": "1"})}
        world.core.create("pods", NS, {"metadata": meta, "spec": limits})
        world.core.bind(NS, name, {"target": {"name": "n1"}})

    pod("two", 2)
    pod("none-left", 1)
    world.wait(2000)
    assert (world.phase("two"), world.phase("none-left")) == ("Succeeded", "Failed")
    assert "rdma/hca: asked 1, used 2, capacity 2" in world.status("none-left")["message"]
    pod("after", 1)
    pod("more-than-there-are", 3)
    world.wait(2000)
    assert (world.phase("after"), world.phase("more-than-there-are")) == ("Succeeded", "Failed")


@pytest.mark.parametrize(("profile", "milli", "fits"), [("whole", "500", False), ("shares", "1000", False)])
def test_a_node_serves_only_what_its_device_profile_says(profile, milli, fits):
    world = World()
    world.node(device_profile=profile)
    world.pod("p", devices="0", gpu_milli=milli)
    world.wait(10)
    assert (world.phase("p") == "Running") is fits


@pytest.mark.parametrize(
    ("cards", "notes", "fits"),
    [
        pytest.param((0,), {"devices": "0", "gpu_milli": "500"}, True, id="the card of its slot"),
        pytest.param((0, 1), {"devices": "0,1", "gpu_milli": "1000"}, True, id="the cards of its slots"),
        pytest.param((1,), {"devices": "0", "gpu_milli": "500"}, False, id="another card"),
        pytest.param((0, 1), {"devices": "0", "gpu_milli": "500"}, False, id="a card too many"),
        pytest.param((), {"devices": "0", "gpu_milli": "500"}, False, id="no card"),
        pytest.param((0,), {"devices": "2", "gpu_milli": "500"}, False, id="a slot that is not there"),
        pytest.param((), {}, True, id="no GPU"),
    ],
)
def test_where_no_plugin_picks_a_pod_names_exactly_the_cards_of_its_slots(cards, notes, fits):
    world = World()
    world.node(device_profile="visible-devices")
    uuids = world.core.get("nodes", "", "n1").meta["annotations"]["tessera.io/gpu-uuids"].split(",")
    shown = ",".join(uuids[card] for card in cards) or "void"
    one = {**spec()["containers"][0], "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": shown}]}
    meta = {"name": "p", "annotations": annotations(notes)}
    world.core.create("pods", NS, {"metadata": meta, "spec": {"containers": [one]}})
    world.core.bind(NS, "p", {"target": {"name": "n1"}})
    world.wait(10)
    assert (world.phase("p") == "Running") is fits


def test_shares_of_a_named_card_come_to_no_more_than_the_card():
    world = World()
    world.node(device_profile="visible-devices")
    uuid = world.core.get("nodes", "", "n1").meta["annotations"]["tessera.io/gpu-uuids"].split(",")[1]
    for name, milli in (("a", "700"), ("b", "300"), ("c", "1")):
        one = {**spec()["containers"][0], "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": uuid}]}
        meta = {"name": name, "annotations": annotations({"devices": "1", "gpu_milli": milli})}
        world.core.create("pods", NS, {"metadata": meta, "spec": {"containers": [one]}})
        world.core.bind(NS, name, {"target": {"name": "n1"}})
    world.wait(10)
    assert [world.phase(name) for name in "abc"] == ["Running", "Running", "Failed"]


def test_no_more_instances_are_given_than_were_made():
    world = World()
    world.node(device_profile="mig", mig={"1g.10gb": 2})
    for name in "abc":
        limits = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]}
        meta = {"name": name, "annotations": annotations({"devices": "0", "gpu_milli": "125"})}
        world.core.create("pods", NS, {"metadata": meta, "spec": limits})
        world.core.bind(NS, name, {"target": {"name": "n1"}})
    world.wait(10)
    assert [world.phase(name) for name in "abc"] == ["Running", "Running", "Failed"]
    assert "nvidia.com/mig-1g.10gb: asked 1, used 2, capacity 2" in world.status("c")["message"]


def test_what_an_ended_pod_held_is_free_again():
    world = World()
    world.node()
    for name in ("a", "b"):
        world.pod(name, devices="0,1", gpu_milli="1000", simulate_seconds="1")
        world.wait(1_500)
        assert world.phase(name) == "Succeeded"
    assert set(world.use().used_devices.values()) == {0}


@pytest.mark.parametrize(("claimed", "phase"), [({}, "Failed"), (GPU_CLAIMED, "Running")], ids=["counted", "claimed"])
def test_a_kubelet_counts_no_gpu_that_a_claim_answers(claimed: dict[str, Any], phase: str):
    world = World()
    world.node(gpus=0)
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    meta = {"name": "p", "annotations": annotations({"simulate_seconds": "60"})}
    pod = {"metadata": meta, "spec": {"containers": [container]}}
    uid = world.core.create("pods", NS, pod).uid
    world.core.patch("pods", NS, "p", {"status": claimed}, "status")
    world.core.bind(NS, "p", {"metadata": {"uid": uid}, "target": {"name": "n1"}})
    world.wait(10)
    assert world.phase("p") == phase


def test_a_shrunk_node_refuses_what_it_lost_and_leaves_alone_what_runs():
    world = World()
    world.node()
    world.pod("runs", devices="1", gpu_milli="1000", simulate_seconds="60")
    world.wait(10)
    world.core.set_gpus("n1", 1)
    world.pod("late", devices="1", gpu_milli="1")
    world.wait(10)
    assert (world.phase("runs"), world.phase("late")) == ("Running", "Failed")


# -- deleting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term_ms", "grace", "after_ms", "code"), [("20", 5, 20, 143), ("9000", 1, 1_000, 137), ("20", 0, 0, 137)]
)
def test_a_deleted_pod_ends_by_sigterm_or_at_the_end_of_its_grace(term_ms, grace, after_ms, code):
    world = World()
    world.node()
    world.pod("p", finalizer=True, simulate_seconds="60", simulate_term_ms=term_ms)
    world.wait(10)
    world.core.delete("pods", NS, "p", {"gracePeriodSeconds": grace})
    if after_ms:
        world.wait(after_ms - 1)
        assert world.phase("p") == "Running"
    world.wait(1)
    assert (world.phase("p"), exit_code(world.status("p"))) == ("Failed", code)


def test_a_pod_that_ends_by_itself_within_its_grace_has_succeeded():
    world = World(start_ms=0)
    world.node()
    world.pod("p", finalizer=True, simulate_seconds="1", simulate_term_ms="5000")
    world.wait(900)
    world.core.delete("pods", NS, "p")
    world.wait(100)
    assert world.phase("p") == "Succeeded"


def test_a_second_deletion_with_less_grace_ends_it_earlier():
    world = World()
    world.node()
    world.pod("p", simulate_seconds="60", simulate_term_ms="60000")
    world.wait(10)
    world.core.delete("pods", NS, "p", {"gracePeriodSeconds": 30})
    world.wait(1_000)
    world.core.delete("pods", NS, "p", {"gracePeriodSeconds": 2})
    world.wait(1_000)
    assert world.is_gone("p")


@pytest.mark.parametrize("finalizer_first", [True, False])
def test_a_bound_pod_goes_when_both_its_kubelet_and_its_finalizers_have_let_go(finalizer_first):
    world = World()
    world.node()
    world.pod("p", finalizer=True, simulate_seconds="60")
    world.wait(10)
    world.core.delete("pods", NS, "p")
    if not finalizer_first:
        world.wait(50)
    world.core.patch("pods", NS, "p", {"metadata": {"finalizers": []}})
    assert world.is_gone("p") is not finalizer_first
    world.wait(50)
    assert world.is_gone("p")


def test_a_pod_deleted_between_bind_and_start_never_runs():
    world = World(start_ms=1_000)
    world.node()
    world.pod("p", finalizer=True)
    world.core.delete("pods", NS, "p")
    world.wait(5_000)
    assert world.phase("p") == "Failed"
    assert "containerStatuses" not in world.status("p")


def test_an_evicted_pod_is_a_disruption_target_and_ends():
    world = World()
    world.node()
    world.pod("p", finalizer=True, simulate_seconds="60")
    world.wait(10)
    world.core.evict(NS, "p")
    world.wait(50)
    assert world.phase("p") == "Failed"
    assert [one["type"] for one in world.status("p")["conditions"]] == ["PodScheduled", "DisruptionTarget"]


# -- nodes away ---------------------------------------------------------------------------------------------------


def test_on_an_unreachable_node_nothing_starts_ends_or_stops_until_it_is_back():
    world = World()
    world.node()
    world.pod("ends", simulate_seconds="1")
    world.pod("deleted", simulate_seconds="60")
    world.wait(10)
    world.core.set_reachable("n1", False)
    world.pod("new", simulate_seconds="60")
    world.core.delete("pods", NS, "deleted")
    world.wait(3_600_000)
    assert [world.phase(name) for name in ("ends", "deleted", "new")] == ["Running", "Running", "Pending"]
    world.core.set_reachable("n1", True)
    world.wait(30)
    assert [world.phase(name) for name in ("ends", "new")] == ["Succeeded", "Running"]
    assert world.is_gone("deleted")


def test_an_unreachable_node_says_so_and_a_node_that_is_back_is_ready():
    world = World()
    world.node()

    def node() -> tuple[str, list[Any]]:
        node = world.core.get("nodes", "", "n1").object
        return node["status"]["conditions"][0]["status"], node["spec"].get("taints", [])

    world.core.set_reachable("n1", False)
    assert node() == ("Unknown", [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}])
    world.core.set_reachable("n1", True)
    assert node() == ("True", [])


def test_a_pod_removed_by_force_holds_its_devices_until_its_node_is_back():
    world = World()
    world.node()
    world.pod("p", devices="0", gpu_milli="1000", simulate_seconds="60")
    world.wait(10)
    world.core.set_reachable("n1", False)
    world.core.delete("pods", NS, "p", {"gracePeriodSeconds": 0})
    world.wait(1_000)
    assert world.is_gone("p")
    assert world.use().used_devices[0] == 1000
    world.core.set_reachable("n1", True)
    world.wait(10)
    assert world.use().used_devices[0] == 0


# -- patches ------------------------------------------------------------------------------------------------------


def test_a_patch_that_names_an_outdated_version_or_another_uid_is_a_conflict():
    world = World()
    world.pod("p", node="")
    for meta in ({"resourceVersion": "1000"}, {"uid": "other"}):
        error = refusal(world.core.patch, "pods", NS, "p", {"metadata": {**meta, "labels": {"a": "b"}}})
        assert error.status == 409


def test_a_patch_that_changes_nothing_writes_nothing():
    world = World()
    world.pod("p", node="")
    before = world.core.resource_version
    world.core.patch("pods", NS, "p", {"metadata": {"labels": None}})
    assert world.core.resource_version == before


def test_a_patch_may_lift_a_gate_but_not_change_containers_or_status():
    world = World()
    gated = {"metadata": {"name": "p"}, "spec": {**spec(), "schedulingGates": [{"name": "g"}]}}
    world.core.create("pods", NS, gated)
    assert refusal(world.core.patch, "pods", NS, "p", {"spec": {"containers": []}}).status == 422
    world.core.patch("pods", NS, "p", {"spec": {"schedulingGates": None}, "status": {"phase": "Running"}})
    assert "schedulingGates" not in world.get("p").object["spec"]
    assert world.phase("p") == "Pending"


def test_a_node_is_cordoned_and_labelled_by_patch():
    world = World()
    world.node()
    world.core.patch("nodes", "", "n1", {"spec": {"unschedulable": True}, "metadata": {"labels": {"zone": "z"}}})
    node = world.core.get("nodes", "", "n1").object
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["labels"]["zone"] == "z"


# -- watches ------------------------------------------------------------------------------------------------------


def seen(watch: Any) -> list[tuple[str, str]]:
    return [(change, orjson.loads(json)["metadata"].get("name", "")) for change, json in watch.take()]


def test_a_watch_from_an_old_version_sees_all_that_came_after_it():
    world = World()
    world.pod("a", node="")
    version = world.core.resource_version
    world.pod("b", node="")
    world.core.delete("pods", NS, "a")
    assert seen(world.core.open_watch("pods", version)) == [("ADDED", "b"), ("DELETED", "a")]


def test_a_watch_without_a_version_begins_with_what_is_there():
    world = World()
    world.pod("a", node="")
    watch = world.core.open_watch("pods", "")
    world.pod("b", node="")
    assert seen(watch) == [("ADDED", "a"), ("ADDED", "b")]


def test_an_object_that_enters_or_leaves_a_selection_is_added_or_deleted_there():
    world = World()
    world.pod("p", node="")
    watch = world.core.open_watch("pods", world.core.resource_version, "app=x")
    for value in ("x", "x2", None):
        world.core.patch("pods", NS, "p", {"metadata": {"labels": {"app": value}}})
    assert seen(watch) == [("ADDED", "p"), ("DELETED", "p")]


def test_a_version_older_than_the_history_is_expired():
    world = World(history=4)
    first = world.core.resource_version
    watch = world.core.open_watch("pods", first)
    for number in range(9):
        world.pod(f"p{number}", node="")
    assert refusal(world.core.open_watch, "pods", first).status == 410
    assert refusal(watch.take).status == 410


def test_an_expired_history_is_410_for_who_is_behind_and_nothing_for_who_is_not():
    world = World()
    world.pod("a", node="")
    old = world.core.resource_version
    world.pod("b", node="")
    world.core.expire_history()
    assert refusal(world.core.open_watch, "pods", old).status == 410
    world.core.open_watch("pods", world.core.resource_version)


def test_a_version_that_was_never_reached_is_a_timeout():
    assert refusal(World().core.open_watch, "pods", "99").status == 504


def test_a_reader_that_passes_over_many_events_gets_a_bookmark_of_how_far_it_is():
    world = World()
    watch = world.core.open_watch("pods", world.core.resource_version, "app=x")
    for number in range(300):
        world.pod(f"p{number}", node="")
    [(change, json)] = watch.take()
    assert change == "BOOKMARK"
    assert orjson.loads(json)["metadata"]["resourceVersion"] == world.core.resource_version


def test_closed_watches_end_and_wake_their_readers():
    world = World()
    watch = world.core.open_watch("pods", world.core.resource_version)
    woken: list[int] = []
    watch.on_ready = lambda: woken.append(1)
    world.core.close_watches()
    assert watch.closed
    assert woken == [1]


# -- faults -------------------------------------------------------------------------------------------------------


def test_ordered_answers_refuse_exactly_as_many_calls_and_have_no_effect():
    world = World()
    world.core.faults.answer("create", 429, count=2)
    for _ in range(2):
        error = refusal(world.pod, "p", "")
        assert (error.status, error.retry_after_seconds) == (429, 1)
    world.pod("p", node="")


def test_an_eviction_can_be_refused_by_a_disruption_budget():
    world = World()
    world.pod("p", node="")
    world.core.faults.answer("evict", 429)
    assert "disruption budget" in refusal(world.core.evict, NS, "p").message
    assert not world.get("p").deleting


@pytest.mark.parametrize(("after_effect", "there"), [(True, True), (False, False)])
def test_an_answer_is_lost_after_the_effect_or_instead_of_it(after_effect, there):
    world = World()
    world.core.faults.lose_answers("create", after_effect=after_effect)
    with pytest.raises(AnswerLost):
        world.pod("p", node="")
    assert world.is_gone("p") is not there


def test_a_vanished_pod_is_gone_past_its_finalizer_and_frees_its_node():
    world = World()
    world.node()
    world.pod("p", finalizer=True, devices="0", gpu_milli="1000", simulate_seconds="60")
    world.wait(10)
    world.core.vanish(NS, "p")
    assert world.is_gone("p")
    world.wait(10)
    assert world.use().used_devices[0] == 0


# -- the whole ----------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("make", "bind", "delete", "unhold", "wait", "cut", "join", "vanish")), st.integers(0, 4)
    ),
    max_size=60,
)


def play(steps: list[tuple[str, int]]) -> World:
    """Any calls in any order; refusals are part of it. After each, no device is held above what it has."""
    world = World()
    world.node()
    for step, number in steps:
        with suppress(ApiError):
            do(world, step, f"p{number}", number)
        assert all(0 <= used <= 1000 for used in world.use().used_devices.values())
    return world


def do(world: World, step: str, name: str, number: int) -> None:
    if step == "make":
        world.pod(name, node="", finalizer=number % 2 == 0, devices=str(number % 2), gpu_milli="700")
    elif step == "bind":
        world.core.bind(NS, name, {"target": {"name": "n1"}})
    elif step == "delete":
        world.core.delete("pods", NS, name)
    elif step == "unhold":
        world.core.patch("pods", NS, name, {"metadata": {"finalizers": None}})
    elif step == "wait":
        world.wait(10 ** (number + 1))
    elif step == "vanish":
        world.core.vanish(NS, name)
    else:
        world.core.set_reachable("n1", step == "join")


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_no_device_is_ever_overused_and_no_object_is_left_when_all_pods_are_gone(steps):
    world = play(steps)
    world.core.set_reachable("n1", True)
    for version in world.core.list("pods")[0]:
        name = version.meta["name"]
        world.core.patch("pods", NS, name, {"metadata": {"finalizers": None}})
        if not world.is_gone(name):
            world.core.delete("pods", NS, name)
    world.wait(60_000)
    assert world.core.sizes() == {"pods": 0, "nodes": 1, "runs": 0, "timers": 0, "readers": 0}
    assert (world.use().used_pods, set(world.use().used_devices.values()) <= {0}) == (0, True)


@given(STEPS)
@settings(max_examples=20, deadline=None)
def test_equal_calls_at_equal_times_give_equal_events(steps):
    first, second = (play(steps).core.open_watch("pods", "1").take(10_000) for _ in range(2))
    assert first == second


# -- programs that save their work


def saved(world: World, name: str) -> str:
    notes: dict[str, str] = world.get(name).meta.get("annotations") or {}
    return notes.get("tessera.io/checkpoint", "")


def tell(world: World, name: str) -> None:
    notice = {"tessera.io/evict-at": "2026-01-01T00:00:00Z"}
    world.core.patch("pods", NS, name, {"metadata": {"annotations": notice}})


def test_a_program_saves_its_work_as_often_as_it_says_and_no_more_after_its_end():
    world = World()
    world.node()
    world.pod("p", simulate_seconds="10", simulate_checkpoint_seconds="3")
    seen = []
    for _ in range(14):
        world.wait(1000)
        seen.append(saved(world, "p"))
    assert list(dict.fromkeys(seen)) == ["", "/checkpoints/3000", "/checkpoints/6000", "/checkpoints/9000"]
    assert world.phase("p") == "Succeeded"


def test_a_program_that_is_told_of_its_end_saves_at_once_and_once():
    world = World()
    world.node()
    world.pod("p", simulate_seconds="100", simulate_checkpoint_seconds="50")
    world.wait(7005)
    tell(world, "p")
    world.wait(1)
    assert saved(world, "p") == "/checkpoints/7000"
    world.wait(5000)
    tell(world, "p")
    world.wait(1000)
    assert saved(world, "p") == "/checkpoints/7000"


def test_a_program_that_saves_nothing_says_nothing_when_it_is_told():
    world = World()
    world.node()
    world.pod("p", simulate_seconds="100")
    world.wait(1000)
    tell(world, "p")
    world.wait(1000)
    assert saved(world, "p") == ""


def test_a_program_does_not_do_again_what_it_is_told_is_done():
    world = World()
    world.node()
    told = {"name": "TESSERA_CHECKPOINT_PATH", "value": "/checkpoints/8000"}
    body = {"containers": [{"name": "main", "env": [told]}]}
    meta = {"name": "p", "annotations": annotations({"simulate_seconds": "10", "simulate_checkpoint_seconds": "1"})}
    uid = world.core.create("pods", NS, {"metadata": meta, "spec": body}).uid
    world.core.bind(NS, "p", {"metadata": {"uid": uid}, "target": {"name": "n1"}})
    world.wait(1500)
    assert saved(world, "p") == "/checkpoints/9000"
    world.wait(1000)
    assert world.phase("p") == "Succeeded"


def test_a_program_reports_its_steps_until_it_hangs_which_only_a_first_run_does():
    world = World()
    world.node()
    world.pod("hangs", simulate_seconds="5", simulate_step_seconds="1", simulate_hang_step="2")
    world.pod("works", simulate_seconds="5", simulate_step_seconds="1")
    seen = []
    for _ in range(8):
        world.wait(1000)
        notes = (world.get(name).meta.get("annotations") or {} for name in ("hangs", "works"))
        seen.append(tuple(each.get("tessera.io/progress", "") for each in notes))
    assert list(dict.fromkeys(seen)) == [("", ""), ("1", "1"), ("2", "2"), ("2", "3"), ("2", "4")]
    assert (world.phase("hangs"), world.phase("works")) == ("Running", "Succeeded")


# -- programs that are probed


def readiness(world: World, name: str) -> tuple[str, float, list[bool]]:
    """Value of the pod's condition, the seconds since its start at which it came, and what its containers are."""
    status = world.status(name)
    found = next(
        (one for one in status["conditions"] if one["type"] == "Ready"), {"status": "", "lastTransitionTime": ""}
    )
    times = [
        datetime.fromisoformat(each)
        for each in (status["startTime"], found["lastTransitionTime"] or status["startTime"])
    ]
    return found["status"], (times[1] - times[0]).total_seconds(), [one["ready"] for one in status["containerStatuses"]]


def test_a_pod_is_not_ready_and_ready_again_when_its_program_says_so():
    world = World(start_ms=0)
    world.node()
    world.pod(
        "p", simulate_seconds="9", simulate_ready_turns="2 4 6.5", simulate_message="idle", simulate_exit_code="1"
    )
    world.wait(1900)
    assert readiness(world, "p") == ("", 0, [True])
    world.wait(200)
    assert readiness(world, "p") == ("False", 2, [False])
    world.wait(2000)
    assert readiness(world, "p") == ("True", 4, [True])
    world.core.set_reachable("n1", False)
    world.wait(6000)
    assert readiness(world, "p") == ("True", 4, [True])
    world.core.set_reachable("n1", True)
    world.wait(10)
    assert (world.phase("p"), readiness(world, "p")[:2]) == ("Failed", ("False", 6)), "as it was seen on the node"
    assert world.status("p")["containerStatuses"][0]["state"]["terminated"]["message"] == "idle"


def test_a_program_that_is_stopped_says_nothing_at_its_end():
    world = World()
    world.node()
    world.pod("p", finalizer=True, simulate_seconds="9", simulate_message="idle")
    world.wait(500)
    world.core.delete("pods", NS, "p")
    world.wait(1000)
    ended = world.status("p")["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended.get("message")) == (143, None)


# -- nodes that go


def test_a_node_that_is_gone_leaves_its_pods_as_they_are():
    world = World()
    world.node()
    world.pod("p", simulate_seconds="1")
    world.wait(500)
    world.core.remove_node("n1")
    world.wait(60_000)
    assert world.phase("p") == "Running"


def test_cordoning_changes_nothing_but_the_nodes_object():
    world = World()
    world.node()
    world.pod("p", simulate_seconds="1")
    world.core.set_cordoned("n1", True)
    node = world.core.get("nodes", "", "n1").object
    assert node["spec"]["unschedulable"] is True
    assert node["spec"]["taints"] == [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    world.core.set_cordoned("n1", False)
    assert world.core.get("nodes", "", "n1").object["spec"]["taints"] == []
    world.wait(2000)
    assert world.phase("p") == "Succeeded"


def test_pods_of_a_machine_that_lost_power_fail_once_it_is_back_also_those_that_were_bound_meanwhile():
    world = World()
    world.node()
    world.pod("runs", finalizer=True, simulate_seconds="60")
    world.wait(1000)
    world.pod("begins", finalizer=True, simulate_seconds="1")
    world.core.set_reachable("n1", False)
    world.core.set_out_of_service("n1", True)
    world.pod("bound", finalizer=True, simulate_seconds="1")
    world.wait(5000)
    assert world.phase("runs") == "Running", "nobody is there to tell"
    world.core.set_out_of_service("n1", False)
    world.core.set_reachable("n1", True)
    world.wait(10)
    assert [world.phase(name) for name in ("runs", "begins", "bound")] == ["Failed"] * 3
    world.pod("later", simulate_seconds="1")
    world.wait(3000)
    assert world.phase("later") == "Succeeded"


# -- an end of the process, and a start


def restarted(world: World, directory: Path) -> World:
    """A new process that took up what the old one had written, later by nothing."""
    write_saved(directory / "pods.json", world.core.saved())
    fresh = World()
    fresh.clock.ms = world.clock.ms
    saved = take_saved(directory / "pods.json")
    assert saved is not None
    fresh.core.put_back(saved)
    assert take_saved(directory / "pods.json") is None
    return fresh


def test_pods_run_on_over_a_restart_of_the_cluster_and_end_when_they_would_have(tmp_path: Path):
    world = World()
    world.node()
    uid = world.pod("p", finalizer=True, simulate_seconds="10", simulate_exit_code="3")
    world.pod("waits", node="")
    world.wait(4_000)
    before, version = world.get("p").object, world.core.resource_version
    after = restarted(world, tmp_path)
    after.node()
    assert (after.get("p").object, after.get("p").uid) == (before, uid)
    assert after.use().used_pods == 1
    after.wait(5_000)
    assert (after.phase("p"), after.phase("waits")) == ("Running", "Pending")
    after.wait(1_100)
    assert (after.phase("p"), exit_code(after.status("p")), after.use().used_pods) == ("Failed", 3, 0)
    assert after.pod("next") not in (uid, after.get("waits").uid)
    assert refusal(after.core.open_watch, "pods", str(int(version) - 1)).status == 410


def test_a_pod_whose_node_is_not_in_the_new_file_stands_still_and_a_full_node_takes_no_more(tmp_path: Path):
    world = World()
    for name in ("n1", "n2"):
        world.node(name)
        world.pod(f"on-{name}", node=name, simulate_seconds="2")
    world.wait(1_000)
    after = restarted(world, tmp_path)
    after.node("n1", pods=1)
    after.pod("late")
    after.wait(500)
    assert (after.phase("late"), after.status("late")["reason"]) == ("Failed", "UnexpectedAdmissionError")
    after.wait(60_000)
    assert (after.phase("on-n1"), after.phase("on-n2")) == ("Succeeded", "Running")


def test_a_damaged_file_of_pods_is_named(tmp_path: Path):
    (tmp_path / "pods.json").write_text("{")
    with pytest.raises(StartupError, match=r"pods\.json: pods cannot be read from it; delete it"):
        take_saved(tmp_path / "pods.json")


def test_a_jobs_new_pods_get_names_of_their_own_after_a_restart() -> None:
    world = World()
    template = {"spec": spec()}
    world.core.create("jobs", NS, {"metadata": {"name": "j"}, "spec": {"parallelism": 1, "template": template}})
    JobController(world.core, SystemClock()).look()
    restarted = JobController(world.core, SystemClock())
    world.core.patch("jobs", NS, "j", {"spec": {"parallelism": 2}})
    restarted.look()
    assert [pod.meta["name"] for pod in world.core.list("pods")[0]] == ["j-p-00001", "j-p-00002"]
