"""Figures of the runs: means over the hours after the warm-up, then over the seeds; table and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import Any

from tessera.domain.devices.resources import WHOLE_GPU
from tessera_lab.churn.arrivals import FRAGMENTED, HOUR_MS, RAN, WAITED, WAITERS
from tessera_lab.churn.campaign import Campaign, Variant
from tessera_lab.churn.replay import DAY_HOURS, ChurnOutcome, Span

SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True)
class ChurnFigure:
    """
    One line of the table; per cent are of the cluster's GPUs.

    `useful_pct` is what is allocated less what is done again after moves; `bound_pct` see
    `bound_percent`; `short_of_bound` in points. `waiting_at_end` and `refused` are pods, of `arrived`.
    """

    load_pct: int
    policy: str
    defragment: bool
    seeds: int
    allocated_pct: float
    allocated_stdev: float
    useful_pct: float
    bound_pct: float
    short_of_bound: float
    fragmented_pct: float
    waiting_gpus: float
    waiting_pods: float
    waiting_at_end: float
    refused: float
    arrived: float
    moves_per_day: float


def figures(campaign: Campaign) -> list[ChurnFigure]:
    return [_figure(campaign, key, runs) for key, runs in campaign.runs.items()]


def allocated_percent(outcome: ChurnOutcome, span: Span, gpu_milli: int) -> float:
    return 100 * _mean_of(outcome, span, RAN) / gpu_milli


def bound_percent(campaign: Campaign, load: int) -> float:
    """
    The pooled replay, or the fluid bound where that lies below the load and the cluster.

    The fluid bound knows the load in the long run alone: where models bind nothing, the hours that were measured may
    have brought a little more, and the pooled replay, which saw the same arrivals, is the bound.
    """
    gpu_milli = campaign.timed.trace.gpu_milli
    pooled = mean(allocated_percent(pool, campaign.span, gpu_milli) for pool in campaign.pools[load])
    fluid = campaign.fluids[load]
    return min(pooled, fluid) if fluid < min(load, 100) else pooled


def _mean_of(outcome: ChurnOutcome, span: Span, column: int) -> float:
    """Over time, after the warm-up; the sum in Python's integers, which have no end."""
    hours = [int(each) for each in outcome.hours[span.warmup_hours :, column]]
    return sum(hours) / (len(hours) * HOUR_MS)


def _figure(campaign: Campaign, key: Variant, runs: Sequence[ChurnOutcome]) -> ChurnFigure:
    span, gpu_milli = campaign.span, campaign.timed.trace.gpu_milli
    days = span.hours // DAY_HOURS
    allocated = [allocated_percent(run, span, gpu_milli) for run in runs]
    redone = mean(run.moves[2] for run in runs) / (gpu_milli * days * SECONDS_PER_DAY)
    useful, limit = mean(allocated) - 100 * redone, bound_percent(campaign, key.load)
    lost = mean(_mean_of(run, span, FRAGMENTED) / run.fragmented_unit for run in runs)
    return ChurnFigure(
        load_pct=key.load,
        policy=key.policy,
        defragment=key.defragment,
        seeds=len(runs),
        allocated_pct=round(mean(allocated), 4),
        allocated_stdev=round(stdev(allocated), 4) if len(runs) > 1 else 0.0,
        useful_pct=round(useful, 4),
        bound_pct=round(limit, 4),
        short_of_bound=round(limit - useful, 4),
        fragmented_pct=round(100 * lost / gpu_milli, 4),
        waiting_gpus=round(mean(_mean_of(run, span, WAITED) for run in runs) / WHOLE_GPU, 2),
        waiting_pods=round(mean(_mean_of(run, span, WAITERS) for run in runs), 2),
        waiting_at_end=round(mean(run.waiting for run in runs), 2),
        refused=round(mean(run.refused for run in runs), 2),
        arrived=round(mean(run.arrived for run in runs), 2),
        moves_per_day=round(mean(run.moves[0] for run in runs) / days, 2),
    )


def as_json(campaign: Campaign, rows: Sequence[ChurnFigure]) -> Mapping[str, Any]:
    timed, span = campaign.timed, campaign.span
    return {
        "trace": timed.trace.name,
        "gpus": timed.trace.gpu_milli // WHOLE_GPU,
        "pods": len(timed.life_s),
        "left_out": {"never_scheduled": timed.never_scheduled, "never_ended": timed.never_ended},
        "warmup_days": span.warmup_days,
        "days": span.days,
        "seeds": list(campaign.seeds),
        "waiting": "first come, first served; who does not fit is passed over",
        "figures": [asdict(row) for row in rows],
    }


def lines(campaign: Campaign, rows: Sequence[ChurnFigure]) -> list[str]:
    """The table for people, with what was left out of the trace below it."""
    timed, span = campaign.timed, campaign.span
    head = f"{'load':>5} {'policy':<15} {'moving':<6} {'allocated':>12} {'useful':>7} {'bound':>7} {'short':>6}"
    found = [f"{head} {'frag':>6} {'waiting: GPUs':>13} {'pods':>9} {'at end':>8} {'refused':>7} {'moves/day':>9}"]
    found += [_line(row) for row in rows]
    found.append(
        f"{timed.trace.name}: {len(timed.life_s):,} pods with a lifetime; left out {timed.never_scheduled:,} never "
        f"scheduled, {timed.never_ended:,} never ended. {span.days} days after {span.warmup_days} of warm-up."
    )
    found.append("Per cent of the GPUs; bound: everything in one pool, or less where too much is bound to few models.")
    return found


def _line(row: ChurnFigure) -> str:
    allocated = f"{row.allocated_pct:.2f}±{row.allocated_stdev:.2f}"
    moving = "yes" if row.defragment else "no"
    return (
        f"{row.load_pct:>5} {row.policy:<15} {moving:<6} {allocated:>12} {row.useful_pct:>7.2f} "
        f"{row.bound_pct:>7.2f} {row.short_of_bound:>6.2f} {row.fragmented_pct:>6.2f} {row.waiting_gpus:>13,.1f} "
        f"{row.waiting_pods:>9,.1f} {row.waiting_at_end:>8,.0f} {row.refused:>7,.0f} {row.moves_per_day:>9,.1f}"
    )
