"""
Churn through all services: the same arrivals, each a job of one pod that runs for its lifetime; whoever fits starts.

Unlike in the replay through the engine alone the default policy has seen nothing before, nothing moves, and there is
no bound. What is counted comes from the ledger: a pod holds its GPUs from its allocation until it was seen to be gone,
and waits from its arrival until then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from tessera.client.outcomes import Exit, Failure
from tessera.testkit.end_to_end.following import Arrival, Timeline, follow
from tessera.testkit.end_to_end.services import TraceServices, run_end_to_end
from tessera_lab.churn.arrivals import HOUR_MS
from tessera_lab.churn.lifetimes import Timed
from tessera_lab.churn.offered import MS, Offered
from tessera_lab.churn.replay import Span
from tessera_lab.pack.protocol import node_order
from tessera_lab.pack.services import ReportProgress
from tessera_lab.traces.alibaba import WHOLE
from tessera_lab.traces.as_jobs import TENANT, config, named, spec


@dataclass(frozen=True, slots=True)
class ChurnThroughServices:
    """
    One run; means over `hours` after its warm-up, per cent of all GPUs. `offered_pct` is what would have been in use
    had nothing ever waited. `recomputed` of `messages` ledger messages were decided again, with the same result.
    """

    trace: str
    load_pct: int
    policy: str
    seed: int
    arrivals: int
    hours: float
    offered_pct: float
    allocated_pct: float
    waiting_gpus: float
    waiting_pods: float
    refused: int
    messages: int
    recomputed: int


@dataclass(frozen=True, slots=True)
class CountedWindow:
    """The milliseconds that are counted, of the first `arrivals`."""

    start_ms: int
    end_ms: int
    arrivals: int


def window(offered: Offered, span: Span, most: int | None) -> CountedWindow:
    """
    The window of `span`, or until the arrival after the first `most`: then its second half, if the warm-up is no
    shorter.

    Raises Failure when nobody has come yet by then but those that are there from the start.
    """
    end_ms, arrivals = span.hours * HOUR_MS, len(offered.pod)
    if most is not None and most < arrivals:
        end_ms, arrivals = int(offered.at_ms[most]), most
    start_ms = min(span.warmup_hours * HOUR_MS, end_ms // 2)
    if end_ms - start_ms < MS:
        at_start = int((offered.at_ms == 0).sum())
        raise Failure(Exit.USAGE, f"lab: --most: {at_start:,} pods run from the start; ask for more than these")
    return CountedWindow(start_ms, end_ms, arrivals)


def through_services(
    timed: Timed,
    policy: str,
    load: int,
    seed: int,
    offered: Offered,
    counted: CountedWindow,
    report_progress: ReportProgress = lambda done, of: None,
) -> ChurnThroughServices:
    """Raises Failure for a policy that the platform does not have, and Undecided."""
    body, places = config(policy), node_order(len(timed.trace.nodes), seed).tolist()
    coming = list(_arrivals(timed, offered, counted))

    async def run(services: TraceServices) -> ChurnThroughServices:
        await services.start([named(node, place) for node, place in zip(timed.trace.nodes, places, strict=True)], body)
        timeline = await follow(services, coming, lambda done: report_progress(done, len(coming)), counted.end_ms)
        replay = await services.close()
        gpus = [timed.trace.pods[pod].total_gpu_milli for pod in offered.pod[: counted.arrivals].tolist()]
        percent = 100 / timed.trace.gpu_milli
        waits = _waits(coming, timeline, counted)
        return ChurnThroughServices(
            trace=timed.trace.name,
            load_pct=load,
            policy=policy,
            seed=seed,
            arrivals=len(coming),
            hours=(counted.end_ms - counted.start_ms) / HOUR_MS,
            offered_pct=percent * _mean(gpus, _wanted(offered, counted), counted),
            allocated_pct=percent * _mean(gpus, _runs(coming, timeline, counted), counted),
            waiting_gpus=_mean(gpus, waits, counted) / WHOLE,
            waiting_pods=_mean([1] * len(waits), waits, counted),
            refused=sum(one.job_id not in timeline.queued for one in coming),
            messages=replay.messages,
            recomputed=replay.recomputed,
        )

    return run_end_to_end(seed, run)


Stay = tuple[int, int]
"""From when to when, in milliseconds since the run began; who never came has none: (0, 0)."""


def _arrivals(timed: Timed, offered: Offered, counted: CountedWindow) -> Iterator[Arrival]:
    rows = zip(offered.pod.tolist(), offered.at_ms.tolist(), offered.life_ms.tolist(), strict=True)
    for number, (pod, at_ms, life_ms) in zip(range(counted.arrivals), rows, strict=False):
        yield Arrival(at_ms, TENANT, str(number), spec(timed.trace.pods[pod], life_ms / MS))


def _wanted(offered: Offered, counted: CountedWindow) -> list[Stay]:
    at_ms, life_ms = offered.at_ms[: counted.arrivals], offered.life_ms[: counted.arrivals]
    return list(zip(at_ms.tolist(), (at_ms + life_ms).tolist(), strict=True))


def _runs(coming: Sequence[Arrival], timeline: Timeline, counted: CountedWindow) -> list[Stay]:
    stays = ((timeline.started.get(one.job_id), timeline.freed.get(one.job_id, counted.end_ms)) for one in coming)
    return [(0, 0) if start is None else (start, end) for start, end in stays]


def _waits(coming: Sequence[Arrival], timeline: Timeline, counted: CountedWindow) -> list[Stay]:
    return [
        (one.at_ms, timeline.started.get(one.job_id, counted.end_ms)) if one.job_id in timeline.queued else (0, 0)
        for one in coming
    ]


def _mean(amounts: Sequence[int], stays: Sequence[Stay], counted: CountedWindow) -> float:
    """Mean of the amounts over the counted time."""
    there = (
        amount * max(0, min(end, counted.end_ms) - max(start, counted.start_ms))
        for amount, (start, end) in zip(amounts, stays, strict=True)
    )
    return sum(there) / (counted.end_ms - counted.start_ms)


def lines_of(runs: Sequence[ChurnThroughServices]) -> list[str]:
    """The table for people."""
    head = ("trace", "load", "policy", "seed", "arrivals", "hours", "offered %", "allocated %", "waiting GPUs", "pods")
    rows: list[tuple[str, ...]] = [(*head, "refused", "messages", "recomputed")]
    for run in runs:
        values = tuple(asdict(run).values())
        rows.append((*map(str, values[:5]), *(f"{value:.2f}" for value in values[5:10]), *map(str, values[10:])))
    return ["".join(f"{value:>13}" for value in row) for row in rows]
