"""
Books: one fold of a shard's ledger for all in a process who read along.

There is no task that folds. Whoever has nothing left to read takes the turn: it waits for messages, folds them and
leaves the entries to every reader. So the linger of one delays nobody else, and one alone does what it would do without
the others. What ends the books, a contradiction or a roll-over that they were behind, is raised to each reader: it
halts, or begins again from other books.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from weakref import WeakSet

from tessera.domain.state import State
from tessera.kernel.errors import InvariantViolation, KernelError, RolledOver
from tessera.kernel.ledger.shard import Entry, Shard, decode_entry
from tessera.kernel.ports import Follow, Ledger, Message

UNREAD_MAX = 4096  # entries that are kept for a reader who does not take them
DECODED_BYTES = 1 << 20  # of messages, decoded in one go; in memory they take ten times as much


class Unread:
    """Entries that were folded and that one reader has not taken; of those that are too many none is kept."""

    def __init__(self) -> None:
        self.entries, self.overran = list[Entry](), False

    @property
    def there(self) -> bool:
        """Whether `take` has something to give or to say."""
        return bool(self.entries) or self.overran

    def add(self, entries: list[Entry]) -> None:
        """Leave entries to the reader."""
        self.overran = self.overran or len(self.entries) >= UNREAD_MAX
        self.entries = [] if self.overran else self.entries + entries

    def take(self) -> list[Entry]:
        """All of them, in order. Raises KernelError where the reader left so many that some were not kept."""
        if self.overran:
            raise KernelError(f"{UNREAD_MAX} ledger messages were left unread: begin again from the state")
        entries, self.entries = self.entries, []
        return entries


class Books:
    """The fold of one shard; nobody else writes its state, which moves only while its readers wait."""

    def __init__(self, shard: Shard | None = None) -> None:
        self.shard, self.turn, self.in_pieces = shard or Shard(), asyncio.Lock(), False
        self.ended_by: KernelError | None = None
        self._readers = WeakSet[Unread]()  # a service that failed before it read keeps nothing
        self._pieces, self._source = deque[list[Message]](), list[Follow]()

    @property
    def state(self) -> State:
        """The shard as folded so far."""
        return self.shard.state

    def attach(self) -> Unread:
        """A place for everything that is folded from here on, for as long as somebody holds it."""
        self._readers.add(unread := Unread())
        return unread

    async def move(self, ledger: Ledger) -> None:
        """
        Fold the next piece and leave it to every reader; nothing where the source is closed meanwhile.

        Raises InvariantViolation and RolledOver to whoever asks from then on.
        """
        if self.ended_by is not None:
            raise self.ended_by
        try:
            await self._move(ledger)
        except (InvariantViolation, RolledOver) as error:
            self.ended_by = error
            raise

    async def _move(self, ledger: Ledger) -> None:
        if not self._pieces:
            self._source = self._source or [ledger.follow(self.state.n)]
            self._pieces.extend(_pieces(await self._source[0].next()))
            self.in_pieces = len(self._pieces) > 1
        if self._pieces:
            entries = [decode_entry(message) for message in self._pieces[0]]
            for entry in entries:
                self.shard.fold(entry)
            self._pieces.popleft()
            for reader in self._readers:
                reader.add(entries)

    async def close(self) -> None:
        """Close the source: whoever waits for it reads nothing, and the next turn opens another."""
        while self._source:
            await self._source.pop().close()


def _pieces(messages: list[Message]) -> Iterator[list[Message]]:
    """Parts of a batch that are decoded and held at once: a long tail of large messages would take all memory."""
    piece, size = list[Message](), 0
    for message in messages:
        piece.append(message)
        size += len(message.data)
        if size >= DECODED_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
