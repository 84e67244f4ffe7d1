"""`sacct` and `scontrol`: jobs, nodes and queues in full, in Slurm's words."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.jobs.events import events_of_jobs
from tessera.client.commands.jobs.update import await_changes
from tessera.client.commands.slurm_words.reservations import reservation_order, reservation_records
from tessera.client.commands.slurm_words.squeue import (
    Clusters,
    JobLists,
    Partition,
    check_clusters,
    gres_of_node,
    list_of,
    node_state,
    partitions,
    print_lines,
)
from tessera.client.connect.shard_status import shard_status
from tessera.client.connect.shard_views import LIVE, ShardViews
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.sending.consent import ask_first
from tessera.client.slurm import values
from tessera.client.slurm.listing import fields, run_steps, words
from tessera.client.slurm.listing.attempts import runs_of
from tessera.client.slurm.listing.job_record import config_lines, job_lines
from tessera.client.slurm.updating import BETWEEN_JOBS, JobUpdate, read_update
from tessera.client.views.completing import complete_scontrol
from tessera.client.views.rendering import KINDS, Column, Output, notify, show, show_bare
from tessera.kernel.clock import SystemClock
from tessera_schemas.commands import HoldJob, ReleaseJob, RequeueJob, SetPriority, UpdateJob
from tessera_schemas.views import JobView, NodeView

ACCOUNTED = "JobID,JobName,Partition,Account,GPUs,State,ExitCode,Elapsed,GPUHours"
RAN_AGAIN_MAX = 200
"""Jobs that ran more than once of which `sacct -D` reads the events: a request each by token, some of a stream else."""
BRIEF = "JobID,State,ExitCode"


@command
async def sacct(
    at: AccessOptions,
    jobs: JobLists = None,
    user: Annotated[str | None, typer.Option("--user", "--account", "-u", "-A", help="Only this tenant")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only jobs of these names")] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-r", help="Only these queues")] = None,
    states: Annotated[str | None, typer.Option("--state", "-s", help="Only these, such as CD,F or FAILED")] = None,
    since: Annotated[
        str | None, typer.Option("--since", "-S", "--starttime", help="Only what ran since: 2h, 7d, today, 2030-01-31")
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
    whole: Annotated[bool, typer.Option("--allocations", "-X", help="Jobs without their steps")] = False,
    everybody: Annotated[bool, typer.Option("--allusers", "-a", help="Of all whom one may see, as always")] = False,
    each_run: Annotated[
        bool, typer.Option("--duplicates", "-D", help="A line for each run of a job that ran more than once")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As -o json")] = False,
    brief: Annotated[bool, typer.Option("--brief", "-b", help="JobID, State and ExitCode")] = False,
    units: Annotated[str, typer.Option("--units", help="Taken: memory has its unit beside it")] = "",
    clusters: Clusters = None,
    help_format: Annotated[bool, typer.Option("--helpformat", "-e", help="List the fields")] = False,
) -> Exit | None:
    """List jobs with state, exit code, time and GPU-hours; ended ones as long as lists keep them."""
    if help_format:
        print_lines([*fields.FIELDS, *fields.NOT_MEASURED])
        return None
    check_clusters(at, clusters)
    now_ms, named = SystemClock().now_ms(), list_of(jobs)
    chosen = "json" if as_json else BRIEF if brief else fields_
    is_form = chosen in KINDS or chosen.startswith("jsonpath=")
    output, names = (Output.parse(chosen), ACCOUNTED) if is_form else (Output.TABLE, chosen)
    bare = parsable or ending
    columns = [_accounted(name, now_ms, bare) for name in names.split(",") if name]
    now = datetime.fromtimestamp(now_ms / 1000).astimezone()
    from_ms = values.since_ms(values.Said("sacct", "since", since), now) if since else 0
    to_ms = values.since_ms(values.Said("sacct", "until", until), now) if until else now_ms
    if from_ms > to_ms:
        begin, end = fields.time_of(from_ms), fields.time_of(to_ms)
        raise Failure(
            Exit.USAGE, f"sacct: start time ({begin}) is after end time ({end}); mend --starttime or --endtime"
        )
    views = at.views()
    known, as_of = await views.jobs(), await views.as_of()
    found = fields.select(known, user=user, name=name, queue=partition, named=named)
    found = [job for job in found if (not job.ended_ts or job.ended_ts >= from_ms) and job.submitted_ts <= to_ms]
    found = fields.select(await _each_run(at, found) if each_run else found, states=states)
    for name in fields.unknown(known, named):
        notify(f"note: no job has the id or name {name}")
    if named and not whole and not is_form:
        found = await _with_steps(at, found)
    if bare:
        show_bare(columns, found, titles=not noheader, ending=ending)
    else:
        show(output, columns, found, as_of if output.for_programs else None, gap=1, titles=not noheader, ruled=True)
    return None


async def _each_run(at: AccessOptions, jobs: Sequence[JobView]) -> list[JobView]:
    """A row for each run of each job. Raises Failure for more jobs that ran again than are read of at once."""
    again = [job for job in jobs if job.restarts or (job.attempt and not fields.was_placed(job))]
    if len(again) > RAN_AGAIN_MAX:
        way_out = f"name at most {RAN_AGAIN_MAX} of them, by --jobs, --name or --starttime"
        raise Failure(Exit.USAGE, f"sacct --duplicates: {len(again)} jobs ran more than once; {way_out}")
    events = await events_of_jobs(at.find(), at.identity, [job.job_id for job in again]) if again else {}
    rows = list[JobView]()
    for job in jobs:
        runs = runs_of(job, events.get(job.job_id, ()))
        rows += runs
        if lost := {*range(1, job.attempt)} - {run.attempt for run in runs[:-1]}:
            notify(
                f"note: job {fields.raw_id_of(job)}: no events are kept of {len(lost)} of its runs, which have no line"
            )
    return rows


async def _with_steps(at: AccessOptions, runs: Sequence[JobView]) -> list[JobView]:
    """The runs, each that has ended with the steps that are known of it behind it."""
    ended = list(dict.fromkeys(run.job_id for run in runs if run.ended_ts and run.attempt))
    if len(ended) > RAN_AGAIN_MAX:
        notify(f"note: steps are shown of {RAN_AGAIN_MAX} jobs at once: name fewer by --jobs")
        return list(runs)
    try:
        events = await events_of_jobs(at.find(), at.identity, ended) if ended else {}
    except Failure as failure:
        notify(f"note: no steps are shown: {failure}")
        return list(runs)
    told, rows = run_steps.steps_by_run(each for of_job in events.values() for each in of_job), list[JobView]()
    for run in runs:
        steps = told.get((run.job_id, run.attempt)) if run.ended_ts else None
        rows += [run] if steps is None else run_steps.rows_of(run, steps)
        if steps is not None and (left := steps.count - len(steps.steps)):
            notify(f"note: job {fields.raw_id_of(run)}: {left} of its {steps.count} steps have no line")
        if steps is not None and steps.unread:
            notify(f"note: job {fields.raw_id_of(run)}: its steps cannot be read: {steps.unread}")
    return rows


def _accounted(said: str, now_ms: int, bare: bool) -> Column[JobView]:
    """
    A column of `sacct`. A bare one has no width; in a table a cancelled job's state names the user only where a width
    is said, so that each field is one word.
    """
    of_table = {**fields.ACCOUNTING, "State": fields.FIELDS["State"]}
    if bare:
        return fields.column(re.split("[%:]", said, maxsplit=1)[0], now_ms, own=run_steps.for_steps(fields.ACCOUNTING))
    return fields.column(said, now_ms, own=run_steps.for_steps(fields.ACCOUNTING if "%" in said else of_table))


@command
async def scontrol(
    at: AccessOptions,
    what: Annotated[str, typer.Argument(help="show, hold, release, requeue, update, create, delete or ping")],
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...",
            help="Jobs; after show: job, node, partition or reservation; after create: reservation StartTime=, "
            "Duration=, Nodes= or NodeCnt=, Accounts= or Users=; after update: JobId=JOB TimeLimit=, StartTime=, "
            "Dependency=, JobName=, Partition=, QOS=, Priority=0",
            autocompletion=complete_scontrol,
        ),
    ] = None,
    oneliner: Annotated[bool, typer.Option("--oneliner", "-o", help="Each in one line")] = False,
    details: Annotated[bool, typer.Option("--details", "-d", help="Taken: all is shown that there is")] = False,
) -> Exit | None:
    """Show a job, a node or a partition in full; hold, release, requeue and update jobs; ping the scheduler."""
    if what == "show":
        return await _show(at, named or [""], oneliner)
    if what in (*ORDERS, *TOGETHER) and named:
        return await _order(at, what, named)
    if what == "update":
        now = datetime.fromtimestamp(SystemClock().now_ms() / 1000).astimezone()
        return await _update(at, read_update(named or (), now))
    if what in ("create", "delete"):
        print(await reservation_order(at, what, named or ()))
        return None
    if what == "ping":
        where = at.find()
        up = (await shard_status(where)).led
        print(f"Slurmctld(primary) at {where.shard} is {'UP' if up else 'DOWN'}")
        return None if up else Exit.FAILED
    raise _usage(what)


def _usage(what: str) -> Failure:
    return Failure(
        Exit.USAGE,
        f"scontrol {what}: write show job|node|partition|reservation [NAME], show hostnames LIST, show config, "
        "hold, release, requeue or requeuehold JOB, update JobId=JOB NAME=VALUE, create reservation NAME=VALUE, "
        "delete ReservationName=NAME, ping",
    )


async def _show(at: AccessOptions, named: Sequence[str], oneliner: bool) -> Exit | None:
    """Prints what `scontrol show` is asked for. Raises Failure."""
    entity, *names = named
    name, entity = _named(entity, names)
    if entity == "hostnames":
        print_lines(values.hosts_of(values.Said("scontrol", "hostnames", ",".join(names))))
        return None
    if entity == "config":
        from tessera.projection.recently_ended import ENDED_SECONDS  # no other command needs it

        print_lines([f"Configuration data as of {fields.time_of(SystemClock().now_ms())}"])
        print_lines(config_lines(at.find().shard, ENDED_SECONDS))
        return None
    if entity == "reservation":
        print_lines(await reservation_records(at, name))
        return None
    if entity not in ("job", "node", "partition") or len(names) > 1:
        raise _usage("show")
    try:
        views = at.views()
        lines = await _shown(views, entity, name)
    except Failure as failure:
        if failure.code is not Exit.NOT_FOUND:
            raise
        notify(f"slurm_load_{entity}s error: {'Invalid job id specified' if entity == 'job' else ''}: {failure}")
        return Exit.FAILED
    print_lines([" ".join(each.split()) if oneliner else each for each in lines])
    return None


ENTITIES = {"job": "jobs", "jobid": "jobid", "node": "nodes", "partition": "partitions", "hostnames": "hostnames"}
ENTITIES |= {"config": "config", "reservation": "reservations"}
"""Words behind `scontrol show`, in full; each may be cut short."""


def _named(entity: str, names: Sequence[str]) -> tuple[str, str]:
    """The name that is asked for, and the kind of thing by the beginning of its word; `job=7` is `job 7`."""
    word, _, name = entity.partition("=")
    kinds = [kind for kind, full in ENTITIES.items() if word and (kind == word or full.startswith(word))]
    kind = "job" if kinds[:1] == ["jobid"] else kinds[0] if kinds else word
    return (names[0] if names else name), kind


ORDERS = {"hold": HoldJob, "release": ReleaseJob, "requeue": RequeueJob}
TOGETHER = {"requeuehold": ("hold", "requeue")}
"""Words that are several orders; a hold comes first, so that no run begins between the two."""


async def _order(at: AccessOptions, what: str, named: Sequence[str]) -> Exit | None:
    where = at.find()

    async def order(name: str) -> None:
        job = await ordering.find_job_id(where, name, what)
        for each in TOGETHER.get(what, (what,)):
            command = ORDERS[each].model_validate({"kind": f"{each}_job", "v": 1, "job_id": job})
            await ordering.send(where, at.identity, command, job)

    return await ordering.each(words.each_named(each for name in named for each in BETWEEN_JOBS.split(name)), order)


async def _update(at: AccessOptions, update: JobUpdate) -> Exit | None:
    """All changes of one job after the other; one that runs keeps its queue."""
    where = at.find()
    ids = {other: await ordering.find_awaited_id(where, other) for _, other in update.after or () if other}

    async def order(name: str) -> None:
        job = await ordering.find_job_id(where, name, "update")
        first = await ordering.job_now(where, job)
        if update.queue and first is not None and first.phase != "queued":
            raise Failure(Exit.CONFLICT, f"job {job}: is {first.phase}; only a waiting job goes to another partition")
        commands = update.commands(job, ids)
        for priority in (each for each in commands if isinstance(each, SetPriority)):
            await ask_first(where, at.identity, priority, yes=True)  # said and not asked: scripts call this
        await ordering.send_all(where, at.identity, [(job, command) for command in commands])
        if commands and isinstance(commands[-1], UpdateJob):
            await await_changes(where, job, commands[-1].changes, first)

    return await ordering.each(words.each_named(update.jobs), order)


async def _shown(views: ShardViews, entity: str, name: str) -> list[str]:
    """Each as lines of `Name=value`. Raises Failure where nothing is called so."""
    if entity == "job":
        now_ms = SystemClock().now_ms()
        jobs = await _jobs_shown(views, name)
        return [job_lines(job, now_ms) for job in jobs]
    nodes = await views.nodes()
    if entity == "node":
        found = [node_lines(node) for node in nodes if name in ("", node.name)]
    else:
        by_queue = groupby(partitions(await views.queues(), nodes), key=lambda row: row.queue)
        found = [partition_lines([*rows], nodes) for queue, rows in by_queue if name in ("", queue)]
    if name and not found:
        raise Failure(Exit.NOT_FOUND, f"{entity} {name}: there is none; see `tessera sinfo`")
    return found


async def _jobs_shown(views: ShardViews, name: str) -> list[JobView]:
    """The live jobs, or the one of this name, with its tasks where it is an array. Raises Failure."""
    if not name:
        return await views.jobs(LIVE)
    found = await views.job(name)
    if found.array is None:
        return [found]
    tasks = await views.jobs(array=found.job_id)
    return [found, *tasks] if found.array.left or not tasks else tasks


def node_lines(node: NodeView) -> str:
    """State, size and use of a node."""
    return (
        f"NodeName={node.name} State={node_state(node).upper()} Partition={node.pool}\n"
        f"   CPUTot={node.cpu_milli / 1000:g} CPUAlloc={(node.cpu_milli - node.cpu_free_milli) / 1000:g} "
        f"RealMemory={node.memory_bytes >> 20} FreeMem={node.memory_free_bytes >> 20}\n"
        f"   Gres={gres_of_node(node)} GresUsed={gres_of_node(node, used=True)}"
        + (f"\n   Reason={node.drain_why}" if node.drain_why else "")
    )


def partition_lines(rows: Sequence[Partition], nodes: Sequence[NodeView]) -> str:
    """A queue in Slurm's order and with Slurm's names, from its rows by state of nodes."""
    names = [name for row in rows for name in row.nodes]
    cpus = sum(node.cpu_milli for node in nodes if node.name in names) // 1000
    there = [node for node in nodes if node.name in names]
    gpus, devices = sum(node.gpus for node in there), Counter[str]()
    for node in there:
        devices.update(words.gres_of({name: count for name, count, *_ in node.device_classes}, node.gres))
    more = "".join(f",gres/{name}={count}" for name, count in sorted(devices.items()))
    queue = rows[0]
    longest = "UNLIMITED" if queue.time_limit == "infinite" else queue.time_limit
    lines = [
        f"PartitionName={queue.queue}",
        f"Default={'YES' if queue.marked != queue.queue else 'NO'} QoS=N/A",
        "DefaultTime=NONE Hidden=NO",
        f"MaxNodes=UNLIMITED MaxTime={longest} MinNodes=0 MaxCPUsPerNode=UNLIMITED",
        f"Nodes={words.node_list(names)}",
        f"State={'UP' if queue.up else 'DOWN'} TotalCPUs={cpus} TotalNodes={len(names)}",
        "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED",
        f"TRES=cpu={cpus},node={len(names)}" + (f",gres/gpu={gpus}" if gpus else "") + more,
    ]
    return "\n   ".join(lines) + "\n"
