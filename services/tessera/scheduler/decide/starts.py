"""Start what fits: first the jobs for which room was made, then each pool's line."""

from collections.abc import Iterable

from tessera.domain.devices.datasets import bytes_read
from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.domain.entities import RESTART, Earmark, Job
from tessera.domain.health.spares import may_use_spares
from tessera.domain.state import State
from tessera.domain.work.gang import Gang
from tessera.domain.work.starting import closing, explain_closing, start_timeout_ms
from tessera.engine.ahead.booked_nodes import shut_for
from tessera.engine.placement.capacity import nodes_without
from tessera.engine.placement.faults import placement_faults
from tessera.engine.placement.fits import fits, never_fits
from tessera.engine.queueing.allocation_size import longest_of, most_bytes, most_bytes_in, too_large
from tessera.engine.queueing.readiness import (
    awaits_room,
    budget_spent,
    full_array,
    is_in_line,
    is_reserved,
    named_in_line,
    quota_reason,
    rests,
    startable,
)
from tessera.engine.queueing.scheduling_pass import CapacityCache, SchedulingPass
from tessera.engine.queueing.search_limit import SearchLimit
from tessera.engine.queueing.starting import Choice, Place, choose
from tessera.scheduler.decide.draft import Draft, record_waiting
from tessera.scheduler.decide.reservations import OwnerPass, ReservingPass, is_restarting
from tessera_schemas.base import run_id
from tessera_schemas.ledger import Allocated, EarmarkEnded, Permitted
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import ARRAY_SLOTS_FROM, PASSED_FROM
from tessera_schemas.work.placement import PASSED_MAX, Passed, Placement

PODS_PER_MESSAGE = 2048
"""How much one message places of one pool, so that it does not take long; the next one reaches the rest of the line."""

Alike = tuple[str, bool, Gang, tuple[str, ...], int]
"""What equal jobs have in common: they get one verdict."""

PERMIT_BYTES = 128  # besides its UIDs


def start_marked(draft: Draft, known: CapacityCache) -> None:
    """
    Start each job whose earmarked room has become free; the others wait for the runs that are being stopped, unless
    there is room elsewhere by now.
    """
    state = draft.state
    for owner in sorted(owner for owner, _ in state.earmarks.items()):
        mark, job = state.earmarks.get(owner), state.jobs.get(owner)
        if mark is None or job is None or mark.cause == RESTART or not startable(state, job):
            continue
        # A configuration or a node may have changed since the plan. Kept on, the earmark would hold room that its owner
        # can never have.
        if not may_still_be_had(state, job, mark):
            draft.add(EarmarkEnded(kind="earmark_ended", owner=owner, why="node_lost"))
            continue
        reason, choice = _not_yet(state, job, mark), (mark.flavor, mark.placements)
        if reason is not None:
            # A node that became free meanwhile would stand idle until the victims have saved their work.
            stopping = any(state.runs.get(run_id) is not None for run_id in mark.victims)
            elsewhere = _free_by_now(state, job, mark, known) if stopping else None
            if elsewhere is None:
                record_waiting(draft, owner, reason)
                continue
            choice = elsewhere
        # The message is full. The earmark stays, and the next message, which comes at once, starts the job.
        if most_bytes(state, job, longest_of(choice[1])) > draft.bytes_left:
            return
        # The earmark goes first, or its own devices would count as taken when the allocation is folded.
        draft.add(EarmarkEnded(kind="earmark_ended", owner=owner, why="used"))
        allocate(draft, job, *choice)


def _free_by_now(state: State, job: Job, mark: Earmark, known: CapacityCache) -> Choice | None:
    """Free room, its own earmark's too, where no room is kept for a job of its class or a higher one."""
    pool, priority = state.tree.pool(job.queue) or "", state.tree.priority_of
    if any(is_reserved(other) and priority(other) >= priority(job) for other in named_in_line(state, pool)):
        return None
    found = choose_without(state, job, (mark,), known)
    return None if isinstance(found, Reason) else found


def choose_without(state: State, job: Job, marks: tuple[Earmark, ...], known: CapacityCache) -> Choice | Reason:
    """Choose where the job would start now if these earmarks of one owner, or none, were not there."""
    # All else stands as it is: earmarks of others, and what still stops, are taken from it as from anybody.
    owner = next((mark.owner for mark in marks), "")
    return choose(state.tree, state.quota_book(besides=owner), job, placing(state, job, marks, known))


def placing(state: State, job: Job, marks: tuple[Earmark, ...], known: CapacityCache) -> Place:
    """Way to place the job without these earmarks; on spares of its pool, if it may, where nothing else has room."""
    pool, shut = state.tree.pool(job.queue) or "", shut_for(state, job)

    def place(roles: tuple[RoleNeed, ...], flavor: str, avoid: tuple[str, ...]) -> tuple[Placement, ...] | Reason:
        found = known.renewed(state, pool, flavor, avoid, marks, shut=shut).find(roles)
        # Last, and before nodes that failed the job: each spare that is used costs the next empty node.
        if not isinstance(found, Reason) or not may_use_spares(state, job):
            return found
        wider = known.renewed(state, pool, flavor, avoid, marks, with_spares=True, shut=shut).find(roles)
        return found if isinstance(wider, Reason) else wider

    return place


def may_still_be_had(state: State, job: Job, mark: Earmark) -> bool:
    """
    The nodes may be of another pool or flavor by now, or kept for others, and quotas may tell other flavors apart.
    """
    if not shut_for(state, job).isdisjoint(placement.node for placement in mark.placements):
        return False
    tree, nodes = state.tree, state.nodes.found(placement.node for placement in mark.placements)
    return mark.flavor in tree.flavors_for(job.queue, job.amount) and all(
        node.pool == tree.pool(job.queue) and tree.is_on(node, mark.flavor) for node in nodes
    )


def _not_yet(state: State, job: Job, mark: Earmark) -> Reason | None:
    stopping = sum(1 for run_id in mark.victims if state.runs.get(run_id) is not None)
    book = state.quota_book(besides=job.job_id)
    over = book.lacks(job, mark.flavor)
    # Without its own earmark and with all that still stops: the job may start once its room is really free, not once it
    # was promised.
    nodes = nodes_without(state, mark)
    if over is None and not any(placement_faults(job.roles, mark.placements, nodes)):
        return None
    if stopping or over is None:
        return Reason(code=Code.WAITING_FOR_PREEMPTED, numbers={"runs_stopping": stopping})
    return quota_reason(over)


def place_in_order(draft: Draft, pool: str, known: CapacityCache, looks_max: int | None) -> None:
    """
    Start what fits, in the order of the pool's line; say why for the rest, when that has changed.

    Most jobs of a long line got their answer before and get it again. From one allocation to the next neither use nor
    room changes, so that equal jobs of one queue share a verdict: those that it tells nothing new are passed over
    without asking again. Where room is kept for blocked jobs, that holds for jobs that would outlive as many of these
    reservations, and until there is another one. Large gangs that only a search can refuse take turns
    (`search_limit`), so many looks in one message; who is passed over keeps the reason that it has.
    """
    line = _Line(draft, pool, known, looks_max)
    for place, job in enumerate(line.jobs):
        if not line.goes_on(place, job):
            return


class _Line:
    """One pass of one message over a pool's line."""

    def __init__(self, draft: Draft, pool: str, known: CapacityCache, looks_max: int | None) -> None:
        state = draft.state
        self._draft, self._pool, self.jobs = draft, pool, named_in_line(state, pool)
        reserving = state.tree.policy.backfill == "reserve"
        self._places = (ReservingPass if reserving else OwnerPass)(state, pool, known)
        self._places.begin(self.jobs)
        self._limit = SearchLimit(len(self.jobs), state.ts, looks_max)
        self._refused: dict[Alike, Code] = {}
        self._searched = set[Alike]()
        self._behind = set[str]()  # queues that let nobody pass their first job
        self._blocked: list[Job] = []  # the first ones, for whom passes them
        # A start changes neither: no namespace closes, and no room is earmarked, while a line is gone through.
        self._some_closed, self._pods = len(state.closed) > 0, 0
        self._marked = {owner for owner, _ in state.earmarks.items()}

    def goes_on(self, place: int, job: Job) -> bool:
        """Start the job, or say why not; False when the rest of the line is left to the next message."""
        state = self._draft.state
        if job.gang.has_neighbours:  # a start before it in the line may have changed where it may go
            job = state.jobs.get(job.job_id) or job
        goes_on = self._judged(place, job)
        if len(self._blocked) < PASSED_MAX:
            found = (each for each in state.jobs.found((job.job_id,)) if not waits_by_itself(each))
            self._blocked += [each for each in found if awaits_room(state, each)]
        return goes_on

    def _judged(self, place: int, job: Job) -> bool:
        draft, places, state = self._draft, self._places, self._draft.state
        # A closed namespace, a spent budget or an array shuts a job out, and most lines have none of them.
        shut = self._shut(job) if self._some_closed or job.task_of or state.budgets else None
        if shut is not None and not draft.full:
            places.let_go(job)
            if is_in_line(state, job) and (shut.code is not Code.ARRAY_LIMIT or state.format >= ARRAY_SLOTS_FROM):
                record_waiting(draft, job.job_id, shut)
            return True
        # Who restarts was looked at before the line; here it stands in it with what it lacks.
        marked = job.job_id in self._marked and state.earmarks.get(job.job_id) is not None
        if marked and is_restarting(state, job):
            places.note_refused(job, Code.NO_FIT if job.reason is None else job.reason.code)
            self._keep_behind(job)
            return True
        # Three ways of being passed over without a record, first the one by which nearly all of a long line leaves.
        # `awaits_room` is asked part by part, since some of its parts are known by now.
        if shut or marked or places.still_blocked(job) or self._knows_why(job) or not is_in_line(state, job):
            return True
        if draft.full:
            return False
        # A strict queue: its first job has just been refused, and a smaller one behind it would take the room that it
        # waits for.
        if job.queue in self._behind:
            places.let_go(job)
            record_waiting(draft, job.job_id, Reason(code=Code.BEHIND_QUEUE_HEAD, field=f"queues.{job.queue}"))
            return True
        # Who waits for its turn still holds up its strict queue: otherwise the bound on looks would let others pass it.
        if rests(state, job) or (
            not self._limit.is_open(place) and places.needs_search(job) and not self._limit.is_small(places.looks(job))
        ):
            self._keep_behind(job)
            return True
        size = most_bytes_in(draft.state, job, self._pool, draft.bytes_left)
        verdict = _standing_refusal(job, size, places) or self._asked(job, size)
        if isinstance(verdict, Reason):
            self._refuse(job, verdict)
            return True
        # False ends the pass here: a smaller job behind would fit the message, and start out of turn for no reason of
        # its own.
        return size <= draft.bytes_left and self._start(job, verdict)

    def _shut(self, job: Job) -> Reason | None:
        """Why the job is not tried though it is in line: its namespace, a spent budget, or its array, which is full."""
        # Tasks whose back-off is over come into line while others of their array run in their slots.
        state = self._draft.state
        closed = closing(state, job) if self._some_closed else None
        kept = budget_spent(state, job) or full_array(state, job)
        return kept if closed is None else explain_closing(state, closed, job)

    def _start(self, job: Job, choice: Choice) -> bool:
        flavor, places = choice
        waits = wait_for_data(self._draft.state, job, places, self._places.capacity(flavor, ()).nodes.values())
        if waits is not None:
            # Told by itself and not as a refusal: each of equal jobs waits until a time of its own.
            self._places.let_go(job)
            record_waiting(self._draft, job.job_id, waits)
            return True
        allocate(self._draft, job, *choice, self._places.passed_by(job, self._blocked))
        self._places.taken(job, *choice)
        self._refused.clear()
        self._pods += job.pods
        return self._pods < PODS_PER_MESSAGE

    def _refuse(self, job: Job, verdict: Reason) -> None:
        alike = _alike(job, self._places)
        # Equal jobs were refused by one search, which counts once.
        by_room = verdict.code is not Code.WAITING_FOR_QUOTA and alike not in self._searched
        if by_room and self._places.needs_search(job):
            self._searched.add(alike)
            self._limit.searched_in_vain(self._places.looks(job))
        self._refused[alike] = verdict.code
        self._places.note_refused(job, verdict.code)
        record_waiting(self._draft, job.job_id, verdict)
        # Remembered only where counts refused it just as it was told: then counts alone answer for it in later passes.
        # What a search found in vain stands for that search.
        if not self._keep_behind(job) and verdict is job.reason:
            self._places.note_blocked(job)

    def _keep_behind(self, job: Job) -> bool:
        """Whether nobody of its queue may pass the job, which does not start now."""
        strict = self._draft.state.tree.queues[job.queue].queueing_strategy == "strict_fifo"
        if strict:
            self._behind.add(job.queue)
        return strict

    def _knows_why(self, job: Job) -> bool:
        """Whether the job was told what equal jobs were told now."""
        # A job that would get a reservation has to be asked itself, since each of equal jobs gets its own.
        if job.reason is None or self._places.reserves(job):
            return False
        return self._refused.get(_alike(job, self._places)) is job.reason.code

    def _asked(self, job: Job, size: int) -> Choice | Reason:
        """
        Choose where the job may start, or say why not. The search may reserve room for other jobs, whose reasons
        change.
        """
        verdict = too_large(size) or self._places.find(job)
        for blocked, reason in self._places.take_reasons():
            record_waiting(self._draft, blocked, reason)
            self._refused.clear()
        return verdict


def _standing_refusal(job: Job, size: int, places: SchedulingPass) -> Reason | None:
    """The reason that the job was told, if it would be told the same again; no numbers are counted."""
    if job.reason is None or too_large(size) or places.refusal(job) is not job.reason.code:
        return None
    return job.reason


def _alike(job: Job, places: SchedulingPass) -> Alike:
    return job.queue, places.may_borrow(job), job.gang, job.avoid, places.count_outlived(job)


def allocate(
    draft: Draft, job: Job, flavor: str, placements: tuple[Placement, ...], passed: tuple[Passed, ...] = ()
) -> None:
    """Begins the job's next run on these places, and permits pods of users that are there already."""
    state = draft.state
    deadline = state.ts + start_timeout_ms(state, job)
    draft.add(
        Allocated(
            kind="allocated",
            job_id=job.job_id,
            attempt=job.attempt + 1,
            deadline=deadline,
            placements=placements,
            flavor=flavor,
            passed=passed if state.format >= PASSED_FROM else (),
        )
    )
    _permit(draft, job)


def _permit(draft: Draft, job: Job) -> None:
    """
    Pods that are there already are permitted at once; what finds no room in this message the binder asks for.

    Whether they are still there at the time of the bind is the binder's to see, of these as of all pods.
    """
    uids, late = ((), 0) if job.adopted is None else (job.adopted.uids, job.adopted.late_pods)
    if len(uids) == job.pods - late and PERMIT_BYTES + sum(map(len, uids)) + 3 * len(uids) <= draft.bytes_left:
        draft.add(Permitted(kind="permitted", run_id=run_id(job.job_id, job.attempt + 1), uids=uids))


# -- a while for data
#
# The time is counted from when the job could first have started, and is a part of what reading anew would take: what is
# waited never exceeds what is saved, and nobody behind the job waits for it. Zaharia et al., Delay Scheduling, EuroSys
# 2010, found that short waits reach most of what there is to have.


def waits_by_itself(job: Job) -> bool:
    """Whether the job was told last that it waits for a node with its data sets, or for a window of its reservation."""
    return job.reason is not None and job.reason.code in (Code.WAITING_FOR_DATA, Code.WAITING_FOR_WINDOW)


def wait_for_data(state: State, job: Job, places: tuple[Placement, ...], nodes: Iterable[Node]) -> Reason | None:
    """
    Why the job does not start on `places` yet, though it could: one of `nodes` has more of its data sets, and is full.

    None for gangs of several nodes, which would have to come free together, and for jobs that hold up others.
    """
    caches, first = state.tree.policy.data_caches, places[0].node
    if not job.gang.reads_data or not caches.wait_percent or not caches.read_bytes_per_second or _holds_up(state, job):
        return None
    # A wait that is over stays over until the next attempt, however full the nodes are then.
    if any(place.node != first for place in places) or 0 < job.data_until <= state.ts:
        return None
    # What the node chosen has already it would not read, so that only the difference is waited for.
    needs = [job.gang.need_of[place.role] for place in places]
    saved = _saved_bytes(needs, state.nodes.found((first,)), nodes)
    wait_ms = saved * 1000 // caches.read_bytes_per_second * caches.wait_percent // 100
    if not saved or not (job.data_until or wait_ms):
        return None
    # The first of its waits counts: a node that fills up again in between does not make it longer.
    until = job.data_until or state.ts + wait_ms
    numbers = {"until_ts": until, "seconds": (until - state.ts + 999) // 1000, "saved_bytes": saved}
    return Reason(code=Code.WAITING_FOR_DATA, numbers=numbers)


def _holds_up(state: State, job: Job) -> bool:
    """Whether others wait until the job starts: in a strict queue, or behind room that is kept for it."""
    return is_reserved(job) or state.tree.queues[job.queue].queueing_strategy == "strict_fifo"


def _saved_bytes(needs: list[Need], chosen: Iterable[Node], nodes: Iterable[Node]) -> int:
    """Bytes that the node chosen has to read, and the best of `nodes` has not; 0 without a better one."""
    missing, least = sum(bytes_read(needs, node)[1] for node in chosen), list[int]()
    for node in nodes:
        # Most nodes have none of it, and what a node has is known at less cost than whether it suits.
        if (node.kept_data or node.told_data) and (reads := bytes_read(needs, node)[1]) < missing:
            least += [reads] if _may_come_free(needs, node) else []
    return missing - min(least, default=missing)


def _may_come_free(needs: list[Need], node: Node) -> bool:
    """Whether the node suits all of the pods and is full: one with room was passed over for what its score says."""
    return all(never_fits(need, node) is None for need in needs) and any(fits(need, node) for need in needs)
