"""Elastic runs: larger while nobody waits for the room. They shrink by plans, which preemption proposes."""

from tessera.domain.entities import Run
from tessera.domain.evolve import evolved
from tessera.domain.phases import Phase
from tessera.domain.resources import gang_amount
from tessera.domain.state import State
from tessera.engine.gangs import Room
from tessera.engine.plans import nodes_for, startable
from tessera.scheduler.decide.draft import Draft
from tessera_schemas.ledger import Grown, Shrunk
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code, Reason

PODS_PER_STEP = 64
"""By how much one run grows at once; it grows on when that is done."""


def grow(draft: Draft) -> None:
    """
    Give each elastic run the next pods that fit, where nobody waits: highest priority class first, then the oldest.

    A run that grew or shrank a short while ago keeps its size, so that it does not change with every job that comes.
    """
    state = draft.state
    drop_late(draft)
    crowded: dict[str, bool] = {}
    for run in sorted(state.runs.found(state.index.elastic), key=lambda run: _first(state, run)):
        pool = state.tree.pool(run.queue)
        if pool is None or draft.full or not _may_grow(state, run):
            continue
        if pool not in crowded:
            crowded[pool] = _somebody_waits(state, pool)
        if not crowded[pool]:
            _grow_one(draft, run, pool)


def drop_late(draft: Draft) -> None:
    """Pods that a run was to grow by and that nobody made in time."""
    for run in draft.state.runs.found(sorted(draft.state.index.elastic)):
        late = [e for e in run.extra if e.deadline and e.deadline <= draft.state.ts and not e.leaving]
        if late and not run.stopping and not draft.full:
            ranks = tuple(extra.placement.rank for extra in late)
            reason = Reason(code=Code.START_TIMEOUT)
            draft.add(Shrunk(kind="shrunk", run_id=run.run_id, ranks=ranks, reason=reason, by="deadline"))


def _first(state: State, run: Run) -> tuple[int, int, str]:
    job = state.jobs.get(run.job_id)
    return -state.tree.priority(job.priority_class if job else ""), run.allocated_ts, run.run_id


def _may_grow(state: State, run: Run) -> bool:
    rested = state.ts - max(run.resized_ts, run.started_ts) >= state.tree.policy.grow_after_seconds * 1000
    moving = any(extra.leaving or not extra.uid for extra in run.extra)
    return run.started and not run.stopping and not moving and rested and state.tree.stopped(run.queue) is None


def _somebody_waits(state: State, pool: str) -> bool:
    """Whether a job that may start stands in a queue of the pool: then room is not free to grow into."""
    for queue in sorted(state.tree.queues_of.get(pool, ())):
        for _, _, _, job_id in state.index.waiting.get(queue, ()):
            job = state.jobs.get(job_id)
            if job is not None and job.phase is Phase.QUEUED and startable(state, job):
                return True
    return False


def _grow_one(draft: Draft, run: Run, pool: str) -> None:
    state = draft.state
    places: list[Placement] = []
    room, book = Room(nodes_for(state, pool, run.flavor)), state.quota_book()
    rank = run.next_rank or len(run.placements)
    for role in run.roles:
        have = sum(1 for place in run.places if place.role == role.name)
        for _ in range(role.replicas + role.more - have):
            one = (evolved(role, replicas=1),)
            amount = gang_amount(one)
            if len(places) >= PODS_PER_STEP or book.over(run.queue, run.flavor, amount):
                break
            found = room.place(one)
            if isinstance(found, Reason):
                break
            book.add(run.queue, run.flavor, amount)
            places.append(evolved(found[0], rank=rank + len(places)))
    if places:
        deadline = state.ts + state.tree.policy.start_timeout_seconds * 1000
        draft.add(Grown(kind="grown", run_id=run.run_id, deadline=deadline, placements=tuple(places)))
