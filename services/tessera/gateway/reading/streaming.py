"""
Server-sent events: a tenant's CloudEvents as they come, from any place in the stream on.

`id` is the event's sequence in EVENTS, so that a client that comes back with it (`Last-Event-ID`, which browsers send
by themselves, or `?after=`) misses nothing; what was on its way when it left may come twice, under the same id. A
heartbeat names the place too: a tenant whose events are rare does not fall behind what is kept.

What ends or interrupts a stream is an event of its own name with a typed body: `gap` (older events are gone, the
stream goes on), `end` (slow reader, shutdown, or a token that is no more), `complete` (with `follow=false` all that was
stored has been sent: a connection that is cut before it has lost some).
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import structlog
from aiohttp import web

from tessera.gateway.entrance.guard import CALLER
from tessera.gateway.entrance.loop_shares import SHARE
from tessera.gateway.entrance.problems import Refusal, refused
from tessera.gateway.entrance.tokens import Caller, TokenFile
from tessera.gateway.measures import Measures
from tessera.gateway.operations.queries import EventQuery
from tessera.gateway.reading.hub import EventReader, Hub
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.errors import Transient
from tessera.kernel.ports import Bus, Clock, Message
from tessera.kernel.tasks.waiting import wait_for
from tessera_schemas.base import INT_MAX
from tessera_schemas.reasons import Code

FIRST_LOOK, WIDER = 4, 8
# How many places are looked at first for each event that is wanted, and by how much more each time.
SILENCE_SECONDS = 5.0


async def place_of_newest(bus: Bus, stream: str, subject: str, count: int) -> int:
    """The place behind which the newest `count` events of a subject stand; 0 if there are fewer. Raises Transient."""
    newest = await bus.last(stream, subject)
    if newest is None:
        return 0
    width = FIRST_LOOK * count
    while True:
        after = max(0, newest.seq - width)
        found = await _newest_after(bus, stream, subject, after, newest.seq, count)
        if len(found) == count:
            return found[0] - 1
        if after == 0:
            return 0
        width *= WIDER


async def _newest_after(bus: Bus, stream: str, subject: str, after: int, upto: int, count: int) -> deque[int]:
    # Sequences of the newest `count` events of a subject from behind `after` up to `upto`.
    found, source = deque[int](maxlen=count), bus.follow(stream, subject, after)
    try:
        while batch := await source.next(timeout=SILENCE_SECONDS):
            found += (message.seq for message in batch if message.seq <= upto)
            if batch[-1].seq >= upto:
                return found
    finally:
        await source.close()
    raise Transient(f"{stream}: silent for {SILENCE_SECONDS:g} s before its newest event")


RETRY_MS = 1000
FAREWELL_SECONDS = 0.2  # what does not fit into the socket by then is in its buffer, or nowhere
LINGER_SECONDS = 5.0  # then the connection of a client that reads nothing is cut
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

log = structlog.get_logger()


class Streams:
    def __init__(
        self, hub: Hub, settings: GatewaySettings, tokens: TokenFile, clock: Clock, measures: Measures
    ) -> None:
        self._hub, self._settings, self._tokens = hub, settings, tokens
        self._clock, self._measures = clock, measures
        self._open: dict[str, int] = {}
        self._lingering: set[asyncio.Task[None]] = set()

    async def serve(self, request: web.Request, query: EventQuery) -> web.StreamResponse:
        """Stream until somebody ends it. Raises Refusal or Transient before it has begun."""
        caller = request[CALLER]
        subject = self._subject(caller, query)
        after = _last_event_id(request)
        after = query.after if after is None else after
        if after is None and query.last is None and not query.follow:
            after = 0
        with self.counting(caller):
            async with self._hub.followed(self._clock):
                gap = await self._gap(after)
                if after is None and query.last is not None:
                    after = await place_of_newest(self._hub.bus, self._hub.stream, subject, query.last)
                until = None if query.follow else await self._newest(subject)
                response = web.StreamResponse(headers=HEADERS)
                response.content_type, response.charset = "text/event-stream", "utf-8"
                await response.prepare(request)
                reader = EventReader(self._hub, subject, self._hub.head if after is None else after, self._clock)
                stream = _Stream(self, request, response, reader, query, caller, until)
                try:
                    await stream.run(gap)
                except Exception:  # its beginning is sent: there is no status left to say it with
                    log.exception("event_stream_failed")
                finally:
                    await reader.close()
        return response

    def _subject(self, caller: Caller, query: EventQuery) -> str:
        if query.tenant is not None and not caller.may_see(query.tenant):
            raise refused(Code.FORBIDDEN, "tenant", "a tenant's token gives its own events; leave tenant out")
        tenant = caller.tenant or query.tenant
        return self._hub.everything if tenant is None else f"events.{self._hub.shard}.{tenant}.>"

    async def _newest(self, subject: str) -> int:
        # Sequence of the newest event of `subject`; 0 while there is none.
        newest = await self._hub.bus.last(self._hub.stream, subject)
        return 0 if newest is None else newest.seq

    async def _gap(self, after: int | None) -> Refusal | None:
        # A refusal when the named event is no longer kept, since later ones may be missing, too.
        # Raises Refusal when the stream ends before it: it was made anew, and waiting for that number would miss all.
        if not after or self._hub.floor <= after <= self._hub.head:
            return None
        if after > self._hub.head:
            newest = await self._hub.bus.last(self._hub.stream, self._hub.everything)
            if newest is None or newest.seq < after:
                raise refused(Code.EVENTS_GONE, "after", "there is no such event; begin anew with 0", {"after": after})
            return None
        kept = await self._hub.bus.get(self._hub.stream, after)
        return None if kept is not None else refused(Code.EVENTS_GONE, "after", "", {"after": after})

    @contextmanager
    def counting(self, caller: Caller) -> Iterator[None]:
        """Count one open stream of the caller. Raises Refusal when there are too many."""
        own, limits = self._open.get(caller.token_id, 0), self._settings
        if own >= limits.streams_per_token or sum(self._open.values()) >= limits.streams_max:
            raise refused(Code.RATE_LIMITED, "streams", "too many open; close one", {"open": own}, retry_after=5)
        self._open[caller.token_id] = own + 1
        self._measures.streams.inc()
        try:
            yield
        finally:
            left = self._open[caller.token_id] - 1
            if left:
                self._open[caller.token_id] = left
            else:
                del self._open[caller.token_id]
            self._measures.streams.dec()

    def why_over(self, caller: Caller) -> Code | None:
        """Why a stream may not go on, None while it may."""
        if self._hub.closed:
            return Code.SHUTTING_DOWN
        return None if self._tokens.holds(caller) else Code.UNAUTHORIZED

    async def written(self, response: web.StreamResponse, data: bytes) -> bool:
        """Whether the client took it in time; if not, it is dropped."""
        writing = asyncio.ensure_future(response.write(data))
        taken = asyncio.Event()
        writing.add_done_callback(lambda _: taken.set())
        try:
            if await wait_for(taken, self._clock, self._settings.slow_seconds):
                await writing
                return True
        finally:
            writing.cancel()
        return False

    async def drop(self, request: web.Request, response: web.StreamResponse) -> None:
        """Say why, if it can still hear it, and cut the connection soon; nobody else waits for that."""
        self._measures.dropped.inc()
        log.info("slow_reader_dropped", remote=request.remote)
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await response.write(_named("end", refused(Code.SLOW_READER)))
        except (TimeoutError, ConnectionError):
            pass
        transport = request.transport
        if transport is not None:
            transport.close()
            linger = asyncio.create_task(self._cut(transport))
            self._lingering.add(linger)
            linger.add_done_callback(self._lingering.discard)

    async def _cut(self, transport: asyncio.Transport) -> None:
        await self._clock.sleep(LINGER_SECONDS)
        transport.abort()

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between heartbeats of a stream."""
        return self._settings.heartbeat_seconds


class _Stream:
    """One open stream; `until` is the sequence behind which it is complete, None for one that goes on for ever."""

    def __init__(
        self,
        streams: Streams,
        request: web.Request,
        response: web.StreamResponse,
        reader: EventReader,
        query: EventQuery,
        caller: Caller,
        until: int | None,
    ) -> None:
        self._streams, self._request, self._response = streams, request, response
        self._reader, self._query, self._caller, self._until = reader, query, caller, until

    async def run(self, gap: Refusal | None) -> None:
        greeting = f"retry: {RETRY_MS}\n\n".encode() + _place(self._reader.cursor)
        data = greeting if gap is None else greeting + _named("gap", gap)
        while True:
            try:
                await self._request[SHARE].turn()
                if not await self._streams.written(self._response, data):
                    await self._streams.drop(self._request, self._response)
                    return
                over = self._streams.why_over(self._caller)
                if over is not None:
                    await self._streams.written(self._response, _named("end", refused(over)))
                    return
                if self._until is not None and self._reader.cursor >= self._until:
                    await self._streams.written(self._response, _complete(self._until))
                    return
                data = await self._next()
            except ConnectionError:
                return  # the client left

    async def _next(self) -> bytes:
        try:
            messages = await self._reader.next(self._streams.heartbeat_seconds)
        except Transient as error:
            log.warning("event_stream_ends", error=str(error))
            await self._streams.written(self._response, _named("end", refused(Code.UNAVAILABLE)))
            raise ConnectionError from error
        wanted = [message for message in messages if self._wants(message)]
        return b"".join(map(_event, wanted)) or _place(self._cursor)

    @property
    def _cursor(self) -> int:
        # Place up to which all was sent: what came behind `until` was not.
        return self._reader.cursor if self._until is None else min(self._reader.cursor, self._until)

    def _wants(self, message: Message) -> bool:
        if self._until is not None and message.seq > self._until:
            return False
        kinds, job = self._query.type, self._query.job
        if kinds and not message.subject.endswith(tuple(f".{kind}" for kind in kinds)):
            return False
        return job is None or (job.encode() in message.data and _job_of(message) == job)  # few need to be decoded


def _job_of(message: Message) -> str:
    return str(orjson.loads(message.data)["data"].get("job_id", ""))


def _event(message: Message) -> bytes:
    # JSON has no line ends outside its strings, and those inside are escaped: one `data` line is enough.
    return b"id: %d\ndata: %b\n\n" % (message.seq, message.data)


def _place(seq: int) -> bytes:
    # A heartbeat: no event, but the client's `Last-Event-ID` moves on.
    return b": as of %d\nid: %d\n\n" % (seq, seq)


def _complete(until: int) -> bytes:
    return b'id: %d\nevent: complete\ndata: {"as_of":%d}\n\n' % (until, until)


def _named(name: str, refusal: Refusal) -> bytes:
    return f"event: {name}\ndata: {refusal.problem().model_dump_json(exclude_defaults=True)}\n\n".encode()


def _last_event_id(request: web.Request) -> int | None:
    # Raises Refusal when it is none of ours.
    given = request.headers.get("Last-Event-ID", "")
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 16 and int(given) <= INT_MAX):
        raise refused(Code.INVALID_FIELD, "Last-Event-ID", "not an event id; send the `id` of an event as it came")
    return int(given)
