"""
Ended jobs, remembered so that their keys stay known for days: millions of them, of which hardly one is looked at again.

The newest are held as they are. Older ones are packed by `BLOCK`: their canonical bytes, compressed, and of each key
some 16 bytes of index that say in which block it is. A block is unpacked again, once, when the first of its jobs is to
be forgotten. Nobody sees the difference: what is packed is found, listed, hashed and dropped like the rest.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from heapq import heapify, heappop, heappush

from pydantic import TypeAdapter
from sortedcontainers import SortedList

from tessera.domain.entities import EndedJob
from tessera.domain.storing.canonical import encode
from tessera.domain.table import Table
from tessera.domain.work.key_index import KeyIndex
from tessera_schemas.work.arrays import FAMILY

BLOCK = 512
UNPACKED_MAX = 2048
"""Jobs that ended last: what still happens to their runs, and who asks for them, finds them here."""
_ROW = TypeAdapter(EndedJob)


class EndedJobs(Table[EndedJob]):
    """`gone` are the rows that the last hash counted and that are here no more; the hash holds no digest of each."""

    __slots__ = (
        "_blocks", "_cut_short", "_due_at", "_first_due", "_index", "_last_end", "_looked_at", "_next_block", "_now",
        "gone",
    )  # fmt: skip

    def __init__(self) -> None:
        self._rows, self.written = {}, {}
        self.gone: list[EndedJob] = []
        self._due_at: SortedList[tuple[int, str]] = SortedList()  # of the rows that are not packed
        self._blocks: dict[int, bytes] = {}
        self._first_due: SortedList[tuple[int, int]] = SortedList()  # of each block: its earliest, and its number
        self._last_end: dict[int, int] = {}  # of each block: when the last of its jobs ended
        self._looked_at = 0, b""  # the block of the last key that was looked for: the next one is often there, too
        self._index = KeyIndex()
        self._next_block = self._now = 0
        self._cut_short: dict[str, str] = {}  # by the beginning of the ids of an array's tasks

    def due(self, ts: int) -> list[str]:
        """The keys that may be forgotten at `ts`, the earliest first."""
        self._now = max(self._now, ts)
        while self._first_due and self._first_due[0][0] <= ts:
            self._unpack(self._first_due[0])
        if not self._due_at or self._due_at[0][0] > ts:  # as at nearly every message
            return []
        return [key for _, key in self._due_at.irange(maximum=(ts + 1,))]

    def get(self, key: str) -> EndedJob | None:
        """Row of the key, packed or not; None where there is none."""
        row = self._rows.get(key)
        if row is None and self._blocks:
            found = self._packed(key)
            return None if found is None else _ROW.validate_json(found[1])
        return row

    def found(self, keys: Iterable[str]) -> list[EndedJob]:
        """The rows of those `keys` that are there, in their order."""
        return [row for row in map(self.get, keys) if row is not None]

    def cut_short(self, task: str) -> str:
        """Id of the ended array, of those that never queued all their tasks, of which this could be a task's; or ""."""
        return self._cut_short.get(task[:FAMILY], "")

    def put(self, key: str, row: EndedJob) -> None:
        """Stores a row; the oldest ones are packed when there are many."""
        self._take_out(key)
        if row.array is not None and row.array.queued < row.array.count:  # each queued task has a row of its own
            self._cut_short[key[:FAMILY]] = key
        super().put(key, row)
        self._due_at.add((row.forget_ts, key))
        if len(self._rows) >= UNPACKED_MAX + BLOCK:
            self._pack()

    def put_all(self, rows: Sequence[EndedJob], key: str) -> list[str]:
        """Stores rows one after the other, since the oldest of them may have to be packed; returns their keys."""
        for row in rows:
            self.put(getattr(row, key), row)
        return [getattr(row, key) for row in rows]

    def drop(self, key: str) -> None:
        """Removes the row of the key, if there is one."""
        self._take_out(key)
        super().drop(key)
        if self.cut_short(key) == key:
            del self._cut_short[key[:FAMILY]]

    def items(self) -> Iterator[tuple[str, EndedJob]]:
        """Pairs of key and row: the packed ones first, as they came."""
        return ((row.job_id, row) for row in self.values())

    def values(self) -> Iterator[EndedJob]:
        """Rows, the packed ones first; one block at a time is unpacked for it."""
        for number in list(self._blocks):
            yield from self._rows_of(number)
        yield from self._rows.values()

    def newest_first(self) -> Iterator[EndedJob]:
        """
        Rows by their ends, the latest first. A block is unpacked for it once it may hold the next one.

        The places of rows do not say it: those of a block that was unpacked to forget one stand behind younger ones.
        """
        next_rows = [(-row.ended_ts, key, row) for key, row in self._rows.items()]
        heapify(next_rows)
        blocks = sorted((ended_ts, number) for number, ended_ts in self._last_end.items())
        while next_rows or blocks:
            while blocks and (not next_rows or blocks[-1][0] >= -next_rows[0][0]):
                for row in self._rows_of(blocks.pop()[1]):
                    heappush(next_rows, (-row.ended_ts, row.job_id, row))
            yield heappop(next_rows)[2]

    def _all(self) -> dict[str, EndedJob]:
        return dict(self.items())

    def __len__(self) -> int:
        return len(self._rows) + len(self._index)

    def _take_out(self, key: str) -> None:
        """The row that the key had is another's place now; the next hash takes it off if the last one counted it."""
        if key not in self._rows and self._blocks and (found := self._packed(key)) is not None:
            self._unpack(next(entry for entry in self._first_due if entry[1] == found[0]))
        old = self._rows.pop(key, None)
        if old is not None:
            self._due_at.remove((old.forget_ts, key))
            if key not in self.written:
                self.gone.append(old)

    def _pack(self) -> None:
        """
        Packs ended jobs; those that are due to be forgotten stay as they are, since a run of theirs is still held.
        """
        old = [key for key, row in self._rows.items() if row.forget_ts > self._now][:BLOCK]
        if len(old) < BLOCK:
            return
        rows = [self._rows.pop(key) for key in old]
        number = self._next_block = self._next_block + 1
        for row in rows:
            self._due_at.remove((row.forget_ts, row.job_id))
            self._index.add(_fingerprint(row.job_id), number)
        self._blocks[number] = zlib.compress(b"\n".join(map(encode, rows)))
        self._last_end[number] = max(row.ended_ts for row in rows)
        self._first_due.add((min(row.forget_ts for row in rows), number))

    def _unpack(self, entry: tuple[int, int]) -> None:
        self._first_due.remove(entry)
        rows = self._rows_of(entry[1])
        del self._blocks[entry[1]], self._last_end[entry[1]]
        for row in rows:
            self._index.remove(_fingerprint(row.job_id), entry[1])
            self._rows[row.job_id] = row
            self._due_at.add((row.forget_ts, row.job_id))

    def _rows_of(self, number: int) -> list[EndedJob]:
        return [_ROW.validate_json(line) for line in zlib.decompress(self._blocks[number]).split(b"\n")]

    def _packed(self, key: str) -> tuple[int, bytes] | None:
        """The block of a key and its row there. A row begins with its key; quotes inside of a text are escaped."""
        begin = b'{"job_id":"%s",' % key.encode()
        for number in self._index.find(_fingerprint(key)):
            if self._looked_at[0] != number:
                self._looked_at = number, zlib.decompress(self._blocks[number])
            data = self._looked_at[1]
            at = data.find(begin)
            if at >= 0:
                end = data.find(b"\n", at)
                return number, data[at : end if end >= 0 else len(data)]
        return None


def _fingerprint(key: str) -> int:
    """64 bits; two keys of one fingerprint only make a second block be looked at."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
