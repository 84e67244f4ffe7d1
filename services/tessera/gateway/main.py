"""Wiring of the gateway: the fold, the newest events, the tokens, and the listener before them."""

import asyncio
from functools import partial

import structlog

from tessera.domain.state import State
from tessera.gateway.entrance.door import Door
from tessera.gateway.entrance.guard import Guard
from tessera.gateway.entrance.listening import application, listen
from tessera.gateway.entrance.short_tokens import LoginDesk, ShortTokens, address_of
from tessera.gateway.entrance.tokens import TokenFile
from tessera.gateway.measures import Measures
from tessera.gateway.operations.commanding import Arrivals, Commands
from tessera.gateway.operations.handlers import Handlers
from tessera.gateway.quoting.asking import AskedQuotes
from tessera.gateway.reading.account import AccountReader
from tessera.gateway.reading.hub import Hub
from tessera.gateway.reading.logs import Logs
from tessera.gateway.reading.quotes import SharedQuotes
from tessera.gateway.reading.specs import Specs
from tessera.gateway.reading.streaming import Streams
from tessera.gateway.reading.views import SharedStatus, SharedViews
from tessera.gateway.settings import GatewaySettings, check_exposure
from tessera.gateway.stored_logs.bounds import BoundedStore
from tessera.gateway.stored_logs.collecting import LogCollector
from tessera.gateway.stored_logs.reading import StoredLogs
from tessera.gateway.stored_logs.stores import LogStore, open_store
from tessera.kernel.ledger.loop import BooksReader, open_books
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.requests import Requester
from tessera.kernel.process.leases import Leadership
from tessera.kernel.process.shard_status import StatusReader
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import run_loops
from tessera.kernel.tasks.waiting import wait_for

LINGER_SECONDS = 0.05  # how old what it answers may be while the ledger is busy; a submit waits for nothing

log = structlog.get_logger()


async def serve(ports: Ports, settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve from when the fold is at the ledger's head until `stop`; then requests in flight are finished."""
    clock = ports.clock
    short = ShortTokens(settings.nats_password.get_secret_value(), settings.shard, clock)
    tokens = TokenFile(settings.tokens_file, short)
    tokens.load()
    check_exposure(settings, len(tokens))
    store = open_store(settings.logs_store, settings.logs_store_options)
    books = await open_books(ports, settings.shard)
    hub = Hub(ports.bus, settings.shard, settings.events_held)
    arrivals, measures = Arrivals(clock), Measures(ports.metrics)
    collector = None if store is None else _collector(ports, settings, store, books.state, measures)

    async def on_ledger(entries: list[Entry]) -> None:
        await arrivals.on_ledger(entries)
        if collector is not None:
            await collector.on_ledger(entries)

    linger = partial(wait_for, arrivals.expected, clock, LINGER_SECONDS)
    reader = BooksReader(books, ports, on_ledger, linger)
    await reader.catch_up()  # else a job that is there would be told not to be
    streams = Streams(hub, settings, tokens, clock, measures)
    handlers = Handlers(
        settings,
        books.state,
        SharedViews(ports.store, clock, settings.views_seconds, settings.views_age_seconds),
        Commands(await Requester.for_tenants(ports.bus, clock), settings),
        arrivals,
        streams,
        Logs(ports.cluster, streams, StoredLogs(store, settings.shard)),
        Specs(ports.ledger),
        clock,
        SharedStatus(StatusReader(ports.bus, ports.ledger, ports.store, clock, settings.shard, "gateway"), clock),
        AccountReader(ports.bus, settings.shard, clock),
        SharedQuotes(ports.store, clock, settings.views_seconds),
        AskedQuotes(books.state, ports.bus, clock, settings.shard),
    )
    app = application(settings, Guard(settings, tokens, clock, measures, ports.spans), handlers)
    listener = await listen(app, settings, Door(settings, measures, clock))
    log.info("gateway_listens", host=settings.api_host, port=listener.port, tokens=len(tokens))
    ports.health.check("tokens", tokens.trouble)
    ports.health.started()

    async def until_stopped() -> None:
        # What answers requests in flight goes on until they are answered, and ends with them.
        await stop.wait()
        hub.close()
        await listener.close()

    try:
        desk = LoginDesk(ports.bus, settings.shard, short, address_of(settings, listener.port))
        loops = [until_stopped(), reader.follow(asyncio.Event()), hub.run(clock), tokens.keep_fresh(clock), desk.run()]
        if collector is not None:
            name = ports.instance
            lease = Leadership(ports.bus, clock, settings.shard, "gateway", name, settings.lease_seconds)
            loops.append(collector.run(lease))
        await run_loops(asyncio.Event(), *loops)
    finally:
        hub.close()
        await listener.close()


def _collector(
    ports: Ports, settings: GatewaySettings, store: LogStore, state: State, measures: Measures
) -> LogCollector:
    shard, clock, bounds = settings.shard, ports.clock, (settings.logs_job_bytes_max, settings.logs_days)
    bounded = BoundedStore(
        store, shard, lambda: tuple(state.configured.tenants), settings.logs_bytes_max, clock, measures
    )
    return LogCollector(ports.cluster, bounded, state, shard, clock, measures, *bounds)
