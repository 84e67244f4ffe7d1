"""
Connections to a shard's servers. Lists, jobs, logs and explanations are read from the gateway alone, by HTTP.

NATS is for submits, subscriptions and the care of the ledger; Redis and Kubernetes for those who look after them.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tessera.client.connect.api import Api
from tessera.client.connect.contexts import ApiLogin
from tessera.client.connect.shard_views import ShardViews
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera_schemas import subjects

if TYPE_CHECKING:  # NATS, Redis and Kubernetes are imported where they are used: no command needs all
    from tessera.kernel.kubernetes.cluster import HttpCluster
    from tessera.kernel.nats.bus import NatsBus
    from tessera.kernel.provisioning.credential_files import Credential
    from tessera.kernel.redis.store import RedisStore


def api_of(where: Where, identity: str | None = None) -> Api:
    """
    The gateway, asked as this identity: the login in use, else the only credential, else the operator.

    Raises Failure for an identity that is not at hand, or that reads nothing.
    """
    single = None if where.single is None else where.single.identity.name
    if where.login is not None and identity in (None, single):
        return Api(where.login)
    credential = where.identity(identity or single or subjects.OPERATOR)
    name, role = credential.identity.name, credential.identity.role
    if role not in (subjects.TENANT, subjects.OPERATOR):
        raise Failure(
            Exit.USAGE, f"identity {name}: a service reads no lists; use the credentials of a tenant or an operator"
        )
    if role == subjects.OPERATOR and where.operator_token and where.gateway_url:
        return Api(ApiLogin(where.gateway_url, where.operator_token))
    if name not in where.tokens:
        from tessera.client.connect.nats_login import NatsLogin

        where.tokens[name] = NatsLogin(where, credential, lambda: open_bus(where, credential))
    return Api(where.tokens[name])


def views_of(where: Where, identity: str | None = None) -> ShardViews:
    """The shard's lists, read as this identity. Raises Failure as `api_of` does."""
    return ShardViews(api_of(where, identity))


async def accounts_of(where: Where, wanted: str | None) -> list[str]:
    """Names of the tenants as whom one may submit here. Raises Failure."""
    if where.login is not None and wanted is None:
        return [whose] if (whose := (await api_of(where).get("/v1/me"))["tenant"]) else []
    if wanted is None and where.single is None:
        return sorted(c.identity.name for c in where.tenants)
    return [where.tenant(wanted).identity.name]


async def bound_user(where: Where, identity: str | None = None) -> str:
    """Name of the user to whom the token in use is bound, "" for none. Raises Failure, Transient."""
    by_http = where.login is not None and (identity is None or not where.can_be(identity))
    return str((await api_of(where).get("/v1/me")).get("user", "")) if by_http else ""


async def check_token_of(where: Where, tenant: str) -> None:
    """Raises Failure unless there is a token in use, and it speaks for this tenant."""
    whose = "nobody" if where.login is None else (await api_of(where).get("/v1/me"))["tenant"] or "an operator"
    if whose != tenant:
        raise Failure(Exit.USAGE, f"tenant {tenant}: the token in use is of {whose}; log in with one of {tenant}")


@asynccontextmanager
async def open_bus(where: Where, credential: "Credential") -> AsyncIterator["NatsBus"]:
    """NATS, connected as `credential` says; raises StartupError when NATS is away or refuses us."""
    from tessera.kernel.nats.bus import NatsBus

    login = credential.nats
    inbox = subjects.inbox(credential.identity.name)
    bus = await NatsBus.connect(where.nats_url, user=login.user, password=login.password, inbox_prefix=inbox)
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def open_store(where: Where, credential: "Credential") -> AsyncIterator["RedisStore"]:
    """Redis, for those who look after it; raises Failure for an identity that may not read it."""
    from tessera.kernel.redis.store import RedisStore

    login = credential.redis
    if login is None:
        raise Failure(
            Exit.USAGE, f"identity {credential.identity.name}: cannot read Redis; use the operator's credentials"
        )
    store = RedisStore(where.redis_url, login.user, login.password, where.shard)
    try:
        yield store
    finally:
        await store.close()


def cluster_of(where: Where) -> "HttpCluster":
    """The cluster that the local platform or the settings name, else the kubeconfig's. Raises StartupError for none."""
    from tessera.kernel.kubernetes.kubeconfig import cluster_at

    if not where.cluster_url:
        return cluster_at("", "")
    return cluster_at(where.cluster_url, (where.single or where.identity(subjects.OPERATOR)).cluster_token)
