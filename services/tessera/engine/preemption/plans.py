"""
Plans: what to evict and to shrink so that a waiting job can start, and where it goes then.

Pure: a plan follows from the state, the time, the engine, the policy, the job and the cause, so that a replay computes
it again; what a proposer has in flight decides for which jobs it plans, never what the plan is. What comes free by
itself counts as free, so that nobody is evicted for a job that only has to wait for pods that are being stopped.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import takewhile

from tessera.domain.entities import Earmark, Job
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.engine import ENGINE_ID
from tessera.engine.ahead.booked_nodes import shut_for
from tessera.engine.placement.capacity import HeldPlaces, leaving, nodes_for, nodes_less
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.gpu_models import on_each_model
from tessera.engine.preemption.candidates import ELASTIC, Candidate, find_candidates, lost_ms
from tessera.engine.preemption.rules import is_its_own, not_allowed, outranked
from tessera.engine.preemption.victim_search import FoundVictims, Search, VictimsKey
from tessera.engine.queueing.allocation_size import drawn_bytes, slot_bytes
from tessera.engine.queueing.ordering import stuck_heads
from tessera.engine.queueing.own_place import without_own_place
from tessera.engine.queueing.readiness import awaits_placement, book_without, quota_reason, would_borrow
from tessera.engine.queueing.reservations import Reservation, hide_reserved
from tessera.engine.queueing.scheduling_pass import SchedulingPass
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import Move, PlanCause, PlanProposed, Shrink
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement

VICTIMS_MAX = 256
HEADS_BEFORE_MAX = 4
"""So many jobs before one are asked which runs they wait to evict."""
PLAN_BYTES_MAX = 96 * 1024  # it stands in the ledger message twice: as what was proposed and as what is kept


def plan_bytes(places: Iterable[Placement]) -> int:
    """Upper bound in bytes of these placements in a plan."""
    return sum(
        80 + len(place.node) + len(place.role) + slot_bytes(place) + drawn_bytes(place.drawn) for place in places
    )


@dataclass(frozen=True, slots=True)
class Victim:
    """A run to be evicted, or with `ranks` the pods of an elastic run that are to go; for people and for the fact."""

    run_id: str
    job_id: str
    tenant: str
    queue: str
    priority_class: str
    gpu_milli: int
    lost_seconds: int
    nodes: tuple[str, ...]
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """
    A plan: victims, in an order in which each may give way, and the job's placement then on nodes of `flavor`.

    `outranked` are the owners of lesser earmarks that end with it. `moves` says where each victim goes on, of a plan
    that defragments, and `net_gpu_seconds` what that gains. `takes_back`: something of it is quota that was lent.
    """

    job_id: str
    queue: str
    cause: PlanCause
    flavor: str
    victims: tuple[Victim, ...]
    placements: tuple[Placement, ...]
    outranked: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    net_gpu_seconds: int = 0
    takes_back: bool = False


def plan(state: State, job: Job, ts: int, cause: PlanCause) -> Plan | Reason:
    """
    The cheapest way found to make room for `job` at the time `ts`; or why there is none.

    WaitingForPreemptedWorkloads: it fits as soon as what is being stopped is gone. WaitingForTurn: it fits now.
    """
    # A shallow copy is enough, since a search changes only `ts`; a whole copy would cost as much as a snapshot for each
    # job that is planned for.
    now = copy(without_own_place(state, job))  # read only: its tables and indexes are the state's
    now.ts = max(ts, state.ts)
    if not awaits_placement(now, job):
        return Reason(code=Code.NOT_WAITING, detail=job.job_id)
    against = not_allowed(now, job, cause)
    kept = _kept_for_heads(now, job, cause) if against is None else frozenset()
    # Under preset `off` nobody is evicted, yet surplus pods of elastic runs yield to any waiting job. So the search
    # goes on where such runs exist, and `may_evict` refuses whole runs one by one.
    if against is not None and not (cause == "preemption" and now.index.elastic):
        return against
    found = _Planner(now, job, cause, kept).plan()
    rooms = _rooms_before(now, job) if isinstance(found, Plan) else []
    return _Planner(now, job, cause, kept | _runs_in(now, rooms), rooms).plan() if rooms else found


def _rooms_before(state: State, job: Job) -> list[Reservation]:
    """Room that is kept for jobs before this one in the line and begins while it would still run."""
    pool = state.tree.pool(job.queue)
    if pool is None or state.tree.policy.backfill == "off":
        return []
    ahead = SchedulingPass(state, pool).timeline()
    for head in _heads_before(state, job):
        if not ahead.is_deep(head):
            ahead.enter(head)
    until = state.ts + ahead.forecast.runtime(job)
    return [room for room in ahead.reservations if room.at < until]


def _runs_in(state: State, rooms: list[Reservation]) -> set[str]:
    """Runs that hold devices of these rooms: what their ends free is the heads'."""
    devices = {(place.node, gpu) for room in rooms for place in room.placements for gpu in place.devices}
    held = (
        (run.run_id, (place.node, gpu)) for run in state.runs.values() for place in run.places for gpu in place.devices
    )
    return {run_id for run_id, device in held if device in devices}


def _heads_before(state: State, job: Job) -> Iterator[Job]:
    return takewhile(lambda head: head.job_id != job.job_id, stuck_heads(state, state.ts, HEADS_BEFORE_MAX))


def _kept_for_heads(state: State, job: Job, cause: PlanCause) -> frozenset[str]:
    """
    Runs that jobs before this one in the line would evict once they are old enough, and that are therefore theirs.

    A gang needs its victims past `min_runtime` at one moment, a single needs one: without this the singles behind the
    gang evict the runs that it waits for, one after the other.
    """
    pool = state.tree.pool(job.queue)
    if pool is None or cause == "defragment":
        return frozenset()
    # Judged at the time by which every run of now is old enough: what a head would evict then is its own from now on.
    kept, later = set[str](), copy(state)
    later.ts = state.ts + state.tree.policy.min_runtime_seconds * 1000
    for head in _heads_before(state, job):
        if awaits_placement(later, head) and not_allowed(later, head, cause) is None:
            found = _Planner(later, head, cause, frozenset(kept)).plan()
            kept |= {victim.run_id for victim in found.victims} if isinstance(found, Plan) else set()
    return frozenset(kept)


class _Planner:
    def __init__(
        self, state: State, job: Job, cause: PlanCause, kept: frozenset[str], rooms: Sequence[Reservation] = ()
    ) -> None:
        self._state, self._job, self._cause, self._for_heads, self._rooms = state, job, cause, kept, rooms
        self._going = leaving(state)
        self._kept: Counter[Code] = Counter()
        self._pieces = 0

    def plan(self) -> Plan | Reason:
        """Search with all earmarks standing, then without those of lesser jobs."""
        # Room kept for others is broken into only where the plan fails with it: an earmark that ends for no need would
        # send its owner to search, and perhaps to evict, once more.
        verdict = self._over_marks(False)
        if isinstance(verdict, Reason) and outranked(self._state, self._job, self._all_nodes()):
            lesser = self._over_marks(True)
            verdict = lesser if isinstance(lesser, Plan) else verdict
        return verdict

    def _all_nodes(self) -> list[str]:
        return [placement.node for mark in self._state.earmarks.values() for placement in mark.placements]

    def _over_marks(self, over_lesser: bool) -> Plan | Reason:
        """The best of all flavors; nodes that failed the job before only where there is nothing else."""
        state, job = self._state, self._job
        plans: list[tuple[VictimsKey, int, Plan]] = []
        refused: list[Reason] = []
        for at, flavor in enumerate(state.tree.flavors_for(job.queue, job.amount)):
            # Nodes that failed the job are the second choice and not forbidden: on a pool where every node failed once
            # the job would else wait for ever.
            for avoid in (job.avoid, ()) if job.avoid else ((),):
                found = self._search(flavor, avoid, over_lesser)
                if isinstance(found, Reason):
                    refused.append(found)
                    continue
                # No victim is needed. A plan without victims would be an eviction of nobody that still earmarks nodes,
                # past the queue order.
                if not found.taken and not over_lesser:
                    return self._only_waits()
                plan = self._plan(flavor, found, over_lesser)
                if isinstance(plan, Plan):
                    plans.append((found.key, at, plan))
                    break
                refused.append(plan)
        if plans:
            return min(plans, key=lambda entry: entry[:2])[2]
        return self._why_not(refused)

    def _search(self, flavor: str, avoid: tuple[str, ...], over_lesser: bool) -> FoundVictims | Reason:
        state, job = self._state, self._job
        book = book_without(state, self._going)
        held: list[HeldPlaces] = [(run.gang, places) for run, places in self._going]
        if over_lesser:
            for mark in outranked(state, job, self._all_nodes()):
                held.append((mark.gang, mark.placements))
                _give_back(state, book, mark.owner, mark.flavor)
        # Who may start on spares takes them together with the room of victims, of which there are the fewer.
        shut = shut_for(state, job)
        there = nodes_for(state, state.tree.pool(job.queue) or "", flavor, avoid, with_spares=job.displaced, shut=shut)
        nodes = {node.name: node for node in there}
        # Nodes without what is leaving take the place of those with it; of other pools and flavors nothing is added.
        nodes |= {name: node for name, node in nodes_less(state, held).items() if name in nodes and name not in shut}
        # A plan is a start that comes later: like any start it leaves alone what is kept for who is before it.
        nodes = {name: hide_reserved(node, self._rooms) for name, node in nodes.items()} if self._rooms else nodes

        first: Reason | None = None
        # From the narrowest claim to the widest: quota of the lowest queue that stays within its own is taken back
        # first. Only where that fails is the job's own queue the one that must not borrow.
        # On each GPU model by itself: a search over all of them would take runs on several where one model would do.
        bound = on_each_model(job, FeasibleNodes(nodes))
        for keeper in self._keepers(book, flavor):
            pieces = self._pieces_for(keeper, book, flavor)
            found = list[FoundVictims]()
            for asked in bound:
                verdict = Search(state, asked, self._cause, flavor, nodes, book, pieces, keeper).find()
                if isinstance(verdict, FoundVictims):
                    found.append(verdict)
                else:
                    first = first or verdict
            if found:
                return min(found, key=lambda each: each.key)
        assert first is not None
        return first

    def _keepers(self, book: QuotaBook, flavor: str) -> list[str]:
        """Queues for whose quota something may be reclaimed: the lowest one within its quota, then the job's own."""
        lowest = book.keepers(self._job.queue, flavor, self._job.amount)[:1] if self._cause == "reclaim" else ()
        return list(dict.fromkeys((*lowest, self._job.queue)))

    def _pieces_for(self, keeper: str, book: QuotaBook, flavor: str) -> Callable[[], list[Candidate]]:
        """Candidates for the job; of lent quota only what does not come from below `keeper`, which has it in common."""

        def pieces() -> list[Candidate]:
            # Quota below the common keeper is the keeper's own, in whichever child it is used at present: taking it
            # from a sister would move a team's quota within the team and call that a reclaim.
            path = self._state.tree.path
            found, self._kept = find_candidates(self._state, self._job, self._cause, book, flavor)
            found = [
                candidate
                for candidate in found
                if candidate.run.run_id not in self._for_heads
                and (not candidate.is_lent or keeper not in path(candidate.run.queue))
            ]
            self._pieces = len(found)
            return found

        return pieces

    def _plan(self, flavor: str, found: FoundVictims, over_lesser: bool) -> Plan | Reason:
        state, job = self._state, self._job
        marks = outranked(state, job, {p.node for p in found.placements}) if over_lesser else []
        lacking = self._lacks_quota(flavor, found, marks) if over_lesser else None
        if lacking is not None:
            return lacking
        victims = tuple(_victims(state, found.taken))
        # The bound is of the message and not of the search: a plan that cannot be written down whole must not be
        # written in part, since half of its victims free no room for a gang.
        if len(victims) > VICTIMS_MAX or plan_bytes(found.placements) > PLAN_BYTES_MAX:
            numbers = {"victims": len(victims), "pods": len(found.placements)}
            return Reason(code=Code.NO_FIT, field="roles", numbers=numbers, detail="one plan cannot name so many")
        owners = tuple(mark.owner for mark in marks)
        lent = any(candidate.is_lent for candidate in found.taken)
        return Plan(job.job_id, job.queue, self._cause, flavor, victims, found.placements, owners, takes_back=lent)

    def _lacks_quota(self, flavor: str, found: FoundVictims, marks: list[Earmark]) -> Reason | None:
        """The search counted the quota of all lesser earmarks; only those that the plan ends give theirs back."""
        # The book is made anew. The search took the quota of every lesser earmark for free, and this plan ends only
        # those that lie on its nodes: by the search's book it would start over its quota.
        book = book_without(self._state, self._going)
        for mark in marks:
            _give_back(self._state, book, mark.owner, mark.flavor)
        for candidate in found.taken:
            book.add(candidate.run.queue, candidate.run.flavor, candidate.amount, -1)
        lenders = [candidate.run.queue for candidate in found.taken if candidate.is_lent]
        if self._cause == "reclaim" and not is_its_own(self._state.tree, book, self._job, flavor, lenders):
            return would_borrow(self._job.queue)
        over = book.lacks(self._job, flavor)
        return None if over is None else quota_reason(over)

    def _only_waits(self) -> Reason:
        if not self._going:
            return Reason(code=Code.WAITING_FOR_TURN, detail="it fits as soon as it is its turn")
        return Reason(code=Code.WAITING_FOR_PREEMPTED, numbers={"runs_stopping": len(self._going)})

    def _why_not(self, refused: list[Reason]) -> Reason:
        # A flavor without quota says little where another one has quota and no room: the reason that others' leaving
        # would change is told first.
        first = next((r for r in refused if r.code is not Code.WAITING_FOR_QUOTA), refused[0])
        numbers = dict(list(first.numbers.items())[:48])
        numbers["may_be_taken"] = self._pieces
        numbers |= {f"runs_kept_by_{code.value}": min(count, INT_MAX) for code, count in sorted(self._kept.items())}
        return first.model_copy(update={"numbers": numbers})


def _give_back(state: State, book: QuotaBook, owner: str, flavor: str) -> None:
    job = state.jobs.get(owner)
    if job is not None and job.queue in state.tree.queues:
        book.add(job.queue, flavor, job.amount, -1)


def _victims(state: State, taken: tuple[Candidate, ...]) -> list[Victim]:
    """Victims in the order of `taken`: pods of one elastic run together, none of a run that is evicted as a whole."""
    # A run whose whole gang goes takes its surplus pods along. Naming them as well would be refused by the committer,
    # which finds the run twice in one plan.
    whole = {candidate.run.run_id for candidate in taken if not candidate.ranks}
    ranks: dict[str, list[int]] = {}
    for candidate in taken:
        if candidate.ranks and candidate.run.run_id not in whole:
            ranks.setdefault(candidate.run.run_id, []).extend(candidate.ranks)
    found: dict[str, Victim] = {}
    for candidate in taken:
        run_id = candidate.run.run_id
        if not candidate.ranks or run_id not in whole:
            found.setdefault(run_id, victim_of(state, candidate, tuple(sorted(ranks.get(run_id, ())))))
    return list(found.values())


def victim_of(state: State, candidate: Candidate, ranks: tuple[int, ...] = ()) -> Victim:
    """Describes a piece in a plan: held thousandths of GPUs, and lost work in whole seconds (0 for surplus pods)."""
    run, job = candidate.run, state.jobs.get(candidate.run.job_id)
    places = [p for p in run.places if p.rank in ranks] if ranks else list(run.places)
    return Victim(
        run.run_id,
        run.job_id,
        run.tenant,
        run.queue,
        job.priority_class if job else "",
        run.gang.amount_of(places).gpu_milli,
        0 if candidate.level[0] == ELASTIC else lost_ms(state, run) // 1000,
        tuple(sorted({p.node for p in places})),
        ranks,
    )


def proposing(
    plan_for: Callable[[State, Job, int], Plan | Reason],
) -> Callable[[State, Job, int], PlanProposed | Reason]:
    """`plan_for`, whose plans come as the facts that propose them."""

    def propose(state: State, job: Job, ts: int) -> PlanProposed | Reason:
        found = plan_for(state, job, ts)
        return proposal(state, found, ts) if isinstance(found, Plan) else found

    return propose


def proposal(state: State, made: Plan, ts: int) -> PlanProposed:
    """The fact that proposes the plan, made from `state` at `ts`."""
    return PlanProposed(
        kind="plan_proposed",
        cause=made.cause,
        job_id=made.job_id,
        basis_n=state.n,
        ts=max(ts, state.ts),
        engine=ENGINE_ID,
        policy=state.config.version,
        preset=state.tree.policy.preset,
        victims=tuple(victim.run_id for victim in made.victims if not victim.ranks),
        shrinks=tuple(Shrink(run_id=v.run_id, ranks=v.ranks) for v in made.victims if v.ranks),
        placements=made.placements,
        flavor=made.flavor,
        moves=made.moves,
        net_gpu_seconds=made.net_gpu_seconds,
    )
