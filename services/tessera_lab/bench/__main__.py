"""`python -m tessera_lab.bench`: all rows but the longest, or those that are named."""

import argparse
import json
from collections.abc import Awaitable, Callable

import uvloop

from tessera_lab.bench.alone.devices import devices
from tessera_lab.bench.alone.ended import ended_jobs
from tessera_lab.bench.alone.explain import explaining
from tessera_lab.bench.alone.fold import fold
from tessera_lab.bench.alone.growth import growth
from tessera_lab.bench.alone.kinds import kinds
from tessera_lab.bench.alone.orders import growing_orders
from tessera_lab.bench.alone.reservations import reservations
from tessera_lab.bench.alone.restore import restore
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.client import client, start
from tessera_lab.bench.together.flood import flood
from tessera_lab.bench.together.latency import latency
from tessera_lab.bench.together.live_kinds import live_kinds
from tessera_lab.bench.together.many_jobs import many_jobs
from tessera_lab.bench.together.restart import restart
from tessera_lab.bench.together.sizing import sizing
from tessera_lab.bench.together.throughput import throughput
from tessera_lab.bench.together.two_shards import two_shards
from tessera_schemas.shard.services import LAYOUTS, SEPARATE

Bench = Callable[[argparse.Namespace], Awaitable[list[ReportRow]]]

BENCHES: dict[str, Bench] = {
    "latency": lambda asked: latency(asked.samples, asked.rounds, asked.nodes, False, asked.layout),
    "latency-synced": lambda asked: latency(asked.samples, asked.rounds, asked.nodes, True, asked.layout),
    "throughput": lambda asked: throughput(asked.jobs, asked.rounds, asked.nodes, False, asked.layout),
    "throughput-synced": lambda asked: throughput(asked.jobs, asked.rounds, asked.nodes, True, asked.layout),
    "two-shards": lambda asked: two_shards(asked.jobs // 3, asked.rounds, asked.nodes),
    "fold": lambda asked: fold(asked.jobs, asked.rounds),
    "restart": lambda asked: restart(asked.live, asked.rounds, asked.nodes),
    "start": lambda asked: start(asked.rounds, asked.layout),
    "client": lambda asked: client(asked.rounds),
    "explain": lambda asked: explaining(1000, 5000, asked.rounds),
    "flood": lambda asked: flood(asked.jobs, asked.rounds),
    "sizing": lambda asked: sizing(asked.jobs, asked.nodes, asked.layout),
    "growth": lambda asked: growth(asked.queued, asked.rounds, asked.nodes),
    "kinds": lambda asked: kinds(asked.rounds),
    "orders": lambda asked: growing_orders(asked.rounds),
    "live-kinds": lambda asked: live_kinds(asked.waiting, asked.kinds, asked.nodes),
    "many-jobs": lambda asked: many_jobs(asked.many, asked.rounds, asked.nodes),
    "restore": lambda asked: restore(asked.many, asked.rounds, asked.nodes),
    "ended": lambda asked: ended_jobs(asked.ended),
    "devices": lambda asked: devices(asked.rounds, asked.parked),
    "reservations": lambda asked: reservations(asked.rounds),
}

LONG = ("flood", "kinds", "orders", "live-kinds", "many-jobs", "restore", "ended", "devices", "reservations")
USUAL = [name for name in BENCHES if name not in LONG]
"""The others take minutes: they are asked for by name."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tessera_lab.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=USUAL, help="these rows alone")
    parser.add_argument("--jobs", type=int, default=3000, help="jobs of one throughput round")
    parser.add_argument("--samples", type=int, default=100, help="jobs of one latency round")
    parser.add_argument("--live", type=int, default=10_000, help="live jobs while the scheduler restarts")
    parser.add_argument("--queued", type=int, default=1000, help="queued jobs of the smallest state in growth")
    parser.add_argument("--many", type=int, default=100_000, help="waiting jobs of many-jobs and restore")
    parser.add_argument("--waiting", type=int, default=2400, help="jobs that wait in live-kinds")
    parser.add_argument("--kinds", type=int, default=600, help="kinds of these jobs")
    parser.add_argument("--ended", type=int, default=1_000_000, help="jobs that live and end in the row of that name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=40, help="nodes of the simulated cluster, eight GPUs each")
    parser.add_argument("--parked", type=int, default=1000, help="nodes of eight GPUs with instances, in devices")
    parser.add_argument("--layout", choices=LAYOUTS, default=SEPARATE, help="which services share a process")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    rows = uvloop.run(_measure(asked))
    if asked.output == "json":
        print(json.dumps({"rows": [row.as_json() for row in rows]}, indent=2))


async def _measure(asked: argparse.Namespace) -> list[ReportRow]:
    rows: list[ReportRow] = []
    for name in asked.only:
        found = await BENCHES[name](asked)
        rows += found
        if asked.output == "text":
            for row in found:
                print("\n".join(row.lines()), flush=True)
    return rows


if __name__ == "__main__":
    main()
