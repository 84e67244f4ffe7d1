"""
Copies of groups that start again by themselves: which one does when a pod of a run fails, and which may not.

A copy keeps its nodes and devices while it is away, so that nobody else is asked. What its own restarts do not mend is
the failure of the copy that it is within, and beyond the widest that of the whole run. Pure.
"""

from collections.abc import Sequence

from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.domain.work.gang import RestartingCopy, ranks_out
from tessera.domain.work.starting import start_timeout_ms
from tessera.engine.placement.capacity import nodes_without
from tessera.engine.placement.faults import pod_faults
from tessera_schemas.reasons import Code

MENDED = frozenset({Code.POD_FAILED, Code.POD_DELETED, Code.POD_EVICTED})
"""Ends of a pod that say nothing against its node: the next one may start there."""
DOUBLINGS_MAX = 20
PAUSE_MAX_MS = 3_600_000


def is_said_of_former_pod(run: Run, rank: int, uid: str) -> bool:
    """Whether a fact about the pod of a rank is about one that was to go, or has gone, for a restart of its group."""
    return bool(uid and run.uids) and (run.uids[rank : rank + 1] != (uid,) or rank in ranks_out(run.restarts))


def plan_group_restart(state: State, job: Job, run: Run, rank: int, code: Code) -> RestartingCopy | None:
    """The narrowest copy of this pod's groups that may start again by itself; None where the run ends."""
    if not job.restarts or not run.started or code not in MENDED:
        return None
    bounds = {name: (most, pause_ms) for name, most, pause_ms in job.restarts}
    role = next((place.role for place in run.placements if place.rank == rank), "")
    groups = next((each.groups for each in run.roles if each.name == role), ())
    # The narrowest first: it stops the fewest pods.
    for name in [group[0] for group in reversed(groups) if group[0] in bounds]:
        copy, ranks = run.gang.copy_of(name, rank) or (0, ())
        (most, pause_ms), count = bounds[name], _restarts_so_far(state, run, name, copy)
        if count < most:
            # What does not stand well here does not within a wider copy, which has the same places.
            return _restart(state, job, run, name, copy, ranks, count, pause_ms) if _stands(state, run, ranks) else None
    return None


def _restart(
    state: State, job: Job, run: Run, name: str, copy: int, ranks: tuple[int, ...], count: int, pause_ms: int
) -> RestartingCopy:
    # Numbered within the run, so that facts about pods of an earlier restart are told apart.
    number = 1 + max((each.number for each in run.restarts), default=0)
    not_before = state.ts + min(pause_ms << min(count, DOUBLINGS_MAX), max(pause_ms, PAUSE_MAX_MS))
    # The former pods have to stop before the next ones can be made.
    deadline = not_before + (job.stop_seconds or 0) * 1000 + start_timeout_ms(state, job)
    return RestartingCopy(name, copy, ranks, number, count + 1, state.ts, not_before, deadline)


def _restarts_so_far(state: State, run: Run, name: str, copy: int) -> int:
    """Restarts of the copy that count; none of one that has held since, as runs of a job are forgiven."""
    known = next((each for each in run.restarts if (each.group, each.copy) == (name, copy)), None)
    held = known is not None and not known.deadline
    steady_ms = state.tree.policy.steady_seconds * 1000
    return 0 if known is None or (held and state.ts - known.ts >= steady_ms) else known.count


def _stands(state: State, run: Run, ranks: Sequence[int]) -> bool:
    """Whether the nodes of these pods would take them again where they are."""
    places = tuple(run.placements[rank] for rank in ranks)
    nodes = nodes_without(state, run)
    # Claims that a class answers are called as their pods, too, and outlive them.
    there = {place.node for place in places} <= nodes.keys() and not any(place.drawn for place in places)
    return there and not any(pod_faults(run.roles, places, nodes))
