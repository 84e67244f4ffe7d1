"""The order of a pool, by the rule of each engine that carries orders, and the orders to publish now. Pure."""

from itertools import chain, islice

from tessera.domain.devices.resources import NOTHING, Amount
from tessera.domain.queues import QueueTree
from tessera.domain.state import State
from tessera.domain.work.starting import refuses_pods
from tessera.engine import ORDER_ENGINE_ID
from tessera.engine.queueing.ordering import KnownBounds, PoolLine, order_jobs
from tessera.engine.queueing.scheduling_pass import CapacityCache, SchedulingPass
from tessera_schemas.shard.orders import HEADS_MAX, Order

STAY = HEADS_MAX - 128
"""
So many first jobs of a line stay in its order, blocked or not: room is made for the first ones, and told to them.

Beyond `TOLD`, counted are those that the nodes could hold if they were empty: a thousand tasks that wait for a
drained model would else keep the first one that can be helped out of every order, and no room is kept for it.
"""

TOLD = 64
"""So many first jobs of a line stay whatever they wait for, so that they are told."""


class OrderCache(CapacityCache):
    """Findings of earlier orders: about the nodes, and the bounds of the branches of each pool's line."""

    def __init__(self) -> None:
        super().__init__()
        self._bounds: dict[str, tuple[QueueTree, Amount, KnownBounds]] = {}

    def bounds(self, state: State, pool: str) -> KnownBounds:
        """The bounds as they were, while weights, quotas and the size of the pool are the same; else none."""
        capacity, known = state.index.capacity.get(pool, NOTHING), self._bounds.get(pool)
        if known is None or known[0] is not state.tree or known[1] != capacity:
            known = self._bounds[pool] = state.tree, capacity, KnownBounds({}, {})
        return known[2]


def order(state: State, pool: str, ts: int, known: OrderCache | None = None) -> tuple[str, ...]:
    """
    The ids of the next jobs of the pool as of `state` and the time `ts`, at most 512.

    In a longer line, jobs beyond the first `STAY` that certainly find no quota or no room, or whose namespace refuses
    pods, make way for those behind the 512 that may: so many blocked jobs keep nobody from idle nodes. A strict queue
    gives way as a whole or not at all.
    `known` carries from one order to the next what stays the same; the order is the same with and without.
    """
    return _order(state, pool, ts, known, counts_all=False)


def order_until_nine(state: State, pool: str, ts: int, known: OrderCache | None = None) -> tuple[str, ...]:
    """The rule of orders of `tessera-6`: among the first `STAY` count those that no node could hold, too."""
    return _order(state, pool, ts, known, counts_all=True)


def _order(state: State, pool: str, ts: int, known: OrderCache | None, counts_all: bool) -> tuple[str, ...]:
    line = PoolLine(state, pool, ts, counts_all, None if known is None else known.bounds(state, pool))
    heads = tuple(islice(line.jobs(), HEADS_MAX))
    # A line that fits into one order needs nobody to make way: the shortcut is the usual case, and no node is looked
    # at.
    if len(heads) < HEADS_MAX:
        return heads
    places = SchedulingPass(state, pool, known)
    # Blocked jobs give their places only to jobs that may start, and only from place `STAY` on: the first ones keep
    # theirs, since reservations and plans are made for them.
    could = None if counts_all else line.select(places.holding)
    first = heads if could is None else chain(heads[:TOLD], line.jobs(could))
    shut = {tenant for tenant, _ in state.closed.items() if refuses_pods(state, tenant)}
    able = line.jobs(line.select(places.may_start, shut))
    named, stay, come = set(heads), set[str](), dict[str, None]()
    # No further than fills the order: the line behind may have a hundred thousand jobs.
    for jobs, most in ((first, STAY), (able, HEADS_MAX)):
        for job_id in jobs:
            if len(stay) + len(come) == most:
                break
            if job_id in named:
                stay.add(job_id)
            else:
                come[job_id] = None
    # Only as many leave as come, the last ones first to go: a blocked job stays named wherever nobody takes its place.
    gone = set([job_id for job_id in heads if job_id not in stay][HEADS_MAX - len(stay) - len(come) :])
    return (*(job_id for job_id in heads if job_id not in gone), *come)


def first_in_line(state: State, pool: str, ts: int, known: OrderCache | None = None) -> tuple[str, ...]:
    """The ids of the first 512 jobs of the pool's line, whatever keeps them waiting: the rule of orders until 0.3."""
    return tuple(islice(order_jobs(state, pool, ts, sums_alone=True), HEADS_MAX))


RULES = {"tessera-5": first_in_line, "tessera-6": order_until_nine, ORDER_ENGINE_ID: order}
"""The rules of orders that this build computes, by the engine id that an order carries."""


def next_retry(state: State, ts: int) -> int | None:
    """Time at which the next job in back-off becomes eligible; None when none is waiting."""
    later = state.index.retry_at.irange((ts + 1,))
    return next((not_before for not_before, _ in later), None)


def orders(
    state: State, published: dict[str, tuple[str, ...]], ts: int, known: OrderCache | None = None
) -> list[Order]:
    """The orders that say something that `published` (jobs by pool) did not."""
    fresh = []
    for pool in sorted({queue.pool for queue in state.tree.queues.values()}):
        jobs = order(state, pool, ts, known)
        if pool not in published or not _implied(jobs, published[pool]):
            fresh.append(
                Order(
                    v=1,
                    pool=pool,
                    basis_n=state.n,
                    ts=ts,
                    engine=ORDER_ENGINE_ID,
                    policy=state.config.version,
                    jobs=jobs,
                )
            )
    return fresh


def _implied(jobs: tuple[str, ...], published: tuple[str, ...]) -> bool:
    """
    Whether `jobs` is what is left of `published`: same jobs, same order, some gone.

    The committer skips what is no longer eligible by itself, so a line that only got shorter is no news.
    """
    rest = iter(published)
    return all(job in rest for job in jobs)
