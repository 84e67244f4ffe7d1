"""
Configuration of a shard: tenants, the queue tree with its quotas, priority classes, limits and policy.

The words are Kueue's where Kueue has them. The whole configuration is one versioned value: `tessera apply` sends the
next one with the version it was made from, and a stale one is `ConfigConflict`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tessera_schemas.base import Count, Name, Positive, Strict

YEAR_SECONDS = 31_536_000


class Subscriber(Strict):
    """A durable subscriber of a tenant's events, made by `apply`; `types` such as `job.allocated.v1`, empty: all."""

    name: Name
    types: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=r"^[a-z.]+\.v[0-9]+$")], ...], Field(max_length=32)
    ] = ()


class Limits(Strict):
    """What one tenant may have. None: no limit."""

    jobs: Annotated[Positive | None, Field(description="Jobs that have not ended")] = 10_000
    gpus: Annotated[Positive | None, Field(description="GPUs asked for by jobs that have not ended")] = None
    gpus_per_job: Positive | None = None
    pods_per_job: Positive | None = None


class Tenant(Strict):
    name: Name
    limits: Limits = Limits()
    priority_classes: Annotated[tuple[Name, ...], Field(description="Granted; empty: all")] = ()
    subscribers: Annotated[tuple[Subscriber, ...], Field(max_length=32)] = ()


class Quota(Strict):
    """How much of one resource a queue may use. A nominal quota without a cohort is a hard limit."""

    resource: Literal["cpu_milli", "memory_bytes", "gpu_milli"]
    nominal: Count
    flavor: Annotated[str, StringConstraints(max_length=63)] = ""
    borrowing_limit: Count | None = None
    lending_limit: Count | None = None


class Queue(Strict):
    """One leaf or inner node of the queue tree; jobs name leaves."""

    name: Name
    tenants: Annotated[tuple[Name, ...], Field(description="Who may submit here; empty: everybody")] = ()
    pool: Name = "default"
    parent: Name | None = None
    weight: Annotated[Count, Field(le=1_000_000)] | None = None
    quotas: Annotated[tuple[Quota, ...], Field(max_length=64)] = ()


class PriorityClass(Strict):
    name: Name
    value: Annotated[int, Field(ge=-1_000_000, le=1_000_000, strict=True, description="Higher goes first")]


class Policy(Strict):
    """How the shard decides. Every value is part of what a replay needs."""

    preset: Literal["off"] = "off"
    start_timeout_seconds: Annotated[
        Positive, Field(le=YEAR_SECONDS, description="From allocation until every pod runs")
    ] = 600
    key_memory_seconds: Annotated[
        Positive, Field(le=YEAR_SECONDS, description="How long an ended job's key is remembered")
    ] = 604_800


class ConfigBody(Strict):
    """What an operator writes: the whole of it, each time."""

    tenants: Annotated[tuple[Tenant, ...], Field(min_length=1, max_length=10_000)]
    queues: Annotated[tuple[Queue, ...], Field(min_length=1, max_length=10_000)]
    priority_classes: Annotated[tuple[PriorityClass, ...], Field(min_length=1, max_length=64)] = (
        PriorityClass(name="low", value=-100),
        PriorityClass(name="normal", value=0),
        PriorityClass(name="high", value=100),
        PriorityClass(name="urgent", value=1000),
    )
    policy: Policy = Policy()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        wrong = [*_repeated(self), *_dangling(self)]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


def _repeated(body: ConfigBody) -> Iterator[str]:
    for kind in ("tenants", "queues", "priority_classes"):
        counts = Counter(entry.name for entry in getattr(body, kind))
        yield from (f"{kind}.{name}: is there twice" for name, count in counts.items() if count > 1)


def _dangling(body: ConfigBody) -> Iterator[str]:
    tenants, queues = {t.name for t in body.tenants}, {q.name for q in body.queues}
    classes = {p.name for p in body.priority_classes}
    for queue in body.queues:
        yield from (f"queues.{queue.name}.tenants: no such tenant: {n}" for n in queue.tenants if n not in tenants)
        if queue.parent is not None and queue.parent not in queues:
            yield f"queues.{queue.name}.parent: no such queue: {queue.parent}"
    for tenant in body.tenants:
        missing = [name for name in tenant.priority_classes if name not in classes]
        yield from (f"tenants.{tenant.name}.priority_classes: no such class: {name}" for name in missing)


class Config(Strict):
    """The configuration in force; version 0 means that nothing was ever applied."""

    version: Count = 0
    body: ConfigBody | None = None


NOT_YET_QUEUE = ("parent", "weight")
NOT_YET_QUOTA = ("flavor", "borrowing_limit", "lending_limit")


def not_supported_yet(body: ConfigBody) -> list[str]:
    """The fields that ask for something nothing honours yet, by path."""
    asked = []
    for queue in body.queues:
        asked += [f"queues.{queue.name}.{name}" for name in NOT_YET_QUEUE if getattr(queue, name) is not None]
        for quota in queue.quotas:
            path = f"queues.{queue.name}.quotas.{quota.resource}"
            asked += [f"{path}.{name}" for name in NOT_YET_QUOTA if getattr(quota, name) not in (None, "")]
    return asked
