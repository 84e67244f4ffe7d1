"""`quote` and `quotes`: when jobs start, with which chance, and how often that held."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.connect.connecting import api_of
from tessera.client.connect.where import Where
from tessera.client.input import files
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.sending import submitting
from tessera.client.slurm import values
from tessera.client.views.explain import wrapped
from tessera.client.views.rendering import Column, Output, local_time, notify, show, show_value
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.base import Json
from tessera_schemas.shard.quotes import StartQuote, bound_words
from tessera_schemas.text.units import format_age, format_milli
from tessera_schemas.work.money import amount_text

PAGE = 500
CHANCES = ("50", "80", "95")
MINUTE_MS = SOONEST_MS = 60_000


@command
async def quote(
    at: AccessOptions,
    file: Annotated[Path, typer.Option("--file", "-f", help="A job file (YAML)")],
    changes: Annotated[bool, typer.Option(help="Try changes that would start it earlier")] = True,
    output: Format = Output.TABLE,
) -> None:
    """Say when a job would start if it were submitted now, what it would cost, and what would start it earlier."""
    spec, mistaken = files.read_job(files.read_yaml(file), str(file))
    if mistaken is not None:
        await submitting.refuse(at.find, at.identity, {"kind": "submit_job", "spec": spec}, None, mistaken)
    found = await asked_quote(at.find(), at.identity, spec, changes)
    if output.for_programs:
        show_value(output, found, found.pop("as_of"))
        return
    for line in quote_lines(found):
        print(line)
    print(f"as of {found['as_of']}")


async def asked_quote(where: Where, identity: str | None, spec: Json, changes: bool = False) -> Json:
    """Quote of a job that is not submitted. Raises Refused as its submit would, Failure or Transient."""
    tenant = identity if where.login is not None else where.tenant(identity).identity.name
    return (await api_of(where, tenant).post("/v1/quotes", {"spec": spec, "changes": changes}))[1]


async def quote_beside(where: Where, identity: str | None, asked: Json) -> Json | None:
    """Quote of a job that is about to be submitted; None, with the reason on stderr, where there is none."""
    if "spec" not in asked:
        raise Failure(
            Exit.USAGE, "submit: --quote is of a job, not of a template; `tessera quotes` lists it once it waits"
        )
    try:
        return await asked_quote(where, identity, asked["spec"])
    except (Failure, Refused, Transient) as error:
        notify(f"note: no quote: {error}")
    return None


async def with_promise(where: Where, identity: str | None, asked: Json, promise: str) -> Json:
    """The command with the time by which its job's start is to be promised. Raises Failure, Refused or Transient."""
    if "spec" not in asked:
        raise Failure(Exit.USAGE, "submit: --promise is of a job, not of a template")
    now_ms = SystemClock().now_ms()
    if promise in CHANCES:
        found = await asked_quote(where, identity, asked["spec"])
        # A start that is nearly certain now is still one that nodes have to be kept for, from shortly before.
        at_ms = max(found["quote"][f"by_{promise}_ts"], now_ms + SOONEST_MS)
    else:
        said = values.Said("submit --promise", "time", promise)
        at_ms = values.begin_ms(said, datetime.fromtimestamp(now_ms / 1000).astimezone())
    start_by = -(-at_ms // MINUTE_MS) * MINUTE_MS
    notify(f"promised: its start by {local_time(start_by):%a %b %d %H:%M}")
    return {**asked, "spec": {**asked["spec"], "start_by_ts": start_by}}


def quote_lines(found: Json) -> Iterator[str]:
    """The quote for people: its start, its chance of eviction, its cost, and changes."""
    quote = StartQuote.model_validate(found["quote"], extra="ignore")
    yield f"starts     {quote.words}"
    if quote.evicted_permille:
        yield f"evicted    {quote.evicted_permille / 10:g} % of such runs are stopped for others before their end"
    if found["length_ms"]:
        by = "by what such runs took" if found["length_rests_on"] == "learnt_runtimes" else "its time limit"
        yield f"runs       {format_age(found['length_ms'])}, {by}"
    if found.get("currency") and found.get("cost_micros"):
        yield f"costs      {_rounded(found)} on the dearest GPUs that it may get"
    changes = found.get("changes", ())
    if changes:
        yield from ("", "Each of these alone would start it earlier (tried, not guessed):")
    for change in changes:
        cost = (
            f"; costs {_rounded({**found, 'cost_micros': change['cost_micros']})}" if change.get("cost_micros") else ""
        )
        first, *more = wrapped(f"{change['text']}: {change['quote']['words']}{cost}")
        yield from (f"  - {first}", *(f"    {line}" for line in more))
    if not changes and found.get("tried"):
        yield from ("", f"None of {found['tried']} single changes that were tried would start it earlier.")


def _rounded(found: Json) -> str:
    """The cost in hundredths: more digits would say more than a forecast knows."""
    return amount_text(-(-found["cost_micros"] // 10_000) * 10_000, found["currency"])


@command
async def quotes(
    at: AccessOptions,
    score: Annotated[bool, typer.Option("--score", help="How often earlier quotes held, by pool")] = False,
    output: Format = Output.TABLE,
) -> None:
    """List when waiting jobs start, the soonest first; or how often such quotes held."""
    api = api_of(at.find(), at.identity)
    if score:
        found = await api.get("/v1/quotes/scores")
        if output.for_programs:
            show_value(output, {"items": found["items"]}, found["as_of"])
        else:
            show(output, SCORES, found["items"], found["as_of"], "" if found["items"] else "no quote is scored yet")
        return
    page = await api.get("/v1/quotes", limit=PAGE)
    rows = list(page["items"])
    while page.get("next"):
        page = await api.get("/v1/quotes", limit=PAGE, cursor=page["next"])
        rows += page["items"]
    if output.for_programs:
        show_value(output, {"items": rows}, page["as_of"])
    else:
        show(output, quoted_columns(SystemClock().now_ms()), rows, page["as_of"], f"{len(rows)} jobs wait with a quote")


def quoted_columns(now_ms: int) -> Sequence[Column[Json]]:
    """Columns of the list of quotes, with the time from now to each bound."""

    def bound(chance: int) -> Column[Json]:
        return Column(f"{chance} %", lambda row: bound_words(row["quote"][f"by_{chance}_ts"], now_ms), right=True)

    return [
        Column("JOB", lambda row: str(row["job_id"])),
        Column("NAME", lambda row: str(row["name"]), shrinks=True),
        Column("TENANT", lambda row: str(row["tenant"]), shrinks=True, wide=True),
        Column("QUEUE", lambda row: str(row["queue"]), shrinks=True),
        Column("GPUS", lambda row: format_milli(row["gpu_milli"]), right=True),
        *(bound(chance) for chance in (50, 80, 95)),
        Column("EVICTED", lambda row: _percent(row["quote"].get("evicted_permille", 0)), right=True),
    ]


def _percent(permille: int) -> str:
    return f"{permille / 10:g}%"


def _held(name: str) -> Column[Json]:
    kind, chance = name.removeprefix("held_").split("_")
    return Column(f"{kind.upper()} {chance}", lambda row: _percent(row[name]), right=True)


def _error(title: str, name: str, wide: bool = False) -> Column[Json]:
    return Column(title, lambda row: format_age(row[name]), right=True, wide=wide)


SCORES: list[Column[Json]] = [
    Column("POOL", lambda row: str(row["pool"]), shrinks=True),
    Column("QUOTES", lambda row: str(row["quotes"]), right=True),
    *map(_held, ("held_by_50", "held_by_80", "held_by_95", "held_in_80", "held_in_95")),
    _error("ERROR", "error_ms"),
    _error("AHEAD", "naive_ahead_ms"),
    _error("RUNNING", "naive_running_ms"),
    _error("LAST", "naive_class_ms"),
]
"""Starts that held in percent, then median errors: the quote's, and those of three naive predictors."""
