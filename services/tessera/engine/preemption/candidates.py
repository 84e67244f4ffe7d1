"""
Candidates: pieces that may be taken away for a waiting job, and the work that each would lose.

A piece is a whole run (gangs go whole), or one pod or copy of a group by which an elastic run grew. The cheapest come
first: what elastic runs grew by; then runs whose budget is spent; then what other queues were lent; then the owner's
own queue; in each the lowest class first, and of one class what loses the least work.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tessera.domain.devices.resources import WHOLE_GPU, Amount
from tessera.domain.entities import Job, Run
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.engine.preemption.rules import budget_against, is_beside_gpus, may_evict, may_shrink
from tessera_schemas.facts import PlanCause
from tessera_schemas.reasons import Code
from tessera_schemas.work.placement import Placement

RESTART_MS = 300_000
"""What every eviction loses besides work: stop, queue, start, warm up. So ten small victims are not free."""

ELASTIC, UNPAID, LENT, OWN, SPENT = range(5)
"""
Whose it is. UNPAID: its job's budget is spent. SPENT: lent, but evicted as often as its job may be; it goes where
nothing else is left.
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    One piece, what it holds, and what taking it costs in thousandths of a GPU times milliseconds.

    `ranks` are those of a pod beyond a gang, or of a copy of a group; none for the whole run. A whole run counts
    without the pods that it grew by, which are pieces of their own and cheaper.
    """

    run: Run
    ranks: tuple[int, ...]
    level: tuple[int, int]
    cost: int
    places: tuple[Placement, ...]
    amount: Amount

    @property
    def is_lent(self) -> bool:
        """Tells whether the piece counts as lent quota, be the eviction budget of its job spent or not."""
        return self.level[0] in (LENT, SPENT)

    @property
    def key(self) -> tuple[tuple[int, int], int, str, int]:
        """Cheapest first, of one elastic run the pods that came last; unique."""
        return self.level, self.cost, self.run.run_id, -self.ranks[0] if self.ranks else 0


def find_candidates(
    state: State, job: Job, cause: PlanCause, book: QuotaBook, flavor: str
) -> tuple[list[Candidate], "Counter[Code]"]:
    """Candidates for `job`, cheapest first, and the number of protected runs by the rule that protects them."""
    found, kept = list(_grown(state, job, cause, book, flavor)), Counter[Code]()
    tree = state.tree
    for run in state.runs.values():
        ours, unpaid = run.queue == job.queue, cause == "preemption" and _is_unpaid(state, job, run)
        theirs = cause == "reclaim" and (tree.is_beside(run.queue, job.queue) or is_beside_gpus(state, job, run))
        if not run.started or run.stopping or not (ours or theirs or unpaid):
            continue
        # The book is the one before any victim: here a run counts as lent if its queue holds anything on loan. That
        # each loan is taken back only once is checked later, piece by piece (`_Admission`).
        against = may_evict(state, job, run, cause, book, flavor)
        if against is None:
            found.append(_whole(state, run, UNPAID if unpaid else OWN if ours else _lent(state, run)))
        else:
            kept[against.code] += 1
    return sorted(found, key=lambda candidate: candidate.key), kept


def _is_unpaid(state: State, job: Job, run: Run) -> bool:
    victim = state.jobs.get(run.job_id) if state.budgets else None
    return victim is not None and budget_against(state, job, victim) is not None


def _lent(state: State, run: Run) -> int:
    job = state.jobs.get(run.job_id)
    return LENT if job is not None and job.evictions < state.tree.policy.evictions_max else SPENT


def _grown(state: State, job: Job, cause: PlanCause, book: QuotaBook, flavor: str) -> Iterator[Candidate]:
    """The pods that elastic runs grew by; the newest go first, which have done the least."""
    wanted = state.tree.priority_of(job)
    for run in state.runs.found(state.index.elastic):
        # The committer takes a copy whole, so that a part of one is worth nothing to who waits.
        staying = {extra.placement.rank: extra.placement for extra in run.surplus}
        copies = {tuple(sorted(run.gang.whole_copies((rank,)) & staying.keys())) for rank in staying}
        for ranks in sorted(copies):
            if may_shrink(state, job, run, ranks, cause, book, flavor) is not None:
                continue
            places = tuple(staying[rank] for rank in ranks)
            amount, priority = run.gang.amount_of(places), _priority(state, run)
            # A pod beyond a gang costs its run no restart, so that it goes before any whole run. One of a higher class
            # than the job is a candidate for lent quota alone, and so stands among the lent pieces.
            level = ELASTIC if priority <= wanted else LENT, priority
            yield Candidate(run, ranks, level, weight(amount), places, amount)


def _whole(state: State, run: Run, whose: int) -> Candidate:
    # Surplus pods are candidates of their own. Counted here as well, they would be given back twice in one plan.
    places = run.gang_places
    amount = run.gang.amount_of(places) if run.extra else run.amount
    return Candidate(run, (), (whose, _priority(state, run)), eviction_cost(state, run), places, amount)


def eviction_cost(state: State, run: Run) -> int:
    """Work lost by stopping the run, in thousandths of a GPU times milliseconds; ended pods begin again, too."""
    # Pods that have ended hold nothing and yet begin again with the gang, so that their work is lost, too.
    whole = run.gang.amount_of(run.all_placements) if run.released_ranks else run.amount
    return weight(whole) * (lost_ms(state, run) + RESTART_MS)


def lost_ms(state: State, run: Run) -> int:
    """Time that the run has worked since its last checkpoint."""
    return max(0, state.ts - max(run.saved_ts, run.started_ts))


def weight(amount: Amount) -> int:
    """Thousandths of GPUs; what holds none counts as one."""
    return amount.gpu_milli or WHOLE_GPU


def _priority(state: State, run: Run) -> int:
    return state.tree.priority_of(state.jobs.get(run.job_id))
