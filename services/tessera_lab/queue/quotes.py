"""The `quotes` command: quotes of the starts of a trace's jobs, how often they held, and beside them naive ones."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tessera.engine.quoting import LEVELS
from tessera.kernel.errors import StartupError
from tessera_lab.queue.configured import THROUGH
from tessera_lab.queue.quoted import QuotedJob, QuoteScore, QuotingEngine, scores
from tessera_lab.queue.replay import replay
from tessera_lab.queue.report import progress_bars
from tessera_lab.queue.run import ReplayRequest, jobs_of, node_sizes, refuse_what_cannot_start, split
from tessera_lab.traces.philly import TraceJob


@dataclass(frozen=True, slots=True)
class QuotesRequest:
    """A replay under one policy; one in `every` of the jobs that wait is quoted, by futures of the `seed`."""

    replay: ReplayRequest
    every: int = 1
    seed: int = 1


@dataclass(frozen=True, slots=True)
class QuotesFound:
    """Quotes of a replay: `jobs` came, of which so many `waited`; their scores, of those that were quoted."""

    jobs: int
    waited: int
    quoted: tuple[QuotedJob, ...]
    scores: tuple[QuoteScore, ...]


def quote_trace(trace: str, wanted: QuotesRequest, environment: Mapping[str, str], directory: Path) -> None:
    """The whole command: progress on stderr where somebody watches, the result on stdout."""
    jobs = jobs_of(trace, wanted.replay, environment, directory)
    picture = wanted.replay.plot
    if picture is not None and (picture.suffix != ".png" or not picture.parent.is_dir()):
        raise StartupError(f"--plot: {picture} is no name for a PNG file in a directory that is there")
    with progress_bars(Console(stderr=True)) as shown:
        task = shown.add_task("quotes", total=len(jobs))
        found = quotes_of(jobs, wanted, lambda done: shown.update(task, completed=done))
    if wanted.replay.output == "json":
        print(json.dumps(asdict(found) | {"levels": LEVELS}))
    else:
        out = Console() if sys.stdout.isatty() else Console(width=140)
        out.print(table(found.scores))
        known = sum(one.wait_ms is not None for one in found.quoted)
        out.print(f"{found.jobs:,} jobs, of which {found.waited:,} waited; {known:,} of these were quoted and scored")
    if picture is not None:
        plot(picture, found.quoted)


def quotes_of(
    jobs: Sequence[TraceJob], wanted: QuotesRequest, progress: Callable[[int], None] = lambda done: None
) -> QuotesFound:
    """Replays the jobs and quotes a share of those that wait. Raises StartupError for what cannot be."""
    policy = wanted.replay.policies[0]
    if len(wanted.replay.policies) > 1 or policy not in THROUGH or policy.startswith(("fifo", "skip")):
        quoted = ", ".join(name for name in THROUGH if not name.startswith(("fifo", "skip")))
        raise StartupError(f"--policy: quotes are given under one of {quoted}, not under {policy}")
    if wanted.every < 1:
        raise StartupError("--every: at least 1, by which all jobs that wait are quoted")
    sizes = node_sizes(wanted.replay)
    chosen, history = split(jobs, wanted.replay)
    refuse_what_cannot_start(chosen, wanted.replay)
    history = history if wanted.replay.history else []
    engine = QuotingEngine(policy, sizes, history, wanted.every, wanted.seed)
    replay(chosen, engine, progress)
    found = tuple(engine.quoted.values())
    return QuotesFound(len(chosen), engine.waited, found, tuple(scores(found)))


def table(found: Sequence[QuoteScore]) -> Table:
    """One line for each predictor; naive ones tell no intervals."""
    made = Table(title="how often quotes of the start held, and by how much they were off")
    shares = list(found[0].held)
    for heading in ("predictor", *shares, "median error s"):
        made.add_column(heading, justify="left" if heading == "predictor" else "right", no_wrap=True)
    for line in found:
        told = [f"{line.held[name]:.1%}" if name in line.held else "" for name in shares]
        made.add_row(line.predictor, *told, f"{line.median_error_s:,.0f}")
    return made


def plot(path: Path, quoted: Sequence[QuotedJob]) -> None:
    """
    As PNG: which part of the quotes held for each chance that was told; and what part of the medians was off by at most
    so much, beside the naive predictors.
    """
    from matplotlib.figure import Figure

    known = [(one, one.wait_ms) for one in quoted if one.wait_ms is not None]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    held, errors = figure.subplots(1, 2)
    chances = [level / 10 for level in LEVELS]
    held.plot([0, 100], [0, 100], color="grey", linewidth=0.8)
    for name in ("told", "drawn"):
        shares = [
            100 * sum(wait <= getattr(one, name)[at] for one, wait in known) / max(1, len(known))
            for at in range(len(LEVELS))
        ]
        held.plot(chances, shares, marker="o", label=name)
    held.set(title=f"{len(known):,} quotes", xlabel="chance told, %", ylabel="started by then, %")
    middle = LEVELS.index(500)
    lines = {"quotes": [one.told[middle] for one, _ in known]}
    lines |= {"work ahead": [one.naive[0] for one, _ in known], "and running": [one.naive[1] for one, _ in known]}
    lines |= {"last jobs of the class": [one.naive[2] for one, _ in known]}
    for name, told in lines.items():
        off = sorted(max(1000, abs(each - wait)) / 1000 for each, (_, wait) in zip(told, known, strict=True))
        errors.step(off, [(at + 1) / len(off) for at in range(len(off))], label=name)
    errors.set(
        title="medians", xscale="log", xlabel="off by at most, seconds", ylabel="part of the quotes", ylim=(0, 1)
    )
    for axes in (held, errors):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
