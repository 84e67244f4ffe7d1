"""Status of the shard, looked at once for all who ask in the same second."""

import asyncio

from tessera.kernel.ports import Clock
from tessera.kernel.process.shard_status import StatusReader, StatusTraces

FRESH_SECONDS = 1.0


class SharedStatus:
    def __init__(self, reader: StatusReader, clock: Clock) -> None:
        self._reader, self._clock = reader, clock
        self._seen: StatusTraces | None = None
        self._seen_at = 0.0
        self._looking = asyncio.Lock()

    async def seen(self) -> StatusTraces:
        """The last look, if it is fresh, else a new one."""
        async with self._looking:
            if self._seen is None or self._clock.monotonic() - self._seen_at >= FRESH_SECONDS:
                self._seen, self._seen_at = await self._reader.look(), self._clock.monotonic()
            return self._seen
