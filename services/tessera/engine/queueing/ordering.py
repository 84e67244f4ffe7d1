"""
Queue order of a pool: within nominal quota first, then priority class, then fair share, then the queue's order.

At every inner queue a child that stays within its nominal quota goes before one that would borrow, whatever their
classes: else a class that many may use could keep an owner out. Then the higher class goes first. Among equals the
fair share decides, which is dominant resource fairness: first is whose runs hold the least of the pool for their
weight, where what the line gives them counts as held. With a half-life, what they have held on average counts besides
(`History`). It decides between the queues below one, in a queue between its tenants, and for a tenant between the users
that its jobs name; so a flood of one delays the others by no more than their shares. Weight 0 goes only when nobody
with a weight asks. Jobs that share nothing with each other go by their queue's `order` (`queueing.orders`). A queue
that is `strict_fifo` goes by class and age alone. Jobs of a spent budget that is to be `last` then go behind all others
of the pool. Jobs in back-off, held jobs and jobs of stopped queues are left out.

Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011, section 4.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heappop, heapreplace, merge
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, TypeVar

from tessera.domain.devices.resources import NOTHING, Amount
from tessera.domain.entities import Job
from tessera.domain.folding.decayed_usage import DecayedUsage
from tessera.domain.folding.line_keys import Bucket, KindLines, QueuedJob
from tessera.domain.folding.spending import KEPT_BY_BUDGETS, NO_NAMES, SpentNames, is_of, names_spent
from tessera.domain.queues import UNLIMITED
from tessera.domain.state import State
from tessera.domain.work.gang import Gang
from tessera.engine.queueing.orders import ORDERS, WaitingJobs
from tessera.engine.queueing.own_place import own_place
from tessera.engine.queueing.readiness import rests
from tessera.engine.queueing.scheduling_pass import SchedulingPass
from tessera_schemas.reasons import Code
from tessera_schemas.shard.orders import HEADS_MAX

STUCK = (Code.NO_FIT, Code.WAITING_FOR_QUOTA, Code.RESERVED, Code.DOES_NOT_STOP)
"""What others' leaving would change. The committer has tried such a job and said so."""

EQUAL_MAX = 8  # so many equal jobs of a line are planned for at a time: what is against one is against all

SHARE_UNIT = 1_000_000
WEIGHT_UNIT = 1_000_000

BranchKey = tuple[int, int, int, int, int, int, str]
"""
Whether it borrows (1) and its budget is spent (2), -priority, 1 for weight 0, share for the weight, the first job's age
(ledger n, index) and id.
"""

# Of queues those in which jobs of the gang may start; and whether its runs may be evicted.
MayStart = Callable[[Collection[str], Gang, bool], Collection[str]]

SortKey = tuple[int, int, int]
FREE: SortKey = (UNLIMITED, UNLIMITED, UNLIMITED)  # nothing that it holds is borrowed


def order_jobs(state: State, pool: str, ts: int, sums_alone: bool = False) -> Iterator[str]:
    """All eligible jobs of the pool, in their order."""
    # `sums_alone`: as up to `tessera-6`, when an owner below an inner queue was a borrower where that held more in sum.
    return PoolLine(state, pool, ts, sums_alone).jobs()


def stuck_heads(state: State, ts: int, heads: int) -> list[Job]:
    """Jobs that found no room or quota, the first `heads` of each pool without an earmark, in their order."""
    # Counted are those alone for whom a plan can be of use: of equal jobs the first `EQUAL_MAX`, and no job that would
    # find no room though every run were gone.
    found: list[Job] = []
    for pool in sorted(state.tree.queues_of):
        found += islice(_helpable(state, pool, ts), heads)
    return found


def _helpable(state: State, pool: str, ts: int) -> Iterator[Job]:
    places, tree, line = SchedulingPass(state, pool), state.tree, PoolLine(state, pool, ts)
    ahead = places.timeline()
    equal = Counter[tuple[str, str, Gang, int]]()
    for job_id in islice(line.jobs(line.select(places.holding)), HEADS_MAX):
        job = state.jobs.get(job_id)
        if job is None or job.reason is None or job.reason.code not in STUCK:
            continue
        # Nobody is stopped for a job that is to go behind all others.
        marked = state.earmarks.get(job_id) is not None and own_place(state, job_id) is None
        if marked or line.is_last(job) or line.is_kept(job):
            continue
        kind = job.queue, job.tenant, job.gang, tree.priority_of(job)
        # Counts are asked first: what an end could make room for costs a walk over the nodes.
        if equal[kind] >= EQUAL_MAX or rests(state, job):
            continue
        # An array for a drained model takes no place among the heads.
        if any(ahead.can_ever(job, flavor) for flavor in tree.flavors_for(job.queue, job.amount)):
            equal[kind] += 1
            yield job


def dominant_share(held: Amount, capacity: Amount) -> int:
    """Largest part of any one resource of the pool that is held, in parts per million; what nobody has counts not."""
    if held is NOTHING:
        return 0
    # A resource that the pool has none of is left out. Divided by nothing it would make every holder's share infinite.
    cpu = held.cpu_milli * SHARE_UNIT // capacity.cpu_milli if capacity.cpu_milli > 0 else 0
    memory = held.memory_bytes * SHARE_UNIT // capacity.memory_bytes if capacity.memory_bytes > 0 else 0
    gpu = held.gpu_milli * SHARE_UNIT // capacity.gpu_milli if capacity.gpu_milli > 0 else 0
    return max(cpu, memory, gpu)


def weighted_share(held: Amount, capacity: Amount, weight: int, past: int = 0) -> tuple[int, int]:
    """Orders who shares by what they hold, and held in the past, for their weight; weight 0 comes after every other."""
    share = dominant_share(held, capacity) + past
    # Integers in place of a fraction: floats would order two queues differently on two machines, and an order must be
    # computed again byte by byte.
    return (0, share * WEIGHT_UNIT // weight) if weight else (1, share)


class _Branch:
    """A queue, tenant or user with somebody waiting: its next job, and what it holds with what the line gave it."""

    first: Job
    place: QueuedJob
    held, weight, own, past = NOTHING, 1, FREE, 0
    """`own` is how much of each resource it may hold without borrowing; `past` its share of the pool before now."""

    def __init__(self, line: "PoolLine") -> None:
        self._line = line

    @property
    def key(self) -> BranchKey:
        line, place, first = self._line, self.place, self.first
        share = weighted_share(self.held, line.capacity, self.weight, self.past)
        # The order of these parts is the rule of the module's first lines: owners before borrowers, whatever their
        # class; only then class, share and age. The id makes the key unique, so that no comparison reaches a branch.
        late = 0 if self.own is FREE and not line.has_last else self._borrows(first) + 2 * line.is_last(first)
        return (late, place[0], *share, *place[1:])

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
        return self.next()

    def next(self) -> bool:
        """Find the job that goes first from here on; False when nobody is left."""
        raise NotImplementedError


class _Leaf(_Branch):
    """Jobs that share nothing: they stand by class, and by the order of their queue."""

    def __init__(self, line: "PoolLine", jobs: Iterable[QueuedJob]) -> None:
        self._line, self._jobs = line, iter(jobs)

    def next(self) -> bool:
        job_of, ts = self._line.job_of, self._line.ts
        for place in self._jobs:
            job = job_of(place[-1])
            if job is not None and job.not_before <= ts:
                self.first, self.place = job, place
                return True
        return False


class UnmadeBranch(NamedTuple):
    """A branch that is not made yet: the least key that it may have, its name, and what these follow from."""

    key: BranchKey
    name: str
    first: QueuedJob
    stands: tuple[Amount, int, SortKey, int]  # what it holds, its weight, what it may hold unborrowed, and its past
    past_by: object  # from which the past follows in one tick


class _Inner(_Branch):
    """Branches that share. One is made when its bound comes first, and most never are."""

    # No key is less than its bound, whoever of the branch is left out. So who comes first is who would come first if
    # all of them were made.

    def __init__(self, line: "PoolLine", bounds: Iterable[UnmadeBranch], make: Callable[[str], _Branch | None]) -> None:
        super().__init__(line)
        # Bounds come in their order, and what is in order is a heap.
        self._heap: list[UnmadeBranch | tuple[BranchKey, _Branch]] = list(bounds)
        self._make, self._top = make, _Branch(line)

    def _borrows(self, job: Job) -> bool:
        # What its owner lacks may be lent below this very queue, and comes back from there: the owner borrows nothing
        # from beside it. Tenants and users have no quota, so that their queue alone is asked.
        alone = self._line.sums_alone or self._top.own is FREE
        return super()._borrows(job) and (alone or self._top._borrows(job))

    def next(self) -> bool:
        heap = self._heap
        if heap and heap[0][1] is self._top:
            if not self._top.advance():
                heappop(heap)
            # A heap of one has nothing to restore, and this is the usual depth: a pool with one queue.
            elif len(heap) > 1:
                heapreplace(heap, (self._top.key, self._top))
        while heap:
            top = heap[0]
            if not isinstance(top, UnmadeBranch):
                self._top = top[1]
                self.first, self.place = self._top.first, self._top.place
                break
            made = self._make(top.name)
            if made is None or not made.next():
                heappop(heap)
                continue
            made.held, made.weight, made.own, made.past = top.stands
            # The first of its line goes first in it, and cannot borrow: its key is the bound itself.
            if made.own is FREE and made.place == top.first and not self._line.is_last(made.first):
                heap[0] = top.key, made
            else:
                heapreplace(heap, (made.key, made))
        return bool(heap)


ConfigOf = Callable[[str], tuple[int, SortKey]]
Past = TypeVar("Past")
NO_ROWS: dict[str, DecayedUsage] = {}
KnownUsage = tuple[DecayedUsage, int]
"""A row, and what of it counts (GPU thousandths x milliseconds) in the tick for which it was found."""


class History:
    """
    The share of one pool that its branches have held in the past: parts per million, as of what is held now.

    Used GPU time that counts yet, spread over the half-life, is how many GPUs were held on average. It is that of the
    beginning of the tick that `ts` is in, or of a later change: so between two ticks an order asks only about those
    whose rows are others. `known` are findings about queues of an earlier order in the same tick.
    """

    def __init__(self, state: State, ts: int, capacity: Amount, known: "KnownBounds") -> None:
        self._decay = state.decay
        self.since = 0 if self._decay is None else ts - ts % self._decay.tick_ms
        self._known = known.used_in(self.since)
        # Each name of a line is looked up: by the dict itself, which costs a third of a call of ours.
        self.row_of = NO_ROWS.get if self._decay is None else state.decayed.getter()
        self._gpu_milli = max(0, capacity.gpu_milli)

    def used(self, queue: str) -> int:
        """Used by the queue under its own name, those below it aside."""
        row, known = self.row_of(queue), self._known.get(queue)
        if row is None or (known is not None and known[0] is row):
            return 0 if known is None or row is None else known[1]
        used = self.used_of(row)
        self._known[queue] = row, used
        return used

    def used_of(self, row: DecayedUsage | None) -> int:
        """GPU time of a row that counts yet."""
        if row is None or self._decay is None:
            return 0
        return self._decay.used(row, row.ts if row.ts > self.since else self.since)

    def share(self, used: int) -> int:
        """The part of the pool's GPUs that was held on average; 0 where it has none."""
        if not used or self._decay is None or not self._gpu_milli:
            return 0
        return self._decay.average_of(used * SHARE_UNIT) // self._gpu_milli

    def share_of(self, row: DecayedUsage | None) -> int:
        """The share of a row's name."""
        return 0 if row is None else self.share(self.used_of(row))


# The branches of each inner one as an order found them: by name, and by their bounds.
class KnownBounds(NamedTuple):
    """The bounds, each with the tick for which they were found, and what queues had used in the last one."""

    made: dict[tuple[str, ...], tuple[int, dict[str, UnmadeBranch], list[UnmadeBranch]]]
    used: dict[int, dict[str, KnownUsage]]

    def used_in(self, since: int) -> dict[str, KnownUsage]:
        """Findings of the tick that begins then; those of another one go."""
        if since not in self.used:
            self.used.clear()
        return self.used.setdefault(since, {})


class SelectedJobs(NamedTuple):
    """The waiting jobs of kinds that may start, by queue, tenant and user; `shut` are tenants that are left out."""

    may_start: MayStart
    shut: Collection[str]
    lines: dict[str, dict[str, dict[str, dict[Bucket, list[Sequence[QueuedJob]]]]]]


class PoolLine:
    """A pool's line at one moment, with the bounds of its branches: they serve whoever is left out."""

    # `known` are bounds of an earlier moment with the same tree and capacity. Each is held against its first job and
    # its holdings before it serves, so that the line is the same with any.
    def __init__(
        self, state: State, pool: str, ts: int, sums_alone: bool = False, known: KnownBounds | None = None
    ) -> None:
        self.state, self.tree, self.ts, self.sums_alone = state, state.tree, ts, sums_alone
        self.capacity, self._pool = state.index.capacity.get(pool, NOTHING), pool
        self.job_of = state.jobs.getter()
        self._sums: dict[str, tuple[Amount, QueuedJob | None, int]] = {}
        self._bounds: dict[tuple[str, ...], list[UnmadeBranch]] = {}
        self._known = KnownBounds({}, {}) if known is None else known
        self.history = History(state, ts, self.capacity, self._known)
        # By budgets that are spent: whose jobs go behind all others, and of whom no job starts.
        self._last, self._kept = (names_spent(state, kinds) for kinds in (("last",), KEPT_BY_BUDGETS))
        self.has_last = self._last is not None

    def is_last(self, job: Job) -> bool:
        """Whether a job goes behind all others, since a budget that it is of is spent."""
        return self._last is not None and is_of(self._last, job)

    def is_kept(self, job: Job) -> bool:
        """Whether no run of a job begins, since a budget that it is of is spent."""
        return self._kept is not None and is_of(self._kept, job)

    def last_behind(self, places: Iterable[QueuedJob]) -> Iterable[QueuedJob]:
        """Places as they stand; those of jobs that are last behind the others."""
        return places if self._last is None else self._in_two(places)

    def _in_two(self, places: Iterable[QueuedJob]) -> Iterator[QueuedJob]:
        # A project, and whether a job has GPUs, tell jobs of one line apart.
        last = list[QueuedJob]()
        for place in places:
            job = self.state.jobs.get(place[-1])
            if job is not None and self.is_last(job):
                last.append(place)
            else:
                yield place
        yield from last

    def _not_kept(self, tenant: str, places: Sequence[QueuedJob], kept: SpentNames) -> Sequence[QueuedJob]:
        # Places without those of the tenant's projects of which no job starts.
        projects = {project for of, project in kept.projects if of == tenant}
        if not projects:
            return places
        jobs = self.state.jobs.found(place[-1] for place in places)
        return [place for place, job in zip(places, jobs, strict=True) if job.project not in projects]

    def jobs(self, selection: SelectedJobs | None = None) -> Iterator[str]:
        """The ids of all eligible jobs in their order; of a selection its jobs alone."""
        if selection is not None and not selection.lines:
            return
        roots = sorted({self.tree.roots[queue] for queue in self.tree.queues_of.get(self._pool, ())})
        top = _Inner(self, self.queues("", roots), _Making(self, selection).queue)
        while top.next():
            yield top.first.job_id

    def select(self, may_start: MayStart, shut: Collection[str] = ()) -> SelectedJobs | None:
        """The jobs of the kinds that may start, of tenants that are not `shut`; None when these are all."""
        kinds, all_may = self.state.index.kinds(self.state).get(self._pool, {}), not shut
        able = list[tuple[str, KindLines, SpentNames]]()
        for (gang, revocable), lines in kinds.items():
            kept = self._kept if self._kept is not None and gang.amount.gpu_milli else NO_NAMES
            found = [queue for queue in may_start(lines.keys(), gang, revocable) if queue not in kept.queues]
            all_may = all_may and len(found) == len(lines) and not kept.tenants
            all_may = all_may and not kept.projects
            able += [(queue, lines[queue], kept) for queue in found]
        if all_may:
            return None
        chosen = SelectedJobs(may_start, shut, {})
        for queue, users_of, kept in able:
            tenants = chosen.lines.setdefault(queue, {})
            for bucket, of_users in users_of.items():
                for (_, tenant, user), places in of_users.items():
                    if tenant in shut or tenant in kept.tenants:
                        continue
                    if places := self._not_kept(tenant, places, kept):
                        tenants.setdefault(tenant, {}).setdefault(user, {}).setdefault(bucket, []).append(places)
        return chosen

    def sum(self, queue: str) -> tuple[Amount, QueuedJob | None, int]:
        """Holdings of runs in and below a queue, the first job in its line or in those below it, and what they used."""
        found = self._sums.get(queue)
        if found is None:
            waiting = self.state.index.waiting.get(queue)
            held, first = self.state.held_by_queue(queue), waiting[0] if waiting else None
            used = self.history.used(queue)
            for child in self.tree.children.get(queue, ()):
                more, job, also = self.sum(child)
                held, first, used = held.plus(more), min(job, first or job) if job else first, used + also
            found = self._sums[queue] = held, first, used
        return found

    def exceeds_own(self, queue: str, job: Job) -> bool:
        """Whether the queue, with what is below it, would hold more than its own with the job."""
        branch = _Branch(self)
        branch.held, branch.own = self.sum(queue)[0], self.tree.own[queue]
        return branch._borrows(job)

    def queues(self, above: str, names: Iterable[str]) -> list[UnmadeBranch]:
        """Bounds of the queues right below one, as far as somebody is in their lines."""
        configured, own = self.tree.queues, self.tree.own
        # A root has nobody to borrow from.
        place_of: ConfigOf = lambda name: (configured[name].weight, own[name] if above else FREE)  # noqa: E731
        return self._renewed((above,), self._standing(names), place_of, self.history.share)

    def _standing(self, names: Iterable[str]) -> Iterator[tuple[str, QueuedJob, Amount, int]]:
        """Of each queue with somebody in its line or below: the first of them, what is held there, and was used."""
        # What `sum` says. A leaf of a shard without a half-life, as most of a thousand flat queues are, is read here:
        # the calls for it cost more than all else of its bound.
        waiting, children, use_of = self.state.index.waiting, self.tree.children, self.state.queue_use.getter()
        for name in names:
            if self.state.decay is not None or name in children:
                held, first, used = self.sum(name)
                if first is not None:
                    yield name, first, held, used
            # A sorted list's first entry by its iterator: by index it is checked for slices and negative numbers.
            elif (line := waiting.get(name)) is not None and (first := next(iter(line), None)) is not None:
                yield name, first, NOTHING if (use := use_of(name)) is None else use.amount, 0

    def sharers(self, queue: str, *of_tenant: str) -> list[UnmadeBranch]:
        """Bounds of the tenants in a queue's line, or of the users in that of one tenant; these weigh the same."""
        where, lines, held = (queue, *of_tenant, ""), self.state.index.lines[queue], self.state.index.held
        row_of = self.history.row_of
        if of_tenant:
            users, rows = lines[of_tenant[0]].items(), f"{queue}/{of_tenant[0]}/"
            firsts = ((user, line[0]) for user, line in users)
            held_by = ((who, first, held.get((queue, *of_tenant, who), NOTHING)) for who, first in firsts)
            standing = ((who, first, amount, row_of(rows + who)) for who, first, amount in held_by)
            return self._renewed(where, standing, lambda _: (1, FREE), self.history.share_of)
        firsts = ((name, min(map(itemgetter(0), users.values()))) for name, users in lines.items())
        standing = (
            (name, first, held.get((queue, name), NOTHING), row_of(f"{queue}/{name}")) for name, first in firsts
        )
        weights = self.tree.tenants
        weight_of: ConfigOf = lambda name: (weights[name].weight if name in weights else 1, FREE)  # noqa: E731
        return self._renewed(where, standing, weight_of, self.history.share_of)

    def _renewed(
        self,
        where: tuple[str, ...],
        standing: Iterable[tuple[str, QueuedJob, Amount, Past]],
        config_of: ConfigOf,
        share_of: Callable[[Past], int],
    ) -> list[UnmadeBranch]:
        """Bounds by name, first job, holdings and what was used; those that are as before are not made anew."""
        if where in self._bounds:
            return self._bounds[where]
        since, (tick, before, bounds) = self.history.since, self._known.made.get(where, (-1, {}, []))
        now, fresh = dict[str, UnmadeBranch](), list[UnmadeBranch]()
        for name, first, held, past_by in standing:
            bound = before.get(name)
            is_known = bound is not None and tick == since and bound.past_by is past_by
            past = bound.stands[3] if bound is not None and is_known else share_of(past_by)
            # Values are frozen: the same object is the same value, and another one costs no more than a bound.
            if bound is None or bound.first is not first or bound.stands[0] is not held or bound.stands[3] != past:
                weight, own = config_of(name)
                # No key is less: nobody borrows less than not at all, and nobody of the branch has a higher class, or
                # is older within the highest class, than the first of its line.
                key = (False, first[0], *weighted_share(held, self.capacity, weight, past), *first[1:])
                fresh.append(bound := UnmadeBranch(key, name, first, (held, weight, own, past), past_by))
            now[name] = bound
        if fresh or len(now) != len(before) or tick != since:
            # The rest is in order already, and is sorted in one pass.
            bounds = sorted([*(bound for bound in bounds if now.get(bound.name) is bound), *fresh])
            self._known.made[where] = since, now, bounds
        self._bounds[where] = bounds
        return bounds


class _Making:
    """Makes the branches of one line, all of them or those of a selection."""

    def __init__(self, line: PoolLine, selection: SelectedJobs | None) -> None:
        self._line, self._selection, index = line, selection, line.state.index
        self._lines: Mapping[str, Mapping[str, Collection[str]]] = index.lines if selection is None else selection.lines

    def queue(self, name: str) -> _Branch | None:
        """The queue with everything below it."""
        line, queue = self._line, self._line.tree.queues[name]
        if queue.stop_policy != "none":
            return None
        children = line.tree.children.get(name)
        if children is not None:
            below = line.queues(name, children)
            # Who is alone below a queue without quotas shares with nobody there, and stands for the queue: so a chain
            # of queues is as deep as one.
            alone = len(below) == 1 and (queue.parent is None or line.tree.own[name] == FREE)
            return self.queue(below[0].name) if alone else _Inner(line, below, self.queue)
        if queue.queueing_strategy == "strict_fifo":
            return self._strict(name)
        tenants = self._lines.get(name, {})
        # One tenant alone shares with nobody: a level less in the heap for each of its jobs.
        if len(tenants) > 1:
            return _Inner(line, self._chosen(line.sharers(name), tenants), partial(self._tenant, name))
        return self._tenant(name, next(iter(tenants))) if tenants else None

    def _strict(self, queue: str) -> _Branch | None:
        # Strict order knows no tenants and no shares: the first job by class and age is the only one that may start, so
        # it alone is asked whether it may.
        line, asked = self._line, self._selection
        waiting = line.state.index.waiting.get(queue, ())
        leaf = _Leaf(line, line.last_behind(waiting))
        if asked is not None and leaf.next():
            job, shut = leaf.first, leaf.first.tenant in asked.shut or line.is_kept(leaf.first)
            if shut or not asked.may_start((queue,), job.gang, line.tree.revocable(job)):
                return None
        return _Leaf(line, line.last_behind(waiting))

    def _tenant(self, queue: str, tenant: str) -> _Branch:
        users, line = self._lines[queue][tenant], self._line
        if len(users) == 1:
            return self._user(queue, tenant, next(iter(users)))
        return _Inner(line, self._chosen(line.sharers(queue, tenant), users), partial(self._user, queue, tenant))

    def _chosen(self, bounds: list[UnmadeBranch], names: Collection[str]) -> list[UnmadeBranch]:
        return bounds if self._selection is None else [bound for bound in bounds if bound.name in names]

    def _user(self, queue: str, tenant: str, user: str) -> _Branch:
        index, state = self._line.state.index, self._line.state
        if self._selection is None:
            buckets = index.buckets.get((queue, tenant, user), {}) if index.buckets else {}
            line = WaitingJobs(index.lines[queue][tenant][user], buckets)
        else:
            by_bucket = self._selection.lines[queue][tenant][user]
            every = merge(*(places for lines in by_bucket.values() for places in lines))
            line = WaitingJobs(every, {bucket: merge(*lines) for bucket, lines in by_bucket.items()})
        jobs = ORDERS[self._line.tree.queues[queue].order].order(line, state, self._line.ts)
        return _Leaf(self._line, self._line.last_behind(jobs))
