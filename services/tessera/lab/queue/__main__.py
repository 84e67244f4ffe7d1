"""`python -m tessera.lab.queue`: the queueing replay as a program of its own."""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from tessera.kernel.errors import StartupError
from tessera.lab.queue.policies import POLICIES
from tessera.lab.queue.run import Asked, run
from tessera.lab.traces.philly import OCTOBER_S, read_jobs


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tessera.lab.queue", description=__doc__)
    parser.add_argument("trace", nargs="?", default="philly", help="philly, or a CSV file with its columns")
    parser.add_argument("--gpus", type=int, default=576)
    parser.add_argument("--node-gpus", type=int, default=8)
    parser.add_argument("--policy", default=",".join(POLICIES), help=f"of {', '.join(POLICIES)}; comma-separated")
    parser.add_argument("--first-day", type=int, help="the first day to replay (philly: 27, 1 October)")
    parser.add_argument("--last-day", type=int, help="the day before which to stop")
    parser.add_argument("--no-history", action="store_true", help="learn nothing from the days before the first")
    parser.add_argument("--plot", type=Path, help="write the plot to this PNG file")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    got = parser.parse_args(argv)
    own = None if got.trace == "philly" else Path(got.trace)
    first = got.first_day if got.first_day is not None else (0 if own else OCTOBER_S // 86_400)
    policies = tuple(name.strip() for name in got.policy.split(","))
    asked = Asked(got.gpus, got.node_gpus, policies, first, got.last_day, not got.no_history, got.plot, got.output)
    try:
        run(read_jobs(os.environ, Path.cwd(), own), asked, Console(stderr=True), Console())
    except StartupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
