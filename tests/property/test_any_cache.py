"""What a committer remembers from earlier messages changes no record: one that has just begun decides the same."""

from random import Random

import pytest

from tessera.scheduler.decide import CapacityCache
from tessera_schemas.config import Queue
from tessera_schemas.facts import AnyFact
from tessera_schemas.job import Role
from tessera_schemas.ledger import AnyRecord
from tessera_schemas.reasons import Code
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role
from tests.ledgers import Committed
from tests.property.happenings import next_fact
from tests.rounds import Rounds, share

SHAPES: tuple[tuple[Role, ...], ...] = (
    (role(gpus=1),),
    (role(gpus=5),),
    (role(replicas=2, gpus=8),),
    (role(replicas=2, gpus=2), role("other", gpus=2)),
    (role(replicas=2, gpus=3), role("other", replicas=3, gpus=2)),
    (role(replicas=4, gpus=2), role("other", gpus=1), role("third", gpus=3)),
)
"""For some of these gangs only a search shows that the nodes hold each of the roles and not all of them."""

QUEUES = Queue(name="all"), share("owner", 16), share("borrower", 4), share("third", 4)


class JustBegun(Committed):
    """A committer that remembers nothing of the messages before."""

    def commit(self, *facts: AnyFact, **more: object) -> object:  # type: ignore[override]
        self.capacity = CapacityCache()
        return super().commit(*facts, **more)  # type: ignore[arg-type]


def life(ledger: Committed, seed: int, backfill: str, depth: int) -> list[tuple[AnyRecord, ...]]:
    """The records of a shard in which queues lend one another quota, and gangs of a few shapes come, run and end."""
    chance, policy = Random(seed), {"backfill": backfill, "backfill_depth": depth}
    ledger.commit(config_proposed(config_body(*QUEUES, policy=policy)), holder="scheduler-1")
    ledger.commit(*(node_seen(name, gpus=8) for name in ("a", "b", "c")))
    messages = []
    for turn in range(60):
        facts: list[AnyFact] = [
            admitted(f"{turn}-{i}", job_spec(*chance.choice(SHAPES), queue=chance.choice(QUEUES[1:]).name))
            for i in range(chance.randrange(3))
        ]
        facts += [next_fact(name, run) for name, run in ledger.state.runs.items() if chance.random() < 0.3]
        messages.append(ledger.commit(*facts, orders=(ledger.line(),) if chance.random() < 0.7 else ()).records)
    return messages


@pytest.mark.parametrize(("backfill", "depth"), [("off", 1), ("reserve", 1), ("reserve", 3)])
@pytest.mark.parametrize("seed", range(6))
def test_a_committer_that_has_just_begun_makes_the_same_records(seed: int, backfill: str, depth: int) -> None:
    records = life(Committed(), seed, backfill, depth)
    told = {each.reason.code for message in records for each in message if each.kind == "waiting"}
    assert {Code.NO_FIT, Code.WAITING_FOR_QUOTA} <= told
    assert life(JustBegun(), seed, backfill, depth) == records


@pytest.mark.parametrize("begun", [False, True], ids=["remembers", "has just begun"])
def test_a_search_in_vain_does_not_hide_that_an_owner_waits(begun: bool) -> None:
    rounds = Rounds(Queue(name="all"), share("owner", 16), share("other", 0), nodes={"a": 8, "b": 8}, backfill="off")
    for key in ("first", "second"):
        rounds.submit(key, 5, queue="other")
    rounds.settle()
    two_roles = job_spec(role(replicas=2, gpus=2), role("more", gpus=2), name="borrows", queue="other")
    rounds.commit(admitted("borrows", two_roles))
    rounds.commit(orders=[rounds.line()])
    assert rounds.job("borrows").reason.code is Code.NO_FIT, "three GPUs are free on each node, and one would need four"
    rounds.submit("owner", 8, queue="owner")
    if begun:
        rounds.capacity = CapacityCache()
    rounds.commit(orders=[rounds.line()])
    assert rounds.job("borrows").reason.code is Code.WAITING_FOR_QUOTA
