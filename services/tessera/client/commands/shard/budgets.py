"""`budget`: what tenants, projects and queues have spent of their budgets this month, and grants of an operator."""

from typing import Annotated, Any

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.connect.connecting import api_of
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.slurm.listing.words import submitter
from tessera.client.views.rendering import Column, Output, show
from tessera_schemas.commands import GrantBudget
from tessera_schemas.work.budgets import MICROS
from tessera_schemas.work.money import amount_text

budget = typer.Typer(help="Show monthly budgets, and grant more.", invoke_without_command=True)
Standing = dict[str, Any]


def _amount(micros: int) -> str:
    """An amount, of more than hundredths rounded down, which is enough to look at; programs read the millionths."""
    sign = "-" if micros < 0 else ""
    return sign + amount_text(abs(micros) // 10_000 * 10_000, "").strip()


BUDGETS: list[Column[Standing]] = [
    Column("BUDGET", lambda row: row["budget"], shrinks=True),
    Column("MONTH", lambda row: row["month"]),
    Column("UNIT", lambda row: row["unit"]),
    Column("SPENT", lambda row: _amount(row["spent_micros"]), right=True),
    Column("OF", lambda row: _amount(row["limit_micros"]), right=True),
    Column("LEFT", lambda row: _amount(row["limit_micros"] - row["spent_micros"]), right=True),
    Column("PERCENT", lambda row: str(row["percent"]), right=True),
    Column("EXPECTED", lambda row: _amount(row["expected_micros"]), right=True),
    Column("WHEN SPENT", lambda row: row["when_spent"] + (" (now)" if row["is_spent"] else "")),
]


@budget.callback()
@command
async def show_budgets(ctx: typer.Context, at: AccessOptions, output: Format = Output.TABLE) -> None:
    """Show budgets with what is spent, what is left, and what is expected by the month's end at today's pace."""
    if ctx.invoked_subcommand is None:
        found = await api_of(at.find()).get("/v1/budgets")
        show(output, BUDGETS, found["items"], found["as_of"])


@budget.command()
@command
async def grant(
    at: AccessOptions,
    name: Annotated[str, typer.Argument(help="Tenant or queue whose budget it is: vision, tenant/vision, queue/prod")],
    amount: Annotated[int, typer.Option(help="Whole units to add for this month, as the budget is in", min=1)],
    reason: Annotated[str, typer.Option(help="Reason, for the record")],
) -> None:
    """Add to a budget for the rest of this month; the ledger keeps who did, and why."""
    where = at.find()
    ordering.check_operator(where, at.identity, "budget grant", "grant")
    before = await _standing(where, name)
    said = {"budget": before["budget"], "month": before["month"], "amount": amount, "why": reason, "by": submitter()}
    granted = before["granted_micros"] // MICROS
    order = GrantBudget.model_validate({"kind": "grant_budget", "v": 1, "granted": granted, **said})
    await ordering.send(where, at.identity, order)

    async def carried_out(_: object) -> bool:
        now = await _standing(where, before["budget"])
        return bool(now["granted_micros"] >= (granted + amount) * MICROS)

    if not await ordering.is_seen(where, carried_out):
        raise Failure(
            Exit.GAVE_UP,
            f"budget {before['budget']}: the grant is stored, but not carried out after {ordering.SEEN_SECONDS:g} s; "
            "where somebody else granted meanwhile it is not at all: look at `tessera budget`, and repeat it",
        )
    now = await _standing(where, before["budget"])
    left = _amount(now["limit_micros"] - now["spent_micros"])
    print(f"budget {now['budget']}: {amount} {now['unit']} more in {now['month']}; left are {left}")


async def _standing(where: Where, name: str) -> Standing:
    """The budget of this name, with or without its kind; a tenant goes before a queue. Raises Failure."""
    items = (await api_of(where).get("/v1/budgets"))["items"]
    of = {item["budget"]: item for item in items}
    names = (name, *(f"{kind}/{name}" for kind in ("tenant", "queue", "project")))
    found = next((of[each] for each in names if each in of), None)
    if found is None:
        raise Failure(Exit.NOT_FOUND, f"budget {name}: there is none; see `tessera budget`")
    return dict(found)
