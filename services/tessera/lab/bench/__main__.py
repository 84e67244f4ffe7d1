"""`python -m tessera.lab.bench`: all rows, or some."""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable

import uvloop

from tessera.lab.bench.latency import latency
from tessera.lab.bench.report import Row
from tessera.lab.bench.throughput import throughput

Bench = Callable[[argparse.Namespace], Awaitable[list[Row]]]

BENCHES: dict[str, Bench] = {
    "latency": lambda asked: latency(asked.samples, asked.rounds, asked.nodes, False),
    "latency-synced": lambda asked: latency(asked.samples, asked.rounds, asked.nodes, True),
    "throughput": lambda asked: throughput(asked.jobs, asked.rounds, asked.nodes, False),
    "throughput-synced": lambda asked: throughput(asked.jobs, asked.rounds, asked.nodes, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tessera.lab.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES), help="these rows alone")
    parser.add_argument("--jobs", type=int, default=3000, help="jobs of one throughput round")
    parser.add_argument("--samples", type=int, default=100, help="jobs of one latency round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=40, help="nodes of the simulated cluster, eight GPUs each")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    rows = uvloop.run(_measure(asked))
    if asked.output == "json":
        print(json.dumps({"rows": [row.as_json() for row in rows]}, indent=2))


async def _measure(asked: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for name in asked.only:
        found = await BENCHES[name](asked)
        rows += found
        if asked.output == "text":
            for row in found:
                print("\n".join(row.lines()), flush=True)
        await asyncio.sleep(0)
    return rows


if __name__ == "__main__":
    main()
