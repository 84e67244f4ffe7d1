"""
Queue order of a pool: within nominal quota first, then priority class, then fair share, then the queue's order.

At every inner queue a child that stays within its nominal quota goes before one that would borrow, whatever their
classes: else a class that many may use could keep an owner out. Then the higher class goes first. Among equals the
fair share decides, which is dominant resource fairness: first is whose runs hold the least of the pool for their
weight, where what the line gives them counts as held. It decides between the queues below one, in a queue between its
tenants, and for a tenant between the users that its jobs name; so a flood of one delays the others by no more than
their shares. Weight 0 goes only when nobody with a weight asks. Jobs that share nothing with each other go by their
queue's `order` (`queueing.orders`). A queue that is `strict_fifo` goes by class and age alone. Jobs in back-off, held
jobs and jobs of stopped queues are left out.

Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011, section 4.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace, merge
from itertools import chain, islice

from tessera.domain.devices.resources import NOTHING, Amount
from tessera.domain.entities import Job
from tessera.domain.queues import UNLIMITED
from tessera.domain.state import Bucket, QueuedJob, State, WaitingKind
from tessera.domain.work.gang import Gang
from tessera.domain.work.starting import refuses_pods
from tessera.engine import ORDER_ENGINE_ID
from tessera.engine.queueing.orders import ORDERS, WaitingJobs
from tessera.engine.queueing.own_place import own_place
from tessera.engine.queueing.scheduling_pass import CapacityCache, SchedulingPass
from tessera_schemas.config import OrderName
from tessera_schemas.reasons import Code
from tessera_schemas.shard.orders import HEADS_MAX

STAY = HEADS_MAX - 128
"""
So many first jobs of a line stay in its order, blocked or not: room is made for the first ones, and told to them.

Beyond `TOLD`, counted are those that the nodes could hold if they were empty: a thousand tasks that wait for a
drained model would else keep the first one that can be helped out of every order, and no room is kept for it.
"""

TOLD = 64
"""So many first jobs of a line stay whatever they wait for, so that they are told."""

STUCK = (Code.NO_FIT, Code.WAITING_FOR_QUOTA, Code.RESERVED, Code.DOES_NOT_STOP)
"""What others' leaving would change. The committer has tried such a job and said so."""

EQUAL_MAX = 8
"""So many equal jobs of a line are planned for at a time: what is against one is against all."""

SHARE_UNIT = 1_000_000
WEIGHT_UNIT = 1_000_000

BranchKey = tuple[bool, int, int, int, int, int, str]
"""Whether it borrows, -priority, 1 for weight 0, share for the weight, the first job's age (ledger n, index) and id."""

MayStart = Callable[[Job], bool]

SortKey = tuple[int, int, int]
FREE: SortKey = (UNLIMITED, UNLIMITED, UNLIMITED)
"""Nothing that it holds is borrowed."""


def order(state: State, pool: str, ts: int, known: CapacityCache | None = None) -> tuple[str, ...]:
    """
    The ids of the next jobs of the pool as of `state` and the time `ts`, at most 512.

    In a longer line, jobs beyond the first `STAY` that certainly find no quota or no room, or whose namespace refuses
    pods, make way for those behind the 512 that may: so many blocked jobs keep nobody from idle nodes. A strict queue
    gives way as a whole or not at all.
    `known` carries from one order to the next what is known of the nodes; the order is the same with and without.
    """
    return _order(state, pool, ts, known, counts_all=False)


def order_until_nine(state: State, pool: str, ts: int, known: CapacityCache | None = None) -> tuple[str, ...]:
    """The rule of orders of `tessera-6`: among the first `STAY` count those that no node could hold, too."""
    return _order(state, pool, ts, known, counts_all=True)


def _order(state: State, pool: str, ts: int, known: CapacityCache | None, counts_all: bool) -> tuple[str, ...]:
    heads = tuple(islice(order_jobs(state, pool, ts, sums_alone=counts_all), HEADS_MAX))
    # A line that fits into one order needs nobody to make way: the shortcut is the usual case, and no node is looked
    # at.
    if len(heads) < HEADS_MAX:
        return heads
    places = SchedulingPass(state, pool, known)

    def may_start(job: Job) -> bool:
        return not refuses_pods(state, job.tenant) and places.may_start(job)

    # Blocked jobs give their places only to jobs that may start, and only from place `STAY` on: the first ones keep
    # theirs, since reservations and plans are made for them.
    first = heads if counts_all else chain(heads[:TOLD], order_jobs(state, pool, ts, places.could_start))
    able = order_jobs(state, pool, ts, may_start, counts_all)
    named, stay, come = set(heads), set[str](), dict[str, None]()
    # No further than fills the order: the line behind may have a hundred thousand jobs.
    for jobs, most in ((first, STAY), (able, HEADS_MAX)):
        for job_id in jobs:
            if len(stay) + len(come) == most:
                break
            if job_id in named:
                stay.add(job_id)
            else:
                come[job_id] = None
    # Only as many leave as come, the last ones first to go: a blocked job stays named wherever nobody takes its place.
    gone = set([job_id for job_id in heads if job_id not in stay][HEADS_MAX - len(stay) - len(come) :])
    return (*(job_id for job_id in heads if job_id not in gone), *come)


def first_in_line(state: State, pool: str, ts: int, known: CapacityCache | None = None) -> tuple[str, ...]:
    """The ids of the first 512 jobs of the pool's line, whatever keeps them waiting: the rule of orders until 0.3."""
    return tuple(islice(order_jobs(state, pool, ts, sums_alone=True), HEADS_MAX))


RULES = {"tessera-5": first_in_line, "tessera-6": order_until_nine, ORDER_ENGINE_ID: order}
"""The rules of orders that this build computes, by the engine id that an order carries."""


def order_jobs(
    state: State, pool: str, ts: int, may_start: MayStart | None = None, sums_alone: bool = False
) -> Iterator[str]:
    """
    All eligible jobs of the pool, in their order; with `may_start` only those of kinds for which it holds.

    `sums_alone`: as up to `tessera-6`, when an owner below an inner queue was a borrower where that held more in sum.
    """
    capacity = state.index.capacity.get(pool, NOTHING)
    roots = sorted({state.tree.roots[queue] for queue in state.tree.queues_of.get(pool, ())})
    making = _Making(state, capacity, ts, may_start, sums_alone)
    return _merged([branch for root in roots if (branch := making.queue(root)) is not None])


def stuck_heads(state: State, ts: int, heads: int) -> list[Job]:
    """
    Jobs that found no room or quota, the first `heads` of each pool without an earmark, in their order.

    Counted are those alone for whom a plan can be of use: of equal jobs the first `EQUAL_MAX`, and no job that would
    find no room though every run were gone.
    """
    found: list[Job] = []
    for pool in sorted(state.tree.queues_of):
        found += islice(_helpable(state, pool, ts), heads)
    return found


def _helpable(state: State, pool: str, ts: int) -> Iterator[Job]:
    places, tree = SchedulingPass(state, pool), state.tree
    ahead = places.timeline()
    equal = Counter[tuple[str, str, Gang, int]]()
    for job_id in islice(order_jobs(state, pool, ts, places.could_start), HEADS_MAX):
        job = state.jobs.get(job_id)
        if job is None or job.reason is None or job.reason.code not in STUCK:
            continue
        if state.earmarks.get(job_id) is not None and own_place(state, job_id) is None:
            continue
        kind = job.queue, job.tenant, job.gang, tree.priority_of(job)
        # An array for a drained model takes no place among the heads.
        helps = any(ahead.can_ever(job, flavor) for flavor in tree.flavors_for(job.queue, job.amount))
        if helps and equal[kind] < EQUAL_MAX:
            equal[kind] += 1
            yield job


def dominant_share(held: Amount, capacity: Amount) -> int:
    """Largest part of any one resource of the pool that is held, in parts per million; what nobody has counts not."""
    # A resource that the pool has none of is left out. Divided by nothing it would make every holder's share infinite.
    pairs = (
        (held.cpu_milli, capacity.cpu_milli),
        (held.memory_bytes, capacity.memory_bytes),
        (held.gpu_milli, capacity.gpu_milli),
    )
    return max((use * SHARE_UNIT // size for use, size in pairs if size > 0), default=0)


def weighted_share(held: Amount, capacity: Amount, weight: int) -> tuple[int, int]:
    """Orders queues by what they hold for their weight; weight 0 comes after every other."""
    share = dominant_share(held, capacity)
    # Integers in place of a fraction: floats would order two queues differently on two machines, and an order must be
    # computed again byte by byte.
    return (0, share * WEIGHT_UNIT // weight) if weight else (1, share)


def held_below(state: State, queue: str) -> Amount:
    """Amount that the runs of a leaf, or of all leaves below an inner queue, hold."""
    total = state.held_by_queue(queue)
    for child in state.tree.children.get(queue, ()):
        total = total.plus(held_below(state, child))
    return total


def next_retry(state: State, ts: int) -> int | None:
    """Time at which the next job in back-off becomes eligible; None when none is waiting."""
    later = state.index.retry_at.irange((ts + 1,))
    return next((not_before for not_before, _ in later), None)


class _Branch:
    """
    A queue, tenant or user with somebody waiting: its next job, and what it holds with what the line gave it.

    `own` is how much of each resource it may hold without borrowing.
    """

    def __init__(self, making: "_Making", held: Amount, weight: int = 1, own: SortKey = FREE) -> None:
        self._weight, self.own, self._capacity, self.held = weight, own, making.capacity, held
        self._priority = making.state.tree.priority_of
        self.first: Job

    @property
    def key(self) -> BranchKey:
        job, share = self.first, weighted_share(self.held, self._capacity, self._weight)
        # The order of these parts is the rule of the module's first lines: owners before borrowers, whatever their
        # class; only then class, share and age. The id makes the key unique, so that no comparison reaches a branch.
        return (self._borrows(job), -self._priority(job), *share, job.taken_n, job.fact_index, job.job_id)

    def _borrows(self, job: Job) -> bool:
        if self.own is FREE:
            return False
        held, more, (cpu, memory, gpu) = self.held, job.amount, self.own
        return (
            held.cpu_milli + more.cpu_milli > cpu
            or held.memory_bytes + more.memory_bytes > memory
            # A job without GPUs is no borrower of GPUs though its queue holds more of them than its own: it adds none.
            or (more.gpu_milli > 0 and held.gpu_milli + more.gpu_milli > gpu)
        )

    def advance(self) -> bool:
        """Give the first job its place; False when nobody is left."""
        # What the line gives counts as held from here on. Without this, one queue with the least share would get all
        # places in a row.
        self.held = self.held.plus(self.first.amount)
        return self._next()

    def _next(self) -> bool:
        raise NotImplementedError


class _Leaf(_Branch):
    """Jobs that share nothing: they stand by class, and by the order of their queue."""

    def __init__(
        self, making: "_Making", jobs: Iterator[Job], held: Amount, weight: int = 1, own: SortKey = FREE
    ) -> None:
        super().__init__(making, held, weight, own)
        self._jobs = jobs
        self.waits = self._next()

    def _next(self) -> bool:
        job = next(self._jobs, None)
        if job is not None:
            self.first = job
        return job is not None


class _Inner(_Branch):
    """Branches that share."""

    def __init__(
        self, making: "_Making", below: list[_Branch], held: Amount, weight: int = 1, own: SortKey = FREE
    ) -> None:
        super().__init__(making, held, weight, own)
        self._sums_alone, self._heap = making.sums_alone, _heap(below)
        self.first = self._heap[0][1].first

    def _borrows(self, job: Job) -> bool:
        # What its owner lacks may be lent below this very queue, and comes back from there: the owner borrows nothing
        # from beside it. Tenants and users have no quota, so that their queue alone is asked.
        first = self._heap[0][1]
        alone = self._sums_alone or first.own is FREE
        return super()._borrows(job) and (alone or first._borrows(job))

    def _next(self) -> bool:
        found = _pop(self._heap)
        if found:
            self.first = self._heap[0][1].first
        return found


class _Making:
    """Makes the branches of one line, as far as somebody waits in them."""

    def __init__(self, state: State, capacity: Amount, ts: int, may_start: MayStart | None, sums_alone: bool) -> None:
        self.state, self.capacity, self._ts, self._may_start = state, capacity, ts, may_start
        self.sums_alone = sums_alone

    def queue(self, name: str) -> _Branch | None:
        """The queue with everything below it."""
        tree, queue = self.state.tree, self.state.tree.queues[name]
        if queue.stop_policy != "none":
            return None
        # A root has nobody to borrow from.
        own = FREE if queue.parent is None else tree.own[name]
        held = held_below(self.state, name)
        children = tree.children.get(name)
        if children is not None:
            return self._shared([self.queue(child) for child in children], held, queue.weight, own)
        tenants = self.state.index.lines.get(name, {})
        if queue.queueing_strategy == "strict_fifo":
            # Strict order knows no tenants and no shares: the first job by class and age is the only one that may
            # start, so it alone is asked whether it may.
            leaf = self._leaf(WaitingJobs(self.state.index.waiting.get(name, ()), {}), "age", held, queue.weight, own)
            return leaf if leaf is None or self._may_start is None or self._may_start(leaf.first) else None
        # One tenant alone shares with nobody: a level less in the heap for each of its jobs.
        if len(tenants) > 1:
            return self._shared([self._tenant(name, tenant) for tenant in tenants], held, queue.weight, own)
        return self._users(name, next(iter(tenants)), held, queue.weight, own) if tenants else None

    def _tenant(self, queue: str, tenant: str) -> _Branch | None:
        found = self.state.tree.tenants.get(tenant)
        return self._users(queue, tenant, self._held(queue, tenant), 1 if found is None else found.weight)

    def _users(self, queue: str, tenant: str, held: Amount, weight: int, own: SortKey = FREE) -> _Branch | None:
        """The users of one tenant; jobs that name no user are one user's."""
        users = self.state.index.lines[queue][tenant]
        if len(users) == 1:
            return self._user(queue, tenant, next(iter(users)), held, weight, own)
        holds = {user: self._held(queue, tenant, user) for user in users if user}
        # What a tenant's runs hold without naming a user is the use of the unnamed user; the index counts it nowhere
        # else.
        rest = self._held(queue, tenant)
        for named in holds.values():
            rest = rest.plus(named, -1)
        return self._shared(
            [self._user(queue, tenant, user, holds.get(user, rest)) for user in users], held, weight, own
        )

    def _user(
        self, queue: str, tenant: str, user: str, held: Amount, weight: int = 1, own: SortKey = FREE
    ) -> _Branch | None:
        index, whose = self.state.index, (queue, tenant, user)
        if self._may_start is None:
            line = WaitingJobs(index.lines[queue][tenant][user], index.buckets.get(whose, {}))
        else:
            line = self._select_kinds(index.kinds(self.state)[whose], self._may_start)
        return self._leaf(line, self.state.tree.queues[queue].order, held, weight, own)

    def _select_kinds(self, kinds: Mapping[WaitingKind, Sequence[QueuedJob]], may_start: MayStart) -> WaitingJobs:
        """The waiting jobs of the kinds that may start: of a kind all may, or none."""
        jobs, by_bucket = self.state.jobs, dict[Bucket, list[Sequence[QueuedJob]]]()
        for kind, places in kinds.items():
            # Jobs of one kind are equal in all that `may_start` asks, so that the first speaks for all: a flood of
            # 100,000 equal jobs costs one question.
            job = jobs.get(places[0][-1])
            if job is not None and may_start(job):
                by_bucket.setdefault(kind.bucket, []).append(places)
        every = merge(*(places for lines in by_bucket.values() for places in lines))
        return WaitingJobs(every, {bucket: merge(*lines) for bucket, lines in by_bucket.items()})

    def _held(self, *who: str) -> Amount:
        return self.state.index.held.get(who, NOTHING)

    def _shared(self, below: list[_Branch | None], held: Amount, weight: int, own: SortKey = FREE) -> _Branch | None:
        found = [branch for branch in below if branch is not None]
        return _Inner(self, found, held, weight, own) if found else None

    def _leaf(
        self, waiting: WaitingJobs, order: OrderName, held: Amount, weight: int = 1, own: SortKey = FREE
    ) -> _Branch | None:
        jobs = ORDERS[order].order(waiting, self.state, self._ts)
        leaf = _Leaf(self, self._eligible(jobs), held, weight, own)
        return leaf if leaf.waits else None

    def _eligible(self, jobs: Iterable[QueuedJob]) -> Iterator[Job]:
        for _, _, _, job_id in jobs:
            job = self.state.jobs.get(job_id)
            if job is not None and job.not_before <= self._ts:
                yield job


def _heap(branches: list[_Branch]) -> list[tuple[BranchKey, _Branch]]:
    heap = [(branch.key, branch) for branch in branches]
    heapify(heap)
    return heap


def _pop(heap: list[tuple[BranchKey, _Branch]]) -> bool:
    """Let the first branch advance and find its new place; False when the heap is empty then. Keys are unique."""
    branch = heap[0][1]
    if branch.advance():
        # A heap of one has nothing to restore, and this is the usual depth: a pool with one queue.
        if len(heap) > 1:
            heapreplace(heap, (branch.key, branch))
        return True
    # The branch at the top is empty. The last of the heap takes its place, as a heap's removal does, unless it was that
    # very branch.
    last = heap.pop()
    if not heap:
        return False
    if last[1] is not branch:
        heapreplace(heap, last)
    return True


def _merged(branches: list[_Branch]) -> Iterator[str]:
    heap = _heap(branches)
    while heap:
        yield heap[0][1].first.job_id
        if not _pop(heap):
            return
