"""
Evidence by the ledger on the words of streams that are derived from it: whoever may write these may write false ones.

A cursor in a header, or in the manifest of a snapshot, is believed as far as the ledger gives the same public events.
What was rolled over had been published: nobody asks for it.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

import structlog

from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ledger.snapshots import NEWEST, OPENING, Snapshot, snapshots_of
from tessera.kernel.ports import Bus, Ledger, Message
from tessera.projection.events import START, Cursor, cursors_of
from tessera_schemas.events import CURSOR_HEADER

WINDOW = 257  # stored events held against the ledger at a start: more than a batch, which may be stored with a hole
SPAN_MAX = 20_000  # ledger messages that are read for it; a restart folds about as many

log = structlog.get_logger()


async def newest_published(bus: Bus, ledger: Ledger, shard: str, published: Cursor) -> Snapshot | None:
    """The newest snapshot, or else opening, up to which the ledger gives no event behind `published`, as both say."""
    for series in (NEWEST, OPENING):
        async for found in snapshots_of(bus, ledger, shard, lambda m: Cursor.parse(m.last_event) <= published, series):
            if await first_due(ledger, published, found.state.n) is None:
                return found
            log.error("snapshot_is_false", n=found.state.n, last_event=found.manifest.last_event)
    return None


async def first_due(ledger: Ledger, after: Cursor, upto: int) -> Cursor | None:
    """The first public event behind `after` that ledger messages up to `upto` give."""
    async with aclosing(_due(ledger, max(after.n, await ledger.first()), upto)) as due:
        return await anext((cursor async for cursor in due if cursor > after), None)


async def _due(ledger: Ledger, first: int, upto: int) -> AsyncGenerator[Cursor, None]:
    n, source = first - 1, ledger.follow(first - 1)
    try:
        while n < upto:
            for message in await source.next():
                n = message.seq
                for cursor in cursors_of(decode_entry(message).message) if n <= upto else ():
                    yield cursor
    finally:
        await source.close()


async def end_of_events(bus: Bus, ledger: Ledger, stream: str, newest: Message) -> Cursor:
    """
    The event up to which the stream has all that the ledger gives, as far as its newest events show.

    What stands behind it is false, or came before its turn: it is told, and what is due published behind.
    """
    stored = await read_events(bus, stream, max(newest.seq - WINDOW, (await bus.usage(stream)).first_seq - 1), newest)
    head = tail.seq if (tail := await ledger.tail()) is not None else 0
    lowest = max(await ledger.first(), head - SPAN_MAX)
    said = [cursor for cursor in map(cursor_of, stored) if cursor.n <= head]
    begin = min((cursor.n for cursor in said if cursor.n >= lowest), default=head + 1)
    due = [cursor async for cursor in _due(ledger, begin, head)]
    if (end := min(set(due) & set(said), default=None)) is None:  # all are older than what is read here
        return max(said, default=START)
    at = [cursor_of(message) for message in stored].index(end)
    return in_turn(stream, stored[at + 1 :], due[due.index(end) + 1 :], end)[0]


def in_turn(stream: str, stored: Sequence[Message], due: Iterable[Cursor], end: Cursor) -> tuple[Cursor, int]:
    """
    The last of the `due` events behind `end` that are stored one after the other, and up to where `stored` was judged.

    Others are told, and passed over; what is behind all that is due may be true.
    """
    turn, seq = iter(due), 0
    wanted = next(turn, None)
    for message in stored:
        cursor = cursor_of(message)
        if wanted is None and cursor > end:
            break
        if cursor == wanted:
            end, wanted = cursor, next(turn, None)
        else:
            log.error("event_is_false", stream=stream, cursor=str(cursor), seq=message.seq)
        seq = message.seq
    return end, seq


async def read_events(bus: Bus, stream: str, after: int, newest: Message) -> list[Message]:
    """Stored events behind sequence `after` up to the newest."""
    found = [await bus.get(stream, seq) for seq in range(after + 1, newest.seq)]
    return [message for message in (*found, newest) if message is not None]


def cursor_of(message: Message) -> Cursor:
    """Cursor of a stored event; START where none can be read."""
    try:
        return Cursor.parse(message.headers[CURSOR_HEADER])
    except (KeyError, ValueError):
        return START
