"""
Which scoring policy is in force for a pod that arrives: a published one, or one of the committer's, which learns.

The committer's policies go by the mix in a state, as in the ledger; prices are asked for when the mix has settled and
are taken `late` arrivals after that, if they still belong to it.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol

from tessera.domain.devices.resources import Need, Node
from tessera.domain.folding.fold import apply_record
from tessera.domain.mix import Mix, in_full, kind_of, see
from tessera.domain.state import State
from tessera.domain.work.gang import Gang
from tessera.engine.pricing import learner
from tessera.engine.pricing.pricing_problem import PricingProblem, make_pricing_problem, occupancy_of
from tessera.engine.scoring.policies import find_scoring_policy
from tessera.engine.scoring.protocol import ScoringPolicy
from tessera.reclamation.prices.decide import FROM_ARRIVALS, fact_of, is_due
from tessera.scheduler.decide.pools import why_not
from tessera_lab.pack.cluster import POOL
from tessera_schemas.config import Config, ConfigBody, Policy, Queue, Tenant
from tessera_schemas.facts import PricesLearnt
from tessera_schemas.ledger import MixPriced, TakenFact

DEFAULT = "tessera"
HOW = ("rehearsed", "auction", "nobody")
LOOK_ARRIVALS = 25  # so often it is asked whether the models that are left have changed enough for new prices
NEVER = 1 << 30
LearnAtOnce = Callable[[PricingProblem], tuple[int, ...]]

learnt: LearnAtOnce = lru_cache(maxsize=64)(learner.learnt)
"""Runs that have seen the same arrivals ask for the same prices."""


class Scoring(Protocol):
    """The scoring policy of a run as its arrivals are seen."""

    @property
    def priced(self) -> int:
        """Number of times that prices came into force."""

    @property
    def due_in(self) -> int:
        """Number of arrivals, at most, until another policy may be in force."""

    def see(self, gangs: Iterable[Gang]) -> None:
        """Counts arrivals, whether they find room or not."""

    def placed(self, node: Node) -> None:
        """Takes note of a node as it is with a pod that has just come to it, for good."""

    def in_force(self) -> ScoringPolicy:
        """The policy as of what was seen; the same object until something was learnt."""

    def price(self, need: Need) -> int:
        """Millionths of a GPU that a pod is worth."""


class FixedScoring:
    """A policy that learns nothing."""

    priced = 0
    due_in = 1 << 30

    def __init__(self, policy: ScoringPolicy) -> None:
        self._policy = policy

    def see(self, gangs: Iterable[Gang]) -> None:
        """Counts nothing."""

    def placed(self, node: Node) -> None:
        """Takes note of nothing."""

    def in_force(self) -> ScoringPolicy:
        """The policy."""
        return self._policy

    def price(self, need: Need) -> int:
        """Value of the resources that the pod holds."""
        return in_full(kind_of(need))


class CommitterPolicy:
    """A policy of the committer's on a pool, and what it learns from the arrivals."""

    def __init__(
        self, policy: str, nodes: Iterable[Node], learnt_by: str = HOW[0], late: int = 0, learn: LearnAtOnce = learnt
    ) -> None:
        """`learnt_by` is one of `HOW`."""
        self._state = _state_of(policy, nodes)
        self._rehearsed, self._late, self._learn = learnt_by == HOW[0], late, learn
        learns = learnt_by != HOW[-1] and policy == DEFAULT
        self._asked, self._look_at, self._due = (0, FROM_ARRIVALS, 0) if learns else (NEVER, NEVER, 0)
        self._waiting: PricesLearnt | None = None
        self._running = 0
        self.priced = 0
        """How often prices came into force."""

    @property
    def due_in(self) -> int:
        """Number of arrivals until the mix settles, or until prices that are being learnt are known."""
        mix = self._state.mixes.get(POOL)
        if mix is None:
            return 1
        return max(1, (self._due if self._waiting else mix.settle_at) - mix.arrivals)

    def see(self, gangs: Iterable[Gang]) -> None:
        """Counts arrivals; prices are learnt at most once, after the last of them."""
        for gang in gangs:
            see(self._state.seen, self._state.mixes, self._state.nodes, POOL, gang)
        mix = self._state.mixes.get(POOL)
        if mix is None:
            return
        is_new = mix.settled > self._asked and mix.arrivals >= FROM_ARRIVALS
        if is_new or (mix.arrivals >= self._look_at and self._waiting is None):
            self._look(mix)
        fact = self._waiting
        if fact is None or mix.arrivals < self._due:
            return
        self._waiting = None
        if why_not(mix, fact) is None:
            self.priced += 1
            taken = TakenFact(seq=1, service="reclamation", fact=fact)
            apply_record(self._state, MixPriced(kind="mix_priced", fact=0, pool=POOL), (taken,))

    def _look(self, mix: Mix) -> None:
        """Asks for prices if they are due, as reclamation does every few seconds."""
        self._asked, self._look_at = mix.settled, mix.arrivals + LOOK_ARRIVALS
        occupancy = occupancy_of(mix, self._state.seen.values(), self._running)
        problem = make_pricing_problem(mix, self._state.nodes.values(), self._rehearsed, occupancy)
        if problem is not None and is_due(mix, problem.gpus, FROM_ARRIVALS):
            self._due = mix.arrivals + self._late
            self._waiting = fact_of(POOL, mix.settled, self._state.n, problem, self._learn(problem))

    def placed(self, node: Node) -> None:
        """Takes note of a node as it is with a pod that has just come to it, for good."""
        self._state.put_node(node)
        self._running += 1

    def in_force(self) -> ScoringPolicy:
        """The policy as of what was seen; the same object until something was learnt."""
        return find_scoring_policy(self._state, POOL)

    def price(self, need: Need) -> int:
        """Millionths of a GPU that a pod is worth: in full while nobody has priced its kind."""
        kind, mix = kind_of(need), self._state.mixes.get(POOL)
        known = dict(zip((kind for kind, _ in mix.known), mix.prices, strict=False)) if mix else {}
        return known.get(kind, in_full(kind))


def _state_of(policy: str, nodes: Iterable[Node]) -> State:
    state = State()
    rules = Policy.model_validate({"placement": policy})
    body = ConfigBody(tenants=(Tenant(name="trace"),), queues=(Queue(name="trace"),), policy=rules)
    state.set_config(Config(version=1, body=body))
    for node in nodes:
        state.put_node(node)
    return state
