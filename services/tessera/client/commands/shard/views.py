"""`ls`, `get` and `nodes`: what the shared views hold."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Annotated, Any

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.connect.connecting import views_of
from tessera.client.connect.shard_views import ENDED, ShardViews
from tessera.client.connect.where import Where
from tessera.client.outcomes import EXPECTED, Exit, Failure, Refused
from tessera.client.views.arrays import count_tasks, failed_lines, failed_tasks, phase_now
from tessera.client.views.completing import JobReference
from tessera.client.views.explain import wrapped
from tessera.client.views.live import watch
from tessera.client.views.rendering import Column, Output, notify, plain, show, show_value, table
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.text.units import format_age, format_memory, format_milli
from tessera_schemas.views import ArrayView, JobView, LineStart, NodeView, OthersView

Starts = Mapping[str, LineStart]
LIMIT = 200
PODS_SHOWN = 16
"""Pods of a job of which `get` shows the devices."""


@command
async def ls(
    at: AccessOptions,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Only this tenant")] = None,
    phase: Annotated[str | None, typer.Option("--phase", "-p", help="Only these phases, separated by commas")] = None,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="Each task of an array, too; a table shows the array alone")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", help="Rows of a table at most", min=1)] = LIMIT,
    watching: Annotated[bool, typer.Option("--watch", "-w", help="Show it again as it changes, until Ctrl-C")] = False,
    output: Format = Output.TABLE,
) -> None:
    """List jobs: live ones, oldest first, work in Kubernetes that is refused, then ended ones; an array is one row."""
    if watching and output.for_programs:
        raise Failure(Exit.USAGE, "ls: --watch shows tables; programs follow `tessera events --follow -o json`")
    phases = phase.lower().split(",") if phase else ()
    wanted: dict[str, Any] = {"tenant": tenant, "queue": queue}
    wanted |= {} if tasks or output.for_programs else {"tasks": "false"}

    where = at.find()
    views = views_of(where, at.identity)

    async def read() -> tuple[int, list[JobView], Starts, str]:
        if output.for_programs:
            found, hidden = await views.all_work(phases, **wanted), 0
        else:
            found, count = await views.list_work(limit, phases, **wanted)
            hidden = max(0, count - len(found))
        note = f"{len(found) + hidden} jobs" + (f", {hidden} not shown (--limit)" if hidden else "")
        waits = any(job.phase == "queued" and job.array is None for job in found)
        starts = await _starts_in(views) if waits else None
        return await views.as_of(), found, starts or {}, note

    async def lines() -> list[str]:
        _, found, starts, note = await read()
        columns = job_columns(SystemClock().now_ms(), starts)
        return [*table(columns, found, wide=output is Output.WIDE), note]

    if watching:
        await watch(lines)
        return
    as_of, found, starts, note = await read()
    if output.for_programs:
        show_value(output, {"items": [_with_start(job, starts) for job in found]}, as_of)
    else:
        show(output, job_columns(SystemClock().now_ms(), starts), found, as_of, note)


async def _starts_in(views: ShardViews) -> Starts | None:
    """Expected starts of jobs that wait; None where the gateway does not tell them, without which a list stands."""
    with suppress(Failure, Refused, Transient):
        return await views.expected_starts()
    return None


def _with_start(job: JobView, starts: Starts) -> dict[str, Any]:
    """The job as data, with its expected start where that is known."""
    start = starts.get(job.job_id)
    return {**plain(job), **({} if start is None else {"expected_start": plain(start)})}


@command
async def get(at: AccessOptions, job: JobReference, output: Format = Output.TABLE) -> None:
    """Show one job, by its id, the beginning of one, or its name."""
    where = at.find()
    views = views_of(where, at.identity)
    found, as_of = await views.work(job), await views.as_of()
    failed = await failed_tasks(views, found)
    if output.for_programs:
        spec = {} if output.kind == "name" else {"spec": await _spec_of(where, at.identity, found)}
        tasks = {} if found.array is None else {"failed_tasks": plain(failed)}
        show_value(output, plain(found) | {"ran_on": found.nodes} | tasks | spec, as_of)
        return
    more = [("starts", await _start_of(views, found)), ("quote", await _quote_of(views, found))]
    more.append(("ran on", ", ".join(found.nodes)))
    if found.currency and found.restarts:
        more.append(("attempts", costs_of_runs(await _runs_of(where, at.identity, found), SystemClock().now_ms())))
    for name, value in [*job_facts(found, SystemClock().now_ms()), *((name, value) for name, value in more if value)]:
        print(f"{name:<10} {value}")
    for line in failed_lines(found, failed):
        print("\n".join(wrapped(line)))
    print(f"as of {as_of}")


async def _spec_of(where: Where, identity: str | None, job: JobView) -> dict[str, Any] | None:
    """The spec as it is now; None, with the reason on stderr, where it cannot be read."""
    from tessera.client.sending.rerunning import read_current_spec

    try:
        return await read_current_spec(where, identity, job)
    except EXPECTED as error:
        notify(f"note: no spec: {error}")
    return None


async def _runs_of(where: Where, identity: str | None, job: JobView) -> list[JobView]:
    """A row for each run of the job; none, with the reason on stderr, where its events cannot be read."""
    from tessera.client.commands.jobs.events import events_of_jobs
    from tessera.client.slurm.listing.attempts import runs_of

    try:
        return runs_of(job, (await events_of_jobs(where, identity, [job.job_id]))[job.job_id])
    except EXPECTED as error:
        notify(f"note: no cost of each attempt: {error}")
    return []


def costs_of_runs(runs: Sequence[JobView], now_ms: int) -> str:
    """Costs of each attempt, in words."""
    begun = (run for run in runs if run.phase != "queued")
    return ", ".join(f"{run.attempt}: {run.cost_at(now_ms) or 'not known'}" for run in begun)


async def _start_of(views: ShardViews, job: JobView) -> str:
    """Words for the expected start of a waiting job, as the gateway says; "" where there is none, and for an array."""
    if job.phase != "queued" or job.array is not None:
        return ""
    starts = await _starts_in(views)
    if starts is None:
        return ""
    return starts[job.job_id].words if job.job_id in starts else "not known"


async def _quote_of(views: ShardViews, job: JobView) -> str:
    """Quote of a waiting job in words; "" where there is none."""
    with suppress(Failure, Refused, Transient):
        return await views.quote_words(job.job_id) if job.phase == "queued" else ""
    return ""


@command
async def nodes(at: AccessOptions, output: Format = Output.TABLE) -> None:
    """List nodes with what is free on them, and below what waits for an operator's word."""
    from tessera.client.cluster.findings import awaited

    views = at.views()
    found, as_of = await views.nodes(), await views.as_of()
    total = sum(node.gpus for node in found)
    whole = sum(node.gpu_free.count(1000) for node in found)
    show(output, NODES, found, as_of, f"{whole} of {total} GPUs wholly free on {len(found)} nodes")
    if not output.for_programs:
        now_ms = SystemClock().now_ms()
        for line in (line for node in found for about in awaited(node, now_ms) for line in wrapped(about.line())):
            print(line)


def job_columns(now_ms: int, starts: Starts = MappingProxyType({})) -> list[Column[JobView]]:
    """Columns of `ls`; that of expected starts only where one is known."""

    def start_of(job: JobView) -> str:
        return starts[job.job_id].words.partition(",")[0] if job.job_id in starts else "-"

    return [
        Column("JOB", lambda job: f"{job.task_of}_{job.task}" if job.task_of else job.job_id),
        Column("NAME", lambda job: job.name, shrinks=True),
        Column("TENANT", lambda job: job.tenant, shrinks=True, wide=True),
        Column("QUEUE", lambda job: job.queue, shrinks=True),
        Column("PHASE", phase_now),
        Column("GPUS", lambda job: format_milli(job.gpu_milli_now) if job.array is None else "-", right=True),
        Column("PODS", lambda job: str(job.pods_now) if job.array is None else "-", right=True, wide=True),
        Column("TRY", lambda job: str(job.attempt), right=True, wide=True),
        Column("PRIO", lambda job: str(job.priority), right=True, wide=True),
        Column("AGE", lambda job: format_age(now_ms - job.submitted_ts), right=True),
        *([Column("START", start_of, right=True)] if starts else []),
        Column("WHY", _why_of, shrinks=True),
        Column("NODES", _nodes_of, wide=True),
        Column("OWNER", lambda job: job.owner, shrinks=True, wide=True),
        Column("KEY", lambda job: job.key, wide=True),
    ]


def job_facts(job: JobView, now_ms: int) -> list[tuple[str, str]]:
    """Lines of `get`, as names and values; empty values are left out."""
    ran = (job.ended_ts or now_ms) - job.started_ts if job.started_ts else 0
    use, held = job.gpu_use, job.held_gpu_milli_ms(now_ms)
    facts = [
        ("job", job.job_id),
        ("name", job.name),
        ("tenant", job.tenant),
        ("queue", job.queue),
        ("project", job.project),
        ("session", job.session),
        ("address", job.address),
        ("adopted from", job.owner),
        ("phase", phase_now(job)),
        ("why", job.reason.sentence() if job.reason is not None else ""),
        ("gpus", "" if job.array else _now(format_milli(job.gpu_milli_now), format_milli(job.gpu_milli))),
        ("pods", "" if job.array else _now(str(job.pods_now), str(job.pods))),
        ("devices", ", ".join(f"{count} of {name}" for name, count in job.devices_now.items())),
        *(("", told) for told in drawn_lines(job)),
        ("priority", "" if job.phase in ENDED else str(job.priority)),
        ("attempt", str(job.attempt) if job.attempt else ""),
        ("restarts", _restarts_of(job)),
        ("submitted", f"{format_age(now_ms - job.submitted_ts)} ago"),
        ("waited", _waited_of(job, now_ms)),
        ("running" if not job.ended_ts else "ran", format_age(ran) if job.started_ts else ""),
        ("uses", f"none of its GPUs: warned {format_age(now_ms - job.idle_ts)} ago" if job.idle_ts else ""),
        ("used", "" if use is None else use.text(held)),
        *(("advice", each) for each in (() if use is None else use.advice(held, job.pods))),
        ("tasks", "" if job.array is None else _tasks(job.array)),
        ("task", f"{job.task} of {job.task_of}" if job.task_of else ""),
        ("waits for", ", ".join(each.text() for each in job.after)),
        ("attached to", job.attached_to),
        ("cost", job.cost_at(now_ms)),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("nodes", _nodes_of(job)),
        ("key", job.key),
    ]
    return [(name, value) for name, value in facts if value]


def drawn_lines(job: JobView) -> Iterator[str]:
    """Of each pod the devices that were drawn for it, by class; those that it only looks after (admin) are named so."""
    classes = {tuple(names): name for *names, name in job.claimed}
    places = [place for place in job.placements if place.drawn]
    for place in places[:PODS_SHOWN]:
        found = dict[str, list[str]]()
        for device in place.drawn:
            of = classes.get((place.role, device.claim, device.request), device.request)
            found.setdefault(of, []).append(f"{device.id} (admin)" if device.admin else device.id)
        yield f"pod {place.rank}: " + "; ".join(f"{of}: {', '.join(ids)}" for of, ids in sorted(found.items()))
    if len(places) > PODS_SHOWN:
        yield f"and {len(places) - PODS_SHOWN} more pods: -o json"


def _waited_of(job: JobView, now_ms: int) -> str:
    """All waits of a job together; an array waits for nothing itself."""
    together = ", before all its runs together" if job.attempt > 1 else ""
    return "" if job.array is not None else f"{format_age(job.waited_ms(now_ms))}{together}"


def _restarts_of(job: JobView) -> str:
    """Runs after the first one, and how often it was stopped for others; empty where neither was."""
    if not job.restarts and not job.evictions:
        return ""
    return f"{job.restarts}; stopped for others {job.evictions} time{'' if job.evictions == 1 else 's'}"


def _tasks(array: ArrayView) -> str:
    if array.max_replicas:
        return count_tasks(array)
    return f"{array.tasks} ({array.count} in all, {count_tasks(array)})"


def _now(has: str, gang: str) -> str:
    return has if has == gang else f"{has} now, {gang} of its gang"


def _state_of(node: NodeView) -> str:
    if node.gone:
        return "gone"
    if node.trouble is not None:
        return node.trouble.code
    if node.cordoned:
        return "cordoned"
    return "not ready" if not node.ready else "drained" if node.drained else "spare" if node.spare else "ready"


NODES: list[Column[NodeView]] = [
    Column("NODE", lambda node: node.name, shrinks=True),
    Column("POOL", lambda node: node.pool, shrinks=True),
    Column("STATE", _state_of),
    Column("MODEL", lambda node: node.gpu_model or node.gpu_resource or "-", shrinks=True),
    Column("GPUS FREE", lambda node: f"{format_milli(sum(node.gpu_free))}/{node.gpus}", right=True),
    Column("WHOLE", lambda node: str(node.gpu_free.count(1000)), right=True),
    Column("CPU FREE", lambda node: f"{format_milli(node.cpu_free_milli)}/{format_milli(node.cpu_milli)}", right=True),
    Column(
        "MEMORY FREE",
        lambda node: f"{format_memory(node.memory_free_bytes)}/{format_memory(node.memory_bytes)}",
        right=True,
    ),
    Column("PODS FREE", lambda node: f"{node.pods_free}/{node.pods}", right=True, wide=True),
    Column("OTHERS", lambda node: _others(node.others), wide=True),
    Column("PROFILE", lambda node: node.device_profile, wide=True),
    Column("DEVICES", lambda node: ", ".join(map(_describe_class, node.device_classes)) or "-", wide=True),
    Column("TROUBLE", lambda node: "" if node.trouble is None else node.trouble.detail, wide=True),
    Column("TAINTS", lambda node: ", ".join(f"{k}={v}:{e}" for k, v, e in node.taints), wide=True),
    Column("LABELS", lambda node: ", ".join(f"{k}={v}" for k, v in sorted(node.labels.items())), wide=True),
]


def _describe_class(use: tuple[str, int, int, int]) -> str:
    name, count, taken, tainted = use
    return f"{name}: {count}, {taken} taken" + (f", {tainted} tainted" if tainted else "")


def _others(others: OthersView) -> str:
    """Resources that other schedulers' pods take."""
    if not others.pods:
        return "-"
    parts = [f"{others.pods} pods", f"{format_milli(others.cpu_milli)} CPU", format_memory(others.memory_bytes)]
    return ", ".join([*parts, *([f"{others.gpus} GPUs"] if others.gpus else [])])


def _why_of(job: JobView) -> str:
    """The reason in few words; of an array how far it is, too."""
    why = "" if job.reason is None else job.reason.brief()
    return why if job.array is None else "; ".join(filter(None, [count_tasks(job.array), why]))


def _nodes_of(job: JobView) -> str:
    return ", ".join(sorted({placement.node for placement in job.placements}))
