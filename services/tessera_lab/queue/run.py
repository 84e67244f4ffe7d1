"""The `queue` command: which jobs, on how many GPUs, under which policies; table, JSON and plot."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import TaskID

from tessera.kernel.errors import StartupError
from tessera_lab.queue.configured import POLICIES as CONFIGURED
from tessera_lab.queue.configured import SHARED
from tessera_lab.queue.measures import Measured, as_json, jain_by_week, measure, offered_load
from tessera_lab.queue.policies import POLICIES
from tessera_lab.queue.replay import replay
from tessera_lab.queue.report import KNOWN_OCTOBER, plot, progress_bars, table
from tessera_lab.queue.services import QueueThroughServices, refuse, through_services
from tessera_lab.traces.philly import DAY_S, OCTOBER_S, TraceJob, generated_month, read_jobs

GPUS_MAX = 1_000_000
KNOWN_TRACE = "philly"
USUAL = "fifo", "skip", "sjf-oracle", "expected"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """
    `first_day` and `last_day` count from the trace's second 0; what ended before the first is history to learn.

    `most`: the first so many jobs alone. `services`: through all of them, and not the engine alone. `month`: the seed
    of a month that is made from September, in place of the trace's own days.
    """

    gpus: int = 576
    node_gpus: int = 8
    policies: tuple[str, ...] = tuple(POLICIES)
    first_day: int = OCTOBER_S // DAY_S
    last_day: int | None = None
    history: bool = True
    plot: Path | None = None
    output: str = "table"
    services: bool = False
    most: int | None = None
    month: int | None = None


def asked(
    trace: str,
    gpus: int,
    node_gpus: int,
    policy: str | None,
    first_day: int | None,
    last_day: int | None,
    history: bool,
    picture: Path | None,
    output: str,
    services: bool = False,
    most: int | None = None,
    month: int | None = None,
) -> ReplayRequest:
    """Options of the command line; the known trace begins with October, one of one's own with its first day."""
    if output not in ("table", "json"):
        raise StartupError(f"--output: {output} is not offered here, table and json are")
    named = policy or ",".join(CONFIGURED if services else USUAL)
    policies = tuple(dict.fromkeys(name.strip() for name in named.split(",")))
    if month is not None and (trace != KNOWN_TRACE or first_day is not None):
        raise StartupError("--month: a month is made of philly's September, from its first day on")
    usual = OCTOBER_S // DAY_S if trace == KNOWN_TRACE and month is None else 0
    begin = usual if first_day is None else first_day
    return ReplayRequest(
        gpus, node_gpus, policies, begin, last_day, history and not services, picture, output, services, most, month
    )


def replay_trace(trace: str, wanted: ReplayRequest, environment: Mapping[str, str], directory: Path) -> None:
    """The whole command: progress on stderr where somebody watches, the result on stdout."""
    jobs = jobs_of(trace, wanted, environment, directory)
    out = Console() if sys.stdout.isatty() else Console(width=140)
    run(jobs, wanted, Console(stderr=True), out)


def jobs_of(trace: str, wanted: ReplayRequest, environment: Mapping[str, str], directory: Path) -> tuple[TraceJob, ...]:
    """Jobs of the trace, or of the month that is made of it."""
    jobs = read_jobs(environment, directory, None if trace == KNOWN_TRACE else Path(trace))
    return jobs if wanted.month is None else generated_month(jobs, wanted.month)


def run(jobs: Sequence[TraceJob], wanted: ReplayRequest, console: Console, out: Console) -> dict[str, list[Measured]]:
    """Replay and say; the progress goes to `console`, the result to `out`. Raises StartupError for what cannot be."""
    sizes = node_sizes(wanted)
    if wanted.plot is not None and not wanted.plot.parent.is_dir():
        raise StartupError(f"--plot: there is no directory {wanted.plot.parent}")
    if wanted.plot is not None and (wanted.plot.suffix != ".png" or wanted.plot.is_dir()):
        raise StartupError(f"--plot: {wanted.plot} is no name for a PNG file; let it end with .png")
    chosen, history = split(jobs, wanted)
    refuse_what_cannot_start(chosen, wanted)
    waits: dict[str, list[int]] = {}
    through: dict[str, QueueThroughServices] = {}
    with progress_bars(console) as shown:
        for policy in wanted.policies:
            task = shown.add_task(policy, total=len(chosen))

            def report_progress(done: int, task: TaskID = task) -> None:
                shown.update(task, completed=done)

            if wanted.services:
                through[policy] = through_services(chosen, sizes, policy, report_progress)
                waits[policy] = through[policy].waits
            else:
                queue = POLICIES[policy](sizes, history if wanted.history else ())
                waits[policy] = replay(chosen, queue, report_progress)
    results = {policy: measure(chosen, waited) for policy, waited in waits.items()}
    weeks = {policy: jain_by_week(chosen, waited) for policy, waited in waits.items() if policy in SHARED}
    _show_results(results, weeks, chosen, history, wanted, through, out)
    if wanted.plot is not None:
        plot(wanted.plot, chosen, waits)
    return results


def node_sizes(wanted: ReplayRequest) -> list[int]:
    if wanted.gpus < 1 or wanted.node_gpus < 1 or wanted.gpus % wanted.node_gpus:
        raise StartupError(f"--gpus: {wanted.gpus} GPUs are no whole number of nodes of {wanted.node_gpus}")
    if wanted.gpus > GPUS_MAX:
        raise StartupError(f"--gpus: {wanted.gpus} GPUs are more than {GPUS_MAX}, the most of a replay")
    sizes = [wanted.node_gpus] * (wanted.gpus // wanted.node_gpus)
    if wanted.services:
        for policy in wanted.policies:
            refuse(policy, sizes)
        return sizes
    unknown = [policy for policy in wanted.policies if policy not in POLICIES]
    if unknown:
        raise StartupError(f"--policy: no policy is called {unknown[0]}; there are {', '.join(POLICIES)}")
    return sizes


def split(jobs: Sequence[TraceJob], wanted: ReplayRequest) -> tuple[list[TraceJob], list[TraceJob]]:
    """The jobs to replay, and those that had ended when the first day began, which may be learnt from."""
    begin = wanted.first_day * DAY_S
    end = 2**62 if wanted.last_day is None else wanted.last_day * DAY_S
    chosen = [job for job in jobs if begin <= job.submit_s < end]
    if not chosen:
        raise StartupError(f"--first-day: the trace has no job from day {wanted.first_day} on")
    return chosen[: wanted.most], [job for job in jobs if job.submit_s + job.duration_s < begin]


def refuse_what_cannot_start(jobs: Sequence[TraceJob], wanted: ReplayRequest) -> None:
    """Raise StartupError for a job that is larger than the pool."""
    largest = max(jobs, key=lambda job: job.gpus)
    if largest.gpus > wanted.gpus:
        raise StartupError(f"--gpus: the job on line {largest.line} asks for {largest.gpus}, there are {wanted.gpus}")


def _show_results(
    results: dict[str, list[Measured]],
    weeks: Mapping[str, list[float]],
    chosen: Sequence[TraceJob],
    history: Sequence[TraceJob],
    wanted: ReplayRequest,
    through: Mapping[str, QueueThroughServices],
    out: Console,
) -> None:
    begin = wanted.first_day * DAY_S
    last_day = -(-(chosen[-1].submit_s + 1) // DAY_S) if wanted.last_day is None or wanted.most else wanted.last_day
    span = last_day * DAY_S - begin
    load = offered_load(chosen, wanted.gpus, span)
    learnt = len(history) if wanted.history else 0
    if wanted.output == "json":
        said = {policy: as_json(lines) for policy, lines in results.items()}
        head: dict[str, object] = {
            "gpus": wanted.gpus,
            "node_gpus": wanted.node_gpus,
            "jobs": len(chosen),
            "history_jobs": learnt,
        }
        if through:
            head["ledger"] = {
                policy: {"messages": found.messages, "recomputed": found.recomputed}
                for policy, found in through.items()
            }
        if weeks:
            head["jain_by_week"] = weeks
        out.print_json(json.dumps({**head, "offered_load": round(load, 4), "policies": said}))
        return
    october = (wanted.gpus, wanted.node_gpus, begin, wanted.last_day, wanted.most) == (576, 8, OCTOBER_S, None, None)
    out.print(table(results, KNOWN_OCTOBER if october else {}))
    out.print(f"{len(chosen):,} jobs, offered load {load:.1%}; learnt beforehand from {learnt:,} jobs that had ended")
    for policy, indices in weeks.items():
        listed = ", ".join(f"{index:.3f}" for index in indices)
        out.print(f"{policy}: Jain's index of the virtual clusters' GPU time by week: {listed or 'no whole week'}")
    for policy, found in through.items():
        out.print(
            f"{policy}: through all services; {found.recomputed:,} of {found.messages:,} ledger messages decided again"
        )
