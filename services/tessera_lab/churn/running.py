"""
Time passes: pods end, arrive, start or wait. The rule for waiting: first come, first served, and whoever does not fit
is passed over (best effort). At one moment ends come before arrivals.

What waits fits nowhere: it is tested when it arrives, and again on each node where room appears. So after an end only
that node is looked at, and whoever starts there does so in order of arrival.
"""

from collections.abc import Collection
from typing import Protocol

from tessera.domain.devices.resources import Node
from tessera.domain.work.gang import Gang
from tessera.engine.placement.fits import fits, kind_of, placed_on
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.scoring.protocol import ScoringPolicy
from tessera_lab.churn.arrivals import ChurnArrivals, Placements
from tessera_lab.pack.cluster import Fragmentation


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
        self.capacity = FreeCapacity(nodes, scoring=policy)

    def use(self, policy: ScoringPolicy) -> None:
        """Place by this policy from now on."""
        if policy is not self.capacity.places.scoring:
            self.capacity = FreeCapacity(self.capacity.nodes.values(), scoring=policy)

    @property
    def fragmented(self) -> int:
        """F of all nodes, in thousandths of a GPU times the unit of the measure."""
        return self._measure.total if self._measure else 0

    def could_hold(self, gang: Gang) -> bool:
        """Whether the pod fits a node on which nothing runs."""
        return any(fits(gang[0].need, node) is None for node in self.empty.values())

    def place(self, gang: Gang) -> Placements | None:
        """Take room on the best node for the pod, if it fits any."""
        best = self.capacity.table.ranking(kind_of((gang[0].need,))).best()
        return None if best is None else self.place_on(gang, best[1])

    def fits_on(self, gang: Gang, name: str) -> bool:
        """Whether the pod fits this node now."""
        return fits(gang[0].need, self.capacity.nodes[name]) is None

    def place_on(self, gang: Gang, name: str) -> Placements:
        """Take room on a node that the pod fits; the policy chooses the device of a share."""
        node, role, policy = self.capacity.nodes[name], gang[0], self.capacity.places.scoring
        found = (placed_on(node, role.need, 0, role.name, policy.device(role.need, node)),)
        self.capacity.take(gang, found)
        self._measured(found)
        return found

    def release(self, gang: Gang, places: Placements) -> None:
        """Give back the room of a pod that has left."""
        self.capacity.give_back(gang, places)
        self._measured(places)

    def _measured(self, places: Placements) -> None:
        if self._measure:
            for place in places:
                self._measure.changed(self.capacity.nodes[place.node])


def fill(cluster: ChurnCluster, arrivals: ChurnArrivals, name: str) -> None:
    """Start on a node where room appeared what waits and fits, in order of arrival."""
    fitting = {gang for gang in arrivals.waiting if cluster.fits_on(gang, name)}
    while fitting:
        gang = min(fitting, key=lambda gang: arrivals.waiting[gang][0])
        arrivals.start(arrivals.leave_queue(gang), cluster.place_on(gang, name))
        fitting = {gang for gang in fitting if gang in arrivals.waiting and cluster.fits_on(gang, name)}


def run_until(cluster: ChurnCluster, arrivals: ChurnArrivals, stop_ms: int, stop_arrival: int | None = None) -> None:
    """All that happens before `stop_ms`, but no arrival from number `stop_arrival` on: before that one it returns."""
    while True:
        ends, job = arrivals.next_end(), arrivals.arrived
        arrives = arrivals.at[job] if job < len(arrivals.at) else None
        if ends is not None and ends[0] < stop_ms and (arrives is None or ends[0] <= arrives):
            arrivals.pass_time(ends[0], cluster.fragmented)
            places = arrivals.finish(ends[1])
            cluster.release(arrivals.gangs[ends[1]], places)
            fill(cluster, arrivals, places[0].node)
        elif arrives is not None and arrives < stop_ms:
            if job == stop_arrival:
                return
            arrivals.pass_time(arrives, cluster.fragmented)
            _arrive(cluster, arrivals)
        else:
            arrivals.pass_time(stop_ms, cluster.fragmented)
            return


def _arrive(cluster: ChurnCluster, arrivals: ChurnArrivals) -> None:
    job, gang = arrivals.arrived, arrivals.gangs[arrivals.arrived]
    arrivals.arrived += 1
    if not arrivals.possible(gang, cluster.could_hold):
        arrivals.refused += 1
        return
    places = None if gang in arrivals.waiting else cluster.place(gang)
    if places is None:
        arrivals.wait(job)
    else:
        arrivals.start(job, places)
