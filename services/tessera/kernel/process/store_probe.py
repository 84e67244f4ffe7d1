"""
Whether NATS stores what it is given.

One whose disk is full stays connected and answers reads, so that only a write tells. It stays so when there is room
again, until it is started anew (docs/operations.md).
"""

import structlog

from tessera.kernel.errors import KernelError
from tessera.kernel.ports import Outgoing
from tessera.kernel.service.context import Ports
from tessera_schemas import subjects

PROBE_SECONDS = 5.0

log = structlog.get_logger()


class StoreProbe:
    """Writes one small message over and over, beside the leases; `trouble` says why it could not be stored."""

    def __init__(self, ports: Ports, shard: str, service: str) -> None:
        self._ports = ports
        self._subject = f"{subjects.lease(shard, service, 'probe')}.store"  # no replica is called so
        self.trouble: str | None = None

    async def watch(self) -> None:
        """Probe every five seconds until cancelled."""
        while True:
            await self.probe()
            await self._ports.clock.sleep(PROBE_SECONDS)

    async def probe(self) -> None:
        """Store one message, or note why it was not stored."""
        try:
            await self._ports.bus.publish(Outgoing(self._subject, b"{}"))
        except KernelError as error:
            if self.trouble is None:
                log.error("nats_does_not_store", error=str(error))
            self.trouble = f"NATS does not store: {error}; is its disk full? free it, then restart nats-server"
        else:
            self.trouble = None
