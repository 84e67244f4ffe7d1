"""Whether a proposed configuration may be put to the committer. Its form was checked when it was read."""

from tessera.admission.decide.parse import refusal
from tessera_schemas.config import ConfigBody, not_supported_yet
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.subjects import RESERVED_NAMES


def of_config(body: ConfigBody) -> list[Reason]:
    """Everything against it; whether it is up to date is the committer's to say."""
    against = [refusal(Code.NOT_SUPPORTED_YET, path) for path in not_supported_yet(body)]
    for tenant in body.tenants:
        if tenant.name in RESERVED_NAMES:
            against.append(refusal(Code.INVALID_FIELD, f"tenants.{tenant.name}.name", "the name is Tessera's own"))
        names = [subscriber.name for subscriber in tenant.subscribers]
        for name in sorted({name for name in names if names.count(name) > 1}):
            path = f"tenants.{tenant.name}.subscribers.{name}"
            against.append(refusal(Code.INVALID_FIELD, path, "two have the same name"))
    for queue in body.queues:
        resources = [quota.resource for quota in queue.quotas]
        for resource in sorted({resource for resource in resources if resources.count(resource) > 1}):
            path = f"queues.{queue.name}.quotas.{resource}"
            against.append(refusal(Code.INVALID_FIELD, path, "two quotas for the same resource"))
    return against
