"""
The public events on their stream: in ledger order, none lost, none doubled.

Each append expects the stream to stand at the one before it, so that a batch is stored from its beginning on up to
some event and no further, whoever else tries. Where the stream stands says the header of its newest message; after a
start, a lost swap or an unknown outcome it is read again, and what is stored already is passed over.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

import structlog

from tessera.kernel.errors import Conflict, InvariantViolation, Poison, Transient
from tessera.kernel.messaging.follow import BACKOFF_SECONDS
from tessera.kernel.ports import Outgoing
from tessera.kernel.service.context import Ports
from tessera.projection.events import START, Cursor, StoredEvent
from tessera.projection.evidence import end_of_events, in_turn, read_events
from tessera_schemas import subjects
from tessera_schemas.events import (
    CONTENT_TYPE,
    CURSOR_HEADER,
    JobAdmittedV1,
    JobCancelledV1,
    JobFailedV1,
    JobSucceededV1,
    short_type,
)
from tessera_schemas.shard.streams import streams

BATCH = 256
SOON = 4 * BATCH  # events that are under way anyway; a leader that gets through folds no further ahead than this
WAITING_BYTES_MAX = 32 << 20
STAND_BY_SECONDS = 0.5  # how soon a standby sees that it leads, and what the leader has published
PUZZLED_MAX = 6  # with the back-off some nine seconds, far longer than a new stream leader takes to know its stream

_NAMED_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")

TOLD = tuple(f".{short_type(kind.type)}" for kind in (JobAdmittedV1, JobSucceededV1, JobFailedV1, JobCancelledV1))
"""Ends of subjects of events that the log names: a job's beginning and its end."""

log = structlog.get_logger()


class Publisher:
    """
    Events wait here until they are stored.

    `published` is the newest event that the stream is known to hold, at sequence `_seq`. `_sure` once an append has
    proved that nothing is behind it; until then one event goes at a time, since in a batch a later one might expect
    the very sequence at which the stream stands, and be stored without those before it. `trouble` says why nothing
    gets through, None while all is well.
    """

    def __init__(self, ports: Ports, shard: str, waiting_max: int) -> None:
        self._ports, self._waiting_max = ports, waiting_max
        self._stream, self._all = subjects.stream("EVENTS", shard), f"events.{shard}.>"
        self._keep_ms = _kept_seconds(shard) * 1000
        self._waiting: deque[StoredEvent] = deque()
        self.waiting_bytes = 0
        self._gets_through = False
        self._filled, self._emptied = asyncio.Event(), asyncio.Event()
        self._seq, self._sure = 0, False
        self._from_ts = 0
        self._puzzled = 0
        self.published = START
        self.trouble: str | None = None

    async def locate(self) -> Cursor:
        """
        Find where the stream stands, before anything is offered.

        A stream without messages may have had some that grew too old. Whatever was published then is older than the
        stream keeps, so the first event to publish is the first that is not.
        """
        found = await self._ports.bus.last(self._stream, self._all)
        if found is None:
            self._from_ts = self._ports.clock.now_ms() - self._keep_ms
        else:
            self.published = await end_of_events(self._ports.bus, self._ports.ledger, self._stream, found)
            self._seq = found.seq
        return self.published

    def wants(self, n: int, ts: int) -> bool:
        """Whether the stream may lack events of this ledger message."""
        return n >= self.published.n and ts >= self._from_ts

    def offer(self, events: Iterable[StoredEvent]) -> None:
        """Take events in ledger order."""
        for event in events:
            if event.cursor > self.published:
                self._waiting.append(event)
                self.waiting_bytes += len(event.data)
        self._ports.metrics.queue_depth.set(len(self._waiting))
        if self._waiting:
            self._filled.set()

    async def wait_for_space(self) -> None:
        """
        Wait while too many events wait: folding on would fill the memory, and take the CPU from publishing.

        While nothing gets through, folding goes on for longer, since the views need not wait for the events.
        """
        while (
            len(self._waiting) >= (SOON if self._gets_through else self._waiting_max)
            or self.waiting_bytes >= WAITING_BYTES_MAX
        ):
            self._emptied.clear()
            await self._emptied.wait()

    async def run(self, leading: Callable[[], bool]) -> None:
        """
        Publish while `leading`; as a standby forget what the leader has published.

        Raises Conflict when stored events are gone.
        """
        failures = 0
        while True:
            await self._filled.wait()
            try:
                if leading():
                    await self._publish()
                    self._gets_through = True
                else:
                    self._gets_through = False
                    await self._look()
                    await self._ports.clock.sleep(STAND_BY_SECONDS)
                failures, self.trouble = 0, None
            except Transient as error:
                self._gets_through, self.trouble = False, f"events wait: {error}"
                self._emptied.set()
                log.warning("events_wait", error=str(error), waiting=len(self._waiting))
                await self._ports.clock.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
                failures += 1

    async def _publish(self) -> None:
        batch = list(islice(self._waiting, BATCH if self._sure else 1))
        out = [
            Outgoing(
                event.subject,
                event.data,
                headers={CURSOR_HEADER: str(event.cursor), "Content-Type": CONTENT_TYPE},
                expected_last_seq=self._seq + i,
            )
            for i, event in enumerate(batch)
        ]
        try:
            seqs = await self._ports.bus.publish_all(out)
        except Conflict as error:
            self._ports.metrics.conflicts.inc()
            await self._after_conflict(error)
        except Transient:
            await self._look()  # part of it may be stored, or all of it
            raise
        except Poison as error:
            raise InvariantViolation(
                f"an event of {batch[0].cursor}..{batch[-1].cursor} cannot be stored: {error}"
            ) from error
        else:
            self._puzzled, self._sure = 0, True
            for event in batch:
                if event.subject.endswith(TOLD):
                    log.info("event_published", subject=event.subject, job=event.job_id)
            self._stored_up_to(batch[-1].cursor, seqs[-1])

    async def _after_conflict(self, error: Conflict) -> None:
        """
        Somebody else published: go on behind it.

        If nothing new is there however often we look, the stream's newest messages were removed or grew too old, and
        its sequence is the one that the server names. Looking again and again is for a deposed stream leader, which
        answers with what it had.
        """
        before = self._seq
        await self._look()
        named = _NAMED_SEQUENCE.search(str(error))
        if self._seq != before or named is None:
            self._puzzled = 0
            return
        if int(named[1]) < before:
            raise Conflict(f"{self._stream} stands at {named[1]}, but {before} was stored: it was made anew")
        self._puzzled += 1
        if self._puzzled <= PUZZLED_MAX:
            raise Transient(f"{self._stream}: stands elsewhere than its newest message says ({error})")
        log.warning("events_stream_position_taken_from_server", seq=named[1], was=before)
        self._puzzled, self._seq = 0, int(named[1])

    async def _look(self) -> None:
        """
        Read where the stream stands, and which of the events that wait it has by now.

        Raises Conflict when it lost what was stored: then older events must be derived again, from an older state.
        """
        found = await self._ports.bus.last(self._stream, self._all)
        self._sure = False
        if found is None:
            return  # its last messages grew too old; they were published all the same
        if found.seq < self._seq:
            raise Conflict(f"{self._stream} ends at {found.seq}, but {self.published} was stored at {self._seq}")
        stored = await read_events(self._ports.bus, self._stream, self._seq, found) if found.seq > self._seq else []
        cursor, seq = in_turn(self._stream, stored, (event.cursor for event in self._waiting), self.published)
        self._stored_up_to(cursor, max(seq, self._seq))

    def _stored_up_to(self, cursor: Cursor, seq: int) -> None:
        while self._waiting and self._waiting[0].cursor <= cursor:
            self.waiting_bytes -= len(self._waiting.popleft().data)
        self.published, self._seq = cursor, seq
        self._ports.metrics.queue_depth.set(len(self._waiting))
        if not self._waiting:
            self._filled.clear()
        self._emptied.set()


def _kept_seconds(shard: str) -> int:
    name = subjects.stream("EVENTS", shard)
    return next(spec.max_age_seconds for spec in streams(shard) if spec.name == name)
