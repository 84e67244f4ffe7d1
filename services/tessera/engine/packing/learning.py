"""
The mix of jobs, learnt from the jobs seen so far; and when to price it anew.

Nothing is known at first, and what is placed wrongly then stays wrong for long. So a general notion of what GPU jobs
look like stands in from the start, in terms of the pool's own CPU per GPU, and fades out over the first 400 arrivals.
All state is integers and does not depend on the order in which kinds were first seen.
"""

from collections import Counter
from collections.abc import Mapping

from tessera.domain.mix import FADES_OVER, PRESUMED, PRIOR_WEIGHT, WEIGHT
from tessera.engine.packing.arrays import WHOLE
from tessera.engine.packing.fragmentation import Kind

REPRICE_AT = (50, 150, 400, 1200, 3000)  # arrivals; then whenever they have doubled


class Mix:
    """What was seen, by kind."""

    def __init__(self, cpu_per_gpu: int) -> None:
        self.seen: Counter[Kind] = Counter()
        self.arrivals = 0
        self._cpu_per_gpu = cpu_per_gpu

    def see(self, kind: Kind, times: int = 1) -> None:
        self.seen[kind] += times
        self.arrivals += times

    def weights(self) -> dict[Kind, int]:
        """How much each kind counts now, in the kinds' order."""
        mixed = Counter({kind: count * WEIGHT for kind, count in self.seen.items()})
        left = max(0, FADES_OVER - self.arrivals)
        for count, milli, cpu_percent, of_hundred in PRESUMED:
            kind = Kind(self._cpu_per_gpu * cpu_percent // 100, milli, count, 0)
            mixed[kind] += PRIOR_WEIGHT * of_hundred * left // (100 * FADES_OVER)
        return {kind: weight for kind, weight in sorted(mixed.items()) if weight}


BOUND_FADES_OVER = 3000  # arrivals: kinds bound to a model are many, and each of them is rare
BOUND_PERCENT = 20  # of what is presumed
PRESUMED_BOUND = ((1000, 30, 20), (1000, 90, 50), (500, 60, 30))
"""Thousandths of one device, CPU in per cent of the pool's CPU per GPU, and how many of a hundred bound jobs."""


def with_bound(weights: Mapping[Kind, int], arrivals: int, cpu_per_gpu: int, models: int) -> dict[Kind, int]:
    """
    The same, and for each model a few jobs presumed that run on no other.

    Without them nothing is kept free of a scarce model until the first of its jobs was seen, and then it is too late.
    """
    mixed, left = Counter(weights), max(0, BOUND_FADES_OVER - arrivals)
    presumed = PRIOR_WEIGHT * BOUND_PERCENT * left // (100 * BOUND_FADES_OVER)
    for model in range(models):
        for milli, cpu_percent, of_hundred in PRESUMED_BOUND:
            kind = Kind(cpu_per_gpu * cpu_percent // 100, milli, 1, 1 << model)
            mixed[kind] += presumed * of_hundred // (100 * models)
    return {kind: weight for kind, weight in sorted(mixed.items()) if weight}


def next_repricing(arrivals: int) -> int:
    """After how many arrivals the mix is priced next."""
    for at in REPRICE_AT:
        if at > arrivals:
            return at
    at = REPRICE_AT[-1]
    while at <= arrivals:
        at *= 2
    return at


def gpu_kinds(weights: Mapping[Kind, int], cpu_step: int) -> dict[Kind, int]:
    """The kinds that need GPUs, with CPU rounded to whole steps, and those put together that are then equal."""
    rounded: Counter[Kind] = Counter()
    for kind, weight in weights.items():
        if kind.devices:
            cpu = (2 * kind.cpu + cpu_step) // (2 * cpu_step) * cpu_step
            rounded[kind._replace(cpu=cpu, milli=min(kind.milli, WHOLE))] += weight
    return dict(sorted(rounded.items()))
