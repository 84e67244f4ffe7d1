"""
One wide gang on a large cluster, with and without a rack that must hold it: through the engine that decides, by its
default policy.

Every eighth node is new to the later gang: it looks different from before, as after arrivals and departures of
others. The floor of the same run is one pass over all nodes that asks each only for its free GPUs, in the same plain
Python: what a decision costs that keeps nothing and compares nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import process_time

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node, RoleNeed
from tessera.domain.mix import Mix, cpu_per_gpu, models_of, weights
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.scoring.price_aware import PriceAware
from tessera_schemas.facts import NodeSeen
from tessera_schemas.reasons import Reason

PODS, NODES, NODES_IN_RACK = 512, 10_000, 80
ROUNDS = 15


@dataclass(frozen=True, slots=True)
class GangTime:
    """Milliseconds of CPU, medians: the first gang of a pass that knows nothing, and one of a later pass."""

    what: str
    first_ms: float
    later_ms: float
    floor_ms: float


def measure_gangs(nodes: int = NODES, pods: int = PODS) -> list[GangTime]:
    cluster = [_node(number) for number in range(nodes)]
    need = Need(cpu_milli=4000, memory_bytes=2**34, gpus=1)
    return [
        _timed("one rack holds it", cluster, (RoleNeed("worker", pods, need, levels=("rack",), bound=True),)),
        _timed("anywhere", cluster, (RoleNeed("worker", pods, need),)),
    ]


def _node(number: int) -> Node:
    """8 GPUs; some have pods on them already, differently in each rack."""
    seen = NodeSeen(
        kind="node_seen",
        name=f"node-{number:05}",
        pool="default",
        ready=True,
        cpu_milli=96_000,
        memory_bytes=2**40,
        pods=110,
        gpus=8,
        gpu_model="H100",
        labels={"rack": f"rack-{number // NODES_IN_RACK:03}"},
    )
    return _with_free(empty_node(seen), 8 - (number * 7 + number // NODES_IN_RACK) % 4)


def _with_free(node: Node, gpus: int) -> Node:
    left = (WHOLE_GPU,) * gpus + (0,) * (node.gpus - gpus)
    return replace(node, gpu_free=left, cpu_free=node.cpu_milli - 8000 * (node.gpus - gpus))


def _timed(what: str, cluster: list[Node], roles: tuple[RoleNeed, ...]) -> GangTime:
    known = weights({}, 0, cpu_per_gpu(cluster), models_of(cluster))
    scoring = PriceAware(Mix("default", known=tuple(known.items()), largest_cpu_milli=cluster[0].cpu_milli))
    first, later, floor = list[float](), list[float](), list[float]()
    for round_number in range(ROUNDS):
        capacity = FreeCapacity(cluster, scoring=scoring)
        first.append(_milliseconds(partial(capacity.place, roles)))
        changed = [
            _with_free(node, 5 + round_number % 4) if number % 8 == round_number % 8 else node
            for number, node in enumerate(cluster)
        ]
        capacity.renewed(changed, scoring)
        later.append(_milliseconds(partial(capacity.place, roles)))
        floor.append(_milliseconds(partial(_gpus_free, changed)))
    return GangTime(what, median(first), median(later), median(floor))


def _gpus_free(nodes: list[Node]) -> int:
    return sum(node.gpu_free.count(WHOLE_GPU) for node in nodes)


def _milliseconds(work: Callable[[], object]) -> float:
    began = process_time()
    found = work()
    spent = process_time() - began
    if isinstance(found, Reason):
        raise AssertionError(f"the gang found no room: {found.sentence()}")
    return 1000 * spent
