"""
Whatever the API may say of an object that we watch: null for any field, a list that is missing, a phase that nobody
knows, a number as text. It is read, in part where no more can be read, and nobody who reads it ends.
"""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.binder.adoption.decide.from_template import sets_of_suspended, spec_of_suspended
from tessera.binder.adoption.decide.owner_conditions import ending_of, placed_patch, why_failed
from tessera.binder.adoption.decide.spec import spec_of
from tessera.binder.adoption.decide.suspending import is_controller_behind, is_suspended, look_at
from tessera.binder.adoption.decide.verdicts import Verdict, condition_patch, make_event
from tessera.binder.decide.ends import suspects
from tessera.binder.decide.nodes import node_seen
from tessera.binder.decide.steps import broken_of, failed_at, no_boots, read_pod
from tessera.binder.nodes.others import reduced
from tessera.binder.nodes.uses import only_what_is_read, uses_at_work
from tessera.binder.workloads.port import Group, PodSet
from tessera.binder.workloads.references import OwnerRef, controller_of
from tessera.binder.workloads.registry import KINDS, group_of, kind_of_object, size_of, survives_eviction, waits
from tessera.kernel.kubernetes.node_troubles import kind_of, unhealthy_devices
from tessera.kernel.kubernetes.objects import ODD_MAX, SHAPES, _fitted, readable
from tessera.kernel.kubernetes.pods_by_run import labelled_run
from tessera.reclamation.absence.handlers import only_what_is_judged
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import bound_for, given_back_ms, has_ended, ledger_of, run_and_rank, shard_of
from tessera_schemas.facts import RunEnded
from tessera_schemas.reasons import Code, Reason

NOW = "2026-11-27T12:00:00Z"
JUNK: list[Any] = [None, "", "odd", "7", 7, -1, 2**70, 1.5, True, [], {}, [None], ["odd"], [{}], {"odd": None}, "\x00"]
IDENTITY = (("metadata",), ("metadata", "name"), ("metadata", "uid"), ("metadata", "resourceVersion"))
ODD = Verdict("GangIncomplete", "not all are there", warning=False)


def meta(name: str, **more: Any) -> Json:
    return {"name": name, "namespace": "lab", "uid": f"uid-{name}", "resourceVersion": "7", **more}


def a_job() -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta("train", labels={"a": "b"}, annotations={"tessera.io/suspended": "true"}),
        "spec": {
            "parallelism": 2,
            "completions": 2,
            "backoffLimit": 3,
            "suspend": True,
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "uid-train"}},
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]},
            "template": {"metadata": {"labels": {"x": "y"}}, "spec": a_pod()["spec"]},
        },
        "status": {
            "succeeded": 0,
            "failed": 1,
            "uncountedTerminatedPods": {"failed": ["u"], "succeeded": []},
            "conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "m"}],
        },
    }


def a_pod() -> Json:
    ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "m", "startedAt": NOW, "finishedAt": NOW}
    state = {"state": {"terminated": ended}, "lastState": {"running": {"startedAt": NOW}}}
    health = [{"name": "nvidia.com/gpu", "resources": [{"resourceID": "0", "health": "Unhealthy"}]}]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-train", "controller": True}
    return {
        "metadata": meta(
            "train-0",
            labels={"tessera.io/run": "r-1", "tessera.io/rank": "0", "tessera.io/gang": "g"},
            annotations={"tessera.io/permit": "uid-train-0", "tessera.io/run": "r-1", "tessera.io/gang-size": "1"},
            finalizers=["tessera.io/held"],
            ownerReferences=[owner],
            deletionTimestamp=NOW,
            deletionGracePeriodSeconds=30,
        ),
        "spec": {
            "nodeName": "node-a",
            "schedulerName": "tessera",
            "priority": 0,
            "activeDeadlineSeconds": 60,
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "nodeSelector": {"a": "b"},
            "affinity": {
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
                    ]
                }
            },
            "overhead": {"cpu": "1m"},
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
            "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
            "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}],
        },
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "m",
            "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "lastTransitionTime": NOW}
            ],
            "containerStatuses": [{"name": "main", "image": "x", "allocatedResourcesStatus": health, **state}],
            "initContainerStatuses": [
                {"name": "i", "image": "x", "state": {"waiting": {"reason": "r", "message": "m"}}}
            ],
        },
    }


def a_waiting_pod() -> Json:
    pod = a_pod()
    del pod["spec"]["nodeName"], pod["metadata"]["deletionTimestamp"]
    return pod | {"status": {"phase": "Pending", "containerStatuses": pod["status"]["initContainerStatuses"]}}


def a_node() -> Json:
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "4"}
    return {
        "metadata": meta("node-a", labels={"nvidia.com/gpu.memory": "81920"}, annotations={"a": "b"}),
        "spec": {"unschedulable": False, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        "status": {
            "capacity": amounts,
            "allocatable": dict(amounts),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": NOW}],
            "nodeInfo": {"bootID": "b"},
        },
    }


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield (*path, key)
        yield from paths(one, (*path, key))


def odd(base: Callable[[], Json]) -> st.SearchStrategy[Json]:
    """The object with up to four of its fields something else, or away; what tells it from others stays."""
    there = [path for path in paths(base()) if path not in IDENTITY]

    def changed(changes: list[tuple[tuple[Any, ...], Any]]) -> Json:
        thing = base()
        for path, junk in changes:
            at: Any = thing
            for key in path[:-1]:
                at = (
                    at[key]
                    if (isinstance(at, dict) and key in at) or (isinstance(at, list) and key == 0 and at)
                    else None
                )
            if isinstance(at, dict):
                at[path[-1]] = copy.deepcopy(junk)
            elif isinstance(at, list) and at:
                at[0] = copy.deepcopy(junk)
        return thing

    return st.lists(st.tuples(st.sampled_from(there), st.sampled_from(JUNK)), min_size=1, max_size=4).map(changed)


def held(thing: Json) -> Json:
    found, _ = readable(thing)
    assert found["metadata"]["uid"] == thing["metadata"]["uid"]
    return found


def told(pod: Json, name: str) -> None:
    """What a run's end says of the pod can be written down."""
    read = read_pod(pod)
    broken = broken_of(read, 0, True, no_boots)
    [found] = suspects([broken])
    reason = Reason(code=found.code, numbers=found.numbers, detail=found.detail[:1024])
    RunEnded(kind="run_ended", run_id="a" * 20 + "-1", reason=reason, exit_code=found.end.exit_code)
    assert (read.name, read.node) == (name, read.node)


@settings(max_examples=600)
@given(st.one_of(odd(a_pod), odd(a_waiting_pod)))
def test_an_odd_pod_is_read_by_all_who_watch_pods(thing: Json) -> None:
    pod = held(thing)
    told(pod, "train-0")
    for reduce in (only_what_is_read, only_what_is_judged, reduced):
        kept = reduce(pod)
        assert kept["metadata"]["uid"] == "uid-train-0"
    told(only_what_is_read(pod), "train-0")
    for ask in (labelled_run, bound_for, run_and_rank, ledger_of, shard_of, given_back_ms, has_ended, failed_at, waits):
        ask(pod)
    for ask_other in (unhealthy_devices, uses_at_work, controller_of):
        ask_other(pod)
    condition_patch(pod, ODD, NOW)
    make_event(pod, ODD, NOW)


@settings(max_examples=600)
@given(odd(a_waiting_pod), odd(a_job))
def test_an_odd_pod_of_an_odd_owner_is_adopted_or_told_why_not(pod: Json, job: Json) -> None:
    pod, owner = held(pod), held(job)
    found = group_of(pod, {OwnerRef("batch/v1", "Job", "lab", "train", "uid-train"): owner})
    if not isinstance(found, Group):
        assert isinstance(found, OwnerRef | Reason)
        return
    size = size_of(found, owner, [pod])
    survives_eviction(found, [pod], owner)
    if isinstance(size, int):
        spec_of(found, [pod], size, owner)


@settings(max_examples=600)
@given(odd(a_job))
def test_an_odd_owner_is_read_by_all_who_watch_owners(thing: Json) -> None:
    owner = held(thing) | {"apiVersion": "batch/v1", "kind": "Job"}
    kind = kind_of_object(owner)
    assert kind is not None
    assert ending_of(owner) in ("", "complete", "failed")
    assert why_failed(owner).detail.isprintable()
    look_at(owner, True, None)
    is_suspended(owner)
    is_controller_behind(owner)
    placed_patch(owner, kind, ODD, NOW)
    assert all(isinstance(each, PodSet) for each in kind.pod_sets(owner))
    sets = sets_of_suspended(owner, lambda _: None)
    if sets is not None and not isinstance(sets, Reason):
        spec_of_suspended(owner, sets, [])


@settings(max_examples=400)
@given(odd(a_node))
def test_an_odd_node_is_read_or_takes_nothing_new(thing: Json) -> None:
    node = held(thing)
    kind_of(node)
    shard_of(node)
    seen = node_seen(node)
    assert not seen.ready or seen.cpu_milli >= 0


@settings(max_examples=600)
@given(odd(a_pod))
def test_what_fits_as_it_is_reads_as_what_is_fitted_part_by_part(thing: Json) -> None:
    found, odd_fields = readable(thing)
    odd_parts: list[str] = []
    assert found == _fitted(thing, SHAPES, None, odd_parts)
    assert odd_fields == odd_parts[:ODD_MAX]


def test_a_usual_object_is_handed_back_itself() -> None:
    pod = a_pod()
    assert readable(pod)[0] is pod


@pytest.mark.parametrize("base", [a_pod, a_node, a_job], ids=lambda base: str(base.__name__))
def test_null_is_the_same_as_not_there(base: Callable[[], Json]) -> None:
    """Each field by itself."""
    for path in paths(base()):
        if path in IDENTITY or isinstance(path[-1], int):
            continue
        with_null, without = base(), base()
        for thing in (with_null, without):
            at: Any = thing
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = None
            if thing is without:
                del at[path[-1]]
        assert readable(with_null) == (without, []), path


def test_what_cannot_be_read_is_named_and_nothing_is_changed_in_place() -> None:
    pod = a_pod()
    pod["metadata"]["labels"] = ["odd"]
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] = "137"
    before = json.dumps(pod)
    found, fields = readable(pod)
    assert fields == ["metadata.labels", "status.containerStatuses[0].state.terminated.exitCode"]
    assert read_pod(found).end.exit_code is None
    assert json.dumps(pod) == before


@pytest.mark.parametrize("thing", [None, [], "pod", {}, {"metadata": None}, {"metadata": {"name": "a", "uid": 7}}])
def test_what_cannot_be_told_from_others_is_put_aside(thing: object) -> None:
    assert readable(thing)[0] == {}


def test_every_kind_that_is_watched_reads_an_empty_object() -> None:
    for kind in KINDS:
        for version, name in kind.watched:
            owner = {"apiVersion": version, "kind": name, "metadata": meta("empty")}
            assert list(kind.pod_sets(owner)) is not None
            assert ending_of(owner) == ""
            assert kind.size(owner) is not None


def test_a_run_that_ended_in_a_way_that_nobody_saw_has_an_end() -> None:
    pod = a_pod()
    del pod["metadata"]["deletionTimestamp"]
    pod["status"]["conditions"] = None
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = None
    assert broken_of(read_pod(held(pod)), 0, True, no_boots).code is Code.NODE_PRESSURE
