"""Due times by key, earliest first; ties in the order they were set, so that equal runs stay equal."""

import heapq
from collections.abc import Callable


class Timers:
    """Timers with at most one due time per key; setting a key again replaces its time."""

    def __init__(self) -> None:
        self._due: dict[str, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._count = 0
        self.on_earlier: Callable[[], None] | None = None
        """Called when something became due sooner than all else: who waits must wait less."""

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: str, due_ms: int) -> None:
        """Make `key` due at `due_ms` instead of before; calls `on_earlier` when the earliest due time comes closer."""
        earlier = self.next_due_ms()
        self._count += 1
        self._due[key] = (due_ms, self._count)
        heapq.heappush(self._heap, (due_ms, self._count, key))
        if self.on_earlier is not None and (earlier is None or due_ms < earlier):
            self.on_earlier()

    def cancel(self, key: str) -> None:
        """Take the due time of `key` away; a key without one is ignored."""
        self._due.pop(key, None)
        # Replaced and cancelled entries stay in the heap until they surface; a long wait must not pile them up.
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[:2]]
            heapq.heapify(self._heap)

    def next_due_ms(self) -> int | None:
        """Earliest due time of all keys, in milliseconds; None when no key has one."""
        heap = self._heap
        while heap:
            due, count, key = heap[0]
            if self._due.get(key) == (due, count):
                return due
            heapq.heappop(heap)
        return None

    def pop_due(self, now_ms: int) -> str | None:
        """Take out the earliest key that is due at `now_ms`, if any."""
        due = self.next_due_ms()
        if due is None or due > now_ms:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._due[key]
        return key
