"""
Expected starts of the jobs in line for which room is kept ahead, and what each of them rests on. Pure.

Nobody else's start is known: who comes behind them, waits for quota, or waits under a policy without reservations may
be passed at any time. The scheduler computes reservations anew in each pass, and only once somebody could be in the
way; this is the same search on the state as it is, for the jobs that have one or would get one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.engine.placement.capacity import nodes_for
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.queueing.reservations import ExpectedEnd, Forecast, Opening, find_opening
from tessera.engine.scoring.policies import find_scoring_policy
from tessera_schemas.reasons import Code
from tessera_schemas.text.units import format_age
from tessera_schemas.work.placement import Placement

HOPELESS_MAX = 4
"""So many jobs for which no end of a run makes room are looked at besides those that have a start."""

Basis = Literal["time_limits", "learnt_runtimes", "stopping_runs", "assumed_runtimes"]
ENDS: Mapping[Basis, str] = {
    "time_limits": "the time limits of runs",
    "learnt_runtimes": "how long such jobs ran before",
    "stopping_runs": "runs that are being stopped",
}
"""By what runs are expected to end, for people."""
NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """
    Ledger time at which the job finds room on `nodes`, if runs end as expected; `rests_on` says by what they do.

    With `assumed_runtimes` it is a guess: no run like one of those that have to end before was ever seen to end.
    """

    at_ts: int
    nodes: tuple[str, ...]
    rests_on: tuple[Basis, ...]

    @property
    def is_guess(self) -> bool:
        """Whether it counts on a run of whose length nothing is known."""
        return "assumed_runtimes" in self.rests_on

    def words(self, now_ms: int) -> str:
        """Words for people about the job's start, wherever that is said: `in 1h22m, by the time limits of runs`."""
        if self.is_guess:
            return NOT_KNOWN
        rests = " and ".join(ENDS[basis] for basis in self.rests_on)
        return f"in {format_age(self.at_ts - now_ms + 999)}" + (f", by {rests}" if rests else "")


def expected_starts(state: State, pool: str, line: Iterable[Job]) -> dict[str, ExpectedStart]:
    """Expected start of each job of the pool's `line` for which room is kept ahead, by job id; as of `state.ts`."""
    depth = state.tree.policy.backfill_depth
    # A bound on forecasts, as in the pass itself: each one may place a gang many times.
    heads = list(islice((job for job in line if _is_reserved_for(state, job)), depth + HOPELESS_MAX))
    found: dict[str, ExpectedStart] = {}
    if not heads:
        return found
    forecast, book, policy = Forecast(state), state.quota_book(), find_scoring_policy(state, pool)
    reserved: list[tuple[Job, tuple[Placement, ...]]] = []
    for job in heads:
        if len(found) == depth:
            break
        best: tuple[int, int, str, Opening, tuple[Basis, ...]] | None = None
        for at, flavor in enumerate(state.tree.flavors_for(job.queue, job.amount)):
            if book.lacks(job, flavor):
                continue
            nodes = {node.name: node for node in nodes_for(state, pool, flavor)}
            places = FeasibleNodes(nodes, policy)
            # Those before it count as running from now on, just as the scheduler reckons; otherwise two would be told
            # the same room.
            for other, placements in reserved:
                other.gang.take(nodes, placements)
            ends = forecast.ends_on(nodes)
            opening = find_opening(job.roles, nodes, ends, places)
            if opening is not None and (best is None or opening.at < best[0]):
                best = opening.at, at, flavor, opening, _bases(forecast, ends, opening)
        if best is not None:
            at_ts, _, flavor, opening, bases = best
            # Quota counts as used from now on, as the scheduler reckons it (ADR 0014).
            book.start(job, flavor)
            reserved.append((job, opening.placements))
            found[job.job_id] = ExpectedStart(at_ts, _nodes_of(opening), bases)
    return found


def _is_reserved_for(state: State, job: Job) -> bool:
    """Whether the job has room kept ahead, or gets it as soon as somebody behind it would fit."""
    policy, code = state.tree.policy, None if job.reason is None else job.reason.code
    waited = state.ts - job.submitted_ts >= policy.backfill_patience_seconds * 1000
    return policy.backfill == "reserve" and (code is Code.RESERVED or (code is Code.NO_FIT and waited))


def _nodes_of(opening: Opening) -> tuple[str, ...]:
    return tuple(sorted({placement.node for placement in opening.placements}))


def _bases(forecast: Forecast, ends: Iterable[ExpectedEnd], opening: Opening) -> tuple[Basis, ...]:
    """Grounds on which the ends rest of the runs that leave the opening's nodes until then."""
    nodes = set(_nodes_of(opening))
    runs = (run for at, runs in ends if at <= opening.at for run in runs)
    return tuple(sorted({_basis(forecast, run) for run in runs if any(place.node in nodes for place in run.places)}))


def _basis(forecast: Forecast, run: Run) -> Basis:
    if run.stopping:
        return "stopping_runs"
    if forecast.is_limited(run):
        return "time_limits"
    return "learnt_runtimes" if forecast.is_learnt(run) else "assumed_runtimes"
