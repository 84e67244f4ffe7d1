"""Wiring of projection: one instance leads and writes, the others fold along and have everything at hand."""

import asyncio

import structlog

from tessera.kernel.errors import Conflict, Transient
from tessera.kernel.ledger.quotes import read_quotes
from tessera.kernel.ledger.shard import Shard
from tessera.kernel.ledger.snapshots import OPENING, snapshots_of
from tessera.kernel.messaging.follow import BACKOFF_SECONDS, follow
from tessera.kernel.ports import Message
from tessera.kernel.process.leases import RENEWALS_PER_LEASE, Leadership
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import run_loops
from tessera.kernel.tasks.waiting import wait_for
from tessera.projection.account import AccountKeeper, StoredAccount
from tessera.projection.cycle import Cycle
from tessera.projection.events import START, Cursor
from tessera.projection.evidence import newest_published
from tessera.projection.mirror import Mirror
from tessera.projection.publisher import Publisher
from tessera.projection.quotes import QuoteKeeper
from tessera.projection.settings import ProjectionSettings
from tessera.projection.snapshots import Snapshots
from tessera.projection.views import Views

log = structlog.get_logger()


async def serve(ports: Ports, settings: ProjectionSettings, stop: asyncio.Event) -> None:
    """Project the ledger until `stop`; raises InvariantViolation to halt."""
    lease = Leadership(ports.bus, ports.clock, settings.shard, "projection", ports.instance, settings.lease_seconds)
    try:
        await run_loops(stop, elect(ports, lease, settings.lease_seconds), project_on(ports, settings, lease, stop))
    finally:
        await lease.release()
        ports.metrics.leading.set(0)


async def elect(ports: Ports, lease: Leadership, lease_seconds: float) -> None:
    """Lead whenever the lease is ours."""
    while True:
        await lease.acquire()
        ports.metrics.leading.set(1)
        while lease.held:
            await ports.clock.sleep(lease_seconds / RENEWALS_PER_LEASE)
        ports.metrics.leading.set(0)


async def project_on(ports: Ports, settings: ProjectionSettings, lease: Leadership, stop: asyncio.Event) -> None:
    """Start over from a snapshot whenever the bus was away meanwhile or the events' stream has lost its end."""
    failures = 0
    while not stop.is_set():
        try:
            await project(ports, settings, lease, stop)
            return
        except (Conflict, Transient) as error:
            log.warning("projection_starts_over", error=str(error))
            await wait_for(stop, ports.clock, BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
            failures += 1


async def project(ports: Ports, settings: ProjectionSettings, lease: Leadership, stop: asyncio.Event) -> None:
    """Restore, then fold and write until `stop`."""
    publisher = Publisher(ports, settings.shard, settings.events_waiting_max)
    shard, last_event = await restore_behind(ports, settings.shard, await publisher.locate())
    account = AccountKeeper(ports, settings.shard, shard.state, await StoredAccount.read(ports.bus, settings.shard))
    views = Views(shard.state, settings.ended_jobs_max, settings.ended_jobs_seconds)
    mirror = Mirror(ports, settings, shard.state, views, await held_views(ports))
    stored = await read_quotes(ports.bus, settings.shard)
    quotes = QuoteKeeper(ports, settings.shard, shard.state, stored, settings.quote_seconds)
    snapshots = Snapshots(ports, settings, account.store, restored=shard.state.n > 0)
    cycle = Cycle(ports, settings, shard, views, (publisher, mirror, snapshots, account, quotes), last_event)
    await cycle.start()
    ports.health.check("events", lambda: publisher.trouble)
    ports.health.check("redis", lambda: mirror.trouble)
    ports.health.check("account", lambda: account.trouble)
    ports.health.started()

    def leading() -> bool:
        return lease.held

    async def fold(messages: list[Message]) -> None:
        await cycle.fold(messages, leading())

    await run_loops(
        stop,
        follow(ports.ledger.follow(shard.state.n), fold, stop=stop, clock=ports.clock),
        publisher.run(leading),
        mirror.run(leading, cycle.caught_up),
        snapshots.run(),
        account.run(leading),
        *((quotes.run(leading, cycle.caught_up),) if settings.quote_seconds else ()),
    )


async def held_views(ports: Ports) -> int:
    """Up to which message Redis has the views; 0 while it is away."""
    try:
        return await ports.store.cursor()
    except Transient as error:
        log.warning("views_unknown", error=str(error))
        return 0


async def restore_behind(ports: Ports, shard: str, published: Cursor) -> tuple[Shard, Cursor]:
    """The newest state from which every event that is not published can still be derived."""
    found = await newest_published(ports.bus, ports.ledger, shard, published)
    if found is None and await ports.ledger.first() > 1:
        # What was rolled over had been published, and the stream lost it: the oldest state that is left gives the rest.
        async for opening in snapshots_of(ports.bus, ports.ledger, shard, lambda manifest: True, OPENING):
            found = opening
        log.warning("events_begin_with_a_generation", published=str(published))
    if found is None:
        return Shard(), START
    log.info("restored", n=found.state.n)
    return Shard(found.state, found.hasher), min(Cursor.parse(found.manifest.last_event), published)
