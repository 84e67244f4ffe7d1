"""
Bounds of a configuration beyond its form: values that some service could not serve.

The bounds belong to the command and not to the model, so that a configuration stored by an older release still reads.
Admission checks them, and `tessera apply` before it sends anything.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import field as made

from tessera_schemas.base import INT_MAX
from tessera_schemas.config import ConfigBody, Tenant
from tessera_schemas.job import JobSpec
from tessera_schemas.shard.services import RESERVED_NAMES

DEPTH_MAX = 16
"""Queues from a root to a leaf, both counted. Sums of quotas descend the tree, and each look-up climbs it."""
SUBSCRIBERS_MAX = 1024
"""Of all tenants: each is a durable consumer of one stream, which the server keeps in memory."""
FILTERS_MAX = 64
"""Subjects that one consumer picks: each type of events in each queue that a webhook names."""

SYSTEM_NAMESPACES = re.compile(r"kube-.*|tessera-system")
"""A tenant is the namespace of its name, where its jobs' pods are made and others' are adopted."""
DEFAULT_CLASS: str = JobSpec.model_fields["priority_class"].default
_EVENT_TYPE = re.compile(r"[a-z]+(\.[a-z]+)*\.v[0-9]+")


@dataclass(frozen=True, slots=True)
class Unservable:
    """One thing that stands against a configuration: where, what, and how to mend it."""

    field: str
    detail: str
    numbers: dict[str, int] = made(default_factory=dict)


def unservable(body: ConfigBody) -> list[Unservable]:
    """All faults against serving the configuration."""
    return [*_tenants(body), *_classes(body), *_depth(body), *_sums(body)]


def _tenants(body: ConfigBody) -> Iterator[Unservable]:
    for tenant in body.tenants:
        at = f"tenants.{tenant.name}"
        if tenant.name in RESERVED_NAMES:
            yield Unservable(f"{at}.name", "the name is Tessera's own; choose another")
        elif SYSTEM_NAMESPACES.fullmatch(tenant.name):
            yield Unservable(f"{at}.name", "the namespace of this name is the cluster's own; choose another")
        names = [subscriber.name for subscriber in tenant.subscribers]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Unservable(f"{at}.subscribers.{name}", "two have the same name")
        yield from _webhooks(at, tenant)
        for subscriber in tenant.subscribers:
            yield from _types(f"{at}.subscribers.{subscriber.name}.types", subscriber.types)
    subscribers = sum(len(tenant.subscribers) + len(tenant.webhooks) for tenant in body.tenants)
    if subscribers > SUBSCRIBERS_MAX:
        numbers = {"subscribers": subscribers, "subscribers_max": SUBSCRIBERS_MAX}
        yield Unservable(
            "tenants", "they have too many subscribers and webhooks together; let some read the event stream", numbers
        )


def _webhooks(at: str, tenant: Tenant) -> Iterator[Unservable]:
    names = [webhook.name for webhook in tenant.webhooks]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Unservable(f"{at}.webhooks.{name}", "two have the same name")
    for webhook in tenant.webhooks:
        yield from _types(f"{at}.webhooks.{webhook.name}.types", webhook.types)
        filters = len(webhook.types) * max(1, len(webhook.queues))
        if filters > FILTERS_MAX:
            numbers = {"filters": filters, "filters_max": FILTERS_MAX}
            yield Unservable(f"{at}.webhooks.{webhook.name}", "too many types for so many queues; name fewer", numbers)


def _types(at: str, types: Sequence[str]) -> Iterator[Unservable]:
    wrong = [kind for kind in types if not _EVENT_TYPE.fullmatch(kind)]
    if wrong:
        yield Unservable(at, f"{wrong[0]} is no event type; write one such as job.allocated.v1")


def _classes(body: ConfigBody) -> Iterator[Unservable]:
    if all(entry.name != DEFAULT_CLASS for entry in body.priority_classes):
        detail = f"{DEFAULT_CLASS} is missing, which jobs have that name no class; add it"
        yield Unservable("priority_classes", detail)


def _depth(body: ConfigBody) -> Iterator[Unservable]:
    """The first queue of each root that lies too deep; those below it would only repeat it."""
    below: dict[str, list[str]] = defaultdict(list)
    for queue in body.queues:
        if queue.parent is not None:
            below[queue.parent].append(queue.name)
    level = [queue.name for queue in body.queues if queue.parent is None]
    for _ in range(DEPTH_MAX):
        level = [name for parent in level for name in below[parent]]
    if level:
        numbers = {"depth": DEPTH_MAX + 1, "depth_max": DEPTH_MAX}
        yield Unservable(f"queues.{level[0]}.parent", "the queue lies too deep; put it below one further up", numbers)


def _sums(body: ConfigBody) -> Iterator[Unservable]:
    """Quotas of a tree are added up, and numbers in views and reasons are bounded."""
    parents = {queue.name: queue.parent for queue in body.queues}
    roots: dict[str, str] = {}
    for name in parents:
        path = [name]
        while path[-1] not in roots and (parent := parents[path[-1]]) is not None:
            path.append(parent)
        root = roots.get(path[-1], path[-1])
        roots |= dict.fromkeys(path, root)
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for queue in body.queues:
        for quota in queue.quotas:
            sums[roots[queue.name], quota.resource] += quota.nominal
    for (root, resource), total in sums.items():
        if total > INT_MAX:
            detail = "the quotas of the queue and of all below it are more together than can be counted; lower them"
            yield Unservable(f"queues.{root}.quotas.{resource}", detail)
