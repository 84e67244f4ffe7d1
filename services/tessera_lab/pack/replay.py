"""
One run: a trace arrives on an empty cluster, and the committer's own placement places it by one policy.

`tessera` is told nothing of the trace: it sees each pod when it arrives, and prices the mix seen so far anew at fixed
counts of arrivals, as the committer does. The published policies have the form of their papers (`baselines`). A second
look at all nodes checks that no pod is dropped that fits somewhere.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tessera.domain.devices.resources import WHOLE_GPU
from tessera.engine.placement.gangs import FreeCapacity
from tessera_lab.pack.baselines import BASELINES, gang_of_pod, nodes_for
from tessera_lab.pack.cluster import Fragmentation, RefusedThoughItFits, gang_for, nodes_of, takes_pod
from tessera_lab.pack.learning import DEFAULT, CommitterPolicy, FixedScoring, Scoring
from tessera_lab.pack.protocol import LOAD_PERCENT, arrivals, curve, load_percent
from tessera_lab.pack.stranding import Cause, stranded
from tessera_lab.pack.window import WaitingPods, Window
from tessera_lab.traces.alibaba import Trace, TracePod

Floats = NDArray[np.float64]
POLICIES = (*BASELINES, DEFAULT)


@dataclass(frozen=True, slots=True)
class FillingRun:
    """
    One run, read at each whole per cent of arrived load from 0 to 130.

    `allocated`, `fragmented_of_all` and `fragmented_of_idle` are per cent of GPUs; `causes` is (per cent, causes), GPUs
    that are free by cause after the last arrival at that load, or None when not asked for. `priced` says how often
    prices came into force.
    """

    policy: str
    seed: int
    arrivals: int
    dropped: int
    allocated: Floats
    fragmented_of_all: Floats
    fragmented_of_idle: Floats
    causes: Floats | None
    priced: int


class Filling:
    """A cluster that fills up by one policy; `placed` counts what found room, in thousandths of GPUs."""

    def __init__(self, trace: Trace, policy: str, seed: int, scoring: Scoring) -> None:
        self.scoring = scoring
        self.capacity = FreeCapacity(nodes_for(policy, trace, seed), scoring=scoring.in_force())
        self.measure = Fragmentation(trace, self.capacity.nodes)
        self._policy, self._run, self._refused = policy, f"{policy}, seed {seed}", set[TracePod]()
        self.placed = self.dropped = 0

    def see(self, pod: TracePod) -> None:
        """A pod arrives, whether it finds room or not."""
        self.scoring.see((gang_for(pod),))
        if self.scoring.in_force() is not self.capacity.places.scoring:
            self.capacity = FreeCapacity(self.capacity.nodes.values(), scoring=self.scoring.in_force())

    def place(self, pod: TracePod, number: int) -> None:
        """Place the arrival of this number, or drop it. Raises RefusedThoughItFits."""
        found = self.capacity.place(gang_of_pod(self._policy, pod))
        if isinstance(found, tuple):
            self.placed += pod.total_gpu_milli
            node = self.capacity.nodes[found[0].node]
            self.measure.changed(node)
            self.scoring.placed(node)
            return
        self.dropped += 1
        if pod not in self._refused and any(takes_pod(node, pod) for node in self.capacity.nodes.values()):
            raise RefusedThoughItFits(f"{self._run}, arrival {number}: dropped, but a node has room for it")
        self._refused.add(pod)  # nothing leaves: it fits nowhere later either


def scoring_of(trace: Trace, policy: str, seed: int) -> Scoring:
    """The published policy of this name, or the committer's default, which learns."""
    if policy == DEFAULT:
        return CommitterPolicy(policy, nodes_of(trace, seed))
    return FixedScoring(BASELINES[policy](trace, seed))


def replay(
    trace: Trace,
    policy: str,
    seed: int,
    causes: bool = False,
    window: Window | None = None,
    scoring: Scoring | None = None,
) -> FillingRun:
    """
    Fill the cluster once.

    Args:
        window: of a queue that may reorder; without it each pod is placed when it arrives. Only for `tessera`.
        scoring: another policy than `scoring_of` gives.
    Raises: RefusedThoughItFits.
    """
    filling = Filling(trace, policy, seed, scoring or scoring_of(trace, policy, seed))
    order = arrivals([pod.total_gpu_milli for pod in trace.pods], seed, trace.gpu_milli).tolist()
    pods, counts = [trace.pods[at] for at in order], Counter(trace.pods)
    x = load_percent(np.array([pod.total_gpu_milli for pod in pods], np.int64), trace.gpu_milli)
    line = WaitingPods(window or Window(waiting=1), filling)
    used, lost = np.zeros((2, len(pods)))
    sampled = np.zeros((LOAD_PERCENT + 1, len(Cause)))
    for number, pod in enumerate(pods):
        filling.see(pod)
        line.join(pod, number, last=number == len(pods) - 1)
        used[number], lost[number] = filling.placed, filling.measure.total
        if causes and (number + 1 == len(pods) or x[number + 1] != x[number]):
            idle_by_cause = stranded(list(filling.capacity.nodes.values()), counts).sum(axis=0)
            sampled[min(x[number], LOAD_PERCENT)] = idle_by_cause / WHOLE_GPU
    allocated, of_all = used / trace.gpu_milli, lost / filling.measure.unit / trace.gpu_milli
    return FillingRun(
        policy,
        seed,
        len(pods),
        filling.dropped,
        100 * curve(x, allocated),
        100 * curve(x, of_all),
        100 * curve(x, of_all / np.maximum(1 - allocated, 1e-12)),
        sampled if causes else None,
        filling.scoring.priced,
    )
