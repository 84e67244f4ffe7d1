"""Kubernetes rights that services declare and their accounts lack."""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from tessera_schemas.cluster.cluster_roles import Right
from tessera_schemas.shard.services import BY_NAME, SPECS

SYSTEM = "tessera-system"
AT_ONCE = 16
CLUSTER_WIDE: dict[str, frozenset[Right]] = {spec.name: spec.cluster_rights() for spec in SPECS if spec.needs_cluster}
"""By service."""
BIND = Right("", "pods/binding", "create")
OF_TENANT: frozenset[Right] = BY_NAME["binder"].tenant_rights()
"""The binder's, in the namespace of each tenant."""


class Rights(Protocol):
    async def may(self, namespace: str, verb: str, resource: str, group: str = "", user: str = "") -> bool: ...


def account(service: str) -> str:
    """Kubernetes user name of a service's own service account."""
    return f"system:serviceaccount:{SYSTEM}:tessera-{service}"


async def lacking(cluster: Rights, service: str, needed: Iterable[Right], namespace: str = "") -> list[Right]:
    """The needed rights that the service's account lacks, in order. Raises ApiError, Transient."""
    lane, user = asyncio.Semaphore(AT_ONCE), account(service)

    async def has(right: Right) -> bool:
        async with lane:
            return await cluster.may(namespace, right.verb, right.resource, right.group, user)

    wanted = sorted(needed)
    answers = await asyncio.gather(*map(has, wanted))
    return [right for right, there in zip(wanted, answers, strict=True) if not there]
