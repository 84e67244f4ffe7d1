"""
Other nodes in place of those that a booking has lost, or which of them it lacks. Pure.

Chosen nodes are replaced until a window begins, by the same choice as when the booking was made; nodes that people
named never are. Of one pool everything is looked up once, however many bookings a rack takes down.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

from tessera.domain.devices.resources import Node
from tessera.domain.quota.bookings import Booking, WindowTimes
from tessera.domain.state import State
from tessera.engine.ahead.booked_nodes import is_well
from tessera.engine.ahead.choosing import ByNode, free_by, is_open
from tessera_schemas.reasons import Code
from tessera_schemas.shard.bookings import NODES_MAX, Rebooked

CHANGING = (Code.GPUS_BEING_CUT, Code.DEVICES_CHANGED)
NODES_TRIED_MAX = 200_000
"""So many nodes are looked at for all bookings of a pool at one time; later ones are replaced at the next."""


class LostNodes:
    """The lost nodes of a pool's bookings as of one state, and those that could take their place."""

    def __init__(self, state: State, pool: str) -> None:
        self._state, self._tries = state, NODES_TRIED_MAX
        self._bookings = {each.name: each for each in state.bookings.values() if each.pool == pool}
        nodes = {node.name: node for node in state.nodes.values() if node.pool == pool}
        self._well = {name: node for name, node in nodes.items() if is_well(state, node)}
        # One whose devices change is back soon; that is not worth another node.
        passing = {name for name, node in nodes.items() if _changes(node) and state.drains.get(name) is None}
        self._there, self._kept = tuple(nodes), self._well.keys() | passing

    def missing(self, booking: Booking) -> tuple[str, ...]:
        """Names of its nodes that could not serve it now, ascending; of a whole pool, of all that are there."""
        names = booking.nodes or self._there
        return tuple(sorted(name for name in names if name not in self._kept))

    def replace(self, booking: Booking) -> Rebooked | None:
        """The record by which its lost nodes are replaced, or as many of them as there are others; None for none."""
        lost, windows = self.missing(booking), tuple(booking.ahead(self._state.ts))
        if not lost or not booking.is_chosen or not windows or windows[0][0] <= self._state.ts:
            return None
        # A number of GPUs may be had of fewer nodes, or of more: what is kept of it counts, not how many are lost.
        # Of a number of nodes each lost one lacks.
        kept = sum(node.gpus for node in self._state.nodes.found(booking.nodes) if node.name in self._kept)
        lacks = booking.gpus - kept if booking.gpus else len(lost)
        found = list[str]()
        # A booking never names more nodes than its record may, small as those may be that are left.
        room = NODES_MAX - len(booking.nodes) + len(lost)
        for node in self._others(booking, windows) if lacks > 0 else ():
            if len(found) >= room:
                break
            found.append(node.name)
            lacks -= node.gpus if booking.gpus else 1
            if lacks <= 0:
                break
        # One that is missing says that it is not whole yet: the last is given up for enough others alone.
        gone = lost if lacks <= 0 else lost[: min(len(found), len(lost) - 1)]
        if not gone or (len(gone) == len(booking.nodes) and not found):
            return None
        whose = {"name": booking.name, "pool": booking.pool, "who": booking.who}
        return Rebooked(kind="rebooked", lost=gone, found=tuple(sorted(found)), **whose)

    def note(self, record: Rebooked) -> None:
        """Takes what was found: no other booking gets it for the same time."""
        booking = self._bookings[record.name]
        for name in record.found:
            self._taken.setdefault(name, []).extend(booking.windows)

    def _others(self, booking: Booking, windows: Sequence[WindowTimes]) -> Iterator[Node]:
        # Its own nodes are no others of its own, also one that is lost now and well again in the very same message: a
        # node is given up once, and a found one is another.
        own = frozenset(booking.nodes)
        for node in self._by_time:
            if self._tries <= 0:
                return
            self._tries -= 1
            right = booking.gpu_model in ("", node.gpu_model) and bool(node.gpus or not booking.gpus)
            if right and node.name not in own and is_open(node.name, windows, self._free, self._taken):
                yield node

    @cached_property
    def _free(self) -> dict[str, int]:
        # Asked of each node once for all bookings: who runs there is the costly part of the choice.
        return {name: free_by(self._state, name) for name in self._well}

    @cached_property
    def _by_time(self) -> list[Node]:
        # As at the making: those first that are free first.
        return sorted(self._well.values(), key=lambda node: (self._free[node.name], node.name))

    @cached_property
    def _taken(self) -> ByNode:
        # Windows that are over are among them: a node is the same for them, and they go with their booking.
        found: ByNode = {}
        for booking in sorted(self._bookings.values(), key=lambda each: each.name):
            for name in booking.nodes or self._there:
                found.setdefault(name, []).extend(booking.windows)
        return found


def _changes(node: Node) -> bool:
    return node.trouble is not None and node.trouble.code in CHANGING and not node.gone
