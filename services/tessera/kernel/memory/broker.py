"""
The streams of one process: what JetStream does for us, in memory and deterministic.

Synchronous: time comes from the Clock, waiting belongs to the adapter (`memory/bus.py`). Ages are not modelled.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from tessera.kernel.errors import Conflict, Full, KernelError, Poison, Transient
from tessera.kernel.memory.durable import Durable
from tessera.kernel.ports import Clock, Message, Outgoing
from tessera_schemas.shard.streams import Retention, StreamSpec, streams

MSG_ID = "Nats-Msg-Id"
PENDING_MAX = 1000
ACK_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """
    One stream. A limit of 0 is none. A full stream refuses, except that `last_per_subject` drops the oldest.

    `work_queue` streams lose a message when it is acknowledged.
    """

    name: str
    subjects: tuple[str, ...]
    work_queue: bool = False
    last_per_subject: int = 0
    messages_per_subject_max: int = 0
    messages_max: int = 0
    bytes_max: int = 0
    message_bytes_max: int = 0
    duplicate_window_seconds: float = 120.0


@lru_cache(maxsize=65_536)
def matches(pattern: str, subject: str) -> bool:
    """Whether a subject fits a pattern with `*` (one token) and `>` (all the rest, at least one)."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for at, part in enumerate(wanted):
        if part == ">":
            return len(tokens) > at
        if at >= len(tokens) or part not in ("*", tokens[at]):
            return False
    return len(wanted) == len(tokens)


@dataclass(slots=True)
class Stream:
    config: StreamConfig
    messages: dict[int, Message] = field(default_factory=dict)
    last_seq: int = 0
    bytes: int = 0
    by_subject: dict[str, deque[int]] = field(default_factory=dict)
    watchers: dict[int, Callable[[], None]] = field(default_factory=dict)
    durables: dict[str, Durable] = field(default_factory=dict)
    _order: list[int] = field(default_factory=list)  # sequences, some of them removed already
    _seen_ids: dict[str, tuple[int, float]] = field(default_factory=dict)

    def store(self, out: Outgoing, now: float, now_ms: int = 0) -> int:
        """Condition, then repeat, then room: the order of the server."""
        self._check_conditions(out)
        if (repeat := self._repeat_of(out, now)) is not None:
            return repeat
        self._check_room(out)
        self.last_seq += 1
        headers = dict(out.headers)
        self.messages[self.last_seq] = Message(out.subject, self.last_seq, out.data, headers, now_ms)
        self._order.append(self.last_seq)
        self.by_subject.setdefault(out.subject, deque()).append(self.last_seq)
        self.bytes += len(out.data)
        if MSG_ID in headers and self.config.duplicate_window_seconds:
            self._seen_ids[headers[MSG_ID]] = (self.last_seq, now)
        if self.config.last_per_subject and len(self.by_subject[out.subject]) > self.config.last_per_subject:
            self.remove(self.by_subject[out.subject][0])
        self.wake()
        return self.last_seq

    def remove(self, seq: int) -> None:
        """Take a message out; a sequence that is not stored is ignored."""
        message = self.messages.pop(seq, None)
        if message is None:
            return
        self.bytes -= len(message.data)
        self.by_subject[message.subject].remove(seq)
        if len(self._order) > 2 * len(self.messages) + 64:
            self._order = list(self.messages)

    def purge(self, before: int) -> None:
        """Take every message below sequence `before` out."""
        for seq in [seq for seq in self.messages if seq < before]:
            self.remove(seq)

    def read(self, subject: str, first: int) -> Iterator[Message]:
        """Stored messages on `subject` with sequence `first` or higher, in order."""
        if first > self.last_seq:
            return
        for at in range(bisect_left(self._order, first), len(self._order)):
            message = self.messages.get(self._order[at])
            if message is not None and matches(subject, message.subject):
                yield message

    def last(self, subject: str) -> Message | None:
        """Newest message on the subjects that fit the pattern `subject`; None without one."""
        if "*" not in subject and ">" not in subject:
            seqs = self.by_subject.get(subject)
            return self.messages[seqs[-1]] if seqs else None
        return max(self.last_all(subject), key=lambda message: message.seq, default=None)

    def last_all(self, subject: str) -> list[Message]:
        """Newest message of each subject that fits the pattern, in order of sequence."""
        newest = [seqs[-1] for name, seqs in self.by_subject.items() if seqs and matches(subject, name)]
        return [self.messages[seq] for seq in sorted(newest)]

    def wake(self) -> None:
        """Call every watcher: something may have come, or may be handed out again."""
        for watcher in list(self.watchers.values()):
            watcher()

    def _check_conditions(self, out: Outgoing) -> None:
        if out.expected_last_seq is not None and out.expected_last_seq != self.last_seq:
            raise Conflict(f"{out.subject}: wrong last sequence: {self.last_seq}")
        if out.expected_last_subject_seq is not None:
            seqs = self.by_subject.get(out.subject)
            last = seqs[-1] if seqs else 0
            if out.expected_last_subject_seq != last:
                raise Conflict(f"{out.subject}: wrong last sequence: {last}")

    def _repeat_of(self, out: Outgoing, now: float) -> int | None:
        while self._seen_ids:
            oldest = next(iter(self._seen_ids))
            if now - self._seen_ids[oldest][1] < self.config.duplicate_window_seconds:
                break
            del self._seen_ids[oldest]
        seen = self._seen_ids.get(out.headers.get(MSG_ID, ""))
        return seen[0] if seen else None

    def _check_room(self, out: Outgoing) -> None:
        config = self.config
        if config.message_bytes_max and len(out.data) > config.message_bytes_max:
            raise Poison(f"{out.subject}: message size exceeds maximum allowed")
        if config.messages_max and len(self.messages) >= config.messages_max:
            raise Full(f"{out.subject}: maximum messages exceeded")
        if config.bytes_max and self.bytes + len(out.data) > config.bytes_max:
            raise Full(f"{out.subject}: maximum bytes exceeded")
        per_subject = config.messages_per_subject_max
        if per_subject and len(self.by_subject.get(out.subject, ())) >= per_subject:
            raise Full(f"{out.subject}: maximum messages per subject exceeded")


class MemoryBroker:
    """
    Shared by all services of one process.

    `limbo` holds the publishes whose senders were told that the outcome is unknown before they arrived; a simulator
    drops them or has them `land`.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.streams: dict[str, Stream] = {}
        self.limbo: list[Outgoing] = []
        self._taken_by: dict[str, str] = {}
        self._listeners: list[tuple[str, Callable[[str, bytes], None]]] = []
        self._watches = 0

    def add_stream(self, config: StreamConfig) -> None:
        """Make an empty stream; one of the same name is lost with all messages."""
        self.streams[config.name] = Stream(config)
        self._taken_by.clear()

    def add_durable(
        self, stream: str, name: str, *, ack_wait_seconds: float = ACK_WAIT_SECONDS, pending_max: int = PENDING_MAX
    ) -> None:
        """Make a work queue on a stream; `pending_max` bounds the deliveries without an answer."""
        self.streams[stream].durables[name] = Durable(ack_wait_seconds, pending_max)

    def add_shard(self, shard: str, ack_wait_seconds: float = ACK_WAIT_SECONDS) -> None:
        """All the streams and durables of a shard, as `tessera init` makes them on a server but for the ack wait."""
        for spec in streams(shard):
            self.add_stream(_config(spec))
            for durable in spec.durables:
                pending_max = 1 if spec.in_order else PENDING_MAX
                self.add_durable(spec.name, durable, ack_wait_seconds=ack_wait_seconds, pending_max=pending_max)

    def store(self, out: Outgoing) -> int:
        """Raises Conflict, Full, Poison (too big), or Transient when no stream takes the subject."""
        name = self._taken_by.get(out.subject) or self._taker(out.subject)
        return self.streams[name].store(out, self.clock.monotonic(), self.clock.now_ms())

    def _taker(self, subject: str) -> str:
        for name, stream in self.streams.items():
            if any(matches(pattern, subject) for pattern in stream.config.subjects):
                self._taken_by[subject] = name
                return name
        raise Transient(f"no stream takes {subject}")

    def land(self, out: Outgoing) -> int | KernelError:
        """A publish of the limbo arrives after all, when nobody waits for its answer any more."""
        self.limbo.remove(out)
        try:
            return self.store(out)
        except KernelError as error:
            return error

    def stream(self, name: str) -> Stream:
        """Stream by name. Raises Transient without one, as a server would answer."""
        if name not in self.streams:
            raise Transient(f"{name}: no such stream")
        return self.streams[name]

    def watch(self, stream: str, woken: Callable[[], None]) -> Callable[[], None]:
        """Have `woken` called when something may have come; returns what ends it."""
        self._watches += 1
        key, watchers = self._watches, self.stream(stream).watchers
        watchers[key] = woken

        def end() -> None:
            watchers.pop(key, None)

        return end

    def listen(self, pattern: str, on_message: Callable[[str, bytes], None]) -> None:
        """Have `on_message` called for each `send` whose subject fits the pattern; nothing takes a listener off."""
        self._listeners.append((pattern, on_message))

    def send(self, subject: str, data: bytes) -> None:
        """Call all listeners that fit before returning; nothing is stored, and without listeners nothing happens."""
        for pattern, on_message in list(self._listeners):
            if matches(pattern, subject):
                on_message(subject, data)


def _config(spec: StreamSpec) -> StreamConfig:
    return StreamConfig(
        name=spec.name,
        subjects=spec.subjects,
        work_queue=spec.retention is Retention.WORK_QUEUE,
        last_per_subject=spec.last,
        messages_per_subject_max=spec.per_subject_cap,
        bytes_max=spec.bytes_max,
        message_bytes_max=spec.message_bytes_max,
        duplicate_window_seconds=spec.duplicate_window_seconds,
    )
