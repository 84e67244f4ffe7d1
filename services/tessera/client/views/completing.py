"""Completion of job names in a shell: what the views list, or nothing while nobody answers."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

SECONDS = 2.0
"""A shell waits no longer for its completions."""
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
    from tessera.client.connect.job_glance import ENDED
    from tessera.client.connect.locating import find

    options: dict[str, Any] = {name: ctx.params.get(name) for name in ("home", "shard", "context")}
    home = Path(options["home"]) if options["home"] else None

    async def read() -> list[tuple[str, str]]:
        where = find(home, shard=options["shard"], context=options["context"])
        async with asyncio.timeout(SECONDS), where.views() as views:
            jobs = [job for job in await views.jobs() if doing in FOR_ENDED or job.phase not in ENDED]
        names = [job.name for job in jobs]
        found = [(job.name if names.count(job.name) == 1 else job.job_id, job) for job in jobs]
        return [(name, f"{job.name}, {job.queue}, {job.phase}") for name, job in found if name.startswith(incomplete)]

    with suppress(Exception):  # there is nobody to tell
        return asyncio.run(read())
    return []


JobReference = Annotated[
    str, typer.Argument(help="Its id, the beginning of one, or its name", autocompletion=complete_jobs)
]
"""The argument of commands about one job."""
