"""What the binder says about a run, from what the cluster shows of its pods."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from tessera.binder.decide.ends import end_for, reason_for
from tessera.binder.decide.steps import as_told, find_own_end, read_pod, seconds_to_settle, to_report
from tessera.domain.entities import Run, SurplusPod
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import RANK_LABEL, RUN_LABEL
from tessera_schemas.facts import AnyFact, PodsBound, RunEnded, RunStarted
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import RUN_ENDS_FROM, SCRIPT_WORDS_FROM, STARTS_TELL_ALL_FROM
from tests.builders import job_spec, placement, role
from tests.unit.binder.binder_builders import RUN, api_pod, run

TWO = job_spec(role(replicas=2))
gone, going = partial(api_pod, 1, "Failed"), partial(api_pod, 1, deleting=True)


def said(of: Run, *pods: Json) -> list[str]:
    return [fact.kind for fact in to_report(of, [read_pod(pod) for pod in pods])]


def end(*pods: Json, of: Run | None = None) -> RunEnded:
    gang = of or run(TWO, pods=2, bound=True, started=True)
    (fact,) = to_report(gang, [read_pod(pod) for pod in pods], lambda node: "boot-2")
    assert isinstance(fact, RunEnded)
    return fact


def code_of(fact: RunEnded) -> Code:
    assert fact.reason is not None
    return fact.reason.code


def a_run(**more: bool) -> Run:
    return run(TWO, pods=2, **more)


STORIES: list[tuple[str, Run, Sequence[Json], list[str]]] = [
    ("nothing is bound yet", a_run(), [api_pod(0, "Pending", ""), api_pod(1, "Pending", "")], []),
    ("one pod is bound", a_run(), [api_pod(0, "Pending"), api_pod(1, "Pending", "")], []),
    ("all are bound", a_run(), [api_pod(0, "Pending"), api_pod(1, "Pending")], ["pods_bound"]),
    ("that was known", a_run(bound=True), [api_pod(0, "Pending"), api_pod(1, "Pending")], []),
    ("one pod runs", a_run(bound=True), [api_pod(0), api_pod(1, "Pending")], []),
    ("all run", a_run(bound=True), [api_pod(0), api_pod(1)], ["run_started"]),
    ("all run, and nothing was known", a_run(), [api_pod(0), api_pod(1)], ["pods_bound", "run_started"]),
    ("one is done already", a_run(bound=True), [api_pod(0, "Succeeded"), api_pod(1)], ["run_started"]),
    (
        "all are done",
        a_run(bound=True, started=True),
        [api_pod(0, "Succeeded"), api_pod(1, "Succeeded")],
        ["run_ended"],
    ),
    (
        "all are done before anything was said",
        a_run(),
        [api_pod(0, "Succeeded"), api_pod(1, "Succeeded")],
        ["pods_bound", "run_started", "run_ended"],
    ),
    ("a pod was not seen yet", a_run(), [api_pod(0)], []),
    (
        "one of two failed",
        a_run(bound=True, started=True),
        [api_pod(0), gone(exit_code=1)],
        ["run_ended"],
    ),
    ("one failed and one was not seen", a_run(), [gone(exit_code=1)], ["run_ended"]),
    ("a pod of another run's uid", a_run(), [api_pod(0), api_pod(1, uid="impostor")], []),
    (
        "a done pod that is being cleared away",
        a_run(bound=True, started=True),
        [api_pod(0, "Succeeded", deleting=True), api_pod(1, "Succeeded")],
        ["run_ended"],
    ),
]


@pytest.mark.parametrize(("of", "pods", "facts"), [s[1:] for s in STORIES], ids=[s[0] for s in STORIES])
def test_a_run_is_reported_as_its_pods_are(of: Run, pods: Sequence[Json], facts: list[str]) -> None:
    assert said(of, *pods) == facts
    assert said(of, *reversed(pods)) == facts


BOUND, STARTED, SUCCEEDED, FAILED_IN_PART = (
    PodsBound(kind="pods_bound", run_id=RUN),
    RunStarted(kind="run_started", run_id=RUN),
    RunEnded(kind="run_ended", run_id=RUN),
    RunEnded(kind="run_ended", run_id=RUN, reason=Reason(code=Code.POD_FAILED)),
)


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ([], []),
        ([BOUND], [BOUND]),
        ([BOUND, STARTED], [STARTED]),
        ([BOUND, STARTED, SUCCEEDED], [SUCCEEDED]),
        ([BOUND, STARTED, FAILED_IN_PART], [BOUND, STARTED, FAILED_IN_PART]),  # a failure does not tell of a start
        ([STARTED, SUCCEEDED], [SUCCEEDED]),
    ],
)
def test_what_is_seen_at_one_look_is_told_once_to_who_understands_it(seen: list[AnyFact], told: list[AnyFact]) -> None:
    assert list(as_told(seen, STARTS_TELL_ALL_FROM)) == told
    assert list(as_told(seen, STARTS_TELL_ALL_FROM - 1)) == seen


def test_a_success_has_no_reason() -> None:
    fact = end(api_pod(0, "Succeeded"), api_pod(1, "Succeeded"))
    assert (fact.run_id, fact.reason, fact.own) == (RUN, None, False)


AT = "2026-01-01T00:00:00Z"
LIMIT = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
PRESSURE = "The node was low on resource: memory. "
KUBELET, EVICTION = "TerminationByKubelet", "EvictionByEvictionAPI"
FAILED, PRESSED, RESTARTED, EVICTED, SHUT_DOWN = (
    Code.POD_FAILED,
    Code.NODE_PRESSURE,
    Code.NODE_RESTARTED,
    Code.POD_EVICTED,
    Code.NODE_SHUT_DOWN,
)
REASONS = [
    ("the program failed", gone(exit_code=3), FAILED, True),
    ("it ran out of memory", gone(exit_code=137, why="OOMKilled"), FAILED, True),
    ("it reached its time limit", gone(reason="DeadlineExceeded"), Code.TIME_LIMIT, True),
    ("somebody deleted it", api_pod(1, deleting=True), Code.POD_DELETED, False),
    ("somebody deleted it before it ran", api_pod(1, "Pending", "", deleting=True), Code.POD_DELETED, False),
    (
        "it took more disk than it asked for",
        gone(reason="Evicted", exit_code=137, message=LIMIT),
        Code.POD_FAILED,
        True,
    ),
    ("it was evicted", going(disrupted=EVICTION), EVICTED, False),
    (
        "it was evicted, and failed on its way",
        gone(deleting=True, exit_code=1, disrupted=EVICTION),
        Code.POD_EVICTED,
        False,
    ),
    ("a taint drove it away", going(disrupted="DeletionByTaintManager"), EVICTED, False),
    (
        "another scheduler preempted it",
        going(disrupted="PreemptionByScheduler"),
        Code.POD_EVICTED,
        False,
    ),
    ("a controller disrupted it", going(disrupted="SomethingNew"), EVICTED, False),
    ("its node is no more", gone(deleting=True, disrupted="DeletionByPodGC"), Code.NODE_LOST, False),
    (
        "the node was short of memory",
        gone(reason="Evicted", exit_code=137, disrupted=KUBELET, message=PRESSURE),
        Code.NODE_PRESSURE,
        False,
    ),
    ("an old kubelet evicted it", gone(reason="Evicted", exit_code=137), PRESSED, False),
    (
        "a critical pod took its place",
        gone(reason="Preempting", exit_code=143, disrupted=KUBELET),
        Code.NODE_PRESSURE,
        False,
    ),
    (
        "its kubelet ended it",
        gone(exit_code=143, disrupted=KUBELET),
        Code.NODE_PRESSURE,
        False,
    ),
    (
        "the node was shut down",
        gone(reason="Terminated", exit_code=143, disrupted=KUBELET),
        Code.NODE_SHUT_DOWN,
        False,
    ),
    ("an old kubelet was shut down", gone(reason="NodeShutdown"), SHUT_DOWN, False),
    (
        "its container was gone after a restart",
        gone(exit_code=137, why="ContainerStatusUnknown"),
        Code.NODE_RESTARTED,
        False,
    ),
    ("containerd did not know its end", gone(exit_code=255, why="Unknown"), RESTARTED, False),
    ("killed in another boot", gone(exit_code=143, boot="boot-1"), RESTARTED, False),
    ("killed in this boot", gone(exit_code=143, boot="boot-2"), FAILED, True),
    ("failed in another boot", gone(exit_code=1, boot="boot-1"), FAILED, True),
    (
        "out of memory in another boot",
        gone(exit_code=137, why="OOMKilled", boot="boot-1"),
        Code.POD_FAILED,
        True,
    ),
    (
        "a kubelet that started anew did not take it",
        gone(reason="UnexpectedAdmissionError"),
        Code.NODE_RESTARTED,
        False,
    ),
    (
        "it failed long before it was deleted",
        gone(exit_code=3, finished=AT, deleting="2026-01-01T00:10:00Z"),
        Code.POD_FAILED,
        True,
    ),
    (
        "it failed when it was deleted",
        gone(exit_code=3, finished=AT, deleting=AT),
        Code.POD_DELETED,
        False,
    ),
    ("a time that is null", gone(exit_code=3, finished=None), FAILED, True),
]


@pytest.mark.parametrize(("pod", "code", "own"), [r[1:] for r in REASONS], ids=[r[0] for r in REASONS])
def test_an_end_has_a_typed_reason_and_says_whose_fault_it_was(pod: Json, code: Code, own: bool) -> None:
    fact = end(api_pod(0), pod)
    assert fact.reason is not None
    assert (fact.reason.code, fact.own, fact.rank) == (code, own, 1)


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfcpu", "OutOfnvidia.com/gpu", "AppArmor"])
def test_a_node_refuses_only_pods_that_never_ran(reason: str) -> None:
    pods = api_pod(0), gone(reason=reason)
    fresh, ran = run(TWO, pods=2, bound=True), run(TWO, pods=2, bound=True, started=True)
    assert code_of(end(*pods, of=fresh)) is Code.POD_REFUSED_BY_NODE
    assert code_of(end(*pods, of=ran)) is not Code.POD_REFUSED_BY_NODE


def test_an_end_carries_exit_code_rank_and_place() -> None:
    fact = end(api_pod(0), gone(exit_code=3))
    assert fact.reason is not None
    assert fact.reason.numbers == {"rank": 1, "exit_code": 3}
    assert fact.exit_code == 3
    assert fact.reason.detail == f"{RUN}-1 on node-a Error"


def test_an_init_container_that_failed_is_named() -> None:
    pod = api_pod(1, "Failed")
    ended = {"exitCode": 0, "reason": "Completed"}, {"exitCode": 7, "reason": "Error"}
    pod["status"]["initContainerStatuses"] = [
        {"name": name, "state": {"terminated": each}} for name, each in zip(("first", "fetch"), ended, strict=True)
    ]
    pod["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "PodInitializing"}}}]
    fact = end(api_pod(0), pod)
    assert fact.exit_code == 7
    assert fact.reason is not None
    assert fact.reason.detail == f"{RUN}-1 on node-a init container fetch: Error"


def test_an_init_container_that_did_its_work_says_nothing_of_the_pods_end() -> None:
    pod = gone(reason="DeadlineExceeded")
    pod["status"]["initContainerStatuses"] = [{"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]
    fact = end(api_pod(0), pod)
    assert fact.exit_code is None


FOUR = job_spec(role(replicas=4))


def gang_end(*pods: Json) -> RunEnded:
    return end(*pods, of=run(FOUR, pods=4, bound=True, started=True))


def failed(rank: int, second: int | None, exit_code: int = 1, node: str = "", **more: str) -> Json:
    finished = None if second is None else f"2026-01-01T00:00:{second:02}Z"
    return api_pod(rank, "Failed", node or f"node-{rank}", exit_code=exit_code, finished=finished, **more)


BLAMED: list[tuple[str, list[Json], int, tuple[str, ...]]] = [
    ("the first that ended", [failed(0, 9), failed(3, 2)], 3, ()),
    ("the only one whose end is known", [failed(0, None), failed(3, 2)], 3, ()),
    ("of those that ended at once who ran out of memory", [failed(0, 5), failed(3, 6, 137, why="OOMKilled")], 3, ()),
    ("of those that ended at once who failed, not who was killed", [failed(0, 5, 143), failed(3, 6)], 3, ()),
    ("the node that went down under one of them", [failed(0, 5), failed(3, 6, 143, reason="Terminated")], 3, ()),
    ("a restart whose time nobody knows", [failed(0, 5), failed(3, None, 137, why="ContainerStatusUnknown")], 3, ()),
    ("who failed, not whom its owner deleted then", [api_pod(0, deleting="2026-01-01T00:00:05Z"), failed(3, 5)], 3, ()),
    ("several at once", [failed(0, 9), failed(1, 5), failed(3, 6)], 1, ("node-1", "node-3")),
    ("several whose ends nobody knows", [failed(1, None), failed(2, None)], 1, ("node-1", "node-2")),
]


@pytest.mark.parametrize(("pods", "rank", "nodes"), [b[1:] for b in BLAMED], ids=[b[0] for b in BLAMED])
def test_a_gang_that_broke_blames(pods: list[Json], rank: int, nodes: tuple[str, ...]) -> None:
    fact = gang_end(*pods)
    assert (fact.rank, fact.nodes) == (rank, nodes)


def test_a_pod_that_ran_out_of_memory_says_so_for_rules_and_not_to_older_committers() -> None:
    fact = gang_end(failed(0, 5), failed(3, 6, 137, why="OOMKilled"))
    assert (fact.oom, end_for(fact, SCRIPT_WORDS_FROM - 1).oom, gang_end(failed(0, 5, 137)).oom) == (True, False, False)


def test_all_suspects_are_named() -> None:
    fact = gang_end(failed(1, 5), failed(3, 6))
    assert fact.reason is not None
    assert fact.reason.numbers == {"rank": 1, "exit_code": 1, "suspects": 2}
    assert fact.reason.detail == f"{RUN}-1 on node-1 Error; at once with it {RUN}-3 on node-3"


def test_a_gang_whose_other_pods_still_run_waits_for_what_they_are_about_to_tell() -> None:
    gang, one = run(FOUR, pods=4, bound=True, started=True), [failed(2, 5), api_pod(0), api_pod(1), api_pod(3)]

    def seconds(*pods: Json) -> float:
        return seconds_to_settle(gang, {read.uid: read for read in map(read_pod, pods)}, lambda node: "boot-2")

    assert seconds(*one) > 0
    assert seconds(api_pod(0), api_pod(1)) == 0
    assert seconds(*(failed(rank, 5) for rank in range(4))) == 0
    assert seconds(*(failed(rank, 5, 143, boot="boot-2") for rank in range(4))) > 0  # the node may have restarted


@pytest.mark.parametrize(("pod", "code", "own"), [r[1:] for r in REASONS], ids=[r[0] for r in REASONS])
def test_a_committer_of_the_version_before_can_read_every_end(pod: Json, code: Code, own: bool) -> None:
    """Services of two versions meet in an upgrade; a fact with a code that is not known there would be put away."""
    fact = end(api_pod(0), pod)
    assert fact.reason is not None
    assert reason_for(fact.reason, RUN_ENDS_FROM) == fact.reason
    assert reason_for(fact.reason, RUN_ENDS_FROM - 1).code in {
        Code.POD_FAILED,
        Code.POD_DELETED,
        Code.POD_REFUSED_BY_NODE,
        Code.NODE_LOST,
        Code.TIME_LIMIT,
    }


def test_an_object_that_says_almost_nothing_can_be_read() -> None:
    pod = read_pod({"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {RUN_LABEL: RUN}}})
    assert (pod.phase, pod.node, pod.over, pod.deleting, pod.held, pod.end.exit_code) == (
        "Pending",
        "",
        False,
        False,
        False,
        None,
    )


def test_a_pod_whose_labels_somebody_spoiled_can_still_be_read() -> None:
    """Anybody who may make pods in a namespace may put our labels on them."""
    assert read_pod(api_pod(labels={RUN_LABEL: RUN, RANK_LABEL: "first"})).uid == "uid-0"


def own_end(*pods: Json, **more: object) -> RunEnded | None:
    stopping = replace(run(TWO, pods=2, started=True), revoked=Reason(code=Code.PREEMPTED), then="requeue", **more)  # type: ignore[arg-type]
    return find_own_end(stopping, [read_pod(pod) for pod in pods])


def test_a_run_that_is_to_stop_has_ended_when_all_of_it_succeeded_or_one_pod_failed_by_itself() -> None:
    succeeded = own_end(api_pod(0, "Succeeded"), api_pod(1, "Succeeded"))
    assert succeeded is not None
    assert succeeded.reason is None
    for phases in (("Running", "Failed"), ("Succeeded", "Failed")):
        failed = own_end(api_pod(0, phases[0]), api_pod(1, phases[1], exit_code=3))
        assert failed is not None
        assert failed.reason is not None
        assert (failed.reason.code, failed.rank, failed.exit_code) == (Code.POD_FAILED, 1, 3)
    limit = own_end(api_pod(0), api_pod(1, "Failed", reason="DeadlineExceeded"))
    assert limit is not None
    assert limit.reason is not None
    assert limit.reason.code is Code.TIME_LIMIT


def test_its_end_says_nothing_once_a_pod_of_it_was_told_to_stop_or_is_not_there() -> None:
    assert own_end(api_pod(0, "Succeeded"), api_pod(1, "Succeeded", deleting=True)) is None
    assert own_end(api_pod(0, deleting=True), api_pod(1, "Failed", exit_code=1)) is None
    assert own_end(api_pod(1, "Succeeded")) is None
    assert own_end(api_pod(1, "Succeeded"), released_ranks=(0,)) is None, "it may have been released since"
    assert own_end(api_pod(0), api_pod(1)) is None
    assert own_end(api_pod(0, "Succeeded"), api_pod(1)) is None


def test_what_a_node_did_to_a_pod_is_no_end_of_its_own() -> None:
    assert own_end(api_pod(0), api_pod(1, "Failed", reason="NodeShutdown")) is None


def test_pods_that_it_grew_by_end_with_it_and_those_that_left_before_do_not_count() -> None:
    there = [api_pod(0, "Succeeded"), api_pod(1, "Succeeded")]
    grown = SurplusPod(placement(2, devices=(2,)), 0, "uid-2")
    assert own_end(*there, api_pod(2), extra=(grown,)) is None
    assert own_end(*there, api_pod(2, "Succeeded"), extra=(grown,)) is not None
    assert own_end(*there, api_pod(2, deleting=True), extra=(grown,)) is None
    assert own_end(*there, api_pod(2, deleting=True), extra=(replace(grown, leaving=True),)) is not None
