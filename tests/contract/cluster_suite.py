"""
What every Cluster adapter must do, whatever stands behind it: the simulated cluster in memory and over HTTP
(`test_cluster_port.py` here), and a real API server (in `tests/kubernetes/`), so that the simulated one cannot drift.

The tests use the port, and what else they need of a world through its `Setup`. In a world that others use, too, they
look only at what they made themselves.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

import tessera.kernel.kubernetes.cluster as kernel_cluster
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError, Cluster, WatchEvent
from tessera_local.cluster.in_memory import MemoryCluster

PATIENT = 120.0  # seconds, for what certainly comes

FINALIZER = "tessera.io/held"


@dataclass
class Setup:
    """
    `cluster` may do everything, `reader` may only read. `ns` is a namespace, `prefix` makes names that nobody has.

    `create` makes any object that others than Tessera make, `ancient` gives a resourceVersion that the server no longer
    knows.
    """

    cluster: Cluster
    reader: Cluster
    add_node: Callable[[str], Awaitable[None]]
    create: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    ancient: Callable[[], Awaitable[str]]
    forbid_eviction: Callable[[dict[str, str]], Awaitable[None]]
    lose_answer: Callable[[str], None] | None = None
    ns: str = "default"
    prefix: str = "pod"
    numbers: Any = field(default_factory=lambda: count(1))

    def name(self) -> str:
        return f"{self.prefix}-{next(self.numbers)}"


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
    api: Setup, version: str, until: Callable[[WatchEvent], bool], selector: str = "", fields: str = ""
) -> list[WatchEvent]:
    seen: list[WatchEvent] = []
    async with asyncio.timeout(PATIENT), aclosing(api.cluster.watch("pods", version, selector, fields)) as events:
        async for event in events:
            seen.append(event)
            if until(event):
                return seen
    raise AssertionError(f"the watch ended after {seen}")


def of(name: str, change: str) -> Callable[[WatchEvent], bool]:
    return lambda event: event.type == change and event.object["metadata"].get("name") == name


def in_phase(name: str, *phases: str) -> Callable[[WatchEvent], bool]:
    return lambda event: event.object["metadata"].get("name") == name and event.object["status"]["phase"] in phases


async def test_a_created_pod_has_uid_version_time_and_is_pending(api: Setup):
    name = api.name()
    made = await api.cluster.create_pod(api.ns, pod(name))
    assert made["metadata"]["uid"]
    assert made["metadata"]["resourceVersion"]
    assert made["metadata"]["creationTimestamp"]
    assert made["metadata"]["namespace"] == api.ns
    assert made["status"]["phase"] == "Pending"
    assert (await api.cluster.get_pod(api.ns, name))["metadata"]["uid"] == made["metadata"]["uid"]


async def test_creating_a_pod_twice_is_already_exists_and_keeps_the_first(api: Setup):
    name = api.name()
    made = await api.cluster.create_pod(api.ns, pod(name))
    error = await refused(api.cluster.create_pod(api.ns, pod(name)))
    assert (error.status, error.reason) == (409, "AlreadyExists")
    assert (await api.cluster.get_pod(api.ns, name))["metadata"]["uid"] == made["metadata"]["uid"]


async def test_a_pod_that_is_not_there_is_not_found(api: Setup):
    for call in (
        api.cluster.get_pod(api.ns, "nobody"),
        api.cluster.delete_pod(api.ns, "nobody", "some-uid"),
        api.cluster.bind_pod(api.ns, "nobody", "some-uid", "n1", {}),
        api.cluster.evict_pod(api.ns, "nobody", "some-uid"),
        api.cluster.remove_finalizer(api.ns, "nobody", "some-uid", FINALIZER),
        api.cluster.annotate_pod(api.ns, "nobody", "some-uid", {"a": "b"}),
        api.cluster.limit_pod(api.ns, "nobody", "some-uid", 60),
        api.cluster.resize_pod(api.ns, "nobody", "some-uid", "main", {"requests": {"cpu": "1"}}),
    ):
        error = await refused(call)
        assert (error.status, error.reason) == (404, "NotFound")


async def test_the_annotations_of_a_bind_land_on_the_pod_with_its_node(api: Setup):
    await api.add_node("n1")
    name = api.name()
    made = await api.cluster.create_pod(api.ns, pod(name, annotations={"mine": "1"}))
    await api.cluster.bind_pod(api.ns, name, made["metadata"]["uid"], "n1", {"tessera.io/permit": "7"})
    bound = await api.cluster.get_pod(api.ns, name)
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"mine": "1", "tessera.io/permit": "7"}


async def test_a_bind_with_another_uid_is_a_conflict_and_binds_nothing(api: Setup):
    name = api.name()
    await api.cluster.create_pod(api.ns, pod(name))
    error = await refused(api.cluster.bind_pod(api.ns, name, "00000000-dead-4000-8000-000000000000", "n1", {}))
    assert error.status == 409
    assert "nodeName" not in (await api.cluster.get_pod(api.ns, name))["spec"]


async def test_a_second_bind_is_a_conflict_even_to_the_same_node(api: Setup):
    await api.add_node("n1")
    name = api.name()
    uid = (await api.cluster.create_pod(api.ns, pod(name)))["metadata"]["uid"]
    await api.cluster.bind_pod(api.ns, name, uid, "n1", {})
    assert (await refused(api.cluster.bind_pod(api.ns, name, uid, "n1", {}))).status == 409


async def test_a_gated_pod_is_not_bound(api: Setup):
    name = api.name()
    gated = pod(name)
    gated["spec"]["schedulingGates"] = [{"name": "tessera.io/wait"}]
    uid = (await api.cluster.create_pod(api.ns, gated))["metadata"]["uid"]
    assert (await refused(api.cluster.bind_pod(api.ns, name, uid, "n1", {}))).status == 409


async def test_the_node_of_a_bind_need_not_exist(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(api.ns, pod(name)))["metadata"]["uid"]
    await api.cluster.bind_pod(api.ns, name, uid, "no-such-node", {})
    assert (await api.cluster.get_pod(api.ns, name))["spec"]["nodeName"] == "no-such-node"


async def test_a_delete_with_another_uid_is_a_conflict_and_deletes_nothing(api: Setup):
    name = api.name()
    await api.cluster.create_pod(api.ns, pod(name))
    error = await refused(api.cluster.delete_pod(api.ns, name, "00000000-dead-4000-8000-000000000000"))
    assert error.status == 409
    assert "deletionTimestamp" not in (await api.cluster.get_pod(api.ns, name))["metadata"]


async def test_an_unbound_pod_goes_at_once_and_its_name_is_free_for_another_uid(api: Setup):
    name = api.name()
    first = (await api.cluster.create_pod(api.ns, pod(name)))["metadata"]["uid"]
    await api.cluster.delete_pod(api.ns, name, first)
    assert (await refused(api.cluster.get_pod(api.ns, name))).status == 404
    second = (await api.cluster.create_pod(api.ns, pod(name)))["metadata"]["uid"]
    assert second != first


async def test_a_finalizer_keeps_a_deleted_pod_until_it_is_taken_off(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(api.ns, pod(name, finalizers=[FINALIZER])))["metadata"]["uid"]
    await api.cluster.delete_pod(api.ns, name, uid)
    assert (await api.cluster.get_pod(api.ns, name))["metadata"]["deletionTimestamp"]
    await api.cluster.remove_finalizer(api.ns, name, uid, FINALIZER)
    assert (await refused(api.cluster.get_pod(api.ns, name))).status == 404


async def test_an_annotation_is_set_and_the_others_stay(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(api.ns, pod(name, annotations={"a": "1", "b": "2"})))["metadata"]["uid"]
    await api.cluster.annotate_pod(api.ns, name, uid, {"b": "3", "c": "4"})
    assert (await api.cluster.get_pod(api.ns, name))["metadata"]["annotations"] == {"a": "1", "b": "3", "c": "4"}


async def test_a_deadline_of_a_pod_is_set_and_comes_earlier_and_is_never_put_off(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(api.ns, pod(name)))["metadata"]["uid"]
    for seconds in (3600, 60, 60):
        await api.cluster.limit_pod(api.ns, name, uid, seconds)
        assert (await api.cluster.get_pod(api.ns, name))["spec"]["activeDeadlineSeconds"] == seconds
    for wrong in (61, 0):
        assert (await refused(api.cluster.limit_pod(api.ns, name, uid, wrong))).status == 422
    other = "00000000-dead-4000-8000-000000000000"
    assert (await refused(api.cluster.limit_pod(api.ns, name, other, 30))).status == 409
    assert (await api.cluster.get_pod(api.ns, name))["spec"]["activeDeadlineSeconds"] == 60


async def test_cpu_and_memory_of_a_container_change_in_place_and_nothing_else(api: Setup):
    name = api.name()
    had = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    wanted = pod(name)
    wanted["spec"]["containers"][0]["resources"] = {"requests": had, "limits": had}
    made = await api.cluster.create_pod(api.ns, wanted)
    uid, container = made["metadata"]["uid"], made["spec"]["containers"][0]
    size = {"cpu": "2", "memory": "3Gi"}
    for _ in range(2):
        await api.cluster.resize_pod(api.ns, name, uid, container["name"], {"requests": size, "limits": size})
        now = await api.cluster.get_pod(api.ns, name)
        assert now["spec"]["containers"] == [container | {"resources": {"requests": had | size, "limits": had | size}}]
    above = {"requests": {"cpu": "4"}}  # its limit is 2
    other_class = {"limits": {"cpu": "4"}}
    for wrong in (above, other_class):
        assert (await refused(api.cluster.resize_pod(api.ns, name, uid, container["name"], wrong))).status == 422
    other = "00000000-dead-4000-8000-000000000000"
    call = api.cluster.resize_pod(api.ns, name, other, container["name"], {"requests": had, "limits": had})
    assert (await refused(call)).status == 409
    assert (await api.cluster.get_pod(api.ns, name))["spec"] == now["spec"]


async def test_a_pod_with_another_uid_is_not_annotated(api: Setup):
    name = api.name()
    await api.cluster.create_pod(api.ns, pod(name))
    error = await refused(api.cluster.annotate_pod(api.ns, name, "00000000-dead-4000-8000-000000000000", {"a": "b"}))
    assert error.status == 409
    assert "annotations" not in (await api.cluster.get_pod(api.ns, name))["metadata"]


async def test_a_bound_pod_that_is_deleted_without_grace_goes_with_its_finalizer_and_waits_for_no_kubelet(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(api.ns, pod(name, finalizers=[FINALIZER])))["metadata"]["uid"]
    await api.cluster.bind_pod(api.ns, name, uid, "no-such-node", {})
    await api.cluster.delete_pod(api.ns, name, uid)
    await api.cluster.delete_pod(api.ns, name, uid, 0)
    await api.cluster.remove_finalizer(api.ns, name, uid, FINALIZER)
    assert (await refused(api.cluster.get_pod(api.ns, name))).status == 404


async def test_deleting_twice_is_no_error_while_a_finalizer_keeps_the_pod(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(api.ns, pod(name, finalizers=[FINALIZER])))["metadata"]["uid"]
    await api.cluster.delete_pod(api.ns, name, uid)
    await api.cluster.delete_pod(api.ns, name, uid)


async def test_a_pod_on_its_way_out_is_not_bound(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(api.ns, pod(name, finalizers=[FINALIZER])))["metadata"]["uid"]
    await api.cluster.delete_pod(api.ns, name, uid)
    assert (await refused(api.cluster.bind_pod(api.ns, name, uid, "n1", {}))).status == 409


async def test_taking_a_finalizer_off_twice_is_nothing_and_leaves_those_of_others(api: Setup):
    name = api.name()
    finalizers = ["example.org/other", FINALIZER]
    uid = (await api.cluster.create_pod(api.ns, pod(name, finalizers=finalizers)))["metadata"]["uid"]
    await api.cluster.remove_finalizer(api.ns, name, uid, FINALIZER)
    await api.cluster.remove_finalizer(api.ns, name, uid, FINALIZER)
    assert (await api.cluster.get_pod(api.ns, name))["metadata"]["finalizers"] == ["example.org/other"]


async def test_a_finalizer_is_not_taken_off_a_pod_with_another_uid(api: Setup):
    name = api.name()
    await api.cluster.create_pod(api.ns, pod(name, finalizers=[FINALIZER]))
    call = api.cluster.remove_finalizer(api.ns, name, "00000000-dead-4000-8000-000000000000", FINALIZER)
    assert (await refused(call)).status == 409
    assert (await api.cluster.get_pod(api.ns, name))["metadata"]["finalizers"] == [FINALIZER]


async def test_a_list_selects_by_equal_unequal_present_and_absent_labels(api: Setup):
    a, b, run, rank, other = api.name(), api.name(), f"{api.name()}/run", f"{api.name()}/rank", api.name()
    for value, number in ((a, "0"), (a, "1"), (b, "0")):
        await api.cluster.create_pod(api.ns, pod(f"{value}-{number}", labels={run: value, rank: number}))
    await api.cluster.create_pod(api.ns, pod(other))

    async def names(selector: str) -> set[str]:
        items, _version = await api.cluster.list("pods", selector)
        return {item["metadata"]["name"] for item in items}

    assert await names(f"{run}={a}") == {f"{a}-0", f"{a}-1"}
    assert await names(f"{run}={a},{rank}=1") == {f"{a}-1"}
    assert await names(run) == {f"{a}-0", f"{a}-1", f"{b}-0"}
    assert await names(f"{run},{run}!={a}") == {f"{b}-0"}
    assert other in await names(f"{run}!={a}")  # what has no label is unequal to any value
    without = await names(f"!{run}")
    assert other in without
    assert f"{a}-0" not in without
    assert {f"{a}-0", f"{a}-1", f"{b}-0", other} <= await names("")


async def test_a_list_selects_by_a_pods_scheduler_name_and_phase(api: Setup):
    run, ours, theirs = api.name(), api.name(), api.name()
    await api.cluster.create_pod(api.ns, pod(ours, labels={"run": run}))
    foreign = pod(theirs, labels={"run": run})
    foreign["spec"]["schedulerName"] = "somebody"
    await api.cluster.create_pod(api.ns, foreign)

    async def names(fields: str) -> list[str]:
        items, _version = await api.cluster.list("pods", f"run={run}", fields)
        return [item["metadata"]["name"] for item in items]

    assert await names("spec.schedulerName=tessera") == [ours]
    assert await names("spec.schedulerName!=tessera") == [theirs]
    assert await names("spec.schedulerName=tessera,status.phase=Running") == []
    assert await names("spec.nodeName=") == sorted([ours, theirs])
    assert await names(f"metadata.name={ours}") == [ours]


async def test_a_long_list_comes_in_pages_and_is_whole_and_of_one_version(api: Setup, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel_cluster, "_PAGE", 2)
    run, names = api.name(), [api.name() for _ in range(5)]
    for name in names:
        await api.cluster.create_pod(api.ns, pod(name, labels={"run": run}))
    found, version = await api.cluster.list("pods", f"run={run}", "status.phase!=Failed", lambda one: one["metadata"])
    assert sorted(meta["name"] for meta in found) == sorted(names)
    later = api.name()
    await api.cluster.create_pod(api.ns, pod(later, labels={"run": run}))
    (seen,) = await watch_until(api, version, of(later, "ADDED"), f"run={run}")
    assert seen.type == "ADDED"


async def test_pods_that_are_bound_and_not_ours_are_found_by_what_they_have_not(api: Setup):
    await api.add_node("n1")
    app, bound, ours, waiting = api.name(), api.name(), api.name(), api.name()
    for name, labels in ((bound, {}), (ours, {"tessera.io/run": "some"}), (waiting, {})):
        made = await api.cluster.create_pod(api.ns, pod(name, labels={"app": app, **labels}))
        if name != waiting:
            await api.cluster.bind_pod(api.ns, name, made["metadata"]["uid"], "n1", {})
    still_there = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
    found, _version = await api.cluster.list("pods", f"app={app},!tessera.io/run", still_there)
    assert [one["metadata"]["name"] for one in found] == [bound]


async def test_a_watch_by_fields_shows_what_comes_into_the_selection_and_what_leaves_it(api: Setup):
    await api.add_node("n1")
    name = api.name()
    _items, version = await api.cluster.list("pods", "", "spec.nodeName=")
    uid = (await api.cluster.create_pod(api.ns, pod(name)))["metadata"]["uid"]
    await api.cluster.bind_pod(api.ns, name, uid, "n1", {})
    seen = await watch_until(api, version, of(name, "DELETED"), "", "spec.nodeName=")
    assert [event.type for event in seen if event.object["metadata"].get("name") == name] == ["ADDED", "DELETED"]
    assert (await api.cluster.get_pod(api.ns, name))["metadata"]["uid"] == uid  # it only left the selection


async def test_an_annotation_of_a_node_is_set_on_exactly_the_version_that_was_seen(api: Setup):
    await api.add_node("n1")

    async def seen() -> dict:
        nodes, _version = await api.cluster.list("nodes")
        return next(node for node in nodes if node["metadata"]["name"] == "n1")["metadata"]

    before = ""
    while "example.org/lock" not in (await seen()).get("annotations", {}):  # its kubelet writes it, too
        before = (await seen())["resourceVersion"]
        with suppress(ApiError):
            await api.cluster.annotate_node("n1", before, {"example.org/lock": "mine"})
    error = await refused(api.cluster.annotate_node("n1", before, {"example.org/lock": "theirs"}))
    assert error.status == 409
    assert (await seen())["annotations"]["example.org/lock"] == "mine"


async def test_labels_of_a_node_are_set_and_taken_away_on_exactly_the_version_that_was_seen(api: Setup):
    await api.add_node("n1")

    async def seen() -> dict:
        nodes, _version = await api.cluster.list("nodes")
        return next(node for node in nodes if node["metadata"]["name"] == "n1")["metadata"]

    async def label(done: Callable[[dict], bool], **labels: str | None) -> str:
        before = ""
        while not done((await seen())["labels"]):  # its kubelet writes it, too
            before = (await seen())["resourceVersion"]
            with suppress(ApiError):
                await api.cluster.label_node("n1", before, labels)
        return before

    others = (await seen())["labels"]
    await label(lambda labels: labels.get("config") == "old", config="old", state="success")
    before = await label(lambda labels: labels.get("config") == "new", config="new", state=None)
    assert (await seen())["labels"] == {**others, "config": "new"}
    error = await refused(api.cluster.label_node("n1", before, {"config": "other"}))
    assert error.status == 409
    assert (await refused(api.cluster.label_node("nowhere", before, {"config": "other"}))).status == 404
    assert (await seen())["labels"] == {**others, "config": "new"}
    await label(lambda labels: "config" not in labels, config=None)  # other tests share this node


async def test_taints_of_a_node_are_replaced_on_exactly_the_version_that_was_seen(api: Setup):
    await api.add_node("n1")

    async def seen() -> dict:
        nodes, _version = await api.cluster.list("nodes")
        return next(node for node in nodes if node["metadata"]["name"] == "n1")

    async def taint(taints: list[dict], mark: str | None) -> str:
        before = ""
        while (await seen())["metadata"].get("annotations", {}).get("mark") != mark:  # its kubelet writes it, too
            before = (await seen())["metadata"]["resourceVersion"]
            with suppress(ApiError):
                await api.cluster.taint_node("n1", before, taints, {"mark": mark})
        return before

    theirs = list((await seen())["spec"].get("taints", ()))
    ours = {"key": "example.org/off", "value": "yes", "effect": "NoSchedule"}
    before = await taint([*theirs, ours], "ours")
    assert ours in (await seen())["spec"]["taints"]
    assert (await refused(api.cluster.taint_node("n1", before, theirs, {"mark": "late"}))).status == 409
    assert (await refused(api.cluster.taint_node("nowhere", before, theirs, {}))).status == 404
    await taint(theirs, None)  # other tests share this node
    assert list((await seen())["spec"].get("taints", ())) == theirs


async def test_nodes_are_listed_with_what_they_have(api: Setup):
    await api.add_node("n1")
    nodes, _version = await api.cluster.list("nodes")
    found = next(node for node in nodes if node["metadata"]["name"] == "n1")
    assert found["status"]["allocatable"]["nvidia.com/gpu"] == "2"


async def test_a_watch_from_a_list_shows_every_change_after_it_in_order(api: Setup):
    old, new = api.name(), api.name()
    await api.cluster.create_pod(api.ns, pod(old))
    _items, version = await api.cluster.list("pods")
    uid = (await api.cluster.create_pod(api.ns, pod(new, finalizers=[FINALIZER])))["metadata"]["uid"]
    await api.cluster.delete_pod(api.ns, new, uid)
    await api.cluster.remove_finalizer(api.ns, new, uid, FINALIZER)
    seen = await watch_until(api, version, of(new, "DELETED"))
    mine = [event.type for event in seen if event.object["metadata"].get("name") == new]
    assert mine == ["ADDED", "MODIFIED", "DELETED"]
    assert all(event.object["metadata"].get("name") != old for event in seen)


async def test_a_watch_with_a_selector_shows_only_what_it_selects(api: Setup):
    mine, theirs = api.name(), api.name()
    _items, version = await api.cluster.list("pods", f"app={mine}")
    await api.cluster.create_pod(api.ns, pod(theirs, labels={"app": theirs}))
    await api.cluster.create_pod(api.ns, pod(mine, labels={"app": mine}))
    seen = await watch_until(api, version, of(mine, "ADDED"), f"app={mine}")
    assert [event.object["metadata"]["name"] for event in seen if event.type != "BOOKMARK"] == [mine]


async def test_a_watch_shows_a_change_that_comes_while_it_waits(api: Setup):
    late = api.name()
    _items, version = await api.cluster.list("pods")
    waiting = asyncio.create_task(watch_until(api, version, of(late, "ADDED")))
    for _ in range(20):
        await asyncio.sleep(0)
    await api.cluster.create_pod(api.ns, pod(late))
    assert (await waiting)[-1].object["metadata"]["name"] == late


async def test_an_evicted_pod_is_deleted(api: Setup):
    name = api.name()
    uid = (await api.cluster.create_pod(api.ns, pod(name)))["metadata"]["uid"]
    await api.cluster.evict_pod(api.ns, name, uid)
    assert (await refused(api.cluster.get_pod(api.ns, name))).status == 404


async def test_an_eviction_with_another_uid_is_a_conflict(api: Setup):
    name = api.name()
    await api.cluster.create_pod(api.ns, pod(name))
    assert (await refused(api.cluster.evict_pod(api.ns, name, "00000000-dead-4000-8000-000000000000"))).status == 409


async def test_a_bound_pod_runs_and_ends_with_its_exit_code(api: Setup):
    await api.add_node("n1")
    name, notes = api.name(), {"tessera.io/simulate-seconds": "0.02", "tessera.io/simulate-exit-code": "3"}
    made = await api.cluster.create_pod(api.ns, pod(name, annotations=notes))
    await api.cluster.bind_pod(api.ns, name, made["metadata"]["uid"], "n1", {})
    seen = await watch_until(api, made["metadata"]["resourceVersion"], in_phase(name, "Failed"))
    phases = [event.object["status"]["phase"] for event in seen if event.object["metadata"].get("name") == name]
    assert list(dict.fromkeys(phases)) == ["Pending", "Running", "Failed"]
    state = seen[-1].object["status"]["containerStatuses"][0]["state"]
    assert state["terminated"]["exitCode"] == 3
    assert state["terminated"]["finishedAt"]


async def test_a_deleted_running_pod_is_kept_by_its_finalizer_with_a_terminal_phase(api: Setup):
    await api.add_node("n1")
    held = api.name()
    made = pod(held, finalizers=[FINALIZER], annotations={"tessera.io/simulate-seconds": "3600"})
    meta = (await api.cluster.create_pod(api.ns, made))["metadata"]
    await api.cluster.bind_pod(api.ns, held, meta["uid"], "n1", {})
    await watch_until(api, meta["resourceVersion"], in_phase(held, "Running"))
    await api.cluster.delete_pod(api.ns, held, meta["uid"], 5)
    await watch_until(api, meta["resourceVersion"], in_phase(held, "Failed"))
    await api.cluster.remove_finalizer(api.ns, held, meta["uid"], FINALIZER)
    await watch_until(api, meta["resourceVersion"], of(held, "DELETED"))  # the kubelet may still have to say its leave
    assert (await refused(api.cluster.get_pod(api.ns, held))).status == 404


async def test_a_watch_from_a_version_that_the_server_has_forgotten_is_gone(api: Setup):
    version = await api.ancient()
    with pytest.raises(ApiError) as caught:
        await watch_until(api, version, lambda _: True)
    assert caught.value.status == 410


async def test_a_bookmark_tells_a_watch_how_far_it_came(api: Setup, monkeypatch: pytest.MonkeyPatch):
    """Of changes that it does not select; a server sends one shortly before it ends a watch."""
    if isinstance(api.cluster, MemoryCluster):
        pytest.skip("its watches never end, so that this would take 256 changes")
    monkeypatch.setattr("tessera.kernel.kubernetes.cluster._WATCH_SECONDS", 4)
    _items, version = await api.cluster.list("pods")
    bookmark = watch_until(api, version, lambda event: event.type == "BOOKMARK", f"nobody={api.name()}")
    waiting = asyncio.create_task(bookmark)
    while not waiting.done():  # a real server tells only of what came after the watch began
        await api.cluster.create_pod(api.ns, pod(api.name()))
        await asyncio.wait([waiting], timeout=0.5)
    assert int((await waiting)[-1].object["metadata"]["resourceVersion"]) > int(version)


async def test_an_eviction_that_a_disruption_budget_forbids_is_too_many_requests_and_the_pod_goes_on(api: Setup):
    await api.add_node("n1")
    name, labels = api.name(), {"app": api.name()}
    made = pod(name, labels=labels, annotations={"tessera.io/simulate-seconds": "3600"})
    meta = (await api.cluster.create_pod(api.ns, made))["metadata"]
    await api.cluster.bind_pod(api.ns, name, meta["uid"], "n1", {})
    await watch_until(api, meta["resourceVersion"], in_phase(name, "Running"))
    await api.forbid_eviction(labels)
    error = await refused(api.cluster.evict_pod(api.ns, name, meta["uid"]))
    assert (error.status, error.reason) == (429, "TooManyRequests")
    assert "disruption budget" in error.message
    assert "deletionTimestamp" not in (await api.cluster.get_pod(api.ns, name))["metadata"]


async def test_an_evicted_running_pod_says_that_it_was_evicted_and_ends(api: Setup):
    await api.add_node("n1")
    name = api.name()
    made = pod(name, finalizers=[FINALIZER], annotations={"tessera.io/simulate-seconds": "3600"})
    meta = (await api.cluster.create_pod(api.ns, made))["metadata"]
    await api.cluster.bind_pod(api.ns, name, meta["uid"], "n1", {})
    await watch_until(api, meta["resourceVersion"], in_phase(name, "Running"))
    await api.cluster.evict_pod(api.ns, name, meta["uid"], 5)
    seen = await watch_until(api, meta["resourceVersion"], in_phase(name, "Failed"))
    conditions = {one["type"]: one for one in seen[-1].object["status"]["conditions"]}
    assert conditions["DisruptionTarget"]["reason"] == "EvictionByEvictionAPI"
    await api.cluster.remove_finalizer(api.ns, name, meta["uid"], FINALIZER)


async def test_an_identity_without_the_right_is_forbidden(api: Setup):
    error = await refused(api.reader.create_pod(api.ns, pod(api.name())))
    assert (error.status, error.reason) == (403, "Forbidden")
    await api.reader.list("pods")


async def test_a_lost_answer_is_transient_and_a_repeat_finds_the_effect(api: Setup):
    if api.lose_answer is None:
        pytest.skip("answers cannot be lost on order here")
    name = api.name()
    api.lose_answer("create")
    with pytest.raises(Transient):
        await api.cluster.create_pod(api.ns, pod(name))
    assert (await refused(api.cluster.create_pod(api.ns, pod(name)))).reason == "AlreadyExists"


async def test_what_a_caller_does_to_an_object_changes_nothing_in_the_cluster(api: Setup):
    name = api.name()
    made = await api.cluster.create_pod(api.ns, pod(name, labels={"app": "mine"}))
    made["metadata"]["labels"]["app"] = "changed"
    assert (await api.cluster.get_pod(api.ns, name))["metadata"]["labels"] == {"app": "mine"}


async def test_an_annotation_may_be_held_to_one_version_of_the_pod(api: Setup):
    name = api.name()
    made = await api.cluster.create_pod(api.ns, pod(name, annotations={"own": "1"}))
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    await api.cluster.annotate_pod(api.ns, name, uid, {"new": "2"}, version)
    now = await api.cluster.get_pod(api.ns, name)
    assert now["metadata"]["annotations"] == {"own": "1", "new": "2"}
    assert (await refused(api.cluster.annotate_pod(api.ns, name, uid, {"new": "3"}, version))).status == 409
    version = now["metadata"]["resourceVersion"]
    assert (await refused(api.cluster.annotate_pod(api.ns, name, "another", {"new": "3"}, version))).status == 409
    assert (await refused(api.cluster.annotate_pod(api.ns, api.name(), uid, {"new": "3"}, version))).status == 404


async def test_a_bind_of_a_version_that_is_not_the_pods_any_more_is_a_conflict_and_binds_nothing(api: Setup):
    name = api.name()
    made = (await api.cluster.create_pod(api.ns, pod(name)))["metadata"]
    await api.cluster.annotate_pod(api.ns, name, made["uid"], {"changed": "yes"})
    await api.add_node("node-1")
    late = api.cluster.bind_pod(api.ns, name, made["uid"], "node-1", {}, made["resourceVersion"])
    assert (await refused(late)).status == 409
    now = await api.cluster.get_pod(api.ns, name)
    assert not now["spec"].get("nodeName")
    await api.cluster.bind_pod(api.ns, name, made["uid"], "node-1", {}, now["metadata"]["resourceVersion"])
    assert (await api.cluster.get_pod(api.ns, name))["spec"]["nodeName"] == "node-1"


async def test_a_condition_is_written_into_the_status_of_the_pod_that_was_meant(api: Setup):
    name = api.name()
    made = (await api.cluster.create_pod(api.ns, pod(name)))["metadata"]
    waits = {"type": "PodScheduled", "status": "False", "reason": "NoFit", "message": "no node has room"}
    named = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    patch = {"metadata": named, "status": {"conditions": [waits]}}
    await api.cluster.patch_pod_status(api.ns, name, patch)
    (condition,) = (await api.cluster.get_pod(api.ns, name))["status"]["conditions"]
    assert condition.items() >= waits.items()
    assert (await refused(api.cluster.patch_pod_status(api.ns, name, patch))).status == 409


async def test_an_event_is_made_once(api: Setup):
    name = api.name()
    about = {"kind": "Pod", "apiVersion": "v1", "namespace": api.ns, "name": name, "uid": "u"}
    event = {"metadata": {"name": name, "namespace": api.ns}, "involvedObject": about, "reason": "NoFit"}
    await api.cluster.create_event(api.ns, event)
    assert (await refused(api.cluster.create_event(api.ns, event))).status == 409


async def test_the_events_about_one_object_are_listed_and_no_others(api: Setup):
    names = [api.name() for _ in range(3)]
    for name, uid in zip(names, ("one", "one", "another"), strict=True):
        about = {"kind": "Pod", "apiVersion": "v1", "namespace": api.ns, "name": "p", "uid": f"{names[0]}-{uid}"}
        event = {"metadata": {"name": name, "namespace": api.ns}, "involvedObject": about, "reason": "FailedMount"}
        await api.cluster.create_event(api.ns, event)
    found = await api.cluster.list_events(api.ns, f"{names[0]}-one")
    assert sorted(event["metadata"]["name"] for event in found) == sorted(names[:2])
    assert {event["reason"] for event in found} == {"FailedMount"}
    assert await api.cluster.list_events(api.ns, "nobody") == []


async def test_any_object_is_read_by_its_kind(api: Setup):
    name = api.name()
    made = await api.cluster.create_pod(api.ns, pod(name))
    found = await api.cluster.get_object("v1", "Pod", api.ns, name)
    assert found["metadata"]["uid"] == made["metadata"]["uid"]


@pytest.mark.parametrize(("version", "kind"), [("batch/v1", "Job"), ("nobody.example/v1", "Unheard")])
async def test_an_object_that_is_not_there_or_of_no_kind_is_not_found(api: Setup, version: str, kind: str):
    assert (await refused(api.cluster.get_object(version, kind, api.ns, api.name()))).status == 404


async def test_an_object_of_no_namespace_is_read_by_its_kind(api: Setup):
    assert (await refused(api.cluster.get_object("v1", "PersistentVolume", "", api.name()))).status == 404
    assert (await refused(api.cluster.get_object("storage.k8s.io/v1", "StorageClass", "", api.name()))).status == 404


def suspended_job(api: Setup) -> dict[str, Any]:
    template = {"spec": {**pod("any")["spec"], "restartPolicy": "Never"}}
    meta = {"name": api.name(), "namespace": api.ns}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"suspend": True, "template": template}}


async def resume(api: Setup, name: str, uid: str, version: str) -> None:
    held = {"uid": uid, "resourceVersion": version}
    await api.cluster.patch_object("batch/v1", "Job", api.ns, name, {"metadata": held, "spec": {"suspend": False}})


async def test_a_suspended_job_is_resumed_at_the_version_that_was_looked_at_and_at_no_other(api: Setup):
    name = (await api.create(suspended_job(api)))["metadata"]["name"]

    async def seen() -> dict[str, Any]:
        return await api.cluster.get_object("batch/v1", "Job", api.ns, name)

    uid, version = (await seen())["metadata"]["uid"], (await seen())["metadata"]["resourceVersion"]
    assert (await refused(resume(api, name, "another", version))).status == 409
    assert (await refused(resume(api, name, uid, "1"))).status == 409
    assert (await seen())["spec"]["suspend"] is True
    async with asyncio.timeout(PATIENT):
        while (await seen())["spec"]["suspend"]:  # a controller may write its status between our look and our call
            with suppress(ApiError):
                await resume(api, name, uid, (await seen())["metadata"]["resourceVersion"])


async def test_jobs_and_priority_classes_are_listed(api: Setup):
    made = await api.create(suspended_job(api))
    name = api.name()
    wide = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    await api.create(wide)
    jobs, _ = await api.cluster.list("jobs")
    assert made["metadata"]["name"] in {one["metadata"]["name"] for one in jobs}
    classes, _ = await api.cluster.list("priorityclasses")
    assert {one["metadata"]["name"]: one["value"] for one in classes}[name] == 1000


async def test_a_long_list_comes_in_pages_whole_and_as_of_one_version(api: Setup, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tessera.kernel.kubernetes.cluster._PAGE", 2)
    app, names = api.name(), [api.name() for _ in range(5)]
    for name in names:
        await api.cluster.create_pod(api.ns, pod(name, labels={"app": app}))
    read = 0

    def reduced(found: dict[str, Any]) -> dict[str, Any]:
        nonlocal read
        read += 1
        return {"name": found["metadata"]["name"]}

    found, version = await api.cluster.list("pods", f"app={app}", reduce=reduced)
    assert sorted(one["name"] for one in found) == sorted(names)
    assert read == len(names)
    later = api.name()
    await api.cluster.create_pod(api.ns, pod(later, labels={"app": app}))
    seen = await watch_until(api, version, of(later, "ADDED"), f"app={app}")
    assert [event.object["metadata"].get("name") for event in seen if event.type != "BOOKMARK"] == [later]


async def test_a_job_that_is_not_there_is_not_resumed(api: Setup):
    assert (await refused(resume(api, api.name(), "u", "1"))).status == 404


def service(name: str, **labels: str) -> dict[str, Any]:
    """Headless, with a port, as those are by which pods of a run find one another."""
    ports = [{"name": "rendezvous", "port": 29500, "protocol": "TCP"}]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": labels}, "spec": spec}


async def test_a_service_is_made_once_read_listed_by_its_label_and_deleted_by_its_uid(api: Setup):
    name = f"run-{api.name()}"
    created = await api.cluster.create_service(api.ns, service(name, run=name))
    assert (await refused(api.cluster.create_service(api.ns, service(name, run=name)))).status == 409
    made = await api.cluster.get_service(api.ns, name)
    assert created["metadata"]["uid"] == made["metadata"]["uid"]
    assert made["spec"]["clusterIP"] == "None"
    found, _ = await api.cluster.list("services", f"run={name}")
    assert [one["metadata"]["uid"] for one in found] == [made["metadata"]["uid"]]
    assert (await refused(api.cluster.delete_service(api.ns, name, "another"))).status == 409
    await api.cluster.delete_service(api.ns, name, made["metadata"]["uid"])
    assert (await refused(api.cluster.get_service(api.ns, name))).status == 404
    assert (await refused(api.cluster.delete_service(api.ns, name, made["metadata"]["uid"]))).status == 404


async def test_a_secret_is_made_once_and_goes_with_the_service_that_owns_it(api: Setup):
    name = f"run-{api.name()}"
    made = await api.cluster.create_service(api.ns, service(name, run=name))
    owner = {"apiVersion": "v1", "kind": "Service", "name": name, "uid": made["metadata"]["uid"]}
    meta = {"name": name, "ownerReferences": [owner]}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "immutable": True, "data": {"key": "AAAA"}}
    await api.cluster.create_secret(api.ns, secret)
    assert (await refused(api.cluster.create_secret(api.ns, secret))).status == 409
    await api.cluster.delete_service(api.ns, name, made["metadata"]["uid"])
    await until_gone(api, "v1", "Secret", name)


async def test_an_ingress_is_made_once_and_goes_with_the_service_that_owns_it(api: Setup):
    name = f"run-{api.name()}"
    made = await api.cluster.create_service(api.ns, service(name, run=name))
    owner = {"apiVersion": "v1", "kind": "Service", "name": name, "uid": made["metadata"]["uid"]}
    backend = {"service": {"name": name, "port": {"number": 80}}}
    rule = {"host": "one.example.com", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    ingress = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {"rules": [rule]},
    }
    await api.cluster.create_ingress(api.ns, ingress)
    assert (await refused(api.cluster.create_ingress(api.ns, ingress))).status == 409
    await api.cluster.delete_service(api.ns, name, made["metadata"]["uid"])
    await until_gone(api, "networking.k8s.io/v1", "Ingress", name)


async def until_gone(api: Setup, version: str, kind: str, name: str) -> None:
    async def is_there() -> bool:
        try:
            await api.cluster.get_object(version, kind, api.ns, name)
        except ApiError as error:
            return error.status != 404
        return True

    async with asyncio.timeout(PATIENT):
        while await is_there():
            await asyncio.sleep(0.05)
