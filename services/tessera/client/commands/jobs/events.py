"""`events`: the public events, stored or as they come."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.connect.api import events_by_api, reason_of
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.views.completing import complete_jobs
from tessera.client.views.rendering import Column, Output, local_of, notify, show, zone_name
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera.kernel.provisioning.credential_files import Credential
from tessera_schemas import subjects
from tessera_schemas.events import CloudEvent, short_type

if TYPE_CHECKING:
    from tessera.kernel.ports import Bus


SILENCE_SECONDS = 30.0
"""Within which the next stored event has come, or NATS counts as away."""


@command
async def events(
    at: AccessOptions,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as they come")] = False,
    job: Annotated[
        str | None,
        typer.Option(help="Only this job, by its id, the beginning of one, or its name", autocompletion=complete_jobs),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Only this tenant")] = None,
    output: Format = Output.TABLE,
) -> None:
    """Show the stored events, those of a tenant to itself; with --follow go on as they come."""
    where = at.find()
    wanted = None if job is None else await ordering.find_job_id(where, job)
    found: list[CloudEvent] = []
    source = _events_of(where, at.identity, tenant, wanted, follow)
    if follow and not output.for_programs:
        notify(f"times in {zone_name()}")
    with suppress(asyncio.CancelledError):  # Ctrl-C ends what has no end of its own
        async for event in source:
            if wanted is None or event.data.get("job_id") == wanted:
                if follow:
                    _print_event(event, output)
                else:
                    found.append(event)
    if not follow:
        show(output, event_columns(), found, None)


def event_columns() -> list[Column[CloudEvent]]:
    """Columns of the table of events, with times in the local zone, which the title names."""
    return [
        Column("CURSOR", lambda event: event.id, wide=True),
        Column(f"TIME ({zone_name()})", lambda event: f"{local_of(event.time):%Y-%m-%d %H:%M:%S}"),
        Column("EVENT", lambda event: short_type(event.type).rpartition(".")[0]),
        Column("JOB", lambda event: str(event.data.get("job_id", ""))),
        Column("NAME", lambda event: str(event.data.get("name", "")), shrinks=True),
        Column("TENANT", lambda event: event.tenant, wide=True),
        Column("WHY", lambda event: reason_of(event), shrinks=True),
    ]


def _events_of(
    where: Where, identity: str | None, tenant: str | None, job: str | None, follow: bool
) -> AsyncIterator[CloudEvent]:
    """The source of events for whoever asks. Raises Failure."""
    if where.api is not None and identity is None and (where.commands_api is not None or not follow):
        return events_by_api(where.api, job, tenant=tenant, follow=follow, lost=notify if follow else None)
    who = ordering.choose_identity(where, identity)
    if who.identity.role != subjects.TENANT:
        return _stored_events(where, who, tenant, follow)
    if not follow:
        raise Failure(
            Exit.USAGE,
            "events: --as TENANT gives new events only; add --follow, or leave --as out",
        )
    return _live_events(where, who)


async def events_of_jobs(where: Where, identity: str | None, jobs: Sequence[str]) -> dict[str, list[CloudEvent]]:
    """All that is stored about these jobs, by their ids; by token a request for each. Raises Failure, Transient."""
    found: dict[str, list[CloudEvent]] = {job: [] for job in jobs}
    by_token = where.api is not None and identity is None
    for asked in jobs if by_token else (None,):
        async for event in _events_of(where, identity, None, asked, follow=False):
            found.get(str(event.data.get("job_id")), []).append(event)
    return found


async def _stored_events(where: Where, who: Credential, tenant: str | None, follow: bool) -> AsyncIterator[CloudEvent]:
    async with where.bus(who) as bus:
        async for event in stored_events(bus, where.shard, tenant, follow):
            yield event


async def stored_events(bus: "Bus", shard: str, tenant: str | None, follow: bool) -> AsyncIterator[CloudEvent]:
    """
    Events from the first that is kept; without `follow` to the newest that is stored as this begins.

    Raises Transient when the stream is silent before that.
    """
    stream, subject = subjects.stream("EVENTS", shard), f"events.{shard}.{tenant or '*'}.>"
    newest = None if follow else await bus.last(stream, subject)
    if newest is None and not follow:
        return
    source = bus.follow(stream, subject, 0)
    try:
        while batch := await source.next(timeout=None if newest is None else SILENCE_SECONDS):
            for message in batch:
                if newest is not None and message.seq > newest.seq:
                    return
                yield CloudEvent.from_bytes(message.data)
            if newest is not None and batch[-1].seq == newest.seq:
                return
    finally:
        await source.close()
    if newest is not None:
        raise Transient(f"{stream}: silent for {SILENCE_SECONDS:g} s before its newest event")


async def _live_events(where: Where, who: Credential) -> AsyncIterator[CloudEvent]:

    from tessera.client.sending.watching import Watch

    async with where.bus(who) as bus:
        watch = await Watch.open(bus, where.shard, who.identity.name, SystemClock())
        notify("listening")
        while True:
            yield await watch.events.get()


def _print_event(event: CloudEvent, output: Output) -> None:
    if output.for_programs:
        print(json.dumps(event.model_dump(mode="json"), ensure_ascii=False), flush=True)  # one per line, for programs
        return
    name, job = event.data.get("name", ""), event.data.get("job_id", "")
    kind = short_type(event.type).rpartition(".")[0]
    print(f"{local_of(event.time):%H:%M:%S}  {kind:<15} {job:<20}  {name}  {reason_of(event)}".rstrip(), flush=True)
