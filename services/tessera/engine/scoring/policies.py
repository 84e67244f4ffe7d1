"""The taste in force for a pool."""

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from tessera.domain.mix import Mix, cpu_per_gpu, models_of, weights
from tessera.domain.resources import Need, Node
from tessera.domain.state import State
from tessera.engine.scoring.price_aware import Valued
from tessera.engine.scoring.published import DotProduct, GpuPacking, Gradient, Random

MADE_MAX = 8  # tastes whose tables are kept


class Taste(Protocol):
    by_name: bool
    """Whether nodes that are equal but for their names may get different scores."""

    def score(self, need: Need, node: Node) -> int:
        """How good the node is for a pod that fits it; higher is better, and of equals the first by name."""

    def device(self, need: Need, node: Node) -> int | None:
        """The device that a share takes there; None: the one with the least left, then the lowest."""


class Fullest:
    """
    Best fit: least GPU free, then least CPU, then least memory.

    It also serves where no policy is asked, since only whether a gang has room counts, and for MIG instances, which
    no mix prices.
    """

    by_name = False

    def score(self, need: Need, node: Node) -> int:
        """Score that is higher the less GPU is free, then the less CPU, then the less memory."""
        return -((sum(node.gpu_free) << 128) + (node.cpu_free << 64) + node.memory_free)

    def device(self, need: Need, node: Node) -> int | None:
        """Returns None: a share takes the device with the least left, then the lowest."""
        return None


FULLEST = Fullest()

PUBLISHED: dict[str, Taste] = {
    "random": Random(),
    "bestfit": FULLEST,
    "dotprod": DotProduct(),
    "gpu-packing": GpuPacking(),
}
LEARNING: dict[str, Callable[[Mix], Taste]] = {"fgd": Gradient, "tessera": Valued}

_made: deque[tuple[str, Mix, Taste]] = deque(maxlen=MADE_MAX)


def taste_of(state: State, pool: str) -> Taste:
    """By the policy in force, and what is known of the pool's mix."""
    policy = state.tree.policy.placement
    published = PUBLISHED.get(policy)
    return published or _learnt(policy, state.mixes.get(pool) or _presumed(state, pool))


def _presumed(state: State, pool: str) -> Mix:
    """Before anybody came."""
    there = [node for node in state.nodes.values() if node.pool == pool and not node.gone]
    return _general(cpu_per_gpu(there), models_of(there), max((node.cpu_milli for node in there), default=0))


@lru_cache(maxsize=8)
def _general(per_gpu: int, models: tuple[str, ...], largest_cpu_milli: int) -> Mix:
    return Mix("", known=tuple(weights({}, 0, per_gpu, models).items()), largest_cpu_milli=largest_cpu_milli)


def _learnt(policy: str, mix: Mix) -> Taste:
    """
    Made once for what a mix has settled on and its prices.

    The tables are derived: made again they say the same. All states that fold on from a settlement share what was
    settled and priced, and nobody changes it, so that no two mixes are compared kind by kind.
    """
    for of, made, taste in _made:
        if of == policy and made.known is mix.known and made.prices is mix.prices:
            return taste
    _made.append((policy, mix, LEARNING[policy](mix)))
    return _made[-1][2]
