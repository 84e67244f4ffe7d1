"""
Victim search: candidates whose end makes room for a gang, with the real placement at every step as proof of the plan.

The search walks forward and back, as Kueue's does: pieces are taken in an order until quota and nodes hold the gang,
then whatever turns out not to be needed is given back, the dearest first. Several orders are tried and the cheapest
outcome wins. *By node* (`node_steps`): room comes in places where a pod fits and not in crumbs all over. *By cost*: one
piece after the other, and the same by the cost of what each gives back, for what only quota keeps waiting.
The search is bounded by counts; where the walk back runs out of them, a plan may take more than it must.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from tessera.domain.devices.networks import pools_drawn
from tessera.domain.devices.resources import Node
from tessera.domain.entities import Job
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import count_bundles
from tessera.engine.placement.gangs import place_gang
from tessera.engine.placement.placement_groups import placement_groups
from tessera.engine.preemption.candidates import Candidate
from tessera.engine.preemption.node_steps import node_steps, take
from tessera.engine.preemption.reprieve import Fixed
from tessera.engine.preemption.rules import may_evict, may_shrink
from tessera.engine.queueing.readiness import lacks_quota
from tessera.engine.scoring.policies import find_scoring_policy
from tessera_schemas.facts import PlanCause
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement

WALK_BACK_PODS = 2048  # pods placed by the last part of one walk back, all its tries together
SINGLES_MAX = 256  # pieces up to which the order by cost is tried for room, too; of more, so many with network devices
TAKEN_MAX = 1024  # pieces that one order may take before it is given up

VictimsKey = tuple[tuple[int, int], int, int, tuple[tuple[tuple[int, int], int, str, int], ...]]
"""The dearest level taken, the cost of all, how many, which."""


@dataclass(frozen=True, slots=True)
class FoundVictims:
    """Victims, in an order in which each may be taken, and the gang's placement then."""

    taken: tuple[Candidate, ...]
    placements: tuple[Placement, ...]

    @property
    def key(self) -> VictimsKey:
        """The better outcome is the smaller: nothing dear, then little, then few; unique."""
        dearest = max((candidate.level for candidate in self.taken), default=(-1, 0))
        return (
            dearest,
            sum(candidate.cost for candidate in self.taken),
            len(self.taken),
            tuple(candidate.key for candidate in self.taken),
        )


class Search:
    """
    Victim search for one job on the nodes of one flavor. `nodes` and `book` are without everything that comes free by
    itself; `candidates` gives what may be taken, cheapest first, and is called only when needed. `keeper` is the queue
    for whose own quota something is reclaimed.
    """

    def __init__(
        self,
        state: State,
        job: Job,
        cause: PlanCause,
        flavor: str,
        nodes: dict[str, Node],
        book: QuotaBook,
        candidates: Callable[[], Sequence[Candidate]],
        keeper: str,
    ) -> None:
        self._state, self._job, self._cause, self._flavor = state, job, cause, flavor
        self._nodes, self._book, self._candidates, self._keeper = nodes, book, candidates, keeper
        self._places = FeasibleNodes(nodes, find_scoring_policy(state, state.tree.pool(job.queue) or ""))
        self._bundle_sets = [bundles for group in placement_groups(self._job.roles) for bundles in group.bundle_sets]
        # Asked once, for the whole search: while quota is there, each look at victims is saved one walk through the
        # book.
        self._short_of_quota = self._lacks_quota(()) is not None
        self._short_of_room = False

    def find(self) -> FoundVictims | Reason:
        """The cheapest that was found; or why even everything that may be taken is not enough."""
        verdict = self._lacks_quota(())
        placed = self._place(())
        if isinstance(placed, Reason):
            self._short_of_room, verdict = True, verdict or placed
        elif verdict is None:
            return FoundVictims((), placed)
        # Levels are opened one after the other, and a dearer one only where all of the cheaper ones together are not
        # enough. So no run of a higher class goes while lower ones suffice, whatever the costs within a level add up
        # to.
        emptied, candidates, done = dict(self._nodes), self._candidates(), 0
        # A reclaim that takes nothing lent would be a preemption that the preset may forbid, under a name that it may
        # not.
        if self._cause == "reclaim" and not any(candidate.is_lent for candidate in candidates):
            candidates = ()  # nothing was lent: what its own queue has to give is preemption's
        for level in sorted({candidate.level for candidate in candidates}):
            upto = [candidate for candidate in candidates if candidate.level <= level]
            for candidate in upto[done:]:
                take(emptied, candidate)
            done = len(upto)
            # The cheap question first: one placement with everything gone tells whether this level can hold the gang at
            # all, before orders and walks are paid for.
            lacking = self._lacks(upto, emptied)
            best = self._best(upto, emptied) if lacking is None else None
            if best is not None:
                return best
            verdict = lacking or verdict
        assert verdict is not None
        return verdict

    def _lacks(self, taken: Sequence[Candidate], emptied: Mapping[str, Node]) -> Reason | None:
        """The reason that still holds when all of `taken` is gone."""
        lacking = self._lacks_quota(taken)
        if lacking is None:
            placed = place_gang(self._job.roles, emptied, self._places)
            lacking = placed if isinstance(placed, Reason) else None
        return lacking

    def _best(self, candidates: Sequence[Candidate], emptied: Mapping[str, Node]) -> FoundVictims | None:
        """The best outcome of the orders, over the nodes that could take a pod when emptied."""
        every = self._nodes, self._places
        if not any(bundles.role.spread for bundles in self._bundle_sets):  # a spread counts full nodes' values, too
            suited = [(each.kind, self._places.suited(each.kind)) for each in self._bundle_sets]
            # A node that takes no pod even when emptied cannot be part of any outcome, so that leaving it out changes
            # nothing but the cost of each placement.
            useful = {name for kind, names in suited for name in names if count_bundles(kind, emptied[name])}
            self._nodes = {name: node for name, node in self._nodes.items() if name in useful}
            self._places = FeasibleNodes(self._nodes, self._places.scoring)
        found = [self._by(groups) for groups in self._orders(candidates)]
        if not any(found):
            # `_lacks` said that all of them together are enough, but an order by steps may have left out pieces that
            # only quota needs: the plain order has every piece.
            found = [self._by([candidate] for candidate in candidates)]
        self._nodes, self._places = every
        return min((each for each in found if each is not None), key=lambda each: each.key, default=None)

    def _orders(self, candidates: Sequence[Candidate]) -> Iterator[Iterable[Sequence[Candidate]]]:
        if self._short_of_room:
            steps = node_steps(self._bundle_sets, self._nodes, self._places, candidates)
            named = {id(candidate) for step in steps for candidate in step}
            yield [*steps, *([candidate] for candidate in candidates if id(candidate) not in named)]
        if not self._short_of_room or len(candidates) <= SINGLES_MAX:
            yield ([candidate] for candidate in candidates)
        elif any(bundles.role.need.claims for bundles in self._bundle_sets):
            # Devices of a network come free wherever their holder is: the steps above look at a node's own alone.
            of_networks = (candidate for candidate in candidates if pools_drawn(candidate.places))
            yield ([candidate] for candidate in islice(of_networks, SINGLES_MAX))
        if self._short_of_quota:
            yield ([candidate] for candidate in sorted(candidates, key=_per_amount))

    def _by(self, groups: Iterable[Sequence[Candidate]]) -> FoundVictims | None:
        """The shortest beginning of `groups` that is enough, less what is not needed."""
        taken, ends = list[Candidate](), [0]
        admitted = _Admission(self._state, self._job, self._cause, self._flavor, self._book)
        rest = iter(groups)
        while self._enough(taken) is None:
            # Doubling, then halving: a beginning of length k is found with about 2 log k placements in place of k. That
            # is right as far as more room never makes a gang fit less, which best fit obeys almost always; a miss costs
            # a dearer plan and never a wrong one, since `_enough` proves the one that is taken.
            more = [group for _, group in zip(range(len(ends)), rest, strict=False)]  # twice as many each time
            # The bound caps memory and placements of one order. A plan that takes a thousand runs could not be written
            # down anyway (`VICTIMS_MAX`).
            if not more or len(taken) > TAKEN_MAX:
                return None
            for group in more:
                taken += admitted.of(group)
                ends.append(len(taken))
        low, high = 0, len(ends) - 1  # the first `high` groups are enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._enough(taken[: ends[middle]]) is None else (low, middle)
        return self._pruned(taken[: ends[high]])

    def _enough(self, taken: Sequence[Candidate]) -> tuple[Placement, ...] | None:
        if self._short_of_quota and self._lacks_quota(taken) is not None:
            return None
        placed = self._place(taken)
        return None if isinstance(placed, Reason) else placed

    def _pruned(self, taken: Sequence[Candidate]) -> FoundVictims | None:
        """Give back what is not needed, the dearest first: while each pod stays on its node, then wherever it goes."""
        placed = self._enough(taken)
        if placed is None:
            return None
        # First pass: pods keep their nodes, so that each return costs one node's arithmetic and no placement. Most
        # pieces that are not needed go back here.
        fixed, back = Fixed(self._job.roles, self._nodes, taken, placed), set[int]()
        self._count(taken, -1)
        # The dearest first: what is given back early has the most room to return to.
        for candidate in _dearest_first(taken):
            self._count((candidate,), 1)
            if self._quota_as_booked() is None and fixed.give_back(candidate):
                back.add(id(candidate))
            else:
                self._count((candidate,), -1)
        kept = [candidate for candidate in taken if id(candidate) not in back]
        self._count(kept, 1)
        return self._walked_back(kept, self._enough(kept) or fixed.placements())

    def _walked_back(self, kept: list[Candidate], placed: tuple[Placement, ...]) -> FoundVictims:
        # Second pass: whole placements, and so a bound on pods placed. A large gang gets few tries, but always some.
        tries, before = max(8, WALK_BACK_PODS // self._job.pods), -1
        # Ends, since each round drops a piece or is the last.
        while len(kept) != before:  # a smaller set may let another one go, since best fit is no exact search
            before = len(kept)
            for candidate in _dearest_first(kept):
                fewer = [other for other in kept if other is not candidate]
                again = self._enough(fewer) if tries > 0 else None
                tries -= 1
                if again is not None:
                    kept, placed = fewer, again
        return FoundVictims(tuple(kept), placed)

    def _place(self, taken: Iterable[Candidate]) -> tuple[Placement, ...] | Reason:
        nodes = dict(self._nodes)
        for candidate in taken:
            take(nodes, candidate)
        return place_gang(self._job.roles, nodes, self._places)

    def _lacks_quota(self, taken: Sequence[Candidate]) -> Reason | None:
        self._count(taken, -1)
        lacking = self._quota_as_booked()
        self._count(taken, 1)
        return lacking

    def _count(self, candidates: Iterable[Candidate], sign: int) -> None:
        for candidate in candidates:
            self._book.add(candidate.run.queue, candidate.run.flavor, candidate.amount, sign)

    def _quota_as_booked(self) -> Reason | None:
        """Why the job may not start as the book stands now."""
        return lacks_quota(self._book, self._job, self._flavor, self._cause, self._keeper)


class _Admission:
    """Candidates that may still be taken after those before them: a queue gives back its loan and no more."""

    def __init__(self, state: State, job: Job, cause: PlanCause, flavor: str, book: QuotaBook) -> None:
        self._ask = state, job, cause, flavor
        self._book = book.copy()
        self._spent: set[tuple[str, str, bool, bool, bool]] = set()

    def of(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Candidates among `candidates` that may be taken now; they count as taken from here on."""
        return (
            list(candidates)
            if self._ask[2] != "reclaim"
            else [candidate for candidate in candidates if self._takes(candidate)]
        )

    def _takes(self, candidate: Candidate) -> bool:
        (state, job, cause, flavor), run, amount = self._ask, candidate.run, candidate.amount
        asked = run.queue, run.flavor, amount.cpu_milli > 0, amount.memory_bytes > 0, amount.gpu_milli > 0
        # Taking more from a queue only lowers what it holds on loan, so a refusal stands for the rest of the order:
        # without it each candidate of that queue would ask the tree again.
        if asked in self._spent:  # what a queue does not hold any more, it does not hold later
            return False
        against = None
        if not candidate.ranks:
            against = may_evict(state, job, run, cause, self._book, flavor)
        elif candidate.is_lent:
            against = may_shrink(state, job, run, candidate.ranks, cause, self._book, flavor)
        if against is not None:
            self._spent.add(asked)
            return False
        # Counted as gone at once, so that the next candidate of the same queue is judged by what is left of the loan.
        self._book.add(run.queue, run.flavor, amount, -1)
        return True


def _dearest_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda candidate: candidate.key, reverse=True)


def _per_amount(candidate: Candidate) -> tuple[tuple[int, int], int, int, str, int]:
    """Sort key: cost per resource given back, within one class; among equals the larger piece first."""
    amount = max(1, candidate.amount.gpu_milli or candidate.amount.cpu_milli)
    return candidate.level, candidate.cost // amount, -amount, *candidate.key[2:]
