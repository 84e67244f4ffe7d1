"""
Services as a process, one or several: settings, adapters, health, signals, and what becomes of them when they fail.

A violated invariant halts a service: up, not ready, doing nothing, until somebody looks. Anything else that it cannot
handle ends it, and whoever supervises it starts it again: of one alone that is who started the process, of several the
process itself. Every end is bounded, whatever its loops do with a cancellation.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import structlog

from tessera.kernel import ids
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Conflict, InvariantViolation, StartupError
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.kubernetes.kubeconfig import find_access, mounted_account
from tessera.kernel.ledger.end import LedgerEnd
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import Clock
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
from tessera.kernel.service.logs import configure_logs, speak_as
from tessera.kernel.service.loop_watch import LoopWatch
from tessera.kernel.service.metrics import Metrics
from tessera.kernel.service.spans import NO_SPANS, Spans
from tessera.kernel.tasks.shared import Shared
from tessera.kernel.tasks.task_group import cancel_all, gather_all
from tessera.kernel.tasks.waiting import wait_for
from tessera_schemas.shard.services import BY_NAME, RedisUse
from tessera_schemas.shard.streams import used_by

Serve = Callable[[Ports, Any, asyncio.Event], Awaitable[None]]
RESTART_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)  # until a service that failed is started again beside the others
STEADY_SECONDS = 60.0  # who lived so long begins at the first of them

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Hosted:
    """A service that a process hosts, and its settings."""

    serve: Serve
    settings: ServiceSettings


def run_services(hosted: Sequence[Hosted]) -> None:
    """
    Run the services, in one process and one event loop, until SIGTERM or SIGINT.

    Raises StartupError when something that one of them needs is missing or wrong.
    """
    process = ServiceProcess(hosted)
    collect_rarely()
    raise_soft_limit()
    try:
        import uvloop  # faster where it exists; nothing depends on it

        uvloop.run(process.run())
    except ImportError:
        asyncio.run(process.run())
    finally:
        end_uncollected()


class ServiceProcess:
    """
    The services of one process. One alone ends the process when it fails; of several each is started again by itself.

    What they share is the interpreter, the event loop and the books of a shard. Connections, credentials, leases, names
    in logs, metrics and the port of health checks stay each service's own: the n-th listens n ports above the first's.
    """

    def __init__(self, hosted: Sequence[Hosted]) -> None:
        """Raises StartupError where the services' settings do not suit one process."""
        self._hosted, self._clock, self._shared = tuple(hosted), SystemClock(), Shared()
        self._healths = dict[str, Health]()
        settings = [one.settings for one in hosted]
        for name in ("shard", "log_level", "http_host", "http_port"):
            if len({getattr(each, name) for each in settings}) > 1:
                said = ", ".join(f"{getattr(each, name)} for {each.service}" for each in settings)
                raise StartupError(f"setting {name}: {said}; services that share a process need the same")
        for name in ("credentials_file", "port_file"):
            files = [each.own_file(name) for each in settings]
            if any(files) and len(set(files)) < len(files):
                raise StartupError(
                    f"setting {name}: {files[0]} is several services' file; write {{service}} in place of the name"
                )

    async def run(self) -> None:
        """Serve until a signal says to stop. Raises StartupError, and what one alone failed of."""
        settings, clock = [one.settings for one in self._hosted], self._clock
        names = "+".join(each.service for each in settings)
        configure_logs(names, ids.instance_id(names), settings[0].log_level, clock)
        await give_way(min(each.nice for each in settings), clock)
        self._stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        try:
            with LoopWatch(clock) as self._watch:
                if len(self._hosted) == 1:
                    await self._live(self._hosted[0], self._shared, BoundedEnd())
                else:
                    await gather_all(*(self._keep_alive(one) for one in self._hosted))
        finally:
            for health in self._healths.values():
                await health.close()

    async def _keep_alive(self, one: Hosted) -> None:
        """Start the service again when it fails; what a first start misses that never stood still ends the process."""
        lived, failures, clock = False, 0, self._clock
        while not self._stop.is_set():
            end, shared, began = BoundedEnd(), self._shared, clock.monotonic()
            try:
                await self._live(one, shared, end)
                return
            except StartupError as error:
                if not (lived or self._watch.stood_still_since(began)):
                    raise
                log.error("service_does_not_start", error=str(error))
            except Exception as error:
                log.exception("service_failed", error=str(error))
                # The ledger is not the one that was read so far: whoever goes on restores the books again, and the
                # others come to these when they fail of the same.
                if isinstance(error, Conflict) and self._shared is shared:
                    self._shared = Shared()
            end.over()
            lived, failures = True, 0 if clock.monotonic() - began >= STEADY_SECONDS else failures + 1
            await wait_for(self._stop, clock, RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)])

    async def _live(self, one: Hosted, shared: Shared, end: BoundedEnd) -> None:
        """The service from its first connection to its end, with an instance's name of its own."""
        settings, name, clock = one.settings, one.settings.service, self._clock
        instance, metrics = ids.instance_id(name), Metrics(name, one is self._hosted[0])
        speak_as(name, instance, metrics)
        self._watch.knows(name)
        if (health := self._healths.get(name)) is None:
            health = self._healths[name] = Health(clock, metrics, self._healths)
        else:
            health.begins_again(metrics)
        async with AsyncExitStack() as stack:
            try:
                ports = await _connect(settings, instance, clock, metrics, health, stack)
                if not health.listens:
                    port = settings.http_port and settings.http_port + self._hosted.index(one)
                    await health.serve(settings.http_host, port, settings.own_file("port_file"))
                log.info("service_starts", shard=settings.shard)
                await serve_until_stopped(one.serve, replace(ports, shared=shared), settings, self._stop, end)
                log.info("service_stops")
            finally:
                end.begin()


async def _connect(
    settings: ServiceSettings, instance: str, clock: Clock, metrics: Metrics, health: Health, stack: AsyncExitStack
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
    return HttpCluster("") if access is None else access.cluster()


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
