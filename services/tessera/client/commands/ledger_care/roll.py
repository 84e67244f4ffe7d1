"""`ledger roll`: a new generation of the ledger."""

from pathlib import Path
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.commands.ledger_care.backup import extend
from tessera.client.ledger.reading import stored_ledger
from tessera.client.ledger.rolling import DAY_MS, GIB, RollPolicy, administrator_of, is_due
from tessera.client.ledger.rolling import roll as roll_over
from tessera.client.outcomes import Exit
from tessera.client.views.rendering import Output, show_value
from tessera_schemas.subjects import ADMINISTRATOR

DENIES_PURGES = "a ledger made before 0.4 denies purges for good: back it up and restore it into new servers"


@command
async def roll(
    at: AccessOptions,
    directory: Annotated[Path, typer.Argument(help="The backup that keeps every message; it is extended first")],
    keep: Annotated[
        int, typer.Option(help="Whole generations that stay in NATS besides the new one", min=0, max=8)
    ] = 1,
    larger_gib: Annotated[
        float | None, typer.Option(help="Only where the ledger takes more than so many GiB", min=0)
    ] = None,
    older_days: Annotated[
        float | None, typer.Option(help="Only where its first message is older than so many days", min=0)
    ] = None,
    output: Format = Output.TABLE,
) -> Exit:
    """
    Begin a new generation of the ledger; what is older than those that stay leaves NATS once the backup has it.

    Everything runs on meanwhile. With both bounds either is enough; broken off, it may be run again.
    """
    policy = RollPolicy(
        keep,
        None if larger_gib is None else int(larger_gib * GIB),
        None if older_days is None else int(older_days * DAY_MS),
    )
    where = at.find()
    async with stored_ledger(where, at.identity or ADMINISTRATOR) as ledger:
        kept = await extend(directory, ledger)
        if not await is_due(ledger, policy):
            print(f"{kept.head}\nnothing to roll over yet")
            return Exit.OK
        async with administrator_of(where, DENIES_PURGES) as admin:
            done = await roll_over(ledger, admin, kept, policy.keep)
    if output.for_programs:
        value = {"opened_n": done.opened_n, "first_before": done.first_before, "first": done.first}
        show_value(output, value, kept.head.n)
    else:
        print(f"a generation opens after message {done.opened_n}; the ledger begins with message {done.first}")
    return Exit.OK
