"""
Pools as wholes: what their pods are worth, and what is left of them when that has changed noticeably.

Prices are taken when they belong to the mix as it is settled now. What is left becomes a public event, once a period at
most: the first message of each period of ledger time looks at how many pods of 1, 2, 4, 8 … whole GPUs the nodes would
take, which is one pass over them. Only where one of these numbers is another by a tenth is everything counted
(`engine.placement.free_slots`) and said.
"""

from tessera.domain.devices.free_slots import Slots
from tessera.domain.devices.resources import WHOLE_GPU
from tessera.domain.mix import DEAREST, Mix, in_full
from tessera.domain.state import State
from tessera.engine.ahead.booked_nodes import shut_now
from tessera.engine.placement.capacity import nodes_for
from tessera.engine.placement.free_slots import slots
from tessera.scheduler.decide.draft import Draft, judges
from tessera_schemas.facts import PricesLearnt
from tessera_schemas.ledger import LeftChanged, MixPriced, PricesRefused, SlotsLeft
from tessera_schemas.reasons import Code, Reason

NOTICEABLE = 10  # one part in so many


def record_free_slots(draft: Draft, before_ts: int) -> None:
    """`before_ts` is the ledger time of the message before."""
    state = draft.state
    period = state.tree.policy.fragmentation_event_seconds * 1000
    # Periods are cut by ledger time and nothing is remembered: whether a message is the first of its period follows
    # from two times, so that a replay says it of the same one.
    if not period or before_ts // period == state.ts // period:
        return
    for pool in sorted(state.tree.queues_of):
        if draft.full:
            return
        # The cheap counts are compared with those of the last event, not of the last look: slow changes add up until
        # they are noticeable, in place of staying below a tenth each time.
        known, free = state.lefts.get(pool), free_slots(state, pool)
        if differs(known.free if known else (), free):
            draft.add(make_record(slots(state, pool), free))


def free_slots(state: State, pool: str) -> tuple[int, ...]:
    """Number of pods of 1, 2, 4 … whole GPUs that the ready nodes take, by GPUs alone, up to the largest node."""
    whole, most = list[int](), 0
    for node in nodes_for(state, pool, "", shut=shut_now(state, pool)):
        most = max(most, node.gpus)
        if node.ready and node.gpus:
            whole.append(node.gpu_free.count(WHOLE_GPU))
    # A node with 7 free GPUs takes 7 pods of one, 3 of two, one of four: dividing by a power of two and rounding down
    # is the shift.
    return tuple(sum(free >> size for free in whole) for size in range(most.bit_length()))


def differs(before: tuple[int, ...], now: tuple[int, ...]) -> bool:
    """Whether any size changed by a tenth of its larger number; a size that is new or gone counts from 0."""
    # The largest node may have come or gone. Zeroes make that a change from or to none.
    longest = max(len(before), len(now))
    padded = ((*sizes, *(0,) * (longest - len(sizes))) for sizes in (before, now))
    return any(was != is_ and NOTICEABLE * abs(was - is_) >= max(was, is_) for was, is_ in zip(*padded, strict=True))


def make_record(left: Slots, free: tuple[int, ...]) -> LeftChanged:
    """Record of what is left of a pool: idle thousandths of GPUs, slots by size, and causes that strand anything."""
    sizes = tuple(SlotsLeft(gpus=size.gpus, slots=size.slots, largest=dict(size.largest)) for size in left.sizes)
    stranded = {cause.value: milli for cause, milli in left.stranded if milli}
    return LeftChanged(
        kind="left_changed",
        pool=left.pool,
        gpus=left.gpus,
        idle_gpu_milli=left.idle_gpu_milli,
        free=free,
        sizes=sizes,
        stranded=stranded,
    )


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
