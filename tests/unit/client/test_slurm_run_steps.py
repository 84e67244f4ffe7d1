"""Steps of a run in `sacct` and in the job's story, as the facts of its end tell them."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.context import AccessOptions
from tessera.client.commands.slurm_words import accounting
from tessera.client.views.event_story import told_by
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.projection.events import events_of
from tessera.projection.views import Views
from tessera_schemas.events import CloudEvent
from tessera_schemas.facts import CancelRequested, RunEnded
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.views import JobView
from tessera_schemas.work.run_steps import RunStep, RunSteps
from tests.builders import SHARD, admitted, config_body, first_run, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed
from tests.unit.scheduler.committer_world import made, started

JOB = first_run("k1")[:-2]
NOON_SECONDS = 1_764_331_200
STEPS = RunSteps(
    count=250,
    steps=(RunStep(0, "python", 8, NOON_SECONDS, 65, 0), RunStep(249, "eval", 1, NOON_SECONDS + 70, 2, 9)),
)
REASONS = {
    "succeeded": None,
    "failed": Reason(code=Code.POD_FAILED, numbers={"exit_code": 3}),
    "cancelled": Reason(code=Code.CANCELLED_BY_SCRIPT, detail="scancel by the script, in a-0"),
}


def ended(phase: str, steps: RunSteps | None = STEPS) -> Committed:
    ledger = Committed().begin(node_seen("node-a", 8), body=config_body())
    ledger.commit(admitted("k1", job_spec(role(gpus=2), time_limit_seconds=300)))
    ledger.ts += 20_000
    ledger.commit(orders=(ledger.line(),))
    run = f"{JOB}-1"
    ledger.commit(made(run))
    ledger.commit(started(run))
    reason = REASONS[phase]
    ledger.commit(RunEnded(kind="run_ended", run_id=run, reason=reason, own=phase == "failed", steps=steps), ms=4000)
    ledger.commit(run_absent(run))
    return ledger


def stopped() -> Committed:
    """A job that its owner cancelled while it ran: its steps come with the proof that it is gone."""
    ledger = Committed().begin(node_seen("node-a", 8), body=config_body())
    ledger.commit(admitted("k1", job_spec(role(gpus=2))))
    ledger.commit(orders=(ledger.line(),))
    run = f"{JOB}-1"
    ledger.commit(made(run))
    ledger.commit(started(run))
    ledger.commit(CancelRequested(kind="cancel_requested", job_id=JOB, tenant="lab"), ms=4000)
    ledger.commit(run_absent(run).model_copy(update={"steps": STEPS}))
    return ledger


def told(ledger: Committed) -> Iterator[CloudEvent]:
    shard = Shard()
    for data in ledger.stored:
        entry = decode_entry(Message("", LEDGER_MESSAGE.validate_json(data).n, data))
        for event in events_of(SHARD, entry.message, shard.state):
            yield CloudEvent.from_bytes(event.data)
        shard.fold(entry)


def sacct(monkeypatch: pytest.MonkeyPatch, ledger: Committed, line: str) -> tuple[list[str], str]:
    value = Views(ledger.state).value(("jobs", JOB))
    assert value is not None
    job = JobView.from_bytes(value)

    class Shown:
        async def jobs(self, *_: object) -> list[JobView]:
            return [job]

        async def as_of(self) -> int:
            return 1

    async def events(_where: object, _identity: object, jobs: list[str]) -> dict[str, Any]:
        return {each: [*told(ledger)] for each in jobs}

    monkeypatch.setattr(AccessOptions, "views", lambda at: Shown())
    monkeypatch.setattr(AccessOptions, "find", lambda at: None)
    monkeypatch.setattr(accounting, "events_of_jobs", events)
    done = CliRunner().invoke(app, shlex.split(line))
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines(), done.stderr


def test_a_job_that_is_asked_for_has_a_line_for_its_script_and_each_step_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "sacct -j 1 -n --parsable2 -o JobID,JobName,Partition,State,ExitCode,Elapsed,NTasks"
    lines, errors = sacct(monkeypatch, ended("failed"), line)
    assert [each.split("|")[0] for each in lines] == ["1", "1.batch", "1.0", "1.249"]
    assert lines[1].startswith("1.batch|batch||FAILED|3:0|")
    assert lines[2] == "1.0|python||COMPLETED|0:0|00:01:05|8"
    assert lines[3] == "1.249|eval||FAILED|9:0|00:00:02|1"
    assert "248 of its 250 steps have no line" in errors


def test_a_step_begins_and_ends_when_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = sacct(monkeypatch, ended("succeeded"), "sacct -j 1 -n -P -o JobID,Start,End,State")
    step = lines[2].split("|")
    assert (step[0], step[3]) == ("1.0", "COMPLETED")
    assert (step[1][-5:], step[2][-5:]) == ("00:00", "01:05")
    assert lines[1].split("|")[3] == "COMPLETED"


def test_the_script_of_a_job_that_it_cancelled_was_terminated(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = sacct(monkeypatch, ended("cancelled"), "sacct -j 1 -n -P -o JobID,State,ExitCode")
    assert lines[:2] == ["1|CANCELLED|0:0", "1.batch|CANCELLED|0:15"]


def test_steps_of_a_job_that_was_stopped_are_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = sacct(monkeypatch, stopped(), "sacct -j 1 -n -P -o JobID,State,ExitCode")
    assert lines[1:] == ["1.batch|CANCELLED|0:15", "1.0|COMPLETED|0:0", "1.249|FAILED|9:0"]


@pytest.mark.parametrize("line", ["sacct -j 1 -X -n -P -o JobID", "sacct -n -P -o JobID"])
def test_allocations_alone_have_no_steps(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    assert sacct(monkeypatch, ended("succeeded"), line)[0] == ["1"]


def test_steps_that_could_not_be_read_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ended("succeeded", RunSteps(unread="it is longer than 4096 bytes"))
    assert "its steps cannot be read: it is longer" in sacct(monkeypatch, ledger, "sacct -j 1")[1]
    assert any("cannot be read" in told_by(event) for event in told(ledger))


@pytest.mark.parametrize("phase", ["succeeded", "failed", "cancelled", "stopped"])
def test_the_story_says_the_steps_in_one_line(phase: str) -> None:
    lines = [told_by(event) for event in told(stopped() if phase == "stopped" else ended(phase))]
    assert sum("250 steps, step 249 (eval) ended with 9" in line for line in lines) == 1


def test_the_state_holds_no_steps() -> None:
    with_steps, without = (ended("succeeded", steps).state for steps in (STEPS, None))
    assert with_steps.ended.get(JOB) == without.ended.get(JOB)
    assert (len(with_steps.jobs), len(with_steps.runs)) == (0, 0)
