"""Due times for pricing a pool's pods, and the resulting fact. Pure."""

from tessera.domain.mix import Mix
from tessera.engine import ENGINE_ID
from tessera.engine.pricing.pricing_problem import PricingProblem
from tessera_schemas.facts import PricesLearnt

NOTICEABLE = 10  # one part in so many
FROM_ARRIVALS = 50  # of pods: before, a pool's mix is what is presumed of all


def is_due(mix: Mix, gpus: int, from_arrivals: int) -> bool:
    """Tell whether to price the pool: its mix has settled anew, or its number of GPUs has changed noticeably."""
    if mix.arrivals < from_arrivals:
        return False
    return mix.priced < mix.settled or NOTICEABLE * abs(gpus - mix.priced_gpus) >= mix.priced_gpus


def fact_of(pool: str, settled: int, basis_n: int, problem: PricingProblem, prices: tuple[int, ...]) -> PricesLearnt:
    """Fact that the mix of a pool, as settled, has these prices, in millionths of a GPU."""
    return PricesLearnt(
        kind="prices_learnt",
        pool=pool,
        settled=settled,
        basis_n=basis_n,
        gpus=problem.gpus,
        engine=ENGINE_ID,
        learnt_by="rehearsed" if problem.rehearsed else "auction",
        prices=prices,
    )
