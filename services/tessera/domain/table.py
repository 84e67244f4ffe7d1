"""
The index that holds frozen entities: owned by the fold and changed in place, or a copy-on-write overlay of one.

An overlay is the snapshot on which decisions are tried: what is put there is seen there and nowhere else, and
throwing it away undoes everything. The base must not change while an overlay of it is in use.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")


class Table(Generic[V]):
    """
    Entities by key; remembers which keys were written since the last hash.

    Iteration follows insertion, which differs between a folded and a restored state: whoever decides by it sorts.
    """

    __slots__ = ("_rows", "get", "written")

    get: Callable[[str], V | None]
    """Row of the key, or None. The dictionary's own, since a record asks some fifty times: no table may be copied."""

    def __init__(self) -> None:
        self._rows: dict[str, V] = {}
        self.get = self._rows.get
        self.written: dict[str, None] = {}

    def getter(self) -> Callable[[str], V | None]:
        """As `get`, for many keys of one table that rests meanwhile."""
        return self._rows.get

    def found(self, keys: Iterable[str]) -> list[V]:
        """The rows of those `keys` that are there, in their order; for many of them this is faster than `get`."""
        return [row for row in map(self._rows.get, keys) if row is not None]

    def put(self, key: str, row: V) -> None:
        """Stores a row and notes its key as written."""
        self._rows[key] = row
        self.written[key] = None

    def put_all(self, rows: Sequence[V], key: str) -> list[str]:
        """Stores rows under what each has in the field `key`; returns these keys."""
        by_key = {getattr(row, key): row for row in rows}
        self._rows.update(by_key)
        self.written.update(dict.fromkeys(by_key))
        return list(by_key)

    def drop(self, key: str) -> None:
        """Removes the row of the key, if there is one, and notes the key as written."""
        self._rows.pop(key, None)
        self.written[key] = None

    def items(self) -> Iterator[tuple[str, V]]:
        """Pairs of key and row, in the order of insertion."""
        return iter(self._all().items())

    def values(self) -> Iterator[V]:
        """Rows in the order of insertion."""
        return iter(self._all().values())

    @property
    def tried(self) -> tuple[str, ...]:
        """Keys that overlays have written, and that no index knows of; none in a table that is no overlay."""
        return ()

    def _all(self) -> dict[str, V]:
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def overlay(self) -> "Table[V]":
        """Makes a table on top of this one, which must not change while the new one is in use."""
        return Overlay(self)


class Overlay(Table[V]):
    """A table on top of another that it never changes."""

    __slots__ = ("_below", "_get_below")

    def __init__(self, below: Table[V]) -> None:
        self._rows, self.written = {}, {}
        self._below = below
        self._get_below = below._rows.get if type(below) is Table else below.get

    def get(self, key: str) -> V | None:
        """Row of the key as written here, else as the table below has it; None where neither has one."""
        # A written key without a row was dropped here.
        return self._rows.get(key) if key in self.written else self._get_below(key)

    def getter(self) -> Callable[[str], V | None]:
        """As `get`: the rows of the table below are rows of this one."""
        return self.get

    def found(self, keys: Iterable[str]) -> list[V]:
        """Rows of the keys that have one, in the order of the keys."""
        here, below, written = self._rows.get, self._get_below, self.written
        rows = [here(key) if key in written else below(key) for key in keys]
        return [row for row in rows if row is not None]

    @property
    def tried(self) -> tuple[str, ...]:
        """Keys written here, and in overlays below."""
        return (*self._below.tried, *self.written)

    def _all(self) -> dict[str, V]:
        """A copy: that costs a tenth of handing out row by row what was not written here."""
        rows = dict(self._below._all())
        rows.update(self._rows)
        for key in self.written.keys() - self._rows.keys():
            rows.pop(key, None)
        return rows

    def __len__(self) -> int:
        hidden = sum(1 for key in self.written if self._get_below(key) is not None)
        return len(self._below) - hidden + len(self._rows)
