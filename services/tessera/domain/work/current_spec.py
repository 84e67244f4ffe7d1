"""The spec of a job as it is now: as it was submitted, with what was changed since. Pure."""

from collections.abc import Mapping

from tessera.domain.entities import EndedJob, Job
from tessera_schemas.job import JobSpec
from tessera_schemas.work.spec_changes import Program, SpecChanges, with_size


def current_spec(job: Job | EndedJob, submitted: JobSpec) -> JobSpec:
    """The spec by which the next run of the job is made, and that is shown of it; of a task its array's."""
    spec = submitted if job.changes is None else with_changes(submitted, job.changes)
    for size in job.resized:
        spec = with_size(spec, size)
    return spec


def with_changes(spec: JobSpec, changes: SpecChanges) -> JobSpec:
    """The spec with other values for the fields that change; a time limit of 0 is none."""
    given = changes.given
    if "time_limit_seconds" in given:
        given["time_limit_seconds"] = changes.time_limit_seconds or None
    return spec.model_copy(update=given)


def with_programs(spec: JobSpec, programs: Mapping[str, Program]) -> JobSpec:
    """The spec of which these roles run other programs, with all else of their templates."""
    roles = (
        role.model_copy(update={"template": role.template.model_copy(update=dict(programs[role.name]))})
        if role.name in programs
        else role
        for role in spec.roles
    )
    return spec.model_copy(update={"roles": tuple(roles)})


def merged(earlier: SpecChanges | None, later: SpecChanges) -> SpecChanges:
    """All that was changed, where the later word counts."""
    return later if earlier is None else earlier.model_copy(update=later.given)
