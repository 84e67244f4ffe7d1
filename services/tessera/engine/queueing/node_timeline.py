"""
Whole GPUs of some nodes, now and ahead: what is free, when what runs is expected to end, and what is kept for whom.

It serves backfill where GPUs of a node are interchangeable: the lab's nodes, or one pool as a single large node. A gang
of up to a node's GPUs lies on one node, a larger one takes nodes that are wholly free. Among the nodes that hold a gang
it goes where it puts off least the time at which the node will be empty, then to the fullest, then to the first: jobs
that end late come to lie together, so that whole nodes become free for large gangs. Integer milliseconds.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tessera.engine.queueing.backfill import Candidate

Revise = Callable[[str, int], int]
"""When a job that outlived its expected end will now end: (job id, now) → a time after now."""


@dataclass(slots=True)
class Bay:
    """One node. `ends` are (end, job, GPUs) of what runs, `marks` are (from, GPUs) kept; both ascending."""

    size: int
    free: int
    ends: list[tuple[int, str, int]] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)

    @property
    def empty_from(self) -> int:
        """Expected end, in milliseconds, of the last job on the node; 0 when none runs there."""
        return self.ends[-1][0] if self.ends else 0

    def holds(self, gpus: int, until: int) -> bool:
        """Whether the GPUs are free now, and no mark before `until` would miss them."""
        if self.free < gpus:
            return False
        kept = 0
        for start, marked in self.marks:
            if start >= until:
                return True
            kept += marked
            if self._free_at(start) - kept < gpus:
                return False
        return True

    def soonest(self, gpus: int, now: int) -> int | None:
        """From when on the GPUs are free, beside all that is marked; None for never."""
        free = self.free - sum(marked for _, marked in self.marks)
        if free >= gpus:
            return now
        for end, _, ending in self.ends:
            free += ending
            if free >= gpus:
                return end
        return None

    def _free_at(self, time: int) -> int:
        return self.free + sum(gpus for end, _, gpus in self.ends if end <= time)


class RoomAhead:
    """
    The nodes during a replay or a pass. `begin` opens a pass: earmarks are given anew, ends that have passed revised.

    `by_end` False leaves the expected ends out of the choice of a node: plain best fit.
    """

    def __init__(self, sizes: Sequence[int], by_end: bool = True) -> None:
        self.bays = [Bay(size, size) for size in sizes]
        self.now = 0
        self._largest = max(sizes, default=0)
        self._by_end = by_end
        self._lies: dict[str, list[tuple[int, int]]] = {}  # job → (bay, GPUs)
        self._until: dict[str, int] = {}
        self._next_ends: list[tuple[int, str]] = []

    @property
    def free(self) -> int:
        """GPUs of all nodes that are free now."""
        return sum(bay.free for bay in self.bays)

    def begin(self, now: int, revise: Revise) -> None:
        """Opens a pass at `now`, in milliseconds: drops all earmarks and revises each expected end that has passed."""
        self.now = now
        for bay in self.bays:
            bay.marks.clear()
        while self._next_ends and self._next_ends[0][0] <= now:
            end, job = heappop(self._next_ends)
            if self._until.get(job) == end:
                pieces = self._lies[job]
                self._lift(job)
                self._lay(job, pieces, max(now + 1, revise(job, now)))

    def release(self, job: str) -> None:
        """Frees the GPUs of a job that ended; raises KeyError for a job that has none."""
        self._lift(job)
        del self._lies[job], self._until[job]

    def start(self, job: Candidate) -> bool:
        """Gives a job its GPUs until `until_ms` if no earmark would miss them; False where the job finds no room."""
        pieces = self._whole(job) if job.gpus > self._largest else self._within_one(job)
        if pieces is None:
            return False
        self._lay(job.job_id, pieces, job.until_ms)
        return True

    def earmark(self, job: Candidate) -> int | None:
        """Keeps room for a job from the soonest time on; returns that time in milliseconds, None for never."""
        if job.gpus <= self._largest:
            times = [(at, i) for i, bay in enumerate(self.bays) if (at := bay.soonest(job.gpus, self.now)) is not None]
            return self._mark(min(times)[0], [(min(times)[1], job.gpus)]) if times else None
        whole = sorted(
            (at, i) for i, bay in enumerate(self.bays) if (at := bay.soonest(bay.size, self.now)) is not None
        )
        pieces, left = [], job.gpus
        for at, i in whole:
            pieces.append((i, self.bays[i].size))
            left -= self.bays[i].size
            if left <= 0:
                return self._mark(at, pieces)
        return None

    def _mark(self, at: int, pieces: list[tuple[int, int]]) -> int:
        for i, gpus in pieces:
            insort(self.bays[i].marks, (at, gpus))
        return at

    def _within_one(self, job: Candidate) -> list[tuple[int, int]] | None:
        best: tuple[int, int, int] | None = None
        for i, bay in enumerate(self.bays):
            if bay.free < job.gpus:
                continue
            later = max(0, job.until_ms - max(self.now, bay.empty_from)) if self._by_end else 0
            key = later, bay.free, i
            if (best is None or key < best) and (not bay.marks or bay.holds(job.gpus, job.until_ms)):
                best = key
        return None if best is None else [(best[2], job.gpus)]

    def _whole(self, job: Candidate) -> list[tuple[int, int]] | None:
        """Wholly free nodes, the first ones; the last may keep a rest."""
        pieces, left = [], job.gpus
        for i, bay in enumerate(self.bays):
            if bay.free == bay.size and bay.holds(bay.size, job.until_ms):
                pieces.append((i, min(left, bay.size)))
                left -= bay.size
                if left <= 0:
                    return pieces
        return None

    def _lay(self, job: str, pieces: list[tuple[int, int]], until: int) -> None:
        self._lies[job], self._until[job] = pieces, until
        heappush(self._next_ends, (until, job))
        for i, gpus in pieces:
            self.bays[i].free -= gpus
            insort(self.bays[i].ends, (until, job, gpus))

    def _lift(self, job: str) -> None:
        for i, gpus in self._lies[job]:
            self.bays[i].free += gpus
            self.bays[i].ends.remove((self._until[job], job, gpus))
