"""`share`: who has used how much for its weight, whose turn it is, and which runs make a number up."""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.shard.accounts import CSV, gpu_time, parsed, percent
from tessera.client.ledger.accounts.usage_parts import UsagePart, UsageReport, usage_report
from tessera.client.ledger.reading import ledger_in, stored_ledger
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.rendering import KINDS, Column, Output, local_time, plain, show, show_value
from tessera_schemas.text.units import format_age, format_milli
from tessera_schemas.views import ShareView

PARTS_PER_MILLION = 1_000_000
NOTE = "the least FACTOR goes first: the pool's part that is held, and was on average, over the weight"


def name_of(row: ShareView) -> str:
    """Name as `--why` takes it; who is nobody by name stands in brackets."""
    if row.others:
        return f"{row.queue}/(other tenants)" if row.pool else f"({row.level}s that are not told apart)"
    names = {"queue": (), "tenant": (row.tenant,), "user": (row.tenant, row.user or " (no user)")}[row.level]
    return "/".join((row.queue, *names))


SHARES: list[Column[ShareView]] = [
    Column("NAME", name_of, shrinks=True),
    Column("WEIGHT", lambda row: str(row.weight) if row.pool else "", right=True),
    Column("SHARE", lambda row: f"{percent(row.share_ppm, PARTS_PER_MILLION)}%" if row.pool else "", right=True),
    Column("HELD", lambda row: format_milli(row.held_gpu_milli), right=True),
    Column("AVERAGE", lambda row: format_milli(row.average_gpu_milli), right=True),
    Column("GPU TIME", lambda row: gpu_time(row.used_gpu_milli_ms).partition(".")[0], right=True),
    Column("FACTOR", lambda row: f"{percent(row.factor, PARTS_PER_MILLION)}%" if row.place else "", right=True),
    Column("PLACE", lambda row: f"{row.place} of {row.of}" if row.place else "", right=True),
    Column("POOL", lambda row: row.pool, wide=True),
    Column("PARENT", lambda row: row.parent, wide=True),
]
PARTS: list[Column[UsagePart]] = [
    Column("RUN", lambda part: part.run, shrinks=True),
    Column("FROM", lambda part: f"{local_time(part.from_ts):%Y-%m-%d %H:%M:%S}" if part.from_ts else ""),
    Column("TO", lambda part: f"{local_time(part.to_ts):%Y-%m-%d %H:%M:%S}" if part.to_ts else "(holds)"),
    Column("GPUS", lambda part: format_milli(part.gpu_milli) if part.gpu_milli else "", right=True),
    Column("GPU TIME", lambda part: gpu_time(part.used), right=True),
]


@command
async def share(
    at: AccessOptions,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant")] = None,
    why: Annotated[
        str | None,
        typer.Option("--why", metavar="QUEUE[/TENANT[/USER]]", help="List the runs that its number is made of"),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(help="With --why: an exported ledger, or the directory of a backup")
    ] = None,
    output: Annotated[
        Output,
        typer.Option(
            "--output", "-o", parser=parsed, metavar="FORMAT", help=f"{', '.join(KINDS)} or csv", show_default=False
        ),
    ] = Output.TABLE,
) -> None:
    """
    Say who has used how much for its weight, and whose turn it is: queues, tenants in them, their users.

    AVERAGE and GPU TIME are what counts yet of what was used, by the half-life; HELD is now. SHARE is the part of the
    weights beside it. `--why` reads the ledger, which an operator may; its runs sum to the number in the state.
    """
    if why is not None:
        show_parts(output, why, await _parts_of(at, tuple(why.split("/")), from_file))
        return
    views = at.views()
    rows, as_of = await views.shares(), await views.as_of()
    found = [row for row in rows if queue in (None, row.queue) and (tenant in (None, row.tenant) or not row.tenant)]
    if not found:
        raise Failure(Exit.NOT_FOUND, f"queue {queue}: there is none that you see; see `tessera queue list`")
    if output == CSV:
        print_csv([row.model_dump() for row in found])
    else:
        show(output, SHARES, found, as_of, NOTE)


async def _parts_of(at: AccessOptions, names: Sequence[str], from_file: Path | None) -> UsageReport:
    if from_file is not None:
        return await usage_report(ledger_in(from_file), names)
    where = at.find()
    if where.login is not None:
        raise Failure(
            Exit.USAGE,
            "share --why: reads the ledger, which a token does not; ask an operator; `sacct -D` lists your runs",
        )
    async with stored_ledger(where, at.identity) as ledger:
        return await usage_report(ledger, names)


def show_parts(output: Output, name: str, found: UsageReport) -> None:
    """Print the runs, their sum, and what the state has."""
    items = [plain(part) for part in found.parts]
    if output == CSV:
        print_csv(items)
        return
    total = sum(part.used for part in found.parts)
    if output.for_programs:
        head = {"name": name, "ts": found.ts, "half_life_ms": found.half_life_ms, "unit": "gpu_milli_ms"}
        show_value(output, {**head, "items": items, "sum": total, "used": found.used}, found.n)
        return
    rows = [*found.parts, UsagePart("(sum)", 0, found.ts, 0, total), UsagePart("(state)", 0, found.ts, 0, found.used)]
    show(output, PARTS, rows, found.n, f"half of what was used counts after {format_age(found.half_life_ms)}")


def print_csv(rows: Sequence[dict[str, object]]) -> None:
    """Print rows by their fields, titles first."""
    lines = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    lines.writeheader()
    lines.writerows(rows)
