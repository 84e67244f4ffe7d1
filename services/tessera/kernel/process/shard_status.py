"""
Status of a shard, read from where its services leave their traces: leases and probes, the ledger's end, what waits.

An instance says every five seconds with its probe (`StoreProbe`) what of its `/readyz` fails. Who is alive is judged
by the clock of the server that stored it all, against the newest sign of life of anybody; only that one is held
against our own clock, as are the ages: a clock that is wrong by 15 s shows troubles that are none.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import orjson

from tessera.kernel.errors import KernelError
from tessera.kernel.messaging.facts import newest_fact
from tessera.kernel.ports import Bus, Clock, Ledger, Message, ProjectionStore
from tessera.kernel.process.leases import LEADER
from tessera.kernel.process.store_probe import PROBE, read_probe
from tessera_schemas import subjects
from tessera_schemas.shard.services import BY_NAME, SERVICES
from tessera_schemas.shard.status import ServiceStatus, ShardStatus, ShardTrouble
from tessera_schemas.shard.streams import Retention, used_by
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.text.units import format_age

LOOK_SECONDS = 3.0  # of each question; a server that is away must not keep the answer
SILENT_MS = 20_000  # above the renewal of the longest lease, and four probes
SCHEDULER = "scheduler"
WAITING_MS = 15_000  # nothing waits so long for a shard that decides

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LedgerTail:
    """The newest ledger record: its number, its time, and the fact up to which it took them in."""

    n: int = 0
    ts: int = 0
    facts_upto: int = 0


@dataclass(frozen=True, slots=True)
class StatusTraces:
    """Findings of a look at `ts`; None, and a word in `away`, for what did not answer."""

    ts: int
    leases: Sequence[Message] | None
    end: LedgerTail | None
    waiting_ms: int | None
    views_n: int | None
    away: Mapping[str, str]


class StatusReader:
    """Asks as `role`, which is a service or the operator: work queues that it may not ask for are passed over."""

    def __init__(self, bus: Bus, ledger: Ledger, store: ProjectionStore, clock: Clock, shard: str, role: str):
        self._bus, self._ledger, self._store, self._clock, self._shard = bus, ledger, store, clock, shard
        own = used_by(role, shard)
        self._queues = [
            spec.name
            for kind, spec in used_by("admission", shard).items()
            if spec.retention is Retention.WORK_QUEUE and (kind in own or role == OPERATOR)
        ]
        self._away: dict[str, str] = {}

    async def look(self) -> StatusTraces:
        """Ask NATS and Redis all at once, for at most twice `LOOK_SECONDS`."""
        self._away = {}
        leases = self._bus.last_all(subjects.stream("LEASES", self._shard), f"lease.{self._shard}.>")
        found, end, views = await asyncio.gather(
            self._tried("NATS", leases), self._tried("NATS", self._end()), self._tried("Redis", self._store.cursor())
        )
        waiting = None if end is None else await self._oldest_waiting(end.facts_upto)
        return StatusTraces(self._clock.now_ms(), found, end, waiting, views, dict(sorted(self._away.items())))

    async def _tried(self, whom: str, asked: Awaitable[T]) -> T | None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await asked
        except (KernelError, ValueError, KeyError, TimeoutError) as error:
            self._away.setdefault(whom, str(error) or f"no answer in {LOOK_SECONDS:.0f} s")
            return None

    async def _end(self) -> LedgerTail:
        tail = await self._ledger.tail()
        if tail is None:
            return LedgerTail()
        found = orjson.loads(tail.data)
        return LedgerTail(tail.seq, found["ts"], found["facts_upto"])

    async def _oldest_waiting(self, facts_upto: int) -> int | None:
        """Time of the oldest of commands without an answer and facts that the ledger lacks; 0 without any."""
        asked = [self._first_command(name) for name in self._queues]
        found = await asyncio.gather(*(self._if_told(each) for each in (*asked, self._first_fact(facts_upto))))
        told = [each for each in found if each is not None]
        return min(filter(None, told), default=0) if told else None

    async def _if_told(self, asked: Awaitable[int]) -> int | None:
        """Answer of NATS; None to credentials that are older than the right to ask, or for a stream that is away."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await asked
        except (KernelError, TimeoutError):
            return None

    async def _first_command(self, queue: str) -> int:
        return (await self._bus.usage(queue)).first_ms

    async def _first_fact(self, facts_upto: int) -> int:
        if await newest_fact(self._bus, self._shard) <= facts_upto:
            return 0
        oldest = await self._bus.get(subjects.stream("FACTS", self._shard), facts_upto + 1)
        return 0 if oldest is None else oldest.stored_ms


def judge(seen: StatusTraces, shard: str, in_full: bool) -> ShardStatus:
    """The status of what was seen, without names and words of instances unless `in_full`."""
    leases = () if seen.leases is None else tuple(_living(seen.leases, seen.ts))
    found = tuple(_services(leases, shard))
    leader = _leader(found, leases, shard)
    standing = tuple(_standstill(seen, leader))
    told = seen.away if in_full else dict.fromkeys(seen.away, "does not answer")
    troubles = (*_away(told), *standing, *_unwell(found, seen.leases is not None, in_full))
    end = seen.end or LedgerTail()
    return ShardStatus(
        ts=seen.ts,
        well=not troubles,
        standstill=standing[0].what if standing else "NATS does not answer" if seen.end is None else "",
        led=bool(leader),
        leader=leader if in_full else "",
        ledger_n=end.n,
        ledger_ts=end.ts,
        waiting_since_ts=seen.waiting_ms or 0,
        views_n=seen.views_n or 0,
        nats=told.get("NATS", "ok"),
        redis=told.get("Redis", "ok"),
        services=found if in_full else tuple(one.model_copy(update={"instance": "", "unwell": ()}) for one in found),
        troubles=troubles,
    )


def _away(why: Mapping[str, str]) -> Iterator[ShardTrouble]:
    for whom, text in why.items():
        gone = "; `tessera init` makes a stream that is gone, but for the ledger" if whom == "NATS" else ""
        yield ShardTrouble(what=f"{whom}: {text}", way_out=f"see that {whom} runs and lets us in{gone}")


def _living(messages: Sequence[Message], now_ms: int) -> Iterator[tuple[Message, str]]:
    """Each lease and probe of a live instance, with the instance's name; "" where a lease was let go."""
    newest = max((message.stored_ms for message in messages), default=0)
    if now_ms - newest >= SILENT_MS:
        return
    for message in messages:
        if newest - message.stored_ms < SILENT_MS:
            name = message.subject.split(".", 3)[3]
            yield message, name.removeprefix(f"{PROBE}.") if name.startswith(f"{PROBE}.") else _holder(message)


def _holder(message: Message) -> str:
    try:
        return str(orjson.loads(message.data)["holder"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""


def _services(leases: Sequence[tuple[Message, str]], shard: str) -> Iterator[ServiceStatus]:
    """Every instance whose probe is alive, in the order of the services."""
    for service in SERVICES:
        for message, instance in leases:
            if message.subject.startswith(subjects.lease(shard, service, f"{PROBE}.")):
                probe = read_probe(message.data)
                if probe is not None:
                    leads, unwell = probe
                    words = tuple(sorted(unwell.items()))
                    yield ServiceStatus(service=service, instance=instance, ready=not words, leads=leads, unwell=words)


def _leader(found: Sequence[ServiceStatus], leases: Sequence[tuple[Message, str]], shard: str) -> str:
    """
    The scheduler that said last that it leads, since one that lost its lease goes on until another takes it.

    Those of an earlier version do not say so, and hold the lease.
    """
    held = subjects.lease(shard, SCHEDULER, LEADER)
    holders = [holder for message, holder in leases if message.subject == held]
    leading = [one.instance for one in reversed(found) if one.service == SCHEDULER and one.leads]
    return next(filter(None, (*leading, *holders)), "")


def _standstill(seen: StatusTraces, leader: str) -> Iterator[ShardTrouble]:
    if seen.leases is not None and not leader:
        yield ShardTrouble(
            what=f"no scheduler leads: {BY_NAME[SCHEDULER].without_it}",
            way_out="start one; if one runs, its /readyz and its log say why it does not lead",
        )
    waits = seen.ts - seen.waiting_ms if seen.waiting_ms else 0
    if waits >= WAITING_MS:
        yield ShardTrouble(
            what=f"the ledger has not answered what was sent {format_age(waits)} ago",
            way_out="look at /readyz and the log of admission and the leading scheduler",
        )


def _unwell(found: Sequence[ServiceStatus], heard: bool, in_full: bool) -> Iterator[ShardTrouble]:
    for service in SERVICES if heard else ():
        if service != SCHEDULER and service not in {one.service for one in found}:
            what = f"no {service} is heard of: {BY_NAME[service].without_it}"
            yield ShardTrouble(what=what, way_out="start one, or see its log")
    for one in found:
        if one.unwell and not in_full:
            yield ShardTrouble(what=f"{one.service} is not ready", way_out="an operator sees why with `tessera status`")
        for check, text in one.unwell if in_full else ():
            yield ShardTrouble(what=f"{one.instance} is not ready: {check}: {text}", way_out="docs/operations.md")
