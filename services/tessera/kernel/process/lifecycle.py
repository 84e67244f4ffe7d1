"""
One service as one process: settings, adapters, health, signals, and what becomes of it when it fails.

A violated invariant halts it: up, not ready, doing nothing, until somebody looks. Anything else that it cannot handle
ends it, and whoever supervises it starts it again. Every end is bounded, whatever its loops do with a cancellation.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import structlog

from tessera.kernel import ids
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import InvariantViolation, StartupError
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.kubernetes.kubeconfig import find_access, mounted_account
from tessera.kernel.ledger.end import LedgerEnd
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.process.ending import BoundedEnd
from tessera.kernel.process.limits import collect_rarely, end_uncollected, give_way, raise_soft_limit
from tessera.kernel.process.preflight import check_cluster, check_redis, open_bus
from tessera.kernel.process.reach import Reach
from tessera.kernel.process.settings import ServiceSettings
from tessera.kernel.process.store_probe import StoreProbe
from tessera.kernel.redis.room import watching_redis
from tessera.kernel.redis.store import RedisStore
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.logs import configure_logs
from tessera.kernel.service.metrics import Metrics
from tessera.kernel.service.spans import NO_SPANS, Spans
from tessera.kernel.tasks.task_group import cancel_all
from tessera_schemas.shard.services import BY_NAME, RedisUse
from tessera_schemas.shard.streams import used_by

Serve = Callable[[Ports, Any, asyncio.Event], Awaitable[None]]

log = structlog.get_logger()


def run_service(serve: Serve, settings: ServiceSettings) -> None:
    """
    Run one service until SIGTERM or SIGINT.

    Raises StartupError when something it needs is missing or wrong.
    """
    collect_rarely()
    raise_soft_limit()
    try:
        import uvloop  # faster where it exists; nothing depends on it

        uvloop.run(_host(serve, settings))
    except ImportError:
        asyncio.run(_host(serve, settings))
    finally:
        end_uncollected()


async def _host(serve: Serve, settings: ServiceSettings) -> None:
    clock, name = SystemClock(), settings.service
    instance = ids.instance_id(name)
    metrics = Metrics(name)
    configure_logs(name, instance, settings.log_level, clock, metrics=metrics)
    await give_way(settings.nice, clock)
    health = Health(clock, metrics)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    end = BoundedEnd()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(health.close)
        try:
            ports = await _connect(settings, instance, clock, metrics, health, stack)
            await health.serve(settings.http_host, settings.http_port, settings.port_file)
            log.info("service_starts", shard=settings.shard)
            await serve_until_stopped(serve, ports, settings, stop, end)
            log.info("service_stops")
        finally:
            end.begin()


async def _connect(
    settings: ServiceSettings,
    instance: str,
    clock: SystemClock,
    metrics: Metrics,
    health: Health,
    stack: AsyncExitStack,
) -> Ports:
    name, shard = settings.service, settings.shard
    spec = BY_NAME[name]
    bus = await open_bus(settings, list(used_by(name, shard)), instance)
    stack.push_async_callback(bus.close)
    if spec.redis in (RedisUse.NEEDS, RedisUse.WRITES):
        await check_redis(settings)
    store = RedisStore(settings.redis_url, settings.redis_user, settings.redis_password.get_secret_value(), shard)
    stack.push_async_callback(store.close)
    cluster = _cluster(settings)
    stack.push_async_callback(cluster.close)
    if spec.needs_cluster:
        await check_cluster(cluster, settings.connect_seconds)
    if spec.redis is RedisUse.WRITES:
        await stack.enter_async_context(watching_redis(store.stored_bytes, metrics, clock))
    health.check("nats", lambda: trouble_of_nats(bus, settings))
    spans = _spans(settings, instance)
    stack.push_async_callback(asyncio.to_thread, spans.close)
    return Ports(
        clock=clock,
        bus=bus,
        ledger=StreamLedger(bus, shard),
        store=store,
        cluster=cluster,
        health=health,
        metrics=metrics,
        instance=instance,
        new_tx=ids.transaction_id,
        spans=spans,
    )


def _spans(settings: ServiceSettings, instance: str) -> Spans:
    """Raises StartupError where spans are wanted and the libraries for it are not installed."""
    if not settings.otlp_url:
        return NO_SPANS
    try:
        from tessera.kernel.service.otlp import OtlpSpans  # nobody else needs these libraries
    except ImportError as error:
        raise StartupError(
            f"setting otlp_url: {error.name} is missing; pip install 'tessera-scheduler[otel]'"
        ) from error
    return OtlpSpans(settings.otlp_url, settings.service, instance, settings.shard)


def trouble_of_nats(bus: NatsBus, settings: ServiceSettings) -> str | None:
    """A server that was refused at the start may come back with that configuration later."""
    if not bus.connected:
        return f"not connected to {settings.nats_url}"
    if bus.lets_anybody_in and not settings.allow_anybody:
        return f"{settings.nats_url} lets anybody in: include nats-auth.conf in its configuration, then reload it"
    return None


def _cluster(settings: ServiceSettings) -> HttpCluster:
    """Connects at its first call, so that a service that never calls it needs none."""
    spec = BY_NAME[settings.service]
    if settings.cluster_url or not spec.calls_cluster:
        return HttpCluster(settings.cluster_url, settings.cluster_token.get_secret_value())
    access = find_access() if spec.needs_cluster else mounted_account()
    if access is None:
        return HttpCluster("")
    return access.cluster()


async def serve_until_stopped(
    serve: Serve, ports: Ports, settings: ServiceSettings, stop: asyncio.Event, end: BoundedEnd
) -> None:
    """Serves until told to stop; then it has `drain_seconds` to finish what is in flight."""
    serving = asyncio.ensure_future(_watched(serve, ports, settings, stop))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await asyncio.wait([serving], timeout=settings.drain_seconds)
        if serving.done():
            serving.result()
        else:
            log.warning("drain_cut_short", seconds=settings.drain_seconds)
    except InvariantViolation as error:
        log.critical(
            "shard_halted", reason=str(error), fix="look with `tessera ledger inspect`, then see docs/operations.md"
        )
        ports.health.halt(str(error))
        await stopping
    finally:
        end.begin()
        await cancel_all(serving, stopping)


async def _watched(serve: Serve, ports: Ports, settings: ServiceSettings, stop: asyncio.Event) -> None:
    """Serve, from a ledger that has its end and as long as it has; ready while NATS stores and all is at hand."""
    end, probe = LedgerEnd(ports, settings.shard, settings.service), StoreProbe(ports, settings.shard, settings.service)
    reach = Reach(ports, settings.shard, settings.service)
    ports.health.check("store", lambda: probe.trouble)
    await end.check()
    serving = asyncio.ensure_future(serve(ports, settings, stop))
    beside = [asyncio.ensure_future(watch()) for watch in (end.watch, probe.watch, reach.watch)]
    try:
        done, _ = await asyncio.wait([serving, *beside], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel_all(serving, *beside)
