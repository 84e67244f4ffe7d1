"""Whether a proposed configuration may be put to the committer. Its form was checked when it was read."""

from tessera.admission.decide.parse import refusal
from tessera.admission.decide.templates import of_templates
from tessera_schemas.config import ConfigBody
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.subjects import RESERVED_NAMES


def of_config(body: ConfigBody) -> list[Reason]:
    """Everything against it; whether it is up to date is the committer's to say."""
    against: list[Reason] = []
    for tenant in body.tenants:
        if tenant.name in RESERVED_NAMES:
            against.append(refusal(Code.INVALID_FIELD, f"tenants.{tenant.name}.name", "the name is Tessera's own"))
        names = [subscriber.name for subscriber in tenant.subscribers]
        for name in sorted({name for name in names if names.count(name) > 1}):
            path = f"tenants.{tenant.name}.subscribers.{name}"
            against.append(refusal(Code.INVALID_FIELD, path, "two have the same name"))
    return against + of_templates(body)
