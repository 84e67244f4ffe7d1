"""
The state of one shard after n ledger messages, and overlays of it on which decisions are tried.

Only `fold` writes here. The sorted indexes are derived from the tables and belong to the base alone: an overlay
reads the base's and sees its own writes in the tables.
"""

from collections.abc import Iterator
from copy import copy as shallow_copy
from typing import NamedTuple

from sortedcontainers import SortedList

from tessera.domain.devices.resources import NOTHING, WHOLE_GPU, Amount, Node
from tessera.domain.entities import (
    ClosedNamespace,
    Drain,
    Earmark,
    EndedJob,
    Job,
    NodeBackoff,
    PoolStops,
    PublishedSlots,
    QueueOrder,
    RefusedWork,
    RemovedQueue,
    Run,
    Use,
)
from tessera.domain.mix import Mix, Seen
from tessera.domain.queues import Holding, QueueTree, QuotaBook, queue_tree
from tessera.domain.quota_parts import PoolSizes, Share, add_share, in_numbers, share_of
from tessera.domain.runtimes import JobKind, Sketch, kind_of
from tessera.domain.table import Table
from tessera.domain.work.ended_jobs import EndedJobs
from tessera.domain.work.evidence import REMEMBERED_MAX, REMEMBERED_MS, RememberedNode
from tessera.domain.work.gang import Gang
from tessera.domain.work.job_relations import JobRelations
from tessera.domain.work.phases import Phase
from tessera_schemas.config import Config
from tessera_schemas.ledger import GENESIS

TABLES = (
    "jobs",
    "ended",
    "runs",
    "nodes",
    "queue_use",
    "tenant_use",
    "earmarks",
    "lines",
    "drains",
    "runtimes",
    "seen",
    "mixes",
    "lefts",
    "refused",
    "backoffs",
    "stops",
    "closed",
    "remembered_nodes",
    "removed_queues",
)
LATER_TABLES = frozenset({"refused", "backoffs", "stops", "closed", "remembered_nodes", "removed_queues"})
"""Of them, those that came after 0.3: an empty one is no part of the state's hash. They stand last, as they came."""


NEVER = 2**63
FORMAT_OF_STRAYS = 4
"""Before, a job whose tenant was taken out started all the same, and one whose class was taken out counted as 0."""


class State:
    """State of a shard: all that its decisions may look at."""

    def __init__(self) -> None:
        self.n = 0
        self.chain = GENESIS
        self.is_whole = True
        """False while a message is folded, and for good once one failed halfway: such a state is stored nowhere."""
        self.epoch = 0
        self.ts = 0
        self.format = 0
        self.ledger_id = ""
        """Identity of the ledger, on each pod that it made: "" until a message raised the format to 4 or later."""
        self.facts_upto = 0
        self.last_number = 0
        """Number of the job that was taken in last, 0 while none has one; no number is ever given twice."""
        self.config = Config()
        self.configured: QueueTree = queue_tree(self.config)
        """The configuration's look-ups, with parts of pools as they are configured: what the fold of nodes asks."""
        self.shares: Table[Share] = Table()
        self.sizes: PoolSizes = {}
        self.recount_ts = NEVER
        self._tree: QueueTree | None = None
        self.jobs: Table[Job] = Table()
        self.remembered = EndedJobs()
        self.ended: Table[EndedJob] = self.remembered
        self.runs: Table[Run] = Table()
        self.nodes: Table[Node] = Table()
        self.queue_use: Table[Use] = Table()
        self.tenant_use: Table[Use] = Table()
        self.earmarks: Table[Earmark] = Table()
        self.lines: Table[QueueOrder] = Table()
        self.drains: Table[Drain] = Table()
        self.runtimes: Table[Sketch] = Table()
        self.seen: Table[Seen] = Table()
        self.mixes: Table[Mix] = Table()
        self.lefts: Table[PublishedSlots] = Table()
        self.refused: Table[RefusedWork] = Table()
        self.backoffs: Table[NodeBackoff] = Table()
        self.stops: Table[PoolStops] = Table()
        self.closed: Table[ClosedNamespace] = Table()
        self.remembered_nodes: Table[RememberedNode] = Table()
        self.removed_queues: Table[RemovedQueue] = Table()
        self.index = Index()
        self.relations = JobRelations()
        self.is_base = True

    def overlay(self) -> "State":
        """A copy-on-write view: writes stay in it, the base must rest while it is used."""
        top = State.__new__(State)
        top.__dict__.update(self.__dict__)
        for name in TABLES:
            setattr(top, name, getattr(self, name).overlay())
        top.shares = self.shares.overlay()
        top.is_base = False
        return top

    @property
    def tree(self) -> QueueTree:
        """The configuration as decisions ask for it, with the amounts of quotas that are parts of a pool."""
        if self._tree is None:
            self._tree = in_numbers(self.configured, self.sizes)
        return self._tree

    def set_config(self, config: Config) -> None:
        """Puts a configuration in force: makes its queue tree and, in the base, the waiting lines anew."""
        self.config = config
        self.make_tree()
        self.count_nodes()
        if self.is_base:
            self.index.rebuild_waiting(self)

    def make_tree(self) -> None:
        """Makes the queue tree anew, of the configuration and of the removed queues that still hold something."""
        removed = tuple(sorted(self.removed_queues.values(), key=lambda queue: queue.name))
        self.configured, self._tree = queue_tree(self.config, self.format >= FORMAT_OF_STRAYS, removed), None

    def count_nodes(self) -> None:
        """Counts anew how much each pool has, if any quota is a part of one."""
        self.shares, self.sizes, self.recount_ts, self._tree = Table(), {}, NEVER, None
        if self.configured.has_parts:
            for name in dict.fromkeys(key for table in (self.nodes, self.remembered_nodes) for key, _ in table.items()):
                self.count_node(name)

    def count_due(self) -> None:
        """Follows nodes that have been out for so long that they count no more."""
        for name in [name for name, share in self.shares.items() if share.until is not None and self.ts >= share.until]:
            self.count_node(name)
        ends = (share.until for share in self.shares.values() if share.until is not None)
        self.recount_ts = min(ends, default=NEVER)

    def count_node(self, name: str) -> None:
        """Follows what the node counts for where a quota is a part of its pool."""
        if not self.configured.has_parts:
            return
        old, remembered = self.shares.get(name), self.remembered_nodes.get(name)
        new = share_of(self.configured, self.nodes.get(name), remembered, self.drains.get(name), self.ts)
        if new == old:
            return
        sizes = dict(self.sizes)
        add_share(sizes, old, -1)
        add_share(sizes, new)
        if new is None:
            self.shares.drop(name)
        else:
            self.shares.put(name, new)
            self.recount_ts = min(self.recount_ts, NEVER if new.until is None else new.until)
        self.sizes, self._tree = sizes, None

    def put_job(self, job: Job) -> None:
        """Stores a live job; in the base the sorted indexes follow."""
        if self.is_base:
            old = self.jobs.get(job.job_id)
            self.index.job_changes(self, old, job)
            self.jobs.put(job.job_id, job)
            self.relations.job_changes(self.jobs, old, job)
        else:
            self.jobs.put(job.job_id, job)

    def drop_job(self, job: Job) -> None:
        """Removes a job that is no longer live; in the base the sorted indexes follow."""
        if self.is_base:
            self.index.job_changes(self, job, None)
        self.jobs.drop(job.job_id)
        if self.is_base:
            self.relations.job_changes(self.jobs, job, None)

    def put_run(self, run: Run) -> None:
        """Stores a run that holds devices; in the base the sorted indexes follow."""
        if self.is_base:
            self.index.run_changes(self.runs.get(run.run_id), run)
        self.runs.put(run.run_id, run)

    def drop_run(self, run: Run) -> None:
        """Removes a run whose devices are free again; in the base the sorted indexes follow."""
        if self.is_base:
            self.index.run_changes(run, None)
        self.runs.drop(run.run_id)

    def put_ended(self, ended: EndedJob) -> None:
        """Remembers an ended job; the base's `remembered` also knows when to forget it."""
        self.ended.put(ended.job_id, ended)

    def drop_ended(self, ended: EndedJob) -> None:
        """Forgets an ended job, whose key may then be used again."""
        self.ended.drop(ended.job_id)

    def held_by_queue(self, queue: str) -> Amount:
        """Amount that the queue's own runs hold; nothing where no run of the queue was ever counted."""
        use = self.queue_use.get(queue)
        return NOTHING if use is None else use.amount

    def quota_book(self, besides: str = "") -> QuotaBook:
        """
        Use and lending of quota as of now; the book does not follow the state.

        What is earmarked for a job counts as used, except for job `besides`: otherwise others would take the quota
        while the runs that it waits for are being stopped.
        """
        held = {name: use.amount for name, use in self.queue_use.items()}
        book = QuotaBook(self.tree, held, lambda: self._firm(besides))
        for owner, mark in self.earmarks.items():
            job = self.jobs.get(owner)
            if job is not None and owner != besides and job.queue in self.tree.queues:
                book.add(job.queue, mark.flavor, job.amount)
        return book

    def _firm(self, besides: str) -> Iterator[Holding]:
        """Holdings, and earmarks, of jobs that may not be evicted; surplus pods may always go."""
        revocable = self.tree.revocable
        for run in self.runs.values():
            job = None if run.stopping else self.jobs.get(run.job_id)
            if job is not None and not revocable(job):
                gang = run.gang.amount_of(run.gang_places) if run.extra else run.amount
                yield run.queue, run.flavor, gang
        for owner, mark in self.earmarks.items():
            job = self.jobs.get(owner)
            if job is not None and owner != besides and not revocable(job):
                yield job.queue, mark.flavor, job.amount

    def put_node(self, node: Node) -> None:
        """A node as the cluster describes it now: it may have grown, shrunk, come or gone."""
        if self.is_base:
            self.index.node_changes(self.nodes.get(node.name), node)
        self.nodes.put(node.name, node)

    def drop_node(self, node: Node) -> None:
        """Removes a node; in the base the capacity of its pool follows."""
        if self.is_base:
            self.index.node_changes(node, None)
        self.nodes.drop(node.name)

    def remember_node(self, name: str, now: RememberedNode | None) -> None:
        """Puts what is remembered of a node, or nothing any more; of too many the oldest memory goes."""
        old = self.remembered_nodes.get(name)
        if now is old:
            return
        if now is None:
            self.remembered_nodes.drop(name)
        else:
            self.remembered_nodes.put(name, now)
        self.count_node(name)
        if self.is_base:
            self.index.memory_changes(old, now)
        if old is None and len(self.remembered_nodes) > REMEMBERED_MAX:
            oldest = next((key for ts, key in self.index.lost if self._lost_at(key) == ts), name)
            self.remember_node(oldest, None)

    def lost_due(self, ts: int) -> list[str]:
        """Nodes that are to be forgotten at `ts`, those first that lost something first."""
        until = ts - REMEMBERED_MS
        lost = self.index.lost
        if not lost or lost[0][0] > until:  # as at nearly every message
            return []
        return [name for lost_ts, name in lost.irange(maximum=(until + 1,)) if self._lost_at(name) == lost_ts]

    def _lost_at(self, name: str) -> int | None:
        row = self.remembered_nodes.get(name)
        return None if row is None else row.lost_ts

    def rebuild_index(self) -> None:
        """After a restore: the indexes again from the tables."""
        self.index = index = Index()
        index.rebuild_waiting(self)
        for job in self.jobs.values():
            if job.phase is Phase.QUEUED and job.not_before:
                index.retry_at.add((job.not_before, job.job_id))
        for run in self.runs.values():
            index.run_changes(None, run)
        for node in self.nodes.values():
            index.node_changes(None, node)
        for remembered in self.remembered_nodes.values():
            index.memory_changes(None, remembered)
        self.count_nodes()
        self.relations = JobRelations()
        self.relations.rebuild(self.jobs)


QueuedJob = tuple[int, int, int, str]
"""-priority, then age (ledger n, index), then the id."""

UserLine = tuple[str, str, str]
"""Queue, tenant and user."""

Bucket = tuple[int, JobKind, int]
"""-priority, kind and time limit (ms, 0 for none) of jobs that are expected to run equally long."""


class WaitingKind(NamedTuple):
    """Properties that decide whether a waiting job of a user may start: of one kind all may, or none."""

    bucket: Bucket
    gang: Gang
    revocable: bool
    evictions: int


WaitingByKind = dict[UserLine, dict[WaitingKind, SortedList[QueuedJob]]]


class Index:
    """
    Ordered indexes that spare decisions a look at everything; every order ends in a unique id.

    `waiting` holds the queued jobs of each leaf that are in line: priority first, then age; `lines` the same apart for
    each tenant, and for each of its users; `buckets` these again by bucket, where the queue's order looks at runtimes.
    `held` is what runs hold by (queue, tenant), and by (queue, tenant, user) where a user is named. `runs_on` says
    which runs hold something on a node; `strays` are live jobs that name a queue, tenant or class that the
    configuration does not have; `capacity` is what all nodes of a pool have together; `elastic` runs may change
    their size. `lost` has the remembered nodes, those first that lost something first.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, SortedList[QueuedJob]] = {}
        self.lines: dict[str, dict[str, dict[str, SortedList[QueuedJob]]]] = {}
        self.buckets: dict[tuple[str, str, str], dict[Bucket, SortedList[QueuedJob]]] = {}
        self._kinds: WaitingByKind | None = None
        self.held: dict[tuple[str, ...], Amount] = {}
        self.retry_at: SortedList[tuple[int, str]] = SortedList()
        self.start_by: SortedList[tuple[int, str]] = SortedList()
        self.strays: dict[str, None] = {}
        self.runs_on: dict[str, dict[str, None]] = {}
        self.capacity: dict[str, Amount] = {}
        self.elastic: dict[str, None] = {}
        self.lost: SortedList[tuple[int, str]] = SortedList()

    def memory_changes(self, old: RememberedNode | None, new: RememberedNode | None) -> None:
        """Follows what is remembered of a node, by when it lost something."""
        if old is not None:
            self.lost.remove((old.lost_ts, old.name))
        if new is not None:
            self.lost.add((new.lost_ts, new.name))

    def job_changes(self, state: State, old: Job | None, new: Job | None) -> None:
        """Follows a job from `old` to `new` (None: not there) in the waiting lines and the times of retries."""
        if old is not None:
            self.strays.pop(old.job_id, None)
        if new is not None and state.tree.is_stray(new):
            self.strays[new.job_id] = None
        was = old if old is not None and old.phase is Phase.QUEUED else None
        now = new if new is not None and new.phase is Phase.QUEUED else None
        if was is not None and was.not_before:
            self.retry_at.discard((was.not_before, was.job_id))
        if now is not None and now.not_before:
            self.retry_at.add((now.not_before, now.job_id))
        if was is not None and now is not None and _stands(was) == _stands(now):
            self._change_kind(state, was, now)
            return
        if was is not None:
            self._leave(state, was)
        if now is not None:
            self._wait(state, now)

    def run_changes(self, old: Run | None, new: Run | None) -> None:
        """Follows a run from `old` to `new` (None: not there): start deadlines, nodes and amounts held."""
        was = old is not None and not old.started and not old.stopping
        now = new is not None and not new.started and not new.stopping
        if was and not now and old is not None:
            self.start_by.remove((old.deadline, old.run_id))
        elif now and not was and new is not None:
            self.start_by.add((new.deadline, new.run_id))
        elif was and old is not None and new is not None and old.deadline != new.deadline:
            self.start_by.remove((old.deadline, old.run_id))
            self.start_by.add((new.deadline, new.run_id))
        if old is None or new is None or (old.extra, old.released_ranks) != (new.extra, new.released_ranks):
            self._stand(old, new)
        if old is None or new is None or (old.amount, old.queue) != (new.amount, new.queue):
            self._hold(old, -1)
            self._hold(new, 1)

    def _hold(self, run: Run | None, sign: int) -> None:
        if run is None:
            return
        for who in sharers(run.queue, run.tenant, run.user):
            held = self.held.get(who, NOTHING).plus(run.amount, sign)
            if held == NOTHING:
                self.held.pop(who, None)
            else:
                self.held[who] = held

    def _stand(self, old: Run | None, new: Run | None) -> None:
        """The run stands on other nodes than before."""
        if old is not None:
            for node in {placement.node for placement in old.places}:
                self.runs_on[node].pop(old.run_id, None)
                if not self.runs_on[node]:
                    del self.runs_on[node]
            self.elastic.pop(old.run_id, None)
        if new is not None:
            for placement in new.places:
                self.runs_on.setdefault(placement.node, {})[new.run_id] = None
            if any(role.more for role in new.roles):
                self.elastic[new.run_id] = None

    def node_changes(self, old: Node | None, new: Node | None) -> None:
        """Follows a node from `old` to `new` in the capacity of its pool; a node that is gone counts nothing."""
        for node, sign in ((old, -1), (new, 1)):
            if node is not None and not node.gone:
                size = Amount(node.cpu_milli, node.memory_bytes, node.gpus * WHOLE_GPU)
                self.capacity[node.pool] = self.capacity.get(node.pool, NOTHING).plus(size, sign)

    def rebuild_waiting(self, state: State) -> None:
        """A new configuration moves queues between pools and priorities up and down."""
        self.waiting, self.lines, self.buckets, self.strays, self._kinds = {}, {}, {}, {}, None
        tree, waiting = state.tree, dict[str, list[QueuedJob]]()
        by_user, by_bucket = dict[UserLine, list[QueuedJob]](), dict[UserLine, dict[Bucket, list[QueuedJob]]]()
        for job in state.jobs.values():
            if tree.is_stray(job):
                self.strays[job.job_id] = None
            if job.phase is Phase.QUEUED and not job.kept_out and tree.takes(job):
                place, whose = _key_in_queue(tree, job), (job.queue, job.tenant, job.user)
                waiting.setdefault(job.queue, []).append(place)
                by_user.setdefault(whose, []).append(place)
                if tree.queues[job.queue].order != "age":
                    by_bucket.setdefault(whose, {}).setdefault(_bucket(tree, job), []).append(place)
        # Sorted once: put in one by one they take five times as long, and a restart has a hundred thousand.
        self.waiting = {queue: SortedList(places) for queue, places in waiting.items()}
        for (queue, tenant, user), places in by_user.items():
            self.lines.setdefault(queue, {}).setdefault(tenant, {})[user] = SortedList(places)
        for whose, buckets in by_bucket.items():
            self.buckets[whose] = {bucket: SortedList(places) for bucket, places in buckets.items()}

    def reordered(self, state: State, old: Job, new: Job) -> "Index":
        """A copy in which a waiting job stands as `new`; of the original nothing changes."""
        fork, queue = shallow_copy(self), old.queue
        fork._kinds = None
        fork.waiting = {**self.waiting, queue: self.waiting.get(queue, SortedList()).copy()}
        tenants = self.lines.get(queue, {}).items()
        lines = {name: {user: line.copy() for user, line in users.items()} for name, users in tenants}
        fork.lines = {**self.lines, queue: lines}
        whose = queue, old.tenant, old.user
        fork.buckets = {**self.buckets, whose: {k: v.copy() for k, v in self.buckets.get(whose, {}).items()}}
        fork._leave(state, old)
        fork._wait(state, new)
        return fork

    def _wait(self, state: State, job: Job) -> None:
        if not job.kept_out and state.tree.takes(job):
            place = _key_in_queue(state.tree, job)
            self.waiting.setdefault(job.queue, SortedList()).add(place)
            users = self.lines.setdefault(job.queue, {}).setdefault(job.tenant, {})
            users.setdefault(job.user, SortedList()).add(place)
            if state.tree.queues[job.queue].order != "age":
                buckets = self.buckets.setdefault((job.queue, job.tenant, job.user), {})
                buckets.setdefault(_bucket(state.tree, job), SortedList()).add(place)
            if self._kinds is not None:
                self._wait_by_kind(self._kinds, state.tree, job, place)

    def _leave(self, state: State, job: Job) -> None:
        if not job.kept_out and state.tree.takes(job):
            place = _key_in_queue(state.tree, job)
            self.waiting[job.queue].remove(place)
            tenants = self.lines[job.queue]
            users = tenants[job.tenant]
            users[job.user].remove(place)
            if not users[job.user]:
                del users[job.user]
                if not users:
                    del tenants[job.tenant]
            if state.tree.queues[job.queue].order != "age":
                self._leave_bucket(state.tree, job, place)
            if self._kinds is not None:
                self._leave_by_kind(self._kinds, state.tree, job, place)

    def kinds(self, state: State) -> WaitingByKind:
        """Waiting jobs of (queue, tenant, user) by kind: followed from the first call on, since few services ask."""
        if self._kinds is None:
            self._kinds = {}
            for name, tenants in self.lines.items():
                for place in (place for users in tenants.values() for line in users.values() for place in line):
                    job = state.jobs.get(place[-1])
                    if job is not None and job.queue == name:
                        self._wait_by_kind(self._kinds, state.tree, job, place)
        return self._kinds

    def _change_kind(self, state: State, was: Job, now: Job) -> None:
        """Follow a job whose needs changed while it waits, as when its volumes turn out to be elsewhere."""
        if self._kinds is None or was.kept_out or not state.tree.takes(was):
            return
        if _waiting_kind(state.tree, was) != _waiting_kind(state.tree, now):
            place = _key_in_queue(state.tree, was)
            self._leave_by_kind(self._kinds, state.tree, was, place)
            self._wait_by_kind(self._kinds, state.tree, now, place)

    def _wait_by_kind(self, kinds: WaitingByKind, tree: QueueTree, job: Job, place: QueuedJob) -> None:
        of_user = kinds.setdefault((job.queue, job.tenant, job.user), {})
        of_user.setdefault(_waiting_kind(tree, job), SortedList()).add(place)

    def _leave_by_kind(self, kinds: WaitingByKind, tree: QueueTree, job: Job, place: QueuedJob) -> None:
        whose, kind = (job.queue, job.tenant, job.user), _waiting_kind(tree, job)
        kinds[whose][kind].remove(place)
        if not kinds[whose][kind]:
            del kinds[whose][kind]
            if not kinds[whose]:
                del kinds[whose]

    def _leave_bucket(self, tree: QueueTree, job: Job, place: QueuedJob) -> None:
        buckets, bucket = self.buckets[job.queue, job.tenant, job.user], _bucket(tree, job)
        buckets[bucket].remove(place)
        if not buckets[bucket]:
            del buckets[bucket]
            if not buckets:
                del self.buckets[job.queue, job.tenant, job.user]


def sharers(queue: str, tenant: str, user: str) -> tuple[tuple[str, ...], ...]:
    """Tenant and user that fair share charges for a job of the queue; the user only where one is named."""
    return ((queue, tenant), (queue, tenant, user)) if user else ((queue, tenant),)


def _stands(job: Job) -> tuple[str, str, bool, int, str]:
    """The fields that decide a queued job's place, or its bucket, and that may change while it waits."""
    return job.queue, job.priority_class, job.kept_out, job.time_limit_seconds, job.name


def _key_in_queue(tree: QueueTree, job: Job) -> QueuedJob:
    return (-tree.priority_of(job), job.taken_n, job.fact_index, job.job_id)


def _bucket(tree: QueueTree, job: Job) -> Bucket:
    return (-tree.priority_of(job), kind_of(job), job.time_limit_seconds * 1000)


def _waiting_kind(tree: QueueTree, job: Job) -> WaitingKind:
    return WaitingKind(_bucket(tree, job), job.gang, tree.revocable(job), job.evictions)
