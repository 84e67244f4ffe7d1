"""
Which ledger formats the live instances of a shard know, so that none of them meets one that it does not.

Each instance says it with its probes (`StoreProbe`). One that holds a lease and has not said it is of an earlier
version. As with leases, no clock is compared with another: who has not been heard of for a while is gone.
"""

from contextlib import suppress

import orjson

from tessera.kernel.errors import KernelError
from tessera.kernel.ports import Bus, Clock, Message
from tessera.kernel.process.leases import LEADER
from tessera.kernel.process.store_probe import PROBE, PROBE_SECONDS
from tessera_schemas import subjects

SILENT_SECONDS = 2.5 * PROBE_SECONDS


class KnownFormats:
    """View of the instance `observer`, as of its last `look`; it knows about itself without looking."""

    def __init__(self, bus: Bus, clock: Clock, shard: str, observer: str, lease_seconds: float) -> None:
        self._bus, self._clock, self._observer, self._lease_seconds = bus, clock, observer, lease_seconds
        self._stream, self._everybody = subjects.stream("LEASES", shard), f"lease.{shard}.>"
        self._changed: dict[str, tuple[int, float]] = {}  # subject: (sequence, own monotonic time of its last change)
        self._messages: list[Message] = []
        self._looked = False

    async def look(self) -> None:
        """Read what everybody says; while the bus is away the view stays as it was."""
        with suppress(KernelError):
            self._messages = await self._bus.last_all(self._stream, self._everybody)
            now, before = self._clock.monotonic(), self._changed
            changed = {}
            for message in self._messages:
                known = before.get(message.subject)
                changed[message.subject] = known if known and known[0] == message.seq else (message.seq, now)
            self._changed, self._looked = changed, True

    def behind(self, ledger_format: int) -> list[str] | None:
        """Live instances that do not know the format, by name; None before the first look."""
        if not self._looked:
            return None
        said, live = dict[str, int](), set[str]()
        for message in self._messages:
            name = message.subject.split(".", 3)[3]
            is_probe = name.startswith(f"{PROBE}.")
            instance = name.removeprefix(f"{PROBE}.") if is_probe else _field(message, "holder")
            if is_probe:
                said[str(instance)] = int(_field(message, "format") or 0)
            gone = is_probe and not said[str(instance)]
            if instance and not gone and self._is_heard(message, SILENT_SECONDS if is_probe else self._lease_seconds):
                live.add(str(instance))
        return sorted(one for one in live - {self._observer} if said.get(one, 0) < ledger_format)

    def _is_heard(self, message: Message, seconds: float) -> bool:
        _, at = self._changed[message.subject]
        return self._clock.monotonic() - at < seconds


async def committer_format(bus: Bus, shard: str) -> int | None:
    """
    The ledger format that the leading scheduler knows, as it said last; None where none says so. Raises KernelError.
    """
    messages = await bus.last_all(subjects.stream("LEASES", shard), subjects.lease(shard, "scheduler", ">"))
    said = {message.subject: message for message in messages}
    leader = said.get(subjects.lease(shard, "scheduler", LEADER))
    probe = leader and said.get(f"{subjects.lease(shard, 'scheduler', PROBE)}.{_field(leader, 'holder')}")
    known = probe and _field(probe, "format")
    return known if isinstance(known, int) else None


def _field(message: Message, name: str) -> str | int | None:
    """A field of a lease or a probe; None of bytes that no instance writes."""
    try:
        found: str | int | None = orjson.loads(message.data).get(name)
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return found
