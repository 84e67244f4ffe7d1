"""An owner within its nominal quota waits a bounded time for what others borrow, as docs/policy.md sums it up."""

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.work.phases import Phase
from tessera_schemas.config import Queue
from tessera_schemas.ledger import LedgerMessage
from tests.rounds import Rounds, share

SEEDS = st.integers(0, 10**9)
DECIDING_SECONDS = 6
"""Rounds in which an order, a plan and its victims' stop are written down; each takes a second here."""
LENDERS = ("a", "b")


class Seconds(Rounds):
    """Rounds of a second each; what is committed within one takes no time. Runs end when their time is over."""

    def __init__(self, *queues: Queue, **more: Any) -> None:
        self.lasts: dict[str, int] = {}
        super().__init__(*queues, **more)

    def commit(self, *facts: Any, ms: int = 0, **more: Any) -> LedgerMessage:
        return super().commit(*facts, ms=ms, **more)

    def second(self) -> None:
        self.commit(ms=1000)
        for run in list(self.state.runs.values()):
            key = self.name(run.job_id)
            if run.started and not run.stopping and self.ts - run.started_ts >= self.lasts[key] * 1000:
                self.finish(key)
        self.round()


def draw(chance: Random) -> tuple[Seconds, int, int]:
    """A world, the pods of its owner's nominal quota, and the GPUs of a pod: a whole node's everywhere, or one."""
    nodes, gpus = chance.randint(2, 4), chance.choice((1, 8))
    own = chance.randint(1, nodes - 1) * 8
    inner = chance.random() < 0.5
    tree = [
        Queue(name="all"),
        Queue(name="inner", parent="all"),
        share("owner", own, parent="inner" if inner else "all"),
    ]
    left = nodes * 8 - own
    first = chance.randrange(0, left + 1, 8)
    tree += [share("a", first, parent=chance.choice(("all", "inner"))), share("b", left - first)]
    world = Seconds(
        *tree,
        nodes={f"node-{at}": 8 for at in range(nodes)},
        preset=chance.choice(("off", "fair")),
        min_runtime_seconds=chance.choice((0, 10, 30)),
        lent_kept_seconds=chance.choice((20, 60)),
        backfill="reserve",
    )
    return world, own // gpus, gpus


def borrow(world: Seconds, chance: Random, number: int, gpus: int, pods_max: int) -> None:
    """A job of a queue that may borrow; some have a disruption budget that allows nothing."""
    key = f"borrows-{number}"
    world.lasts[key] = chance.choice((3, 8, 30, 10_000))
    if chance.random() < 0.4:
        world.budgets.add(key)
    pods = chance.randint(1, pods_max)
    world.submit(key, gpus, pods, chance.choice(LENDERS), priority=chance.choice(("low", "normal", "high")))


def waited(seed: int) -> tuple[int, int]:
    """Seconds that an owner's job waited, and its bound; more jobs that borrow come all the time."""
    chance = Random(seed)
    world, pods, gpus = draw(chance)
    pods_max = 2 if gpus == 8 else 8
    for number in range(chance.randint(2, 10)):
        borrow(world, chance, number, gpus, pods_max)
    for _ in range(chance.choice((2, 15))):
        world.second()
    world.lasts["owner"] = 10_000
    world.submit("owner", gpus, chance.randint(1, pods), "owner")
    policy = world.state.tree.policy
    bound = policy.min_runtime_seconds + policy.lent_kept_seconds + DECIDING_SECONDS
    for second in range(bound + 1):
        if world.job("owner").phase is not Phase.QUEUED:
            return second, bound
        if chance.random() < 0.2:
            borrow(world, chance, 100 + second, gpus, pods_max)
        world.second()
    return bound + 1, bound


@settings(deadline=None, max_examples=20)
@given(SEEDS)
def test_an_owner_within_its_nominal_quota_waits_no_longer_than_the_policys_sum(seed: int) -> None:
    seconds, bound = waited(seed)
    assert seconds <= bound


def test_some_of_these_worlds_wait_for_a_budget_and_some_do_not() -> None:
    """Else the property would hold of worlds in which nobody is in the owner's way."""
    found = [waited(seed)[0] for seed in (0, 13, 24)]
    assert min(found) <= DECIDING_SECONDS
    assert max(found) > 20
