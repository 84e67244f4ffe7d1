"""
Windows of time in which nodes are kept by bookings, by node. Pure.

Kept beside the state, which has them by booking: an account asks of one node after the other.
"""

from collections import defaultdict
from collections.abc import Collection

from tessera.domain.quota.bookings import Booking, WindowTimes


class WindowsOfNodes:
    """Bookings as they were put last. Of a whole pool windows are known by the pool: nodes come and go."""

    def __init__(self) -> None:
        self._bookings: dict[str, Booking] = {}
        self._by_node: defaultdict[str, dict[str, Booking]] = defaultdict(dict)
        self._by_pool: defaultdict[str, dict[str, Booking]] = defaultdict(dict)

    def put(self, name: str, now: Booking | None) -> tuple[frozenset[str], frozenset[str]]:
        """The booking in place of that of before; returns names of nodes and of whole pools that either keeps."""
        before = self._bookings.pop(name, None)
        for node in before.nodes if before is not None else ():
            # Nobody asks about most nodes again: what is empty goes.
            del self._by_node[node][name]
            if not self._by_node[node]:
                del self._by_node[node]
        if before is not None:
            self._by_pool[before.pool].pop(name, None)
        if now is not None:
            self._bookings[name] = now
            for node in now.nodes:
                self._by_node[node][name] = now
            if not now.nodes:
                self._by_pool[now.pool][name] = now
        both = [each for each in (before, now) if each is not None]
        pools = frozenset(each.pool for each in both if not each.nodes)
        return frozenset(node for each in both for node in each.nodes), pools

    def ahead(self, node: str, pool: str, ts: int) -> Collection[WindowTimes]:
        """Windows that keep the node of the pool and are not over at `ts`, in no order."""
        if not self._bookings:
            return ()
        kept = (*self._by_node.get(node, {}).values(), *self._by_pool.get(pool, {}).values())
        return [window for each in kept if each.pool == pool for window in each.ahead(ts)]
