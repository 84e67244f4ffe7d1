"""The watch log of one kind: a bounded history, encoded once, and the readers that follow it."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tessera_local.cluster.api import answers
from tessera_local.cluster.api.selectors import Fields, Selector

LabelsAndFields = tuple[Mapping[str, str], Fields]
_BOOKMARK_AFTER = 256  # events of others passed over; then a reader is told how far it got


@dataclass(slots=True)  # not frozen: that doubles the price of making one, and six are made per pod
class Event:
    """
    One change. Labels and fields after it (`now`) and before it (`was`; None: no object) tell who sees it, as what.

    Holds bytes and no object: the history would else keep every old version of every pod alive.
    """

    type: str
    rv: int
    json: bytes
    now: LabelsAndFields | None
    was: LabelsAndFields | None

    def seen_as(self, selector: Selector) -> str | None:
        """The type for a reader with this selector: an object that leaves the selection is DELETED to it."""
        if selector.selects_all:
            return self.type
        before = self.was is not None and selector.matches(*self.was)
        after = self.now is not None and selector.matches(*self.now)
        if after:
            return "MODIFIED" if before else "ADDED"
        return "DELETED" if before else None


class WatchReader:
    """A reader's place in the log. `on_ready` is called when `take` has something new or the watch has ended."""

    def __init__(self, log: "WatchLog", position: int, rv: int, selector: Selector) -> None:
        self._log, self._position, self._rv, self._selector = log, position, rv, selector
        self._initial: list[tuple[str, bytes]] = []
        self._passed_over = 0
        self._to_drop = self._to_repeat = 0
        self.closed = False
        self.on_ready: Callable[[], None] = _nothing

    def begin_with(self, objects: list[bytes]) -> None:
        """A watch without a resourceVersion starts by showing what is there."""
        self._initial = [("ADDED", json) for json in objects]

    def take(self, limit: int = 1024) -> list[tuple[str, bytes]]:
        """
        New events as (type, object in JSON), from the next `limit` events of the log.

        Raises ApiError 410 when the history has gone past this reader, or it was made to lose events: it must list
        again.
        """
        seen, self._initial = self._initial, []
        for event in self._log.after(self._position, limit, self._rv):
            self._position += 1
            self._rv = event.rv
            if self._to_drop:
                self._drop_one()
                continue
            as_type = event.seen_as(self._selector)
            if as_type is None:
                self._passed_over += 1
            else:
                seen.append((as_type, event.json))
                if self._to_repeat:
                    self._to_repeat -= 1
                    seen.append((as_type, event.json))
        if seen:
            self._passed_over = 0
        elif self._passed_over >= _BOOKMARK_AFTER:
            self._passed_over = 0
            seen.append(self.bookmark())
        return seen

    def disturb(self, drop: int = 0, repeat: int = 0) -> None:
        """Lose the next `drop` events, after which the watch ends with 410; send the next `repeat` events twice."""
        self._to_drop += drop
        self._to_repeat += repeat

    def _drop_one(self) -> None:
        self._to_drop -= 1
        if not self._to_drop:
            raise answers.expired(self._rv, self._rv)

    def bookmark(self) -> tuple[str, bytes]:
        """Tells the reader the version up to which it has seen everything."""
        return "BOOKMARK", (
            b'{"kind":"%s","apiVersion":"v1","metadata":{"resourceVersion":"%d"}}' % (self._log.kind.encode(), self._rv)
        )

    def close(self) -> None:
        """Ends the watch, from either side."""
        if not self.closed:
            self.closed = True
            self._log.forget(self)
            self.on_ready()


class WatchLog:
    """Changes of one kind in order of resourceVersion; keeps the last `history` of them at least."""

    def __init__(self, kind: str, history: int) -> None:
        self.kind = kind
        self._history = history
        self._events: list[Event] = []
        self._first = 0  # position of _events[0]; positions count every event there ever was
        self._dropped_rv = 0
        self._watches: dict[WatchReader, None] = {}

    def append(self, event: Event) -> None:
        """Add the newest change and wake all readers; at twice `history` changes the older half is dropped."""
        self._events.append(event)
        if len(self._events) >= 2 * self._history:  # cut in halves: moving the list at each append would cost more
            self._drop(self._history)
        for watch in self._watches:
            watch.on_ready()

    def open(self, rv: int, selector: Selector, from_now: bool) -> WatchReader:
        """Follow the changes after `rv`; ApiError 410 when some of them are dropped. `from_now` skips the history."""
        if rv < self._dropped_rv:
            raise answers.expired(rv, self._dropped_rv)
        position = self._end if from_now else self._first + bisect_right(self._events, rv, key=_version)
        watch = WatchReader(self, position, rv, selector)
        self._watches[watch] = None
        return watch

    def after(self, position: int, limit: int, rv: int) -> list[Event]:
        """Events from a reader's position on, at most `limit`. Raises ApiError 410 when some were dropped."""
        if position < self._first:
            raise answers.expired(rv, self._dropped_rv)
        start = position - self._first
        return self._events[start : start + limit]

    def forget(self, watch: WatchReader) -> None:
        """Take a reader off the list of those that are woken; one that is not on the list is ignored."""
        self._watches.pop(watch, None)

    def close_all(self) -> None:
        """Close every open reader."""
        for watch in list(self._watches):
            watch.close()

    def disturb(self, drop: int = 0, repeat: int = 0) -> None:
        """Have every open reader lose its next `drop` events and see the next `repeat` ones twice."""
        for watch in self._watches:
            watch.disturb(drop, repeat)

    def expire(self) -> None:
        """Drop the whole history: readers that are behind get 410."""
        self._drop(len(self._events))

    def begin_at(self, rv: int) -> None:
        """Know of nothing up to a version, as after a restart: readers from before it get 410."""
        self._dropped_rv = rv

    @property
    def readers(self) -> int:
        """Number of open readers."""
        return len(self._watches)

    @property
    def _end(self) -> int:
        return self._first + len(self._events)

    def _drop(self, count: int) -> None:
        if count:
            self._dropped_rv = self._events[count - 1].rv
            del self._events[:count]
            self._first += count


def _version(event: Event) -> int:
    return event.rv


def _nothing() -> None: ...
