"""The spec of a job as it is now: as it was submitted, with what was changed since. Pure."""

from tessera.domain.entities import EndedJob, Job
from tessera_schemas.job import JobSpec
from tessera_schemas.work.spec_changes import SpecChanges


def current_spec(job: Job | EndedJob, submitted: JobSpec) -> JobSpec:
    """The spec by which the next run of the job is made, and that is shown of it; of a task its array's."""
    return submitted if job.changes is None else with_changes(submitted, job.changes)


def with_changes(spec: JobSpec, changes: SpecChanges) -> JobSpec:
    """The spec with other values for the fields that change; a time limit of 0 is none."""
    given = changes.given
    if "time_limit_seconds" in given:
        given["time_limit_seconds"] = changes.time_limit_seconds or None
    return spec.model_copy(update=given)


def merged(earlier: SpecChanges | None, later: SpecChanges) -> SpecChanges:
    """All that was changed, where the later word counts."""
    return later if earlier is None else earlier.model_copy(update=later.given)
