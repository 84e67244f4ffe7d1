"""
Outages of what collecting needs, the cluster or the store: one look for all who wait, and one line for all their runs.

A gateway without a cluster is in one for ever.
"""

import asyncio

import structlog

from tessera.gateway.stored_logs.bounds import read_used
from tessera.gateway.stored_logs.stores import LogStore
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera.kernel.tasks.waiting import spread

FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.5, 30.0

log = structlog.get_logger()


class LogOutage:
    """Whether what logs are read from and written to answers at all; of a single node it says nothing."""

    def __init__(self, cluster: Cluster, store: LogStore, shard: str, clock: Clock) -> None:
        self._cluster, self._store, self._shard, self._clock = cluster, store, shard, clock
        self.looking = asyncio.Lock()
        self._looks, self._was = 0, False

    async def outlast(self) -> bool:
        """Called by whoever failed: whether that was an outage, once it is over."""
        looks = self._looks
        async with self.looking:
            if looks == self._looks:  # else somebody looked while we waited
                self._was = await self._look()
                self._looks += 1
        return self._was

    async def _look(self) -> bool:
        failures = 0
        while (error := await self._trouble()) is not None:
            if not failures:
                log.warning("logs_not_collected_for_now", error=str(error))
            failures += 1
            wait = min(FIRST_LOOK_SECONDS * 2 ** min(failures - 1, 16), LONGEST_LOOK_SECONDS)
            await self._clock.sleep(spread(wait, "logs", failures))
        if failures:
            log.info("logs_collected_again")
        return failures > 0

    async def _trouble(self) -> Transient | ApiError | None:
        try:
            await read_used(self._store, self._shard)
            await self._cluster.may("", "get", "pods/log")
        except Transient as error:
            return error
        except ApiError as error:
            if error.status == 401 or error.status >= 500:  # nobody knows us, or it answers for a server that is away
                return error
        return None
