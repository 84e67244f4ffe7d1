"""
Expansion of job templates. Pure.

The expanded job is judged like any other and travels in the fact, so that later steps do not need the template.
"""

from dataclasses import dataclass

from tessera.admission.decide.policy import AdmissionPolicy
from tessera_schemas.commands import SubmitJob, SubmitTemplate
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.subjects import SUBMIT_BYTES_MAX
from tessera_schemas.text.reading import refusal, too_large
from tessera_schemas.work.templates import FromTemplate, JobTemplate


@dataclass(frozen=True, slots=True)
class ExpandedJob:
    """The job as if its sender had written it out, and where it comes from."""

    command: SubmitJob
    source: FromTemplate


def from_template(command: SubmitTemplate, policy: AdmissionPolicy) -> ExpandedJob | tuple[Reason, ...]:
    """The job that is meant, or everything against what was said of it."""
    if policy.tree is None:
        return (refusal(Code.NOT_CONFIGURED),)
    template = policy.templates.get(command.template)
    if template is None:
        return (refusal(Code.NO_SUCH_TEMPLATE, "template", command.template),)
    spec = _expanded(command, template)
    if isinstance(spec, tuple):
        return spec
    submit = SubmitJob(kind="submit_job", v=1, key=command.key, tenant=command.tenant, spec=spec, held=command.held)
    if (size := len(submit.to_bytes())) > SUBMIT_BYTES_MAX:
        return (too_large(size),)
    source = FromTemplate(name=template.name, config_version=policy.tree.version, asked=command.digest())
    return ExpandedJob(submit, source)


def _expanded(command: SubmitTemplate, template: JobTemplate) -> JobSpec | tuple[Reason, ...]:
    free = {"user", *(() if "project" in template.spec else ("project",))}
    fixed = sorted(command.overrides.keys() - {*template.overrides, *free})
    against = [refusal(Code.INVALID_FIELD, field, f"template {template.name} says it itself") for field in fixed]
    values = template.read(command.parameters)
    if isinstance(values, tuple):
        return (*against, *values)
    return tuple(against) or template.expanded(values, command.overrides)
