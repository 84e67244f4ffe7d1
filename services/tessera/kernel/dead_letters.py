"""Dead letters: input that can never be handled, kept for people with the reason why, under its original id."""

from dataclasses import dataclass

from tessera.kernel.ports import Bus, Message, Outgoing
from tessera_schemas import subjects

REASON_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where `service` puts what it cannot handle of `stream`. The message id makes a repeat harmless."""

    bus: Bus
    shard: str
    service: str
    stream: str

    async def put(self, message: Message, reason: str, deliveries: int = 1) -> None:
        """Store a copy; returns when it is acknowledged. Raises what `Bus.publish` raises."""
        subject = subjects.dead_letter(self.shard, self.service, self.stream, message.seq)
        headers = {name: value for name, value in message.headers.items() if not name.startswith("Nats-")}
        headers |= {
            "Tessera-Subject": message.subject,
            "Tessera-Reason": " ".join(reason.split())[:REASON_CHARACTERS],
            "Tessera-Deliveries": str(deliveries),
        }
        if original_id := message.headers.get("Nats-Msg-Id"):
            headers["Tessera-Msg-Id"] = original_id
        await self.bus.publish(Outgoing(subject, message.data, msg_id=subject, headers=headers))
