"""`events`: the public events, stored or as they come."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.connect.api import events_by_api, reason_of
from tessera.client.connect.connecting import api_of, open_bus
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.views.completing import complete_jobs
from tessera.client.views.rendering import Column, Output, local_of, notify, show, zone_name
from tessera.kernel.clock import SystemClock
from tessera.kernel.provisioning.credential_files import Credential
from tessera_schemas import subjects
from tessera_schemas.events import CloudEvent, short_type, short_types

ASKED_EACH_MAX = 50
"""Jobs whose events are asked for one by one; those of more are sought among all."""
NODE_TYPES = tuple(kind for kind in short_types() if kind.startswith("node."))
"""Types of events of nodes."""


@command
async def events(
    at: AccessOptions,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as they come")] = False,
    job: Annotated[
        str | None,
        typer.Option(help="Only this job, by its id, the beginning of one, or its name", autocompletion=complete_jobs),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Only this tenant")] = None,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Only events of nodes: health, drains, fencing; for operators")
    ] = False,
    output: Format = Output.TABLE,
) -> None:
    """Show the stored events, those of a tenant to itself; with --follow go on as they come."""
    if nodes and (job is not None or tenant is not None):
        raise Failure(Exit.USAGE, "--nodes goes with neither --job nor --tenant: nodes are no tenant's")
    where = at.find()
    wanted = None if job is None else await ordering.find_job_id(where, job)
    found: list[CloudEvent] = []
    source = _events_of(where, at.identity, tenant, wanted, follow, NODE_TYPES if nodes else ())
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
        Column("NAME", lambda event: str(event.data.get("name") or event.data.get("node", "")), shrinks=True),
        Column("TENANT", lambda event: event.tenant, wide=True),
        Column("WHY", lambda event: reason_of(event), shrinks=True),
    ]


def _events_of(
    where: Where, identity: str | None, tenant: str | None, job: str | None, follow: bool, types: Sequence[str]
) -> AsyncIterator[CloudEvent]:
    """The source of events for whoever asks: a tenant with a credential for NATS hears new ones there."""
    if follow and not types and (identity or where.login is None):
        who = ordering.choose_identity(where, identity)
        if who.identity.role == subjects.TENANT:
            return _live_events(where, who)
    api = api_of(where, identity)
    return events_by_api(api, job, tenant=tenant, types=types, follow=follow, lost=notify if follow else None)


async def events_of_jobs(where: Where, identity: str | None, jobs: Sequence[str]) -> dict[str, list[CloudEvent]]:
    """All that is stored about these jobs, by their ids; a request for each, or one for many. Raises as `Api.get`."""
    found: dict[str, list[CloudEvent]] = {job: [] for job in jobs}
    for asked in jobs if len(jobs) <= ASKED_EACH_MAX else (None,):
        async for event in events_by_api(api_of(where, identity), asked):
            found.get(str(event.data.get("job_id")), []).append(event)
    return found


async def _live_events(where: Where, who: Credential) -> AsyncIterator[CloudEvent]:
    from tessera.client.sending.watching import Watch

    async with open_bus(where, who) as bus:
        watch = await Watch.open(bus, where.shard, who.identity.name, SystemClock())
        notify("listening")
        while True:
            yield await watch.events.get()


def _print_event(event: CloudEvent, output: Output) -> None:
    if output.for_programs:
        print(json.dumps(event.model_dump(mode="json"), ensure_ascii=False), flush=True)  # one per line, for programs
        return
    name, job = event.data.get("name") or event.data.get("node", ""), event.data.get("job_id", "")
    kind = short_type(event.type).rpartition(".")[0]
    print(f"{local_of(event.time):%H:%M:%S}  {kind:<15} {job:<20}  {name}  {reason_of(event)}".rstrip(), flush=True)
