"""
One run: a trace's pods come and go on its cluster under one policy, and each hour is added up.

A run begins in a steady state, in which a policy has worked for months. So `tessera` has seen one pass of arrivals
before, and from then on sees each pod when it arrives and prices the mix anew at fixed counts of arrivals. Without the
pass it would put pods that run for months down before it knows anything, and no warm-up would undo that. `fgd` is
given the trace's popularity of kinds, as in its paper. No policy knows how long a pod will run.
At the end the books are audited: every arrival runs, waits, was refused or has ended, and every device, CPU and byte
that is taken is taken by a pod that runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.domain.devices.resources import Node
from tessera.engine.pricing.arrays import Ints
from tessera_lab.churn.arrivals import HOUR_MS, ChurnArrivals
from tessera_lab.churn.lifetimes import Timed
from tessera_lab.churn.moving import Mover
from tessera_lab.churn.offered import Offered, offer
from tessera_lab.churn.pooled import PooledCluster
from tessera_lab.churn.running import NodeCluster, run_until
from tessera_lab.pack.baselines import gang_of_pod, nodes_for
from tessera_lab.pack.cluster import Fragmentation, gang_for, nodes_of
from tessera_lab.pack.replay import scoring_of

DAY_HOURS = 24


class Unbalanced(Exception):
    """The books do not add up: the run is worth nothing."""


@dataclass(frozen=True, slots=True)
class Span:
    """Length of a run; the warm-up is not counted."""

    warmup_days: int = 2
    days: int = 5

    @property
    def warmup_hours(self) -> int:
        return self.warmup_days * DAY_HOURS

    @property
    def hours(self) -> int:
        return (self.warmup_days + self.days) * DAY_HOURS


@dataclass(frozen=True, slots=True)
class ChurnOutcome:
    """
    Outcome of a run. `hours` is (hours, 4), see `book`; `fragmented_unit` is by what its last column is divided.

    `moves`: pods moved, room opened for how many, and thousandths of GPU times seconds to be done again.
    """

    arrived: int
    running: int
    waiting: int
    refused: int
    ended: int
    moves: tuple[int, int, int]
    hours: Ints
    fragmented_unit: int


class Ready:
    """A trace and one load and seed, ready for any policy: all see the same arrivals."""

    def __init__(self, timed: Timed, load_percent: int, seed: int, span: Span) -> None:
        self.timed, self.seed, self.span = timed, seed, span
        self.offered: Offered = offer(timed, load_percent, seed, span.hours * HOUR_MS)

    def arrivals(self, policy: str) -> ChurnArrivals:
        """The arrivals as the policy looks at them; nobody has arrived yet."""
        pods, offered = self.timed.trace.pods, self.offered
        gangs = [gang_of_pod(policy, pod) for pod in pods]
        arriving = [gangs[at] for at in offered.pod.tolist()]
        return ChurnArrivals(arriving, offered.at_ms.tolist(), offered.life_ms.tolist(), self.span.hours)


def replay(ready: Ready, policy: str, defragment: bool) -> ChurnOutcome:
    """Raises: Unbalanced."""
    trace = ready.timed.trace
    nodes, scoring = nodes_for(policy, trace, ready.seed), scoring_of(trace, policy, ready.seed)
    scoring.see(map(gang_for, trace.pods))
    measure = Fragmentation(trace, {node.name: node for node in nodes})
    cluster, arrivals = NodeCluster(nodes, scoring.in_force(), measure), ready.arrivals(policy)
    mover, end = Mover(cluster, arrivals) if defragment else None, ready.span.hours * HOUR_MS
    while arrivals.clock < end:
        first = arrivals.arrived
        run_until(cluster, arrivals, min(end, mover.next_ms) if mover else end, first + scoring.due_in)
        scoring.see(arrivals.gangs[first : arrivals.arrived])
        cluster.use(scoring.in_force())
        if mover and arrivals.clock == mover.next_ms:
            mover.take_turn()
    outcome = _outcome(arrivals, mover, measure.unit)
    audit(cluster.capacity.nodes, arrivals, cluster.empty)
    return outcome


def bound(ready: Ready) -> ChurnOutcome:
    """The same arrivals on one pool of everything, see `pooled`."""
    arrivals = ready.arrivals("bestfit")
    run_until(PooledCluster(nodes_of(ready.timed.trace, ready.seed)), arrivals, ready.span.hours * HOUR_MS)
    return _outcome(arrivals, None, 1)


def _outcome(arrivals: ChurnArrivals, mover: Mover | None, unit: int) -> ChurnOutcome:
    running, waiting = len(arrivals.places), sum(map(len, arrivals.waiting.values()))
    if arrivals.arrived != running + waiting + arrivals.refused + arrivals.ended:
        raise Unbalanced(
            f"{arrivals.arrived} arrived, but {running} run, {waiting} wait, {arrivals.refused} refused, "
            f"{arrivals.ended} ended"
        )
    moves = (mover.moved, mover.opened, mover.lost_milli_seconds) if mover else (0, 0, 0)
    return ChurnOutcome(
        arrivals.arrived, running, waiting, arrivals.refused, arrivals.ended, moves, arrivals.hours, unit
    )


def audit(nodes: Mapping[str, Node], arrivals: ChurnArrivals, empty: Mapping[str, Node]) -> None:
    """Give everything that runs back: every node must then be as empty as it was. Raises: Unbalanced."""
    if any(node.overfull for node in nodes.values()):
        raise Unbalanced("a device or a node holds more than it has")
    without = dict(nodes)
    for job, places in arrivals.places.items():
        need, held = arrivals.gangs[job][0].need, sum(place.gpu_milli * len(place.devices) for place in places)
        if held != need.total_gpu_milli:
            raise Unbalanced(f"arrival {job} holds {held} thousandths of GPUs and asked for {need.total_gpu_milli}")
        arrivals.gangs[job].take(without, places, -1)
    wrong = [name for name, node in without.items() if node != empty[name]]
    if wrong:
        raise Unbalanced(f"node {wrong[0]} holds something that no pod took: {without[wrong[0]]}")
