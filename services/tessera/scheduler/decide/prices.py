"""Facts about what pods are worth: taken when they belong to the mix as it is settled now."""

from tessera.domain.mix import DEAREST, Mix, in_full
from tessera.scheduler.decide.draft import Draft, judges
from tessera_schemas.facts import PricesLearnt
from tessera_schemas.ledger import MixPriced, PricesRefused
from tessera_schemas.reasons import Code, Reason


@judges(PricesLearnt)
def on_prices_learnt(draft: Draft, index: int, fact: PricesLearnt) -> None:
    """Takes prices in if they belong to the pool's mix as settled now; records their refusal otherwise."""
    verdict = why_not(draft.state.mixes.get(fact.pool), fact)
    if verdict is None:
        draft.add(MixPriced(kind="mix_priced", fact=index, pool=fact.pool))
    else:
        draft.add(PricesRefused(kind="prices_refused", fact=index, pool=fact.pool, reason=verdict))


def why_not(mix: Mix | None, fact: PricesLearnt) -> Reason | None:
    """The mix may have been settled anew while it was being priced, and two replicas may have priced it."""
    settled = 0 if mix is None else mix.settled
    if mix is None or fact.settled != settled or (mix.priced, mix.priced_gpus) == (settled, fact.gpus):
        numbers = {"settled": fact.settled, "settled_now": settled}
        return Reason(code=Code.PRICES_OUTDATED, field=f"pools.{fact.pool}", numbers=numbers)
    dearest = [DEAREST * in_full(kind) for kind, _ in mix.known]
    fitting = len(fact.prices) == len(dearest) and all(map(int.__le__, fact.prices, dearest))
    if not fitting:
        numbers = {"prices": len(fact.prices), "kinds": len(dearest)}
        return Reason(code=Code.PRICES_DO_NOT_FIT, field=f"pools.{fact.pool}", numbers=numbers)
    return None
