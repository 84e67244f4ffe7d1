"""
Arrivals, their times and run times: a trace's pods over and over, at a load in per cent of the cluster's GPUs.

The load fixes how long one pass through the trace takes: the pods' GPU-seconds over load times GPUs. In each pass every
pod arrives once, at a moment drawn uniformly. So arrivals are as random as Poisson ones at short range, yet every pass
offers exactly the load. True Poisson arrivals would not do: lifetimes are so skewed (median 10 minutes, half of the
GPU-seconds in pods of 2 days and more) that the load of any run one can afford would be off by points.

A run starts in the steady state of a cluster without limits, not empty: to fill it would take months. Put the lifetimes
end to end; a pod stands at each point of that line one pass after the other, from a random first one, and where in its
lifetime the point falls is its age. They arrive at moment 0, oldest first, with what is left of their lifetimes.
"""

from itertools import accumulate
from random import Random
from typing import NamedTuple

import numpy as np

from tessera.engine.pricing.arrays import Ints
from tessera.kernel.errors import StartupError
from tessera_lab.churn.lifetimes import Timed

MS = 1000
MOST_ARRIVALS = 1 << 22


class Offered(NamedTuple):
    """Arrivals in order; one element each."""

    pod: Ints  # number in the trace
    at_ms: Ints
    life_ms: Ints
    pass_ms: int


def offer(timed: Timed, load_percent: int, seed: int, end_ms: int) -> Offered:
    """All arrivals before `end_ms`. Raises: StartupError for more arrivals than a run can hold."""
    life = [seconds * MS for seconds in timed.life_s]
    pass_ms = max(1, timed.gpu_milli_seconds * MS * 100 // (load_percent * timed.trace.gpu_milli))
    expected = sum(life) // pass_ms + (end_ms // pass_ms + 1) * len(life)
    if expected > MOST_ARRIVALS:
        raise StartupError(f"{expected:,} pods would arrive, a run holds {MOST_ARRIVALS:,}: ask for fewer --days")
    random = Random(f"churn {load_percent} {seed}")
    rows = _at_start(life, pass_ms, random) + _arriving(life, pass_ms, end_ms, random)
    pod, at, left = np.array(rows, np.int64).reshape(len(rows), 3).T.copy()
    return Offered(pod, at, left, pass_ms)


def _at_start(life: list[int], pass_ms: int, random: Random) -> list[tuple[int, int, int]]:
    """The pods that run when the run begins, oldest first, with what is left of their lifetimes."""
    order = list(range(len(life)))
    random.shuffle(order)
    point, found = random.randrange(pass_ms), []
    for pod, end in zip(order, accumulate(life[pod] for pod in order), strict=True):
        while point < end:
            left = end - point
            found.append((left - life[pod], pod, left))
            point += pass_ms
    return [(pod, 0, left) for _, pod, left in sorted(found)]


def _arriving(life: list[int], pass_ms: int, end_ms: int, random: Random) -> list[tuple[int, int, int]]:
    found = [
        (first + random.randrange(pass_ms), pod) for first in range(0, end_ms, pass_ms) for pod in range(len(life))
    ]
    return [(pod, at, life[pod]) for at, pod in sorted(found) if at < end_ms]


def offered_percent(offered: Offered, gpu_milli: Ints, cluster_gpu_milli: int, start_ms: int, end_ms: int) -> float:
    """
    The mean GPUs that would run between two moments if nothing ever waited, in per cent of the cluster's.

    Args: `gpu_milli`, what each pod of the trace asks for.
    """
    last = np.minimum(offered.at_ms + offered.life_ms, end_ms)
    ran = np.maximum(0, last - np.maximum(offered.at_ms, start_ms))
    done = sum(int(each) for each in ran // MS * gpu_milli[offered.pod])
    return 100 * done / (cluster_gpu_milli * ((end_ms - start_ms) // MS))
