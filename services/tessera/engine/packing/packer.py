"""
The placement core behind one interface: nodes by index, classes by index, places and releases.

    packer = Packer(FGD, nodes=1213, devices=8, models=7)
    packer.set_node(0, cpu=96_000, memory=393_216, pods=110, gpus=8, model=2)
    small = packer.add_class(Ask(cpu=4_000, memory=16_384, count=1, milli=460))
    node, devices = packer.place(small)        # or NOWHERE
    packer.release(small, node, devices)
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tessera.engine.packing.arrays import (
    MODELS,
    NO_DEVICE,
    WHOLE,
    Bits,
    Ints,
    kind_of,
    no_classes,
    no_nodes,
)
from tessera.engine.packing.best import no_best
from tessera.engine.packing.choosing import (
    FGD,
    NOWHERE,
    TESSERA,
    Core,
    best_node,
    place_all,
    put,
    release,
    touch,
)
from tessera.engine.packing.fragmentation import STEPS, Kind, Workload, nothing_known, typical, workload
from tessera.engine.packing.worth import no_worth


class Ask(NamedTuple):
    """What one pod asks for; see `Classes`."""

    cpu: int
    memory: int
    count: int = 0
    milli: int = WHOLE
    models: int = 0

    @property
    def kind(self) -> Kind:
        """Memory does not count."""
        return Kind(self.cpu, self.milli if self.count else 0, self.count, self.models)


class Packer:
    def __init__(self, policy: int, nodes: int, devices: int, models: int, order=None, seed: int = 0, classes: int = 64,
                 levels: int = 2, states: int = 1024, weights=(200, 50, 22_000, 10_000)) -> None:
        self.models, self.devices = models, devices
        pool = no_nodes(nodes, devices)
        if order is not None:
            pool.order[:] = order
        by_order = np.empty(nodes, np.int64)
        by_order[pool.order] = np.arange(nodes)
        self.core = Core(policy, pool, no_classes(classes, nodes), no_best(classes, nodes), by_order,
            nothing_known(models, devices), no_worth(nodes, devices, models, levels, states),
            np.array(weights, np.int64), STEPS, np.array([seed, 0], np.int64))
        self.asks: list[Ask] = []

    def set_node(self, n, cpu, memory, pods, gpus, model):
        nodes = self.core.nodes
        nodes.cpu[n], nodes.memory[n], nodes.pods[n], nodes.gpus[n], nodes.model[n] = cpu, memory, pods, gpus, model
        nodes.free[n, :] = NO_DEVICE
        nodes.free[n, :gpus] = WHOLE
        nodes.live[n] = 1
        touch(self.core, n)

    def add_class(self, ask: Ask, mask=None) -> int:
        t = len(self.asks)
        self.asks.append(ask)
        if t >= self.core.classes.cpu.shape[0]:
            self._grow()
        c, nodes = self.core.classes, self.core.nodes
        c.cpu[t], c.memory[t], c.count[t], c.milli[t], c.models[t] = ask
        c.kind[t] = kind_of(ask.count, ask.milli)
        c.allowed[t] = (ask.models == 0) | (ask.models >> nodes.model & 1)
        if mask is not None:
            c.allowed[t] &= mask
        self.core.best.cursor[t] = -1
        return t

    def _grow(self):
        old = self.core.classes
        nodes = self.core.nodes.cpu.shape[0]
        bigger = no_classes(2 * old.cpu.shape[0], nodes)
        for a, b in zip(old, bigger):
            b[: a.shape[0]] = a
        ob, nb = self.core.best, no_best(bigger.cpu.shape[0], nodes)
        nb.keys[: ob.keys.shape[0]] = ob.keys
        nb.cursor[: ob.cursor.shape[0]] = ob.cursor
        nb.changes[:] = ob.changes; nb.counts[:] = ob.counts; nb.stamp[:] = ob.stamp
        self.core = self.core._replace(classes=bigger, best=nb)

    def set_workload(self, known: Workload):
        self.core = self.core._replace(known=known)
        self.core.best.cursor[:] = -1
        self.core.worth.seen[:] = -1
