"""The configuration as decisions ask for it: queue to pool, priority class to value, quota by resource."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from tessera.domain.resources import Amount
from tessera_schemas.config import Config, Policy, Queue, Tenant


@dataclass(frozen=True)
class QueueTree:
    """Look-ups over one configuration; made once per version."""

    version: int
    queues: dict[str, Queue]
    tenants: dict[str, Tenant]
    priorities: dict[str, int]
    policy: Policy

    @cached_property
    def queues_of(self) -> dict[str, frozenset[str]]:
        """The names of the queues that use each pool."""
        pools: dict[str, set[str]] = {}
        for name, queue in self.queues.items():
            pools.setdefault(queue.pool, set()).add(name)
        return {pool: frozenset(names) for pool, names in pools.items()}

    def pool(self, queue: str) -> str | None:
        """The node pool that the queue uses; None when there is no such queue."""
        found = self.queues.get(queue)
        return None if found is None else found.pool

    def priority(self, priority_class: str) -> int:
        return self.priorities.get(priority_class, 0)

    def over_quota(self, queue: str, held: Amount, more: Amount) -> tuple[str, int, int] | None:
        """The first resource whose nominal quota `held` + `more` would exceed, with use and quota; else None."""
        for quota in self.queues[queue].quotas:
            use = getattr(held, quota.resource) + getattr(more, quota.resource)
            if use > quota.nominal:
                return quota.resource, use, quota.nominal
        return None


@lru_cache(maxsize=8)
def _tree(version: int, body_json: str) -> QueueTree:
    body = Config.model_validate_json(body_json).body
    if body is None:
        return QueueTree(version, {}, {}, {}, Policy())
    return QueueTree(
        version,
        {queue.name: queue for queue in body.queues},
        {tenant.name: tenant for tenant in body.tenants},
        {entry.name: entry.value for entry in body.priority_classes},
        body.policy,
    )


def queue_tree(config: Config) -> QueueTree:
    """The look-ups of `config`; equal configurations share one."""
    return _tree(config.version, config.model_dump_json())
