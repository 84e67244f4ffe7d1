"""
The account of a shard's GPUs, CPU and memory: for each stretch of ledger time, who had how much of each. Pure.

It follows the state message by message. What a message names (a job, a run, a node) is looked at again and nothing
else; each line counts by itself from when it last changed, so that a message costs as much as it changed, however many
nodes there are. At each full hour, or step that is given, all lines are counted, so that no stretch lies in two.

Integers only: `OwnedAmounts` times milliseconds. Of equal ledgers the account is equal to the digit, wherever its
reading was interrupted: what is not in its books follows from the state.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol

from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.phases import Phase
from tessera.engine.accounts.dividing import NodeDivider, by_flavor
from tessera.engine.accounts.in_line import GpuRequest, PoolInLine, request_of
from tessera.engine.accounts.kept_windows import WindowsOfNodes
from tessera.engine.accounts.owners import (
    NO_AMOUNTS,
    USE,
    Division,
    GpuCause,
    GpuOwner,
    HeldPod,
    OwnedAmounts,
    RunHolds,
    pods_of_mark,
    pods_of_run,
    what_it_holds,
)
from tessera_schemas.cluster.device_facts import LayoutSeen
from tessera_schemas.facts import NodeSeen, PodsFound, RunUsed
from tessera_schemas.ledger import (
    JOB_OF,
    AnyRecord,
    Booked,
    BookingEnded,
    ConfigSet,
    DevicesNoted,
    Finished,
    FormatRaised,
    LedgerMessage,
    MigChangeBegun,
    MigChangeEnded,
    NodeBackedOff,
    NodeChanged,
    NodeDrained,
    PodsTakenOver,
    Released,
    Started,
    TakenFact,
    UseNoted,
)
from tessera_schemas.shard.bookings import Rebooked

HOUR_MS = 3_600_000
NoteUse = Callable[[GpuOwner, int, int], None]
"""
Takes an amount of a cause of `USE`, and when it was told; less than nothing where a later measurement covers more, and
less of it worked.
"""
NOTHING_THERE: Division = {}, None
BEGIN_ANEW = frozenset({ConfigSet, FormatRaised})
"""Records after which queues, and flavors of nodes, may be others."""
NAME_NODES = frozenset(
    {MigChangeBegun, MigChangeEnded, NodeDrained, NodeBackedOff, NodeChanged, PodsTakenOver, DevicesNoted}
)
"""Records that change nodes by themselves; those of runs and earmarks change with these."""
NAME_BOOKINGS = (Booked, Rebooked, BookingEnded)
END_BACKOFFS = frozenset({Started, Finished})
"""Records after which a run's nodes may take pods again, also where nothing of what it holds changes."""
PodsOfNodes = dict[str, list[HeldPod]]
HolderKey = tuple[int, str]
"""Runs (0) before earmarks (1), each by its job: a job has one of each at most."""


class AccountBooks(Protocol):
    """Books that an account writes."""

    def add(self, owner: GpuOwner, amounts: OwnedAmounts, start_ts: int, end_ts: int) -> None:
        """The owner had so much from `start_ts` on until `end_ts`, both in one step; equal ones open it."""


class Account:
    """
    Call `take` with each message once it is folded. Books are complete up to `upto` after `settle`.

    `lines` is who has how much now, and since when that is not in the books; their sum without the capacity's, and
    without those of classes of devices, is the capacity's, in every pool and flavor.
    """

    def __init__(
        self,
        books: AccountBooks,
        state: State | None = None,
        step_ms: int = HOUR_MS,
        divide: NodeDivider = by_flavor,
        note_use: NoteUse | None = None,
    ) -> None:
        """
        `state` is the one that the account begins with; left out, the first message's is.

        `note_use` gets what of held GPUs was measured, and worked, since that was told last, in the moment when it is
        told.
        """
        self._books, self._step_ms, self._divide = books, step_ms, divide
        self.n = self.upto = 0
        self.lines: dict[GpuOwner, tuple[OwnedAmounts, int]] = {}
        self._note_use = note_use
        self._told = {run.run_id: _use_of(run) for run in (state.runs.values() if state is not None else ())}
        self._clear()
        if state is not None and state.n:
            self.n, self.upto = state.n, state.ts
            self._begin(state)

    def _clear(self) -> None:
        self._on: dict[str, dict[HolderKey, Sequence[HeldPod]]] = {}
        self._holders: dict[HolderKey, PodsOfNodes] = {}
        self._seen: dict[str, RunHolds] = {}
        self._run_ids: dict[str, str] = {}
        self._waiting: dict[str, tuple[str, GpuRequest]] = {}
        self._pools: defaultdict[str, PoolInLine] = defaultdict(PoolInLine)
        self._free_lines: dict[str, Mapping[GpuOwner, OwnedAmounts]] = {}
        self._nodes: dict[str, Division] = {}
        self._windows = WindowsOfNodes()
        self._reopening: dict[str, list[tuple[int, Division]]] = {}
        self._reopens: list[tuple[int, str]] = []
        self._backed_off: set[str] = set()

    def take(self, message: LedgerMessage, state: State) -> None:
        """Follows a message; `state` is the one after it. One that the account has seen changes nothing."""
        if message.n <= self.n:
            return
        self._go_to(message.ts)
        self.n = message.n
        self._follow_use(message, state)
        if not BEGIN_ANEW.isdisjoint(map(type, message.records)):
            self._begin(state)
            return
        jobs, nodes, pools, opened = dict[str, None](), dict[str, None](), set[str](), False
        for record in message.records:
            kind = type(record)
            if (job_of := JOB_OF.get(kind)) is not None:
                jobs[job_of(record)] = None
                opened |= kind in END_BACKOFFS
            nodes |= dict.fromkeys(self._nodes_of(record, message.facts, state))
        for job_id in jobs:
            job = state.jobs.get(job_id)
            nodes |= dict.fromkeys(self._follow_holders(job_id, job, state))
            pools |= self._follow_line(job_id, job, state)
        # Also nodes that pods of the run have left already: nobody holds them for it any more. Few back off at once.
        nodes |= dict.fromkeys(sorted(self._backed_off) if opened else ())
        for name in nodes:
            pools |= self._follow_node(name, state)
        self._follow_pools(pools)

    def _follow_use(self, message: LedgerMessage, state: State) -> None:
        """Tells what was measured and worked since it was told last, by what the newest fact of each run adds."""
        if self._note_use is None:
            return
        for record in message.records:
            if type(record) is Released and not record.ranks:
                self._told.pop(record.run_id, None)
            elif type(record) is UseNoted and isinstance(fact := message.facts[record.fact].fact, RunUsed):
                self._tell_use(fact, message.ts, state, self._note_use)

    def _tell_use(self, fact: RunUsed, ts: int, state: State, note_use: NoteUse) -> None:
        """Tells of one run; where the message releases it, the state knows it no more, and the account does."""
        job_id, told = fact.run_id.rpartition("-")[0], self._told.get(fact.run_id, (0, 0))
        run, held = state.runs.get(fact.run_id), self._holders.get((0, job_id), {})
        pods = [pod for here in held.values() for pod in here]
        # Of a run that is still there all pods count, those that are gone too: none may be left.
        pods = pods if run is None else pods_of_run(replace(run, released_ranks=()))
        if not pods:
            return
        # What a run is known to have done by its end counts as the fact says; before, as the fold took it in, which
        # leaves out what came too late.
        now = fact.use.measured_gpu_milli_ms, fact.use.worked_gpu_milli_ms
        if run is not None:
            self._told[fact.run_id] = now = _use_of(run)
        # A run is on nodes of one pool and, but for nodes that changed since, of one flavor; a node may have gone that
        # pods of the run have left.
        first, nodes = pods[0], (state.nodes.get(pod.placement.node) for pod in pods)
        node = next((node for node in nodes if node is not None), None)
        at = ("", "") if node is None else (node.pool, state.tree.flavor_of(node))
        for cause, before, after in zip(USE, told, now, strict=True):
            owner = GpuOwner(*at, cause, first.tenant, first.queue, first.user, first.job, first.project)
            note_use(owner, after - before, ts)

    def settle(self) -> None:
        """Writes all that is owed until `upto` into the books."""
        for owner in sorted(self.lines):
            self._change(owner, NO_AMOUNTS, NO_AMOUNTS)

    def _begin(self, state: State) -> None:
        self.settle()
        self.lines = {}
        self._clear()
        self._run_ids = {run.job_id: run.run_id for run in state.runs.values()}
        for job_id in {*self._run_ids, *(owner for owner, _ in state.earmarks.items())}:
            self._follow_holders(job_id, state.jobs.get(job_id), state)
        for job in state.jobs.values():
            self._follow_line(job.job_id, job, state)
        for booking in sorted(state.bookings.values(), key=lambda each: each.name):
            self._windows.put(booking.name, booking)
        for name, _ in sorted(state.nodes.items()):
            self._follow_node(name, state)
        self._follow_pools(self._pools)

    def _go_to(self, ts: int) -> None:
        """Time passes: full steps, and ends of back-offs and of windows on the way, each at its moment."""
        self.upto = self.upto or ts
        while True:
            step = self.upto - self.upto % self._step_ms + self._step_ms
            if self._reopens and self._reopens[0][0] <= ts and self._reopens[0][0] < step:
                self._reopen(*heappop(self._reopens))
            elif step <= ts:
                self.upto = step
                self.settle()
                # Rows of the new step come in this order, however its messages are read: beyond a bound it matters.
                for owner in sorted(self.lines):
                    self._change(owner, NO_AMOUNTS, NO_AMOUNTS)
            else:
                self.upto = ts
                return

    def _reopen(self, until_ts: int, node: str) -> None:
        """A back-off or a window of a node ends, or a window begins; what was changed since has left nothing here."""
        ahead = self._reopening.get(node)
        if ahead and ahead[-1][0] == until_ts:
            self.upto = until_ts
            _, division = ahead.pop()
            if ahead:
                heappush(self._reopens, (ahead[-1][0], node))
            self._follow_pools(self._put_node(node, division))

    def _nodes_of(self, record: AnyRecord, facts: Sequence[TakenFact], state: State) -> Sequence[str]:
        """Nodes that a record changes by itself, with the booking that it may be about."""
        if isinstance(record, NAME_BOOKINGS):
            return self._follow_booking(record.name, state)
        return _nodes_named(record, facts, state) if type(record) in NAME_NODES else ()

    def _follow_booking(self, name: str, state: State) -> list[str]:
        """The booking as it is now; returns the nodes that it has, or had."""
        booking = state.bookings.get(name)
        names, pools = self._windows.put(name, booking)
        return sorted(names) + sorted(node.name for node in state.nodes.values() if node.pool in pools)

    def _follow_holders(self, job_id: str, job: Job | None, state: State) -> list[str]:
        """The job's run and earmark as they are now; returns the nodes of those that changed."""
        run_id = self._run_ids.pop(job_id, "") if job is None else job.run_id
        run, mark = state.runs.get(run_id), state.earmarks.get(job_id)
        changed = list[str]()
        if run is not None:
            self._run_ids[job_id] = run_id
        # Most records about a run, as its permit, change nothing of what it holds.
        if (holds := None if run is None else what_it_holds(run)) != self._seen.pop(job_id, None):
            changed += self._hold((0, job_id), [] if run is None else pods_of_run(run))
        if holds is not None:
            self._seen[job_id] = holds
        # Few jobs ever have an earmark.
        if mark is not None or (1, job_id) in self._holders:
            changed += self._hold((1, job_id), [] if mark is None else pods_of_mark(state, mark))
        return changed

    def _hold(self, key: HolderKey, pods: Sequence[HeldPod]) -> Iterable[str]:
        """Puts the pods in place of those that the holder had; returns the nodes of both, if they differ."""
        old, new = self._holders.pop(key, {}), _by_node(pods)
        if new:
            self._holders[key] = new
        if new == old:
            return ()
        for name in old:
            del self._on[name][key]
            if not self._on[name]:
                del self._on[name]
        for name, here in new.items():
            self._on.setdefault(name, {})[key] = here
        return old | new

    def _follow_line(self, job_id: str, job: Job | None, state: State) -> set[str]:
        """Whether the job waits for GPUs, and for what; returns the pools in which that is otherwise than before."""
        now = None
        # As for all records about a run: its job waits neither before nor after them.
        if (job is None or job.phase is not Phase.QUEUED) and job_id not in self._waiting:
            return set()
        if job is not None and job.phase is Phase.QUEUED and not job.kept_out and state.tree.takes(job):
            pool, request = state.tree.pool(job.queue), request_of(job)
            now = None if pool is None or request is None else (pool, request)
        before = self._waiting.pop(job_id, None)
        if now is not None:
            self._waiting[job_id] = now
        if now == before:
            return set()
        if before is not None and (now is None or now[0] != before[0]):
            self._pools[before[0]].wait(job_id, None)
        if now is not None:
            self._pools[now[0]].wait(job_id, now[1])
        return {found[0] for found in (before, now) if found is not None}

    def _follow_node(self, name: str, state: State) -> set[str]:
        """Divides the node anew; returns the pools whose free ones are others than before."""
        self._reopening.pop(name, None)
        node, backoff = state.nodes.get(name), state.backoffs.get(name)
        (self._backed_off.discard if backoff is None else self._backed_off.add)(name)
        if node is None:
            return self._put_node(name, NOTHING_THERE)
        held = [pod for _, pods in sorted(self._on.get(name, {}).items()) for pod in pods]
        if state.drains.get(name) is not None:
            return self._put_node(name, self._divide(state, node, held, GpuCause.OUT))
        # A back-off and windows may overlap in any way: of each time at which one of them begins or ends, the division
        # that holds from then on is made now, while the node and its holders are at hand. Whatever changes them makes
        # these anew.
        out_until = 0 if backoff is None else backoff.until_ts
        windows = self._windows.ahead(name, node.pool, state.ts)

        def shut_at(ts: int) -> GpuCause | None:
            if ts < out_until:
                return GpuCause.OUT
            return GpuCause.BOOKED if any(start <= ts < end for start, end in windows) else None

        # Few nodes have such a time ahead, and all that it changes is told apart by one of three causes.
        times = [ts for ts in sorted({out_until, *(ts for window in windows for ts in window)}) if ts > state.ts]
        causes = {cause: self._divide(state, node, held, cause) for cause in map(shut_at, (state.ts, *times))}
        if times:
            self._reopening[name] = [(ts, causes[shut_at(ts)]) for ts in reversed(times)]
            heappush(self._reopens, (times[0], name))
        return self._put_node(name, causes[shut_at(state.ts)])

    def _put_node(self, name: str, now: Division) -> set[str]:
        before = self._nodes.pop(name, NOTHING_THERE)
        if now != NOTHING_THERE:
            self._nodes[name] = now
        self._change_all(before[0], now[0])
        if before[1] == now[1]:
            return set()
        for free, put in ((before[1], None), (now[1], now[1])):
            if free is not None:
                self._pools[free.pool].put_free(name, put)
        return {free.pool for free in (before[1], now[1]) if free is not None}

    def _follow_pools(self, pools: Collection[str]) -> None:
        for name in sorted(pools):
            now = self._pools[name].causes()
            self._change_all(self._free_lines.get(name, {}), now)
            self._free_lines[name] = now

    def _change_all(self, before: Mapping[GpuOwner, OwnedAmounts], now: Mapping[GpuOwner, OwnedAmounts]) -> None:
        # Of a node's lines two or four change, and it may have as many as it has GPUs.
        for owner in sorted({owner for owner, _ in before.items() ^ now.items()}):
            self._change(owner, before.get(owner, NO_AMOUNTS), now.get(owner, NO_AMOUNTS))

    def _change(self, owner: GpuOwner, less: OwnedAmounts, more: OwnedAmounts) -> None:
        (gpu, cpu, memory), since = self.lines.get(owner, (NO_AMOUNTS, self.upto))
        self._books.add(owner, (gpu, cpu, memory), since, self.upto)
        now = gpu - less[0] + more[0], cpu - less[1] + more[1], memory - less[2] + more[2]
        if now != NO_AMOUNTS:
            self.lines[owner] = now, self.upto
        else:
            self.lines.pop(owner, None)


def _use_of(run: Run) -> tuple[int, int]:
    """Time of the run's GPUs that was measured, and of that what worked, as far as it was told."""
    use = run.gpu_use
    return (0, 0) if use is None else (use.measured_gpu_milli_ms, use.worked_gpu_milli_ms)


def _nodes_of(layout: str, state: State) -> list[str]:
    """Nodes that name a layout which the ledger takes in only now: their devices are parts of GPUs from now on."""
    named = ((name, node.offer) for name, node in state.nodes.items())
    return sorted(name for name, offer in named if offer is not None and offer.digest == layout)


def _by_node(pods: Sequence[HeldPod]) -> PodsOfNodes:
    found: PodsOfNodes = {}
    for pod in pods:
        found.setdefault(pod.placement.node, []).append(pod)
    return found


def _nodes_named(record: AnyRecord, facts: Sequence[TakenFact], state: State) -> Sequence[str]:
    """Nodes that a record of `NAME_NODES` changes."""
    if isinstance(record, NodeDrained | NodeBackedOff | MigChangeBegun | MigChangeEnded):
        return (record.node,)
    fact = facts[record.fact].fact if isinstance(record, NodeChanged | PodsTakenOver | DevicesNoted) else None
    if isinstance(fact, LayoutSeen):
        return _nodes_of(fact.layout.digest(), state)
    if isinstance(fact, PodsFound):
        return fact.nodes
    return (fact.name,) if isinstance(fact, NodeSeen) else ()
