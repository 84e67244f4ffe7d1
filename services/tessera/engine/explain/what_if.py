"""
What-if: would this job start now with a different spec, or if other runs had ended? Evaluated on an overlay.

The overlay is one on which all jobs before this one have had their turn. It asks the committer's questions, with the
same functions and in the same order; nothing of it is written. The exact position of the job under another queue or
class is not known: all jobs of that order then take what they can first, so that a "yes" holds.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy

from tessera.domain.devices.resources import Node, RoleNeed
from tessera.domain.entities import Job, Run
from tessera.domain.folding.fold import apply_record
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.starting import closing, explain_closing, start_timeout_ms
from tessera.engine.ahead.booked_nodes import BookedNodes, booked_reason, shut_for
from tessera.engine.placement.capacity import nodes_for
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.gangs import place_gang
from tessera.engine.queueing.ordering import order_jobs
from tessera.engine.queueing.own_place import own_place, place_given_back
from tessera.engine.queueing.readiness import (
    awaits_placement,
    budget_spent,
    explain_missing_pods,
    explain_rest,
    full_array,
    in_backoff,
    no_place_in_line,
    not_in_line,
    rests,
)
from tessera.engine.queueing.starting import Choice, choose
from tessera.engine.scoring.policies import find_scoring_policy
from tessera_schemas.ledger import Allocated, NodeDrained, Released
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.orders import HEADS_MAX
from tessera_schemas.work.placement import Placement

BEFORE_MAX = 32  # jobs that nobody has judged yet and that are judged first
PASSES_MAX = 64  # kinds of jobs before it that are tried again in all, where others would be gone
JUDGED = (
    Code.NO_FIT,
    Code.NO_NODES,
    Code.WAITING_FOR_QUOTA,
    Code.BEHIND_QUEUE_HEAD,
    Code.RESERVED,
    Code.BEHIND_RESERVATION,
    Code.WAITING_FOR_DATA,
    Code.NODES_BOOKED,
    Code.WAITING_FOR_WINDOW,
)
"""With such a reason a job was looked at when room last came free, and did not start."""

PoolNodes = tuple[dict[str, Node], FeasibleNodes]


class WhatIf:
    """
    `before` is the state that was asked about. `order` is every waiting job of the job's pool in order, `position` its
    own from 1 on, 0 when it has none.

    `tries` counts the verdicts given, `passes_left` bounds what is tried for others. `crowded` says that too many stand
    before it whom nobody has judged yet, so that nothing can be said for certain.
    """

    def __init__(self, state: State, job: Job, ts: int) -> None:
        self.before, self.state = state, state.overlay()
        self.state.ts = max(state.ts, ts)
        self.tries = 0
        self.passes_left = PASSES_MAX
        self.crowded = False
        self._job = job
        self._pools: dict[tuple[str, str, tuple[str, ...], frozenset[str]], PoolNodes] = {}
        self._book: QuotaBook | None = None
        self._passed: set[str] = set()
        self._counted: Counter[int] | None = None
        self.order = self._order(state.tree.pool(job.queue))
        self.position = self.order.index(job.job_id) + 1 if job.job_id in self.order else 0
        self._let_pass(self.order[: self.position - 1] if self.position else self.order)
        self.mark = self.state.earmarks.get(job.job_id)
        if own_place(self.state, job.job_id) is not None:
            # It starts with its own place and what is free beside it; to all others, who came first here, that is kept.
            apply_record(self.state, place_given_back(job.job_id), ())
            self._pools.clear()
            self._book = None

    def verdict(self, job: Job) -> Choice | Reason:
        """Choose where `job` would start now, or say why not. Raises Contradiction once the state has moved."""
        self.state.check_base()
        if (against := self.gate(job)) is not None:
            return against
        self.tries += 1
        return self._chosen(job)

    def after(self, job: Job, gone: Sequence[Run] = (), undrained: str = "") -> Choice | Reason:
        """
        Choose where `job` would start if these runs held nothing any more, or that node took work again; or say why
        not.

        Freed capacity is open to all: jobs before this one take of it first, as they would. There is no answer where
        they are too many to try.
        """
        # One overlay on top of the other: what is tried here is gone with it, and the next question begins from the
        # same state.
        one = copy(self)
        one.state, one._pools, one._book = self.state.overlay(), {}, None
        for run in gone:
            one.state.put_run(replace(run, over=True))
            apply_record(one.state, Released(kind="released", run_id=run.run_id), ())
        if undrained:
            apply_record(one.state, NodeDrained(kind="node_drained", node=undrained, undo=True), ())
        # The cheap question first: if the job does not fit even alone, nobody before it has to be tried.
        alone = one.verdict(job)
        self.tries = one.tries
        if isinstance(alone, Reason) or self.position == 1:
            return alone
        before = self.order[: self.position - 1] if self.position else self.order
        kinds = {(other.queue, other.roles) for other in one.state.jobs.found(before)}
        # No answer is better than a guess: whoever stands before it may take what was freed.
        if len(kinds) > self.passes_left:
            return Reason(code=Code.WAITING_FOR_TURN, numbers={"position": self.position})
        self.passes_left -= len(kinds)
        one._pass(one.state.jobs.found(before))
        return one.verdict(job)

    def _pass(self, jobs: Sequence[Job]) -> None:
        """Each starts where it can; what was refused to one is not asked again for its like until somebody starts."""
        refused: set[tuple[str, bool, tuple[RoleNeed, ...]]] = set()
        for job in jobs:
            alike = job.queue, self.state.tree.revocable(job), job.roles
            # Equal jobs are refused alike as long as nobody starts, so that a line of thousands costs as many tries as
            # it has kinds.
            if alike in refused or not self._waits(job, self._job):
                continue
            if self._start(job):
                refused.clear()
            else:
                refused.add(alike)

    def _chosen(self, job: Job) -> Choice | Reason:
        pool, shut = self.state.tree.pool(job.queue) or "", shut_for(self.state, job)

        def place(roles: tuple[RoleNeed, ...], flavor: str, avoid: tuple[str, ...]) -> tuple[Placement, ...] | Reason:
            found = place_gang(roles, *self.pool(pool, flavor, avoid, shut))
            if not isinstance(found, Reason) or not shut:
                return found

            def has_room() -> bool:
                return not isinstance(place_gang(roles, *self.pool(pool, flavor, avoid)), Reason)

            return booked_reason(self.state, BookedNodes(self.state, pool), job, has_room) or found

        return choose(self.state.tree, self.book, job, place)

    @property
    def book(self) -> QuotaBook:
        """Quota book of the what_if, made when first asked for."""
        if self._book is None:
            self._book = self.state.quota_book()
        return self._book

    def pool(
        self, pool: str, flavor: str, avoid: tuple[str, ...] = (), shut: frozenset[str] = frozenset()
    ) -> PoolNodes:
        """The nodes as decisions see them; which of them suit whom is found out once."""
        found = self._pools.get((pool, flavor, avoid, shut))
        if found is None:
            nodes = {node.name: node for node in nodes_for(self.state, pool, flavor, avoid, shut=shut)}
            found = self._pools[pool, flavor, avoid, shut] = (
                nodes,
                FeasibleNodes(nodes, find_scoring_policy(self.state, pool)),
            )
        return found

    def gate(self, job: Job) -> Reason | None:
        """The first of `gates` that keeps the job from being considered, whatever is free."""
        return next(iter(self.gates(job)), None)

    def gates(self, job: Job) -> list[Reason]:
        """All that keeps the job from being looked at, whatever is free."""
        state, tree = self.state, self.state.tree
        pool, absent = tree.pool(job.queue), no_place_in_line(tree, job)
        if pool is None or absent is not None:
            return [] if absent is None else [absent]
        found = list(self._waits_for(job))
        if job.hold is not None:
            found.append(job.hold)
        if job.away:
            found.append(explain_missing_pods(job))
        stopped = tree.stopped(job.queue)
        if stopped is not None:
            found.append(Reason(code=Code.QUEUE_STOPPED, field=f"queues.{stopped}"))
        if (spent := budget_spent(state, job)) is not None:
            found.append(spent)
        mark = state.earmarks.get(job.job_id)
        if mark is not None:
            stopping = sum(1 for run_id in mark.victims if state.runs.get(run_id) is not None)
            found.append(Reason(code=Code.WAITING_FOR_PREEMPTED, numbers={"runs_stopping": stopping}))
        elif unmade := rests(state, job):
            found.append(explain_rest(unmade))
        head, before = self.behind(job)
        if head is not None:
            numbers = {"jobs_of_its_queue_before_it": before}
            found.append(Reason(code=Code.BEHIND_QUEUE_HEAD, field=f"queues.{job.queue}", numbers=numbers))
        place = self._place_in(pool, job)
        if place > HEADS_MAX:
            detail = f"only the first {HEADS_MAX} are looked at"
            found.append(Reason(code=Code.WAITING_FOR_TURN, numbers={"position": place}, detail=detail))
        return found

    def _waits_for(self, job: Job) -> Iterator[Reason]:
        """The times and others that the job waits for, besides its turn."""
        state = self.state
        waits = not_in_line(job, state.ts)
        if waits is not None:
            yield waits
        elif (pause := in_backoff(job, state.ts)) is not None:
            yield pause
        closed = closing(state, job)
        if closed is not None:
            yield explain_closing(state, closed, job)
        full = full_array(state, job)
        if full is not None:
            yield full

    def behind(self, job: Job) -> tuple[Job | None, int]:
        """The first job of the same queue that it may not pass, and how many of its queue stand before it."""
        state, tree = self.state, self.state.tree
        if tree.queues[job.queue].queueing_strategy != "strict_fifo":
            return None, 0
        key = (-tree.priority_of(job), job.taken_n, job.fact_index, job.job_id)
        before = [
            other
            for place in state.index.waiting.get(job.queue, ())
            if place < key and (other := state.jobs.get(place[-1])) is not None and self._waits(other, job)
        ]
        return (before[0] if before else None), len(before)

    def _waits(self, other: Job, job: Job) -> bool:
        return other.job_id != job.job_id and awaits_placement(self.state, other)

    def _place_in(self, pool: str, job: Job) -> int:
        """Position of the job in the order; in another queue or class, behind all that might come before it."""
        if job.queue != self._job.queue:
            return 1 + len(self._others(pool))
        if job.priority_class == self._job.priority_class:
            return self.position
        # Behind all of an equal or higher class: how shares would order them is not known, and from the last place a
        # yes holds from any other.
        wanted = self.state.tree.priority_of(job)
        return 1 + sum(count for priority, count in self._priorities.items() if priority >= wanted)

    @property
    def _priorities(self) -> Counter[int]:
        """Jobs in the order by priority, counted when first asked for: the order may name a hundred thousand."""
        if self._counted is None:
            self._counted = Counter(map(self.state.tree.priority_of, self.state.jobs.found(self.order)))
        return self._counted

    def _others(self, pool: str) -> list[str]:
        """All jobs in the pool's order, once they have had their turn."""
        if pool == self.state.tree.pool(self._job.queue):
            return self.order
        if pool not in self._passed:
            self._passed.add(pool)
            self._let_pass(self._order(pool))
        return self._order(pool)

    def _order(self, pool: str | None) -> list[str]:
        return [] if pool is None else list(order_jobs(self.state, pool, self.state.ts))

    def _let_pass(self, names: Sequence[str]) -> None:
        """Start those of `names` that had no turn yet where they fit, as they would start in the next message."""
        state = self.state
        # Only whom nobody has judged yet: all others were refused when room last came free, and would be again.
        fresh = [
            job
            for job in state.jobs.found(names[:HEADS_MAX])
            if job.job_id != self._job.job_id
            and (job.reason is None or job.reason.code not in JUDGED)
            and state.earmarks.get(job.job_id) is None
        ]
        self.crowded = self.crowded or len(fresh) > BEFORE_MAX
        for job in fresh[:BEFORE_MAX]:
            self._start(job)

    def _start(self, job: Job) -> bool:
        state = self.state
        may_start = full_array(state, job) is None and self.behind(job)[0] is None and not rests(state, job)
        found = self._chosen(job) if may_start else None
        if found is None or isinstance(found, Reason):
            return False
        flavor, placements = found
        record = Allocated(
            kind="allocated",
            job_id=job.job_id,
            attempt=job.attempt + 1,
            deadline=state.ts + start_timeout_ms(state, job),
            placements=placements,
            flavor=flavor,
        )
        apply_record(state, record, ())
        # Free capacity and quota are read anew after each start; both were of the state before it.
        self._pools.clear()
        self._book = None
        return True
