"""
Prices of each pool's pods, learnt in a process beside the service whenever the job mix has settled anew.

Placement never waits for them: until the committer has taken the prices in, the last ones are in force. One replica
learns for a pool, one pool after the other; a replica that learns the same again is refused without effect.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.util import find_spec

import structlog

from tessera.domain.mix import PODS_COUNTED, Mix
from tessera.domain.state import State
from tessera.domain.work.stops import pool_of
from tessera.engine.pricing.pricing_problem import PricingProblem, make_pricing_problem, occupancy_of
from tessera.kernel.errors import Transient
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members, partition_of, rounds
from tessera.kernel.service.context import Ports
from tessera.reclamation.prices.decide import fact_of, is_due
from tessera.reclamation.settings import ReclamationSettings

PLACEMENT = "tessera"  # the one policy that goes by prices
LOOK_SECONDS = 5.0
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 60.0, 3600.0  # after the same mix was tried

Learn = Callable[[PricingProblem, float], Awaitable[tuple[int, ...]]]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Tried:
    """A pool's mix was priced when it had settled so often: again only after a while, from `until` (monotonic)."""

    settled: int
    until: float
    seconds: float


class Prices:
    """`learn_all` runs for ever. `learn` is given a problem and the seconds that it may take, and raises Transient."""

    def __init__(
        self, ports: Ports, settings: ReclamationSettings, state: State, members: Members, learn: Learn
    ) -> None:
        self._ports, self._settings, self._state, self._members = ports, settings, state, members
        self._learn = learn
        self._facts = Facts(ports.bus, settings.shard, "reclamation")
        self._rehearsed = settings.prices == "rehearsed" or (settings.prices == "auto" and _is_fast())
        self._tried: dict[str, Tried] = {}

    async def learn_all(self) -> None:
        """Looks at the pools of our partitions again and again, for ever, and learns the prices that are due."""
        async for _ in rounds(self._members, self._ports.clock, LOOK_SECONDS):
            if self._state.tree.policy.placement == PLACEMENT:
                for pool in sorted(mix.pool for mix in self._state.mixes.values()):
                    await self._look(pool)

    async def _look(self, pool: str) -> None:
        mix = self._state.mixes.get(pool)
        if mix is None or partition_of(pool) not in self._members.partitions() or self._is_tried(mix):
            return
        occupancy = occupancy_of(mix, self._state.seen.values(), self._running(pool))
        problem = make_pricing_problem(mix, self._state.nodes.values(), self._rehearsed, occupancy)
        if problem is None or not is_due(mix, problem.gpus, self._settings.learn_from_arrivals):
            return
        began, basis_n = self._ports.clock.monotonic(), self._state.n
        try:
            prices = await self._learn(problem, self._settings.learning_seconds)
            fact = fact_of(pool, mix.settled, basis_n, problem, prices)
            await self._facts.publish(fact)
        except Transient as error:
            self._ports.metrics.prices_not_learnt.inc()
            log.warning("prices_not_learnt", pool=pool, settled=mix.settled, error=str(error))
        else:
            seconds = round(self._ports.clock.monotonic() - began, 1)
            log.info("prices_learnt", pool=pool, settled=mix.settled, learnt_by=fact.learnt_by, seconds=seconds)
        self._pause(mix)

    def _running(self, pool: str) -> int:
        """Pods that run in the pool, of one gang at most as many as are counted when it comes."""
        runs = (run for run in self._state.runs.values() if pool_of(self._state, run.queue) == pool)
        return sum(min(len(run.placements), PODS_COUNTED) for run in runs)

    def _is_tried(self, mix: Mix) -> bool:
        tried = self._tried.get(mix.pool)
        return tried is not None and tried.settled == mix.settled and self._ports.clock.monotonic() < tried.until

    def _pause(self, mix: Mix) -> None:
        """The committer's answer takes a moment, and what failed now most likely fails again."""
        last = self._tried.get(mix.pool)
        again = last is not None and last.settled == mix.settled
        seconds = min(AGAIN_SECONDS_MAX, 2 * last.seconds) if last is not None and again else AGAIN_SECONDS
        self._tried[mix.pool] = Tried(mix.settled, self._ports.clock.monotonic() + seconds, seconds)


def _is_fast() -> bool:
    """Tell whether numba is there; without it a rehearsal gives the same after many minutes."""
    return find_spec("numba") is not None
