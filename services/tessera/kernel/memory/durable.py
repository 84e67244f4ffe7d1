"""The state of one work queue consumer: who has what until when, and how often it was delivered."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tessera.kernel.ports import Message


@dataclass(slots=True)
class Pending:
    deliveries: int
    due: float  # when it is delivered again unless it was answered; monotonic seconds


@dataclass(slots=True)
class Durable:
    """
    Durable consumer, at least once. As on the server, a late ack counts, even of an earlier delivery; a late nak does
    not.
    """

    ack_wait_seconds: float
    pending_max: int
    pending: dict[int, Pending] = field(default_factory=dict)
    delivered_upto: int = 0

    def redeliveries(self, now: float, limit: int) -> list[int]:
        """Sequences whose time is up, oldest first; they are handed out anew."""
        due = sorted(seq for seq, pending in self.pending.items() if pending.due <= now)[:limit]
        for seq in due:
            self.pending[seq] = Pending(self.pending[seq].deliveries + 1, now + self.ack_wait_seconds)
        return due

    def first_deliveries(self, unseen: Iterator[Message], now: float, limit: int) -> list[int]:
        """Hand out new messages for the first time, until `limit` or `pending_max`; returns the sequences."""
        taken: list[int] = []
        while len(taken) < limit and len(self.pending) < self.pending_max:
            message = next(unseen, None)
            if message is None:
                break
            self.delivered_upto = message.seq
            self.pending[message.seq] = Pending(1, now + self.ack_wait_seconds)
            taken.append(message.seq)
        return taken

    def next_due(self) -> float | None:
        """Monotonic seconds of the earliest redelivery; None while nothing is pending."""
        return min((pending.due for pending in self.pending.values()), default=None)

    def done(self, seq: int) -> None:
        """Never deliver this sequence again; one that is not pending is ignored."""
        self.pending.pop(seq, None)

    def again_at(self, seq: int, deliveries: int, due: float) -> None:
        """Put off the delivery that `deliveries` counts; an older one has been overtaken and says nothing."""
        pending = self.pending.get(seq)
        if pending is not None and pending.deliveries == deliveries:
            pending.due = due
