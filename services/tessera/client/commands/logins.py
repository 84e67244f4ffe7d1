"""`login` and `context`: HTTP APIs that this user is logged in to, and which of them the commands speak to."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tessera.client.commands.context import Format, command
from tessera.client.connect.api import Api
from tessera.client.connect.contexts import LOCAL, ApiLogin, Contexts, check_url, read_token
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.rendering import Column, Output, show

ContextName = Annotated[str, typer.Argument(help="As `tessera context list` shows it")]

context = typer.Typer(help="Choose among the logins of `tessera login`.", no_args_is_help=True)


@command
async def login(
    url: Annotated[str, typer.Argument(help="Address of the gateway, such as https://tessera.example.org")],
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token; else it is asked for, or read from stdin")
    ] = None,
    name: Annotated[str, typer.Option("--context", help="Name to keep it under")] = "default",
) -> None:
    """Log in to a gateway's HTTP API with a token of `tessera token new`; the commands then speak to it."""
    if name == LOCAL:
        raise Failure(Exit.USAGE, f"login: {LOCAL} means no login; choose another --context")
    kept = ApiLogin(check_url(url), _read_token(token_file))
    await Api(kept).get("/v1/jobs", limit=1)
    path = Contexts.read().add(name, kept).write()
    print(f"logged in to {kept.url} as context {name}, which is in use now (kept in {path})")


def _read_token(file: Path | None) -> str:
    """Raises Failure when nothing is given."""
    if file is not None:
        token = read_token(file)
    elif sys.stdin.isatty():
        token = str(typer.prompt("Token", hide_input=True, err=True)).strip()
    else:
        token = sys.stdin.readline().strip()
    if not token:
        raise Failure(Exit.USAGE, "login: no token; name a file with --token-file, or pipe it in")
    return token


@context.command("list")
@command
def list_contexts(output: Format = Output.TABLE) -> None:
    """List the logins, and which one is in use."""
    contexts = Contexts.read()
    rows = [{"name": LOCAL, "url": ""}, *({"name": n, "url": one.url} for n, one in sorted(contexts.logins.items()))]
    show(output, COLUMNS, [row | {"in_use": "*" if row["name"] == contexts.current else ""} for row in rows], None)


@context.command("use")
@command
def use_context(name: ContextName) -> None:
    """Have the commands speak to this one; `local` means the platform, or the credentials, at hand."""
    Contexts.read().use(name).write()
    print(f"context {name} is in use")


@context.command("delete")
@command
def delete_context(name: ContextName) -> None:
    """Forget a login; its token stays valid until `tessera token revoke`."""
    Contexts.read().drop(name).write()
    print(f"context {name} is deleted")


COLUMNS: list[Column[dict[str, str]]] = [
    Column("IN USE", lambda row: row["in_use"]),
    Column("CONTEXT", lambda row: row["name"]),
    Column("URL", lambda row: row["url"] or "(the platform or the credentials at hand)", shrinks=True),
]
