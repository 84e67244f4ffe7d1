"""The relations checker finds what is broken on purpose: each rule once, in a ledger that is right but for that."""

from collections.abc import Callable
from typing import Any

import pytest

from tessera.testkit.checker import Report
from tessera.testkit.relations_checker import check_relations
from tessera_schemas.base import job_id
from tessera_schemas.facts import HoldRequested, RunEnded
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.work.arrays import Dependency, JobArray, task_id
from tests.builders import SHARD, admitted, job_spec, role, run_absent
from tests.rounds import Rounds

Records = list[dict[str, Any]]
ARRAY, AFTER, FIRST = (job_id(SHARD, "lab", key) for key in ("sweep", "after", "first"))
OTHERS = job_id(SHARD, "other", "theirs")


def submit(rounds: Rounds, key: str, tenant: str = "lab", **more: Any) -> None:
    rounds.commit(admitted(key, job_spec(role(gpus=1), name=key, **more), tenant=tenant))


@pytest.fixture(scope="module")
def ledger() -> list[bytes]:
    """An array of four tasks, two at a time, held for a while; a job after another; a job of another tenant."""
    rounds = Rounds()
    submit(rounds, "sweep", array=JobArray(tasks="0-3", limit=2))
    for undo in (False, True):
        rounds.commit(HoldRequested(kind="hold_requested", job_id=ARRAY, tenant="lab", undo=undo))
    submit(rounds, "theirs", tenant="other")
    submit(rounds, "first")
    submit(rounds, "after", after=(Dependency(condition="afterok", job=FIRST),))
    rounds.settle()
    while runs := [run.run_id for run in rounds.state.runs.values()]:
        for run in runs:
            rounds.commit(RunEnded(kind="run_ended", run_id=run))
            rounds.commit(run_absent(run))
        rounds.settle()
    return rounds.stored


def broken(ledger: list[bytes], change: Callable[[Records], object] = lambda records: None) -> set[str]:
    """The rules that are broken once every message's records have been changed."""
    made = []
    for stored in ledger:
        message = LEDGER_MESSAGE.validate_json(stored).model_dump(mode="json", exclude_defaults=True)
        change(message.setdefault("records", []))
        for taken in message.get("facts", ()):
            change([taken["fact"]])
        made.append(LEDGER_MESSAGE.validate_python(message).to_bytes())
    report = Report()
    check_relations(report, made)
    assert report.examined["array"] > 4
    assert report.examined["after"] > 4
    return {violation.invariant for violation in report.violations}


def without(kind: str, **values: Any) -> Callable[[Records], object]:
    def change(records: Records) -> None:
        gone = [r for r in records if r["kind"] == kind and values.items() <= r.items()]
        records[:] = [r for r in records if r not in gone]

    return change


def with_another(kind: str, values: dict[str, Any], **news: Any) -> Callable[[Records], object]:
    def change(records: Records) -> None:
        for record in records:
            if record["kind"] == kind and values.items() <= record.items():
                record |= news

    return change


def test_a_ledger_that_is_right_breaks_no_rule(ledger: list[bytes]) -> None:
    assert broken(ledger) == set()


TASK_1, TASK_2 = task_id(ARRAY, 1), task_id(ARRAY, 2)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        pytest.param(without("dependency_met"), "after", id="a job starts before what it waits for"),
        pytest.param(without("finished", job_id=FIRST), "after", id="a dependency is met that has not come true"),
        pytest.param(
            with_another("job_admitted", {"job_id": AFTER}, tenant="other"), "after", id="another tenant's job is named"
        ),
        pytest.param(
            with_another("finished", {"job_id": AFTER}, phase="cancelled", reason={"code": "DependencyNeverSatisfied"}),
            "after",
            id="a job ends that could have started",
        ),
        pytest.param(without("finished", job_id=TASK_1), "array", id="the limit is passed, and the array ends early"),
        pytest.param(without("held", undo=True), "array", id="a held array queues tasks"),
        pytest.param(
            with_another("task_queued", {"job_id": TASK_2}, task=9),
            "array",
            id="a task is queued that is none",
        ),
        pytest.param(
            with_another("task_queued", {"job_id": TASK_1}, job_id=OTHERS), "array", id="a task has another's id"
        ),
        pytest.param(
            with_another("finished", {"job_id": ARRAY}, phase="failed"), "array", id="an array fails without a failure"
        ),
        pytest.param(without("task_queued", task=3), "array", id="an array succeeds without one of its tasks"),
    ],
)
def test_what_is_broken_on_purpose_is_found(ledger: list[bytes], change: Any, rule: str) -> None:
    assert rule in broken(ledger, change)
