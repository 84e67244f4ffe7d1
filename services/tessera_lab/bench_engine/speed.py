"""
Placements per second on one core, at several sizes of the cluster, by the core that the committer places with.

The nodes are the trace's, repeated; the pods are drawn from the trace until the cluster is 95 % full, with prices
learnt beforehand, and each kind was asked for once. The cluster is filled twice with the same pods: first every state
of a node is new to the policy, then each has been met, as in a cluster that has run for a while. The floor of the same
run is the best node by best fit, found by looking at every node: what a placement costs without a memory.
"""

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from time import process_time

from tessera.domain.devices.resources import Node
from tessera.domain.mix import Mix, cpu_per_gpu, kind_of, models_of, weights
from tessera.domain.work.gang import Gang
from tessera.engine.placement.fits import fits
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.pricing.learner import learnt
from tessera.engine.pricing.pricing_problem import make_pricing_problem
from tessera.engine.scoring.price_aware import PriceAware
from tessera.engine.scoring.protocol import BEST_FIT
from tessera_lab.pack.cluster import POOL, gang_for, nodes_of
from tessera_lab.traces.alibaba import Trace

FILL_PERCENT = 95
FLOOR_CALLS = 30


@dataclass(frozen=True, slots=True)
class Speed:
    """Placements per second of CPU: with states of nodes that are new to the policy, then with those it has met."""

    nodes: int
    placed: int
    first_per_second: float
    per_second: float
    floor_per_second: float


def measure(trace: Trace, nodes: int, seed: int = 1) -> Speed:
    """Fill a cluster of so many nodes, twice."""
    rows, count = trace.nodes, len(trace.nodes)
    chosen = (rows[n * count // nodes if nodes < count else n % count] for n in range(nodes))
    larger = replace(trace, nodes=tuple(chosen))
    cluster, random = nodes_of(larger, seed), Random(seed)
    gangs = [gang_for(pod) for pod in trace.pods]
    scoring, wanted = PriceAware(_mix(gangs, cluster)), list[Gang]()
    left = larger.gpu_milli * FILL_PERCENT // 100
    while left > 0:
        wanted.append(random.choice(gangs))
        left -= wanted[-1].amount.gpu_milli
    first, second = (_filled(cluster, scoring, wanted) for _ in range(2))
    return Speed(nodes, len(wanted), first, second, _floor(cluster, wanted[:FLOOR_CALLS]))


def _mix(gangs: list[Gang], cluster: list[Node]) -> Mix:
    """Mix of what the trace asks for, settled and priced."""
    counts = Counter(kind_of(gang[0].need) for gang in gangs)
    known = weights(counts, len(gangs), cpu_per_gpu(cluster), models_of(cluster))
    largest = max(node.cpu_milli for node in cluster)
    mix = Mix(POOL, arrivals=len(gangs), known=tuple(known.items()), largest_cpu_milli=largest)
    problem = make_pricing_problem(mix, cluster, rehearsed=False)
    return replace(mix, prices=learnt(problem)) if problem is not None else mix


def _filled(cluster: list[Node], scoring: PriceAware, wanted: list[Gang]) -> float:
    capacity = FreeCapacity(cluster, scoring=scoring)
    for gang in dict.fromkeys(wanted):
        capacity.find(gang)  # first contact with each kind looks at every state: a start-up cost
    began = process_time()
    for gang in wanted:
        capacity.place(gang)
    return len(wanted) / (process_time() - began)


def _floor(cluster: list[Node], wanted: list[Gang]) -> float:
    began = process_time()
    for gang in wanted:
        need = gang[0].need
        max((BEST_FIT.score(need, node) for node in cluster if fits(need, node) is None), default=None)
    return len(wanted) / (process_time() - began)
