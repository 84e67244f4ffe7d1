"""`python -m tessera_lab.bench_engine`: how well the engine packs, beside what was published, and how fast it is."""

import argparse
import os
from pathlib import Path
from statistics import mean

from tessera.kernel.process.limits import collect_rarely
from tessera_lab.bench_engine.gangs import NODES, PODS, measure_gangs
from tessera_lab.bench_engine.speed import Speed, measure
from tessera_lab.pack.campaign import parse_policies, parse_seeds, run_all
from tessera_lab.pack.learning import DEFAULT
from tessera_lab.pack.summary import Figure, figures, lines
from tessera_lab.pack.window import Window
from tessera_lab.traces.alibaba import read_published, read_trace

TRACES = ("default", "gpuspec33", "cpu050", "gpushare40", "multigpu20")
PARTS = ("packing", "window", "speed", "gangs")
TO_REACH = {1213: 20_000, 10_000: 10_000}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tessera_lab.bench_engine", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--traces", nargs="+", default=list(TRACES))
    parser.add_argument("--policy", default="dotprod,gpu-clustering,gpu-packing,bestfit,fgd,tessera")
    parser.add_argument("--seeds", default="42-51")
    parser.add_argument("--nodes", nargs="+", type=int, default=list(TO_REACH))
    asked = parser.parse_args()
    if "packing" in asked.only:
        _packing(asked.traces, parse_policies(asked.policy), parse_seeds(asked.seeds))
    if "window" in asked.only:
        _window(asked.traces[0], parse_seeds(asked.seeds))
    if "speed" in asked.only:
        _speed(asked.nodes)
    if "gangs" in asked.only:
        _gangs()


def _packing(traces: list[str], policies: list[str], seeds: list[int]) -> None:
    published, rows = read_published(os.environ, Path()), []
    for name in traces:
        runs = run_all(read_trace(name, os.environ, Path()), policies, seeds, False, lambda policy, seed: None)
        found = [row for of_policy in runs.values() for row in figures(name, of_policy, published)]
        print("\n".join(lines(found)[:-1]), flush=True)
        rows += found
    print("\n".join(_means(rows, policies)))


def _window(name: str, seeds: list[int]) -> None:
    """The same arrivals into a queue that may reorder."""
    trace, window = read_trace(name, os.environ, Path()), Window()
    runs = run_all(trace, [DEFAULT], seeds, False, lambda policy, seed: None, window)[DEFAULT]
    print(f"{DEFAULT} from a window of {window.waiting} waiting, none passed by more than {window.delay}")
    print("\n".join(lines(figures(name, runs, {}))[1:-1]), flush=True)


def _means(rows: list[Figure], policies: list[str]) -> list[str]:
    found = ["mean of these traces"]
    for policy in policies:
        at = [
            mean(r.mean for r in rows if (r.policy, r.metric, r.arrived_load_pct) == (policy, "alloc_pct", load))
            for load in (100, 130)
        ]
        found.append(f"{'':<12} {policy:<15} {at[0]:>26.2f}  {at[1]:>20.2f}")
    return found


def _speed(sizes: list[int]) -> None:
    trace = read_trace("default", os.environ, Path())
    collect_rarely()  # as each service does
    print("the committer's own placement by the default policy, per second of CPU")
    for nodes in sizes:
        print(_line(measure(trace, nodes)), flush=True)


def _gangs() -> None:
    print(f"a gang of {PODS} pods on {NODES:,} nodes, milliseconds of CPU, medians (to reach 20)")
    for time in measure_gangs():
        print(
            f"{time.what:>20}: first of a pass {time.first_ms:5.1f}, of a later pass {time.later_ms:5.1f}; "
            f"floor, one look at each node {time.floor_ms:.2f}"
        )


def _line(speed: Speed) -> str:
    return (
        f"{speed.nodes:>7,} nodes: {speed.per_second:>9,.0f} placements/s (to reach {TO_REACH.get(speed.nodes, 0):,}), "
        f"with states never met {speed.first_per_second:,.0f}/s, floor {speed.floor_per_second:,.0f}/s"
    )


if __name__ == "__main__":
    main()
