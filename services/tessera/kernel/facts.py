"""Facts on their way to the committer: a service says what it saw, under its own name, as often as it likes."""

from tessera.kernel.ports import Bus, Outgoing
from tessera.kernel.telemetry import pass_trace
from tessera_schemas import subjects
from tessera_schemas.facts import AnyFact, FactMessage


class Facts:
    """Publishes the facts of one service of one shard."""

    def __init__(self, bus: Bus, shard: str, service: str) -> None:
        self._bus, self._shard, self._service = bus, shard, service

    def outgoing(self, fact: AnyFact, identity: str, cause: str = "") -> Outgoing:
        """
        The message; `identity` names what was seen, so that saying it twice is one message within the window.

        What may be so, not so, and so again has no identity: the third message would be dropped as the first.
        """
        data = FactMessage(v=1, fact=fact, cause=cause).to_bytes()
        subject = subjects.fact(self._shard, self._service, fact.kind.replace("_", "-"))
        return Outgoing(subject, data, f"{subject}:{identity}" if identity else "", pass_trace(subject))

    async def publish(self, fact: AnyFact, identity: str, cause: str = "") -> int:
        """Store the fact; returns its sequence. Raises what `Bus.publish` raises."""
        return await self._bus.publish(self.outgoing(fact, identity, cause))
