"""
Who is next in a pool: priority class first, then fair share between queues, then age.

The fair share is dominant resource fairness down the queue tree: at every inner queue the child goes first that holds
the least of the pool for its weight, where what the line gives a queue already counts as held. A child of weight 0
goes only when no child with a weight asks. Jobs in back-off, held jobs and jobs of stopped queues are left out.

Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011, section 4.
"""

from collections.abc import Iterator
from heapq import heapify, heapreplace
from itertools import islice

from tessera.domain.entities import Job
from tessera.domain.resources import NOTHING, Amount
from tessera.domain.state import State
from tessera_schemas.orders import HEADS_MAX

SHARE_UNIT = 1_000_000
WEIGHT_UNIT = 1_000_000

Key = tuple[int, int, int, int, int, str]
"""-priority, 1 for weight 0, share for the weight, then the age of the first job (ledger n, index) and its id."""


def order(state: State, pool: str, ts: int) -> tuple[str, ...]:
    """The ids of the next jobs of the pool as of `state` and the time `ts`, at most 512."""
    return tuple(islice(line(state, pool, ts), HEADS_MAX))


def line(state: State, pool: str, ts: int) -> Iterator[str]:
    """All eligible jobs of the pool, in their order."""
    capacity = state.index.capacity.get(pool, NOTHING)
    roots = sorted({state.tree.roots[queue] for queue in state.tree.queues_of.get(pool, ())})
    return _merged([branch for root in roots if (branch := _branch(state, root, capacity, ts)) is not None])


def dominant_share(held: Amount, capacity: Amount) -> int:
    """Largest part of any one resource of the pool that is held, in parts per million; what nobody has counts not."""
    pairs = (
        (held.cpu_milli, capacity.cpu_milli),
        (held.memory_bytes, capacity.memory_bytes),
        (held.gpu_milli, capacity.gpu_milli),
    )
    return max((use * SHARE_UNIT // size for use, size in pairs if size > 0), default=0)


def weighted_share(held: Amount, capacity: Amount, weight: int) -> tuple[int, int]:
    """Orders queues by what they hold for their weight; weight 0 comes after every other."""
    share = dominant_share(held, capacity)
    return (0, share * WEIGHT_UNIT // weight) if weight else (1, share)


def held_below(state: State, queue: str) -> Amount:
    """What the runs of a leaf, or of all leaves below an inner queue, hold."""
    total = state.held_by_queue(queue)
    for child in state.tree.children.get(queue, ()):
        total = total.plus(held_below(state, child))
    return total


def next_retry(state: State, ts: int) -> int | None:
    """When the next job in back-off becomes eligible; None when none is waiting."""
    later = state.index.retry_at.irange((ts + 1,))
    return next((not_before for not_before, _ in later), None)


class _Branch:
    """A queue with somebody waiting in or below it: its next job, and what it holds with what the line gave it."""

    def __init__(self, state: State, name: str, capacity: Amount) -> None:
        self._weight, self._capacity = state.tree.queues[name].weight, capacity
        self._priority = state.tree.priority_of
        self.held = held_below(state, name)
        self.first: Job

    @property
    def key(self) -> Key:
        job, share = self.first, weighted_share(self.held, self._capacity, self._weight)
        return (-self._priority(job), *share, job.taken_n, job.fact_index, job.job_id)

    def advance(self) -> bool:
        """Give the first job its place; False when nobody is left."""
        self.held = self.held.plus(self.first.amount)
        return self._next()

    def _next(self) -> bool:
        raise NotImplementedError


class _Leaf(_Branch):
    def __init__(self, state: State, name: str, capacity: Amount, jobs: Iterator[Job]) -> None:
        super().__init__(state, name, capacity)
        self._jobs = jobs
        self.waits = self._next()

    def _next(self) -> bool:
        job = next(self._jobs, None)
        if job is not None:
            self.first = job
        return job is not None


class _Inner(_Branch):
    def __init__(self, state: State, name: str, capacity: Amount, below: list[_Branch]) -> None:
        super().__init__(state, name, capacity)
        self._heap = _heap(below)
        self.first = self._heap[0][1].first

    def _next(self) -> bool:
        found = _pop(self._heap)
        if found:
            self.first = self._heap[0][1].first
        return found


def _branch(state: State, name: str, capacity: Amount, ts: int) -> _Branch | None:
    """The queue with everything below it, as far as somebody waits there; None when nobody does."""
    if state.tree.queues[name].stop_policy != "none":
        return None
    children = state.tree.children.get(name)
    if children is None:
        leaf = _Leaf(state, name, capacity, _eligible(state, name, ts)) if state.index.waiting.get(name) else None
        return leaf if leaf is not None and leaf.waits else None
    below = [branch for child in children if (branch := _branch(state, child, capacity, ts)) is not None]
    return _Inner(state, name, capacity, below) if below else None


def _eligible(state: State, queue: str, ts: int) -> Iterator[Job]:
    for _, _, _, job_id in state.index.waiting[queue]:
        job = state.jobs.get(job_id)
        if job is not None and job.not_before <= ts:
            yield job


def _heap(branches: list[_Branch]) -> list[tuple[Key, _Branch]]:
    heap = [(branch.key, branch) for branch in branches]
    heapify(heap)
    return heap


def _pop(heap: list[tuple[Key, _Branch]]) -> bool:
    """Let the first branch advance and find its new place; False when the heap is empty then. Keys are unique."""
    branch = heap[0][1]
    if branch.advance():
        if len(heap) > 1:  # alone, nobody is compared with it any more
            heapreplace(heap, (branch.key, branch))
        return True
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
