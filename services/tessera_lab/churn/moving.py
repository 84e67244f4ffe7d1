"""
A simple mover: every quarter of an hour it opens room for pods that wait, by moving the cheapest pods elsewhere.

A move costs what has to be done again since the last checkpoint, taken as 15 minutes of the moved pod's GPUs (half of
a usual half hour); the pod runs that much longer. The gain is what the waiting pod would otherwise go on waiting, of
which nothing is known but this: who has waited long waits long. So as many seconds are taken as it has waited already,
and nothing moves unless the gain is larger than the cost. Places for all victims are taken before anything moves; if
one finds none, nothing moves. Every pod may be moved: that is an assumption, since the trace does not say.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import nsmallest

from tessera.domain.devices.resources import WHOLE_GPU, Need, Node
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang
from tessera.engine.placement.fits import never_fits
from tessera_lab.churn.arrivals import HOUR_MS, ChurnArrivals, Placements
from tessera_lab.churn.running import NodeCluster, fill

PERIOD_MS = HOUR_MS // 4
REDONE_S = 900
KINDS_PER_TURN = 8
NODES_PER_KIND = 6
MS = 1000


class Mover:
    """`moved` pods made room for `opened` others, and so many thousandths of GPU times seconds are done again."""

    def __init__(self, cluster: NodeCluster, arrivals: ChurnArrivals) -> None:
        self._cluster, self._arrivals = cluster, arrivals
        self._running: dict[str, list[int]] = {}
        self.next_ms = PERIOD_MS
        self.moved = self.opened = self.lost_milli_seconds = 0

    def take_turn(self) -> None:
        """Try the kinds whose first pod waits longest, each on the nodes where least must move."""
        self.next_ms += PERIOD_MS
        self._running = self._by_node()
        by_wait = sorted(self._arrivals.waiting.items(), key=lambda queue: queue[1][0])
        for gang, _ in by_wait[:KINDS_PER_TURN]:
            self._open_for(gang)

    def _open_for(self, gang: Gang) -> None:
        for name in cheapest_nodes(self._cluster.capacity.nodes.values(), gang[0].need):
            if gang not in self._arrivals.waiting:
                return
            victims = choose_victims(
                self._cluster.capacity.nodes[name], self._arrivals, gang[0].need, self._running.get(name, [])
            )
            if victims and self._is_worth_it(gang, victims) and self._move(gang, name, victims):
                return

    def _is_worth_it(self, gang: Gang, victims: Sequence[int]) -> bool:
        waited_s = (self._arrivals.clock - self._arrivals.at[self._arrivals.waiting[gang][0]]) // MS
        cost = sum(self._arrivals.gangs[victim].amount.gpu_milli for victim in victims) * REDONE_S
        return gang.amount.gpu_milli * waited_s > cost

    def _move(self, gang: Gang, name: str, victims: Sequence[int]) -> bool:
        """Move all victims off the node and start who waited, or leave everything as it was."""
        targets = self._targets(name, victims)
        if targets is None:
            return False
        cluster, arrivals = self._cluster, self._arrivals
        for victim, places in zip(victims, targets, strict=True):
            cluster.release(arrivals.gangs[victim], arrivals.places[victim])
            arrivals.places[victim] = places
            arrivals.end_at(victim, arrivals.end[victim] + REDONE_S * MS)
            self.moved += 1
            self.lost_milli_seconds += REDONE_S * arrivals.gangs[victim].amount.gpu_milli
        opened = cluster.place(gang)
        if opened is None:
            raise AssertionError(f"no room was opened on node {name}")
        arrivals.start(arrivals.leave_queue(gang), opened)
        fill(cluster, arrivals, name)
        self.opened += 1
        self._running = self._by_node()
        return True

    def _by_node(self) -> dict[str, list[int]]:
        """Pods on each node; read once a turn and after each move."""
        found: dict[str, list[int]] = {}
        for job, places in self._arrivals.places.items():
            found.setdefault(places[0].node, []).append(job)
        return found

    def _targets(self, name: str, victims: Sequence[int]) -> list[Placements] | None:
        """A place on other nodes for each victim, the largest first, all taken; None if one finds none."""
        cluster, gangs, found = self._cluster, self._arrivals.gangs, list[Placements]()
        before = cluster.capacity.nodes[name]
        cluster.capacity.put(replace(before, pods_free=0))
        for victim in victims:
            places = cluster.place(gangs[victim])
            if places is None:
                break
            found.append(places)
        cluster.capacity.put(before)
        if len(found) == len(victims):
            return found
        for victim, places in zip(victims, found, strict=False):
            cluster.release(gangs[victim], places)
        return None


def cheapest_nodes(nodes: Iterable[Node], need: Need) -> list[str]:
    """Nodes that could hold the pod, those first where the fewest GPUs, then the least CPU, would have to leave."""
    found = []
    for node in nodes:
        leaves = _leaving(need, node)
        if leaves < (need.total_gpu_milli or 1) and never_fits(need, node) is None:
            found.append((leaves, max(0, need.cpu_milli - node.cpu_free), node.name))
    return [name for _, _, name in nsmallest(NODES_PER_KIND, found)]


@lru_cache(maxsize=65_536)
def _used(gpu_free: tuple[int, ...]) -> list[int]:
    return sorted(WHOLE_GPU - left for left in gpu_free)


def _leaving(need: Need, node: Node) -> int:
    """Thousandths of GPUs that others would have to give up; as many as the pod asks for where it fits in no case."""
    used = _used(node.gpu_free)
    if need.gpu_milli:
        return max(0, used[0] - (WHOLE_GPU - need.gpu_milli)) if used else need.gpu_milli
    return sum(used[: need.gpus]) if need.gpus <= len(used) else need.total_gpu_milli


def choose_victims(node: Node, arrivals: ChurnArrivals, need: Need, here: Sequence[int]) -> list[int]:
    """
    Pods on the node whose leaving makes the pod fit, the largest first; none where it cannot be.

    The devices that have least to lose are cleared first; then the pods with the fewest GPUs make room for CPU and
    memory.
    """
    asks = {job: arrivals.gangs[job][0].need for job in here}
    smallest = sorted(here, key=lambda job: (asks[job].total_gpu_milli, -asks[job].cpu_milli, job))
    chosen = _clear_devices(node, arrivals, need, smallest)
    if chosen is None:
        return []
    others = (job for job in smallest if job not in chosen)
    while not _is_enough(node, need, [asks[job] for job in chosen]):
        another = next(others, None)
        if another is None:
            return []
        chosen = [*chosen, another]
    return sorted(chosen, key=lambda job: (-asks[job].total_gpu_milli, job))


def _is_enough(node: Node, need: Need, leaving: Sequence[Need]) -> bool:
    cpu = node.cpu_free + sum(other.cpu_milli for other in leaving)
    memory = node.memory_free + sum(other.memory_bytes for other in leaving)
    return cpu >= need.cpu_milli and memory >= need.memory_bytes


def _clear_devices(node: Node, arrivals: ChurnArrivals, need: Need, smallest: Sequence[int]) -> list[int] | None:
    """Pods that have to leave so that the devices of the node with least to lose hold the pod; None if they cannot."""
    count, wanted = need.gpus or int(need.gpu_milli > 0), need.gpu_milli or WHOLE_GPU
    chosen: list[int] = []
    for slot in sorted(range(node.gpus), key=lambda slot: (-node.gpu_free[slot], slot))[:count]:
        on_it = {job: arrivals.places[job][0].gpu_milli for job in smallest if slot in arrivals.places[job][0].devices}
        left = node.gpu_free[slot] + sum(on_it[job] for job in chosen if job in on_it)
        for job, milli in on_it.items():
            if left < wanted and job not in chosen:
                chosen.append(job)
                left += milli
        if left < wanted:
            return None
    return chosen
