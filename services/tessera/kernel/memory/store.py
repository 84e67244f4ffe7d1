"""
The ProjectionStore port in memory, with a place where a simulator can break things.

Same meaning as over Redis, held by the same contract tests. `MemoryViews` is what the services share; each has a
`MemoryStore` of its own on it, so that Redis may be away for one of them only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tessera.kernel.errors import Conflict
from tessera.kernel.ports import Change, Clock
from tessera.kernel.redis.views_digest import views_digest
from tessera_schemas.shard.keys import HASHES
from tessera_schemas.shard.ledger_form import Head


class StoreFaults(Protocol):
    """
    Hooks by which a simulator disturbs one service's calls; both may raise Transient or just wait.

    Raising in `before`: nothing has happened. Raising in `after`: it has happened and the caller does not know. A
    `replace` also passes through `before("switch")`, with the new generation built and the old one still read.
    """

    async def before(self, op: str) -> None:
        """Hook ahead of the effect of operation `op`; an error raised here keeps the effect from happening."""

    async def after(self, op: str) -> None:
        """Hook behind the effect of operation `op`; an error raised here hides the effect from the caller."""


@dataclass(slots=True)
class Generation:
    """One whole build of the views."""

    cursor: int = 0
    head: Head | None = None
    views: dict[str, dict[str, bytes]] = field(default_factory=lambda: {name: {} for name in HASHES})

    def put(self, changes: Sequence[Change]) -> None:
        """Set and delete fields in the order given; the cursor stays."""
        for change in changes:
            if change.value is None:
                self.views[change.view].pop(change.key, None)
            else:
                self.views[change.view][change.key] = change.value


class MemoryViews:
    """Content of Redis for one shard. A test wipes it, or keeps a `copy` and puts it back like an old replica."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.current: Generation | None = None
        self.quotes: bytes | None = None

    def wipe(self) -> None:
        """Lose everything, cursor and pointer too, as a Redis that comes back empty."""
        self.current = self.quotes = None

    def copy(self) -> Generation | None:
        """Current generation as an independent copy; None without one."""
        now = self.current
        return now and Generation(now.cursor, now.head, {name: dict(rows) for name, rows in now.views.items()})


class MemoryStore:
    def __init__(self, shared: MemoryViews, faults: StoreFaults | None = None) -> None:
        self.shared, self.faults = shared, faults

    async def cursor(self) -> int:
        """Cursor of the generation that all stores on the same views share."""
        await self._before("cursor")
        return self.shared.current.cursor if self.shared.current else 0

    async def head(self) -> Head | None:
        """Head of the shared generation."""
        await self._before("head")
        return self.shared.current.head if self.shared.current else None

    async def apply(self, first_n: int, last_n: int, changes: Sequence[Change], chain: str = "") -> int:
        """Change the shared generation in place; the first one comes to be here."""
        await self._before("apply")
        now = self.shared.current or Generation()
        if now.cursor < last_n:
            if now.cursor + 1 != first_n:
                raise Conflict(f"the views hold up to {now.cursor}, the changes are of {first_n}..{last_n}")
            now.put(changes)
            now.cursor, now.head = last_n, Head(last_n, chain) if chain else now.head
            self.shared.current = now
        await self._after("apply")
        return now.cursor

    async def replace(self, n: int, changes: Sequence[Change], chain: str = "") -> None:
        """Build, pass the hook "switch", then switch; Conflict when another generation came in between."""
        await self._before("replace")
        replaced = self.shared.current
        built = Generation(n, Head(n, chain) if chain else None)
        built.put(changes)
        await self._before("switch")
        if self.shared.current is not replaced:
            raise Conflict("another generation was switched to meanwhile")
        self.shared.current = built
        await self._after("replace")

    async def fields_as_of(self, *fields: tuple[str, str]) -> tuple[int, list[bytes | None]]:
        """Cursor and fields of the shared generation; passes the fault hook as one "get"."""
        n, found = await self.rows_as_of(*(view for view, _ in fields))
        return n, [rows.get(key) for rows, (_, key) in zip(found, fields, strict=True)]

    async def rows_as_of(self, *views: str) -> tuple[int, list[dict[str, bytes]]]:
        """Cursor and copies of the views; passes the fault hook as one "get". Raises KeyError for an unknown view."""
        await self._before("get")
        now = self.shared.current or Generation()
        return now.cursor, [dict(now.views[view]) for view in views]

    async def digest(self) -> str:
        """Digest of the shared views by the same function as over Redis."""
        await self._before("digest")
        return views_digest(self.shared.current.views if self.shared.current else {})

    async def put_quotes(self, value: bytes) -> None:
        """Keep the bytes for all stores on the same views."""
        await self._before("put_quotes")
        self.shared.quotes = value
        await self._after("put_quotes")

    async def quotes(self) -> bytes | None:
        """Bytes that any store on the same views has put."""
        await self._before("quotes")
        return self.shared.quotes

    async def close(self) -> None:
        """Close nothing; the real store has connections."""

    async def _before(self, op: str) -> None:
        await self.shared.clock.sleep(0)  # a real call always lets others run first
        if self.faults is not None:
            await self.faults.before(op)

    async def _after(self, op: str) -> None:
        if self.faults is not None:
            await self.faults.after(op)
