"""
A trace's shares of GPUs as MIG instances, claimed of GPUs that a driver publishes (DRA); other pods get whole GPUs.

A share becomes the smallest instance of an 80 GB GPU with its part of the memory; where none is as large, a whole GPU.
All GPUs of the trace's nodes count as such GPUs, and CPU and memory are left out: on these nodes, made for whole GPUs,
they would end long before the GPUs do. Arrivals, order of nodes and reading are those of the published protocol.

`first-fit` and `lowest-slot` are written apart from the engine, on slices of memory and compute alone; `bestfit` is the
engine while nothing is learnt, and `tessera` the engine as it learns from the arrivals what is claimed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tessera.client.outcomes import Exit, Failure
from tessera.domain.devices.claims import ChoiceNeed, ClaimNeed, RequestNeed
from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.offers import DeviceClass, Offer, Selection
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node, RoleNeed
from tessera.domain.folding.device_offers import see_claims
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang, gang_of
from tessera.engine.placement.gangs import FreeCapacity
from tessera_lab.pack.cluster import POOL, ROLE
from tessera_lab.pack.protocol import LOAD_PERCENT, MOST_PODS_PER_NODE, arrivals, curve, load_percent, node_order
from tessera_lab.traces.alibaba import Trace, TracePod
from tessera_schemas.cluster.device_layouts import DeviceLayout, DevicePool, OfferedDevice, selectors_digest
from tessera_schemas.cluster.mig import GEOMETRIES
from tessera_schemas.facts import NodeSeen

GEOMETRY = GEOMETRIES["80gb"]
DRIVER, WHOLE_CLASS = "gpu.nvidia.com", "whole"
CLAIMED = ("1g.10gb", "2g.20gb", "3g.40gb")
"""Profiles that shares become, by size; the others of a GPU are published, too, and nobody asks for them."""
MEMORY_SLICES, COMPUTE_SLICES = GEOMETRY.slices, 7

ClaimedPiece = tuple[str, int]
"""What a pod claims: a profile, or `WHOLE_CLASS`; and how many."""


def piece_of(pod: TracePod) -> ClaimedPiece:
    """The smallest instance with the pod's share of a GPU's memory, else its whole GPUs."""
    if pod.gpus == 1:
        for name in CLAIMED:
            if pod.gpu_milli <= milli_of(name):
                return name, 1
    return WHOLE_CLASS, pod.gpus


def milli_of(name: str) -> int:
    """Thousandths of a GPU that an instance is, by its memory."""
    return WHOLE_GPU if name == WHOLE_CLASS else GEOMETRY.profiles[name].size * GEOMETRY.milli_per_slice


def published(gpus: int) -> DeviceLayout:
    """So many GPUs with all their legal instances, each of which consumes slices of memory and of compute."""
    slices = MEMORY_SLICES + 1
    devices = [
        OfferedDevice(
            pool=0,
            name=f"gpu-{gpu}" if name == WHOLE_CLASS else f"gpu-{gpu}-{name.replace('.', '-')}-{start}",
            uses=(*((slices * gpu + at, 1) for at in range(start, start + size)), (slices * (gpu + 1) - 1, compute)),
            gpu=gpu,
            gpu_milli=milli_of(name),
        )
        for gpu in range(gpus)
        for name, start, size, compute in _legal()
    ]
    counters = (*(1,) * MEMORY_SLICES, COMPUTE_SLICES) * gpus
    return DeviceLayout(pools=(DevicePool(driver=DRIVER),), counters=counters, devices=tuple(devices), kinds="44" * 32)


def _legal() -> Iterator[tuple[str, int, int, int]]:
    """Name, first slice, slices of memory and of compute; the whole GPU first, as drivers list it."""
    yield WHOLE_CLASS, 0, MEMORY_SLICES, COMPUTE_SLICES
    for name, profile in GEOMETRY.profiles.items():
        yield from ((name, start, profile.size, int(name[0])) for start in profile.starts)


def _compute_of(name: str) -> int:
    return next(compute for of, _, _, compute in _legal() if of == name)


def offer_of(gpus: int) -> Offer:
    """The devices with a class for each profile, and one for whole GPUs."""
    layout = published(gpus)
    named = [name for _ in range(gpus) for name, *_ in _legal()]
    selections = {
        selectors_digest((name,)): Selection(sum(1 << at for at, each in enumerate(named) if each == name))
        for name in (*CLAIMED, WHOLE_CLASS)
    }
    return Offer(layout.digest(), layout, CLASSES, selections)


CLASSES = {name: DeviceClass(name, (name,)) for name in (*CLAIMED, WHOLE_CLASS)}


def gang_for(piece: ClaimedPiece) -> Gang:
    """A gang of one pod with one claim."""
    name, count = piece
    choice = ChoiceNeed("", name, count=count, gpu_milli=milli_of(name))
    claim = ClaimNeed("gpu", (RequestNeed("gpu", (choice,)),))
    return gang_of((RoleNeed(ROLE, 1, Need(0, 0, claims=(claim,))),))


class InstanceBook(Protocol):
    """The nodes of one run."""

    def place(self, piece: ClaimedPiece) -> bool:
        """Whether the arrival found room, which it has from now on."""


class EngineBook:
    """Placed by the engine; `learns`: nodes are told what is usually claimed, as the committer tells them."""

    def __init__(self, gpus: Sequence[int], learns: bool) -> None:
        offers = {count: offer_of(count) for count in {*gpus}}
        nodes = [_node(place, count, offers[count]) for place, count in enumerate(gpus)]
        self._state, self._learns = State(), learns
        for name, device_class in CLASSES.items():
            self._state.device_classes.put(name, device_class)
        self._capacity = FreeCapacity(nodes)

    def place(self, piece: ClaimedPiece) -> bool:
        """Whether the engine found devices; it learns from the arrival first, as from a job that is taken in."""
        gang = gang_for(piece)
        if self._learns:
            self._see(gang)
        return isinstance(self._capacity.place(gang), tuple)

    def _see(self, gang: Gang) -> None:
        mix = self._state.mixes.get(POOL)
        see_claims(self._state, POOL, gang)
        now = self._state.mixes.get(POOL)
        if now is not None and now.pieces != (() if mix is None else mix.pieces):
            told = [replace(node, pieces=now.pieces) for node in self._capacity.nodes.values()]
            self._capacity = FreeCapacity(told)


def _node(place: int, gpus: int, offer: Offer) -> Node:
    seen = NodeSeen(
        kind="node_seen",
        name=f"node-{place:05d}",
        pool=POOL,
        cpu_milli=1,
        memory_bytes=1,
        pods=MOST_PODS_PER_NODE,
        gpus=gpus,
        device_profile="dra",
    )
    return replace(empty_node(seen), offer=offer)


SLOTS = {
    name: ([(1 << size) - 1 << start for of, start, size, _ in _legal() if of == name], _compute_of(name))
    for name in (*CLAIMED, WHOLE_CLASS)
}
"""Of each piece the slices of memory that it may lie on, as bits, lowest first; and how many of compute it takes."""


class SlotBook:
    """
    Each instance in the lowest slot of the lowest GPU that has one, of the first node or (`fullest`) the fullest one.
    """

    def __init__(self, gpus: Sequence[int], fullest: bool) -> None:
        self._taken = [[0] * count for count in gpus]
        self._compute = [[COMPUTE_SLICES] * count for count in gpus]
        self._free = [count * WHOLE_GPU for count in gpus]
        self._fullest, self._refused = fullest, set[ClaimedPiece]()

    def place(self, piece: ClaimedPiece) -> bool:
        """Whether a node has the slots."""
        # Nothing leaves: what fits nowhere fits nowhere later either.
        if piece in self._refused:
            return False
        needed = milli_of(piece[0]) * piece[1]
        nodes = [node for node, free in enumerate(self._free) if free >= needed]
        if self._fullest:
            nodes.sort(key=lambda node: (self._free[node], node))
        for node in nodes:
            slots = self._slots(node, piece)
            if len(slots) == piece[1]:
                for gpu, mask in slots:
                    self._take(node, gpu, mask, piece[0])
                return True
        self._refused.add(piece)
        return False

    def _slots(self, node: int, piece: ClaimedPiece) -> list[tuple[int, int]]:
        name, count = piece
        masks, needed = SLOTS[name]
        found = list[tuple[int, int]]()
        for gpu, (taken, compute) in enumerate(zip(self._taken[node], self._compute[node], strict=True)):
            mask = next((mask for mask in masks if not taken & mask), 0) if needed <= compute else 0
            if mask:
                found.append((gpu, mask))
            if len(found) == count:
                break
        return found

    def _take(self, node: int, gpu: int, mask: int, name: str) -> None:
        self._taken[node][gpu] |= mask
        self._compute[node][gpu] -= SLOTS[name][1]
        self._free[node] -= milli_of(name)


POLICIES = ("first-fit", "lowest-slot", "bestfit", "tessera")


@dataclass(frozen=True, slots=True)
class InstanceRun:
    """One run; `allocated_…` are per cent of the cluster's GPUs when so many per cent of them have been asked for."""

    trace: str
    policy: str
    seed: int
    gpus: int
    arrivals: int
    dropped: int
    allocated_95: float
    allocated_100: float
    allocated_130: float


def fill(trace: Trace, policy: str, seed: int, shares_only: bool = False, every: int = 1) -> InstanceRun:
    """Fill every so many-th of the trace's nodes once, with all pods that have GPUs or those with shares alone."""
    pieces = [piece_of(pod) for pod in trace.pods if pod.gpus]
    pieces = [piece for piece in pieces if not shares_only or piece[0] != WHOLE_CLASS]
    there = trace.nodes[::every]
    gpus = [0] * len(there)
    for node, place in zip(there, node_order(len(there), seed).tolist(), strict=True):
        gpus[place] = node.gpus
    total = sum(gpus) * WHOLE_GPU
    book = _book(policy, gpus)
    order = [pieces[at] for at in arrivals([_milli(piece) for piece in pieces], seed, total).tolist()]
    x = load_percent(np.array([_milli(piece) for piece in order], np.int64), total)
    # A part of the nodes has all pods of the trace to arrive, of which the first are enough.
    x = x[x <= LOAD_PERCENT]
    used, placed, dropped = np.zeros(len(x)), 0, 0
    for number, piece in enumerate(order[: len(x)]):
        if book.place(piece):
            placed += _milli(piece)
        else:
            dropped += 1
        used[number] = placed
    allocated = 100 * curve(x, used / total)
    at = [round(float(allocated[load]), 4) for load in (95, 100, LOAD_PERCENT)]
    return InstanceRun(trace.name, policy, seed, sum(gpus), len(x), dropped, *at)


def _milli(piece: ClaimedPiece) -> int:
    return milli_of(piece[0]) * piece[1]


def _book(policy: str, gpus: Sequence[int]) -> InstanceBook:
    if policy in POLICIES[:2]:
        return SlotBook(gpus, policy == "lowest-slot")
    return EngineBook(gpus, policy == "tessera")


def parse_policies(text: str) -> list[str]:
    """Names of policies, with commas between them. Raises Failure for another name."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in POLICIES]
    if unknown or not names:
        raise Failure(Exit.USAGE, f"lab: the policies for instances are {', '.join(POLICIES)}, not {text!r}")
    return list(dict.fromkeys(names))


def lines_of(runs: Sequence[InstanceRun], separator: str = "") -> list[str]:
    """A table, or with a separator a file of such values."""
    head = tuple(InstanceRun.__slots__)
    rows = [tuple(str(getattr(run, name)) for name in head) for run in runs]
    if separator:
        return [separator.join(row) for row in (head, *rows)]
    return ["".join(f"{value:>15}" for value in row) for row in (head, *rows)]
