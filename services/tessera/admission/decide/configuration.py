"""
Whether a proposed configuration may be put to the committer. Its form was checked when it was read. Pure.

The command line asks this, too, so that nothing here imports what judges nodes.
"""

from collections.abc import Iterator

from tessera.admission.decide.launching import not_launched
from tessera.admission.decide.pods import not_the_clients
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import JobSpec, Resources, Role
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.bounds import unservable
from tessera_schemas.text.reading import refusal
from tessera_schemas.work.templates import JobTemplate, Value

REASONS_MAX = 8  # of one template: an operator mends one at a time


def find_config_faults(body: ConfigBody) -> list[Reason]:
    """All faults of a proposed configuration; the committer judges whether it is up to date."""
    against = [
        refusal(Code.INVALID_FIELD, found.field, found.detail, found.numbers or None) for found in unservable(body)
    ]
    name = body.defaults.sessions.resume_class
    if name is not None and name not in {priority.name for priority in body.priority_classes}:
        against.append(refusal(Code.NO_SUCH_PRIORITY_CLASS, "defaults.sessions.resume_class", name))
    return against + find_template_faults(body) + _find_test_faults(body)


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


def _find_test_faults(body: ConfigBody) -> list[Reason]:
    """Faults of the container by which suspected nodes are tested, which no submit brings past admission."""
    test, at = None if body.health is None else body.health.test, "health.test.template"
    if test is None:
        return []
    role = Role(name="test", resources=Resources(gpus=1), template=test.template)
    wrong = not_the_clients(JobSpec(name="node-test", queue=test.queue, roles=(role,)))
    against = [each.model_copy(update={"field": each.field.replace("roles[0].template", at)}) for each in wrong]
    if any(volume.kind == "mapped" for volume in test.template.volumes):
        against.append(refusal(Code.INVALID_FIELD, f"{at}.volumes", "name the claim: a submit alone maps volumes"))
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
    yield from (reason.sentence() for reason in [*not_the_clients(spec), *not_launched(spec, has_steps=True)])
    if spec.queue not in {queue.name for queue in body.queues}:
        yield f"queue: no such queue: {spec.queue}"
    if spec.priority_class not in {priority.name for priority in body.priority_classes}:
        yield f"priority_class: no such class: {spec.priority_class}"
