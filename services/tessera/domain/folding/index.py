"""Sorted indexes of a state's tables: followed change by change, so that no decision looks at everything."""

from copy import copy as shallow_copy
from typing import Any, Protocol

from sortedcontainers import SortedList

from tessera.domain.devices.resources import NOTHING, WHOLE_GPU, Amount, Node
from tessera.domain.entities import Job, Run
from tessera.domain.folding import line_keys
from tessera.domain.folding.line_keys import Bucket, QueuedJob, UserLine, WaitingByKind
from tessera.domain.queues import QueueTree
from tessera.domain.table import Table
from tessera.domain.work.evidence import RememberedNode
from tessera.domain.work.phases import Phase


class LineState(Protocol):
    """The part of a state that its lines follow from."""

    jobs: Table[Job]

    @property
    def tree(self) -> QueueTree: ...


class Index:
    """
    Ordered indexes that spare decisions a look at everything; every order ends in a unique id.

    `waiting` holds the queued jobs of each leaf that are in line: priority first, then age; `lines` the same apart for
    each tenant, and for each of its users; `buckets` these again by bucket, where the queue's order looks at runtimes.
    `held` is what runs hold by (queue, tenant) and by (queue, tenant, user), "" for no user. `runs_on` says
    which runs hold something on a node; `strays` are live jobs that name a queue, tenant or class that the
    configuration does not have; `capacity` is what all nodes of a pool have together; `elastic` runs may change
    their size, `restarting` runs have a copy of a group that does not run again yet, `claiming` jobs have claims on
    published devices, and under the last run of `displaced` ones a node broke. `lost` has the remembered nodes, those
    first that lost something first. `latest_starts` has the queued jobs with a deadline by when each has to start, and
    `holders` are live jobs that name a booking.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, SortedList[QueuedJob]] = {}
        self.lines: dict[str, dict[str, dict[str, SortedList[QueuedJob]]]] = {}
        self.buckets: dict[tuple[str, str, str], dict[Bucket, SortedList[QueuedJob]]] = {}
        self._kinds: WaitingByKind | None = None
        self.held: dict[tuple[str, ...], Amount] = {}
        self.retry_at: SortedList[tuple[int, str]] = SortedList()
        self.start_by: SortedList[tuple[int, str]] = SortedList()
        self.latest_starts: SortedList[tuple[int, str]] = SortedList()
        self.strays: dict[str, None] = {}
        self.runs_on: dict[str, dict[str, None]] = {}
        self.capacity: dict[str, Amount] = {}
        self.elastic: dict[str, None] = {}
        self.restarting: dict[str, None] = {}
        self.claiming: dict[str, None] = {}
        self.displaced: dict[str, None] = {}
        self.holders: dict[str, None] = {}
        self.lost: SortedList[tuple[int, str]] = SortedList()

    def memory_changes(self, old: RememberedNode | None, new: RememberedNode | None) -> None:
        """Follows what is remembered of a node, by when it lost something."""
        if old is not None:
            self.lost.remove((old.lost_ts, old.name))
        if new is not None:
            self.lost.add((new.lost_ts, new.name))

    def job_changes(self, state: "LineState", old: Job | None, new: Job | None) -> None:
        """Follows a job from `old` to `new` (None: not there) in the waiting lines and the times of retries."""
        self._follow_kinds(state, old, new)
        was = old if old is not None and old.phase is Phase.QUEUED else None
        now = new if new is not None and new.phase is Phase.QUEUED else None
        if was is not None and was.not_before:
            self.retry_at.discard((was.not_before, was.job_id))
        if now is not None and now.not_before:
            self.retry_at.add((now.not_before, now.job_id))
        self._follow_latest_start(was, now)
        if was is not None and now is not None and line_keys.job_stands(was) == line_keys.job_stands(now):
            self._change_kind(state, was, now)
            return
        if was is not None:
            self._leave(state, was)
        if now is not None:
            self._wait(state, now)

    def _follow_kinds(self, state: "LineState", old: Job | None, new: Job | None) -> None:
        if old is not None:
            for kept in (self.strays, self.claiming, self.displaced, self.holders):
                kept.pop(old.job_id, None)
        if new is None:
            return
        if state.tree.is_stray(new):
            self.strays[new.job_id] = None
        if new.gang.claims:
            self.claiming[new.job_id] = None
        if new.displaced:
            self.displaced[new.job_id] = None
        if new.booking:
            self.holders[new.job_id] = None

    def _follow_latest_start(self, was: Job | None, now: Job | None) -> None:
        # An array is no job to start: each of its tasks has the deadline.
        for job, change in ((was, self.latest_starts.discard), (now, self.latest_starts.add)):
            if job is not None and job.deadline_ts and job.array is None:
                change((job.latest_start_ts, job.job_id))

    def run_changes(self, old: Run | None, new: Run | None) -> bool:
        """Follows a run from `old` to `new` (None: not there); whether what somebody holds is another amount now."""
        was = None if old is None or old.started or old.stopping else (old.deadline, old.run_id)
        now = None if new is None or new.started or new.stopping else (new.deadline, new.run_id)
        if was != now:
            if was is not None:
                self.start_by.remove(was)
            if now is not None:
                self.start_by.add(now)
        if old is None or new is None or (old.extra, old.released_ranks) != (new.extra, new.released_ranks):
            self._stand(old, new)
        if old is not None and old.restarts:
            self.restarting.pop(old.run_id, None)
        if new is not None and any(copy.deadline for copy in new.restarts) and not new.stopping:
            self.restarting[new.run_id] = None
        other = old is None or new is None or (old.amount, old.queue) != (new.amount, new.queue)
        if other:
            self._hold(old, -1)
            self._hold(new, 1)
        return other

    def _hold(self, run: Run | None, sign: int) -> None:
        if run is None:
            return
        for who in line_keys.sharers(run.queue, run.tenant, run.user):
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

    def rebuild_waiting(self, state: "LineState") -> None:
        """A new configuration moves queues between pools and priorities up and down."""
        self.waiting, self.lines, self.buckets, self.strays, self._kinds = {}, {}, {}, {}, None
        self.claiming = {job.job_id: None for job in state.jobs.values() if job.gang.claims}
        self.displaced = {job.job_id: None for job in state.jobs.values() if job.displaced}
        self.holders = {job.job_id: None for job in state.jobs.values() if job.booking}
        tree, waiting = state.tree, dict[str, list[QueuedJob]]()
        by_user, by_bucket = dict[UserLine, list[QueuedJob]](), dict[UserLine, dict[Bucket, list[QueuedJob]]]()
        for job in state.jobs.values():
            if tree.is_stray(job):
                self.strays[job.job_id] = None
            if job.phase is Phase.QUEUED and not job.kept_out and tree.takes(job):
                place, whose = line_keys.place_in_line(tree, job), (job.queue, job.tenant, job.user)
                waiting.setdefault(job.queue, []).append(place)
                by_user.setdefault(whose, []).append(place)
                if tree.queues[job.queue].order != "age":
                    by_bucket.setdefault(whose, {}).setdefault(line_keys.bucket_of(tree, job), []).append(place)
        # Sorted once: put in one by one they take five times as long, and a restart has a hundred thousand.
        self.waiting = {queue: SortedList(places) for queue, places in waiting.items()}
        for (queue, tenant, user), places in by_user.items():
            self.lines.setdefault(queue, {}).setdefault(tenant, {})[user] = SortedList(places)
        for whose, buckets in by_bucket.items():
            self.buckets[whose] = {bucket: SortedList(places) for bucket, places in buckets.items()}

    def reordered(self, state: "LineState", old: Job, new: Job) -> "Index":
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

    def _wait(self, state: "LineState", job: Job) -> None:
        if not job.kept_out and state.tree.takes(job):
            place = line_keys.place_in_line(state.tree, job)
            self.waiting.setdefault(job.queue, SortedList()).add(place)
            users = self.lines.setdefault(job.queue, {}).setdefault(job.tenant, {})
            users.setdefault(job.user, SortedList()).add(place)
            if state.tree.queues[job.queue].order != "age":
                buckets = self.buckets.setdefault((job.queue, job.tenant, job.user), {})
                buckets.setdefault(line_keys.bucket_of(state.tree, job), SortedList()).add(place)
            if self._kinds is not None:
                self._wait_by_kind(self._kinds, state.tree, job, place)

    def _leave(self, state: "LineState", job: Job) -> None:
        if not job.kept_out and state.tree.takes(job):
            place = line_keys.place_in_line(state.tree, job)
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

    def kinds(self, state: "LineState") -> WaitingByKind:
        """Waiting jobs of each queue by kind: followed from the first call on, since few services ask."""
        if self._kinds is None:
            self._kinds = {}
            for name, tenants in self.lines.items():
                for place in (place for users in tenants.values() for line in users.values() for place in line):
                    job = state.jobs.get(place[-1])
                    if job is not None and job.queue == name:
                        self._wait_by_kind(self._kinds, state.tree, job, place)
        return self._kinds

    def _change_kind(self, state: "LineState", was: Job, now: Job) -> None:
        """Follow a job whose needs changed while it waits, as when its volumes turn out to be elsewhere."""
        if self._kinds is None or was.kept_out or not state.tree.takes(was):
            return
        if line_keys.kind_keys(state.tree, was) != line_keys.kind_keys(state.tree, now):
            place = line_keys.place_in_line(state.tree, was)
            self._leave_by_kind(self._kinds, state.tree, was, place)
            self._wait_by_kind(self._kinds, state.tree, now, place)

    def _wait_by_kind(self, kinds: WaitingByKind, tree: QueueTree, job: Job, place: QueuedJob) -> None:
        pool, kind, queue, bucket, whose = line_keys.kind_keys(tree, job)
        lines = kinds.setdefault(pool, {}).setdefault(kind, {}).setdefault(queue, {}).setdefault(bucket, {})
        lines.setdefault(whose, SortedList()).add(place)

    def _leave_by_kind(self, kinds: WaitingByKind, tree: QueueTree, job: Job, place: QueuedJob) -> None:
        line: Any = kinds
        within = list[tuple[Any, object]]()
        for key in line_keys.kind_keys(tree, job):
            within.append((line, key))
            line = line[key]
        line.remove(place)
        for level, key in reversed(within):
            if level[key]:
                break
            del level[key]

    def _leave_bucket(self, tree: QueueTree, job: Job, place: QueuedJob) -> None:
        buckets, bucket = self.buckets[job.queue, job.tenant, job.user], line_keys.bucket_of(tree, job)
        buckets[bucket].remove(place)
        if not buckets[bucket]:
            del buckets[bucket]
            if not buckets:
                del self.buckets[job.queue, job.tenant, job.user]
