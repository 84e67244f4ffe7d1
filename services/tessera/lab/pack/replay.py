"""
One run: a trace arrives on an empty cluster, and one policy places it.

`tessera` is told nothing of the trace: it sees each pod when it arrives, and prices the mix seen so far anew at fixed
counts of arrivals. The published `fgd` is given the trace's own popularity of kinds, as in its paper. A second look at
all nodes checks that no pod is dropped that fits somewhere.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tessera.engine.pricing.arrays import WHOLE, Bits, Ints, Nodes
from tessera.engine.pricing.choosing import Core, best_node, put
from tessera.engine.pricing.compiled import compiled
from tessera.engine.pricing.dual_prices import Terms
from tessera.engine.pricing.fragmentation import PublishedWorkload, TypicalPod, fragmented, typical, workload
from tessera.engine.pricing.learner import USUAL, Learner
from tessera.engine.pricing.packer import Ask, NodeRoom, Packer, PoolSize
from tessera.engine.pricing.policies import DEFAULT
from tessera.engine.pricing.stranding import Cause, stranded
from tessera.lab.pack.protocol import LOAD_PERCENT, MOST_PODS_PER_NODE, arrivals, curve, load_percent, node_order
from tessera.lab.pack.window import (
    PUBLISHED,
    WaitingLine,
    Window,
    empty_line,
    join,
    leave,
    next_due,
    next_to_go,
    prices_of,
)
from tessera.lab.traces.alibaba import Trace

Floats = NDArray[np.float64]


class RefusedThoughItFits(Exception):
    """The rule that every figure rests on was broken: the run is worth nothing."""


@dataclass(frozen=True, slots=True)
class FillingRun:
    """
    One run, read at each whole per cent of arrived load from 0 to 130.

    `allocated`, `fragmented_of_all` and `fragmented_of_idle` are per cent of GPUs; `causes` is (per cent, causes), GPUs
    that are free by cause after the last arrival at that load, or None when not asked for.
    """

    policy: str
    seed: int
    arrivals: int
    dropped: int
    allocated: Floats
    fragmented_of_all: Floats
    fragmented_of_idle: Floats
    causes: Floats | None


@dataclass(frozen=True, slots=True)
class PreparedTrace:
    """A trace, ready for the packer: models as bits, pods as classes, and its typical workload."""

    trace: Trace
    models: tuple[str, ...]
    asks: tuple[Ask, ...]  # one per pod

    @property
    def counts(self) -> Counter[TypicalPod]:
        return Counter(ask.kind for ask in self.asks)


def stage(trace: Trace) -> PreparedTrace:
    models = sorted({node.model for node in trace.nodes} | {model for pod in trace.pods for model in pod.models})
    bit = {model: 1 << number for number, model in enumerate(models)}
    asks = (
        Ask(pod.cpu_milli, pod.memory_mib, pod.gpus, pod.gpu_milli or WHOLE, sum(bit[model] for model in pod.models))
        for pod in trace.pods
    )
    return PreparedTrace(trace, tuple(models), tuple(asks))


def empty_packer(stage: PreparedTrace, policy: str, seed: int) -> Packer:
    """The trace's cluster with nothing on it, in the run's node order."""
    nodes = stage.trace.nodes
    size = PoolSize(
        nodes=len(nodes),
        devices=max(node.gpus for node in nodes),
        models=len(stage.models),
        largest_cpu=max(node.cpu_milli for node in nodes),
    )
    packer = Packer(size, policy, node_order(len(nodes), seed), seed)
    for n, node in enumerate(nodes):
        model = stage.models.index(node.model)
        packer.set_node(n, NodeRoom(node.cpu_milli, node.memory_mib, MOST_PODS_PER_NODE, model, (WHOLE,) * node.gpus))
    return packer


def replay(
    stage: PreparedTrace,
    policy: str,
    seed: int,
    causes: bool = False,
    terms: Terms = USUAL,
    window: Window | None = None,
) -> FillingRun:
    """
    Fill the cluster once.

    Args: `window`, of a queue that may reorder; without it each pod is placed when it arrives. Only for `tessera`.
    Raises: RefusedThoughItFits.
    """
    packer, measure = empty_packer(stage, policy, seed), _measure(stage)
    numbers = {ask: packer.add_class(ask) for ask in dict.fromkeys(stage.asks)}
    total = stage.trace.gpu_milli
    order = arrivals([pod.total_gpu_milli for pod in stage.trace.pods], seed, total)
    wanted = np.array([numbers[ask] for ask in stage.asks], np.int64)[order]
    asked = (packer.core.classes.devices * packer.core.classes.milli)[wanted]
    x = load_percent(asked, total)
    placed = np.full(len(wanted), UNDECIDED, np.int64)
    lost, used = np.zeros((2, len(wanted)), np.int64)
    line = empty_line(window or PUBLISHED)
    by_node = np.array([fragmented(packer.core.nodes, measure, n) for n in range(packer.size.nodes)], np.int64)
    sampled = np.zeros((LOAD_PERCENT + 1, len(Cause)))
    for first, last in _parts(packer, stage, wanted, x, causes, terms):
        if window is None:
            _fill(packer.core, measure, wanted[first:last], placed[first:last], lost[first:last], by_node)
        else:
            price = prices_of(packer.asks, packer.prices, len(packer.core.classes.cpu))
            _fill_waiting(packer.core, measure, price, line, window, wanted, first, last, placed, used, lost, by_node)
        if causes:
            idle_by_cause = stranded(packer.core.nodes, Counter(stage.asks)).sum(axis=0)
            sampled[min(x[last - 1], LOAD_PERCENT)] = idle_by_cause / WHOLE
    assert not (placed == UNDECIDED).any()
    if (placed == _WRONGLY).any():
        at = int(np.argmax(placed == _WRONGLY))
        raise RefusedThoughItFits(f"{policy}, seed {seed}, arrival {at}: dropped, but a node has room for it")
    if window is None:
        used = np.cumsum(np.where(placed >= 0, asked, 0))
    allocated = used / total
    of_all = lost / measure.total / total
    return FillingRun(
        policy,
        seed,
        len(order),
        int((placed < 0).sum()),
        100 * curve(x, allocated),
        100 * curve(x, of_all),
        100 * curve(x, of_all / np.maximum(1 - allocated, 1e-12)),
        sampled if causes else None,
    )


def _measure(stage: PreparedTrace) -> PublishedWorkload:
    """The typical workload of the whole trace, which the published fragmentation is measured against."""
    return workload(typical(stage.counts), len(stage.models), max(node.gpus for node in stage.trace.nodes))


def _parts(
    packer: Packer, stage: PreparedTrace, wanted: Ints, x: Ints, causes: bool, terms: Terms
) -> Iterator[tuple[int, int]]:
    """The arrivals in runs; between them the causes are read and the mix is priced anew."""
    learner = Learner(packer, terms) if packer.policy == DEFAULT else None
    if learner is None:
        packer.know(typical(stage.counts))
    ends = (np.flatnonzero(np.diff(x)) + 1).tolist() if causes else []
    first = 0
    for end in [*ends, len(wanted)]:
        while first < end:
            last = min(end, first + learner.due_in) if learner else end
            yield first, last
            if learner:
                learner.see(wanted[first:last])
            first = last


_WRONGLY = -2
UNDECIDED = -3


@compiled
def _fits_somewhere(nodes: Nodes, allowed: Bits, cpu: int, memory: int, count: int, milli: int, models: int) -> bool:
    """The hard tests once more, written apart from the engine's."""
    for n in range(nodes.cpu.shape[0]):
        enough = 0
        for slot in range(nodes.free.shape[1]):
            if nodes.free[n, slot] >= milli:
                enough += 1
        if models != 0 and not models & (1 << nodes.model[n]):
            continue
        if cpu <= nodes.cpu[n] and memory <= nodes.memory[n] and nodes.pods[n] > 0 and enough >= count and allowed[n]:
            return True
    return False


@compiled
def _place(core: Core, measure: PublishedWorkload, t: int, by_node: Ints) -> tuple[int, int]:
    """Place one pod: its node, or why it has none; and by how much the cluster's fragmentation rises."""
    c, n = core.classes, best_node(core, t)
    if n >= 0:
        put(core, t, n)
        before = by_node[n]
        by_node[n] = fragmented(core.nodes, measure, n)
        return n, by_node[n] - before
    if _fits_somewhere(core.nodes, c.allowed[t], c.cpu[t], c.memory[t], c.devices[t], c.milli[t], c.models[t]):
        return -2, 0
    return n, 0


@compiled
def _fill(core: Core, measure: PublishedWorkload, wanted: Ints, placed: Ints, lost: Ints, by_node: Ints) -> None:
    """Place pods in order; `lost` is the cluster's fragmentation after each, `by_node` its parts."""
    total = by_node.sum()
    for at in range(wanted.shape[0]):
        placed[at], rise = _place(core, measure, wanted[at], by_node)
        total += rise
        lost[at] = total


@compiled
def _fill_waiting(
    core: Core,
    measure: PublishedWorkload,
    price: Ints,
    line: WaitingLine,
    window: Window,
    wanted: Ints,
    first: int,
    last: int,
    placed: Ints,
    used: Ints,
    lost: Ints,
    by_node: Ints,
) -> None:
    """
    Arrivals from `first` to `last` join the line, and who must go is placed; after the last of all the line is emptied.

    `used` are the thousandths of GPUs in use after each arrival: whoever waits counts as not placed.
    """
    c, total = core.classes, by_node.sum()
    held = used[first - 1] if first > 0 else 0
    for arrival in range(first, last):
        join(line, wanted[arrival], arrival)
        at = next_due(core, price, line, window.waiting, window.delay, arrival)
        while at >= 0:
            t = line.classes[at]
            n, rise = _place(core, measure, t, by_node)
            placed[line.arrival[at]] = n
            total += rise
            held += c.devices[t] * c.milli[t] if n >= 0 else 0
            leave(line, at)
            at = next_due(core, price, line, window.waiting, window.delay, arrival)
            if at < 0 and arrival == wanted.shape[0] - 1:
                at = next_to_go(core, price, line)
        used[arrival], lost[arrival] = held, total
