"""
Defragmentation: the runs whose moving elsewhere gives a waiting job its room, and where each of them goes on.

Pure, as all plans are. Each set of runs is tried with the real placement: the job on the nodes as without them, then
they, the largest first, on what is free *now* beside the job. First the sets in the order of their cost, whatever
nodes they are on: the first that holds is the cheapest there is for that placement. Where a count runs out before one
holds, whole steps by node (`node_steps`), less what turns out not to be needed; these need not be the cheapest.
"""

import heapq
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import takewhile

from tessera.domain.devices.resources import Node
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.engine.ahead.booked_nodes import shut_for
from tessera.engine.defragmentation.budgets import MovesLeft, outside_windows
from tessera.engine.defragmentation.offers import agreed_for, awaits_answers
from tessera.engine.defragmentation.relocations import (
    NO_ROOM,
    NodesOfRuns,
    TargetCapacity,
    lacks_again,
    may_move,
    most_to_lose,
    net_gpu_seconds,
    no_gain,
)
from tessera.engine.placement.capacity import leaving, nodes_for, nodes_less
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.gangs import place_gang
from tessera.engine.placement.gpu_models import on_each_model
from tessera.engine.placement.placement_groups import placement_groups
from tessera.engine.preemption.candidates import Candidate, eviction_cost
from tessera.engine.preemption.node_steps import node_steps, take
from tessera.engine.preemption.plans import PLAN_BYTES_MAX, Plan, plan_bytes, victim_of
from tessera.engine.queueing.ordering import order_jobs
from tessera.engine.queueing.readiness import awaits_placement, book_without, quota_reason
from tessera.engine.scoring.policies import find_scoring_policy
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import Move
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement

SETS_MAX = 256  # sets of runs that are tried in the order of their cost
NODES_MAX = 65_536  # looked at by all these tries together, about
SETS_MIN = 16
FITS = (Code.WAITING_FOR_TURN, Code.WAITING_FOR_PREEMPTED)
"""Why nothing has to move."""


@dataclass(frozen=True, slots=True)
class FoundRelocations:
    """The runs that move, where each goes on, and where the job goes then."""

    taken: tuple[Candidate, ...]
    moves: tuple[Move, ...]
    placements: tuple[Placement, ...]

    @property
    def key(self) -> tuple[int, int, tuple[str, ...]]:
        """Sort key, best first: the least cost, then the fewest runs that move, then their ids."""
        return _cost(self.taken), len(self.taken), tuple(candidate.run.run_id for candidate in self.taken)


def defragmentation(state: State, job: Job, ts: int, at_any_cost: bool = False) -> Plan | Reason:
    """
    The cheapest moves found that make room for `job` at the time `ts`; or why there are none.

    NoNetGain: some might, but they would lose more than the job lost by waiting so far; it may be tried again later.
    `at_any_cost`: search also where even the cheapest run alone loses too much, so that the loss of the plan is told.
    """
    now = copy(state)  # read only: its tables and indexes are the state's
    now.ts = max(ts, state.ts)
    if (against := _against_search(now, job)) is not None:
        return against
    plans: list[tuple[tuple[int, int, tuple[str, ...]], int, Plan]] = []
    refused: list[Reason] = []
    for at, flavor in enumerate(now.tree.flavors_for(job.queue, job.amount)):
        found = _best(now, job, flavor, job.avoid, at_any_cost)
        if job.avoid and isinstance(found, Reason):
            found = _best(now, job, flavor, (), at_any_cost)
        plan = found if isinstance(found, Reason) else _plan(now, job, flavor, found)
        if isinstance(plan, Reason):
            refused.append(plan)
        elif isinstance(found, FoundRelocations):
            plans.append((found.key, at, plan))
    if plans:
        return min(plans, key=lambda entry: entry[:2])[2]
    return next((reason for reason in refused if reason.code is not Code.WAITING_FOR_QUOTA), refused[0])


def _against_search(state: State, job: Job) -> Reason | None:
    """Why no search is made for the job now."""
    if not awaits_placement(state, job):
        return Reason(code=Code.NOT_WAITING, detail=job.job_id)
    if not state.tree.policy.defragment:
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="policy.defragment", detail="off")
    if job.reason is None or job.reason.code not in NO_ROOM:
        return Reason(code=Code.NOT_WAITING, field="reason", detail="nobody has told it yet that there is no room")
    if state.tree.policy.backfill == "reserve" and _stands_behind_reserved(state, job):
        return Reason(code=Code.BEHIND_RESERVATION)
    # Who agreed within the hours may be moved after them: no more than an answer's time later.
    return awaits_answers(state, job) or (None if agreed_for(state, job) else outside_windows(state))


def _best(state: State, job: Job, flavor: str, avoid: tuple[str, ...], at_any_cost: bool) -> FoundRelocations | Reason:
    """The cheapest relocations over the GPU models on which the gang may be together; or why there are none."""
    places = FeasibleNodes({node.name: node for node in nodes_for(state, state.tree.pool(job.queue) or "", flavor)})
    found = [_Search(state, each, flavor, avoid).find(at_any_cost) for each in on_each_model(job, places)]
    # Nobody moves for the sake of one model while another one has the room, or is about to.
    waits = [each for each in found if isinstance(each, Reason) and each.code in FITS]
    moves = [each for each in found if not isinstance(each, Reason)]
    return waits[0] if waits else min(moves, key=lambda each: each.key) if moves else found[0]


def _stands_behind_reserved(state: State, job: Job) -> bool:
    """Room that somebody before it waits for is nobody's next place."""
    before = takewhile(lambda name: name != job.job_id, order_jobs(state, state.tree.pool(job.queue) or "", state.ts))
    jobs = (state.jobs.get(name) for name in before)
    return any(other.reason is not None and other.reason.code is Code.RESERVED for other in jobs if other is not None)


def _plan(state: State, job: Job, flavor: str, found: FoundRelocations) -> Plan | Reason:
    places = [*found.placements, *(place for move in found.moves for place in move.placements)]
    if plan_bytes(places) > PLAN_BYTES_MAX:
        return Reason(
            code=Code.NO_FIT, field="roles", numbers={"pods": len(places)}, detail="one plan cannot name them"
        )
    by_run = {candidate.run.run_id: candidate for candidate in found.taken}
    victims = tuple(victim_of(state, by_run[move.run_id]) for move in found.moves)
    net = min(net_gpu_seconds(state, job, [candidate.run for candidate in found.taken]), INT_MAX)
    return Plan(
        job.job_id, job.queue, "defragment", flavor, victims, found.placements, moves=found.moves, net_gpu_seconds=net
    )


class _Search:
    """Search for one job on nodes of one flavor; stopping runs count as gone for the job, not for relocated runs."""

    def __init__(self, state: State, job: Job, flavor: str, avoid: tuple[str, ...] = ()) -> None:
        self._state, self._job, self._flavor = state, job, flavor
        self._going = leaving(state)
        self._book = book_without(state, self._going)
        pool, shut = state.tree.pool(job.queue) or "", shut_for(state, job)
        nodes = {node.name: node for node in nodes_for(state, pool, flavor, avoid, shut=shut)}
        held = nodes_less(state, [(run.gang, places) for run, places in self._going])
        # For the owner, stopping runs are gone already. For relocated runs they are not, since their target must be
        # free now (`TargetCapacity`).
        self._nodes = nodes | {name: node for name, node in held.items() if name in nodes and name not in shut}
        self._places, self._bases = (
            FeasibleNodes(self._nodes, find_scoring_policy(state, pool)),
            NodesOfRuns(state),
        )
        self._most = most_to_lose(state, job)
        self._moves_max = state.tree.policy.defragment_moves_max
        self._bundle_sets = [bundles for group in placement_groups(job.roles) for bundles in group.bundle_sets]

    def find(self, at_any_cost: bool = False) -> FoundRelocations | Reason:
        over = self._book.lacks(self._job, self._flavor)
        if over is not None:
            return quota_reason(over)
        # Without any move it fits: then it is only not its turn, or what is stopping has to go first.
        if not isinstance(self._place(()), Reason):
            if not self._going:
                return Reason(code=Code.WAITING_FOR_TURN, detail="it fits as soon as it is its turn")
            return Reason(code=Code.WAITING_FOR_PREEMPTED, numbers={"runs_stopping": len(self._going)})
        every = self._movable()
        # One placement with everything movable gone bounds the search from below: what does not fit then fits after no
        # set of moves.
        lacking = self._place(every)
        if isinstance(lacking, Reason):
            return lacking
        # Who has agreed goes first: a plan that each time asks others would never be carried out.
        agreed = agreed_for(self._state, self._job)
        found = self._with([each for each in every if each.run.run_id in agreed]) if agreed else None
        if found is not None and _cost((kept := self._pruned(found)).taken) <= self._most:
            return kept
        # The cheapest run alone is a lower bound of every plan's loss. Where that is too much no set is tried at all.
        too_dear = every[0].cost > self._most
        found = self._cheapest(every) if at_any_cost or not too_dear else None
        if found is not None and _cost(found.taken) > self._most:
            return no_gain(self._state, self._job, _cost(found.taken))
        if too_dear:
            return no_gain(self._state, self._job, every[0].cost, at_least=True)
        found = found or self._by_steps(every)
        if found is not None:
            return found
        numbers = {"may_move": len(every), "moves_max": self._moves_max}
        return Reason(code=Code.NO_FIT, numbers=numbers, detail="no runs were found that fit elsewhere beside it")

    def _movable(self) -> list[Candidate]:
        """Runs on nodes that the job may use, cheapest first; a queue that is over its quota gets nobody back."""
        state, kinds = self._state, [bundles.kind for bundles in self._bundle_sets]
        # A run elsewhere would move and leave room that the job cannot use.
        useful = {name for kind in kinds for name in self._places.suited(kind)}
        runs = {run_id for name in useful for run_id in state.index.runs_on.get(name, ())}
        candidates = [
            Candidate(run, (), (0, 0), eviction_cost(state, run), run.placements, run.amount)
            for run in state.runs.found(sorted(runs))
            if may_move(state, self._job, run) is None and self._may_have_again(run)
        ]
        return sorted(self._within_limits(candidates), key=_order)

    def _within_limits(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that windows and budgets let move, all of them together: so that each set of them is within these."""
        agreed = agreed_for(self._state, self._job)
        if outside_windows(self._state) is not None:
            candidates = [each for each in candidates if each.run.run_id in agreed]
        left = MovesLeft(self._state, self._job)
        # Who has agreed first, or the budget of a tenant would be spent on runs that nobody has asked yet.
        first = sorted(candidates, key=lambda each: (each.run.run_id not in agreed, _order(each)))
        return [each for each in first if left.take(each.run) is None]

    def _may_have_again(self, run: Run) -> bool:
        # The run is taken out of the book for the question and put back: it must not compete with itself for what it
        # holds.
        self._book.add(run.queue, run.flavor, run.amount, -1)
        over = lacks_again(self._state, self._book, run)
        self._book.add(run.queue, run.flavor, run.amount)
        return over is None

    def _cheapest(self, candidates: Sequence[Candidate]) -> FoundRelocations | None:
        # Each try places a gang over all nodes, so that their product is what bounds the time; a few tries are made on
        # any cluster.
        tries = min(SETS_MAX, max(SETS_MIN, NODES_MAX // max(1, len(self._nodes))))
        for taken, _ in zip(self._sets(candidates), range(tries), strict=False):
            found = self._with(taken)
            if found is not None:
                return found
        return None

    def _sets(self, candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
        """Sets that are not too large, the cheapest first; of one cost the smaller, then by order."""
        # Sets by ascending cost without listing them all: each has exactly one parent, from which it comes by putting
        # the next candidate in place of its last or beside it. Candidates are sorted by cost, so that neither is
        # cheaper than the parent, and the heap never yields a set after a dearer one. At most two are pushed for each
        # that is tried.
        heap: list[tuple[int, int, tuple[int, ...]]] = [(candidates[0].cost, 1, (0,))] if candidates else []
        while heap:
            cost, size, chosen = heapq.heappop(heap)
            yield [candidates[at] for at in chosen]
            last = chosen[-1]
            if last + 1 == len(candidates):
                continue
            more = candidates[last + 1].cost
            heapq.heappush(heap, (cost - candidates[last].cost + more, size, (*chosen[:-1], last + 1)))
            if size < self._moves_max:
                heapq.heappush(heap, (cost + more, size + 1, (*chosen, last + 1)))

    def _by_steps(self, candidates: Sequence[Candidate]) -> FoundRelocations | None:
        """Node by node, passing over what could not go anywhere or costs too much."""
        taken: list[Candidate] = []
        for step in node_steps(self._bundle_sets, self._nodes, self._places, candidates):
            trial = [*taken, *step]
            # A step that does not fit is passed over and not the end: a later one may be smaller or cheaper.
            if len(trial) > self._moves_max or _cost(trial) > self._most:
                continue
            found = self._with(trial)
            if found is not None:
                return self._pruned(found)
            # Kept only if these runs find targets by themselves: with one that can go nowhere no larger set would ever
            # do.
            if self._landed(trial, TargetCapacity(self._bases)) is not None:
                taken = trial
        return None

    def _pruned(self, found: FoundRelocations) -> FoundRelocations:
        # The dearest first: of two that could each stay, that saves more.
        for candidate in sorted(found.taken, key=_order, reverse=True):
            fewer = [other for other in found.taken if other is not candidate]
            found = self._with(fewer) or found
        return found

    def _with(self, taken: Sequence[Candidate]) -> FoundRelocations | None:
        """Relocations of these runs; None when one finds no target, or none has to move."""
        placed = self._place(taken)
        if isinstance(placed, Reason):
            return None
        ground = TargetCapacity(self._bases)
        ground.take(self._job.gang, placed)
        moves = self._landed(taken, ground)
        return None if moves is None else FoundRelocations(tuple(sorted(taken, key=_order)), moves, placed)

    def _landed(self, taken: Sequence[Candidate], ground: TargetCapacity) -> tuple[Move, ...] | None:
        moves = []
        # Large runs have the fewest places. Small ones in front would break up what these need.
        for candidate in sorted(taken, key=_largest_first):
            run = candidate.run
            moved = self._state.jobs.get(run.job_id)
            placed = place_gang(run.roles, *ground.nodes(run, () if moved is None else moved.avoid))
            if isinstance(placed, Reason):
                return None
            ground.take(run.gang, placed)
            moves.append(Move(run_id=run.run_id, placements=placed))
        return tuple(moves)

    def _place(self, taken: Sequence[Candidate]) -> tuple[Placement, ...] | Reason:
        nodes: dict[str, Node] = dict(self._nodes)
        for candidate in taken:
            take(nodes, candidate)
        return place_gang(self._job.roles, nodes, self._places)


def _cost(candidates: Sequence[Candidate]) -> int:
    return sum(candidate.cost for candidate in candidates)


def _order(candidate: Candidate) -> tuple[int, str]:
    return candidate.cost, candidate.run.run_id


def _largest_first(candidate: Candidate) -> tuple[int, int, str]:
    return -candidate.amount.gpu_milli, -candidate.amount.cpu_milli, candidate.run.run_id
