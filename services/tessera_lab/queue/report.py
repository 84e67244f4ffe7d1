"""Bars while a replay runs, a table for the terminal, and the plot of who waits how long."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tessera_lab.queue.measures import Measured
from tessera_lab.traces.philly import TraceJob

KNOWN_OCTOBER = {"fifo": 44_998, "skip": 6_331, "sjf-oracle": 3_184}
"""Mean wait in seconds known of October on 576 GPUs; the replay reproduces them to the second."""


def progress_bars(console: Console) -> Progress:
    """Bars of replays, one below the other; shown only where somebody watches."""
    columns = TextColumn("{task.description:>12}"), BarColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def table(results: Mapping[str, Sequence[Measured]], known: Mapping[str, int]) -> Table:
    """One block per policy, one line per size; `known` are mean waits to compare with."""
    made = Table(title="seconds waited and to completion")
    for heading in ("policy", "GPUs", "jobs", "wait mean", "known", "wait p99", "wait max", "completion mean", "p99"):
        made.add_column(heading, justify="left" if heading in ("policy", "GPUs") else "right", no_wrap=True)
    for policy, lines in results.items():
        for line in lines:
            first = line.size == "all"
            numbers = (line.wait_mean, line.wait_p99, line.wait_max, line.completion_mean, line.completion_p99)
            mean, *rest = (f"{number:,.0f}" for number in numbers)
            compare = f"{known[policy]:,}" if first and policy in known else ""
            made.add_row(policy if first else "", line.size, f"{line.jobs:,}", mean, compare, *rest)
        made.add_section()
    return made


def plot(path: Path, jobs: Sequence[TraceJob], waits: Mapping[str, Sequence[int]]) -> None:
    """Two curves per policy, as PNG: which part of the jobs waits at most how long, for all and for 8 GPUs or more."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, title, least in zip(figure.subplots(1, 2), ("all jobs", "8 GPUs or more"), (1, 8), strict=True):
        for policy, waited in waits.items():
            chosen = sorted(wait for job, wait in zip(jobs, waited, strict=True) if job.gpus >= least)
            axes.step(
                [max(1, wait) for wait in chosen], [(i + 1) / len(chosen) for i in range(len(chosen))], label=policy
            )
        axes.set(title=title, xscale="log", xlabel="waited at most, seconds", ylabel="part of the jobs", ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
