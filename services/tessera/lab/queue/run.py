"""The `queue` command: which jobs, on how many GPUs, under which policies; table, JSON and plot."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tessera.kernel.errors import StartupError
from tessera.lab.queue.measures import Measured, as_json, measure, offered_load
from tessera.lab.queue.policies import POLICIES
from tessera.lab.queue.replay import replay
from tessera.lab.queue.report import KNOWN_OCTOBER, plot, table
from tessera.lab.traces.philly import OCTOBER_S, TraceJob

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Asked:
    """`first_day` and `last_day` count from the trace's second 0; what ended before the first is history to learn."""

    gpus: int = 576
    node_gpus: int = 8
    policies: tuple[str, ...] = tuple(POLICIES)
    first_day: int = OCTOBER_S // DAY_S
    last_day: int | None = None
    history: bool = True
    plot: Path | None = None
    output: str = "table"


def run(jobs: Sequence[TraceJob], asked: Asked, console: Console, out: Console) -> dict[str, list[Measured]]:
    """Replay and say; the progress goes to `console`, the result to `out`. Raises StartupError for what cannot be."""
    sizes = node_sizes(asked)
    chosen, history = split(jobs, asked)
    _refuse_what_cannot_start(chosen, asked)
    waits: dict[str, list[int]] = {}
    with Progress(TextColumn("{task.description:>12}"), BarColumn(), TimeElapsedColumn(), console=console) as shown:
        for policy in asked.policies:
            task = shown.add_task(policy, total=len(chosen))
            queue = POLICIES[policy](sizes, history if asked.history else ())
            waits[policy] = replay(chosen, queue, lambda done, task=task: shown.update(task, completed=done))  # type: ignore[misc]
    results = {policy: measure(chosen, waited) for policy, waited in waits.items()}
    _say(results, chosen, history, asked, out)
    if asked.plot is not None:
        plot(asked.plot, chosen, waits)
    return results


def node_sizes(asked: Asked) -> list[int]:
    if asked.gpus < 1 or asked.node_gpus < 1 or asked.gpus % asked.node_gpus:
        raise StartupError(f"--gpus: {asked.gpus} GPUs are no whole number of nodes of {asked.node_gpus}")
    unknown = [policy for policy in asked.policies if policy not in POLICIES]
    if unknown:
        raise StartupError(f"--policy: no policy is called {unknown[0]}; there are {', '.join(POLICIES)}")
    return [asked.node_gpus] * (asked.gpus // asked.node_gpus)


def split(jobs: Sequence[TraceJob], asked: Asked) -> tuple[list[TraceJob], list[TraceJob]]:
    """The jobs to replay, and those that had ended when the first day began, which may be learnt from."""
    begin = asked.first_day * DAY_S
    end = 2**62 if asked.last_day is None else asked.last_day * DAY_S
    chosen = [job for job in jobs if begin <= job.submit_s < end]
    if not chosen:
        raise StartupError(f"--first-day: the trace has no job from day {asked.first_day} on")
    return chosen, [job for job in jobs if job.submit_s + job.duration_s < begin]


def _refuse_what_cannot_start(jobs: Sequence[TraceJob], asked: Asked) -> None:
    largest = max(jobs, key=lambda job: job.gpus)
    if largest.gpus > asked.gpus:
        raise StartupError(f"--gpus: the job on line {largest.line} asks for {largest.gpus}, there are {asked.gpus}")


def _say(
    results: dict[str, list[Measured]],
    chosen: Sequence[TraceJob],
    history: Sequence[TraceJob],
    asked: Asked,
    out: Console,
) -> None:
    begin = asked.first_day * DAY_S
    span = (-(-(chosen[-1].submit_s + 1) // DAY_S) if asked.last_day is None else asked.last_day) * DAY_S - begin
    load = offered_load(chosen, asked.gpus, span)
    learnt = len(history) if asked.history else 0
    if asked.output == "json":
        said = {policy: as_json(lines) for policy, lines in results.items()}
        head = {"gpus": asked.gpus, "node_gpus": asked.node_gpus, "jobs": len(chosen), "history_jobs": learnt}
        out.print_json(json.dumps({**head, "offered_load": round(load, 4), "policies": said}))
        return
    october = (asked.gpus, asked.node_gpus, begin, asked.last_day) == (576, 8, OCTOBER_S, None)
    out.print(table(results, KNOWN_OCTOBER if october else {}))
    out.print(f"{len(chosen):,} jobs, offered load {load:.1%}; learnt beforehand from {learnt:,} jobs that had ended")
