"""`report` and `idle`: who had the shard's GPUs for how long, and why nobody did; every sum is the capacity."""

import csv
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.connect.connecting import api_of
from tessera.client.ledger.accounts.accounting import (
    AccountReport,
    AccountRow,
    account_report,
    read_account,
    served_report,
)
from tessera.client.ledger.accounts.focus import FocusBooks, FocusRow
from tessera.client.ledger.reading import LedgerBackup, LedgerFile, StoredLedger, ledger_in, stored_ledger
from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.values import Said, since_ms
from tessera.client.views.rendering import KINDS, Column, Output, local_time, show, show_value, zone_name
from tessera.engine.accounts.dividing import NodeDivider, by_decision, by_flavor, by_model, by_rack
from tessera.engine.accounts.naming import GPU_SECOND, idle_by, name_by, name_decision
from tessera.engine.accounts.owners import HELD, KEPT, RUNNING, AnyResource, GpuCause, Resource
from tessera.kernel.clock import SystemClock
from tessera_schemas.cluster.device_claims import OF_CLASS
from tessera_schemas.subjects import MAIN_SHARD

CSV, FOCUS = Output("csv"), Output("focus")
SUM, CAPACITY = "(sum)", "(capacity)"
"""Last rows; no name of ours has a bracket."""
WORDS: Mapping[str, str] = {
    GpuCause.USED: "used by runs",
    GpuCause.UNUSED: "held by runs that were warned: they use none of theirs",
    GpuCause.STARTING: "held by runs that start",
    GpuCause.STOPPING: "held by runs that stop",
    GpuCause.OTHERS: "held by pods that Tessera does not manage",
    GpuCause.OUT: "on nodes that are out: not ready, cordoned, drained, silent, backed off",
    GpuCause.BOOKED: "kept by reservations: in a window, or before one that all that waits would outlast",
    GpuCause.RESERVED: "kept for jobs that start there once more has ended",
    GpuCause.EARMARKED: "kept for jobs by plans, cordons and restarts",
    GpuCause.NOTHING_WAITS: "free, and nothing waits for them",
    GpuCause.QUOTA: "free, and all that waits lacks quota",
    GpuCause.STOPPED: "free, and the queues of all that waits are stopped",
    GpuCause.BUDGET: "free, and the budgets of all that waits are spent",
    GpuCause.MODEL: "free, and nothing that waits takes this GPU model",
    GpuCause.PODS: "free, and their nodes take no more pods",
    GpuCause.GPU: "free, and too few on a node, or parts, for all that waits",
    GpuCause.CPU: "free, with too little CPU beside them for all that waits",
    GpuCause.MEMORY: "free, with too little memory beside them for all that waits",
    GpuCause.FREE: "free, whatever waits",
    GpuCause.WORK_WAITS: "free while work waits, for reasons that the account does not prove",
}


class ReportBy(StrEnum):
    """Fields by which the account is summed up."""

    TENANT = "tenant"
    QUEUE = "queue"
    USER = "user"
    PROJECT = "project"
    JOB = "job"
    FLAVOR = "flavor"


class IdleBy(StrEnum):
    """Fields by which what is not used is summed up."""

    CAUSE = "cause"
    QUEUE = "queue"
    FLAVOR = "flavor"
    MODEL = "model"
    RACK = "rack"
    DECISION = "decision"


FROM_LEDGER: Mapping[str, NodeDivider] = {
    IdleBy.MODEL: by_model,
    IdleBy.RACK: by_rack,
    IdleBy.DECISION: by_decision,
}
"""Fields that the gateway's account does not have, and how the ledger is read by them."""


def parsed(text: str | Output) -> Output:
    """Read a value of `-o`, which may also be csv. Raises typer.BadParameter."""
    return CSV if text == CSV.kind else Output.parse(text)


def _resource(text: str) -> AnyResource:
    """Read a value of `--resource`. Raises typer.BadParameter."""
    if text in SHOWN or text.removeprefix(OF_CLASS) not in ("", text):
        return text
    raise typer.BadParameter(f"{text}: write {', '.join(Resource)} or {OF_CLASS}NAME, devices of a class")


def _parsed(text: str | Output) -> Output:
    return FOCUS if text == FOCUS.kind else parsed(text)


FORMATS = f"{', '.join(KINDS)}, csv or, of `report`, focus"
TIMES = "2h or 7d ago, today, or 2030-01-31T12:00"


@dataclass(frozen=True, slots=True)
class SpanOptions:
    """Stretch of time, of which ledger, and form of the output."""

    since: Annotated[
        str, typer.Option(help=f"Begin: {TIMES} (else where the account begins)", metavar="TIME", show_default=False)
    ] = ""
    until: Annotated[
        str, typer.Option(help=f"End: {TIMES} (else where it ends)", metavar="TIME", show_default=False)
    ] = ""
    from_ledger: Annotated[
        bool, typer.Option("--from-ledger", help="Read the whole ledger, as an operator: exact to the millisecond")
    ] = False
    from_file: Annotated[
        Path | None, typer.Option(help="A ledger exported by `tessera ledger inspect`, or the directory of a backup")
    ] = None
    resource: Annotated[
        str,
        typer.Option(
            help=f"Of which resource: {', '.join(Resource)} or, of `report`, {OF_CLASS}NAME, devices of a class",
            parser=_resource,
            metavar="RESOURCE",
        ),
    ] = Resource.GPU.value
    output: Annotated[
        Output,
        typer.Option(
            "--output",
            "-o",
            parser=_parsed,
            metavar="FORMAT",
            help=FORMATS,
            show_default=False,
        ),
    ] = Output.TABLE

    async def report(self, at: AccessOptions, by: str, idle: bool = False) -> AccountReport:
        """Account of the span with rows by a field or cause, with `idle` what is used apart. Raises Failure."""
        since, until = _moment("since", self.since), _moment("until", self.until)
        field, divide = by, FROM_LEDGER.get(by, by_flavor)
        if by in FROM_LEDGER:
            field = IdleBy.FLAVOR
        naming = name_decision if by == IdleBy.DECISION else idle_by(field) if idle else name_by(field)
        if self.from_file is None and not self.from_ledger:
            if by in FROM_LEDGER:
                what = "models, racks and decisions are not in the account that the gateway has"
                raise Failure(Exit.USAGE, f"{what}: add --from-ledger or --from-file")
            return await served_report(api_of(at.find(), at.identity), since, until, by, idle, self.resource)
        async with self._ledger(at) as ledger:
            return await account_report(ledger, since, until, naming, divide, self.resource, with_use=not idle)

    async def focus(self, at: AccessOptions) -> Iterator[FocusRow]:
        """Rows of what runs held and what it cost, from the whole ledger. Raises Failure without prices."""
        if self.resource != Resource.GPU:
            raise Failure(Exit.USAGE, "report: GPUs alone have prices; leave --resource out")
        since, until = _moment("since", self.since), _moment("until", self.until)
        books = FocusBooks(since, until)
        async with self._ledger(at) as ledger:
            await read_account(ledger, books, until, books.price)
        if not books.currency:
            raise Failure(Exit.NOT_FOUND, "report: the configuration has no prices; say `money`, see docs/money.md")
        return books.rows(at.shard or MAIN_SHARD)

    @asynccontextmanager
    async def _ledger(self, at: AccessOptions) -> AsyncIterator[StoredLedger | LedgerFile | LedgerBackup]:
        if self.from_file is None:
            async with stored_ledger(at.find(), at.identity) as ledger:
                yield ledger
        else:
            yield ledger_in(self.from_file)


def _moment(name: str, text: str) -> int:
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000).astimezone()
    return since_ms(Said("tessera", name, text), now) if text else 0


@command
async def report(
    at: AccessOptions,
    span: SpanOptions,
    by: Annotated[ReportBy, typer.Option(help="Sum up by this")] = ReportBy.TENANT,
) -> None:
    """
    Sum up who had how many GPUs for how long: GPU time as hours:minutes:seconds of one GPU.

    The gateway has full hours of 35 days, then days of three years without jobs; a tenant sees its own by name.
    HELD is by runs that start or stop, KEPT for jobs that are to start. Rows in brackets are nobody's whom the ledger
    names. The sum is the capacity, exactly, but for devices of a class, which may overlap: these are what jobs held by
    it, and have no capacity; json and csv name the unit of their amounts. focus is CSV for finance, by
    job and hour, with costs by `money`, from the whole ledger (operators).
    """
    if span.output == FOCUS:
        rows = list(await span.focus(at))
        lines = csv.DictWriter(sys.stdout, rows[0] if rows else (), lineterminator="\n")
        lines.writeheader()
        lines.writerows(rows)
        return
    found = await span.report(at, by)
    _show(span, found, by, _columns(by, found, span.resource))


@command
async def idle(
    at: AccessOptions,
    span: SpanOptions,
    by: Annotated[IdleBy, typer.Option(help="Sum up by this")] = IdleBy.CAUSE,
) -> None:
    """
    Sum up why GPUs were not used, and for how long, beside those that were; the sum is the capacity, exactly.

    A free GPU names what it lacks where that is proved by what waited; otherwise it was free while work waited.
    """
    if span.output == FOCUS:
        raise Failure(Exit.USAGE, "idle: --output=focus is of costs, and what is idle costs nobody; see `report`")
    if span.resource.startswith(OF_CLASS):
        why = "devices of a class may overlap, so that what is free has no sum; `tessera nodes -o wide` shows them now"
        raise Failure(Exit.USAGE, f"idle: {why}")
    found = await span.report(at, by, idle=True)
    if by is IdleBy.CAUSE:
        said: Column[AccountRow] = Column("", lambda row: WORDS.get(row.name, ""), shrinks=True)
        _show(span, found, by, [*_columns(by, found, span.resource, parts=False), said])
    else:
        _show(span, found, by, _columns(by, found, span.resource, parts=by is not IdleBy.DECISION))


def _columns(by: str, found: AccountReport, resource: AnyResource, parts: bool = True) -> list[Column[AccountRow]]:
    whole, _, time = SHOWN.get(resource, OF_DEVICES)
    measured = any(row.of(GpuCause.MEASURED) for row in found.rows)

    def amount(title: str, *causes: GpuCause) -> Column[AccountRow]:
        return Column(title, lambda row: time(row.of(*causes)) if row.of(*causes) else "", right=True)

    return [
        Column(by.upper(), lambda row: row.name, shrinks=parts),
        *((amount("USED", *RUNNING), amount("HELD", *HELD), amount("KEPT", *KEPT)) if parts else ()),
        *((amount("MEASURED", GpuCause.MEASURED), amount("WORKED", GpuCause.WORKED)) if measured else ()),
        Column(whole, lambda row: time(row.sum), right=True),
        Column("PERCENT", lambda row: percent(row.sum, found.capacity or found.sum), right=True),
    ]


def _show(span: SpanOptions, found: AccountReport, by: str, columns: Sequence[Column[AccountRow]]) -> None:
    output, (_, unit, _) = span.output, SHOWN.get(span.resource, OF_DEVICES)
    capacity = [] if span.resource.startswith(OF_CLASS) else [found.capacity]
    if output == CSV:
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerow((by, "cause", unit))
        lines.writerows((row.name, cause, amount) for row in found.rows for cause, amount in row.parts.items())
        lines.writerows(((SUM, "", found.sum), *((CAPACITY, "", whole) for whole in capacity)))
        return
    if output.for_programs:
        value = {"by": by, "since_ts": found.since_ts, "until_ts": found.until_ts, "unit": unit}
        rows = [{"name": row.name, "causes": row.parts, "sum": row.sum, **row.use} for row in found.rows]
        show_value(output, {**value, "items": rows, "sum": found.sum, "capacity": found.capacity}, found.n)
        return
    total = Counter[str]()
    for row in found.rows:
        total.update(row.causes)
    ends = AccountRow(SUM, dict(total)), *(AccountRow(CAPACITY, {GpuCause.CAPACITY: whole}) for whole in capacity)
    times = " to ".join(f"{local_time(ts):%Y-%m-%d %H:%M:%S}" for ts in (found.since_ts, found.until_ts))
    show(output, columns, [*found.rows, *ends], found.n, f"{times} {zone_name()}")


def gpu_time(amount: int) -> str:
    """Thousandths of a GPU times milliseconds as hours:minutes:seconds of one GPU, to the last digit."""
    seconds, rest = divmod(amount, GPU_SECOND)
    behind = f".{rest:06}".rstrip("0") if rest else ""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}{behind}"


def memory_time(amount: int) -> str:
    """Bytes times milliseconds as hours:minutes:seconds of one GiB, rounded down."""
    return gpu_time((amount >> 30) // 1000 * GPU_SECOND)


def device_time(amount: int) -> str:
    """Devices times milliseconds as hours:minutes:seconds of one device, to the last digit."""
    return gpu_time(amount * 1000)


SHOWN: Mapping[str, tuple[str, str, Callable[[int], str]]] = {
    Resource.GPU: ("GPU TIME", "gpu_milli_ms", gpu_time),
    Resource.CPU: ("CPU TIME", "cpu_milli_ms", gpu_time),
    Resource.MEMORY: ("GIB TIME", "memory_byte_ms", memory_time),
}
"""Title of the sum, unit in JSON and CSV, and text of an amount."""
OF_DEVICES = "DEVICE TIME", "device_ms", device_time
"""The report of devices of a class."""


def percent(amount: int, whole: int) -> str:
    """Part of the whole with one digit behind the point, rounded down."""
    tenths = amount * 1000 // whole if whole else 0
    return f"{tenths // 10}.{tenths % 10}"
