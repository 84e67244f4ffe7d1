"""
The ProjectionStore port over Redis 6.2 or later.

A generation is one whole build of the views under names of its own; the pointer `current` says which one is read.
Views and cursor move in one script, so that no reader and no crash sees one without the other. Readers run no script:
they read the pointer and the fields of the generation they know in one MULTI, and again when the pointer has moved.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, NoScriptError, RedisError
from redis.maint_notifications import MaintNotificationsConfig

from tessera.kernel import ids
from tessera.kernel.errors import Conflict, Denied, Transient
from tessera.kernel.ports import Change
from tessera.kernel.redis.views_digest import views_digest
from tessera.kernel.tasks.deadline import time_limit
from tessera_schemas.shard import keys
from tessera_schemas.shard.keys import HASHES, VIEWS
from tessera_schemas.shard.ledger_form import Head

ANSWER_SECONDS = 5.0  # with connecting; a script of the largest batch takes 50 ms, a view of a million jobs seconds
CHUNK_FIELDS = 1_000
CHUNKS_PER_TRIP = 8
READ_ATTEMPTS = 5  # each is lost only to a generation switched in the milliseconds between two reads

APPLY = """
-- KEYS: pointer, cursor, head, one hash per view. ARGV: generation, '1' if it is new, first_n, last_n, head; then per
-- view the number of fields to set and to delete, the fields with their values, the fields to delete.
local current = redis.call('GET', KEYS[1])
if (current or '') ~= (ARGV[2] == '1' and '' or ARGV[1]) then return {'moved', current or ''} end
local held = current and redis.call('GET', KEYS[2])
if current and not held then return {'gap', '0'} end
local cursor, first, last = tonumber(held or '0'), tonumber(ARGV[3]), tonumber(ARGV[4])
if cursor >= last then return {'ok', held or '0'} end
if cursor + 1 ~= first then return {'gap', held or '0'} end
local at = 6
local function each_slice(command, key, count)
  local stop = at + count
  while at < stop do  -- unpack takes a few thousand values at most
    local slice_end = math.min(at + 1000, stop)
    redis.call(command, key, unpack(ARGV, at, slice_end - 1))
    at = slice_end
  end
end
for view = 4, #KEYS do
  local sets, dels = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  at = at + 2
  each_slice('HSET', KEYS[view], 2 * sets)
  each_slice('HDEL', KEYS[view], dels)
end
redis.call('SET', KEYS[2], ARGV[4])
if ARGV[5] ~= '' then redis.call('SET', KEYS[3], ARGV[5]) end
if not current then redis.call('SET', KEYS[1], ARGV[1]) end
return {'ok', ARGV[4]}
"""

SWITCH = """
-- KEYS: pointer, the new cursor, the new head, the new hashes. ARGV: the generation that is replaced ('' for none), the
-- new one, its n, its head, the number of fields of each hash: another's sweep may have taken some of them away.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
for view = 4, #KEYS do
  if redis.call('HLEN', KEYS[view]) ~= tonumber(ARGV[view + 1]) then return 0 end
end
redis.call('SET', KEYS[2], ARGV[3])
if ARGV[4] ~= '' then redis.call('SET', KEYS[3], ARGV[4]) end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""

SWEEP = """
-- KEYS: pointer, names to drop. ARGV: what the names of a generation begin with. Atomic, so that a generation that is
-- switched to after it was listed stays.
local kept = ARGV[1] .. (redis.call('GET', KEYS[1]) or '') .. ':'
for name = 2, #KEYS do
  if string.sub(KEYS[name], 1, #kept) ~= kept then redis.call('UNLINK', KEYS[name]) end
end
"""

P = ParamSpec("P")
T = TypeVar("T")


def _transient(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Turn errors of Redis or the connection into Transient, full memory among them; a refusal of us into Denied."""

    @wraps(call)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await call(*args, **kwargs)
        except (AuthenticationError, NoPermissionError) as error:
            raise Denied(f"Redis refuses us: {error}") from error
        except (RedisError, OSError, TimeoutError) as error:
            raise Transient(f"Redis: {error or type(error).__name__}") from error

    return guarded


class RedisStore:
    """`new_generation` gives names that are used only once, so that a builder that slept writes to nobody's."""

    def __init__(
        self,
        url: str,
        user: str,
        password: str,
        shard: str,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        new_generation: Callable[[], str] = ids.transaction_id,
    ) -> None:
        self._redis = Redis.from_url(
            url,
            username=user or None,
            password=password or None,
            protocol=2,  # HELLO is in no identity's allow-list
            driver_info=None,  # CLIENT SETINFO neither: Redis 7.0 refuses an ACL file that names it
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
            socket_connect_timeout=None,  # redis-py's deadlines do not look at the socket
            socket_timeout=None,
            retry=Retry(NoBackoff(), 1),  # a pooled connection may have died; every command here may be repeated
        )
        self._shard, self._new_generation, self._answer_seconds = shard, new_generation, answer_seconds
        self._pointer = keys.current(shard)
        self._generation = ""
        self._loaded: dict[str, str] = {}  # script to the SHA that Redis knows it by

    async def close(self) -> None:
        """Close the pooled connections."""
        await self._redis.aclose()

    @_transient
    async def cursor(self) -> int:
        """One MULTI of pointer and cursor. Raises Transient when Redis does not answer in time."""
        (held,) = await self._read(lambda generation: [("GET", keys.cursor(self._shard, generation))])
        return int(held or 0)

    @_transient
    async def head(self) -> Head | None:
        """One MULTI of pointer and head. Raises Transient; ValueError for what is no head."""
        (held,) = await self._read(lambda generation: [("GET", keys.head(self._shard, generation))])
        return Head.parse(held.decode()) if held else None

    @_transient
    async def stored_bytes(self) -> tuple[int, int]:
        """Bytes in Redis' memory, other shards' views among them, and the limit (0 without one)."""
        found = await self._redis.info("memory")
        return int(found["used_memory"]), int(found["maxmemory"])

    @_transient
    async def apply(self, first_n: int, last_n: int, changes: Sequence[Change], chain: str = "") -> int:
        """One script, tried again when the generation moved meanwhile; Transient after five such moves."""
        fields = _fields(changes)
        for _ in range(READ_ATTEMPTS):
            fresh = not self._generation
            generation = self._generation or self._new_generation()
            header = (generation, "1" if fresh else "0", first_n, last_n, _head(last_n, chain))
            verdict, applied = await self._run(APPLY, self._keys(generation), *header, *fields)
            if verdict == b"moved":
                self._generation = applied.decode()
                continue
            if verdict == b"gap":
                raise Conflict(f"the views hold up to {int(applied)}, the changes are of {first_n}..{last_n}")
            if not fresh or int(applied):
                self._generation = generation
            return int(applied)
        raise Transient("Redis: the generation moves faster than changes are applied")

    @_transient
    async def replace(self, n: int, changes: Sequence[Change], chain: str = "") -> None:
        """Raises Conflict when another generation was switched to meanwhile."""
        replaced = (await self._command("GET", self._pointer) or b"").decode()
        built = self._new_generation()
        counts = await self._fill(built, changes)
        switched = await self._run(SWITCH, self._keys(built), replaced, built, n, _head(n, chain), *counts)
        self._generation = built if switched else ""
        with suppress(RedisError, OSError, TimeoutError):  # the next one sweeps again
            await self._sweep()
        if not switched:
            raise Conflict("another generation was switched to, or swept this one away, while it was built")

    @_transient
    async def fields_as_of(self, *fields: tuple[str, str]) -> tuple[int, list[bytes | None]]:
        """One MULTI of pointer, cursor and fields. Raises Transient."""
        shard = self._shard
        held, *found = await self._read(
            lambda generation: [
                ("GET", keys.cursor(shard, generation)),
                *(("HGET", keys.view(shard, generation, view), key) for view, key in fields),
            ]
        )
        return int(held or 0), [value if value is None else bytes(value) for value in found]

    @_transient
    async def rows_as_of(self, *views: str) -> tuple[int, list[dict[str, bytes]]]:
        """One MULTI of pointer, cursor and whole hashes. Raises Transient."""
        shard = self._shard
        held, *found = await self._read(
            lambda generation: [
                ("GET", keys.cursor(shard, generation)),
                *(("HGETALL", keys.view(shard, generation, view)) for view in views),
            ]
        )
        return int(held or 0), [_text_keys(rows) for rows in found]

    @_transient
    async def digest(self) -> str:
        """Read every view whole in one MULTI, then hash here. Raises Transient."""
        found = await self._read(
            lambda generation: [("HGETALL", keys.view(self._shard, generation, view)) for view in VIEWS]
        )
        return views_digest({view: _text_keys(rows) for view, rows in zip(VIEWS, found, strict=True)})

    @_transient
    async def put_quotes(self, value: bytes) -> None:
        """One SET. Raises Transient."""
        await self._command("SET", keys.quotes(self._shard), value)

    @_transient
    async def quotes(self) -> bytes | None:
        """One GET. Raises Transient."""
        found = await self._command("GET", keys.quotes(self._shard))
        return None if found is None else bytes(found)

    def _keys(self, generation: str) -> list[str]:
        views = [keys.view(self._shard, generation, view) for view in HASHES]
        return [self._pointer, *(name(self._shard, generation) for name in (keys.cursor, keys.head)), *views]

    async def _read(self, commands: Callable[[str], list[tuple[str, ...]]]) -> list[Any]:
        """Read `commands` in the current generation, all at one moment."""
        for _ in range(READ_ATTEMPTS):
            async with self._redis.pipeline(transaction=True) as trip:
                trip.execute_command("GET", self._pointer)
                for command in commands(self._generation):
                    trip.execute_command(*command)
                pointer, *answers = await self._in_time(trip.execute())
            # Without a generation the names lead nowhere: the answers are empty, as they should be.
            current = (pointer or b"").decode()
            if current == self._generation:
                return answers
            self._generation = current
        raise Transient("Redis: the generation moves faster than it is read")

    async def _run(self, script: str, names: Sequence[str], *args: object) -> Any:
        """A script by its SHA; loaded first, and again after Redis was restarted."""
        for _ in range(2):
            if script not in self._loaded:
                self._loaded[script] = await self._command("SCRIPT LOAD", script)
            try:
                return await self._command("EVALSHA", self._loaded[script], len(names), *names, *args)
            except NoScriptError:
                del self._loaded[script]
        raise Transient("Redis: forgets scripts as soon as they are loaded")

    async def _command(self, *parts: object) -> Any:
        return await self._in_time(self._redis.execute_command(*parts))  # type: ignore[no-untyped-call]

    async def _in_time(self, answer: Awaitable[T]) -> T:
        """Raises TimeoutError; redis-py then gives the connection up, and with it the late answer."""
        async with time_limit(self._answer_seconds):
            return await answer

    async def _fill(self, generation: str, changes: Sequence[Change]) -> list[int]:
        """
        Writes the changes in trips of a bounded size, so that Redis serves others in between; returns each view's field
        count.
        """
        views = {view: {c.key: c.value for c in changes if c.view == view and c.value is not None} for view in HASHES}
        chunks = ((view, chunk) for view, rows in views.items() for chunk in _chunks(rows))
        while batch := list(islice(chunks, CHUNKS_PER_TRIP)):
            async with self._redis.pipeline(transaction=False) as trip:
                for view, flat in batch:
                    trip.execute_command("HSET", keys.view(self._shard, generation, view), *flat)
                await self._in_time(trip.execute())
        return [len(rows) for rows in views.values()]

    async def _sweep(self) -> None:
        """
        Drop every generation but the current one: the replaced one, and what builders that died left behind.

        One that somebody else is building may go too: its switch counts the fields and fails.
        """
        listed: list[Any] = []
        async with time_limit(self._answer_seconds):
            listed += [name async for name in self._redis.scan_iter(match=keys.pattern(self._shard))]
        kept = self._pointer, keys.quotes(self._shard)
        names = [name for name in (found.decode() for found in listed) if name not in kept]
        if names:
            await self._run(SWEEP, [self._pointer, *names], self._pointer.removesuffix("current"))


def _head(n: int, chain: str) -> str:
    return str(Head(n, chain)) if chain else ""


def _fields(changes: Sequence[Change]) -> list[object]:
    """The changes as the script takes them; the last one of a field counts."""
    last: dict[str, dict[str, bytes | None]] = {view: {} for view in HASHES}
    for change in changes:
        last[change.view][change.key] = change.value
    flat: list[object] = []
    for rows in last.values():
        gone = [key for key, value in rows.items() if value is None]
        flat += (len(rows) - len(gone), len(gone))
        flat += (part for key, value in rows.items() if value is not None for part in (key, value))
        flat += gone
    return flat


def _chunks(rows: Mapping[str, bytes]) -> Iterator[list[str | bytes]]:
    entries = iter(rows.items())
    while chunk := list(islice(entries, CHUNK_FIELDS)):
        yield [part for entry in chunk for part in entry]


def _text_keys(found: Any) -> dict[str, bytes]:
    """Redis answers HGETALL with a mapping, or inside MULTI with keys and values in turn."""
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    return {key.decode(): bytes(value) for key, value in pairs}
