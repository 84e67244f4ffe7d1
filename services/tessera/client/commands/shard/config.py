"""
`apply`: show what would change, put it in force, make what it declares. `config init` and `config show`: a first
configuration for the cluster that is there, and the one in force, as files to apply.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from tessera.client.cluster import applying
from tessera.client.cluster.first_config import ClusterSurvey, first_config
from tessera.client.cluster.unmet import find_unmet
from tessera.client.commands.context import Format, ShardOptions, Yes, command, operators_views
from tessera.client.connect.shard_views import ShardViews
from tessera.client.connect.where import Where
from tessera.client.input import files
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.sending.consent import find_consequences
from tessera.client.views.rendering import Output, notify, show_value
from tessera_schemas.reasons import Reason
from tessera_schemas.subjects import OPERATOR, TENANT

WAIT_SECONDS = 30.0
EXAMPLE_TENANT = "research"

config = typer.Typer(help="Write a first configuration, and show the one in force.", no_args_is_help=True)


@command
async def apply(
    at: ShardOptions,
    file: Annotated[Path, typer.Option("--file", "-f", help="The whole configuration (YAML)")],
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change")] = False,
    abandon: Annotated[
        bool,
        typer.Option(
            "--abandon", help="Take away also what live jobs name: what runs goes on, what waits does not start"
        ),
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it is in force")] = WAIT_SECONDS,
    output: Format = Output.TABLE,
) -> None:
    """Apply a configuration: tenants, queues, quotas, priority classes, limits, policy."""
    read = applying.read_file(files.read_yaml(file), str(file))
    where, views = operators_views(at)
    operator = where.identity(OPERATOR)
    now = await views.config()
    read = read.over(now)
    change = applying.ConfigChange(now, read.body, abandon)
    told = Told(change, read.lines, find_unmet(read.body, await views.nodes()))
    told.stranded = await applying.find_stranded_jobs(views, change)
    consequences = await find_consequences(views, change.command) if change.lines else None
    told.consequences = () if consequences is None else consequences.sentences
    if not output.for_programs:
        told.show()
    if told.stranded and not abandon:
        raise Refused(tuple(told.stranded))
    told.unchanged = await _is_unchanged(where, views, change, dry_run)
    if not dry_run:
        if not told.unchanged:
            _agreed(yes or not change.lines, shown=not output.for_programs)
            told.version = (await applying.put_in_force(where, operator, views, change, timeout)).version
            if not output.for_programs:
                print(f"version {told.version} is in force")
        told.made = await applying.provide(where, operator, change)
    if output.for_programs:
        show_value(output, told.for_programs(), None)
    elif told.unchanged:
        print("nothing changes")
    for made in () if output.for_programs else told.made:
        notify(made)


@dataclass(slots=True)
class Told:
    """Report of `apply` on a change: the difference, values filled in, warnings, and jobs that it strands."""

    change: applying.ConfigChange
    filled: list[str]
    warnings: list[Reason]
    stranded: list[Reason] = field(default_factory=list)
    unchanged: bool = False
    consequences: tuple[str, ...] = ()
    made: list[str] = field(default_factory=list)
    version: int | None = None

    def show(self) -> None:
        """Print it for people; warnings and stranded jobs to stderr."""
        now = self.change.now.version
        print("\n".join(self.change.lines) or f"version {now} says the same")
        print("\n".join(self.filled), end="\n" if self.filled else "")
        for sentence in self.consequences:
            notify(sentence)
        for warning in self.warnings:
            notify(f"warning: {warning.sentence()}")
        for reason in self.stranded if self.change.abandon else ():
            notify(f"abandoned: {reason.sentence()}")

    def for_programs(self) -> dict[str, Any]:
        """All of it as data; `version` is the one in force afterwards."""
        stranded = [reason.model_dump(mode="json") for reason in self.stranded]
        return {
            "version": self.change.now.version if self.version is None else self.version,
            "changes": self.change.lines,
            "filled": self.filled,
            "warnings": [warning.model_dump(mode="json") for warning in self.warnings],
            "abandoned": stranded,
            "consequences": list(self.consequences),
            "made": self.made,
        }


@config.command()
@command
async def init(
    at: ShardOptions,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Write it there, not to stdout")] = None,
    tenant: Annotated[list[str] | None, typer.Option(help="Tenants to name, one option for each")] = None,
) -> None:
    """Write a commented configuration for the cluster that is there, to edit and then to `tessera apply`."""
    where, views = operators_views(at)
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
    _, views = operators_views(at)
    now = await views.config()
    if now.body is None:
        raise Failure(Exit.NOT_FOUND, "config: nothing is configured yet; begin with `tessera config init`")
    print(f"# version: {now.version}  # without the first #: applied only while this version is in force")
    print(applying.shown(now.body), end="")


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


async def _is_unchanged(where: Where, views: ShardViews, change: applying.ConfigChange, dry_run: bool) -> bool:
    """Whether nothing would change for sure. Raises Failure where a dry run cannot know."""
    if change.lines:
        return False
    sure = await applying.is_surely_in_force(where, views, change)
    if dry_run and not sure:
        another = f"another may come after version {change.now.version}, which says the same"
        raise Failure(Exit.UNAVAILABLE, f"apply: {another}; nothing was sent, see `tessera status`")
    return sure


def _agreed(yes: bool, shown: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty() or not shown:
        raise Failure(Exit.USAGE, "apply: no terminal to confirm the changes on; add --yes")
    if not typer.confirm("Apply this?"):
        raise Failure(Exit.FAILED, "apply: nothing was applied")
