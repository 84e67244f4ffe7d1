"""`python -m tests.kubernetes.oracle`: the same generated worlds for kube-scheduler and for Tessera; 1 with a fault."""

import argparse
import logging
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import structlog
from rich.console import Console
from rich.progress import track

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.oracle.comparing import Verdict, compare
from tests.kubernetes.oracle.placing import ROUNDS, Placing
from tests.kubernetes.oracle.worlds import make_world

BATCH = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.oracle", description=__doc__)
    parser.add_argument("--worlds", type=int, default=300)
    parser.add_argument("--first", type=int, default=1, help="seed of the first world")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of kube-scheduler, whose luck with orders differs")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # pools that lack a slice
    console, began, counts, failed = Console(highlight=False), monotonic(), Counter[str](), 0
    waited = decided = 0.0
    with (
        TemporaryDirectory(prefix="tessera-oracle-") as folder,
        ControlPlane(Path(folder), kubelets=False, scheduler=True, silence_seconds=3600, say=console.print) as plane,
    ):
        placing, seeds = Placing(plane), range(asked.first, asked.first + asked.worlds)
        for at in track(seeds[::BATCH], "worlds, ten at a time", console=console):
            worlds, start = [make_world(seed) for seed in seeds if at <= seed < at + BATCH], monotonic()
            played = placing.play(worlds, asked.rounds)
            waited, start = waited + monotonic() - start, monotonic()
            for seed, rounds in played.items():
                verdict = compare(seed, rounds)
                counts += verdict.counts
                failed += bool(verdict.faults)
                _tell(console, verdict)
            decided += monotonic() - start
    for name, count in counts.items():
        console.print(f"{name:30} {count:6}")
    all_of_it = monotonic() - began
    console.print(
        f"{waited:.0f} s on the API server, {decided:.0f} s for Tessera and the judge, {all_of_it:.0f} s in all"
    )
    console.print(f"{failed} worlds with a fault of Tessera")
    return 1 if failed else 0


def _tell(console: Console, verdict: Verdict) -> None:
    for fault in verdict.faults:
        console.print(f"world {verdict.seed}: {fault}", style="red", markup=False)
    if verdict.counts["tessera_below"]:
        console.print(f"world {verdict.seed}: fewer gangs than in any round of kube-scheduler", markup=False)
    for luck in verdict.by_luck:
        console.print(f"world {verdict.seed}, order: {luck}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
