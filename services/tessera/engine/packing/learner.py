"""
Keeps the prices of a packer up with the jobs it sees.

Pricing takes a few seconds, off the decision path; what comes of it is an integer table, so that a record may carry it
and a replay need not learn anything.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from tessera.engine.packing.arrays import WHOLE, Ints
from tessera.engine.packing.choosing import CPU_PER_GPU
from tessera.engine.packing.fragmentation import Kind
from tessera.engine.packing.learning import Mix, next_repricing, with_bound
from tessera.engine.packing.market import Terms, draw_tables, learn_prices
from tessera.engine.packing.packer import DEFAULT_CPU_PER_GPU, Packer
from tessera.engine.packing.pricing import Shape, Table
from tessera.engine.packing.rehearsal import Rehearsal, rehearse

USUAL = Terms()
TRIED = Rehearsal()


class Learner:
    """Counts arrivals, and prices the mix anew when it is time. The nodes are taken as they are at the start."""

    def __init__(self, packer: Packer, terms: Terms = USUAL, plan: Rehearsal = TRIED) -> None:
        self._packer, self._terms, self._plan, self._shapes = packer, terms, plan, packer.shapes()
        gpus = sum(shape.gpus * shape.nodes for shape in self._shapes)
        cpu = sum(shape.cpu * shape.nodes for shape in self._shapes)
        self._cpu_per_gpu = cpu // gpus if gpus else DEFAULT_CPU_PER_GPU
        self.mix = Mix(self._cpu_per_gpu)
        self._reprice()

    @property
    def due_in(self) -> int:
        """Arrivals until the next pricing; 0 when it is time."""
        return max(0, self._next - self.mix.arrivals)

    def see(self, classes: Ints) -> None:
        """These have arrived, whether placed or not."""
        for t, times in zip(*np.unique(classes, return_counts=True), strict=True):
            self.mix.see(self._packer.asks[t].kind, int(times))
        if not self.due_in:
            self._reprice()

    def _reprice(self) -> None:
        arrivals, models = self.mix.arrivals, self._packer.size.models
        weights = with_bound(self.mix.weights(), arrivals, self._cpu_per_gpu, models)
        self._next = next_repricing(self.mix.arrivals)
        plan = self._plan if arrivals >= self._plan.from_arrivals else None
        prices = _remembered(tuple(weights.items()), self._shapes, models, self._terms, plan)
        if prices:
            self._packer.know(weights)
            self._packer.core.scales.weights[CPU_PER_GPU] = usual_cpu(weights)
            self._packer.price(prices)


def usual_cpu(weights: Mapping[Kind, int]) -> int:
    """Thousandths of a CPU that the pods with GPUs ask for beside each of them, on average."""
    milli = sum(weight * kind.devices * kind.milli for kind, weight in weights.items())
    cpu = sum(weight * kind.cpu for kind, weight in weights.items() if kind.devices)
    return max(1, cpu * WHOLE // milli) if milli else DEFAULT_CPU_PER_GPU


@lru_cache(maxsize=16)
def _remembered(
    weights: tuple[tuple[Kind, int], ...], shapes: tuple[Shape, ...], models: int, terms: Terms, plan: Rehearsal | None
) -> Table:
    """Many packers begin with the same mix. Without a plan nothing is tried."""
    mix = dict(weights)
    if plan is None:
        return learn_prices(mix, shapes, models, terms)
    tables = draw_tables(mix, shapes, models, terms)
    return rehearse(mix, shapes, models, usual_cpu(mix), tables, plan) if tables else ()
