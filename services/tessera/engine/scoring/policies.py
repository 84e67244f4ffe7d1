"""The scoring policy in force for a pool."""

from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache

from tessera.domain.mix import Mix, cpu_per_gpu, models_of, other_resources, weights
from tessera.domain.state import State
from tessera.engine.scoring.fgd import FragmentationGradient
from tessera.engine.scoring.price_aware import PriceAware
from tessera.engine.scoring.protocol import BEST_FIT, ScoringPolicy
from tessera.engine.scoring.published import DotProduct, GpuPacking, Random
from tessera_schemas.config import PlacementName

MADE_MAX = 8  # policies whose tables are kept

DOT_PRODUCT, GPU_PACKING, RANDOM = DotProduct(), GpuPacking(), Random()

POLICIES: Mapping[PlacementName, Callable[[Mix], ScoringPolicy]] = {
    "tessera": PriceAware,
    "fgd": FragmentationGradient,
    "bestfit": lambda mix: BEST_FIT,
    "dotprod": lambda mix: DOT_PRODUCT,
    "gpu-packing": lambda mix: GPU_PACKING,
    "random": lambda mix: RANDOM,
}
"""How each policy of the contract is made of a mix."""

_made: deque[tuple[PlacementName, Mix, ScoringPolicy]] = deque(maxlen=MADE_MAX)


def find_scoring_policy(state: State, pool: str) -> ScoringPolicy:
    """Scoring policy of the configuration in force, for the pool's present mix."""
    mix = state.mixes.get(pool)
    # Where none but claims came, nothing is known of kinds.
    return _made_of(state.tree.policy.placement, mix if mix is not None and mix.settled else _presumed(state, pool))


def _presumed(state: State, pool: str) -> Mix:
    """Before anybody came."""
    there = [node for node in state.nodes.values() if node.pool == pool and not node.gone]
    largest = max((node.cpu_milli for node in there), default=0)
    return _general(cpu_per_gpu(there), models_of(there), other_resources(there), largest)


@lru_cache(maxsize=8)
def _general(per_gpu: int, models: tuple[str, ...], resources: tuple[str, ...], largest_cpu_milli: int) -> Mix:
    known = tuple(weights({}, 0, per_gpu, models, resources).items())
    return Mix("", known=known, largest_cpu_milli=largest_cpu_milli)


def _made_of(policy: PlacementName, mix: Mix) -> ScoringPolicy:
    """
    Made once for what a mix has settled on and its prices.

    The tables are derived: made again they say the same. All states that fold on from a settlement share what was
    settled and priced, and nobody changes it, so that no two mixes are compared kind by kind.
    """
    for of, made, scoring in _made:
        if of == policy and made.known is mix.known and made.prices is mix.prices:
            return scoring
    _made.append((policy, mix, POLICIES[policy](mix)))
    return _made[-1][2]
