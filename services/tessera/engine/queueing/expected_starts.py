"""
Expected starts of the jobs in line for which room is kept ahead, and what each of them rests on. Pure.

Nobody else's start is known: who comes behind them, or waits under a policy without reservations, may be passed at any
time. The scheduler computes reservations anew in each pass, and only once somebody could be in the
way; this is the same search on the state as it is, for the jobs that have one or would get one.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tessera.domain.devices.resources import RoleNeed
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.engine.queueing.reservations import ExpectedEnd, Forecast
from tessera.engine.queueing.scheduling_pass import SchedulingPass
from tessera.engine.queueing.timeline import BLOCKED, KINDS_MAX
from tessera_schemas.reasons import Code
from tessera_schemas.text.units import format_age

StartKind = tuple[str, tuple[RoleNeed, ...], tuple[str, ...]]
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


@dataclass(frozen=True, slots=True)
class NoRoom:
    """
    Why no room is kept ahead for a blocked job: so many others have it kept (`depth`, these `others`) or were looked at
    (`kinds`), or no end of a run makes any (`never`).
    """

    why: Literal["depth", "kinds", "never"]
    others: tuple[Job, ...] = ()


def expected_starts(state: State, pool: str, line: Iterable[Job]) -> dict[str, ExpectedStart]:
    """Expected start of each job of the pool's `line` for which room is kept ahead, by job id; as of `state.ts`."""
    found = look_ahead(state, pool, line)
    return {job_id: start for job_id, start in found.items() if isinstance(start, ExpectedStart)}


def look_ahead(state: State, pool: str, line: Iterable[Job]) -> dict[str, ExpectedStart | NoRoom]:
    """Of each blocked job of the pool's `line` the expected start, or why no room is kept for it; as of `state.ts`."""
    heads = [job for job in line if _is_reserved_for(state, job)]
    if not heads:
        return {}
    # The same search as in the pass itself, with its bounds: those for whom room was kept before come first.
    places, found = SchedulingPass(state, pool), dict[str, ExpectedStart | NoRoom]()
    ahead = places.timeline()
    tried, never = Counter[StartKind](), set[StartKind]()
    for job in sorted(heads, key=lambda job: job.reason is None or job.reason.code is not Code.RESERVED):
        # Equal jobs get one answer each until the depth is reached; a kind that finds none is not asked for ever.
        kind = job.queue, job.roles, job.avoid
        # Counted among the kinds, who no node could hold would hide the start of who comes behind.
        if not places.could_hold(job.queue, job.gang):
            never.add(kind)
        # Each is told apart, since each has another way out.
        if kind in never:
            found[job.job_id] = NoRoom("never")
        elif len(tried) == KINDS_MAX and kind not in tried:
            found[job.job_id] = NoRoom("kinds")
        elif len(others := ahead.rivals_of(job)) >= ahead.depth or tried[kind] >= ahead.depth:
            found[job.job_id] = NoRoom("depth", tuple(others))
        else:
            tried[kind] += 1
            entered = ahead.enter(job)
            if entered is None:
                never.add(kind)
                found[job.job_id] = NoRoom("never")
                continue
            kept, ends = entered
            nodes = tuple(sorted({placement.node for placement in kept.placements}))
            found[job.job_id] = ExpectedStart(kept.at, nodes, _bases(ahead.forecast, ends, kept.at, nodes))
    return found


def _is_reserved_for(state: State, job: Job) -> bool:
    """Whether the job has room kept ahead, or gets it as soon as somebody behind it would fit."""
    policy, code = state.tree.policy, None if job.reason is None else job.reason.code
    waited = state.ts - job.submitted_ts >= policy.backfill_patience_seconds * 1000
    return policy.backfill == "reserve" and (code is Code.RESERVED or (code in BLOCKED and waited))


def _bases(forecast: Forecast, ends: Iterable[ExpectedEnd], at: int, nodes: Collection[str]) -> tuple[Basis, ...]:
    """Grounds on which the ends rest of the runs that leave these nodes until `at`."""
    runs = (run for end, runs in ends if end <= at for run in runs)
    return tuple(sorted({_basis(forecast, run) for run in runs if any(place.node in nodes for place in run.places)}))


def _basis(forecast: Forecast, run: Run) -> Basis:
    if run.stopping:
        return "stopping_runs"
    if forecast.is_limited(run):
        return "time_limits"
    return "learnt_runtimes" if forecast.is_learnt(run) else "assumed_runtimes"
