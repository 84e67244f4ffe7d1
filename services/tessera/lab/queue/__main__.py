"""`python -m tessera.lab.queue`: the queueing replay as a program of its own."""

import argparse
import os
import sys
from pathlib import Path

from tessera.kernel.errors import StartupError
from tessera.lab.queue.policies import POLICIES
from tessera.lab.queue.run import asked, replay_trace


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
    try:
        wanted = asked(
            got.trace,
            got.gpus,
            got.node_gpus,
            got.policy,
            got.first_day,
            got.last_day,
            not got.no_history,
            got.plot,
            got.output,
        )
        replay_trace(got.trace, wanted, os.environ, Path.cwd())
    except StartupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
