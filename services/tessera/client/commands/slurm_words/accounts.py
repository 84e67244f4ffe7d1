"""`sacctmgr`: as which accounts one may submit, in Slurm's words. Tenants are changed in the configuration."""

from collections.abc import Mapping
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.connect.connecting import accounts_of, bound_user
from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.listing.fields import cut
from tessera.client.slurm.listing.words import submitter
from tessera.client.views.rendering import Column, Output, show, show_bare

FORMATS: Mapping[str, str] = {
    "user": "User,DefaultAccount",
    "account": "Account",
    "association": "Cluster,Account,User",
    "cluster": "Cluster",
}
"""What is shown of each kind of thing, unless `format=` says otherwise."""
TITLES: Mapping[str, str] = {"user": "User", "account": "Account", "cluster": "Cluster", "defaultaccount": "Def Acct"}


@command
async def sacctmgr(
    at: AccessOptions,
    what: Annotated[str, typer.Argument(help="show or list")],
    words: Annotated[
        list[str], typer.Argument(metavar="KIND [NAME...] [format=FIELDS]", help="user, account, association, cluster")
    ],
    noheader: Annotated[bool, typer.Option("--noheader", "-n", help="Without the line of titles")] = False,
    parsable: Annotated[bool, typer.Option("--parsable2", "-P", help="Fields with | between them")] = False,
    ending: Annotated[bool, typer.Option("--parsable", "-p", help="The same, with a | at the end")] = False,
    each: Annotated[bool, typer.Option("--associations", "-s", help="Users with each of their accounts")] = False,
    at_once: Annotated[bool, typer.Option("--immediate", "-i", help="Taken: nothing is asked")] = False,
) -> None:
    """List the accounts, which are tenants, as which one may submit here; nothing else is shown, or changed."""
    kind = next((kind for kind in FORMATS if kind.startswith(words[0].lower().rstrip("s"))), "")
    if not kind or what.lower() not in ("show", "list"):
        known = "write show user|account|association|cluster; tenants are in the configuration: `tessera apply`"
        raise Failure(Exit.USAGE, f"sacctmgr {what} {words[0]}: {known}")
    where = at.find()
    accounts = await accounts_of(where, at.identity)
    user = await bound_user(where, at.identity) or submitter()
    rows = [{"user": user, "account": account, "cluster": where.shard} for account in accounts]
    names = FORMATS[kind]
    for word in words[1:]:
        option, _, value = word.partition("=") if "=" in word else (kind, "", word)
        if option.lower() == "format":
            names = value
        elif word.lower() != "where":
            key = kind if option.lower() in ("name", "names") else option.lower().rstrip("s")
            rows = [row for row in rows if row.get(key) in value.split(",")]
    columns = [_column(name, kind, accounts) for name in names.split(",")]
    if kind in ("user", "cluster") and not each:
        rows = rows[:1]
    if parsable or ending:
        show_bare(columns, rows, titles=not noheader, ending=ending)
    else:
        show(Output.TABLE, columns, rows, None, gap=1, titles=not noheader, ruled=True)


def _column(said: str, kind: str, accounts: list[str]) -> Column[dict[str, str]]:
    """A column by the name of its field, cut short as one likes, and a width. Raises Failure."""
    name, _, width = said.partition("%")
    known = [title for title in TITLES if name and title.startswith(kind if name.lower() == "name" else name.lower())]
    if not known or (not width.lstrip("-").isdigit() and width):
        raise Failure(Exit.USAGE, f"format={said}: there is no such field; there are {', '.join(TITLES)}")
    wide = int(width.lstrip("-") or 0)

    def value(row: dict[str, str]) -> str:
        text = accounts[0] if known[0] == "defaultaccount" else row[known[0]]
        return cut(text, wide, right=not width.startswith("-"))

    return Column(TITLES[known[0]], value)
