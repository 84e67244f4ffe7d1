"""Wiring of the gateway: the fold, the newest events, the tokens, and the listener before them."""

import asyncio
from functools import partial

import structlog

from tessera.gateway.commanding import Arrivals, Commands
from tessera.gateway.door import Door
from tessera.gateway.guard import Guard
from tessera.gateway.handlers import Handlers
from tessera.gateway.hub import Hub
from tessera.gateway.listening import application, listen
from tessera.gateway.logs import Logs
from tessera.gateway.measures import Measures
from tessera.gateway.settings import GatewaySettings, check_exposure
from tessera.gateway.streaming import Streams
from tessera.gateway.tokens import TokenFile
from tessera.gateway.views import SharedViews
from tessera.kernel.ledger.loop import fold_ledger
from tessera.kernel.ledger.shard import restore
from tessera.kernel.messaging.requests import Requester
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import run_loops
from tessera.kernel.tasks.waiting import wait_for

LINGER_SECONDS = 0.05  # how old what it answers may be while the ledger is busy; a submit waits for nothing

log = structlog.get_logger()


async def serve(ports: Ports, settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve from when the fold is at the ledger's head until `stop`; then requests in flight are finished."""
    clock = ports.clock
    tokens = TokenFile(settings.tokens_file)
    tokens.load()
    check_exposure(settings, len(tokens))
    shard = await restore(ports.bus, ports.ledger, settings.shard)
    await shard.catch_up(ports.ledger)  # else a job that is there would be told not to be
    hub = Hub(ports.bus, settings.shard, settings.events_held)
    await hub.locate()
    arrivals, measures = Arrivals(clock), Measures(ports.metrics)
    streams = Streams(hub, settings, tokens, clock, measures)
    handlers = Handlers(
        settings,
        shard.state,
        SharedViews(ports.store, clock, settings.views_seconds, settings.views_age_seconds),
        Commands(await Requester.for_tenants(ports.bus, clock), settings),
        arrivals,
        streams,
        Logs(ports.cluster, streams),
        clock,
    )
    app = application(settings, Guard(settings, tokens, clock, measures, ports.spans), handlers)
    listener = await listen(app, settings, Door(settings, measures, clock))
    log.info("gateway_listens", host=settings.api_host, port=listener.port, tokens=len(tokens))
    ports.health.started()

    async def until_stopped() -> None:
        # What answers requests in flight goes on until they are answered, and ends with them.
        await stop.wait()
        hub.close()
        await listener.close()

    try:
        linger = partial(wait_for, arrivals.expected, clock, LINGER_SECONDS)
        folding = fold_ledger(ports, shard, arrivals.on_ledger, asyncio.Event(), linger=linger)
        await run_loops(asyncio.Event(), until_stopped(), folding, hub.run(clock), tokens.keep_fresh(clock))
    finally:
        hub.close()
        await listener.close()
