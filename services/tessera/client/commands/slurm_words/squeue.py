"""`squeue`, `scancel` and `sinfo`: jobs and nodes in the words that Slurm's users know."""

import getpass
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.connect.connecting import accounts_of, bound_user
from tessera.client.connect.shard_views import ENDED, LIVE
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.sending import ordering
from tessera.client.slurm.listing import fields, words
from tessera.client.slurm.listing.queue_fields import heading, in_order, line_of, long_lines, rows_as, titles_over
from tessera.client.slurm.listing.words import submitter
from tessera.client.views.completing import complete_jobs, complete_list_of_jobs
from tessera.client.views.rendering import Column, Output, local_time, notify, show
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.base import INT_MAX
from tessera_schemas.reasons import PublicReason
from tessera_schemas.shard.quotes import StartQuote
from tessera_schemas.views import JobView, LineStart, NodeView, QueueView
from tessera_schemas.work.arrays import task_ranges

JobLists = Annotated[
    list[str] | None,
    typer.Option("--jobs", "-j", help="Only these: ids, tasks, names", autocompletion=complete_list_of_jobs),
]
Clusters = Annotated[
    str | None, typer.Option("--clusters", "--cluster", "-M", help="all, or this shard: no command shows another")
]


@command
async def squeue(
    at: AccessOptions,
    jobs: JobLists = None,
    me: Annotated[
        bool,
        typer.Option("--me", help="Only those of the tenant that you are, else your own"),
    ] = False,
    user: Annotated[str | None, typer.Option("--user", "--account", "-u", "-A", help="Only this tenant")] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Only these queues")] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Only jobs of these names")] = None,
    nodes: Annotated[str | None, typer.Option("--nodelist", "-w", help="Only what runs on these nodes")] = None,
    states: Annotated[str | None, typer.Option("--states", "-t", help="Only these, such as PD,R")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Jobs that have ended, too")] = False,
    noheader: Annotated[bool, typer.Option("--noheader", "-h", help="Without the line of titles")] = False,
    long: Annotated[bool, typer.Option("--long", "-l", help="With states in full and time limits")] = False,
    array: Annotated[bool, typer.Option("--array", "-r", help="A task a line, those to come, too")] = False,
    start: Annotated[bool, typer.Option("--start", help="Waiting jobs with their expected starts")] = False,
    clusters: Clusters = None,
    order: Annotated[str | None, typer.Option("--sort", "-S", help="In this order of letters, as -p,i")] = None,
    fields_: Annotated[
        str | None, typer.Option("--Format", "-O", help="Fields of fixed widths, as JobID,State:12")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As -o json")] = False,
    output: Annotated[
        str, typer.Option("--format", "--output", "-o", help="A pattern such as '%i %j %T', or table, json, yaml")
    ] = "table",
) -> Exit | None:
    """List jobs that wait or run, with Slurm's columns."""
    output = "json" if as_json else output
    if start and (fields_ is not None or output != "table"):
        way_out = "programs read `expected_start` and `quote` of GET /v1/line"
        raise Failure(Exit.USAGE, f"squeue --start: a table with columns of its own; {way_out}")
    check_clusters(at, clusters)
    (whose, owner), named = await _who_is_here(at) if me else (user, None), list_of(jobs)
    states = "PD" if start and states is None else states
    views = at.views()
    ended_too = everything or states is not None or named  # a name of a job that has ended is none that is unknown
    known, as_of = await views.jobs(() if ended_too else LIVE), await views.as_of()
    found = [
        job
        for job in fields.select(
            known, user=whose, owner=owner, queue=partition, name=name, named=named, states=states, nodes=nodes
        )
        if (everything or states is not None or job.phase not in ENDED)
        and not (job.array is not None and job.phase not in ENDED and not job.array.left)
    ]
    code = say_unknown(fields.unknown(known, named), named or "")
    if code is not None and not found:
        return code
    now_ms = SystemClock().now_ms()
    if start:
        found = [job for job in found if job.phase == "queued"]
        starts, quotes = await views.expected_starts(), dict[str, StartQuote]()
        with suppress(Failure, Refused, Transient):  # a gateway of before has none, and the list stands without them
            quotes = await views.quotes()
        at_ms = {job_id: quote.by_50_ts for job_id, quote in quotes.items()}
        at_ms |= {job_id: start.at_ts for job_id, start in starts.items()}
        found.sort(key=lambda job: (at_ms.get(job.job_id, INT_MAX), job.submitted_ts))
        show(Output.TABLE, start_columns(starts, quotes, now_ms), found, None, gap=1, titles=not noheader)
        return code
    found = found if order is None else in_order(found, order, now_ms)
    found = [task for job in found for task in tasks_to_come(job)] if array else found
    if fields_ is not None:
        print_lines(long_lines(fields_, found, now_ms, titles=not noheader))
        return code
    if "%" not in output:
        form = _output_of(output)
        if long and not noheader and not form.for_programs:
            print(f"{local_time(now_ms):%a %b %d %H:%M:%S %Y}")
        show(form, queue_columns(now_ms, long), found, as_of if form.for_programs else None, gap=1, titles=not noheader)
        return code
    line = rows_as(output, now_ms)
    print_lines(([] if noheader else [heading(output)]) + [line(job) for job in found])
    return code


def print_lines(lines: Sequence[str]) -> None:
    """Print lines; of none nothing is printed."""
    for line in lines:
        print(line)


def tasks_to_come(job: JobView) -> list[JobView]:
    """An array's tasks that are not queued yet, each as a job; any other job itself."""
    if job.array is None or not job.array.left or job.phase in ENDED:
        return [job]
    indexes = [index for part in task_ranges(job.array.left) for index in range(part.first, part.last + 1, part.step)]
    why = PublicReason(code="JobArrayTaskLimit") if job.array.limit else None
    own = {"array": None, "task_of": job.job_id, "array_number": job.number, "number": 0, "reason": why}
    return [job.as_task.model_copy(update={**own, "task": index}) for index in indexes]


def say_unknown(missing: Sequence[str], named: str) -> Exit | None:
    """
    Say which of the names in a list no job has, in Slurm's words.

    The code is a failure where nothing else is asked for, or where one is no number: as with Slurm, who polls several
    jobs is told of those that are left.
    """
    for name in missing:
        notify(f"slurm_load_jobs error: Invalid job id specified: {name}: no job has this id or name")
    numbers = all(re.fullmatch(r"[0-9]+(_[0-9]+)?", name) for name in missing)
    return Exit.FAILED if missing and ("," not in named.strip(",") or not numbers) else None


def check_clusters(at: AccessOptions, clusters: str | None) -> None:
    """Raises Failure where `--clusters` names another cluster than the shard that is asked."""
    if clusters not in (None, "all") and clusters != at.find().shard:
        raise Failure(Exit.USAGE, f"--clusters={clusters}: this is shard {at.find().shard}; another one is --shard")


async def _who_is_here(at: AccessOptions) -> tuple[str | None, str | None]:
    """
    The tenant as whom one is here, or the user where one may be several tenants; None where a token shows that
    tenant's jobs alone. Beside it the user to whom the token is bound. Raises Failure.
    """
    where = at.find()
    if where.login is not None and at.identity is None:
        return None, await bound_user(where) or None
    tenants = await accounts_of(where, at.identity)
    return tenants[0] if len(tenants) == 1 else submitter(), None


def _output_of(text: str) -> Output:
    try:
        return Output.parse(text)
    except typer.BadParameter as error:
        raise Failure(Exit.USAGE, f"--format: write a pattern such as '%i %j %T'; {error}") from error


@command
async def scancel(
    at: AccessOptions,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(help="Ids, ARRAY_7, ARRAY_[1,3-4], beginnings of ids, or names", autocompletion=complete_jobs),
    ] = None,
    me: Annotated[
        bool,
        typer.Option("--me", help="Every job of the tenant that you are, else your own"),
    ] = False,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Every job of this tenant")] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Every job of this queue")] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Every job of this name")] = None,
    state: Annotated[str | None, typer.Option("--state", "-t", help="Every job in this state, such as PD")] = None,
    signal: Annotated[str | None, typer.Option("--signal", "-s", help="KILL and TERM end it; no other")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what is cancelled")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-Q", help="Say nothing of what cannot be cancelled")] = False,
) -> Exit | None:
    """Cancel jobs, those named or all for which the options hold; says nothing when all is well."""
    if (signal or "KILL").upper().removeprefix("SIG") not in ("KILL", "TERM", "9", "15"):
        raise Failure(Exit.USAGE, f"scancel --signal={signal}: none but KILL and TERM reaches a job's pods from here")
    chosen = words.each_named(jobs or ())
    if me or any(each is not None for each in (user, partition, name, state)):
        whose, owner = await _who_is_here(at) if me else (user, None)
        views = at.views()
        live = await views.jobs(LIVE)
        found = fields.select(
            live, user=whose, owner=owner, queue=partition, name=name, named=",".join(chosen) or None, states=state
        )
        whole = {job.job_id for job in found}
        # An array takes its tasks with it.
        chosen = [job.job_id for job in found if job.task_of not in whole]
        return await _cancel_ids(at, chosen, verbose)
    if not chosen:
        raise Failure(Exit.USAGE, "scancel: name jobs, or say which: --me, --user, --partition, --name, --state")
    return await _cancel(at, chosen, verbose, quiet)


def list_of(names: list[str] | None) -> str | None:
    """Words of a repeated option, or arguments, as one list with commas; None for none."""
    return ",".join(names) if names else None


async def _cancel_ids(at: AccessOptions, jobs: Sequence[str], verbose: bool) -> Exit | None:
    for job in jobs if verbose else ():
        notify(f"scancel: Terminating job {job}")
    return await ordering.cancel_many(at.find(), at.identity, jobs, _why()) if jobs else None


async def _cancel(at: AccessOptions, jobs: Sequence[str], verbose: bool, quiet: bool) -> Exit | None:
    where, found = at.find(), list[str]()

    async def find(named: str) -> None:
        try:
            found.append(await ordering.find_job_id(where, named, "cancel"))
        except Failure as failure:
            if failure.code is not Exit.CONFLICT:
                raise
            if not quiet:  # no failure, as with Slurm: who cancels what ends meanwhile has what is wanted
                notify(f"scancel: {failure}")

    failed = await ordering.each(jobs, find, quiet)
    return await _cancel_ids(at, found, verbose) or (None if quiet else failed)


def _why() -> str:
    return f"scancel by {getpass.getuser()}"[:200]


@command
async def sinfo(
    at: AccessOptions,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Only these queues")] = None,
    noheader: Annotated[bool, typer.Option("--noheader", "-h", help="Without the line of titles")] = False,
    by_node: Annotated[bool, typer.Option("--Node", "-N", help="A node a line")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As -o json")] = False,
    output: Annotated[
        str, typer.Option("--format", "--output", "-o", help="A pattern such as '%P %t %N', or table, json, yaml")
    ] = "table",
) -> None:
    """List the nodes of each queue by state, with Slurm's columns."""
    views = at.views()
    by_gres = re.search(r"%\.?[0-9]*G", output) is not None
    rows, as_of = partitions(await views.queues(), await views.nodes(), by_gres), await views.as_of()
    wanted = None if partition is None else set(partition.split(","))
    rows = [row for row in rows if wanted is None or row.queue in wanted]
    if by_node:
        rows = [replace(row, nodes=(node,)) for row in rows for node in row.nodes]
        rows.sort(key=lambda row: (row.nodes, row.queue))
    if "%" in output:
        line = line_of(output, {letter: value for letter, (_, value) in NODE_LETTERS.items()})
        titles = titles_over(output, {letter: title for letter, (title, _) in NODE_LETTERS.items()})
        print_lines([*([] if noheader else [titles]), *map(line, rows)])
        return
    form = Output.JSON if as_json else _output_of(output)
    show(form, BY_NODE if by_node else PARTITIONS, rows, as_of if form.for_programs else None, titles=not noheader)


@dataclass(frozen=True, slots=True)
class Partition:
    """The nodes of a queue that are in one state."""

    queue: str
    up: bool
    state: str
    nodes: tuple[str, ...]
    time_limit: str = "infinite"
    gres: str = "(null)"

    @property
    def marked(self) -> str:
        """The queue's name, with a star behind the one that takes jobs which name none."""
        return f"{self.queue}*" if self.queue == DEFAULT_QUEUE else self.queue


def partitions(queues: Sequence[QueueView], nodes: Sequence[NodeView], by_gres: bool = False) -> list[Partition]:
    """One row for each leaf queue and state of its pool's nodes, with `by_gres` for each of their sets of devices."""
    rows = []
    for queue in sorted(queues, key=lambda queue: queue.name):
        if queue.inner or queue.removed:
            continue
        by_state: dict[tuple[str, str], list[str]] = {}
        for node in nodes:
            if node.pool == queue.pool and not node.gone:
                by_state.setdefault((node_state(node), gres_of_node(node) if by_gres else ""), []).append(node.name)
        up, longest = queue.stop_policy == "none", queue.time_limit_max_seconds
        limit = words.elapsed(longest * 1000) if longest else "infinite"
        there = sorted(by_state.items()) or [(("n/a", "(null)"), [])]
        rows += [Partition(queue.name, up, state, tuple(names), limit, gres) for (state, gres), names in there]
    return rows


def gres_of_node(node: NodeView, used: bool = False) -> str:
    """GPUs and further devices of a node as Slurm writes generic resources, all of them or those in use."""
    gpus = (node.gpus - sum(node.gpu_free) / 1000) if used else node.gpus
    kind = ":".join(filter(None, ("gpu", node.gpu_model)))
    devices = {name: taken if used else count for name, count, taken, _ in node.device_classes}
    said = [f"{kind}:{gpus:g}"] if node.gpus else []
    said += [f"{name}:{count}" for name, count in words.gres_of(devices, node.gres).items()]
    return ",".join(said) or "(null)"


def node_state(node: NodeView) -> str:
    """idle, mix or alloc by its GPUs, or by its CPUs without any; drain if drained or cordoned, down if not ready."""
    if not node.ready and not node.cordoned:
        return "down"
    free = [left for left in node.gpu_free if left > 0]
    busy = sum(free) < node.gpus * 1000 if node.gpus else node.cpu_free_milli < node.cpu_milli
    if node.drained or node.cordoned:
        return "drng" if busy else "drain"
    if not busy:
        return "idle"
    full = not free if node.gpus else node.cpu_free_milli <= 0
    return "alloc" if full else "mix"


def queue_columns(now_ms: int, long: bool = False) -> list[Column[JobView]]:
    state = "State" if long else "StateCompact"
    limit = ("Timelimit",) if long else ()
    names = ("JobID", "Partition", "JobName", "User", state, "Elapsed", *limit, "NNodes", "NodeListReason")
    return [fields.column(name, now_ms, fields.TITLES.get(name, name.upper())) for name in names]


def start_columns(
    starts: Mapping[str, LineStart], quotes: Mapping[str, StartQuote], now_ms: int
) -> list[Column[JobView]]:
    """Columns of `squeue --start`; N/A for a job whose start is not known, or that has no quote."""

    def bound(chance: int) -> Column[JobView]:
        def time_by(job: JobView) -> str:
            quote = quotes.get(job.job_id)
            return "N/A" if quote is None else fields.time_of(getattr(quote, f"by_{chance}_ts"))

        return Column(f"BY_{chance}%", time_by, right=True)

    def time_of(job: JobView) -> str:
        return fields.time_of(starts[job.job_id].at_ts) if job.job_id in starts else "N/A"

    def nodes_of(job: JobView) -> str:
        return words.node_list(starts[job.job_id].nodes) if job.job_id in starts else "(null)"

    *first, _, nodes, reason = queue_columns(now_ms)
    bounds = (bound(chance) for chance in (50, 80, 95)) if quotes else ()
    told = [Column("START_TIME", time_of, right=True), *bounds, nodes, Column("SCHEDNODES", nodes_of, shrinks=True)]
    return [*first, *told, reason]


PARTITIONS: list[Column[Partition]] = [
    Column("PARTITION", lambda row: row.marked, shrinks=True),
    Column("AVAIL", lambda row: "up" if row.up else "down"),
    Column("TIMELIMIT", lambda row: row.time_limit),
    Column("NODES", lambda row: str(len(row.nodes)), right=True),
    Column("STATE", lambda row: row.state),
    Column("NODELIST", lambda row: words.node_list(row.nodes), shrinks=True),
]

BY_NODE: list[Column[Partition]] = [
    Column("NODELIST", lambda row: words.node_list(row.nodes), shrinks=True),
    Column("NODES", lambda row: str(len(row.nodes)), right=True),
    Column("PARTITION", lambda row: row.marked, shrinks=True),
    Column("STATE", lambda row: row.state),
]
"""Columns of `sinfo -N`."""

DEFAULT_QUEUE = "default"
"""The queue of jobs by `sbatch` that name no partition."""
LONG_STATES = {"mix": "mixed", "alloc": "allocated", "drng": "draining", "drain": "drained"}
"""Slurm's long words for states of nodes, where they differ from the short ones."""
NODE_LETTERS: dict[str, tuple[str, Callable[[Partition], str]]] = {
    "P": ("PARTITION", lambda row: row.marked),
    "R": ("PARTITION", lambda row: row.queue),
    "a": ("AVAIL", lambda row: "up" if row.up else "down"),
    "l": ("TIMELIMIT", lambda row: row.time_limit),
    "D": ("NODES", lambda row: str(len(row.nodes))),
    "t": ("STATE", lambda row: row.state),
    "T": ("STATE", lambda row: LONG_STATES.get(row.state, row.state)),
    "N": ("NODELIST", lambda row: words.node_list(row.nodes)),
    "G": ("GRES", lambda row: row.gres),
    "n": ("HOSTNAMES", lambda row: ",".join(row.nodes)),
}
"""The letters of `sinfo -o`: title and value."""
