"""
What every Cluster adapter must do, whatever stands behind it.

A server with real kubelets, or none, can be added to `SETUPS`: the tests use the port only, plus `add_node` and `runs`
(do pods start and end?) of the setup.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from tessera.kernel.clock import SystemClock
from tessera.kernel.cluster import HttpCluster
from tessera.kernel.errors import Transient
from tessera.kernel.memory.cluster import MemoryCluster
from tessera.kernel.ports import ApiError, Cluster, WatchEvent
from tessera.lab.cluster.access import Access, Identity
from tessera.lab.cluster.core import SimCluster
from tessera.lab.cluster.driving import drive
from tessera.lab.cluster.nodes import NodeRow, node_object
from tessera.lab.cluster.server import ApiServer

FINALIZER = "tessera.io/held"
NS = "default"
READS = frozenset({"list", "watch", "get"})


@dataclass
class Setup:
    cluster: Cluster
    reader: Cluster
    add_node: Callable[[str], Awaitable[None]]
    runs: bool
    lose_answer: Callable[[str], None] | None = None
    numbers: Any = field(default_factory=lambda: count(1))

    def name(self) -> str:
        return f"pod-{next(self.numbers)}"


@asynccontextmanager
async def in_memory() -> AsyncIterator[Setup]:
    clock = SystemClock()
    core = SimCluster(clock)
    driver = asyncio.create_task(drive(core, clock))
    try:
        cluster, reader = MemoryCluster(core, clock, "binder"), MemoryCluster(core, clock, "reclamation", READS)
        yield Setup(cluster, reader, adder(core), True, core.faults.lose_answers)
    finally:
        driver.cancel()
        with suppress(asyncio.CancelledError):
            await driver


@asynccontextmanager
async def over_http() -> AsyncIterator[Setup]:
    clock = SystemClock()
    core = SimCluster(clock)
    access = Access({"w": Identity("binder", frozenset({"*"})), "r": Identity("reclamation", READS)})
    server = ApiServer(core, clock, access)
    url = f"http://127.0.0.1:{await server.start()}"
    cluster, reader = HttpCluster(url, "w"), HttpCluster(url, "r")
    try:
        yield Setup(cluster, reader, adder(core), True, core.faults.lose_answers)
    finally:
        await cluster.close()
        await reader.close()
        await server.stop()


SETUPS = {"memory": in_memory, "http": over_http}


def adder(core: SimCluster) -> Callable[[str], Awaitable[None]]:
    async def add_node(name: str) -> None:
        core.create("nodes", "", node_object(NodeRow(name=name, cpu="8", memory="8Gi", gpus=2), name))

    return add_node


@pytest.fixture(params=list(SETUPS))
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Setup]:
    async with SETUPS[request.param]() as setup:
        yield setup


def pod(name: str, **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **meta},
        "spec": {"schedulerName": "tessera", "containers": [{"name": "main", "image": "img"}]},
    }


async def refused(call: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await call
    return caught.value


async def watch_until(
    api: Setup, version: str, until: Callable[[WatchEvent], bool], selector: str = ""
) -> list[WatchEvent]:
    seen: list[WatchEvent] = []
    async with asyncio.timeout(30), aclosing(api.cluster.watch("pods", version, selector)) as events:
        async for event in events:
            seen.append(event)
            if until(event):
                return seen
    raise AssertionError(f"the watch ended after {seen}")


def of(name: str, change: str) -> Callable[[WatchEvent], bool]:
    return lambda event: event.type == change and event.object["metadata"]["name"] == name


def in_phase(name: str, *phases: str) -> Callable[[WatchEvent], bool]:
    return lambda event: event.object["metadata"].get("name") == name and event.object["status"]["phase"] in phases


async def test_a_created_pod_has_uid_version_time_and_is_pending(api: Setup):
    name = api.name()
    made = await api.cluster.create_pod(NS, pod(name))
    assert made["metadata"]["uid"]
    assert made["metadata"]["resourceVersion"]
    assert made["metadata"]["creationTimestamp"]
    assert made["metadata"]["namespace"] == NS
    assert made["status"]["phase"] == "Pending"
    assert (await api.cluster.get_pod(NS, name))["metadata"]["uid"] == made["metadata"]["uid"]


async def test_creating_a_pod_twice_is_already_exists_and_keeps_the_first(api: Setup):
    name = api.name()
    made = await api.cluster.create_pod(NS, pod(name))
    error = await refused(api.cluster.create_pod(NS, pod(name)))
    assert (error.status, error.reason) == (409, "AlreadyExists")
    assert (await api.cluster.get_pod(NS, name))["metadata"]["uid"] == made["metadata"]["uid"]


async def test_a_pod_that_is_not_there_is_not_found(api: Setup):
    for call in (
        api.cluster.get_pod(NS, "nobody"),
        api.cluster.delete_pod(NS, "nobody", "some-uid"),
        api.cluster.bind_pod(NS, "nobody", "some-uid", "n1", {}),
        api.cluster.evict_pod(NS, "nobody", "some-uid"),
        api.cluster.remove_finalizer(NS, "nobody", "some-uid", FINALIZER),
        api.cluster.annotate_pod(NS, "nobody", "some-uid", {"a": "b"}),
    ):
        error = await refused(call)
        assert (error.status, error.reason) == (404, "NotFound")


async def test_the_annotations_of_a_bind_land_on_the_pod_with_its_node(api: Setup):
    await api.add_node("n1")
    name = api.name()
    made = await api.cluster.create_pod(NS, pod(name, annotations={"mine": "1"}))
    await api.cluster.bind_pod(NS, name, made["metadata"]["uid"], "n1", {"tessera.io/permit": "7"})
    bound = await api.cluster.get_pod(NS, name)
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"mine": "1", "tessera.io/permit": "7"}


async def test_a_bind_with_another_uid_is_a_conflict_and_binds_nothing(api: Setup):
    name = api.name()
    await api.cluster.create_pod(NS, pod(name))
    error = await refused(api.cluster.bind_pod(NS, name, "00000000-dead-4000-8000-000000000000", "n1", {}))
    assert error.status == 409
    assert "nodeName" not in (await api.cluster.get_pod(NS, name))["spec"]


async def test_a_second_bind_is_a_conflict_even_to_the_same_node(api: Setup):
    await api.add_node("n1")
    name = api.name()
    uid = (await api.cluster.create_pod(NS, pod(name)))["metadata"]["uid"]
    await api.cluster.bind_pod(NS, name, uid, "n1", {})
    assert (await refused(api.cluster.bind_pod(NS, name, uid, "n1", {}))).status == 409


async def test_a_gated_pod_is_not_bound(api: Setup):
    name = api.name()
    gated = pod(name)
    gated["spec"]["schedulingGates"] = [{"name": "tessera.io/wait"}]
    uid = (await api.cluster.create_pod(NS, gated))["metadata"]["uid"]
    assert (await refused(api.cluster.bind_pod(NS, name, uid, "n1", {}))).status == 409


async def test_the_node_of_a_bind_need_not_exist(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(NS, pod(name)))["metadata"]["uid"]
    await api.cluster.bind_pod(NS, name, uid, "no-such-node", {})
    assert (await api.cluster.get_pod(NS, name))["spec"]["nodeName"] == "no-such-node"


async def test_a_delete_with_another_uid_is_a_conflict_and_deletes_nothing(api: Setup):
    name = api.name()
    await api.cluster.create_pod(NS, pod(name))
    error = await refused(api.cluster.delete_pod(NS, name, "00000000-dead-4000-8000-000000000000"))
    assert error.status == 409
    assert "deletionTimestamp" not in (await api.cluster.get_pod(NS, name))["metadata"]


async def test_an_unbound_pod_goes_at_once_and_its_name_is_free_for_another_uid(api: Setup):
    name = api.name()
    first = (await api.cluster.create_pod(NS, pod(name)))["metadata"]["uid"]
    await api.cluster.delete_pod(NS, name, first)
    assert (await refused(api.cluster.get_pod(NS, name))).status == 404
    second = (await api.cluster.create_pod(NS, pod(name)))["metadata"]["uid"]
    assert second != first


async def test_a_finalizer_keeps_a_deleted_pod_until_it_is_taken_off(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(NS, pod(name, finalizers=[FINALIZER])))["metadata"]["uid"]
    await api.cluster.delete_pod(NS, name, uid)
    assert (await api.cluster.get_pod(NS, name))["metadata"]["deletionTimestamp"]
    await api.cluster.remove_finalizer(NS, name, uid, FINALIZER)
    assert (await refused(api.cluster.get_pod(NS, name))).status == 404


async def test_an_annotation_is_set_and_the_others_stay(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(NS, pod(name, annotations={"a": "1", "b": "2"})))["metadata"]["uid"]
    await api.cluster.annotate_pod(NS, name, uid, {"b": "3", "c": "4"})
    assert (await api.cluster.get_pod(NS, name))["metadata"]["annotations"] == {"a": "1", "b": "3", "c": "4"}


async def test_a_pod_with_another_uid_is_not_annotated(api: Setup):
    name = api.name()
    await api.cluster.create_pod(NS, pod(name))
    error = await refused(api.cluster.annotate_pod(NS, name, "00000000-dead-4000-8000-000000000000", {"a": "b"}))
    assert error.status == 409
    assert "annotations" not in (await api.cluster.get_pod(NS, name))["metadata"]


async def test_a_bound_pod_that_is_deleted_without_grace_goes_with_its_finalizer_and_waits_for_no_kubelet(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(NS, pod(name, finalizers=[FINALIZER])))["metadata"]["uid"]
    await api.cluster.bind_pod(NS, name, uid, "no-such-node", {})
    await api.cluster.delete_pod(NS, name, uid)
    await api.cluster.delete_pod(NS, name, uid, 0)
    await api.cluster.remove_finalizer(NS, name, uid, FINALIZER)
    assert (await refused(api.cluster.get_pod(NS, name))).status == 404


async def test_deleting_twice_is_no_error_while_a_finalizer_keeps_the_pod(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(NS, pod(name, finalizers=[FINALIZER])))["metadata"]["uid"]
    await api.cluster.delete_pod(NS, name, uid)
    await api.cluster.delete_pod(NS, name, uid)


async def test_a_pod_on_its_way_out_is_not_bound(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(NS, pod(name, finalizers=[FINALIZER])))["metadata"]["uid"]
    await api.cluster.delete_pod(NS, name, uid)
    assert (await refused(api.cluster.bind_pod(NS, name, uid, "n1", {}))).status == 409


async def test_taking_a_finalizer_off_twice_is_nothing_and_leaves_those_of_others(api: Setup):
    name = api.name()
    finalizers = ["example.org/other", FINALIZER]
    uid = (await api.cluster.create_pod(NS, pod(name, finalizers=finalizers)))["metadata"]["uid"]
    await api.cluster.remove_finalizer(NS, name, uid, FINALIZER)
    await api.cluster.remove_finalizer(NS, name, uid, FINALIZER)
    assert (await api.cluster.get_pod(NS, name))["metadata"]["finalizers"] == ["example.org/other"]


async def test_a_finalizer_is_not_taken_off_a_pod_with_another_uid(api: Setup):
    name = api.name()
    await api.cluster.create_pod(NS, pod(name, finalizers=[FINALIZER]))
    call = api.cluster.remove_finalizer(NS, name, "00000000-dead-4000-8000-000000000000", FINALIZER)
    assert (await refused(call)).status == 409
    assert (await api.cluster.get_pod(NS, name))["metadata"]["finalizers"] == [FINALIZER]


async def test_a_list_selects_by_equal_unequal_and_present_labels(api: Setup):
    for run, rank in (("a", "0"), ("a", "1"), ("b", "0")):
        labels = {"tessera.io/run": run, "tessera.io/rank": rank}
        await api.cluster.create_pod(NS, pod(f"{run}-{rank}", labels=labels))
    await api.cluster.create_pod(NS, pod("foreign"))

    async def names(selector: str) -> set[str]:
        items, _version = await api.cluster.list("pods", selector)
        return {item["metadata"]["name"] for item in items}

    assert await names("tessera.io/run=a") == {"a-0", "a-1"}
    assert await names("tessera.io/run=a,tessera.io/rank=1") == {"a-1"}
    assert await names("tessera.io/run") == {"a-0", "a-1", "b-0"}
    assert await names("tessera.io/run,tessera.io/run!=a") == {"b-0"}
    assert "foreign" in await names("tessera.io/run!=a")  # what has no label is unequal to any value
    assert {"a-0", "a-1", "b-0", "foreign"} <= await names("")


async def test_nodes_are_listed_with_what_they_have(api: Setup):
    await api.add_node("n1")
    nodes, _version = await api.cluster.list("nodes")
    found = next(node for node in nodes if node["metadata"]["name"] == "n1")
    assert found["status"]["allocatable"]["nvidia.com/gpu"] == "2"


async def test_a_watch_from_a_list_shows_every_change_after_it_in_order(api: Setup):
    old, new = api.name(), api.name()
    await api.cluster.create_pod(NS, pod(old))
    _items, version = await api.cluster.list("pods")
    uid = (await api.cluster.create_pod(NS, pod(new, finalizers=[FINALIZER])))["metadata"]["uid"]
    await api.cluster.delete_pod(NS, new, uid)
    await api.cluster.remove_finalizer(NS, new, uid, FINALIZER)
    seen = await watch_until(api, version, of(new, "DELETED"))
    assert [event.type for event in seen if event.object["metadata"]["name"] == new] == ["ADDED", "MODIFIED", "DELETED"]
    assert all(event.object["metadata"]["name"] != old for event in seen)


async def test_a_watch_with_a_selector_shows_only_what_it_selects(api: Setup):
    _items, version = await api.cluster.list("pods", "app=mine")
    await api.cluster.create_pod(NS, pod("theirs", labels={"app": "theirs"}))
    await api.cluster.create_pod(NS, pod("mine", labels={"app": "mine"}))
    seen = await watch_until(api, version, of("mine", "ADDED"), "app=mine")
    assert [event.object["metadata"]["name"] for event in seen] == ["mine"]


async def test_a_watch_shows_a_change_that_comes_while_it_waits(api: Setup):
    _items, version = await api.cluster.list("pods")
    waiting = asyncio.create_task(watch_until(api, version, of("late", "ADDED")))
    for _ in range(20):
        await asyncio.sleep(0)
    await api.cluster.create_pod(NS, pod("late"))
    assert (await waiting)[-1].object["metadata"]["name"] == "late"


async def test_an_evicted_pod_is_deleted(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(NS, pod(name)))["metadata"]["uid"]
    await api.cluster.evict_pod(NS, name, uid)
    assert (await refused(api.cluster.get_pod(NS, name))).status == 404


async def test_an_eviction_with_another_uid_is_a_conflict(api: Setup):
    name = api.name()
    await api.cluster.create_pod(NS, pod(name))
    assert (await refused(api.cluster.evict_pod(NS, name, "00000000-dead-4000-8000-000000000000"))).status == 409


async def test_a_bound_pod_runs_and_ends_with_its_exit_code(api: Setup):
    if not api.runs:
        pytest.skip("no kubelet here")
    await api.add_node("n1")
    notes = {"tessera.io/simulate-seconds": "0.02", "tessera.io/simulate-exit-code": "3"}
    made = await api.cluster.create_pod(NS, pod("runs", annotations=notes))
    await api.cluster.bind_pod(NS, "runs", made["metadata"]["uid"], "n1", {})
    seen = await watch_until(api, made["metadata"]["resourceVersion"], in_phase("runs", "Failed"))
    assert [event.object["status"]["phase"] for event in seen] == ["Pending", "Running", "Failed"]
    state = seen[-1].object["status"]["containerStatuses"][0]["state"]
    assert state["terminated"]["exitCode"] == 3
    assert state["terminated"]["finishedAt"]


async def test_a_deleted_running_pod_is_kept_by_its_finalizer_with_a_terminal_phase(api: Setup):
    if not api.runs:
        pytest.skip("no kubelet here")
    await api.add_node("n1")
    held = pod("held", finalizers=[FINALIZER], annotations={"tessera.io/simulate-seconds": "3600"})
    meta = (await api.cluster.create_pod(NS, held))["metadata"]
    await api.cluster.bind_pod(NS, "held", meta["uid"], "n1", {})
    await watch_until(api, meta["resourceVersion"], in_phase("held", "Running"))
    await api.cluster.delete_pod(NS, "held", meta["uid"], 5)
    await watch_until(api, meta["resourceVersion"], in_phase("held", "Failed"))
    await api.cluster.remove_finalizer(NS, "held", meta["uid"], FINALIZER)
    assert (await refused(api.cluster.get_pod(NS, "held"))).status == 404


async def test_an_identity_without_the_right_is_forbidden(api: Setup):
    error = await refused(api.reader.create_pod(NS, pod(api.name())))
    assert (error.status, error.reason) == (403, "Forbidden")
    await api.reader.list("pods")


async def test_a_lost_answer_is_transient_and_a_repeat_finds_the_effect(api: Setup):
    if api.lose_answer is None:
        pytest.skip("answers cannot be lost on order here")
    name = api.name()
    api.lose_answer("create")
    with pytest.raises(Transient):
        await api.cluster.create_pod(NS, pod(name))
    assert (await refused(api.cluster.create_pod(NS, pod(name)))).reason == "AlreadyExists"


async def test_what_a_caller_does_to_an_object_changes_nothing_in_the_cluster(api: Setup):
    name = api.name()
    made = await api.cluster.create_pod(NS, pod(name, labels={"app": "mine"}))
    made["metadata"]["labels"]["app"] = "changed"
    assert (await api.cluster.get_pod(NS, name))["metadata"]["labels"] == {"app": "mine"}
