"""
Facts on their way to the committer: a service says what it saw, under its own name, as often as it likes.

No fact has a message id: ids of a stream are shared by all who write to it, so that one service could keep another's
facts out. A repeat is seen by the committer, from what the fact says and, where it has one, from its cause.
"""

from collections.abc import Sequence

from tessera.kernel.ports import Bus, Outgoing
from tessera.kernel.service.job_log import log_fact
from tessera.kernel.service.trace import pass_trace
from tessera_schemas import subjects
from tessera_schemas.facts import AnyFact, FactMessage


async def newest_fact(bus: Bus, shard: str) -> int:
    """The sequence number of the newest fact that is stored; 0 without one. Raises Transient."""
    found = await bus.last(subjects.stream("FACTS", shard), f"fact.{shard}.>")
    return 0 if found is None else found.seq


class Facts:
    """Publishes the facts of one service of one shard."""

    def __init__(self, bus: Bus, shard: str, service: str) -> None:
        self._bus, self._shard, self._service = bus, shard, service

    def outgoing(self, fact: AnyFact, cause: str = "") -> Outgoing:
        """The message; `cause` names the command that led to it, and makes its repeats one."""
        data = FactMessage(v=1, fact=fact, cause=cause).to_bytes()
        subject = subjects.fact(self._shard, self._service, fact.kind.replace("_", "-"))
        return Outgoing(subject, data, pass_trace(subject))

    async def publish(self, fact: AnyFact, cause: str = "") -> int:
        """Store the fact; returns its sequence. Raises what `Bus.publish_all` raises."""
        (seq,) = await self.publish_all((fact,), cause)
        return seq

    async def publish_all(self, facts: Sequence[AnyFact], cause: str = "") -> list[int]:
        """Send the facts in this order, then await their acks together; returns their sequences. Raises as that."""
        seqs = await self._bus.publish_all([self.outgoing(fact, cause) for fact in facts])
        for fact in facts:
            log_fact(fact)
        return seqs
