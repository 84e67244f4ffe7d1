"""Summary of one policy's runs on one trace, beside the figures published for it."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev

from tessera_lab.pack.replay import FillingRun
from tessera_lab.traces.alibaba import Published

PUBLISHED_AS = {
    "random": "Random",
    "dotprod": "DotProd",
    "gpu-clustering": "GpuClustering",
    "gpu-packing": "GpuPacking",
    "bestfit": "BestFit",
    "fgd": "FGD",
}
LOADS = (50, 80, 90, 95, 100, 110, 120, 130)
METRICS = {
    "alloc_pct": "allocated",
    "frag_pct_of_all_gpus": "fragmented_of_all",
    "frag_pct_of_idle_gpus": "fragmented_of_idle",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the table; `published` is None for what nobody published."""

    trace: str
    policy: str
    metric: str
    arrived_load_pct: int
    mean: float
    stdev: float
    runs: int
    published: float | None
    difference: float | None


def figures(trace: str, runs: Sequence[FillingRun], published: Published) -> list[Figure]:
    """Every metric at every load; all runs are of one policy."""
    found = []
    for metric, field in METRICS.items():
        for load in LOADS:
            values = [float(getattr(run, field)[load]) for run in runs]
            known = published.get((trace, PUBLISHED_AS.get(runs[0].policy, ""), metric, load))
            middle = mean(values)
            found.append(
                Figure(
                    trace=trace,
                    policy=runs[0].policy,
                    metric=metric,
                    arrived_load_pct=load,
                    mean=round(middle, 4),
                    stdev=round(stdev(values), 4) if len(values) > 1 else 0.0,
                    runs=len(values),
                    published=known[0] if known else None,
                    difference=round(middle - known[0], 4) if known else None,
                )
            )
    return found


def as_csv(rows: Sequence[Figure]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(Figure.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def lines(rows: Sequence[Figure]) -> list[str]:
    """The table for people: GPU allocation at 100 and 130 %, fragmentation at 130 %, and what was published."""
    head = (
        f"{'trace':<12} {'policy':<15} {'runs':>4}  {'allocated 100 %':>20}  {'allocated 130 %':>20}  {'frag 130':>10}"
    )
    by_key = {(row.trace, row.policy, row.metric, row.arrived_load_pct): row for row in rows}
    found = [head]
    for trace, policy in dict.fromkeys((row.trace, row.policy) for row in rows):
        at = [by_key[trace, policy, "alloc_pct", load] for load in (100, 130)]
        frag = by_key[trace, policy, "frag_pct_of_all_gpus", 130]
        cells = "  ".join(f"{_cell(row):>20}" for row in at)
        found.append(f"{trace:<12} {policy:<15} {at[0].runs:>4}  {cells}  {frag.mean:>10.2f}")
    found.append("Per cent of the GPUs; in brackets: difference to the published figure in points.")
    return found


def _cell(row: Figure) -> str:
    against = f" ({row.difference:+.2f})" if row.difference is not None else ""
    return f"{row.mean:.2f}±{row.stdev:.2f}{against}"
