"""`replay` and `ledger inspect`: whether the ledger is what it should be."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tessera.client.chain import ChainWalk, Entry
from tessera.client.commands.context import As, Format, Home, InShard, carry_out, stored_ledger
from tessera.client.outcomes import Exit, Failure
from tessera.client.reading import LedgerFile, StoredLedger
from tessera.client.rendering import Column, Output, say, show, show_value
from tessera.client.replay import Head, Replay, ReplayReport
from tessera.client.where import find
from tessera_schemas import subjects
from tessera_schemas.events import CURSOR_HEADER

LONG = 2_000  # messages from which on a progress bar is worth its lines


def replay(
    verify: Annotated[bool, typer.Option("--verify", help="Verify and recompute everything")] = False,
    anchor: Annotated[
        str, typer.Option(help="A head that was kept elsewhere, N:HASH of `tessera ledger head`", metavar="N:HASH")
    ] = "",
    from_file: Annotated[Path | None, typer.Option(help="A ledger exported by `tessera ledger inspect`")] = None,
    output: Format = Output.TABLE,
    home: Home = None,
    shard: InShard = None,
    identity: As = None,
) -> None:
    """
    Replay the ledger: every record valid, every decision recomputed and equal.

    Exit code 0: all of it; 1: something is wrong; 9: all is valid, but some was decided by engines that this build does
    not carry and could not be recomputed.
    """

    async def work() -> Exit:
        if not verify:
            raise Failure(Exit.USAGE, "replay: say --verify; there is no other replay")
        if from_file is not None:
            report = await _replayed(LedgerFile(from_file), _head(anchor))
        else:
            async with stored_ledger(find(home, shard=shard), identity) as ledger:
                report = await _replayed(ledger, _head(anchor))
                await compare_events(ledger, report)
        if output in (Output.JSON, Output.YAML):
            show_value(output, {"ok": report.ok, **asdict(report)}, report.n)
        else:
            print("\n".join(report_lines(report)))
        if not report.ok:
            return Exit.FAILED
        return Exit.OK if report.complete else Exit.NOT_RECOMPUTED

    carry_out(work())


def head(
    output: Format = Output.TABLE,
    home: Home = None,
    shard: InShard = None,
    identity: As = None,
) -> None:
    """
    The ledger's end as N:HASH: keep it elsewhere, and `tessera replay --verify --anchor` proves all that led there.

    The hash covers every message up to N, so that no ledger that was cut before N, or altered, has it.
    """

    async def work() -> Exit:
        async with stored_ledger(find(home, shard=shard), identity) as ledger:
            walk = ChainWalk()
            async for seq, data in ledger.messages():
                walk.step(seq, data)
        if walk.broken:
            raise Failure(Exit.FAILED, f"ledger: the chain holds up to {walk.n}; {walk.broken}")
        if output in (Output.JSON, Output.YAML):
            show_value(output, {"n": walk.n, "chain": walk.chain}, walk.n)
        else:
            print(Head(walk.n, walk.chain))
        return Exit.OK

    carry_out(work())


def inspect(
    last: Annotated[int, typer.Option(help="Messages to show", min=0)] = 20,
    export: Annotated[Path | None, typer.Option(help="Write every message to this file, one per line")] = None,
    output: Format = Output.TABLE,
    home: Home = None,
    shard: InShard = None,
    identity: As = None,
) -> None:
    """Walk the chain from its first message, say where it breaks, and show its end."""

    async def work() -> Exit:
        async with stored_ledger(find(home, shard=shard), identity) as ledger:
            walk, shown = ChainWalk(), list[Entry]()
            file = _opened(export) if export is not None else None
            try:
                async for seq, data in ledger.messages():
                    walk.step(seq, data)
                    shown = [*shown, *_entry(data)][-last:] if last else []
                    if file is not None:
                        file.write(data + b"\n")
            finally:
                if file is not None:
                    file.close()
        show(output, ENTRIES, shown, walk.n, "" if walk.broken else f"the chain is whole, its hash {walk.chain[:16]}…")
        if walk.broken:
            say(f"error: the chain holds up to {walk.n}; {walk.broken}")
            return Exit.FAILED
        return Exit.OK

    carry_out(work())


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("wb")
    except OSError as error:
        raise Failure(Exit.USAGE, f"{file}: cannot be written ({error.strerror}); name another file") from error


ENTRIES: list[Column[Entry]] = [
    Column("N", lambda entry: str(entry.n), right=True),
    Column("EPOCH", lambda entry: str(entry.epoch), right=True),
    Column("TS", lambda entry: str(entry.ts)),
    Column("FACTS", lambda entry: str(entry.facts), right=True),
    Column("BYTES", lambda entry: str(entry.size_bytes), right=True),
    Column("UPTO", lambda entry: str(entry.facts_upto), right=True, wide=True),
    Column("POLICY", lambda entry: str(entry.policy), right=True, wide=True),
    Column("ENGINE", lambda entry: entry.engine, wide=True),
    Column("TX", lambda entry: entry.tx, wide=True),
    Column("RECORDS", lambda entry: entry.records or "-", shrinks=True),
]


def report_lines(report: ReplayReport) -> list[str]:
    """What a replay found, in words."""
    others = f"{report.orders_not_recomputed} orders, {report.plans_not_recomputed} plans"
    lines = [
        f"messages       {report.messages} with {report.records} records, all read",
        f"recomputed     {report.recomputed} messages, {report.orders} orders, {report.plans} plans, compared exactly",
        f"not recomputed {report.not_recomputed} messages, {others}: other engines{_engines(report)}",
        f"final state    n {report.n}, hash {report.state_hash}",
    ]
    if report.anchored:
        lines.append("anchor         the ledger holds the head that was kept")
    if report.ok and report.complete:
        return [*lines, "ok: every record is valid, and every decision recomputed is equal"]
    if report.ok:
        return [*lines, "valid, and what could be recomputed is equal; the rest is not proved (exit code 9)"]
    more = report.wrong - len(report.findings)
    return [*lines, f"NOT ok: {report.wrong} findings", *report.findings, *([f"and {more} more"] if more else [])]


async def compare_events(ledger: StoredLedger, report: ReplayReport) -> None:
    """The public events follow from the ledger: none may be about a record that it lacks."""
    last = await ledger.bus.last(subjects.stream("EVENTS", ledger.shard), f"events.{ledger.shard}.>")
    cursor = "" if last is None else last.headers.get(CURSOR_HEADER, "")
    n = cursor.partition(".")[0]
    # What was appended since we began is not looked at, so the end is asked for again.
    tail = await ledger.ledger.tail()
    end = 0 if tail is None else tail.seq
    if n.isdigit() and int(n) > end:
        report.found(f"the public events know record {n}, but the ledger ends at {end}: it lost its end")


def _engines(report: ReplayReport) -> str:
    return "".join(f", {engine} ×{count}" for engine, count in sorted(report.other_engines.items()))


def _head(text: str) -> Head | None:
    try:
        return Head.parse(text) if text else None
    except ValueError as error:
        raise Failure(Exit.USAGE, f"--anchor: {error}") from error


def _entry(data: bytes) -> list[Entry]:
    try:
        return [Entry.of(data)]
    except (ValueError, KeyError, TypeError):
        return []  # the walk says so


async def _replayed(ledger: StoredLedger | LedgerFile, anchor: Head | None) -> ReplayReport:
    """Two passes; see `replay`."""
    replay, count = Replay(anchor), await ledger.count()
    columns = ("replay", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=count < LONG, transient=True) as progress:
        bar = progress.add_task("replay", total=2 * count)
        async for _, data in ledger.messages():
            replay.note_orders(data)
            progress.advance(bar)
        async for _, data in ledger.messages():
            progress.advance(bar)
            if not replay.check(data):
                break
    return replay.finish()
