"""`python -m tessera.testkit.sim`: run many seeds, print what was reached, fail on a violation or a hole."""

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import structlog
from rich.console import Console
from rich.progress import track

from tessera.kernel.process.gc_tuning import collect_rarely
from tessera.testkit.sim.coverage import Coverage
from tessera.testkit.sim.guard import SEED_SECONDS, again
from tessera.testkit.sim.world import SeedOutcome, judge_seed

SHOWN_VIOLATIONS = 10


def main() -> int:
    """Runs the seeds asked for; returns 1 if a seed fails or anything was never reached, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tessera.testkit.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (default 100)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SEED_SECONDS,
        help=f"how long one seed may take on the wall clock (default {SEED_SECONDS:g})",
    )
    asked = parser.parse_args()
    console, total, failed = Console(), Coverage(), 0
    jobs = records = 0
    for outcome in track(
        _outcomes(asked.first, asked.seeds, asked.workers, asked.seconds), "seeds", total=asked.seeds, console=console
    ):
        total.add(outcome.coverage)
        jobs, records = jobs + outcome.jobs, records + outcome.records
        if outcome.violations:
            failed += 1
            console.print(f"[red]seed {outcome.seed} fails[/]; {again(outcome.seed)}")
            for violation in outcome.violations[:SHOWN_VIOLATIONS]:
                console.print(f"  {violation}", markup=False, highlight=False)
    console.print("\n".join(total.lines()), highlight=False)
    holes = total.holes()
    for hole in holes:
        console.print(f"[red]never reached:[/] {hole}", highlight=False)
    console.print(
        f"{asked.seeds:,} seeds, {jobs:,} jobs, {records:,} ledger messages: {failed} failed, {len(holes)} holes"
    )
    return 1 if failed or holes else 0


def _outcomes(first: int, seeds: int, workers: int, seconds: float) -> Iterator[SeedOutcome]:
    judge = partial(judge_seed, seconds=seconds)
    if seeds == 1:
        yield judge(first)
        return
    if workers == 1:
        _run_many()
        yield from map(judge, range(first, first + seeds))
        return
    with ProcessPoolExecutor(workers, initializer=_run_many) as pool:
        yield from pool.map(judge, range(first, first + seeds))


def _run_many() -> None:
    """Logs, which one seed alone shows, and searches for garbage take a seventh of the time of many."""
    collect_rarely()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


if __name__ == "__main__":
    sys.exit(main())
