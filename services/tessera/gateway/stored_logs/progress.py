"""Progress of collecting the logs of ended runs, kept beside them for the gateway that collects next."""

import structlog

from tessera.gateway.stored_logs.stores import LogStore
from tessera.kernel.errors import Transient

KEY = "{shard}/.collected-until"
# No tenant's name begins with a dot.

log = structlog.get_logger()


class Progress:
    """
    Runs that are named and not collected yet, and the time up to which nothing is left to do.

    Times are the ledger's, in milliseconds since the Unix epoch.
    """

    def __init__(self, store: LogStore, shard: str) -> None:
        self._store, self._key = store, KEY.format(shard=shard)
        self._named: dict[str, tuple[int, int]] = {}
        self._written = 0

    def __len__(self) -> int:
        return len(self._named)

    async def begin(self, now_ts: int) -> int:
        """Begin with no run named. The time that was written last, 0 for none, or one that the ledger is not at yet."""
        self._named.clear()
        try:
            written = await self._store.get(self._key)
        except Transient as error:
            log.warning("log_progress_not_read", error=str(error))
            return 0
        until = int(written) if written is not None and written.isdigit() else 0
        self._written = until if until <= now_ts else 0
        return self._written

    def named(self, run: str, n: int, ts: int) -> None:
        """Ledger message `n` of time `ts` makes a run's logs due."""
        self._named[run] = n, ts

    def collected(self, run: str, n: int) -> None:
        """Take a run off whose logs that were due at ledger message `n` are done with."""
        if run in self._named and self._named[run][0] <= n:
            del self._named[run]

    async def write(self, ts: int) -> None:
        """Store the time up to which all is collected, `ts` at most; a store that is away gets it later."""
        until = min((named_ts for _, named_ts in self._named.values()), default=ts)
        if until <= self._written:
            return
        try:
            await self._store.put(self._key, b"%d" % until)
            self._written = until
        except Transient as error:
            log.info("log_progress_not_written", error=str(error))
