"""`showback`: a month as one file of HTML."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from tessera.client.commands.context import AccessOptions, command
from tessera.client.ledger.backup import Backup
from tessera.client.ledger.reading import LedgerBackup, LedgerFile, stored_ledger
from tessera.client.ledger.showback.month import Monthly, read_month
from tessera.client.ledger.showback.page import showback_page
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.clock import SystemClock
from tessera_schemas.work.budgets import Month, month_start, month_ts


@command
async def showback(
    at: AccessOptions,
    html: Annotated[Path, typer.Option(help="File to write")],
    month: Annotated[str, typer.Option(help="Month in UTC, as 2026-11 (else the one before this)")] = "",
    from_file: Annotated[
        Path | None, typer.Option(help="A ledger exported by `tessera ledger inspect`, or the directory of a backup")
    ] = None,
) -> None:
    """
    Write a month as one file of HTML: GPU-hours and cost by tenant, queue, user and job, budgets, and the month before.
    """
    found = await _read(at, _start_of(month), _stored(from_file))
    html.write_text(showback_page(found, at.find().shard if from_file is None else from_file.name), encoding="utf-8")
    print(f"{html}: written")


async def _read(at: AccessOptions, start_ts: int, stored: LedgerBackup | LedgerFile | None) -> Monthly:
    if stored is not None:
        return await read_month(stored, start_ts)
    async with stored_ledger(at.find(), at.identity) as ledger:
        return await read_month(ledger, start_ts)


def _stored(path: Path | None) -> LedgerBackup | LedgerFile | None:
    if path is None:
        return None
    return LedgerBackup(Backup.read(path)) if path.is_dir() else LedgerFile(path)


def _start_of(month: str) -> int:
    if not month:
        return month_start(month_start(SystemClock().now_ms()) - 1)
    try:
        return month_ts(TypeAdapter(Month).validate_python(month))
    except ValidationError as error:
        raise Failure(Exit.USAGE, f"--month: {month}: write it as 2026-11") from error
