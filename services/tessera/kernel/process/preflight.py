"""
Checks of a service before it works: the bus is there, syncs each write and has our streams; Redis evicts nothing; the
cluster answers and lets us in.

Each failure is one line: what, where, how to fix it.
"""

import asyncio
from collections.abc import Sequence

import aiohttp
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from tessera.kernel.errors import KernelError, StartupError, Transient
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import ApiError
from tessera.kernel.process.settings import ServiceSettings
from tessera_schemas import subjects
from tessera_schemas.cluster.labels import RUN_LABEL


async def open_bus(settings: ServiceSettings, stream_kinds: Sequence[str], name: str = "") -> NatsBus:
    """
    Connect to a NATS that syncs each write and has the streams named (`LEDGER`, ...). Raises StartupError.

    Another shard's credentials are refused before anything is asked.
    """
    named = subjects.shard_of(settings.nats_user)
    if named not in (subjects.MAIN_SHARD, settings.shard):
        raise StartupError(
            f"setting shard: {settings.nats_user} is an identity of shard {named}, not of {settings.shard}; "
            f"say --shard {named}, or set TESSERA_CREDENTIALS_FILE to the right file"
        )
    await check_synced(settings)
    bus = await NatsBus.connect(
        settings.nats_url,
        user=settings.nats_user,
        password=settings.nats_password.get_secret_value(),
        name=name,
        inbox_prefix=subjects.inbox(subjects.identity_of(settings.nats_user)) if settings.nats_user else "_INBOX",
        startup_seconds=settings.connect_seconds,
    )
    try:
        for kind in stream_kinds:
            await _check_stream(bus, subjects.stream(kind, settings.shard))
    except BaseException:
        await bus.close()
        raise
    return bus


async def check_synced(settings: ServiceSettings) -> None:
    """
    Refuse a server that acknowledges before it synced, or lets anybody in.

    A power cut loses acknowledged decisions of the one, and whoever reaches the other writes what he likes.

    Raises StartupError, unless the settings allow it.
    """
    if settings.allow_unsynced and settings.allow_anybody:
        return
    where = f"NATS monitoring at {settings.nats_monitor_url}"
    try:
        timeout = aiohttp.ClientTimeout(total=settings.connect_seconds)
        url = f"{settings.nats_monitor_url.rstrip('/')}/varz"
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url) as answer:
            answered = await answer.json()
            config = answered["jetstream"]["config"]
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
        raise StartupError(
            f"{where}: no JetStream configuration ({_why(error)}); set TESSERA_NATS_MONITOR_URL, or run the server "
            "with `http` and `jetstream` on"
        ) from error
    if not (answered.get("auth_required") or settings.allow_anybody):
        raise StartupError(
            f"{where}: lets anybody in, to write any tenant's jobs and records; include the nats-auth.conf that "
            "`tessera init --credentials` wrote in its configuration, or TESSERA_ALLOW_ANYBODY=true on your own machine"
        )
    if not (config.get("sync_always") or settings.allow_unsynced):
        raise StartupError(
            f"{where}: JetStream acknowledges before it syncs; set `sync_interval: always` in its configuration, or "
            "TESSERA_ALLOW_UNSYNCED=true where losing acknowledged work is fine"
        )


async def check_redis(settings: ServiceSettings) -> None:
    """Raises StartupError unless Redis answers and its memory policy is noeviction."""
    client = Redis.from_url(
        settings.redis_url,
        username=settings.redis_user or None,
        password=settings.redis_password.get_secret_value() or None,
        driver_info=None,  # CLIENT SETINFO is in no identity's allow-list
        socket_connect_timeout=settings.connect_seconds,
        socket_timeout=settings.connect_seconds,
    )
    where = f"Redis at {settings.redis_url}"
    try:
        policy = (await client.info("memory")).get("maxmemory_policy")
    except (AuthenticationError, NoPermissionError) as error:
        raise StartupError(f"{where}: refuses us ({error}); load the ACL file that `tessera init` wrote") from error
    except (RedisError, OSError) as error:
        raise StartupError(f"{where}: does not answer ({_why(error)}); start it or set TESSERA_REDIS_URL") from error
    finally:
        await client.aclose()
    if policy != "noeviction":
        raise StartupError(f"{where}: evicts keys ({policy}); set `maxmemory-policy noeviction`")


async def check_cluster(cluster: HttpCluster, seconds: float) -> None:
    """Raises StartupError unless the Kubernetes API answers us, asked for pods that nobody has."""
    where = f"Kubernetes API at {cluster.url}"
    try:
        async with asyncio.timeout(seconds):
            await cluster.list("pods", f"{RUN_LABEL}=none")
    except ApiError as error:
        if error.status in (401, 403):
            raise StartupError(
                f"{where}: refuses us ({error}); give this service its token (TESSERA_CREDENTIALS_FILE) and its role"
            ) from error
        raise StartupError(f"{where}: is no Kubernetes API, or unwell ({error}); set TESSERA_CLUSTER_URL") from error
    except (KeyError, TypeError) as error:
        raise StartupError(f"{where}: is no Kubernetes API (no {error}); set TESSERA_CLUSTER_URL") from error
    except (Transient, TimeoutError) as error:
        raise StartupError(f"{where}: does not answer ({_why(error)}); start it or set TESSERA_CLUSTER_URL") from error


async def _check_stream(bus: NatsBus, stream: str) -> None:
    try:
        await bus.usage(stream)
    except KernelError as error:
        raise StartupError(
            f"stream {stream}: not to be had ({error}); is it ours, and JetStream on? Run `tessera init`"
        ) from error


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
