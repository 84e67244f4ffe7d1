"""Tenants that send at a pace, whatever they are answered, and what they were answered."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tessera.kernel.errors import Full, Transient
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import Clock, Outgoing
from tessera_lab.bench.together.platform import submits
from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.commands import REPLY_HEADER, Answer
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import RETRY_NUMBER, TEMPORARY

TICK_SECONDS = 0.05
FULL = "BacklogFull"


@dataclass
class Sender:
    """One tenant's connection. `sent_ms` is when each acknowledged submit was sent, by key; `untyped` are sentences."""

    bus: NatsBus
    shard: str
    tenant: str
    clock: Clock
    spec: JobSpec
    inbox: str = ""
    sent_ms: dict[str, int] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)
    untyped: list[str] = field(default_factory=list)
    _keys: dict[str, str] = field(default_factory=dict)
    _doubtful: set[str] = field(default_factory=set)
    _number: int = 0

    async def open(self, name: str) -> None:
        """Listen for answers, on an inbox of this name."""
        self.inbox = f"{subjects.inbox(self.tenant)}.{name}"
        await self.bus.listen(f"{self.inbox}.*", self._on_answer)

    async def send(self, keys: Sequence[str]) -> None:
        """Publish, pipelined. A full backlog takes some of them or none: those that nobody answers it did not take."""
        body, now_ms, out = submits(self.spec, ["KEY"])[0], self.clock.now_ms(), []
        for key in keys:
            self._number += 1
            reply = f"{self.inbox}.{self._number}"
            self._keys[reply], self.sent_ms[key] = key, now_ms
            data = body.replace(b'"KEY"', f'"{key}"'.encode())
            out.append(Outgoing(subjects.submit(self.shard, self.tenant), data, {REPLY_HEADER: reply}))
        try:
            await self.bus.publish_all(out)
        except Full:
            self._doubtful.update(each.headers[REPLY_HEADER] for each in out)
        except Transient as error:
            self.untyped.append(f"{self.tenant}: submits were not acknowledged ({error})")

    async def pace(self, name: str, per_second: float, seconds: float) -> None:
        """Send at a constant rate; what could not be sent in time is sent at once when it can be."""
        began, sent = self.clock.monotonic(), 0
        while (gone := self.clock.monotonic() - began) < seconds:
            due = int(gone * per_second)
            await self.send([f"{name}-{number}" for number in range(sent, due)])
            sent = due
            await self.clock.sleep(TICK_SECONDS)

    @property
    def unanswered(self) -> int:
        """Acknowledged submits that nobody has answered yet."""
        return len(self._keys.keys() - self._doubtful)

    @property
    def full(self) -> int:
        """Submits for which the backlog had no room."""
        return len(self._keys.keys() & self._doubtful)

    def jobs(self) -> dict[str, int]:
        """When each accepted job was sent, by its id."""
        return {job_id(self.shard, self.tenant, key): self.sent_ms[key] for key in self.accepted}

    def _on_answer(self, subject: str, data: bytes) -> None:
        key, answer = self._keys.pop(subject, None), Answer.from_bytes(data)
        if key is None:
            self.untyped.append(f"{self.tenant}: answered twice or unasked: {data[:200]!r}")
        elif answer.accepted:
            self.accepted.add(key)
        else:
            self._note(answer)
            self.sent_ms.pop(key, None)

    def _note(self, answer: Answer) -> None:
        reason = answer.reasons[0]
        self.refused[reason.code.value] += 1
        if reason.code not in TEMPORARY or reason.numbers.get(RETRY_NUMBER, 0) < 1:
            self.untyped.append(f"{self.tenant}: refused without a time to try again: {reason.sentence()}")


def totals(senders: Sequence[Sender]) -> Mapping[str, int]:
    """What became of all submits together."""
    refused = sum((each.refused for each in senders), Counter[str]())
    full = sum(each.full for each in senders)
    return {"accepted": sum(len(each.accepted) for each in senders), **refused, **({FULL: full} if full else {})}
