"""
Expansion of job templates, and the checks of templates in a configuration. Pure.

The expanded job is judged like any other and travels in the fact, so that later steps do not need the template.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tessera.admission.decide.policy import AdmissionPolicy
from tessera.admission.decide.verdict import not_the_clients
from tessera_schemas.commands import SubmitJob, SubmitTemplate
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import JobSpec, not_supported_yet
from tessera_schemas.reading import refusal, too_large
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.subjects import SUBMIT_BYTES_MAX
from tessera_schemas.templates import FromTemplate, JobTemplate, Value

REASONS_MAX = 8  # of one template: an operator mends one at a time


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
    fixed = sorted(command.overrides.keys() - set(template.overrides))
    against = [refusal(Code.INVALID_FIELD, field, f"template {template.name} says it itself") for field in fixed]
    values = template.read(command.parameters)
    if isinstance(values, tuple):
        return (*against, *values)
    return tuple(against) or template.expanded(values, command.overrides)


def find_template_faults(body: ConfigBody) -> list[Reason]:
    """
    All faults of a configuration's templates.

    Each template must give a job that may be submitted: with its defaults, and with each parameter at either end of its
    range while the others keep their defaults.
    """
    against: list[Reason] = []
    for template in body.templates:
        wrong = dict.fromkeys(text for spec in _specs(template) for text in _wrong(spec, body))
        at = f"templates.{template.name}"
        against += [refusal(Code.INVALID_FIELD, at, text) for text in list(wrong)[:REASONS_MAX]]
    return against


def _specs(template: JobTemplate) -> Iterator[JobSpec | tuple[Reason, ...]]:
    usual: dict[str, Value] = {parameter.name: parameter.samples()[0] for parameter in template.parameters}
    yield template.expanded(usual, {})
    for parameter in template.parameters:
        for value in parameter.samples()[1:]:
            yield template.expanded({**usual, parameter.name: value}, {})


def _wrong(spec: JobSpec | tuple[Reason, ...], body: ConfigBody) -> Iterator[str]:
    if isinstance(spec, tuple):
        yield from (reason.sentence() for reason in spec)
        return
    yield from (f"{path}: nothing honours this field yet" for path in not_supported_yet(spec))
    yield from (reason.sentence() for reason in not_the_clients(spec))
    if spec.queue not in {queue.name for queue in body.queues}:
        yield f"queue: no such queue: {spec.queue}"
    if spec.priority_class not in {priority.name for priority in body.priority_classes}:
        yield f"priority_class: no such class: {spec.priority_class}"
