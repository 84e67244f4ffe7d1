"""`token new|list|revoke`: who may use the HTTP API. A token is shown once; its hash is kept."""

from pathlib import Path
from typing import Annotated

import typer

from tessera.client.commands.context import Format, Home, InShard, carry_out
from tessera.client.outcomes import Exit, Failure
from tessera.client.rendering import Column, Output, say, show
from tessera.client.where import find
from tessera.gateway.tokens import FILE_NAME, TokenEntry, add_token, drop_token, read_entries
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera.kernel.provisioning.credentials import tenant_identity
from tessera_schemas.subjects import MAIN_SHARD

Credentials = Annotated[
    Path | None,
    typer.Option("--credentials", help="Directory of the identities, where the file of hashes is", show_default=False),
]

tokens = typer.Typer(help="Tokens of the HTTP API.", no_args_is_help=True)


@tokens.command()
def new(
    tenant: Annotated[str | None, typer.Argument(help="Whose token it is", show_default=False)] = None,
    operator: Annotated[bool, typer.Option("--operator", help="One that sees all tenants instead")] = False,
    credentials: Credentials = None,
    home: Home = None,
    shard: InShard = None,
) -> None:
    """Make a token and show it, this once; the gateway takes it within seconds."""

    async def work() -> None:
        if (tenant is None) != operator:
            raise Failure(Exit.USAGE, "token: name a tenant, or say --operator")
        if tenant is not None:
            tenant_identity(tenant)
        path = _file(credentials, home, shard)
        print(add_token(path, tenant))
        say(f"only its hash is kept, in {path}; it counts within two seconds: `Authorization: Bearer TOKEN`")

    carry_out(work())


@tokens.command("list")
def list_(
    output: Format = Output.TABLE, credentials: Credentials = None, home: Home = None, shard: InShard = None
) -> None:
    """List who has tokens, by their ids."""

    async def work() -> None:
        path = _file(credentials, home, shard)
        entries = read_entries(path) if path.exists() else {}
        show(output, COLUMNS, [{"id": token_id, **_plain(entry)} for token_id, entry in sorted(entries.items())], None)

    carry_out(work())


@tokens.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="The id: what stands between the first two underscores")],
    credentials: Credentials = None,
    home: Home = None,
    shard: InShard = None,
) -> None:
    """Take a token back; the gateway refuses it within seconds, in open streams too."""

    async def work() -> None:
        path = _file(credentials, home, shard)
        if not drop_token(path, token_id):
            raise Failure(Exit.NOT_FOUND, f"token {token_id}: there is none in {path}; see `tessera token list`")

    carry_out(work())


COLUMNS: list[Column[dict[str, str]]] = [
    Column("ID", lambda row: row["id"]),
    Column("KIND", lambda row: row["kind"]),
    Column("TENANT", lambda row: row["tenant"]),
]


def _plain(entry: TokenEntry) -> dict[str, str]:
    return {"kind": entry.kind, "tenant": entry.tenant or ""}


def _file(credentials: Path | None, home: Path | None, shard: str | None) -> Path:
    """Raises Failure when there is no directory to keep it in."""
    if credentials is not None:
        directory: CredentialDirectory | None = CredentialDirectory(credentials, shard or MAIN_SHARD)
    else:
        directory = find(home, shard=shard).directory
    if directory is None or not directory.path.is_dir():
        where = "no directory" if directory is None else directory.path
        raise Failure(Exit.USAGE, f"token: {where} of identities; name it with --credentials")
    return directory.path / FILE_NAME
