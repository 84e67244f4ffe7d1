"""`explain`, `replay` and `ledger inspect`: what only the ledger itself can tell."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tessera.client.chain import ChainWalk, Entry
from tessera.client.commands.context import As, Format, Home, carry_out
from tessera.client.explain import Explanation
from tessera.client.explain import explain as explained
from tessera.client.outcomes import Exit, Failure
from tessera.client.reading import LedgerFile, StoredLedger, ledger_of
from tessera.client.rendering import Column, Output, plain, say, show, show_value
from tessera.client.replay import Replay, ReplayReport
from tessera.client.shard_views import ShardViews
from tessera.client.story import Line
from tessera.client.where import Where, find
from tessera.kernel.clock import SystemClock
from tessera_schemas.subjects import OPERATOR

LONG = 2_000  # messages from which on a progress bar is worth its lines


def explain(job: str, output: Format = Output.TABLE, home: Home = None, identity: As = None) -> None:
    """Say why a job stands where it stands: the reason now, its place in line, its story."""

    async def work() -> None:
        async with _ledger(home, identity) as (where, ledger):
            job_id = await _resolved(where, job)
            shard = await ledger.folded()
            answer = explained(shard.state, job_id, SystemClock().now_ms())
            lines = await ledger.story(job_id, getattr(answer.job, "taken_n", 1) if answer is not None else 1)
        if answer is None and not lines:
            raise Failure(Exit.NOT_FOUND, f"job {job}: the ledger knows none with this id or name; see `tessera ls`")
        if output in (Output.JSON, Output.YAML):
            show_value(output, _explained(answer, lines), shard.state.n)
        else:
            _tell(answer, lines, shard.state.n)

    carry_out(work())


def replay(
    verify: Annotated[bool, typer.Option("--verify", help="Verify and recompute everything")] = False,
    from_file: Annotated[Path | None, typer.Option(help="A ledger exported by `tessera ledger inspect`")] = None,
    output: Format = Output.TABLE,
    home: Home = None,
    identity: As = None,
) -> None:
    """Replay the ledger: every record valid, every decision recomputed and equal."""

    async def work() -> Exit:
        if not verify:
            raise Failure(Exit.USAGE, "replay: say --verify; there is no other replay")
        if from_file is not None:
            report = await _replayed(LedgerFile(from_file))
        else:
            async with _ledger(home, identity) as (_, ledger):
                report = await _replayed(ledger)
        if output in (Output.JSON, Output.YAML):
            show_value(output, {"ok": report.ok, **asdict(report)}, report.n)
        else:
            print("\n".join(report_lines(report)))
        return Exit.OK if report.ok else Exit.FAILED

    carry_out(work())


def inspect(
    last: Annotated[int, typer.Option(help="Messages to show", min=0)] = 20,
    export: Annotated[Path | None, typer.Option(help="Write every message to this file, one per line")] = None,
    output: Format = Output.TABLE,
    home: Home = None,
    identity: As = None,
) -> None:
    """Walk the chain from its first message, say where it breaks, and show its end."""

    async def work() -> Exit:
        async with _ledger(home, identity) as (_, ledger):
            walk, shown = ChainWalk(), list[Entry]()
            file = export.open("wb") if export is not None else None
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
    lines = [
        f"messages       {report.messages} with {report.records} records, all read",
        f"recomputed     {report.recomputed} messages and {report.orders} orders, compared exactly",
        f"not recomputed {report.not_recomputed} messages and {report.orders_not_recomputed} orders: other engines",
        f"final state    n {report.n}, hash {report.state_hash}",
    ]
    if report.ok:
        return [*lines, "ok: every record is valid, and everything recomputed is equal"]
    more = report.wrong - len(report.findings)
    return [*lines, f"NOT ok: {report.wrong} findings", *report.findings, *([f"and {more} more"] if more else [])]


@asynccontextmanager
async def _ledger(home: Path | None, identity: str | None) -> AsyncIterator[tuple[Where, StoredLedger]]:
    where = find(home)
    async with where.bus(where.identity(identity or OPERATOR)) as bus:
        yield where, ledger_of(bus, where.shard)


async def _resolved(where: Where, named: str) -> str:
    """An id needs no view, so that a job is explained while Redis is away, and a refused one, too."""
    if len(named) == 20 and named.isalnum():
        return named
    async with where.store(where.identity(OPERATOR)) as store:
        return (await ShardViews(store).job(named)).job_id


def _entry(data: bytes) -> list[Entry]:
    try:
        return [Entry.of(data)]
    except (ValueError, KeyError, TypeError):
        return []  # the walk says so


def _explained(answer: Explanation | None, lines: list[Line]) -> dict[str, object]:
    story = [asdict(line) for line in lines]
    if answer is None:
        return {"phase": "unknown", "story": story}
    return {
        "job_id": answer.job.job_id,
        "name": answer.job.name,
        "phase": answer.job.phase.value,
        "reason": None if answer.reason is None else plain(answer.reason),
        "sentence": answer.sentence(),
        "position": answer.position,
        "in_line": answer.in_line,
        "notes": list(answer.notes),
        "story": story,
    }


def _tell(answer: Explanation | None, lines: list[Line], n: int) -> None:
    if answer is None:
        print("It is in no queue: it was never taken in, or its key is remembered no more.")
    else:
        print(answer.sentence())
        if answer.position:
            print(f"Position {answer.position} of {answer.in_line} in line.")
        for note in answer.notes:
            print(note)
    print()
    for line in lines:
        print(line.said())
    print(f"as of {n}")


async def _replayed(ledger: StoredLedger | LedgerFile) -> ReplayReport:
    """Two passes; see `replay`."""
    replay, count = Replay(), await ledger.count()
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
