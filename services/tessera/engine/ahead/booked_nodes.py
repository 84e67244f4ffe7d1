"""
Nodes that are kept in windows of time, as decisions see them: for whom, and which of them a job leaves in time. Pure.

A job that names no booking starts on a node of one only if it has gone by the time that the node's next window begins:
by its time limit, else by when nearly all such jobs have ended. One that may be preempted starts there as long as it is
worth while, and leaves with its notice. A job that names a booking runs on its nodes alone, within one of its windows.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from tessera.domain.devices.resources import Node
from tessera.domain.entities import Job, Run
from tessera.domain.quota.bookings import Booking, WindowTimes
from tessera.domain.runtimes import JobKind, kind_of
from tessera.domain.state import State
from tessera.domain.work.stops import seconds_to_stop
from tessera.engine.ahead.durations import quantile
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.bookings import BOOKINGS_MAX

PERMILLE = 950
"""The quantile of the learnt runtimes by which a job without a time limit has left."""
NOBODY: frozenset[str] = frozenset()
DAY_MS = 86_400_000
NODES_ASKED_MAX = 200
ALL = "*"
"""No name of a booking: all nodes of the pool."""

WindowChange = tuple[int, Sequence[Run]]
"""A time at which windows begin or end, without any run that ends: as the ends of runs that are looked through."""


def leave_ms(state: State, run_or_job: Run | Job) -> int:
    """Milliseconds that a run takes to be gone after it was told to stop: notice, grace and some patience."""
    job = state.jobs.get(run_or_job.job_id) if isinstance(run_or_job, Run) else run_or_job
    return seconds_to_stop(state, job) * 1000


def stay_ms(state: State, job: Job) -> int:
    """Milliseconds from its start by which a job has left its nodes, by itself or, if it may be, preempted."""
    # Who is stopped by its limit takes as long to stop as anybody; who has none is told to stop so long before.
    expected = job.time_limit_seconds * 1000 or quantile(state.runtimes, kind_of(job), PERMILLE)
    longest = expected + leave_ms(state, job)
    return min(longest, worth_ms(state, job)) if job.preemptible else longest


def worth_ms(state: State, job: Job) -> int:
    """
    Milliseconds below which a start on nodes that have to be left is not worth while: to stop, and before it the time
    for which a run is protected, or as long again where that is longer.
    """
    leaves = leave_ms(state, job)
    return max(state.tree.policy.min_runtime_seconds * 1000, leaves) + leaves


def shut_for(state: State, job: Job | None) -> frozenset[str]:
    """Names of the nodes that are kept from the job now by bookings of its pool."""
    if job is None or not (job.booking or len(state.bookings)):
        return NOBODY
    return BookedNodes(state, state.tree.pool(job.queue) or "").shut(job)


def shut_now(state: State, pool: str) -> frozenset[str]:
    """Names of the nodes of the pool that bookings keep at this moment."""
    return BookedNodes(state, pool).now() if len(state.bookings) else NOBODY


def missing_nodes(state: State, booking: Booking) -> tuple[str, ...]:
    """Names of nodes of a booking, ascending, that could not serve it now: gone, not ready, or drained."""
    names = booking.nodes or sorted(BookedNodes(state, booking.pool).nodes_of(booking))
    well = {node.name for node in state.nodes.found(names) if is_well(state, node)}
    return tuple(name for name in sorted(names) if name not in well)


def is_well(state: State, node: Node) -> bool:
    """Whether the node could serve a window if it began now."""
    return node.ready and not node.gone and state.drains.get(node.name) is None


def count_unserved(state: State, within_ms: int = DAY_MS) -> int:
    """Number of bookings for somebody that lack nodes, in a window that is now or begins within so long."""
    # Maintenance is of nodes that may well be out already; and of what is far ahead nodes are mended in time.
    near = (each for each in state.bookings.values() if each.who and _begins(each, state.ts) <= state.ts + within_ms)
    return sum(bool(missing_nodes(state, each)) for each in near)


def _begins(booking: Booking, ts: int) -> int:
    return next((start for start, _ in booking.ahead(ts)), booking.ends_ts)


@lru_cache(maxsize=4 * BOOKINGS_MAX)
def _as_set(nodes: tuple[str, ...]) -> frozenset[str]:
    # Made once for all messages, and equal names share it: each message asks for those of all bookings anew.
    return frozenset(nodes)


class BookedNodes:
    """Windows of the bookings of a pool that are not over, as of one state."""

    def __init__(self, state: State, pool: str) -> None:
        self._state, self._pool = state, pool
        self._bookings = {each.name: each for each in state.bookings.values() if each.pool == pool}
        self._promises = {each.job: each.name for each in self._bookings.values() if each.job}
        # By beginning: what a job outlasts of the windows ahead is then the first of them, whatever job it is.
        windows = ((*window, each) for each in self._bookings.values() for window in each.ahead(state.ts))
        self._windows = sorted(windows, key=lambda window: (window[0], window[1], window[2].name))
        self._starts = [start for start, _, _ in self._windows]
        self._nodes: dict[str, frozenset[str]] = {}
        self._shut: dict[tuple[str, ...], frozenset[str]] = {}
        self._by_node: dict[str, list[Booking]] = {}
        self._is_indexed = False
        self._stays: dict[tuple[JobKind, int, bool, int | None], int] = {}

    def __bool__(self) -> bool:
        """Whether anything is kept at all."""
        return bool(self._windows)

    @property
    def windows(self) -> Sequence[tuple[int, int, Booking]]:
        """Windows that are not over, by their beginning: from when on, until when, and of which booking."""
        return self._windows

    def promise_of(self, job: Job) -> str:
        """Name of the booking that keeps the job's promised start; "" for none."""
        return self._promises.get(job.job_id, "")

    def standing(self, job: Job) -> int:
        """A number that is equal for jobs to which the same nodes are open now."""
        own = job.booking or self.promise_of(job)
        if own:
            return len(self._windows) + 1 + sorted({*self._bookings, own}).index(own)
        return self._begun_before(self._state.ts + self.stay(job)) if self._windows else 0

    def shut(self, job: Job, at: int | None = None) -> frozenset[str]:
        """Names of the nodes that are not open to the job if it starts `at`, now or later."""
        at = self._state.ts if at is None else at
        if job.booking:
            return self._all() - self._kept_by(job, at)
        if not self._windows:
            return NOBODY
        # A window that is over by then keeps nothing: of a time ahead not only the first ones count.
        first = self._windows[: self._begun_before(at + self.stay(job))]
        names = (each.name for _, end, each in first if end > at and each.job != job.job_id)
        return self._joined(tuple(dict.fromkeys(names)))

    def now(self) -> frozenset[str]:
        """Names of the nodes that are kept at this moment."""
        began = self._windows[: self._begun_before(self._state.ts + 1)]
        return self._joined(tuple(dict.fromkeys(each.name for _, _, each in began)))

    def begun_by(self, at: int) -> frozenset[str]:
        """Names of the nodes that are kept at some time from now until `at`."""
        names = tuple(dict.fromkeys(each.name for _, _, each in self._windows[: self._begun_before(at + 1)]))
        return self._joined(names)

    def open_to(self, job: Job, at: int) -> bool:
        """Whether a window of the job's booking holds it from `at` on."""
        return bool(self._kept_by(job, at))

    def changes(self) -> list[WindowChange]:
        """Times from now on at which other nodes are open, ascending."""
        now = self._state.ts
        return [(at, ()) for at in sorted({at for start, end, _ in self._windows for at in (start, end)}) if at > now]

    def first_against(self, job: Job, shut: Iterable[str]) -> tuple[int, Booking] | None:
        """The window that begins first of those that keep `shut` from the job: when, and of which booking."""
        names = frozenset(shut)
        before = self._windows[: self._begun_before(self._state.ts + self.stay(job))]
        return next(((start, each) for start, _, each in before if names & self.nodes_of(each)), None)

    def leaves_by(self, run: Run, nodes: Iterable[str]) -> tuple[int, Booking] | None:
        """When a run on these nodes has to be gone, for the booking of another, or as its own window ends."""
        job = self._state.jobs.get(run.job_id)
        own, names, found = "" if job is None else job.booking, frozenset(nodes), list[tuple[WindowTimes, str, int]]()
        others = {each.name: each for name in names for each in self._on(name)}
        for each in others.values():
            # The first that begins: whoever has left for it is in no later one's way.
            others_too = each.name != own and each.job != run.job_id
            if others_too and (window := next(each.ahead(self._state.ts), None)) is not None:
                found.append((window, each.name, window[0]))
        # What began in the window leaves with it; one that comes later is another window's.
        mine = self._bookings.get(own)
        if mine is not None and (window := mine.window_at(self._state.ts)) is not None:
            found.append((window, own, window[1]))
        if not found:
            return None
        _, name, at = min(found)
        return at, self._bookings[name]

    def nodes_of(self, booking: Booking) -> frozenset[str]:
        """Names of the nodes of a booking that are there; of a whole pool all of them."""
        known = self._nodes.get(booking.name)
        if known is None:
            known = self._nodes[booking.name] = _as_set(booking.nodes) or self._all()
        return known

    def _on(self, node: str) -> Sequence[Booking]:
        # Few nodes are asked about in most messages, and a look at each booking for them is soon done. Where runs are
        # everywhere, one look at all nodes of all bookings costs less than as many for each run.
        if not self._is_indexed and len(self._by_node) >= NODES_ASKED_MAX:
            self._is_indexed, self._by_node = True, {}
            for each in self._bookings.values():
                for name in self.nodes_of(each):
                    self._by_node.setdefault(name, []).append(each)
        known = self._by_node.get(node)
        if known is None:
            kept = () if self._is_indexed else self._bookings.values()
            known = self._by_node[node] = [each for each in kept if node in self.nodes_of(each)]
        return known

    def stay(self, job: Job) -> int:
        """`stay_ms` of the job."""
        # Equal jobs are asked one by one.
        kind = kind_of(job), job.time_limit_seconds, job.preemptible, job.stop_seconds
        known = self._stays.get(kind)
        if known is None:
            known = self._stays[kind] = stay_ms(self._state, job)
        return known

    def _begun_before(self, at: int) -> int:
        return bisect_left(self._starts, at)

    def _joined(self, names: tuple[str, ...]) -> frozenset[str]:
        # One set for each choice of bookings: who is asked about the nodes keeps what it found by them.
        known = self._shut.get(names)
        if known is None:
            known = self._shut[names] = NOBODY.union(*(self.nodes_of(self._bookings[name]) for name in names))
        return known

    def _all(self) -> frozenset[str]:
        known = self._shut.get((ALL,))
        if known is None:
            there = (node.name for node in self._state.nodes.values() if node.pool == self._pool)
            known = self._shut[(ALL,)] = frozenset(there)
        return known

    def _kept_by(self, job: Job, at: int) -> frozenset[str]:
        booking = self._bookings.get(job.booking)
        if booking is None or not booking.is_for(job.tenant, job.user):
            return NOBODY
        # A run that its limit stops after the window would have to leave before it has what it asked for.
        window = booking.window_at(at)
        if window is None or at + (job.time_limit_seconds * 1000 or worth_ms(self._state, job)) > window[1]:
            return NOBODY
        return self.nodes_of(booking)


def booked_reason(state: State, booked: BookedNodes, job: Job, has_room: Callable[[], bool]) -> Reason | None:
    """
    Why a job that finds no room on the nodes that are open to it waits for a window; None where bookings are no matter.

    `has_room` says whether it finds room where nothing is kept.
    """
    shut = booked.shut(job)
    if not shut or (job.booking and booked.open_to(job, state.ts)) or not (job.booking or has_room()):
        return None
    if job.booking:
        booking = state.bookings.get(job.booking)
        numbers = {}
        if booking is not None and (window := next(booking.ahead(state.ts), None)) is not None:
            numbers = {"from_ts": window[0], "to_ts": window[1]}
        return Reason(code=Code.WAITING_FOR_WINDOW, field="reservation", numbers=numbers, detail=job.booking)
    first, numbers = booked.first_against(job, shut), {"expected_end_ts": state.ts + stay_ms(state, job)}
    if first is None:
        return Reason(code=Code.NODES_BOOKED, numbers=numbers)
    return Reason(code=Code.NODES_BOOKED, numbers={"from_ts": first[0], **numbers}, detail=first[1].name)
