"""`init`, `up` and `demo`: the parts of a shard and a whole one on this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tessera.client.commands.context import command
from tessera.client.connect.locating import DEFAULT_HOME, HOME_VARIABLE, SHARD_VARIABLE
from tessera.client.connect.settings import ClientSettings
from tessera.client.outcomes import Exit, Failure, check_checkout
from tessera_schemas.shard.services import SERVICES
from tessera_schemas.subjects import ADMINISTRATOR, MAIN_SHARD, OPERATOR

if TYPE_CHECKING:
    from tessera.kernel.provisioning.credential_files import CredentialDirectory

Directory = Annotated[Path, typer.Option("--home", envvar=HOME_VARIABLE, help="Where everything is kept")]


@command
async def init(
    credentials: Annotated[Path, typer.Option(help="Directory of the identities")] = Path("credentials"),
    shard: Annotated[str, typer.Option(envvar=SHARD_VARIABLE, help="The shard's name")] = MAIN_SHARD,
    replicas: Annotated[int, typer.Option(help="Copies of each stream: 3 in production", min=1, max=5)] = 1,
    ledger_gib: Annotated[int, typer.Option(help="GiB that the ledger may take", min=1)] = 8,
    events_gib: Annotated[int, typer.Option(help="GiB of public events; the oldest go when it is full", min=1)] = 4,
    mend: Annotated[bool, typer.Option("--mend", help="Set what differs to what the table says")] = False,
    tenant: Annotated[list[str] | None, typer.Option(help="Tenants to make identities for, too")] = None,
    only_identities: Annotated[
        bool, typer.Option("--only-identities", help="Ask no server: the files that NATS and Redis start with")
    ] = False,
) -> None:
    """Make identities, streams and consumers; may be run again at any time."""
    from tessera.kernel.errors import StartupError
    from tessera.kernel.nats.once import check_closed, connect_once
    from tessera.kernel.process.settings import load_settings
    from tessera.kernel.provisioning.streams import Bounds, ensure_streams

    directory = _ensure_identities(credentials, shard, tenant or ())
    if only_identities:
        return
    settings = load_settings(ClientSettings, credentials_file=None)  # it is made here
    url, login = settings.nats_url, directory.read(ADMINISTRATOR).nats
    try:
        try:
            admin = await connect_once(url, login.user, login.password)
        except StartupError:
            # After an update NATS knows the users of the version before, whose operator makes streams, until it has
            # read its list again.
            login = directory.read(OPERATOR).nats
            admin = await connect_once(url, login.user, login.password)
        if not settings.allow_anybody:
            await check_closed(url, login.user, login.password)
    except StartupError as error:
        fix = f"have it include {directory.nats_file}, then run `tessera init` again"
        raise StartupError(f"{error}; {fix}") from error
    try:
        bounds = Bounds(replicas, ledger_gib * 1024**3, events_gib * 1024**3)
        made = await ensure_streams(admin, shard, bounds, mend=mend)
    finally:
        await admin.close()
    print("\n".join(f"made {name}" for name in made) or f"shard {shard}: everything is there already")


def _ensure_identities(folder: Path, shard: str, tenants: Sequence[str]) -> "CredentialDirectory":
    """Make those that are missing; a tenant that is there keeps its subscribers."""
    from tessera.kernel.provisioning.credential_files import CredentialDirectory
    from tessera.kernel.provisioning.credentials import ensure_identities, system_identities, tenant_identity

    directory = CredentialDirectory(folder, shard)
    new = [tenant_identity(name) for name in tenants if not directory.file(name).exists()]
    if ensure_identities(directory, [*system_identities(), *new]):
        print(f"identities are in {directory.path}; have NATS include {directory.nats_file.name}, and Redis load "
              f"{directory.redis_file.name} as its aclfile")  # fmt: skip
    return directory


@command
async def up(
    home: Directory = DEFAULT_HOME,
    shards: Annotated[
        str, typer.Option(help="Their names, separated by commas; each has services and nodes of its own")
    ] = MAIN_SHARD,
    nodes: Annotated[Path | None, typer.Option(help="Nodes of the simulated cluster (YAML)")] = None,
    tenant: Annotated[list[str] | None, typer.Option(help="Tenants to let in from the start")] = None,
    sync: Annotated[bool, typer.Option("--sync", help="Survive a power cut, at a fifth of the speed")] = False,
    api_port: Annotated[
        int, typer.Option(help="Port of the HTTP API; 0: the one it had here before", min=0, max=65_535)
    ] = 0,
    time: Annotated[bool, typer.Option("--time", help="Say how long each part took to start")] = False,
    layout: Annotated[
        Literal["single", "compact", "separate"],
        typer.Option(help="Services that share a process: all, six of them, or none"),
    ] = "single",
) -> None:
    """Run a whole shard, or several, on this machine: servers, a simulated cluster, every service; until Ctrl-C."""
    check_checkout("tessera_local", "up")
    from tessera_local.up import up as platform_up

    names = shards.split(",")
    more = tenant or ()
    await platform_up(
        home, nodes=nodes, tenants=more, shards=names, sync=sync, time=time, api_port=api_port, layout=layout
    )


@command
async def demo(
    jobs: Annotated[int, typer.Option(help="Jobs to submit", min=1, max=10_000)] = 200,
    nodes: Annotated[int, typer.Option(help="Nodes of the simulated cluster", min=1, max=1_000)] = 40,
    seed: Annotated[int, typer.Option(help="The same seed draws the same jobs and nodes")] = 1,
    keep: Annotated[Path | None, typer.Option(help="Leave everything in this new directory")] = None,
    kill: Annotated[str, typer.Option(help="The service that is killed in the middle")] = "scheduler",
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Kill nothing")] = False,
) -> int:
    """Show it all: start a shard, submit a production mix, watch it, kill a service, judge what was stored."""
    if kill not in SERVICES:
        raise Failure(Exit.USAGE, f"demo: no service is called {kill}; there are {', '.join(SERVICES)}")
    check_checkout("tessera.testkit", "demo")
    from tessera_local.demo import demo as show

    return await show(jobs, nodes, seed, keep, None if no_kill else kill)
