"""The nodes and pods of a trace as the engine takes them."""

from collections import Counter
from collections.abc import Callable, Mapping

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.domain.mix import MixKind, kind_of
from tessera.domain.work.gang import Gang, gang_of
from tessera.engine.scoring.fgd import typical
from tessera.engine.scoring.workload import PodWorkload
from tessera_lab.pack.protocol import MOST_PODS_PER_NODE, node_order
from tessera_lab.traces.alibaba import WHOLE, Trace, TracePod
from tessera_schemas.facts import NodeSeen

POOL, ROLE = "default", "pod"
MIB = 2**20


class RefusedThoughItFits(Exception):
    """The rule that every figure rests on was broken: the run is worth nothing."""


def nodes_of(trace: Trace, seed: int, labels: Callable[[int], dict[str, str]] = lambda at: {}) -> list[Node]:
    """
    The trace's nodes with nothing on them; their names carry the run's order, which decides between equals.

    `labels` are those of a node by its place in the trace's own order.
    """
    places, found = node_order(len(trace.nodes), seed).tolist(), []
    for at, (node, place) in sorted(enumerate(zip(trace.nodes, places, strict=True)), key=lambda each: each[1][1]):
        seen = NodeSeen(
            kind="node_seen",
            name=f"node-{place:05d}",
            pool=POOL,
            cpu_milli=node.cpu_milli,
            memory_bytes=node.memory_mib * MIB,
            pods=MOST_PODS_PER_NODE,
            gpus=node.gpus,
            gpu_model=node.model,
            device_profile="plugin",
            labels=labels(at),
        )
        found.append(empty_node(seen))
    return found


def gang_for(pod: TracePod) -> Gang:
    """A gang of one pod that asks for what the trace's pod does."""
    share = pod.gpus == 1 and pod.gpu_milli < WHOLE
    gpus, milli = (0, pod.gpu_milli) if share else (pod.gpus, 0)
    return gang_of((RoleNeed(ROLE, 1, Need(pod.cpu_milli, pod.memory_mib * MIB, gpus, milli, pod.models)),))


def takes_pod(node: Node, pod: TracePod) -> bool:
    """Whether the node could take the pod: a second look, written apart from the engine's, as the protocol asks."""
    if pod.models and node.gpu_model not in pod.models:
        return False
    if pod.cpu_milli > node.cpu_free or pod.memory_mib * MIB > node.memory_free or node.pods_free < 1:
        return False
    return sum(left >= (pod.gpu_milli or WHOLE) for left in node.gpu_free) >= pod.gpus


def trace_mix(trace: Trace) -> Counter[MixKind]:
    """Number of pods of each kind in the trace."""
    return Counter(kind_of(gang_for(pod)[0].need) for pod in trace.pods)


class Fragmentation:
    """The published measure: what of the free GPUs the typical pods of the whole trace could not use."""

    def __init__(self, trace: Trace, nodes: Mapping[str, Node]) -> None:
        self._workload = PodWorkload(typical(trace_mix(trace).items()))
        self._of = {name: self._measure_node(node) for name, node in nodes.items()}
        self.total, self.unit = sum(self._of.values()), self._workload.total
        """Of all nodes, in thousandths of a GPU times `unit`."""

    def changed(self, node: Node) -> None:
        """Counts what the node, which has changed, is fragmented by now."""
        now = self._measure_node(node)
        self.total += now - self._of[node.name]
        self._of[node.name] = now

    def _measure_node(self, node: Node) -> int:
        usable = self._workload.usable(node, node.cpu_free, node.gpu_free)
        return sum(node.gpu_free) * self._workload.total - usable
