"""Completion of job names in a shell: what the views list, or nothing while nobody answers."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

SECONDS = 2.0
"""A shell waits no longer for its completions."""
LISTED_MAX = 1000
"""Jobs among which a shell completes, live ones first."""
FOR_ENDED = ("get", "explain", "logs", "events", "sacct", "show")
"""Commands about jobs that have ended, too; the others name live ones."""


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Names that begin so, and ids where two jobs have one name, each with its queue and phase; live ones first."""
    return _complete(ctx, incomplete, str(ctx.info_name))


def complete_list_of_jobs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """As `complete_jobs`, for the last of several with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    return [(f"{before}{comma}{name}", about) for name, about in complete_jobs(ctx, last)]


def complete_scontrol(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Words behind `scontrol`: what there is to show, and jobs where a job is meant."""
    what, named = ctx.params.get("what"), list(ctx.params.get("named") or ())
    if what in ("hold", "release", "requeue") or (what == "show" and named[:1] == ["job"]):
        return _complete(ctx, incomplete, what)
    return [(word, "") for word in ("job", "node", "partition") if not named and word.startswith(incomplete)]


def _complete(ctx: typer.Context, incomplete: str, doing: str) -> list[tuple[str, str]]:
    from tessera.client.connect.connecting import views_of
    from tessera.client.connect.locating import find
    from tessera.client.connect.shard_views import LIVE, REFUSED

    options: dict[str, Any] = {name: ctx.params.get(name) for name in ("home", "shard", "context")}
    home = Path(options["home"]) if options["home"] else None

    async def read() -> list[tuple[str, str]]:
        where = find(home, shard=options["shard"], context=options["context"])
        async with asyncio.timeout(SECONDS):
            found, _ = await views_of(where).list_work(LISTED_MAX, () if doing in FOR_ENDED else LIVE)
        jobs = [job for job in found if job.phase != REFUSED]
        names = [job.name for job in jobs]
        known = [(job.name if names.count(job.name) == 1 else job.job_id, job) for job in jobs]
        return [(name, f"{job.name}, {job.queue}, {job.phase}") for name, job in known if name.startswith(incomplete)]

    with suppress(Exception):  # there is nobody to tell
        return asyncio.run(read())
    return []


JobReference = Annotated[
    str, typer.Argument(help="Its id, the beginning of one, or its name", autocompletion=complete_jobs)
]
"""The argument of commands about one job."""
