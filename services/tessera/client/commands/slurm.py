"""`sbatch`, `squeue`, `scancel` and `sinfo`: the commands that Slurm's users know, on this scheduler."""

import getpass
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tessera.client import files, ordering, slurm, submitting
from tessera.client.commands.context import PROGRAMS, AccessOptions, Format, command
from tessera.client.outcomes import Exit, Failure
from tessera.client.rendering import Column, Output, say, show
from tessera.client.shard_views import ENDED
from tessera.kernel.clock import SystemClock
from tessera_schemas.commands import CancelJob
from tessera_schemas.views import JobView, NodeView, QueueView

IMAGE_VARIABLE = "TESSERA_CONTAINER_IMAGE"


@command
async def sbatch(
    at: AccessOptions,
    file: Annotated[Path, typer.Argument(help="The batch script")],
    job_name: Annotated[str | None, typer.Option("--job-name", "-J", help="Instead of the script's")] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="The queue")] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", "-G", help="Of the whole job, such as 8 or h100:8")] = None,
    nodes: Annotated[str | None, typer.Option("--nodes", "-N", help="A pod for each task of each")] = None,
    time: Annotated[str | None, typer.Option("--time", "-t", help="Such as 90, 2:00:00 or 1-12:00:00")] = None,
    qos: Annotated[str | None, typer.Option("--qos", "-q", help="The priority class")] = None,
    container_image: Annotated[
        str | None, typer.Option("--container-image", envvar=IMAGE_VARIABLE, help="What the pods run")
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", "-H", help="Submit it held")] = False,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", help="Pass over this option of the script")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key; else from the CI run, else random")] = None,
) -> None:
    """Submit a batch script with #SBATCH lines; options here go before those of the script."""
    script = slurm.read_script(files.read_text(file), str(file), ignore or ())
    given = {"job-name": job_name, "partition": partition, "gpus": gpus, "nodes": nodes, "time": time, "qos": qos}
    here = {name: value for name, value in given.items() if value is not None}
    if gpus is not None:
        script.options.pop("gres", None)
        script.options.pop("gpus-per-node", None)
    script.options.update(here)
    spec = files.job_spec(slurm.job_of(script, str(file), container_image, file.stem), str(file))
    spec.setdefault("queue", "default")
    for warning in warnings(script.text):
        say(f"note: {file}: {warning}")
    where = at.find()
    asked = {"kind": "submit_job", "spec": spec, "held": hold or "hold" in script.options}
    async with submitting.submitted(where, at.identity, asked, key) as sent:
        print(f"Submitted batch job {sent.done.job_id}")


@command
async def squeue(
    at: AccessOptions,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this tenant")] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Only this queue")] = None,
    states: Annotated[str | None, typer.Option("--states", "-t", help="Only these, such as PD,R")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Jobs that have ended, too")] = False,
    output: Format = Output.TABLE,
) -> None:
    """List jobs that wait or run, with Slurm's columns."""
    async with at.views() as views:
        jobs, as_of = await views.jobs(), await views.as_of()
    wanted = set(states.upper().split(",")) if states else None
    found = [
        job
        for job in jobs
        if (user is None or job.tenant == user)
        and (partition is None or job.queue == partition)
        and (everything or wanted is not None or job.phase not in ENDED)
        and (wanted is None or slurm.state_of(job.phase) in wanted)
    ]
    columns = queue_columns(SystemClock().now_ms())
    show(output, columns, found, as_of if output in PROGRAMS else None, gap=1)


@command
async def scancel(
    at: AccessOptions, jobs: Annotated[list[str], typer.Argument(help="Ids, beginnings of ids, or names")]
) -> Exit | None:
    """Cancel jobs; says nothing when all is well."""
    where = at.find()
    failed: Exit | None = None
    for named in jobs:
        try:
            found = await ordering.find_job_id(where, named, "cancel")
            why = f"scancel by {getpass.getuser()}"[:200]
            await ordering.send(where, at.identity, CancelJob(kind="cancel_job", v=1, job_id=found, why=why), found)
        except Failure as failure:
            say(f"error: {failure}")
            failed = failure.code
    return failed


@command
async def sinfo(at: AccessOptions, output: Format = Output.TABLE) -> None:
    """List the nodes of each queue by state, with Slurm's columns."""
    async with at.views() as views:
        rows, as_of = partitions(await views.queues(), await views.nodes()), await views.as_of()
    show(output, PARTITIONS, rows, as_of if output in PROGRAMS else None)


@dataclass(frozen=True, slots=True)
class Partition:
    """The nodes of a queue that are in one state."""

    queue: str
    up: bool
    state: str
    nodes: tuple[str, ...]


def partitions(queues: Sequence[QueueView], nodes: Sequence[NodeView]) -> list[Partition]:
    """One row for each leaf queue and state of its pool's nodes."""
    rows = []
    for queue in sorted((queue for queue in queues if not queue.inner), key=lambda queue: queue.name):
        by_state: dict[str, list[str]] = {}
        for node in nodes:
            if node.pool == queue.pool and not node.gone:
                by_state.setdefault(node_state(node), []).append(node.name)
        up = queue.stop_policy == "none"
        rows += [Partition(queue.name, up, state, tuple(names)) for state, names in sorted(by_state.items())]
        rows += [] if by_state else [Partition(queue.name, up, "n/a", ())]
    return rows


def node_state(node: NodeView) -> str:
    """idle, mix or alloc by its GPUs, or by its CPUs where it has none; drain while drained, down when not ready."""
    if not node.ready:
        return "down"
    free = [left for left in node.gpu_free if left > 0]
    busy = sum(free) < node.gpus * 1000 if node.gpus else node.cpu_free_milli < node.cpu_milli
    if node.drained:
        return "drng" if busy else "drain"
    if not busy:
        return "idle"
    full = not free if node.gpus else node.cpu_free_milli <= 0
    return "alloc" if full else "mix"


def queue_columns(now_ms: int) -> list[Column[JobView]]:
    return [
        Column("JOBID", lambda job: job.job_id),
        Column("PARTITION", lambda job: job.queue, shrinks=True),
        Column("NAME", lambda job: job.name, shrinks=True),
        Column("USER", lambda job: job.tenant, shrinks=True),
        Column("ST", lambda job: slurm.state_of(job.phase)),
        Column("TIME", lambda job: _time(job, now_ms), right=True),
        Column("NODES", lambda job: str(_nodes(job)), right=True),
        Column("NODELIST(REASON)", _where_or_why, shrinks=True),
    ]


PARTITIONS: list[Column[Partition]] = [
    Column("PARTITION", lambda row: row.queue, shrinks=True),
    Column("AVAIL", lambda row: "up" if row.up else "down"),
    Column("TIMELIMIT", lambda row: "infinite"),
    Column("NODES", lambda row: str(len(row.nodes)), right=True),
    Column("STATE", lambda row: row.state),
    Column("NODELIST", lambda row: slurm.node_list(row.nodes), shrinks=True),
]


def warnings(text: str) -> list[str]:
    """Warnings about variables and features that a script relies on and Tessera lacks."""
    found = []
    if "srun" in text.split():
        found.append("it calls srun, which is not there: every pod runs the whole script")
    if "SLURM_" in text:
        found.append("it reads variables SLURM_…, which are not set; pods have TESSERA_…")
    return found


def _time(job: JobView, now_ms: int) -> str:
    if not job.started_ts:
        return "0:00"
    return slurm.elapsed((job.ended_ts or now_ms) - job.started_ts)


def _nodes(job: JobView) -> int:
    return len({place.node for place in job.placements}) or job.pods


def _where_or_why(job: JobView) -> str:
    if job.placements:
        return slurm.node_list([place.node for place in job.placements])
    return "" if job.reason is None else f"({slurm.WHY.get(job.reason.code, job.reason.code)})"
