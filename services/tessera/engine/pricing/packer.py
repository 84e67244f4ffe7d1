"""
The placement core behind one interface: nodes by index, classes of equal pods by index, places and releases.

    packer = Packer(Size(nodes=1213, devices=8, models=7, largest_cpu=128_000), "tessera")
    packer.set_node(0, Room(cpu=96_000, memory=393_216, pods=110, model=2, free=(1000,) * 8))
    small = packer.add_class(Ask(cpu=4_000, memory=16_384, devices=1, milli=460))
    where = packer.place(small)                # Place(node, devices), or None
    packer.release(small, where)

What is not about room (selectors, taints, topology) comes in as a mask per class. Equal calls give equal answers: no
clock, no chance, no float. Not safe to use from two threads at once.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tessera.domain.mix import USUAL_CPU_PER_GPU
from tessera.engine.pricing.arrays import MODELS, NO_DEVICE, WHOLE, Bits, Classes, Ints, kind_of, no_classes, no_nodes
from tessera.engine.pricing.best import ORDER_MASK, no_best
from tessera.engine.pricing.choosing import NOWHERE, TESSERA, Core, Scales, place_all, place_one, release, touch
from tessera.engine.pricing.fitting import fits
from tessera.engine.pricing.fragmentation import STEPS, TypicalPod, nothing_known, workload
from tessera.engine.pricing.policies import DEFAULT, POLICIES
from tessera.engine.pricing.worth import EMPTY, forget, no_worth, smallest_with_same_worth
from tessera.engine.pricing.worth_tables import Shape, Table, tables
from tessera.engine.scoring.price_aware import FRAGMENTED, PULL, STRANDED
from tessera.engine.scoring.worth import FINEST_STEP, LEVELS

STATES = 32_768
MOST_DEVICES = 32

WEIGHTS = (FRAGMENTED, STRANDED, PULL, USUAL_CPU_PER_GPU)


class PoolSize(NamedTuple):
    """What a pool may grow to without being built anew."""

    nodes: int
    devices: int  # of one node
    models: int
    largest_cpu: int  # of one node, in thousandths


class NodeRoom(NamedTuple):
    """What is free on a node now."""

    cpu: int
    memory: int
    pods: int
    model: int
    free: tuple[int, ...]  # thousandths of each device


class Ask(NamedTuple):
    """What one pod asks for: `milli` thousandths of each of its devices, of one of the models in `models` (bits)."""

    cpu: int
    memory: int
    devices: int = 0
    milli: int = WHOLE
    models: int = 0

    @property
    def kind(self) -> TypicalPod:
        """What the learnt mix tells apart: everything but memory."""
        return TypicalPod(self.cpu, self.milli if self.devices else 0, self.devices, self.models)


class Place(NamedTuple):
    node: int
    devices: int  # bits by device number


class Packer:
    def __init__(
        self, size: PoolSize, policy: str = DEFAULT, order: Sequence[int] | Ints | None = None, seed: int = 0
    ) -> None:
        """
        Args:
            order: of each node, the place in the tie rule: a permutation; without it the index decides.
            seed: of the policy `random`.
        """
        if not 0 < size.models <= MODELS or not 0 < size.devices <= MOST_DEVICES or not 0 < size.nodes < ORDER_MASK:
            raise ValueError(f"no pool of this size: {size}")
        self.size, self.policy = size, policy
        self.asks: list[Ask] = []
        self.prices: Table = ()
        nodes, classes, levels = no_nodes(size.nodes, size.devices), 16, LEVELS if POLICIES[policy] == TESSERA else 1
        self.core = Core(
            policy=POLICIES[policy],
            nodes=nodes,
            classes=no_classes(classes, size.nodes),
            best=no_best(classes, size.nodes),
            by_order=nodes.order.copy(),
            known=nothing_known(size.models, size.devices),
            worth=no_worth(size.nodes, size.devices, size.models, levels, STATES if levels > 1 else 1),
            scales=Scales(np.array(WEIGHTS, np.int64), STEPS, np.array([seed, 0], np.int64)),
        )
        self.core.worth.step[0] = max(FINEST_STEP, -(-size.largest_cpu // (LEVELS - 1)))
        if order is not None:
            self.reorder(order)

    def reorder(self, order: Sequence[int] | Ints) -> None:
        """Another order for ties, for all nodes."""
        ranks = np.array(order, np.int64)
        if sorted(ranks.tolist()) != list(range(self.size.nodes)):
            raise ValueError("order is not a permutation of the nodes")
        self.core.nodes.order[:] = ranks
        self.core.by_order[ranks] = np.arange(self.size.nodes)
        self.core.best.cursor[:] = EMPTY

    def set_node(self, n: int, room: NodeRoom) -> None:
        """Add a node, or say what is free on it now."""
        if len(room.free) > self.size.devices or not 0 <= room.model < self.size.models:
            raise ValueError(f"node {n} does not fit the pool's size: {room}")
        nodes = self.core.nodes
        nodes.cpu[n], nodes.memory[n], nodes.pods[n], nodes.model[n] = room.cpu, room.memory, room.pods, room.model
        nodes.gpus[n], nodes.live[n] = len(room.free), 1
        nodes.free[n] = NO_DEVICE
        nodes.free[n, : len(room.free)] = room.free
        touch(self.core, n)

    def remove_node(self, n: int) -> None:
        """Nothing more is placed there; what runs there is not forgotten and may still be released."""
        self.core.nodes.live[n] = 0
        touch(self.core, n)

    def room(self, n: int) -> NodeRoom:
        """Room left on node `n`: CPU in thousandths, memory in the caller's unit, pods, thousandths per device."""
        nodes = self.core.nodes
        free = tuple(int(left) for left in nodes.free[n, : nodes.gpus[n]])
        return NodeRoom(int(nodes.cpu[n]), int(nodes.memory[n]), int(nodes.pods[n]), int(nodes.model[n]), free)

    def add_class(self, ask: Ask, allowed: Bits | None = None) -> int:
        """The number of a new class; `allowed` is 0 for the nodes that something else rules out."""
        if (ask.devices and not 0 < ask.milli <= WHOLE) or (ask.devices > 1 and ask.milli != WHOLE):
            raise ValueError(f"a share is of one device: {ask}")
        t = len(self.asks)
        if t == self.core.classes.cpu.shape[0]:
            self._make_room_for_classes()
        self.asks.append(ask)
        classes = self.core.classes
        classes.cpu[t], classes.memory[t], classes.devices[t], classes.milli[t], classes.models[t] = ask
        classes.kind[t] = kind_of(ask.devices, ask.milli)
        self.allow(t, allowed)
        return t

    def allow(self, t: int, allowed: Bits | None) -> None:
        """Another mask for a class; None rules nothing out."""
        self.core.classes.allowed[t] = 1 if allowed is None else allowed
        self.core.best.cursor[t] = EMPTY

    def _make_room_for_classes(self) -> None:
        old, wanted = self.core, 2 * self.core.classes.cpu.shape[0]
        classes, best = no_classes(wanted, self.size.nodes), no_best(wanted, self.size.nodes)
        for name in Classes._fields:
            before = getattr(old.classes, name)
            getattr(classes, name)[: before.shape[0]] = before
        best.keys[: old.best.keys.shape[0]] = old.best.keys
        best.cursor[: old.best.cursor.shape[0]] = old.best.cursor
        kept = best._replace(changes=old.best.changes, counts=old.best.counts, stamp=old.best.stamp)
        self.core = old._replace(classes=classes, best=kept)

    def place(self, t: int) -> Place | None:
        """Place one pod of a class on its best node, or None when it fits no node."""
        n, devices = place_one(self.core, t)
        return None if n == NOWHERE else Place(int(n), int(devices))

    def place_all(self, wanted: Sequence[int] | Ints) -> list[Place | None]:
        """Place pods one after the other, each by its class; the same as `place` for each, and faster."""
        classes = np.asarray(wanted, np.int64)
        nodes, devices = np.empty_like(classes), np.empty_like(classes)
        place_all(self.core, classes, nodes, devices)
        pairs = zip(nodes.tolist(), devices.tolist(), strict=True)
        return [None if n == NOWHERE else Place(n, taken) for n, taken in pairs]

    def release(self, t: int, place: Place) -> None:
        """A pod of the class has left the place that it was given."""
        release(self.core, t, place.node, place.devices)

    def fits(self, t: int, n: int) -> bool:
        """Tells whether a pod of class `t` could go to node `n` now."""
        return bool(fits(self.core.nodes, self.core.classes, t, n))

    def know(self, counts: Mapping[TypicalPod, int]) -> None:
        """What fragmentation is measured against, for `fgd` and `tessera`: how often each kind of pod comes."""
        self.core = self.core._replace(known=workload(counts, self.size.models, self.size.devices))
        self.core.worth.seen[:] = EMPTY
        self.core.best.cursor[:] = EMPTY

    def price(self, prices: Table) -> None:
        """Prices by kind, see `market`; all policies but `tessera` pass them over."""
        if self.core.policy != TESSERA:
            return
        self.prices = prices
        size, worth = self.size, self.core.worth
        step, levels = int(worth.step[0]), worth.spare.shape[1]
        classes, device, root = tables(prices, step, levels, size.devices, size.models)
        if root.shape[0] * root.shape[1] * 2 > worth.spare.shape[0]:
            raise ValueError(f"prices tell {root.shape[0]} classes of models apart: too many")
        same = smallest_with_same_worth(device)
        renewed = worth._replace(model_class=classes, device=device, same=same, root=root)
        self.core = self.core._replace(worth=renewed)
        forget(self.core.worth)
        self.core.best.cursor[:] = EMPTY

    def shapes(self) -> tuple[Shape, ...]:
        """The nodes by model, devices and CPU, counted, with what is free there now."""
        nodes = self.core.nodes
        live = nodes.live == 1
        rows, counts = np.unique(
            np.stack([nodes.model[live], nodes.gpus[live], nodes.cpu[live]], 1), axis=0, return_counts=True
        )
        found = zip(rows.tolist(), counts.tolist(), strict=True)
        return tuple(Shape(model, gpus, cpu, count) for (model, gpus, cpu), count in found if gpus)
