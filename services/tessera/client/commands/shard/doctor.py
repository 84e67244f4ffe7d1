"""`doctor`: what keeps work from starting, and what to do about it."""

import os
from contextlib import suppress
from typing import Any

from pydantic import SecretStr

from tessera.client.cluster.doctor import check_cluster, check_servers, parts_that_change_nodes
from tessera.client.cluster.findings import Finding, awaited
from tessera.client.cluster.unmet import find_unmet
from tessera.client.commands.context import ShardOptions, command
from tessera.client.connect.connecting import cluster_of, open_store, views_of
from tessera.client.connect.shard_status import shard_status
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.views.overview import idle_lines
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import KernelError, StartupError
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.kubernetes.kubeconfig import cluster_at
from tessera.kernel.process.settings import ServiceSettings, load_settings
from tessera.kernel.process.unknown_settings import unknown_variables
from tessera.launch import settings_models
from tessera_schemas.config import Config
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.views import NodeView

MEND_NAME = "correct the name in the configuration and `tessera apply` it, or add such nodes"


@command
async def doctor(at: ShardOptions) -> Exit | None:
    """Look for what keeps work from starting: servers, the Kubernetes API, namespaces, nodes that wait for a word."""
    found = await _findings(at.find())
    for finding in found:
        print(finding.line())
    if not found:
        print("nothing found: NATS, Redis, services, configuration, and rights on Kubernetes are as they should be")
    for line in await _hints(at.find()):
        print(line)
    return Exit.FAILED if found else None


async def _hints(place: Where) -> list[str]:
    """GPUs that rules keep idle while jobs wait, stored logs: no fault, so that the exit code does not say it."""
    with suppress(Failure, Refused, KernelError):  # no gateway answers: the findings say so
        return [*idle_lines(await views_of(place, OPERATOR).slots()), *(await shard_status(place)).notes]
    return []


async def _findings(place: Where) -> list[Finding]:
    settings = _settings(place)
    found, config = await check_servers(settings), None
    found += [Finding(f"variable {line}", "correct it") for line in unknown_variables(os.environ, settings_models())]
    found += [Finding(trouble.what, trouble.way_out) for trouble in (await shard_status(place)).troubles]
    nodes: list[NodeView] = []
    try:
        async with open_store(place, place.identity(OPERATOR)) as store:
            _, (stored,) = await store.fields_as_of(("config", "config"))
            _, (rows,) = await store.rows_as_of("nodes")
        config = Config() if stored is None else Config.model_validate_json(stored)
        nodes, now_ms = [NodeView.from_bytes(row) for row in rows.values()], SystemClock().now_ms()
        found += [finding for node in nodes for finding in awaited(node, now_ms)]
    except KernelError as error:
        found.append(Finding(f"Redis: the configuration cannot be read ({error})", "see the other findings, try again"))
    if config is not None and not config.version:
        found.append(Finding("no configuration has been applied", "`tessera config init`, then `tessera apply`"))
    if config is not None and config.body is not None:
        found += [Finding(warning.sentence(), MEND_NAME) for warning in find_unmet(config.body, nodes)]
    try:
        cluster = _cluster(place, settings)
    except StartupError as error:
        return [*found, Finding(*str(error).partition("; ")[::2])]
    try:
        tenants = {tenant.name for tenant in config.body.tenants} if config and config.body else set()
        parts = parts_that_change_nodes(config.body) if config and config.body else {}
        return [*found, *await check_cluster(cluster, tenants, place.shard, parts)]
    finally:
        await cluster.close()


def _cluster(place: Where, settings: ServiceSettings) -> HttpCluster:
    """The API that the environment names, before that of a platform on this machine. Raises StartupError."""
    if settings.cluster_url or os.environ.get("KUBECONFIG"):
        return cluster_at(settings.cluster_url, settings.cluster_token.get_secret_value())
    return cluster_of(place)


def _settings(place: Where) -> ServiceSettings:
    """The servers of the shard, and of the environment what says where Kubernetes is."""
    redis = place.identity(OPERATOR).redis
    values: dict[str, Any] = {"shard": place.shard, "nats_url": place.nats_url, "redis_url": place.redis_url}
    if redis is not None:
        values |= {"redis_user": redis.user, "redis_password": SecretStr(redis.password)}
    if place.throwaway:
        values |= {"allow_unsynced": True, "allow_anybody": True}
    if place.nats_monitor_url:
        values["nats_monitor_url"] = place.nats_monitor_url
    return load_settings(ServiceSettings, **values)
