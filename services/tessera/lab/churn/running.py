"""
Time passes: pods end, arrive, start or wait. The rule for waiting: first come, first served, and whoever does not fit
is passed over (best effort). At one moment ends come before arrivals.

What waits fits nowhere: it is tested when it arrives, and again on each node where room appears. So after an end only
that node is looked at, and whoever starts there does so in order of arrival.
"""

from collections.abc import Collection
from typing import Protocol

from tessera.domain.gang import Gang
from tessera.domain.resources import Node
from tessera.engine.placement.fits import fits, kind_of, lacks_room, never_fits, placed_on
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.scoring.protocol import ScoringPolicy
from tessera.lab.churn.book import Book, Placements
from tessera.lab.pack.cluster import Fragmentation


class ChurnCluster(Protocol):
    """Cluster that the pods of a churn run on."""

    @property
    def fragmented(self) -> int:
        """F of all of it."""

    def could_hold(self, gang: Gang) -> bool:
        """Whether the pod fits while nothing runs."""

    def place(self, gang: Gang) -> Placements | None:
        """Take room for the pod, if there is any."""

    def fits_on(self, gang: Gang, name: str) -> bool:
        """Whether the pod fits this node now."""

    def place_on(self, gang: Gang, name: str) -> Placements:
        """Take room on a node that the pod fits."""

    def release(self, gang: Gang, places: Placements) -> None:
        """Give back the room of a pod that has left."""


class NodeCluster:
    """A cluster of nodes, on which the committer's placement places by one policy."""

    def __init__(self, nodes: Collection[Node], policy: ScoringPolicy, measure: Fragmentation | None = None) -> None:
        self.empty = {node.name: node for node in nodes}
        self._measure = measure
        self.room = FreeCapacity(nodes, scoring=policy)

    def use(self, policy: ScoringPolicy) -> None:
        """Place by this policy from now on."""
        if policy is not self.room.places.scoring:
            self.room = FreeCapacity(self.room.nodes.values(), scoring=policy)

    @property
    def fragmented(self) -> int:
        """F of all nodes, in thousandths of a GPU times the unit of the measure."""
        return self._measure.total if self._measure else 0

    def could_hold(self, gang: Gang) -> bool:
        """Whether the pod fits a node on which nothing runs."""
        return any(fits(gang[0].need, node) is None for node in self.empty.values())

    def place(self, gang: Gang) -> Placements | None:
        """Take room on the best node for the pod, if it fits any."""
        best = self.room.ranks.of(kind_of((gang[0].need,))).best({})
        return None if best is None else self.place_on(gang, best[1])

    def fits_on(self, gang: Gang, name: str) -> bool:
        """Whether the pod fits this node now."""
        need, node = gang[0].need, self.room.nodes[name]
        return lacks_room(need, node) is None and never_fits(need, node) is None

    def place_on(self, gang: Gang, name: str) -> Placements:
        """Take room on a node that the pod fits; the policy chooses the device of a share."""
        node, role, policy = self.room.nodes[name], gang[0], self.room.places.scoring
        found = (placed_on(node, role.need, 0, role.name, policy.device(role.need, node)),)
        self.room.take(gang, found)
        self._measured(found)
        return found

    def release(self, gang: Gang, places: Placements) -> None:
        """Give back the room of a pod that has left."""
        self.room.give_back(gang, places)
        self._measured(places)

    def _measured(self, places: Placements) -> None:
        if self._measure:
            for place in places:
                self._measure.changed(self.room.nodes[place.node])


def fill(cluster: ChurnCluster, book: Book, name: str) -> None:
    """Start on a node where room appeared what waits and fits, in order of arrival."""
    fitting = {gang for gang in book.waiting if cluster.fits_on(gang, name)}
    while fitting:
        gang = min(fitting, key=lambda gang: book.waiting[gang][0])
        book.start(book.leave_queue(gang), cluster.place_on(gang, name))
        fitting = {gang for gang in fitting if gang in book.waiting and cluster.fits_on(gang, name)}


def run_until(cluster: ChurnCluster, book: Book, stop_ms: int, stop_arrival: int | None = None) -> None:
    """All that happens before `stop_ms`, but no arrival from number `stop_arrival` on: before that one it returns."""
    while True:
        ends, job = book.next_end(), book.arrived
        arrives = book.at[job] if job < len(book.at) else None
        if ends is not None and ends[0] < stop_ms and (arrives is None or ends[0] <= arrives):
            book.pass_time(ends[0], cluster.fragmented)
            places = book.finish(ends[1])
            cluster.release(book.gangs[ends[1]], places)
            fill(cluster, book, places[0].node)
        elif arrives is not None and arrives < stop_ms:
            if job == stop_arrival:
                return
            book.pass_time(arrives, cluster.fragmented)
            _arrive(cluster, book)
        else:
            book.pass_time(stop_ms, cluster.fragmented)
            return


def _arrive(cluster: ChurnCluster, book: Book) -> None:
    job, gang = book.arrived, book.gangs[book.arrived]
    book.arrived += 1
    if not book.possible(gang, cluster.could_hold):
        book.refused += 1
        return
    places = None if gang in book.waiting else cluster.place(gang)
    if places is None:
        book.wait(job)
    else:
        book.start(job, places)
