"""
The upper bound in the long run when models are told apart: pods as a fluid, GPUs of a model as one pool.

What can be allocated is a maximum flow from demand to models, so the smallest cut says how much: over all sets of
models, the GPUs of the set and the demand that is not confined to it. The empty set gives the offered load, the set of
all models the cluster. CPU and memory are left to `pooled`.
"""

from collections import Counter
from itertools import combinations

from tessera.domain.devices.resources import WHOLE_GPU
from tessera_lab.churn.lifetimes import Timed

MOST_MODELS = 12  # beyond, cuts are too many: models are not told apart


def fluid_percent(timed: Timed, load_percent: int) -> float:
    """The most that can be allocated on average, in per cent of the cluster's GPUs."""
    capacity: Counter[str] = Counter()
    for node in timed.trace.nodes:
        capacity[node.model] += node.gpus * WHOLE_GPU
    total, work = sum(capacity.values()), timed.gpu_milli_seconds
    demand: Counter[frozenset[str]] = Counter()
    for pod, life in zip(timed.trace.pods, timed.life_s, strict=True):
        allowed = frozenset(pod.models or capacity).intersection(capacity)
        if allowed:  # else no node has its model, and it is refused
            demand[allowed] += pod.total_gpu_milli * life * load_percent * total
    models = sorted(capacity)
    if len(models) > MOST_MODELS:
        return float(min(100, load_percent))
    # Both sides times 100 * work, to stay with whole numbers.
    cuts = (
        sum(capacity[model] for model in chosen) * 100 * work
        + sum(asked for allowed, asked in demand.items() if not allowed <= set(chosen))
        for size in range(len(models) + 1)
        for chosen in combinations(models, size)
    )
    return min(cuts) / (work * total)
