"""Dead letters: input that can never be handled, kept for people with the reason why, under its original id."""

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.kernel.ports import Bus, Message, Outgoing
from tessera_schemas import subjects

REASON_CHARACTERS = 500
BODY_BYTES_MAX = subjects.MESSAGE_BYTES_MAX - 64 * 1024  # a stream counts headers, too
HEADERS_MAX, HEADER_BYTES_MAX = 32, 1_000
SUBJECT_HEADER, REASON_HEADER, DELIVERIES_HEADER = "Tessera-Subject", "Tessera-Reason", "Tessera-Deliveries"
ID_HEADER = "Tessera-Msg-Id"
CUT_HEADER = "Tessera-Cut-From"
"""How many bytes the input had, where its letter holds only their beginning."""
OURS = frozenset({SUBJECT_HEADER, REASON_HEADER, DELIVERIES_HEADER, ID_HEADER, CUT_HEADER})


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Sink of messages of `stream` that `service` cannot handle; a letter stored twice is harmless, one lost is not."""

    bus: Bus
    shard: str
    service: str
    stream: str

    async def put(self, message: Message, reason: str, deliveries: int = 1) -> None:
        """
        Store a copy, cut where it would not fit; returns when it is acknowledged. Raises what `Bus.publish` raises.
        """
        subject = subjects.dead_letter(self.shard, self.service, self.stream, message.seq)
        headers = _carried(message.headers)
        headers |= {
            SUBJECT_HEADER: message.subject,
            REASON_HEADER: " ".join(reason.split())[:REASON_CHARACTERS],
            DELIVERIES_HEADER: str(deliveries),
        }
        if original_id := message.headers.get("Nats-Msg-Id"):
            headers[ID_HEADER] = original_id[:HEADER_BYTES_MAX]
        if len(message.data) > BODY_BYTES_MAX:
            headers[CUT_HEADER] = str(len(message.data))
        await self.bus.publish(Outgoing(subject, message.data[:BODY_BYTES_MAX], headers=headers))


def _carried(headers: Mapping[str, str]) -> dict[str, str]:
    """The sender's own headers, as far as they are of a reasonable size."""
    own = {name: value for name, value in headers.items() if not name.startswith("Nats-") and name not in OURS}
    short = [name for name, value in own.items() if len(f"{name}{value}".encode()) <= HEADER_BYTES_MAX]
    return {name: own[name] for name in short[:HEADERS_MAX]}
