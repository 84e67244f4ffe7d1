"""`services`: services with their replicas, and rollouts of another program."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.connect.api import path_of
from tessera.client.connect.connecting import api_of
from tessera.client.input import files
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.views.completing import JobReference
from tessera.client.views.explain import wrapped
from tessera.client.views.rendering import Column, Output, show
from tessera.kernel.clock import SystemClock
from tessera_schemas.base import Json
from tessera_schemas.text.units import format_milli
from tessera_schemas.work.spec_changes import RolloutPace

LOOK_SECONDS = 1.0
PACE = {name: field.default for name, field in RolloutPace.model_fields.items()}

services = typer.Typer(help="List services, and give their replicas another program.", invoke_without_command=True)
rollout = typer.Typer(help="Follow the rollout of a service, or go back.", no_args_is_help=True)
services.add_typer(rollout, name="rollout")


@services.callback()
@command
async def list_services(ctx: typer.Context, at: AccessOptions, output: Format = Output.TABLE) -> None:
    """List services: those that were submitted, and users' own objects with a guaranteed minimum of replicas."""
    if ctx.invoked_subcommand is None:
        found = await api_of(at.find(), at.identity).get("/v1/services")
        show(output, SERVICES, found["items"], found["as_of"])


@services.command()
@command
async def update(
    at: AccessOptions,
    job: JobReference,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Its job file, in which programs differ")] = None,
    image: Annotated[str | None, typer.Option(help="Another image alone")] = None,
    max_surge: Annotated[int, typer.Option(help="Replicas beyond the wanted number", min=0)] = PACE["max_surge"],
    max_unavailable: Annotated[int, typer.Option(help="Replicas that may be missing meanwhile", min=0)] = PACE[
        "max_unavailable"
    ],
    min_ready_seconds: Annotated[
        int, typer.Option(help="Seconds that a new replica runs before an older one is stopped", min=0)
    ] = PACE["min_ready_seconds"],
) -> None:
    """Give the replicas of a service another image, command or environment, step by step."""
    if file is None and image is None:
        raise Failure(Exit.USAGE, "services update: say what is new: -f job.yaml or --image IMAGE")
    pace = {"max_surge": max_surge, "max_unavailable": max_unavailable, "min_ready_seconds": min_ready_seconds}
    said = {"spec": None if file is None else files.read_yaml(file), "image": image}
    await _ask(at, job, {name: value for name, value in (said | pace).items() if value not in (None, PACE.get(name))})


@rollout.command()
@command
async def undo(at: AccessOptions, job: JobReference) -> None:
    """Give the replicas of a service the programs that they had before, in the same way; undone again, those of now."""
    await _ask(at, job, {"undo": True})


@rollout.command()
@command
async def status(
    at: AccessOptions,
    job: JobReference,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is done or has stopped")] = False,
) -> Exit | None:
    """Say how far the rollout of a service is; the exit code is 1 for one that stopped."""
    found, clock = await ordering.find_job_id(at.find(), job), SystemClock()
    while True:
        row = await _row(at, found)
        if row is None:
            raise Failure(Exit.USAGE, f"job {found} is no service that goes on")
        state = row.get("rollout") or ""
        if state != "rolling" or not wait:
            break
        await clock.sleep(LOOK_SECONDS)
    print("\n".join(wrapped(progress(row))))
    return Exit.FAILED if state == "stopped" else None


def progress(row: Json) -> str:
    """The rollout of a service in words."""
    now = f"revision {row.get('revision')}: {row.get('renewed') or 0} of {row['replicas']} replicas run it"
    how = {"rolling": "; the rollout goes on", "stopped": "; the rollout has stopped"}.get(row.get("rollout") or "", "")
    return now + how + (f": {row['why']}" if how and row.get("why") else "")


async def _ask(at: AccessOptions, job: str, body: Json) -> None:
    """Ask for a rollout, and wait a moment until the lists show it, so that a status asked for next is of this one."""
    where = at.find()
    found = await ordering.find_job_id(where, job, "roll out")
    before = await _row(at, found)
    _, answer = await api_of(where, at.identity).post(path_of(found, "rollout"), body)

    async def has_begun() -> bool:
        now = await _row(at, found)
        return now is None or before is None or now.get("revision") != before.get("revision")

    if await ordering.poll(has_begun, ordering.SEEN_SECONDS, ordering.SEEN_POLL_SECONDS):
        said = "begun"
    else:
        said = "accepted" if answer.get("state") == "accepted" else "stored, and not answered yet"
    print(f"job {found}: the rollout is {said}; `tessera services rollout status {found}` says how far it is")


async def _row(at: AccessOptions, job: str) -> Json | None:
    """The row of a service; None for none."""
    items = (await api_of(at.find(), at.identity).get("/v1/services"))["items"]
    return next((row for row in items if row["job_id"] == job), None)


def _revision_of(row: Json) -> str:
    """The revision, and how many replicas run it while not all do."""
    if not row.get("rollout"):
        return str(row.get("revision") or "-")
    return f"{row['revision']} ({row.get('renewed') or 0}/{row['replicas']})"


SERVICES: list[Column[Any]] = [
    Column("SERVICE", lambda row: str(row["name"]), shrinks=True),
    Column("TENANT", lambda row: str(row["tenant"]), shrinks=True, wide=True),
    Column("QUEUE", lambda row: str(row["queue"]), shrinks=True),
    Column("WANTED", lambda row: str(row["replicas"]), right=True),
    Column("RUNNING", lambda row: str(row["running"]), right=True),
    Column("WAITING", lambda row: str(row["waiting"]), right=True),
    Column("GUARANTEED", lambda row: str(row["min_replicas"]), right=True),
    Column("MOST", lambda row: str(row["max_replicas"] or "-"), right=True),
    Column("GPUS", lambda row: format_milli(row["gpu_milli"]), right=True),
    Column("REV", _revision_of, right=True),
    Column("JOB", lambda row: str(row["job_id"] or "-")),
    Column("REASON", lambda row: str(row.get("why") or "-").partition(": ")[2] or "-", shrinks=True),
]
