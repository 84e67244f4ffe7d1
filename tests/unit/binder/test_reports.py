"""What the binder says about a run, from what the cluster shows of its pods."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tessera.binder.decide.steps import Json, find_own_end, read_pod, to_report
from tessera.domain.entities import Run, SurplusPod
from tessera_schemas.facts import RunEnded
from tessera_schemas.labels import RANK_LABEL, RUN_LABEL
from tessera_schemas.reasons import Code, Reason
from tests.builders import job_spec, placement, role
from tests.unit.binder.binder_builders import RUN, api_pod, run

TWO = job_spec(role(replicas=2))


def said(of: Run, *pods: Json) -> list[str]:
    return [fact.kind for fact in to_report(of, [read_pod(pod) for pod in pods])]


def end(*pods: Json, of: Run | None = None) -> RunEnded:
    (fact,) = to_report(of or run(TWO, pods=2, bound=True, started=True), [read_pod(pod) for pod in pods])
    assert isinstance(fact, RunEnded)
    return fact


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
        [api_pod(0), api_pod(1, "Failed", exit_code=1)],
        ["run_ended"],
    ),
    ("one failed and one was not seen", a_run(), [api_pod(1, "Failed", exit_code=1)], ["run_ended"]),
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


def test_a_success_has_no_reason() -> None:
    fact = end(api_pod(0, "Succeeded"), api_pod(1, "Succeeded"))
    assert (fact.run_id, fact.reason, fact.own) == (RUN, None, False)


REASONS = [
    ("the program failed", api_pod(1, "Failed", exit_code=3), Code.POD_FAILED, True),
    ("it ran out of memory", api_pod(1, "Failed", exit_code=137, why="OOMKilled"), Code.POD_FAILED, True),
    ("it reached its time limit", api_pod(1, "Failed", reason="DeadlineExceeded"), Code.TIME_LIMIT, True),
    ("somebody deleted it", api_pod(1, deleting=True), Code.POD_DELETED, False),
    ("somebody deleted it before it ran", api_pod(1, "Pending", "", deleting=True), Code.POD_DELETED, False),
    (
        "the node had no such device",
        api_pod(1, "Failed", reason="UnexpectedAdmissionError"),
        Code.POD_REFUSED_BY_NODE,
        False,
    ),
    ("the node was full", api_pod(1, "Failed", reason="OutOfcpu"), Code.POD_REFUSED_BY_NODE, False),
    ("the node evicted it", api_pod(1, "Failed", reason="Evicted", exit_code=137), Code.POD_REFUSED_BY_NODE, False),
    ("the node went down", api_pod(1, "Failed", reason="NodeShutdown"), Code.POD_REFUSED_BY_NODE, False),
]


@pytest.mark.parametrize(("pod", "code", "own"), [r[1:] for r in REASONS], ids=[r[0] for r in REASONS])
def test_an_end_has_a_typed_reason_and_says_whose_fault_it_was(pod: Json, code: Code, own: bool) -> None:
    fact = end(api_pod(0), pod)
    assert fact.reason is not None
    assert (fact.reason.code, fact.own, fact.rank) == (code, own, 1)


def test_an_end_carries_exit_code_rank_and_place() -> None:
    fact = end(api_pod(0), api_pod(1, "Failed", exit_code=3))
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
    pod = api_pod(1, "Failed", reason="DeadlineExceeded")
    pod["status"]["initContainerStatuses"] = [{"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]
    fact = end(api_pod(0), pod)
    assert fact.exit_code is None


def test_of_several_failed_pods_the_first_rank_is_named() -> None:
    assert end(api_pod(1, "Failed", exit_code=1), api_pod(0, "Failed", exit_code=2)).exit_code == 2


def test_an_object_that_says_almost_nothing_can_be_read() -> None:
    pod = read_pod({"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {RUN_LABEL: RUN}}})
    assert (pod.phase, pod.node, pod.over, pod.deleting, pod.held, pod.exit_code) == (
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
