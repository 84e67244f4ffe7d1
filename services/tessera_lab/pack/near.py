"""
Gangs in place of a trace's pods, on nodes that stand in racks: how near each other their pods are, and what it costs.

No published trace says both which pods were one gang and where their nodes stood. So both are made up: a pod of whole
GPUs comes as a gang of 1, 2, 4, 8 or 16 such pods, each number half as often as the one before; eight nodes that follow
on each other in the trace are a rack, and eight racks a zone. Arrivals, order of nodes and reading are those of the
published protocol, up to 130 % of the GPUs. Every gang says nothing of its place; the policy's `gang_topology` alone
differs between two runs of a seed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import mean

import numpy as np

from tessera.domain.devices.levels import with_levels
from tessera.domain.devices.resources import Node
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang, gang_of
from tessera.engine.placement.gangs import FreeCapacity
from tessera_lab.pack.cluster import MIB, RefusedThoughItFits, gang_for, nodes_of
from tessera_lab.pack.learning import DEFAULT, HOW, CommitterPolicy, LearnAtOnce, learnt
from tessera_lab.pack.protocol import LOAD_PERCENT, curve, load_percent
from tessera_lab.traces.alibaba import WHOLE, Trace, TracePod
from tessera_schemas.work.placement import Placement

GANG_TOPOLOGIES = "unconstrained", "preferred"
LEVELS = {"zone": "lab/zone", "rack": "lab/rack"}
NODES_IN_RACK, NODES_IN_ZONE = 8, 64
SIZES = (1,) * 16 + (2,) * 8 + (4,) * 4 + (8,) * 2 + (16,)

ArrivingGang = tuple[TracePod, int]
"""A pod of the trace, and how many of it are one gang."""


@dataclass(frozen=True, slots=True)
class NearRun:
    """
    One run. `allocated_…` are per cent of the cluster's GPUs when so many per cent of them have been asked for; all
    else is of gangs of several pods that found room: how many there were, how many zones, racks and nodes one is on,
    and per cent of neighbours in rank that are in two racks.
    """

    trace: str
    gang_topology: str
    seed: int
    arrivals: int
    dropped: int
    allocated_100: float
    allocated_130: float
    gangs: int
    zones: float
    racks: float
    nodes: float
    racks_apart: float


def fill_near(
    trace: Trace, gang_topology: str, seed: int, learnt_by: str = HOW[0], learn: LearnAtOnce = learnt
) -> NearRun:
    """
    Fill the cluster once, as the committer would by its default policy. `learnt_by` is one of `HOW`.

    Raises: RefusedThoughItFits.
    """
    nodes = nodes_of(trace, seed, _labels)
    scoring = CommitterPolicy(DEFAULT, nodes, learnt_by, learn=learn)
    capacity = FreeCapacity(nodes, scoring=scoring.in_force())
    order = arriving(trace, seed)
    asked = np.array([pod.total_gpu_milli * count for pod, count in order], np.int64)
    used, placed, dropped = np.zeros(len(order)), 0, 0
    several: list[tuple[Placement, ...]] = []
    for number, (pod, count) in enumerate(order):
        gang = gang_in(pod, count, gang_topology)
        scoring.see((gang,))
        if scoring.in_force() is not capacity.places.scoring:
            capacity = FreeCapacity(capacity.nodes.values(), scoring=scoring.in_force())
        found = capacity.place(gang)
        if isinstance(found, tuple):
            placed += int(asked[number])
            for name in {placement.node for placement in found}:
                scoring.placed(capacity.nodes[name])
            if count > 1:
                several.append(found)
        elif _fits(capacity.nodes.values(), pod, count):
            raise RefusedThoughItFits(f"{gang_topology}, seed {seed}, arrival {number}: dropped, but there is room")
        else:
            dropped += 1
        used[number] = placed
    allocated = 100 * curve(load_percent(asked, trace.gpu_milli), used / trace.gpu_milli)
    domains = [{node.name: node.label(label) or "" for node in nodes} for label in LEVELS.values()]
    zones, racks = ([[of[placement.node] for placement in gang] for gang in several] for of in domains)
    apart = [one != other for gang in racks for one, other in pairwise(gang)]
    return NearRun(
        trace.name,
        gang_topology,
        seed,
        len(order),
        dropped,
        round(float(allocated[100]), 4),
        round(float(allocated[LOAD_PERCENT]), 4),
        len(several),
        _mean_different(zones),
        _mean_different(racks),
        _mean_different([[p.node for p in gang] for gang in several]),
        round(100 * mean(apart), 2) if apart else 0.0,
    )


def arriving(trace: Trace, seed: int) -> list[ArrivingGang]:
    """All pods of the trace in an order by chance, then drawn with replacement, as gangs, up to 130 % of the GPUs."""
    random, most = Random(f"gangs {seed}"), trace.gpu_milli * LOAD_PERCENT // 100
    pods, found, load = list(trace.pods), list[ArrivingGang](), 0
    random.shuffle(pods)
    while True:
        pod = pods[len(found)] if len(found) < len(pods) else random.choice(pods)
        count = random.choice(SIZES) if pod.gpu_milli == WHOLE else 1
        load += pod.total_gpu_milli * count
        if load > most:
            return found
        found.append((pod, count))


def gang_in(pod: TracePod, count: int, gang_topology: str) -> Gang:
    """So many of the pod as a gang on one GPU model, as a configuration with this policy takes it in."""
    (role,) = gang_for(pod)
    if count == 1:
        return gang_of((role,))
    return gang_of(with_levels((replace(role, replicas=count, one_model=role.name),), LEVELS, gang_topology))


def _labels(at: int) -> dict[str, str]:
    return {LEVELS["zone"]: f"z{at // NODES_IN_ZONE:03}", LEVELS["rack"]: f"r{at // NODES_IN_RACK:03}"}


def _fits(nodes: Iterable[Node], pod: TracePod, count: int) -> bool:
    """Whether nodes of one model could take the gang: a second look, written apart from the engine's."""
    room: dict[str, int] = {}
    for node in nodes:
        if pod.models and node.gpu_model not in pod.models:
            continue
        most = [node.pods_free]
        if pod.cpu_milli:
            most.append(node.cpu_free // pod.cpu_milli)
        if pod.memory_mib:
            most.append(node.memory_free // (pod.memory_mib * MIB))
        if pod.gpus:
            most.append(sum(left >= pod.gpu_milli for left in node.gpu_free) // pod.gpus)
        model = node.gpu_model if count > 1 else ""
        room[model] = room.get(model, 0) + max(0, min(most))
    return max(room.values(), default=0) >= count


def _mean_different(found: Sequence[Sequence[str]]) -> float:
    return round(mean(len({*each}) for each in found), 3) if found else 0.0


def lines_of(runs: Sequence[NearRun], separator: str = "") -> list[str]:
    """A table, or with a separator a file of such values."""
    head = tuple(NearRun.__slots__)
    rows = [tuple(str(getattr(run, name)) for name in head) for run in runs]
    if separator:
        return [separator.join(row) for row in (head, *rows)]
    return ["".join(f"{value:>15}" for value in row) for row in (head, *rows)]
