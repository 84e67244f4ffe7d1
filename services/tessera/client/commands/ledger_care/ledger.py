"""`replay` and `ledger inspect`: whether the ledger is what it should be."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, BinaryIO

import orjson
import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.commands.ledger_care.backup import backup, restore
from tessera.client.commands.ledger_care.mending import drop_ahead, reconcile, repair
from tessera.client.commands.ledger_care.roll import roll
from tessera.client.commands.ledger_care.story import story
from tessera.client.ledger.backup import Backup
from tessera.client.ledger.chain import ChainEntry
from tessera.client.ledger.heads import read_kept_head, signature_of
from tessera.client.ledger.reading import LedgerBackup, LedgerFile, StoredLedger, stored_ledger
from tessera.client.ledger.replay import Replay, ReplayReport
from tessera.client.ledger.stored_events import EventsBesideLedger
from tessera.client.ledger.witnesses import Known, newest_known
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.live import progress_of
from tessera.client.views.rendering import Column, Output, notify, show, show_value
from tessera.kernel.ports import Message
from tessera_schemas.shard.ledger_form import Head

inspecting = typer.Typer(help="Look at the ledger itself.", no_args_is_help=True)
inspecting.callback()(lambda: None)
for work in (backup, restore, roll, repair, reconcile, drop_ahead, story):
    inspecting.command()(work)


@command
async def replay(
    at: AccessOptions,
    verify: Annotated[bool, typer.Option("--verify", help="Verify and recompute everything")] = False,
    anchor: Annotated[
        str,
        typer.Option(
            help="A head that was kept elsewhere: N:HASH of `tessera ledger head`, or a file that begins with it",
            metavar="N:HASH|FILE",
        ),
    ] = "",
    public_key: Annotated[
        Path | None, typer.Option(help="OpenSSH's public key by which the file of --anchor must be signed")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(help="A ledger exported by `tessera ledger inspect`, or the directory of a backup")
    ] = None,
    output: Format = Output.TABLE,
) -> Exit:
    """
    Replay the ledger: every record valid, every decision recomputed and equal.

    Exit code 0: all of it; 1: something is wrong; 9: all is valid, but some was decided by engines that this build does
    not carry and could not be recomputed.
    """
    if not verify:
        raise Failure(Exit.USAGE, "replay: say --verify; there is no other replay")
    kept = read_kept_head(anchor, public_key)
    if from_file is not None:
        if from_file.is_dir():
            report = await replayed(LedgerBackup(Backup.read(from_file)), kept)
        else:
            report = await replayed(LedgerFile(from_file), kept)
            compare_ends(LedgerFile(from_file), report)
    else:
        where = at.find()
        async with stored_ledger(where, at.identity) as ledger:
            report = await replayed(ledger, kept, ledger.shard, ledger.events())
            known = await newest_known(ledger, where)
            contradiction = await known.contradiction(ledger)
            if contradiction:
                report.found(contradiction)
    if output.for_programs:
        show_value(output, {"ok": report.ok, **asdict(report)}, report.n)
    else:
        print("\n".join(report_lines(report)))
    if not report.ok:
        return Exit.FAILED
    return Exit.OK if report.complete else Exit.NOT_RECOMPUTED


@inspecting.command()
@command
async def head(
    at: AccessOptions,
    sign: Annotated[Path | None, typer.Option(help="Sign it with this private key of OpenSSH", metavar="KEY")] = None,
    output: Format = Output.TABLE,
) -> Exit:
    """
    The ledger's end as N:HASH: keep it elsewhere, and `tessera replay --verify --anchor` proves all that led there.

    The hash covers every message up to N, so that no ledger that was cut before N, or altered, has it. Signed, it says
    who kept it: `--anchor FILE --public-key KEY.pub`.
    """
    async with stored_ledger(at.find(), at.identity) as ledger:
        walk = await ledger.walk()
        async for seq, data in ledger.messages():
            walk.step(seq, data)
    if walk.broken:
        raise Failure(Exit.FAILED, f"ledger: the chain holds up to {walk.n}; {walk.broken}")
    end = Head(walk.n, walk.chain)
    signature = "" if sign is None else signature_of(end, sign)
    if output.for_programs:
        signed = {"signature": signature} if signature else {}
        show_value(output, {"n": walk.n, "chain": walk.chain, **signed}, walk.n)
    else:
        print(f"{end}\n{signature}", end="")
    return Exit.OK


@inspecting.command()
@command
async def inspect(
    at: AccessOptions,
    last: Annotated[int, typer.Option(help="Messages to show", min=0)] = 20,
    export: Annotated[Path | None, typer.Option(help="Write every message to this file, one per line")] = None,
    output: Format = Output.TABLE,
) -> Exit:
    """
    Walk the chain from its first message, say where it breaks, and show its end.

    Exit code 1 for a broken chain, and where events, a snapshot or Redis know more of the ledger, or another one.
    """
    where = at.find()
    async with stored_ledger(where, at.identity) as ledger:
        walk, shown = await ledger.walk(), list[ChainEntry]()
        file = _opened(export) if export is not None else None
        try:
            if file is not None:
                file.write(orjson.dumps({"export": {"shard": ledger.shard}}) + b"\n")
            async for seq, data in ledger.messages():
                walk.step(seq, data)
                shown = [*shown, *_entry(data)][-last:] if last else []
                if file is not None:
                    file.write(data + b"\n")
            if file is not None and not walk.broken:
                file.write(orjson.dumps({"head": str(Head(walk.n, walk.chain))}) + b"\n")
        finally:
            if file is not None:
                file.close()
        known = Known() if walk.broken else await newest_known(ledger, where)
        contradiction = await known.contradiction(ledger)
    show(output, ENTRIES, shown, walk.n, "" if walk.broken else f"the chain is whole, its hash {walk.chain[:16]}…")
    if walk.broken:
        notify(f"error: the chain holds up to {walk.n}; {walk.broken}")
    elif contradiction:
        notify(f"error: the chain is whole; {contradiction}; see docs/operations.md, a halted shard")
    return Exit.FAILED if walk.broken or contradiction else Exit.OK


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("wb")
    except OSError as error:
        raise Failure(Exit.USAGE, f"{file}: cannot be written ({error.strerror}); name another file") from error


ENTRIES: list[Column[ChainEntry]] = [
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
    """Findings of a replay, for people."""
    events = f"{report.events} public events, compared with those that follow" if report.events else "none to compare"
    others = f"{report.orders_not_recomputed} orders, {report.plans_not_recomputed} plans"
    lines = [
        f"messages       {report.messages} with {report.records} records, all read",
        f"recomputed     {report.recomputed} messages, {report.orders} orders, {report.plans} plans, compared exactly",
        f"not recomputed {report.not_recomputed} messages, {others}: other engines{_engines(report)}",
        f"events         {events}",
        f"final state    n {report.n}, hash {report.state_hash}",
    ]
    if report.anchored:
        lines.append("anchor         the ledger holds the head that was kept")
    lines += [f"note           {note}" for note in report.notes]
    if report.ok and report.complete:
        return [*lines, "ok: every record is valid, and every decision recomputed is equal"]
    if report.ok:
        return [*lines, "valid, and what could be recomputed is equal; the rest is not proved (exit code 9)"]
    more = report.wrong - len(report.findings)
    return [*lines, f"NOT ok: {report.wrong} findings", *report.findings, *([f"and {more} more"] if more else [])]


def _engines(report: ReplayReport) -> str:
    return "".join(f", {engine} ×{count}" for engine, count in sorted(report.other_engines.items()))


def compare_ends(file: LedgerFile, report: ReplayReport) -> None:
    """An export ends with the head that its messages lead to; one that has none any more was cut."""
    is_marked, last = file.ends()
    if not last and not is_marked:
        report.notes.append("the export has no last line with its head, as those of 0.3: a cut cannot be ruled out")
    elif not last:
        report.found(f"the export ends after message {report.n}, without the line that names its head: it was cut")
    elif last != orjson.dumps({"head": str(Head(report.n, report.chain))}):
        report.found(f"the export's last line is {last.decode(errors='replace')[:120]}, its messages end at {report.n}")


def _entry(data: bytes) -> list[ChainEntry]:
    try:
        return [ChainEntry.of(data)]
    except (ValueError, KeyError, TypeError):
        return []  # the walk says so


async def replayed(
    ledger: StoredLedger | LedgerFile | LedgerBackup,
    anchor: Head | None,
    shard: str = "",
    stored_events: AsyncIterator[Message] | None = None,
) -> ReplayReport:
    """Two passes; see `replay`. With the name of the shard its stored events are compared in the second one."""
    opening, count = await ledger.opened_shard(), await ledger.count()
    before = opening.state.n if opening else 0
    replay = Replay(anchor, shard, opening)
    events = EventsBesideLedger(stored_events, replay.report, before) if stored_events is not None else None
    with progress_of("replay", 2 * (count - before)) as advance:
        async for _, data in ledger.messages():
            replay.note_orders(data)
            advance()
        async for _, data in ledger.messages():
            advance()
            if not replay.check(data):
                return replay.finish()
            if events is not None:
                await events.compare(replay.events)
    if events is not None:
        await events.finish(count)
    return replay.finish()
