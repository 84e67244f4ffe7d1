"""Orders to publish now. Pure."""

from tessera.domain.state import State
from tessera.engine import ORDER_ENGINE_ID
from tessera.engine.queueing.ordering import order
from tessera.engine.queueing.scheduling_pass import CapacityCache
from tessera_schemas.shard.orders import Order


def orders(
    state: State, published: dict[str, tuple[str, ...]], ts: int, known: CapacityCache | None = None
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
