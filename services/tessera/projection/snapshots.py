"""Snapshots of the state, taken where the ledger has a checkpoint to trust them by."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from tessera.domain.state import State
from tessera.kernel.errors import KernelError
from tessera.kernel.ledger.snapshots import CHUNK_BYTES, chunks_of, store_snapshot
from tessera.kernel.service.context import Ports
from tessera.projection.events import Cursor
from tessera.projection.settings import ProjectionSettings

GROWTH_BYTES = 4 << 20
"""Bytes of ledger since the last snapshot below which time alone calls for another."""

SOONEST = 0.2
"""Part of the usual time that is between two snapshots however much comes."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SnapshotUnderWay:
    """A snapshot on its way."""

    n: int
    state_hash: str
    chain: str
    last_event: Cursor
    chunks: list[bytes]


class Snapshots:
    """
    One at a time: while one is on its way the next is not due. One that fails is left to the next checkpoint.

    Where the state was restored from one (`restored`), that one need not be taken again: much has to come first.
    `before` each one, what is to be found by whoever begins with it is stored.
    """

    def __init__(
        self,
        ports: Ports,
        settings: ProjectionSettings,
        before: Callable[[], Awaitable[None]],
        restored: bool = False,
    ) -> None:
        self._before = before
        self._ports, self._shard, self._every = ports, settings.shard, settings.snapshot_seconds
        self._next_at = ports.clock.monotonic() + (self._every * (1 - SOONEST) if restored else 0)
        self._folded_bytes = self._state_bytes = 0
        self._pictures: asyncio.Queue[SnapshotUnderWay] = asyncio.Queue(1)
        self._busy = False

    @property
    def due(self) -> bool:
        """
        Tells whether it is time for a snapshot, or much came since the last one, and none is on its way.

        Much is a sixteenth of what the last one had: so what a restart folds is bounded, and so is what snapshots cost.
        """
        now = self._ports.clock.monotonic()
        grown = self._folded_bytes >= max(GROWTH_BYTES, self._state_bytes // 16)
        soon = self._next_at - self._every * (1 - SOONEST)
        return not self._busy and (now >= self._next_at or (grown and now >= soon))

    def count(self, stored: bytes) -> None:
        """Take note of a ledger message that was folded."""
        self._folded_bytes += len(stored)

    async def take(self, state: State, state_hash: str, last_event: Cursor) -> None:
        """Copy the state, which must rest meanwhile; it is sent by `run`."""
        self._busy = True
        self._folded_bytes, chunks = 0, list[bytes]()
        for chunk in chunks_of(state):
            chunks.append(chunk)
            await self._ports.clock.sleep(0)
        self._state_bytes = len(chunks) * CHUNK_BYTES
        await self._pictures.put(SnapshotUnderWay(state.n, state_hash, state.chain, last_event, chunks))

    async def run(self) -> None:
        """Stores snapshots as they are taken, one after the other, for ever; one that fails is logged and left out."""
        while True:
            picture = await self._pictures.get()
            last_event = str(picture.last_event) if picture.last_event.n else ""
            try:
                await self._before()
                await store_snapshot(
                    self._ports.bus, self._shard, picture.chunks, picture.n, picture.state_hash, last_event
                )
                self._next_at = self._ports.clock.monotonic() + self._every
                # Logs are kept elsewhere than the ledger, so that its head can be held against them later.
                head = f"{picture.n}:{picture.chain}"
                log.info("snapshot_stored", n=picture.n, chunks=len(picture.chunks), ledger_head=head)
            except KernelError as error:
                log.warning("snapshot_not_stored", n=picture.n, error=str(error))
            finally:
                self._busy = False
