"""
State of a churn run: what each arrival asks for, where it runs, the ends to come, a queue of waiting pods for each
kind, and sums over time for each hour.

Pods of a kind are equal, so only the first of each queue needs to be tested. Integers only.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np

from tessera.domain.work.gang import Gang
from tessera.engine.pricing.arrays import Ints
from tessera_schemas.work.placement import Placement

HOUR_MS = 3_600_000
RAN, WAITED, WAITERS, FRAGMENTED = range(4)
"""What is added up per hour, each times milliseconds: thousandths of GPUs that run, that wait; pods that wait; F."""

Placements = tuple[Placement, ...]


class ChurnArrivals:
    """
    Arrivals by number. `at` and `life` are in ms; `gangs` are of one pod each, and equal ones are one object.

    `end` is when a pod that runs will have ended, `places` where it runs. `waiting` has who waits for each kind, the
    oldest first.
    """

    def __init__(self, gangs: Sequence[Gang], at: Sequence[int], life: Sequence[int], hours: int) -> None:
        self.gangs, self.at, self.life = gangs, at, life
        self.end: dict[int, int] = {}
        self.places: dict[int, Placements] = {}
        self.waiting: dict[Gang, deque[int]] = {}
        self.clock = self.arrived = self.ended = self.refused = self.running_milli = self.waiting_milli = 0
        self.waiters = 0
        self._possible: dict[Gang, bool] = {}
        self._ends: list[tuple[int, int]] = []
        self._hours = [[0, 0, 0, 0] for _ in range(hours)]

    @property
    def hours(self) -> Ints:
        """(hours, 4), see RAN and so on."""
        return np.array(self._hours, np.int64)

    def pass_time(self, until: int, fragmented: int) -> None:
        """Add up what is, until this moment, hour by hour."""
        while self.clock < until:
            hour = self.clock // HOUR_MS
            step = min(until, (hour + 1) * HOUR_MS) - self.clock
            if hour < len(self._hours):
                sums = self._hours[hour]
                sums[RAN] += step * self.running_milli
                sums[WAITED] += step * self.waiting_milli
                sums[WAITERS] += step * self.waiters
                sums[FRAGMENTED] += step * fragmented
            self.clock += step

    def possible(self, gang: Gang, could_hold: Callable[[Gang], bool]) -> bool:
        """Whether a pod of the kind could ever run; asked once for each kind."""
        if gang not in self._possible:
            self._possible[gang] = could_hold(gang)
        return self._possible[gang]

    def next_end(self) -> tuple[int, int] | None:
        """Time and number of the next pod that ends; forgets ends that were put off."""
        while self._ends:
            end, job = self._ends[0]
            if self.end.get(job) == end:
                return end, job
            heappop(self._ends)
        return None

    def wait(self, job: int) -> None:
        """The pod joins the queue of its kind."""
        gang = self.gangs[job]
        self.waiting.setdefault(gang, deque()).append(job)
        self.waiters += 1
        self.waiting_milli += gang.amount.gpu_milli

    def leave_queue(self, gang: Gang) -> int:
        """The pod of the kind that waits longest waits no more."""
        queue = self.waiting[gang]
        job = queue.popleft()
        if not queue:
            del self.waiting[gang]
        self.waiters -= 1
        self.waiting_milli -= gang.amount.gpu_milli
        return job

    def start(self, job: int, places: Placements) -> None:
        """The pod runs there from now on."""
        self.places[job] = places
        self.running_milli += self.gangs[job].amount.gpu_milli
        self.end_at(job, self.clock + self.life[job])

    def end_at(self, job: int, end: int) -> None:
        """The pod, which runs, will end then and not before."""
        self.end[job] = end
        heappush(self._ends, (end, job))

    def finish(self, job: int) -> Placements:
        """The pod has ended; where it ran."""
        del self.end[job]
        self.running_milli -= self.gangs[job].amount.gpu_milli
        self.ended += 1
        return self.places.pop(job)
