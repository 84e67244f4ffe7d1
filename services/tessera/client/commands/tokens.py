"""`token new|list|revoke`: who may use the HTTP API. A token is shown once; its hash is kept."""

from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from tessera.client.commands.context import Format, ShardOptions, command
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.rendering import Column, Output, notify, show
from tessera.gateway.entrance.tokens import FILE_NAME, Only, add_token, drop_token, read_entries
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera.kernel.provisioning.credentials import tenant_identity
from tessera_schemas.cluster.health import OWN_SOURCES
from tessera_schemas.subjects import MAIN_SHARD

Credentials = Annotated[
    Path | None,
    typer.Option("--credentials", help="Directory of the identities, where the file of hashes is", show_default=False),
]

FIELDS = ("id", "kind", "tenant", "user", "only", "source")

FORMS = "name a tenant, with --user a user of it or with --only places, or say --operator, or --only health"

tokens = typer.Typer(help="Tokens of the HTTP API.", no_args_is_help=True)


@tokens.command()
@command
async def new(
    at: ShardOptions,
    tenant: Annotated[str | None, typer.Argument(help="Whose token it is", show_default=False)] = None,
    operator: Annotated[bool, typer.Option("--operator", help="One that sees all tenants instead")] = False,
    user: Annotated[str, typer.Option(help="User of the tenant who submits with it", show_default=False)] = "",
    only: Annotated[
        Only | None,
        typer.Option(
            "--only",
            help="All that it may do. places: tell where the tenant's data sets are. health, without a tenant: report "
            "the health of nodes",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="Agent as which a token for health speaks; else agent- and its id", show_default=False),
    ] = None,
    credentials: Credentials = None,
) -> None:
    """Make a token and show it, this once; the gateway takes it within seconds."""
    of_agent = only == "health"
    if (tenant is None) != (operator or of_agent) or (operator and only) or (source and not of_agent):
        raise Failure(Exit.USAGE, f"token: {FORMS}")
    if user and (tenant is None or only):
        raise Failure(Exit.USAGE, f"token: {FORMS}")
    if tenant is not None:
        tenant_identity(tenant)
    path = _file(at, credentials)
    if tenant is not None and not (path.parent / f"{tenant}.json").exists():
        raise Failure(
            Exit.NOT_FOUND,
            f"tenant {tenant}: is not known in {path.parent}; `tessera apply` a configuration that names it first",
        )
    try:
        print(add_token(path, tenant, user, only, source))
    except ValidationError as error:
        said = "write at most 63 letters, digits and ._- that begin and end with a letter or digit"
        if source:
            own = ", ".join(OWN_SOURCES)
            said = f"write 1 to 63 of a-z, 0-9 and - that begin and end with a letter or digit; {own} are Tessera's own"
        raise Failure(Exit.USAGE, f"token {f'--source {source}' if source else f'--user {user}'}: {said}") from error
    notify(f"only its hash is kept, in {path}; it counts within two seconds: `Authorization: Bearer TOKEN`")


@tokens.command("list")
@command
async def list_(
    at: ShardOptions,
    output: Format = Output.TABLE,
    credentials: Credentials = None,
) -> None:
    """List who has tokens, by their ids."""
    path = _file(at, credentials)
    entries = read_entries(path) if path.exists() else {}
    rows = [
        (token_id, entry.kind, entry.tenant or "", entry.user, entry.only or "", entry.source or "")
        for token_id, entry in sorted(entries.items())
    ]
    show(output, COLUMNS, [dict(zip(FIELDS, row, strict=True)) for row in rows], None)


@tokens.command()
@command
async def revoke(
    at: ShardOptions,
    token_id: Annotated[str, typer.Argument(help="The id: what stands between the first two underscores")],
    credentials: Credentials = None,
) -> None:
    """Take a token back; the gateway refuses it within seconds, in open streams too."""
    path = _file(at, credentials)
    if not drop_token(path, token_id):
        raise Failure(Exit.NOT_FOUND, f"token {token_id}: there is none in {path}; see `tessera token list`")


COLUMNS: list[Column[dict[str, str]]] = [Column(name.upper(), itemgetter(name)) for name in FIELDS]


def _file(at: ShardOptions, credentials: Path | None) -> Path:
    """Raises Failure when there is no directory to keep it in."""
    if credentials is not None:
        directory: CredentialDirectory | None = CredentialDirectory(credentials, at.shard or MAIN_SHARD)
    else:
        directory = at.find().directory
    if directory is None or not directory.path.is_dir():
        where = "no directory of identities is known" if directory is None else f"{directory.path} is no directory"
        raise Failure(Exit.USAGE, f"token: {where}; name the one of the identities with --credentials")
    return directory.path / FILE_NAME
