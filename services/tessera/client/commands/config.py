"""`apply`: show what would change, put it in force, make what it declares."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tessera.client import applying, files
from tessera.client.commands.context import Home, InShard, carry_out, shard_views
from tessera.client.outcomes import Exit, Failure
from tessera.client.rendering import say
from tessera_schemas.subjects import OPERATOR

WAIT_SECONDS = 30.0


def apply(
    file: Annotated[Path, typer.Option("--file", "-f", help="The whole configuration (YAML)")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it is in force")] = WAIT_SECONDS,
    home: Home = None,
    shard: InShard = None,
) -> None:
    """Apply a configuration: tenants, queues, quotas, priority classes, limits, policy."""

    async def work() -> None:
        body = applying.read_body(files.config_body(files.read_yaml(file), str(file)))
        async with shard_views(home, shard=shard) as (where, views):
            operator = where.identity(OPERATOR)
            change = applying.Change(await views.config(), body)
            print("\n".join(change.lines) or f"nothing changes: version {change.now.version} says the same")
            if dry_run:
                return
            if change.lines:
                _agreed(yes)
                config = await applying.put_in_force(where, operator, views, change, timeout)
                print(f"version {config.version} is in force")
            for made in await applying.provide(where, operator, body):
                say(made)

    carry_out(work())


def _agreed(yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(Exit.USAGE, "apply: nobody can be asked here; say --yes")
    if not typer.confirm("Apply this?"):
        raise Failure(Exit.FAILED, "apply: nothing was applied")
