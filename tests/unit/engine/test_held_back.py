"""GPUs that can be had and are idle, by the rule that keeps who waits from them."""

from typing import Any

import pytest

from tessera.domain.devices.free_slots import Stranded
from tessera.domain.devices.held_back import HeldBack, HoldsBack
from tessera.engine.explain.held_back import KINDS_MAX, held_back
from tessera.engine.placement.free_slots import slots
from tessera_schemas.config import Queue, Quota
from tessera_schemas.facts import AnyFact
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role
from tests.ledgers import Committed
from tests.rounds import Rounds, share
from tests.unit.scheduler.reserving_world import HOUR, of_model, shard, submit


def found(ledger: Committed) -> list[HeldBack]:
    free = dict(slots(ledger.state, "default").stranded)[Stranded.NONE]
    answer = held_back(ledger.state, "default", free)
    assert sum(each.gpu_milli for each in answer) == free, "each GPU counts once"
    return list(answer)


def rules(ledger: Committed) -> list[tuple[str, int, str]]:
    return [(each.rule.value, each.gpu_milli // 1000, each.queue) for each in found(ledger)]


def two(*queues: Queue, gpus: int = 16, **policy: Any) -> Rounds:
    return Rounds(Queue(name="all"), *queues, nodes={"n": gpus}, preset="off", **policy)


def test_nothing_waits() -> None:
    assert rules(two(share("a", 16))) == [("nothing_waits", 16, "")]


def test_room_that_is_kept_ahead_is_told_with_the_job_for_which_it_is_and_the_rest_is_in_pieces() -> None:
    ledger = shard()
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    assert rules(ledger) == [("pieces", 4, "research")]
    submit(ledger, ("long", 1, 9))
    kept, rest = found(ledger)
    head = admitted("head").job_id
    assert (kept.rule, kept.gpu_milli, kept.job_id, rest.rule, rest.job_id) == (
        HoldsBack.KEPT,
        1000,
        head,
        HoldsBack.PIECES,
        head,
    )
    said = f"kept ahead for train ({head}) (way out: jobs whose time limit ends before it starts may have them)"
    assert kept.describe() == said


def test_a_quota_that_is_used_up_is_told_with_its_queue_and_for_no_more_than_would_start() -> None:
    rounds = two(share("a", 4), share("b", 0))
    rounds.submit("runs", gpus=4, queue="a")
    rounds.submit("waits", gpus=3, queue="a")
    rounds.settle()
    assert rules(rounds) == [("quota", 3, "a"), ("nothing_waits", 9, "")]


def test_what_finds_neither_quota_nor_room_is_not_held_back_by_the_quota() -> None:
    """Quota is the pool, as `config init` writes it."""
    ledger = shard(quota=8)
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    assert rules(ledger) == [("pieces", 4, "research")]


def test_a_quota_below_what_the_pool_has_grown_to_is_named() -> None:
    ledger = shard(quota=8)
    submit(ledger, ("runs", 8, 2))
    submit(ledger, *((f"waits-{i}", 4, 2) for i in range(4)))
    ledger.commit(node_seen("node-b"))
    assert rules(ledger) == [("quota", 8, "research")]


def test_a_stopped_queue_is_named() -> None:
    rounds = two(share("a", 16), gpus=8)
    rounds.shares(share("a", 16, stop_policy="hold"))
    rounds.submit("waits", gpus=3, queue="a")
    rounds.settle()
    assert rules(rounds)[0] == ("stopped", 3, "a")


def test_a_strict_queue_is_named_with_its_first_job() -> None:
    rounds = two(share("a", 64, queueing_strategy="strict_fifo"), gpus=8)
    rounds.submit("large", gpus=9, queue="a")
    rounds.settle()
    rounds.submit("small", gpus=2, queue="a")
    rounds.settle()
    strict = found(rounds)[0]
    assert (strict.rule, strict.gpu_milli, strict.name) == (HoldsBack.STRICT, 2000, "large")


def test_what_an_owner_waits_for_is_told() -> None:
    queues = [Queue(name="org"), *(Queue(name=name, parent="org", quotas=(SIXTEEN,)) for name in ("a", "b"))]
    ledger = shard(*(node_seen(f"node-{i}") for i in range(4)))
    ledger.commit(config_proposed(config_body(*queues, policy=ledger.state.tree.policy), 1))
    ledger.commit(*(in_queue(f"a-{i}", "a", 1) for i in range(3)))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(in_queue("owner", "b", 2), in_queue("borrower", "a", 1))
    ledger.commit(orders=(ledger.line(),))
    assert rules(ledger)[0] == ("owner", 8, "a")


SIXTEEN = Quota(resource="gpu_milli", nominal=16_000)


def in_queue(key: str, queue: str, pods: int) -> AnyFact:
    return admitted(key, job_spec(role(gpus=8, replicas=pods), queue=queue, time_limit_seconds=HOUR))


def test_a_job_that_was_not_looked_at_yet_waits_for_its_turn() -> None:
    ledger = shard()
    ledger.commit(admitted("new", job_spec(role(gpus=2), name="new")))
    assert rules(ledger) == [("turn", 2, "research"), ("nothing_waits", 6, "")]


@pytest.mark.parametrize("useless", [0, KINDS_MAX - 1, 40])
def test_those_that_no_room_helps_hide_no_rule(useless: int) -> None:
    nodes = node_seen("node-h", 1, gpu_model="h100"), node_seen("node-a", 8, gpu_model="a100")
    ledger = shard(*nodes, quota=4)
    ledger.commit(of_model("runs", "a100", 4))
    ledger.commit(*(of_model(f"useless-{i}", "h100", 2 + i % (KINDS_MAX - 1)) for i in range(useless)))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(of_model("waits", "a100", 2))
    ledger.commit(orders=(ledger.line(),))
    assert rules(ledger)[0] == ("quota", 2, "research")


def test_names_that_are_left_out_are_not_said() -> None:
    assert HeldBack(HoldsBack.KEPT, 1000).describe().startswith("kept ahead for another job (")
    assert HeldBack(HoldsBack.QUOTA, 1000).describe().startswith("the quota of another queue is used up (")
    assert HeldBack(HoldsBack.NOTHING_WAITS, 1000).describe() == "nothing waits for them"
