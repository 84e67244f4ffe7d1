"""
Elastic runs: larger while nobody waits for the room. They shrink by plans, which preemption proposes, and move pods
between their roles when their owner asks.
"""

from collections.abc import Collection, Sequence
from itertools import islice

from tessera.domain.devices.resources import NOTHING
from tessera.domain.entities import Job, Run
from tessera.domain.folding.spending import KEPT_BY_BUDGETS
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang
from tessera.domain.work.phases import Phase
from tessera.domain.work.starting import given_ms, start_timeout_ms
from tessera.engine.ahead.booked_nodes import shut_for
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.preemption.growth import may_have, nodes_beyond, pieces_of_growth, place_one_more
from tessera.engine.preemption.shifts import RoleShift, places_of_gains, plan_shift
from tessera.engine.queueing.allocation_size import drawn_bytes, slot_bytes
from tessera.engine.queueing.readiness import spent_reason, startable
from tessera.engine.queueing.scheduling_pass import CapacityCache, SchedulingPass
from tessera.engine.queueing.timeline import KINDS_MAX, Models, models_of
from tessera.scheduler.decide.draft import RECORD_BYTES, Draft, judges
from tessera_schemas.ledger import Grown, JobTurnedAway, Shrunk
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import NODE_FAILURES_FROM
from tessera_schemas.shard.orders import HEADS_MAX
from tessera_schemas.shard.records import RolesRequested, RolesShifted
from tessera_schemas.work.placement import Placement

PODS_PER_STEP = 64
"""By how much one run grows at once; it grows on when that is done."""

PLACE_BYTES = 64
"""Of each pod in the record, besides its names and devices."""

BYTES_PER_STEP = RECORD_BYTES - 1024

FAILURES_COUNTED = 10
"""Up to here each failure doubles the time until a run grows again: then about a thousand times as long."""


def grow(draft: Draft, known: CapacityCache, starts_since: int = 0) -> None:
    """
    Give each elastic run the next pods that fit, where nobody waits for them: highest priority class first, then the
    oldest.

    A run that grew or shrank a short while ago keeps its size, so that it does not change with every job that comes.
    """
    state = draft.state
    # Given up before any run grows, so that what late pods held is free for the growth below.
    drop_late(draft, starts_since)
    wanted: dict[tuple[str, str], Collection[Models]] = {}
    free = _Free(state, known)
    for run in sorted(state.runs.found(state.index.elastic), key=lambda run: _first(state, run)):
        pool = state.tree.pool(run.queue)
        if pool is None or draft.full or not _may_grow(state, run):
            continue
        # Whether somebody waits is one question per pool and tree: within a tree quota is shared, so that its runs
        # would all take from the same waiting job.
        where = pool, state.tree.roots[run.queue]
        if where not in wanted:
            wanted[where] = _wanted_models(state, *where, known)
        if frozenset() not in wanted[where]:
            _grow_one(draft, run, pool, free, frozenset().union(*wanted[where]))


def drop_late(draft: Draft, starts_since: int) -> None:
    """Pods that a run was to grow by and that nobody made in time, of which `starts_since` counts alone."""
    state = draft.state
    for run in state.runs.found(sorted(state.index.elastic)):
        late = [e for e in run.extra if e.deadline and e.deadline <= state.ts and not e.leaving]
        # The pods have their whole time from the last gap on: a pod that started while nobody looked would else be
        # stopped for being late (ADR 0042).
        watched = late and state.ts >= starts_since + given_ms(state, run)
        if watched and not run.stopping and not draft.full:
            ranks = tuple(extra.placement.rank for extra in late)
            go_on_without(draft, run, ranks, Reason(code=Code.START_TIMEOUT), "deadline")


def go_on_without(draft: Draft, run: Run, ranks: Sequence[int], reason: Reason, by: str) -> None:
    """
    Remove those of these pods that the run has beyond its gang and that are not on their way out already, and what is
    in a copy of a group with them.
    """
    # Facts about pods are late and repeated: ranks of the gang, and those that leave already, are not meant by any of
    # them.
    gone = tuple(sorted(run.surplus_with(ranks)))
    if gone:
        draft.add(Shrunk(kind="shrunk", run_id=run.run_id, ranks=gone, reason=reason, by=by))


def _first(state: State, run: Run) -> tuple[int, int, str]:
    return -state.tree.priority_of(state.jobs.get(run.job_id)), run.allocated_ts, run.run_id


def _may_grow(state: State, run: Run) -> bool:
    rested = state.ts - max(run.resized_ts, run.started_ts) >= _rest_ms(state, run)
    # One step at a time: while pods of the last one are on their way in or out, nobody can tell whether that size was a
    # good one.
    moving = run.resize is not None or any(extra.leaving or not extra.uid for extra in run.extra)
    largest = len(run.all_placements) >= sum(map(run.most_of, run.roles))
    ending = run.stopping or bool(run.released_ranks)  # pods that have done their part are not replaced
    stays = largest or moving or not run.started or ending
    kept = spent_reason(state, run.queue, run.tenant, run.project, KEPT_BY_BUDGETS) is not None
    return not (stays or kept) and rested and state.tree.stopped(run.queue) is None


def _rest_ms(state: State, run: Run) -> int:
    """Time for which the run keeps its size; doubled each time that surplus pods have failed."""
    seconds = state.tree.policy.grow_after_seconds
    # At least a second where a run has failed, since a rest of 0 would stay 0 however often it is doubled.
    return (max(1, seconds) << min(run.failures, FAILURES_COUNTED) if run.failures else seconds) * 1000


def _wanted_models(state: State, pool: str, root: str, known: CapacityCache) -> set[Models]:
    """
    GPU models for which jobs that may start wait, of what runs of the tree `root` could grow into; an empty one: any.

    Of each queue the first ones are asked, as many as an order may name: who is behind them waits for them. A job for
    which no end of a run makes room, as those of a drained model, gains nothing by what these runs leave alone. An
    owner that lacks quota for any model wants any.
    """
    tree, wanted, kinds = state.tree, set[Models](), dict[Gang, bool]()
    places = SchedulingPass(state, pool, known)
    ahead, could_hold, book = places.timeline(), places.could_hold, state.quota_book()
    for queue in sorted(tree.queues_of.get(pool, ())):
        first = () if tree.stopped(queue) is not None else islice(state.index.waiting.get(queue, ()), HEADS_MAX)
        for _, _, _, job_id in first:
            job = state.jobs.get(job_id)
            if job is None or job.phase is not Phase.QUEUED or not startable(state, job):
                continue
            code = job.reason.code if job.reason is not None else None
            # Who waits for quota of another tree gains nothing by what these runs leave alone: for its sake room would
            # stand idle.
            elsewhere = code is Code.WAITING_FOR_QUOTA and tree.roots[queue] != root
            if elsewhere or code is Code.BEHIND_QUEUE_HEAD:  # of which the head is asked itself
                continue
            # First by sums: a kind that no node could hold takes none of the places of those that are asked exactly.
            if job.gang not in kinds and could_hold(job.queue, job.gang):
                asked = len(kinds) < KINDS_MAX  # beyond, whoever waits is taken to be helped
                flavors = tree.flavors_for(job.queue, job.amount)
                kinds[job.gang] = not asked or any(ahead.can_ever(job, flavor) for flavor in flavors)
            if kinds.get(job.gang):
                wanted.add(frozenset() if _lacks_any(book, job) else models_of(job))
                if frozenset() in wanted:
                    return wanted
    return wanted


def _lacks_any(book: QuotaBook, job: Job) -> bool:
    """Whether the job is an owner that lacks, within its nominal quota, what counts on nodes of every model."""
    # Who waits beyond that gets its quota with the room: it has no claim on what others leave alone on other models.
    is_over = book.over(job.queue, "", job.amount) is not None
    return is_over and bool(book.keepers(job.queue, "", job.amount))


class _Free:
    """Free capacity and quota as of the current state: what a run grows into is taken from them."""

    def __init__(self, state: State, known: CapacityCache) -> None:
        self._state, self._known, self._capacities = state, known, dict[tuple[str, str], FreeCapacity]()
        self.book = state.quota_book()

    def capacity(self, pool: str, flavor: str, avoid: tuple[str, ...]) -> FreeCapacity:
        if avoid:  # what is taken of it is not taken of the common one, which is therefore made anew
            self._capacities.pop((pool, flavor), None)
            return self._known.renewed(self._state, pool, flavor, avoid)
        found = self._capacities.get((pool, flavor))
        if found is None:
            found = self._capacities[pool, flavor] = self._known.renewed(self._state, pool, flavor)
        return found


def _grow_one(draft: Draft, run: Run, pool: str, free: _Free, wanted: Models) -> None:
    """
    Give the run the next pods that fit, if any do; on nodes that failed it only where none fits on others, and on none
    whose GPU model is wanted.
    """
    state = draft.state
    job = state.jobs.get(run.job_id)
    # What is free of a wanted model is left to who waits for it; of others nobody has a use.
    nodes = state.nodes.values() if wanted else ()
    left = tuple(sorted(node.name for node in nodes if node.pool == pool and node.gpu_model in wanted))
    left = tuple(sorted({*left, *nodes_beyond(state, run), *shut_for(state, job)}))
    avoid = job.avoid if job is not None and state.format >= NODE_FAILURES_FROM else ()
    # Without nodes to avoid both are the same, and one search is saved.
    for left_out in dict.fromkeys((tuple(sorted({*avoid, *left})), left)):
        places = _find_places(state, run, free.capacity(pool, run.flavor, left_out), free.book)
        if places:
            deadline = state.ts + start_timeout_ms(state, job)
            draft.add(Grown(kind="grown", run_id=run.run_id, deadline=deadline, placements=tuple(places)))
            return


def _find_places(state: State, run: Run, capacity: FreeCapacity, book: QuotaBook) -> list[Placement]:
    """Places of the next pods; they are taken of capacity and quota."""
    places: list[Placement] = []
    size, more = 0, NOTHING
    # Ranks are never used again within a run: a late fact about a pod that left must not hit its successor.
    rank = run.next_rank or len(run.placements)
    # One by one, not as a gang: surplus is worth having in any number, and the first that does not fit ends its kind.
    for one, count in pieces_of_growth(state, run):
        amount = one.amount
        for _ in range(count):
            if len(places) + one.pods > PODS_PER_STEP or size >= BYTES_PER_STEP:
                break
            if book.over(run.queue, run.flavor, amount) or not may_have(state, run, more.plus(amount)):
                break
            found = place_one_more(one, capacity, (*run.places, *places))
            if isinstance(found, Reason):
                break
            # Taken at once, of quota as of room: the next run of this message must not be given the same.
            book.add(run.queue, run.flavor, amount)
            places += [replace(place, rank=rank + at) for at, place in enumerate(found, len(places))]
            size += sum(PLACE_BYTES + len(p.role) + len(p.node) + slot_bytes(p) + drawn_bytes(p.drawn) for p in found)
            more = more.plus(amount)
    return places


@judges(RolesRequested)
def on_roles_requested(draft: Draft, index: int, fact: RolesRequested) -> None:
    """Let pods of some roles leave for pods of others, or refuse that with all reasons; a repeat changes nothing."""
    state = draft.state
    job = state.jobs.get(fact.job_id)
    if job is None or fact.tenant not in ("", job.tenant):
        # Another tenant's job is treated as one that does not exist, and the record names none.
        absent = Reason(code=Code.NO_SUCH_JOB, field="job_id")
        draft.add(JobTurnedAway(kind="job_turned_away", fact=index, reasons=(absent,)))
        return
    run = state.runs.get(job.run_id)
    if run is not None and fact.key in run.shifts:
        return
    found = plan_shift(state, job, fact.roles, fact.have)
    if not isinstance(found, RoleShift):
        draft.add(JobTurnedAway(kind="job_turned_away", fact=index, reasons=tuple(found)))
        return
    steps = ", ".join(f"{name} {step:+}" for name, step in sorted(fact.roles.items()))
    draft.add(
        RolesShifted(
            kind="roles_shifted",
            run_id=job.run_id,
            ranks=found.ranks,
            reason=Reason(code=Code.ROLES_SHIFTED, detail=steps),
            request=fact.key,
            gains=found.gains,
            sizes=found.sizes,
            by=fact.tenant or "operator",
        )
    )


def grow_by_shift(draft: Draft, before: Run) -> None:
    """Give a run the pods for which others of it were released just now; `before` is the run with these."""
    run = draft.state.runs.get(before.run_id)
    if run is None or run.stopping or not before.gains or run.shift_ranks:
        return
    # Looked for in the same message as the release, before anybody else in line sees what is free.
    places = places_of_gains(draft.state, run, before)
    if places:
        deadline = draft.state.ts + start_timeout_ms(draft.state, draft.state.jobs.get(run.job_id))
        draft.add(Grown(kind="grown", run_id=run.run_id, deadline=deadline, placements=tuple(places)))
