"""
The clock of starts: it runs only while a binder acts and facts flow, as far as this committer looked.

A run that has not started by its deadline is stopped. That it has not started is known only from a binder that can see
pods, whose facts are read, by a committer that was not paused and can write. After any gap in that each run has its
whole time again. The clock begins with the epoch, and is our own: a wall clock that jumps is a gap, too.
"""

from tessera.domain.state import State
from tessera.kernel.messaging.facts import newest_fact
from tessera.kernel.ports import Message
from tessera.kernel.process.leases import LEADER, says_it_acts
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.freshness import GAP_SECONDS, Freshness
from tessera_schemas import subjects


class StartClock:
    """`look` is called every second; `since` whenever a message is decided."""

    def __init__(self, ports: Ports, shard: str, state: State, lease_seconds: float) -> None:
        self._ports, self._shard, self._state, self._lease_seconds = ports, shard, state, lease_seconds
        self.fresh = Freshness(ports.clock, max(GAP_SECONDS, 2 * lease_seconds))
        self._changed: dict[str, tuple[int, float]] = {}  # a binder's lease: its sequence, and when it changed
        self._newest = 0
        self._before: tuple[int, float] | None = None
        self._since = 0

    async def look(self) -> bool:
        """Whether binders act, what they said a look ago is taken in, and the ledger answers. Raises Transient."""
        bus, clock = self._ports.bus, self._ports.clock
        leases = await bus.last_all(subjects.stream("LEASES", self._shard), subjects.lease(self._shard, "binder", "*"))
        taken_in = self._state.facts_upto >= self._newest
        self._newest = await newest_fact(bus, self._shard)
        await self._ports.ledger.first()  # that it answers is all: its tail would be unpacked for nothing
        return taken_in and self._binders_act(leases, clock.monotonic())

    def _binders_act(self, leases: list[Message], now: float) -> bool:
        """Whether a binder is alive, and every one that is can do its work: the runs that wait are of any of them."""
        changed, leader = {}, subjects.lease(self._shard, "binder", LEADER)
        for lease in leases:
            seq, at = self._changed.get(lease.subject, (lease.seq, now - self._lease_seconds))
            changed[lease.subject] = (seq, at) if lease.seq == seq else (lease.seq, now)
        self._changed = changed
        alive = [lease for lease in leases if now - changed[lease.subject][1] < self._lease_seconds]
        working = [lease for lease in alive if lease.subject != leader and b'"holder":""' not in lease.data]
        return bool(working) and all(says_it_acts(lease) for lease in working)

    def since(self, ts: int) -> int:
        """Ledger time, in milliseconds, since which starts were watched without a gap; `ts` is now."""
        now = self._ports.clock.monotonic()
        if self._before is not None:
            ts_before, at = self._before
            if abs((ts - ts_before) / 1000 - (now - at)) > GAP_SECONDS:
                self.fresh.lost()
        self._before = ts, now
        # Never earlier than what was said before: both clocks are rounded, and a run would lack a millisecond.
        self._since = max(self._since, ts - int(self.fresh.seconds(0.0) * 1000))
        return self._since
