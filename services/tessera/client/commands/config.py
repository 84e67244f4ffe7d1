"""
`apply`: show what would change, put it in force, make what it declares. `config init` and `config show`: a first
configuration for the cluster that is there, and the one in force, as files to apply.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tessera.client import applying, files
from tessera.client.commands.context import ShardOptions, command, shard_views
from tessera.client.first_config import ClusterSurvey, first_config
from tessera.client.outcomes import Exit, Failure
from tessera.client.rendering import notify
from tessera.client.where import Where
from tessera_schemas.subjects import OPERATOR, TENANT

WAIT_SECONDS = 30.0
EXAMPLE_TENANT = "research"

config = typer.Typer(help="Write a first configuration, and show the one in force.", no_args_is_help=True)


@command
async def apply(
    at: ShardOptions,
    file: Annotated[Path, typer.Option("--file", "-f", help="The whole configuration (YAML)")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it is in force")] = WAIT_SECONDS,
) -> None:
    """Apply a configuration: tenants, queues, quotas, priority classes, limits, policy."""
    read = applying.read_file(files.read_yaml(file), str(file))
    body = read.body
    async with shard_views(at) as (where, views):
        operator = where.identity(OPERATOR)
        change = applying.ConfigChange(await views.config(), body)
        print("\n".join(change.lines) or f"nothing changes: version {change.now.version} says the same")
        print("\n".join(read.lines), end="\n" if read.lines else "")
        if dry_run:
            return
        if change.lines:
            _agreed(yes)
            config = await applying.put_in_force(where, operator, views, change, timeout)
            print(f"version {config.version} is in force")
        for made in await applying.provide(where, operator, body):
            notify(made)


@config.command()
@command
async def init(
    at: ShardOptions,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Write it there, not to stdout")] = None,
    tenant: Annotated[list[str] | None, typer.Option(help="Tenants to name, one option for each")] = None,
) -> None:
    """Write a commented configuration for the cluster that is there, to edit and then to `tessera apply`."""
    async with shard_views(at) as (where, views):
        nodes, now, as_of = await views.nodes(), await views.config(), await views.as_of()
    names = tuple(dict.fromkeys(tenant or _tenants_here(where) or [EXAMPLE_TENANT]))
    text = first_config(ClusterSurvey(where.shard, as_of, tuple(nodes), names))
    if file is None:
        print(text, end="")
    else:
        _write_new(file, text)
        print(f"{file}: look at it, then `tessera apply -f {file}`")
    if now.version:
        notify(f"version {now.version} is in force already; `tessera config show` writes that one")
    if not nodes:
        notify("no node is known yet: is the binder running?")


@config.command("show")
@command
async def show_config(at: ShardOptions) -> None:
    """Print the configuration in force as a file that says the same when it is applied."""
    async with shard_views(at) as (_, views):
        now = await views.config()
    if now.body is None:
        raise Failure(Exit.NOT_FOUND, "config: nothing is configured yet; begin with `tessera config init`")
    print(f"# version {now.version}\n{applying.shown(now.body)}", end="")


def _tenants_here(where: Where) -> list[str]:
    """Tenants whose identities are at hand, as on the local platform."""
    directory = where.directory
    return [] if directory is None else sorted(c.identity.name for c in directory.all() if c.identity.role == TENANT)


def _write_new(file: Path, text: str) -> None:
    try:
        with file.open("x") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise Failure(Exit.USAGE, f"{file}: is there already; name another file") from error
    except OSError as error:
        raise Failure(Exit.USAGE, f"{file}: cannot be written ({error.strerror}); name another file") from error


def _agreed(yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(Exit.USAGE, "apply: nobody can be asked here; say --yes")
    if not typer.confirm("Apply this?"):
        raise Failure(Exit.FAILED, "apply: nothing was applied")
