"""
Placements per second on one core, at several sizes of the cluster.

The nodes are the trace's, repeated; the pods are drawn from the trace until the cluster is 95 % full, placed in batches
of 256 as a committer's cycle would, with prices learnt beforehand. Latency is measured apart, one call per pod, while
pods come and go in the filled cluster. The floor of the same run is the best node of each pod by one pass over all
nodes in numpy, best fit, nothing kept: what a placement costs without a cache.
"""

from dataclasses import dataclass
from random import Random
from time import process_time

import numpy as np

from tessera.engine.pricing.arrays import WHOLE, Ints, Nodes
from tessera.engine.pricing.learner import Learner
from tessera.engine.pricing.packer import Ask, NodeRoom, Packer, Place, PoolSize
from tessera.lab.pack.replay import PreparedTrace

BATCH = 256
FILL_PERCENT = 95
SINGLE_CALLS = 20_000
FLOOR_CALLS = 300
POOL_GROWTH = 40  # pods drawn per node, at most


@dataclass(frozen=True, slots=True)
class Speed:
    nodes: int
    placed: int
    per_second: float
    single_per_second: float
    p50_us: float
    p99_us: float
    floor_per_second: float


def measure(stage: PreparedTrace, nodes: int, policy: str = "tessera", seed: int = 1) -> Speed:
    """Fill a cluster of so many nodes, then let pods come and go one by one."""
    random = Random(seed)
    packer, classes = _cluster(stage, nodes, policy)
    if policy == "tessera":
        Learner(packer).see(np.array([classes[ask] for ask in stage.asks]))
    for t in range(len(packer.asks)):  # first contact with each class looks at every node: a start-up cost
        packer.release(t, place) if (place := packer.place(t)) else None
    wanted = _until_full(stage, classes, packer, random)
    began = process_time()
    running: list[tuple[int, Place]] = []
    for first in range(0, len(wanted), BATCH):
        batch = wanted[first : first + BATCH]
        placed = packer.place_all(batch)
        running += [(t, place) for t, place in zip(batch.tolist(), placed, strict=True) if place]
    seconds = process_time() - began
    calls = _come_and_go(packer, running, [classes[ask] for ask in stage.asks], random)
    ranked = np.sort(np.array(calls))
    return Speed(
        nodes=nodes,
        placed=len(wanted),
        per_second=len(wanted) / seconds,
        single_per_second=len(calls) / sum(calls),
        p50_us=1e6 * float(ranked[len(ranked) // 2]),
        p99_us=1e6 * float(ranked[len(ranked) * 99 // 100]),
        floor_per_second=_floor(packer, wanted[:FLOOR_CALLS]),
    )


def _cluster(stage: PreparedTrace, nodes: int, policy: str) -> tuple[Packer, dict[Ask, int]]:
    rows = stage.trace.nodes
    size = PoolSize(
        nodes=nodes,
        devices=max(row.gpus for row in rows),
        models=len(stage.models),
        largest_cpu=max(row.cpu_milli for row in rows),
    )
    packer = Packer(size, policy)
    for n in range(nodes):
        row = rows[n * len(rows) // nodes] if nodes < len(rows) else rows[n % len(rows)]
        model = stage.models.index(row.model)
        packer.set_node(n, NodeRoom(row.cpu_milli, row.memory_mib, 110, model, (WHOLE,) * row.gpus))
    return packer, {ask: packer.add_class(ask) for ask in dict.fromkeys(stage.asks)}


def _until_full(stage: PreparedTrace, classes: dict[Ask, int], packer: Packer, random: Random) -> Ints:
    room = int(np.maximum(packer.core.nodes.free, 0).sum()) * FILL_PERCENT // 100
    wanted: list[int] = []
    while room > 0 and len(wanted) < POOL_GROWTH * packer.size.nodes:
        ask = random.choice(stage.asks)
        room -= ask.devices * ask.milli
        wanted.append(classes[ask])
    return np.array(wanted, np.int64)


def _come_and_go(packer: Packer, running: list[tuple[int, Place]], menu: list[int], random: Random) -> list[float]:
    """Seconds of each call of `place`; between calls somebody leaves."""
    calls = []
    for _ in range(SINGLE_CALLS):
        number = random.randrange(len(running))
        running[number], running[-1] = running[-1], running[number]
        packer.release(*running.pop())
        t = random.choice(menu)
        began = process_time()
        place = packer.place(t)
        calls.append(process_time() - began)
        if place:
            running.append((t, place))
    return calls


def _floor(packer: Packer, wanted: Ints) -> float:
    nodes, asks = packer.core.nodes, [packer.asks[t] for t in wanted.tolist()]
    began = process_time()
    for ask in asks:
        _scan(nodes, ask)
    return len(asks) / (process_time() - began)


def _scan(nodes: Nodes, ask: Ask) -> int:
    """The best node by best fit in one pass over all of them."""
    holds = (nodes.free >= ask.milli).sum(axis=1) >= ask.devices
    fits = holds & (nodes.cpu >= ask.cpu) & (nodes.memory >= ask.memory) & (nodes.pods > 0)
    left = nodes.cpu + 16 * np.maximum(nodes.free, 0).sum(axis=1)
    return int(np.argmin(np.where(fits, left, np.iinfo(np.int64).max)))
