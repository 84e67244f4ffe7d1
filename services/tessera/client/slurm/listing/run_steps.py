"""Rows of `sacct` for a run's steps, as events tell them: `JOB.batch`, its script, then `JOB.0` and on. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from tessera.client.slurm.listing.fields import FIELDS, FieldValue, job_id_of, raw_id_of
from tessera_schemas.events import CloudEvent, JobEvictingV1, JobReleasedV1, JobSucceededV1
from tessera_schemas.views import JobView
from tessera_schemas.work.run_steps import PublicRunSteps, RunStep

BY_SIGTERM, BY_SIGKILL = 143, 137
"""Exit codes of what was ended by SIGTERM and by SIGKILL."""


class StepRow(JobView):
    """A step in the form of a job: its name, times, state and exit code; of all else it has nothing of its own."""

    step: str
    tasks: int


OF_A_STEP: Mapping[str, FieldValue] = {
    **{name: FIELDS[name] for name in ("JobName", "Account", "State", "StateCompact", "ExitCode", "Submit")},
    **{name: FIELDS[name] for name in ("Start", "End", "Elapsed", "ElapsedRaw", "ReturnCode")},
    "JobID": lambda row, now: f"{job_id_of(row)}.{step_of(row)}",
    "JobIDRaw": lambda row, now: f"{raw_id_of(row)}.{step_of(row)}",
    "NTasks": lambda row, now: str(row.tasks) if isinstance(row, StepRow) else "",
}
"""Fields that `sacct` shows of a step; the others are empty, as most are with Slurm."""


def step_of(row: JobView) -> str:
    """Name of the step behind the job's; empty for a job."""
    return row.step if isinstance(row, StepRow) else ""


def for_steps(own: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    """The values of all fields, of which `own` go before the usual ones, that steps have, too."""
    return {name: _both(name, value, own) for name, value in {**FIELDS, **own}.items()}


def _both(name: str, value: FieldValue, own: Mapping[str, FieldValue]) -> FieldValue:
    of_step = own.get(name, OF_A_STEP[name]) if name in OF_A_STEP else None

    def shown(row: JobView, now_ms: int) -> str:
        if not isinstance(row, StepRow):
            return value(row, now_ms)
        return "" if of_step is None else of_step(row, now_ms)

    return shown


def steps_by_run(events: Iterable[CloudEvent]) -> dict[tuple[str, int], PublicRunSteps]:
    """The steps of each run of which an event tells them, by job and attempt."""
    found = dict[tuple[str, int], PublicRunSteps]()
    kinds: dict[str, type[JobEvictingV1 | JobReleasedV1 | JobSucceededV1]] = {
        each.type: each for each in (JobEvictingV1, JobReleasedV1, JobSucceededV1)
    }
    for event in events:
        if event.type in kinds and event.data.get("steps"):
            told = kinds[event.type].model_validate(event.data)
            found[told.job_id, told.attempt] = told.steps or PublicRunSteps()
    return found


def rows_of(run: JobView, told: PublicRunSteps) -> Iterator[JobView]:
    """The row of a run, then those of its script and of its steps."""
    yield run
    stopped = {} if run.phase in ("succeeded", "failed") else {"phase": "cancelled", "exit_code": BY_SIGTERM}
    yield _row(run, {"step": "batch", "tasks": 1, "name": "batch", **stopped})
    for step in told.steps:
        yield _row(run, _step(step))


def _step(step: RunStep) -> dict[str, object]:
    failed = "cancelled" if step.exit_code in (BY_SIGTERM, BY_SIGKILL) else "failed"
    return {
        "step": str(step.number),
        "tasks": step.tasks,
        "name": step.name,
        "phase": failed if step.exit_code else "succeeded",
        "exit_code": step.exit_code,
        "submitted_ts": 1000 * step.started,
        "started_ts": 1000 * step.started,
        "ended_ts": 1000 * (step.started + step.seconds),
    }


def _row(run: JobView, fields: dict[str, object]) -> StepRow:
    return StepRow.model_validate(run.model_dump() | {"reason": None} | fields)
