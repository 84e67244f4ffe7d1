"""`sacct`, `scontrol`, `sprio` and `sshare`: jobs, nodes and queues in full, in Slurm's words."""

from collections.abc import Sequence
from datetime import datetime
from textwrap import wrap
from typing import Annotated

import typer

from tessera.client import ordering
from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.commands.slurm import Partition, node_state, partitions, say_unknown
from tessera.client.completing import complete_list_of_jobs, complete_scontrol
from tessera.client.job_glance import ENDED
from tessera.client.outcomes import Exit, Failure
from tessera.client.rendering import COLUMNS, KINDS, Column, Output, show
from tessera.client.shard_status import shard_status
from tessera.client.shard_views import ReadViews
from tessera.client.slurm import fields, values, words
from tessera.client.slurm.updating import JobUpdate, read_update
from tessera.kernel.clock import SystemClock
from tessera_schemas.commands import HoldJob, ReleaseJob
from tessera_schemas.views import JobView, NodeView, QueueView

ACCOUNTED = "JobID,JobName,Partition,Account,GPUs,State,ExitCode,Elapsed,GPUHours"
WAITING = "JobID,Partition,User,QOS,Priority,Age,Reason"


@command
async def sacct(
    at: AccessOptions,
    jobs: Annotated[
        str | None,
        typer.Option("--jobs", "-j", help="Only these: ids, tasks, names", autocompletion=complete_list_of_jobs),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", "--account", "-u", "-A", help="Only this tenant")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only jobs of these names")] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-r", help="Only these queues")] = None,
    states: Annotated[str | None, typer.Option("--state", "-s", help="Only these, such as CD,F or FAILED")] = None,
    since: Annotated[
        str | None, typer.Option("--since", "-S", help="Only what ran since: 2h, 7d, today, 2030-01-31")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", "-E", "--endtime", help="Only what began before: now, today, 2030-01-31")
    ] = None,
    fields_: Annotated[
        str, typer.Option("--format", "--output", "-o", help="Fields, as JobID,JobName%20,State; or json, yaml")
    ] = ACCOUNTED,
    parsable: Annotated[bool, typer.Option("--parsable2", "-P", help="Fields with | between them")] = False,
    ending: Annotated[bool, typer.Option("--parsable", "-p", help="The same, with a | at the end")] = False,
    noheader: Annotated[bool, typer.Option("--noheader", "-n", help="Without the line of titles")] = False,
    whole: Annotated[bool, typer.Option("--allocations", "-X", help="Jobs without steps, as always")] = False,
    everybody: Annotated[bool, typer.Option("--allusers", "-a", help="Of all whom one may see, as always")] = False,
    each_run: Annotated[bool, typer.Option("--duplicates", "-D", help="Refused: a job is one line here")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As -o json")] = False,
) -> Exit | None:
    """List jobs with state, exit code, time and GPU-hours; ended ones as long as lists keep them."""
    if each_run:
        way_out = "GPUHours and Restarts count all its runs, and `tessera explain JOB` tells each of them"
        raise Failure(Exit.USAGE, f"sacct --duplicates: a job is one line, with the time of its last run; {way_out}")
    now_ms, chosen = SystemClock().now_ms(), "json" if as_json else fields_
    is_form = chosen in KINDS or chosen.startswith("jsonpath=")
    output, names = (Output.parse(chosen), ACCOUNTED) if is_form else (Output.TABLE, chosen)
    columns = [fields.column(name, now_ms) for name in names.split(",")]
    now = datetime.fromtimestamp(now_ms / 1000).astimezone()
    from_ms = values.since_ms(values.Said("sacct", "since", since), now) if since else 0
    to_ms = values.since_ms(values.Said("sacct", "until", until), now) if until else now_ms
    async with at.views() as views:
        known, as_of = await views.jobs(), await views.as_of()
    found = [
        job
        for job in fields.select(known, user=user, name=name, queue=partition, named=jobs, states=states)
        if (job.phase not in ENDED or job.ended_ts >= from_ms) and job.submitted_ts <= to_ms
    ]
    if parsable or ending:
        rows = [] if noheader else [[column.title for column in columns]]
        rows += [[column.value(job).strip() for column in columns] for job in found]
        print("\n".join("|".join(row) + ("|" if ending else "") for row in rows))
    else:
        show(output, columns, found, as_of if output.for_programs else None, titles=not noheader)
    return say_unknown(known, jobs)


@command
async def sprio(at: AccessOptions, output: Format = Output.TABLE) -> None:
    """List what decides between waiting jobs: priority class, age, and why they wait; `explain` says the rest."""
    now_ms = SystemClock().now_ms()
    async with at.views() as views:
        waiting = [job for job in await views.jobs() if job.phase == "queued"]
    waiting.sort(key=lambda job: (-job.priority, job.submitted_ts, job.job_id))
    show(output, [fields.column(name, now_ms) for name in WAITING.split(",")], waiting, None)


SHARES: list[Column[QueueView]] = [
    Column("ACCOUNT", lambda queue: queue.name, shrinks=True),
    Column("PARENT", lambda queue: queue.parent or "root", shrinks=True),
    Column("RAWSHARES", lambda queue: str(queue.weight), right=True),
    Column("GPUS", lambda queue: f"{queue.used_gpu_milli / 1000:g}", right=True),
    Column("RUNNING", lambda queue: str(queue.live), right=True),
    Column("PENDING", lambda queue: str(queue.queued), right=True),
]


@command
async def sshare(at: AccessOptions, output: Format = Output.TABLE) -> None:
    """List queues with their weight and what their runs hold now, by which fair share decides."""
    async with at.views() as views:
        show(output, SHARES, await views.queues(), None)


@command
async def scontrol(
    at: AccessOptions,
    what: Annotated[str, typer.Argument(help="show, hold, release, update or ping")],
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...",
            help="Jobs; after show: job, node or partition; after update: JobId=JOB Partition=, QOS=, Priority=0",
            autocompletion=complete_scontrol,
        ),
    ] = None,
    oneliner: Annotated[bool, typer.Option("--oneliner", "-o", help="Each in one line")] = False,
) -> Exit | None:
    """Show a job, a node or a partition in full; hold, release and update jobs; ping the scheduler."""
    if what in ("hold", "release") and named:
        return await _hold(at, named, undo=what == "release")
    if what == "update":
        return await _update(at, read_update(named or ()))
    if what in ("requeue", "requeuehold"):
        way_out = "`scancel` it and submit it again; an operator's `tessera drain NODE --evict` starts runs elsewhere"
        raise Failure(Exit.USAGE, f"scontrol {what}: no run is stopped to begin again on its owner's word; {way_out}")
    if what == "ping":
        where = at.find()
        up = (await shard_status(where)).led
        print(f"Slurmctld(primary) at {where.shard} is {'UP' if up else 'DOWN'}")
        return None if up else Exit.FAILED
    entity, *names = named or [""]
    entity = OTHER_ENTITIES.get(entity, entity)
    if what == "show" and entity == "hostnames":
        print("\n".join(values.hosts_of(values.Said("scontrol", "hostnames", ",".join(names)))))
        return None
    if what != "show" or entity not in ("job", "node", "partition") or len(names) > 1:
        raise Failure(
            Exit.USAGE,
            f"scontrol {what}: write show job|node|partition [NAME], show hostnames LIST, hold or release JOB, "
            "update JobId=JOB NAME=VALUE, ping",
        )
    async with at.views() as views:
        lines = await _shown(views, entity, names[0] if names else "")
    print("\n".join(" ".join(each.split()) for each in lines) if oneliner else "\n\n".join(lines))
    return None


OTHER_ENTITIES = {"jobs": "job", "jobid": "job", "nodes": "node", "partitions": "partition", "hostname": "hostnames"}
"""Words of scontrol's that mean another one."""


async def _hold(at: AccessOptions, named: Sequence[str], undo: bool) -> Exit | None:
    where = at.find()

    async def order(name: str) -> None:
        job = await ordering.find_job_id(where, name, "release" if undo else "hold")
        hold, release = HoldJob(kind="hold_job", v=1, job_id=job), ReleaseJob(kind="release_job", v=1, job_id=job)
        await ordering.send(where, at.identity, release if undo else hold, job)

    return await ordering.each(words.each_named(named), order)


async def _update(at: AccessOptions, update: JobUpdate) -> Exit | None:
    """All changes of one job after the other; one that runs keeps its queue."""
    where = at.find()

    async def order(name: str) -> None:
        job = await ordering.find_job_id(where, name, "update")
        if update.queue and where.can_read():
            async with where.views() as views:
                phase = (await views.job(job)).phase
            if phase != "queued":
                raise Failure(Exit.CONFLICT, f"job {job}: is {phase}; only what waits goes to another partition")
        await ordering.send_all(where, at.identity, [(job, command) for command in update.commands(job)])

    return await ordering.each(words.each_named(update.jobs), order)


async def _shown(views: ReadViews, entity: str, name: str) -> list[str]:
    """Each as lines of `Name=value`. Raises Failure where nothing is called so."""
    if entity == "job":
        now_ms = SystemClock().now_ms()
        jobs = [await views.job(name)] if name else [job for job in await views.jobs() if job.phase not in ENDED]
        return [job_lines(job, now_ms) for job in jobs]
    nodes = await views.nodes()
    if entity == "node":
        found = [node_lines(node) for node in nodes if name in ("", node.name)]
    else:
        rows = partitions(await views.queues(), nodes)
        found = [partition_line(row) for row in rows if name in ("", row.queue)]
    if name and not found:
        raise Failure(Exit.NOT_FOUND, f"{entity} {name}: there is none; see `tessera sinfo`")
    return found


def job_lines(job: JobView, now_ms: int) -> str:
    """The fields of a job, as many in a line as it holds."""
    pairs = " ".join(f"{name}={value(job, now_ms)}" for name, value in fields.FIELDS.items())
    return "\n".join(wrap(pairs, COLUMNS, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False))


def node_lines(node: NodeView) -> str:
    """State, size and use of a node."""
    free = sum(node.gpu_free)
    return (
        f"NodeName={node.name} State={node_state(node).upper()} Partition={node.pool}\n"
        f"   CPUTot={node.cpu_milli / 1000:g} CPUAlloc={(node.cpu_milli - node.cpu_free_milli) / 1000:g} "
        f"RealMemory={node.memory_bytes >> 20} FreeMem={node.memory_free_bytes >> 20}\n"
        f"   Gres=gpu:{node.gpu_model or 'any'}:{node.gpus} GresUsed={node.gpus - free / 1000:g}"
        + (f"\n   Reason={node.drain_why}" if node.drain_why else "")
    )


def partition_line(row: Partition) -> str:
    """Nodes of a queue that are in one state."""
    up = "UP" if row.up else "DOWN"
    nodes = words.node_list(row.nodes)
    return f"PartitionName={row.queue} State={up} MaxTime={row.time_limit} Nodes={nodes} NodeState={row.state}"
