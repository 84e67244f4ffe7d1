"""`events`: the public events, stored or as they come."""

import json
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from tessera.client.commands.context import As, Format, Home, InShard, carry_out
from tessera.client.outcomes import Exit, Failure
from tessera.client.rendering import Column, Output, say, show
from tessera.client.shard_views import ShardViews
from tessera.client.watching import Watch
from tessera.client.where import Where, find
from tessera.kernel.clock import SystemClock
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.provisioning.credential_files import Credential
from tessera_schemas import subjects
from tessera_schemas.events import CloudEvent, short_type
from tessera_schemas.reasons import PublicReason

IDLE_SECONDS = 1.0


def events(
    follow: Annotated[bool, typer.Option("--follow", help="Go on as they come")] = False,
    job: Annotated[str | None, typer.Option(help="Only this job, by its id, the beginning of one, or its name")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Only this tenant")] = None,
    output: Format = Output.TABLE,
    home: Home = None,
    shard: InShard = None,
    identity: As = None,
) -> None:
    """Show events. The operator sees the stored ones; a tenant sees its own as they come (--follow)."""

    async def work() -> None:
        where = find(home, shard=shard)
        who = where.identity(identity) if identity else where.single or where.identity(subjects.OPERATOR)
        wanted = None if job is None else await _job_id(where, job)
        async with where.bus(who) as bus:
            found: list[CloudEvent] = []
            async for event in _events(where, bus, who, tenant, follow):
                if wanted is None or event.data.get("job_id") == wanted:
                    if follow:
                        _tell(event, output)
                    else:
                        found.append(event)
            if not follow:
                show(output, COLUMNS, found, None)

    try:
        carry_out(work())
    except KeyboardInterrupt:
        raise typer.Exit(Exit.OK) from None


COLUMNS: list[Column[CloudEvent]] = [
    Column("CURSOR", lambda event: event.id),
    Column("TIME", lambda event: event.time[:19]),
    Column("EVENT", lambda event: short_type(event.type).rpartition(".")[0]),
    Column("JOB", lambda event: str(event.data.get("job_id", ""))),
    Column("NAME", lambda event: str(event.data.get("name", "")), shrinks=True),
    Column("TENANT", lambda event: event.tenant, wide=True),
    Column("WHY", lambda event: _why(event), shrinks=True),
]


async def _events(
    where: Where, bus: NatsBus, who: Credential, tenant: str | None, follow: bool
) -> AsyncIterator[CloudEvent]:
    if who.identity.role == subjects.TENANT:
        if not follow:
            raise Failure(Exit.USAGE, "events: a tenant sees its events as they come; say --follow, or subscribe")
        watch = await Watch.open(bus, where.shard, who.identity.name, SystemClock())
        say("listening")
        while True:
            yield await watch.events.get()
    pattern = f"events.{where.shard}.{tenant or '*'}.>"
    source = bus.follow(subjects.stream("EVENTS", where.shard), pattern, 0)
    try:
        while batch := await source.next(timeout=None if follow else IDLE_SECONDS):
            for message in batch:
                yield CloudEvent.from_bytes(message.data)
    finally:
        await source.close()


async def _job_id(where: Where, named: str) -> str:
    if (len(named) == 20 and named.isalnum()) or not where.can_be(subjects.OPERATOR):
        return named
    async with where.store(where.identity(subjects.OPERATOR)) as store:
        return (await ShardViews(store).job(named)).job_id


def _tell(event: CloudEvent, output: Output) -> None:
    if output in (Output.JSON, Output.YAML):
        print(json.dumps(event.model_dump(mode="json"), ensure_ascii=False), flush=True)  # one per line, for programs
        return
    name, job = event.data.get("name", ""), event.data.get("job_id", "")
    kind = short_type(event.type).rpartition(".")[0]
    print(f"{event.time[11:19]}  {kind:<15} {job:<20}  {name}  {_why(event)}".rstrip(), flush=True)


def _why(event: CloudEvent) -> str:
    reason = event.data.get("reason")
    if reason is None:
        reasons = event.data.get("reasons")
        reason = reasons[0] if isinstance(reasons, list) and reasons else None
    return PublicReason.model_validate(reason).sentence() if isinstance(reason, dict) else ""
