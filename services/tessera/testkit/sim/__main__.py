"""`python -m tessera.testkit.sim`: run many seeds, print what was reached, fail on a violation or a hole."""

import argparse
import logging
import os
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice, takewhile

import structlog
from rich.console import Console
from rich.progress import track

from tessera.kernel.clock import SystemClock
from tessera.kernel.process.limits import collect_rarely
from tessera.testkit.sim.coverage import SIMULATED, Hundreds
from tessera.testkit.sim.guard import SEED_SECONDS, again
from tessera.testkit.sim.services import service
from tessera.testkit.sim.world import SeedOutcome, judge_seed

SHOWN_VIOLATIONS = 10


def main() -> int:
    """Runs the seeds asked for; returns 1 if a seed fails or anything was never reached, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tessera.testkit.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (default 100)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--minutes", type=float, help="begin no seed after so many; --seeds is then the most")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SEED_SECONDS,
        help=f"how long one seed may take of a processor (default {SEED_SECONDS:g})",
    )
    asked = parser.parse_args()
    first = asked.first
    until = None if asked.minutes is None else SystemClock().monotonic() + asked.minutes * 60
    console, hundreds, failed = Console(), Hundreds(first), list[SeedOutcome]()
    jobs = records = 0
    outcomes = _outcomes(range(first, first + asked.seeds), asked.workers, asked.seconds, until)
    for outcome in track(outcomes, "seeds", total=asked.seeds, console=console):
        hundreds.add(outcome.coverage)
        jobs, records = jobs + outcome.jobs, records + outcome.records
        if outcome.violations:
            failed.append(outcome)
            _report(console, outcome)
    console.print("\n".join(hundreds.lines()), highlight=False)
    holes = hundreds.holes()
    for hole in holes:
        console.print(f"[red]never reached:[/] {hole}", highlight=False)
    console.print(
        f"{hundreds.seeds:,} seeds from {first}, {jobs:,} jobs, {records:,} ledger messages: {len(failed)} failed, "
        f"{len(holes)} holes"
    )
    for outcome in failed:  # once more, since who reads the log of a machine sees its end
        _report(console, outcome)
    by_chance = asked.minutes is not None  # which seeds, and how many: what they miss is told and no fault of the code
    return 1 if failed or (holes and not by_chance) else 0


def _report(console: Console, outcome: SeedOutcome) -> None:
    console.print(f"[red]seed {outcome.seed} fails[/]; {again(outcome.seed)}")
    for violation in outcome.violations[:SHOWN_VIOLATIONS]:
        console.print(f"  {violation}", markup=False, highlight=False)


def _outcomes(seeds: range, workers: int, seconds: float, until: float | None) -> Iterator[SeedOutcome]:
    judge = partial(judge_seed, seconds=seconds)
    if len(seeds) == 1:
        yield judge(seeds[0])
        return
    clock = SystemClock()
    in_time = takewhile(lambda _: until is None or clock.monotonic() < until, seeds)
    if workers == 1:
        _run_many()
        yield from map(judge, in_time)
        return
    with ProcessPoolExecutor(workers, initializer=_run_many) as pool:
        begun = deque(pool.submit(judge, seed) for seed in islice(in_time, 2 * workers))
        while begun:
            yield begun.popleft().result()
            begun.extend(pool.submit(judge, seed) for seed in islice(in_time, 1))


def _run_many() -> None:
    """Logs, which one seed alone shows, and searches for garbage take a seventh of the time of many."""
    for name in SIMULATED:  # what is loaded by now is not searched after each seed
        service(name, {})
    collect_rarely()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


if __name__ == "__main__":
    sys.exit(main())
