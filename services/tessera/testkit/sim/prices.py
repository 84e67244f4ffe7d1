"""Prices that nobody learnt: of the mix that is settled, of one before or after, and of the wrong number of kinds."""

from random import Random

from tessera.domain.state import State
from tessera.engine import ENGINE_ID
from tessera_schemas.facts import PricesLearnt


def prices_by_chance(state: State, random: Random) -> PricesLearnt | None:
    """Prices by chance for one pool; None while no pool was asked for anything."""
    pools = sorted(mix.pool for mix in state.mixes.values())
    mix = state.mixes.get(random.choice(pools)) if pools else None
    if mix is None:
        return None
    kinds = [kind for kind, _ in mix.known[random.random() < 0.3 :]]
    return PricesLearnt(
        kind="prices_learnt",
        pool=mix.pool,
        settled=max(1, mix.settled + random.choice((-1, 0, 0, 1))),
        basis_n=state.n,
        gpus=random.randrange(1, 9),
        engine=ENGINE_ID,
        learnt_by="auction",
        prices=tuple(random.randrange(2000 * kind.gpu_milli * kind.gpus + 1) for kind in kinds) or (0,),
    )
