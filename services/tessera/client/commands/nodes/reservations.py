"""`reservation`: nodes that are kept in windows of time, for jobs that name the reservation or for maintenance."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from tessera.client.commands.context import AccessOptions, Format, Yes, command
from tessera.client.connect.connecting import api_of
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.sending.consent import ask_first
from tessera.client.slurm.listing.words import submitter
from tessera.client.slurm.windows import read_windows
from tessera.client.views.rendering import Column, Output, local_time, show
from tessera_schemas.commands import EndReservation, ReserveNodes
from tessera_schemas.shard.bookings import BookedWindow

if TYPE_CHECKING:
    from tessera.gateway.operations.slot_models import ReservationRow

reservation = typer.Typer(help="Show, make and end reservations of nodes.", invoke_without_command=True)
NAMES_MAX = 3
ReservationName = Annotated[str, typer.Argument(help="The reservation's name")]


def _named(names: Sequence[str]) -> str:
    return ",".join(names[:NAMES_MAX]) + (f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else "")


RESERVATIONS: "list[Column[ReservationRow]]" = [
    Column("NAME", lambda row: row.name),
    Column("STATE", lambda row: "now" if row.is_now else "ahead"),
    Column("FROM", lambda row: f"{local_time(row.windows[0].start_ts):%Y-%m-%d %H:%M}"),
    Column("TO", lambda row: f"{local_time(row.windows[0].end_ts):%Y-%m-%d %H:%M}"),
    Column("MORE", lambda row: str(len(row.windows) - 1), right=True),
    Column("POOL", lambda row: row.pool, shrinks=True),
    Column("NODES", lambda row: str(len(row.nodes)), right=True),
    Column("GPUS", lambda row: str(row.gpus), right=True),
    Column("FOR", lambda row: whose(row), shrinks=True),
    Column("JOBS", lambda row: str(row.jobs), right=True),
    Column("MISSING", lambda row: _named(row.missing), shrinks=True),
    Column("WHY", lambda row: row.why, shrinks=True),
]


def whose(row: "ReservationRow") -> str:
    """Words for who may name it, as far as the reader may know."""
    return "maintenance" if row.is_maintenance else ",".join(row.who) or "others"


async def rows_of(where: Where) -> "tuple[list[ReservationRow], int]":
    """Reservations, the next to begin first, and the number of the message that they are as of."""
    from tessera.gateway.operations.slot_models import ReservationRow

    found = await api_of(where).get("/v1/reservations")
    return [ReservationRow.model_validate(row, extra="ignore") for row in found["items"]], int(found["as_of"])


@reservation.callback()
@command
async def list_reservations(ctx: typer.Context, at: AccessOptions, output: Format = Output.TABLE) -> None:
    """Show reservations of nodes, the next to begin first, with nodes that are missing."""
    if ctx.invoked_subcommand is None:
        show(output, RESERVATIONS, *await rows_of(at.find()))


@reservation.command(name="list")
@command
async def list_them(at: AccessOptions, output: Format = Output.TABLE) -> None:
    """Show reservations of nodes, the next to begin first, with nodes that are missing."""
    show(output, RESERVATIONS, *await rows_of(at.find()))


@reservation.command(name="show")
@command
async def show_one(at: AccessOptions, name: ReservationName, output: Format = Output.TABLE) -> None:
    """Show one reservation, with each of its windows and nodes."""
    rows, as_of = await rows_of(at.find())
    found = next((row for row in rows if row.name == name), None)
    if found is None:
        raise _no_such(name)
    if output.kind != Output.TABLE.kind:
        show(output, RESERVATIONS, [found], as_of)
        return
    print("\n".join(lines_of(found)))


def times_of(window: BookedWindow) -> str:
    """The window in local time, to the second."""
    return f"{local_time(window.start_ts):%Y-%m-%d %H:%M:%S} to {local_time(window.end_ts):%Y-%m-%d %H:%M:%S}"


def lines_of(row: "ReservationRow") -> Iterable[str]:
    """The reservation in lines for people."""
    yield f"{row.name}: {len(row.nodes)} nodes of pool {row.pool} with {row.gpus} GPUs"
    yield f"  for      {whose(row)}" + (f"; {row.why}" if row.why else "")
    for window in row.windows:
        yield f"  window   {times_of(window)}"
    yield f"  nodes    {', '.join(row.nodes)}"
    if row.missing:
        yield f"  missing  {', '.join(row.missing)}: not ready, gone or drained now; without them it cannot be served"
    for each in row.replaced:
        others = f" by {', '.join(each.found)}" if each.found else ": the others have GPUs enough"
        yield f"  replaced {local_time(each.at_ts):%Y-%m-%d %H:%M:%S}, {', '.join(each.lost)}{others}"
    if not row.is_now:
        yield f"  now      {row.runs} runs of others are there, which have left when the window begins"
    yield f"  jobs     {row.jobs} jobs name it"


@reservation.command()
@command
async def create(
    at: AccessOptions,
    name: Annotated[str, typer.Argument(help="Its name, by which jobs ask for it")],
    pool: Annotated[str, typer.Option(help="Pool whose nodes it keeps")] = "default",
    start: Annotated[str, typer.Option(help="Such as now, now+2hours, 16:00, tomorrow, 2030-01-31T12:00")] = "now",
    end: Annotated[str | None, typer.Option(help="As --start; in place of --for")] = None,
    for_: Annotated[str | None, typer.Option("--for", help="How long, such as 90m or 8h; in place of --end")] = None,
    nodes: Annotated[str | None, typer.Option(help="Nodes by name: gpu-1,gpu-2")] = None,
    node_count: Annotated[int | None, typer.Option(help="So many nodes, which are chosen", min=1)] = None,
    gpus: Annotated[int | None, typer.Option(help="So many GPUs on whole nodes, which are chosen", min=1)] = None,
    model: Annotated[str, typer.Option(help="GPU model of the nodes that are chosen")] = "",
    whole_pool: Annotated[bool, typer.Option("--whole-pool", help="All nodes of the pool, and those to come")] = False,
    first: Annotated[bool, typer.Option("--first", help="As soon from --start on as enough nodes are free")] = False,
    tenant: Annotated[
        list[str] | None,
        typer.Option(help="Tenant, or TENANT/USER, whose jobs may name it; several times. None: maintenance"),
    ] = None,
    repeat: Annotated[
        str | None, typer.Option(help="Rule of RFC 5545 with an end: 'FREQ=WEEKLY;COUNT=8', 'FREQ=DAILY;UNTIL=…'")
    ] = None,
    why: Annotated[str, typer.Option(help="Reason, for the record")] = "",
    yes: Yes = False,
) -> None:
    """Keep nodes in windows of time: whoever is there leaves in time, and jobs that name it start there alone."""
    chosen = {"nodes": nodes, "node-count": node_count, "gpus": gpus, "whole-pool": whole_pool or None}
    said = [f"--{option}" for option, value in chosen.items() if value]
    if len(said) != 1:
        what = " and ".join(said) if said else "nothing"
        raise Failure(
            Exit.USAGE, f"reservation create: say one of --nodes, --node-count, --gpus and --whole-pool, not {what}"
        )
    order = reserve(
        name=name,
        pool=pool,
        windows=read_windows("reservation create", start, end, for_, repeat),
        nodes=sorted(filter(None, (nodes or "").split(","))),
        node_count=node_count,
        gpus=gpus,
        gpu_model=model,
        first=first,
        who=sorted({*(tenant or ())}),
        why=why,
    )
    print(await give(at, order, yes))


def reserve(**said: Any) -> ReserveNodes:
    """The order to reserve nodes. Raises Failure that names the field."""
    import orjson

    try:
        body = {"kind": "reserve_nodes", "v": 1, "by": submitter(), **said}
        return ReserveNodes.model_validate_json(orjson.dumps(body))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise Failure(
            Exit.USAGE, f"reservation {said.get('name')}: {f'{field}: ' if field else ''}{message}"
        ) from error


async def give(at: AccessOptions, order: ReserveNodes, yes: bool) -> str:
    """Says what it would do, sends it, and waits until it is seen; the words for people. Raises Failure."""
    where = at.find()
    ordering.check_operator(where, at.identity, "reservation create", "reserve nodes")
    # What the ledger has against it is told by field, before anything is stored.
    await ask_first(where, at.identity, order, yes, strict=True)
    await ordering.send(where, at.identity, order)

    async def carried_out(_: object) -> bool:
        return any(row.name == order.name for row in (await rows_of(where))[0])

    if not await ordering.is_seen(where, carried_out):
        raise Failure(
            Exit.GAVE_UP,
            f"reservation {order.name}: the order is stored, but not carried out after {ordering.SEEN_SECONDS:g} s; "
            "where somebody else was faster it is not at all: look at `tessera reservation`",
        )
    row = next(row for row in (await rows_of(where))[0] if row.name == order.name)
    more = f", and {len(row.windows) - 1} windows after it" if len(row.windows) > 1 else ""
    return f"reservation {row.name}: {_named(row.nodes)} from {times_of(row.windows[0])}{more}"


@reservation.command()
@command
async def delete(at: AccessOptions, name: ReservationName) -> None:
    """End a reservation; what runs on its nodes goes on."""
    print(await end(at, name))


async def end(at: AccessOptions, name: str) -> str:
    """Ends a reservation, once that is seen; the words for people. Raises Failure."""
    where = at.find()
    ordering.check_operator(where, at.identity, "reservation delete", "end reservations")
    if all(row.name != name for row in (await rows_of(where))[0]):
        raise _no_such(name)
    await ordering.send(where, at.identity, EndReservation(kind="end_reservation", v=1, name=name))

    async def carried_out(_: object) -> bool:
        return all(row.name != name for row in (await rows_of(where))[0])

    if not await ordering.is_seen(where, carried_out):
        raise Failure(Exit.GAVE_UP, f"reservation {name}: its end is stored, but not carried out yet")
    return f"reservation {name} is ended"


def _no_such(name: str) -> Failure:
    return Failure(Exit.NOT_FOUND, f"reservation {name}: there is none; see `tessera reservation`")
