"""
Keeps the prices of a packer up with the jobs it sees; and learns prices for whoever only asks.

Pricing takes a few seconds, off the decision path; what comes of it is an integer table, so that a record may carry it
and a replay need not learn anything. The mix is that of the state (`domain/mix`), settled and priced by its schedule.
"""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from tessera.domain import mix
from tessera.domain.mix import DEAREST, in_full
from tessera.engine.pricing.arrays import WHOLE, Ints
from tessera.engine.pricing.choosing import CPU_PER_GPU
from tessera.engine.pricing.dual_prices import Terms, draw_tables, learn_prices, rounded
from tessera.engine.pricing.fragmentation import TypicalPod
from tessera.engine.pricing.packer import Packer
from tessera.engine.pricing.pricing_problem import REHEARSED_FROM, Lesson
from tessera.engine.pricing.simulated_filling import Rehearsal, rehearse
from tessera.engine.pricing.worth_tables import Shape, Table

USUAL = Terms()
TRIED = Rehearsal()


class Learner:
    """Counts arrivals, and prices the mix anew when it is time. The nodes are taken as they are at the start."""

    def __init__(self, packer: Packer, terms: Terms = USUAL, plan: Rehearsal = TRIED) -> None:
        self._packer, self._terms, self._plan, self._shapes = packer, terms, plan, packer.shapes()
        gpus = sum(shape.gpus * shape.nodes for shape in self._shapes)
        cpu = sum(shape.cpu * shape.nodes for shape in self._shapes)
        self._cpu_per_gpu = cpu // gpus if gpus else mix.USUAL_CPU_PER_GPU
        self._models = tuple(f"{model:02}" for model in range(packer.size.models))
        self._counts: Counter[mix.MixKind] = Counter()
        self.arrivals = 0
        self._reprice()

    @property
    def due_in(self) -> int:
        """Arrivals until the next pricing; 0 when it is time."""
        return max(0, self._next - self.arrivals)

    def see(self, classes: Ints) -> None:
        """These have arrived, whether placed or not."""
        for t, times in zip(*np.unique(classes, return_counts=True), strict=True):
            self._counts[self._named(self._packer.asks[t].kind)] += int(times)
            self.arrivals += int(times)
        if not self.due_in:
            self._reprice()

    @property
    def weights(self) -> dict[TypicalPod, int]:
        """The mix as it would be priced now."""
        known = mix.weights(self._counts, self.arrivals, self._cpu_per_gpu, self._models)
        return {self._numbered(kind): weight for kind, weight in known.items()}

    def _reprice(self) -> None:
        weights = self.weights
        plan = self._plan if self.arrivals >= REHEARSED_FROM else None
        prices = _remembered(tuple(sorted(weights.items())), self._shapes, len(self._models), self._terms, plan)
        if prices:
            self._packer.know(weights)
            self._packer.core.scales.weights[CPU_PER_GPU] = usual_cpu(weights)
            self._packer.price(prices)
        while self.arrivals >= mix.ARRIVALS_MAX:
            self.arrivals //= 2
            self._counts = Counter({kind: count // 2 for kind, count in self._counts.items() if count > 1})
        self._next = mix.settle_at(self.arrivals)

    def _named(self, kind: TypicalPod) -> mix.MixKind:
        bound = tuple(name for model, name in enumerate(self._models) if kind.models >> model & 1)
        return mix.MixKind(kind.cpu, kind.milli, kind.devices, bound)

    def _numbered(self, kind: mix.MixKind) -> TypicalPod:
        bits = sum(1 << int(name) for name in kind.models)
        return TypicalPod(kind.cpu_milli, kind.gpu_milli, kind.gpus, bits)


def learnt(lesson: Lesson, terms: Terms = USUAL, plan: Rehearsal = TRIED) -> tuple[int, ...]:
    """
    The prices of a lesson's kinds, in millionths of a GPU.

    What runs nowhere is worth what it holds, so that it can be told from what nobody need keep room for.
    """
    weights: Counter[TypicalPod] = Counter()
    for *kind, weight in lesson.kinds:
        weights[TypicalPod(*kind)] += weight
    shapes = tuple(Shape(*shape) for shape in lesson.shapes)
    mixed = {kind: weight for kind, weight in weights.items() if weight}
    table = dict(learn(mixed, shapes, lesson.models, terms, plan if lesson.rehearsed else None))
    found = []
    for cpu, milli, devices, bits, weight in lesson.kinds:
        full = in_full(mix.MixKind(cpu, milli, devices))
        price = table.get(rounded(TypicalPod(cpu, milli, devices, bits)), 0) if weight else full
        found.append(min(price, DEAREST * full))
    return tuple(found)


def learn(
    weights: Mapping[TypicalPod, int], shapes: tuple[Shape, ...], models: int, terms: Terms, plan: Rehearsal | None
) -> Table:
    """Without a plan nothing is tried."""
    if plan is None:
        return learn_prices(weights, shapes, models, terms)
    tables = draw_tables(weights, shapes, models, terms)
    return rehearse(weights, shapes, models, usual_cpu(weights), tables, plan) if tables else ()


@lru_cache(maxsize=16)
def _remembered(
    weights: tuple[tuple[TypicalPod, int], ...],
    shapes: tuple[Shape, ...],
    models: int,
    terms: Terms,
    plan: Rehearsal | None,
) -> Table:
    """Many packers begin with the same mix."""
    return learn(dict(weights), shapes, models, terms, plan)


def usual_cpu(weights: Mapping[TypicalPod, int]) -> int:
    """Thousandths of a CPU that the pods with GPUs ask for beside each of them, on average."""
    milli = sum(weight * kind.devices * kind.milli for kind, weight in weights.items())
    cpu = sum(weight * kind.cpu for kind, weight in weights.items() if kind.devices)
    return max(1, cpu * WHOLE // milli) if milli else mix.USUAL_CPU_PER_GPU
