"""
Leadership of a shard's service, and partitions shared among replicas.

**Problem.** Several replicas of a service stand ready, and one of them is to work, or each of them a part. Clocks of
machines differ, processes pause for seconds, and answers get lost. A lease cannot prove that its holder is alone: a
paused holder may wake and go on for a moment. So a lease is for liveness only. It says who *should* work, so that two
do not work against each other for long; exclusivity is proved by the compare-and-swap on the ledger.

    replica A                LEASES (one message per subject)              replica B
    renews each L/4  ----->  lease.<shard>.<service>.leader   <-----  looks each 0.2 s or L/4
                             lease.<shard>.<service>.<A>      ----->  both read every member's message
                             lease.<shard>.<service>.<B>      ----->  and compute the same shares

No clock is compared with another: a holder is gone when its message has not changed for L = `lease_seconds` of the
observer's own monotonic time.

**Leadership.** Each write is a compare-and-swap on the subject's last sequence.

| state | condition | operation | next |
|---|---|---|---|
| standing by | the message is let go, or has our own name | write our name at its sequence | holding |
| standing by | its sequence has not changed for L | write our name at its sequence | holding |
| standing by | another wrote first (`Conflict`), or the bus is away | look again | standing by |
| holding | L/4 has passed | write our name again | holding |
| holding | the swap was lost, and the newest message is ours | go on from its sequence | holding |
| holding | the swap was lost to another name | stop renewing | over |
| holding | no renewal began within the last L | stop renewing | over |
| holding | `release` | write "" at our sequence | over |
| over | `acquire` | look | standing by |

A lease that is over never turns true again by itself, even if a late answer says that a renewal was stored: whoever
saw `held` false may have stopped half of its work.

**Membership** (`Members`) has no election. Each replica renews a message of its own and reads everybody's; rendezvous
hashing gives each of the 16 partitions to one member. A member that goes moves its own partitions and no others.

**What survives.** The message of a lease lies in the stream LEASES. It survives its process, which is why a successor
waits for L, or not at all after `release`; whether it survives the servers of NATS does not matter, since an empty
subject is free. Redis has no part in it. `held`, the times of last changes and the shares are memory of one process: a
replica that starts anew counts a member only once its message changes, since what lies there at its first look may be
old.

**Trust.**

- The holder trusts `held` from the moment *before* it sent the newest renewal that was stored: until t_sent + L.
- A standby trusts the holder until L after its own first sight of the newest message. The sight comes after the
  sending, so that t_sent + L comes no later than t_seen + L: in calm no two replicas believe at once that they lead.
  Skew between clocks does not enter; drift does, as L times the difference of the rates of two monotonic clocks.
- A holder that pauses between a look at `held` and its act may act late by the length of the pause, without bound.
  Nobody has to trust that it does not: the ledger refuses the stale act, and calls to Kubernetes are fenced by UID.
- A leader that dies is followed after L + min(0.2 s, L/4) plus one round trip at most; one that stops in order,
  after min(0.2 s, L/4).
- Two replicas may trust different sets of members for about L + L/4 whenever somebody comes or goes. A partition
  worked twice is slow, not wrong; a partition worked by nobody waits as long.

**Failures.**

- The bus is away: the holder's lease runs out, and no standby can take it either. Members keep the view that they
  have, and time in which nothing could be read is nobody's silence.
- A renewal's answer is lost: the next swap is refused, the newest message has our name, and renewing goes on there.
- A holder writes bytes that no replica of ours writes: it counts as one that never renews, and L later it is replaced.
- A replica lives and cannot work: its message says so (`acts`), which others may read; it keeps its partitions.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import lru_cache

import orjson

from tessera.kernel.errors import Conflict, Transient
from tessera.kernel.ports import Bus, Clock, Message, Outgoing
from tessera.kernel.tasks.task_group import cancel_all
from tessera_schemas import subjects

PARTITIONS = 16
RENEWALS_PER_LEASE = 4
POLL_SECONDS = 0.2  # how soon a standby sees that the holder let go
ROUND_POLL_SECONDS = 0.5  # how soon a replica sees that other partitions are its own
LEADER = "leader"
ACTS = "acts"
"""In a lease, where a replica is alive and cannot work: `false`."""


def _holder_bytes(instance: str, acts: bool = True) -> bytes:
    return orjson.dumps({"holder": instance} | ({} if acts else {ACTS: False}))


def says_it_acts(message: Message) -> bool:
    """Whether the replica of a lease said that it does its work; one of an earlier version does not say it cannot."""
    try:
        return orjson.loads(message.data).get(ACTS, True) is True
    except (orjson.JSONDecodeError, AttributeError):
        return True


def _holder(message: Message) -> str:
    """Holder of the lease; "" when it was let go. Bytes that no replica writes are a holder that never renews."""
    try:
        return str(orjson.loads(message.data)["holder"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "?"


class Leadership:
    """
    One replica's part in electing the leader of a service in a shard.

    `await acquire()` returns when this replica leads. From then it renews by itself; once `held` is false it stays
    false until the next `acquire`.
    """

    def __init__(
        self, bus: Bus, clock: Clock, shard: str, service: str, instance: str, lease_seconds: float = 2.0
    ) -> None:
        self._bus, self._clock, self._instance = bus, clock, instance
        self._stream = subjects.stream("LEASES", shard)
        self._subject = subjects.lease(shard, service, LEADER)
        self._lease_seconds = lease_seconds
        self._holding = False
        self._seq = 0
        self._renewed_at = 0.0
        self._renewal: asyncio.Task[None] | None = None

    @property
    def held(self) -> bool:
        """
        Whether this replica may believe that it leads.

        Counted from before the last renewal was sent, so that it ends no later than a standby's wait does.
        """
        return self._holding and self._clock.monotonic() - self._renewed_at < self._lease_seconds

    async def acquire(self) -> None:
        """Wait until this replica leads, however long it takes; a bus that is away only makes it longer."""
        await self._stop_renewing()
        seen, seen_at = -1, self._clock.monotonic()
        while True:
            with suppress(Transient, Conflict):
                last = await self._bus.last(self._stream, self._subject)
                now, seq = self._clock.monotonic(), last.seq if last else 0
                if seq != seen:
                    seen, seen_at = seq, now
                if self._is_free(last) or now - seen_at >= self._lease_seconds:
                    await self._write(self._instance, seq)
                    self._holding = True
                    self._renewal = asyncio.create_task(self._keep_renewing(), name=f"renew {self._subject}")
                    return
            await self._clock.sleep(min(POLL_SECONDS, self._lease_seconds / RENEWALS_PER_LEASE))

    async def lost(self) -> None:
        """Wait until this replica renews its lease no more: another has it, or it ran out, as in a pause."""
        if self._renewal is not None:
            await asyncio.wait([self._renewal])

    async def release(self) -> None:
        """Let go, so that a standby takes over at once. If the bus is away, the lease runs out instead."""
        held = self.held
        await self._stop_renewing()
        if held and await self._still_ours():
            with suppress(Transient, Conflict):
                await self._write("", self._seq)

    async def _stop_renewing(self) -> None:
        self._holding = False
        if self._renewal is not None:
            await cancel_all(self._renewal)
            self._renewal = None

    def _is_free(self, last: Message | None) -> bool:
        """Our own name there means a renewal whose answer we never got: nobody else holds it."""
        return last is None or _holder(last) in ("", self._instance)

    async def _write(self, holder: str, expected_seq: int) -> None:
        started = self._clock.monotonic()
        out = Outgoing(self._subject, _holder_bytes(holder), expected_last_subject_seq=expected_seq)
        self._seq = await self._bus.publish(out)
        self._renewed_at = started

    async def _keep_renewing(self) -> None:
        while True:
            await self._clock.sleep(self._lease_seconds / RENEWALS_PER_LEASE)
            if not self.held:
                break
            runs_out_at = self._renewed_at + self._lease_seconds
            try:
                await self._write(self._instance, self._seq)
            except Conflict:
                if not await self._still_ours():
                    break
            except Transient:
                continue  # the next turn tries again, until the lease has run out
            if self._clock.monotonic() >= runs_out_at:
                break  # the answer came late: `held` was false meanwhile and must not turn true again
        self._holding = False

    async def _still_ours(self) -> bool:
        """Whether the newest message is ours, such as a renewal whose answer never came; continues from there."""
        with suppress(Transient):
            last = await self._bus.last(self._stream, self._subject)
            if last is None or _holder(last) != self._instance:
                return False
            self._seq = last.seq
        return True  # nothing is renewed by this: a swap must still succeed before the lease runs out


class Members:
    """
    The replicas of a service that are alive, and which of the fixed partitions each one works.

    Each replica renews a message of its own and reads everybody's. Views differ for a moment whenever somebody comes
    or goes: a partition worked twice is slow, not wrong.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        shard: str,
        service: str,
        instance: str,
        lease_seconds: float = 2.0,
        acts: Callable[[], bool] = lambda: True,
    ) -> None:
        """`acts` says whether this replica can do its work now; others read it in its lease."""
        self._acts = acts
        self._bus, self._clock, self._instance = bus, clock, instance
        self._stream = subjects.stream("LEASES", shard)
        self._mine = subjects.lease(shard, service, instance)
        self._everybody = subjects.lease(shard, service, "*")
        self._leader = subjects.lease(shard, service, LEADER)
        self._lease_seconds = lease_seconds
        self._changed: dict[str, tuple[int, float]] = {}  # subject: (sequence, own monotonic time of its last change)
        self._live: tuple[str, ...] = (self._mine,)
        self._ours = _shares(self._live, self._mine)
        self._read_at: float | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Say that this replica is alive, look who else is, and keep doing both."""
        await self._renew_and_read()
        self._renewal = asyncio.create_task(self._keep_renewing(), name=f"renew {self._mine}")

    async def leave(self) -> None:
        """Say that this replica goes, so that the others take its partitions at once."""
        if self._renewal is not None:
            await cancel_all(self._renewal)
            self._renewal = None
        with suppress(Transient):
            await self._bus.publish(Outgoing(self._mine, _holder_bytes("")))

    def partitions(self) -> frozenset[int]:
        """The partitions that this replica works now; the same members give the same shares everywhere."""
        return self._ours

    @property
    def count(self) -> int:
        """Number of live replicas, this one included."""
        return len(self._live)

    async def _keep_renewing(self) -> None:
        while True:
            await self._clock.sleep(self._lease_seconds / RENEWALS_PER_LEASE)
            await self._renew_and_read()

    async def _renew_and_read(self) -> None:
        """
        Renews the lease and reads all others; while the bus is away the view stays as it was, for every replica alike.
        """
        with suppress(Transient, Conflict):
            await self._bus.publish(Outgoing(self._mine, _holder_bytes(self._instance, self._acts())))
            messages = await self._bus.last_all(self._stream, self._everybody)
            self._observe([message for message in messages if message.subject != self._leader])

    def _observe(self, messages: list[Message]) -> None:
        now = self._clock.monotonic()
        silence = now - self._read_at if self._read_at is not None else 0.0
        # Time in which nothing could be read is nobody's silence.
        unread = silence if silence > self._lease_seconds / 2 else 0.0
        changed: dict[str, tuple[int, float]] = {}
        for message in messages:
            seq, at = self._changed.get(message.subject, (0, now))
            changed[message.subject] = (message.seq, self._last_change(message, seq, at + unread, now))
        self._changed, self._read_at = changed, now
        gone = {message.subject for message in messages if _holder(message) == ""}
        live = {s for s, (_seq, at) in changed.items() if now - at < self._lease_seconds and s not in gone}
        members = tuple(sorted(live | {self._mine}))
        if members != self._live:
            self._live, self._ours = members, _shares(members, self._mine)

    def _last_change(self, message: Message, known_seq: int, known_at: float, now: float) -> float:
        """
        Time of a member's last sign of life; a message found at the first look may be old and counts once it changes.
        """
        if message.seq == known_seq:
            return known_at
        first_look = self._read_at is None
        return now - self._lease_seconds if first_look else now


def _shares(members: tuple[str, ...], mine: str) -> frozenset[int]:
    return frozenset(p for p in range(PARTITIONS) if _worker(p, members) == mine)


def _worker(partition: int, members: tuple[str, ...]) -> str:
    """Rendezvous hashing: a member that goes moves only its own partitions."""
    return max(members, key=lambda member: (hashlib.sha256(f"{member}/{partition}".encode()).digest(), member))


@lru_cache(maxsize=65_536)
def partition_of(job_id: str) -> int:
    """The partition of a job, the same in every process and version."""
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8], "big") % PARTITIONS


async def rounds(
    members: Members, clock: Clock, every_seconds: float, ready: Callable[[], bool] = lambda: True
) -> AsyncIterator[None]:
    """Each time to look at everything again: now and then, and as soon as our partitions change; once `ready`."""
    ours, at = frozenset[int](), clock.monotonic()
    while True:
        now = members.partitions()
        if ready() and (now != ours or clock.monotonic() - at >= every_seconds):
            ours, at = now, clock.monotonic()
            yield
        await clock.sleep(ROUND_POLL_SECONDS)
