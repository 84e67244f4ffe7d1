"""Options that all commands share, and how an error becomes one sentence and an exit code."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tessera.client.outcomes import EXPECTED, Exit, Refused, exit_of
from tessera.client.rendering import Output, say
from tessera.client.where import Where, find
from tessera_schemas.subjects import OPERATOR

if TYPE_CHECKING:
    from tessera.client.reading import StoredLedger
    from tessera.client.shard_views import ShardViews

Home = Annotated[
    Path | None,
    typer.Option("--home", help="Directory of a local platform (else TESSERA_HOME, .tessera)", show_default=False),
]
InShard = Annotated[
    str | None,
    typer.Option("--shard", help="Which shard (else TESSERA_SHARD, or the first there is)", show_default=False),
]
As = Annotated[str | None, typer.Option("--as", help="Identity to use: a tenant or `operator`", show_default=False)]
Format = Annotated[Output, typer.Option("--output", "-o", help="How to print")]


def carry_out(work: Coroutine[Any, Any, Exit | None]) -> None:
    """Run a command and leave with its exit code; expected errors are told in one sentence on stderr."""
    try:
        code = asyncio.run(work)
    except Refused as refused:
        for reason in refused.reasons:
            say(f"refused: {reason.sentence()}")
        code = Exit.REFUSED
    except EXPECTED as error:
        say(f"error: {error}")
        code = exit_of(error)
    raise typer.Exit(code or Exit.OK)


@asynccontextmanager
async def shard_views(
    home: Path | None, identity: str | None = None, shard: str | None = None
) -> AsyncIterator[tuple[Where, "ShardViews"]]:
    """The views, read as the operator unless somebody else is named."""
    from tessera.client.shard_views import ShardViews

    where = find(home, shard=shard)
    async with where.store(where.identity(identity or OPERATOR)) as store:
        yield where, ShardViews(store)


@asynccontextmanager
async def stored_ledger(where: Where, identity: str | None = None) -> AsyncIterator["StoredLedger"]:
    """The ledger, read as the operator unless somebody else is named."""
    from tessera.client.reading import ledger_of  # folds: the commands that read views only do without

    async with where.bus(where.identity(identity or OPERATOR)) as bus:
        yield ledger_of(bus, where.shard)
