"""
Whether NATS stores what it is given, which ledger format this instance knows, and what of it is not well.

A server whose disk is full stays connected and answers reads, so that only a write tells. It stays so when there is
room again, until it is started anew (docs/operations.md).
"""

from contextlib import suppress

import orjson
import structlog

from tessera.kernel.errors import KernelError
from tessera.kernel.ports import Outgoing
from tessera.kernel.service.context import Ports
from tessera_schemas import subjects
from tessera_schemas.ledger import FORMAT

PROBE, PROBE_SECONDS, CHANGE_SECONDS = "probe", 5.0, 0.5
TEXT_MAX = 300  # characters of the words of one check

log = structlog.get_logger()


class StoreProbe:
    """
    Writes one small message over and over, beside the leases; `trouble` says why it could not be stored.

    The message says which format of the ledger the instance knows, so that no newer one is used before all know it, and
    whether it leads and which checks of its `/readyz` fail, for `tessera status`.
    """

    def __init__(self, ports: Ports, shard: str, service: str) -> None:
        self._ports = ports
        self._subject = f"{subjects.lease(shard, service, PROBE)}.{ports.instance}"  # no replica is called so
        self.trouble: str | None = None

    async def watch(self) -> None:
        """Probe every five seconds and when the verdict changes, until cancelled; then say that we are gone."""
        clock = self._ports.clock
        try:
            while True:
                said, until = self._judged(), clock.monotonic() + PROBE_SECONDS
                await self.probe()
                await clock.sleep(CHANGE_SECONDS)
                while clock.monotonic() < until and self._judged() == said:
                    await clock.sleep(CHANGE_SECONDS)
        finally:
            with suppress(KernelError):
                await self._ports.bus.publish(Outgoing(self._subject, b"{}"))

    async def probe(self) -> None:
        """Store one message, or note why it was not stored."""
        try:
            await self._ports.bus.publish(Outgoing(self._subject, self._format_probe()))
        except KernelError as error:
            if self.trouble is None:
                log.error("nats_does_not_store", error=str(error))
            self.trouble = f"NATS does not store: {error}; is its disk full? free it, then restart nats-server"
        else:
            self.trouble = None

    def _format_probe(self) -> bytes:
        return orjson.dumps({"format": FORMAT, "leads": self._ports.metrics.leads, "unwell": self._unwell()})

    def _unwell(self) -> dict[str, str]:
        texts = self._ports.health.readiness()
        return {name: text[:TEXT_MAX] for name, text in texts.items() if text != "ok"}

    def _judged(self) -> tuple[bool, frozenset[str]]:
        """The verdict without its words, in which seconds may run."""
        return self._ports.metrics.leads, frozenset(self._unwell())


def read_probe(probe: bytes) -> tuple[bool, dict[str, str]] | None:
    """
    Whether an instance led when it wrote this, and its checks that failed; one of an earlier version says neither.

    None of one that is gone.
    """
    try:
        found = orjson.loads(probe)
        unwell = {str(name): str(text) for name, text in found.get("unwell", {}).items()}
        return (found.get("leads") is True, unwell) if found else None
    except (orjson.JSONDecodeError, AttributeError):
        return None
