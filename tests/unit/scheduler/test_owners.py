"""An owner that waits within its nominal quota is served before borrowers, whatever the policy on backfill."""

from typing import Any

import pytest

from tessera.scheduler import decide
from tessera_schemas.config import Flavor, Queue, Quota
from tessera_schemas.reasons import Code
from tessera_schemas.shard.ledger_form import LENT_KEPT_FROM
from tests.builders import node_seen
from tests.rounds import Rounds, share

WAITS = "an owner within its nominal quota waits for it"
BACKFILL = pytest.mark.parametrize("backfill", ["off", "reserve"])


def lending(backfill: str, **more: Any) -> Rounds:
    """Sixteen GPUs of an owner, all of which the other queue borrows, by eights, and none of which may be stopped."""
    queues = more.pop("queues", (Queue(name="all"), share("owner", 16), share("other", 0)))
    nodes = more.pop("nodes", {"node-a": 8, "node-b": 8})
    rounds = Rounds(*queues, nodes=nodes, backfill=backfill, min_runtime_seconds=3600, **more)
    for key in ("first", "second"):
        rounds.submit(key, 8, queue="other")
    rounds.settle()
    assert rounds.running("first", "second")
    return rounds


@BACKFILL
def test_nobody_begins_to_borrow_what_an_owner_lacks_whatever_its_class(backfill: str) -> None:
    rounds = lending(backfill)
    rounds.submit("owner", 8, 2, queue="owner")
    rounds.settle()
    for key, priority in (("high", "high"), ("low", "low")):
        rounds.submit(key, 8, queue="other", priority=priority)
    rounds.finish("first")
    rounds.settle()
    for key in ("high", "low"):
        assert (rounds.job(key).reason.code, rounds.job(key).reason.detail) == (Code.WAITING_FOR_QUOTA, WAITS)
    rounds.finish("second")
    assert rounds.settle().running("owner")


@BACKFILL
def test_who_leaves_what_the_owner_lacks_borrows(backfill: str) -> None:
    rounds = lending(backfill, nodes={f"node-{at}": 8 for at in range(3)}, queues=(
        Queue(name="all"), share("owner", 16), share("other", 0), share("third", 8),
    ))  # fmt: skip
    rounds.submit("owner", 8, 2, queue="owner")
    rounds.settle()
    rounds.finish("first")
    rounds.settle()
    assert rounds.running("owner"), "the third queue's GPUs are free as well"
    rounds.submit("late", 8, queue="other")
    rounds.finish("second")
    assert rounds.settle().running("late")


@BACKFILL
def test_the_owner_of_one_flavor_is_an_owner_though_its_queue_has_quota_of_another(backfill: str) -> None:
    flavors = tuple(Flavor(name=model, gpu_models=(model,)) for model in ("h100", "a100"))

    def of_both(name: str, gpus: int) -> Queue:
        quotas = (Quota(resource="gpu_milli", flavor=each.name, nominal=gpus * 1000) for each in flavors)
        return Queue(name=name, parent="all", quotas=tuple(quotas))

    nodes = [node_seen("node-a", gpu_model="h100"), node_seen("node-b", gpu_model="a100")]
    queues = Queue(name="all"), of_both("owner", 8), of_both("other", 0)
    rounds = Rounds(*queues, nodes=nodes, flavors=flavors, backfill=backfill, min_runtime_seconds=3600)
    for key in ("first", "second"):
        rounds.submit(key, 4, queue="other", gpu_models=("a100",))
    rounds.settle()
    rounds.submit("owner", 8, queue="owner", gpu_models=("a100",))
    rounds.settle()
    rounds.submit("late", 4, queue="other", gpu_models=("a100",), priority="high")
    rounds.finish("first")
    assert not rounds.settle().running("late")
    rounds.finish("second")
    assert rounds.settle().running("owner")


def test_an_owner_below_an_inner_queue_stands_before_who_borrows_beside_that() -> None:
    queues = Queue(name="all"), Queue(name="team", parent="all"), share("owner", 16, parent="team")
    rounds = lending("reserve", queues=(*queues, share("other", 0, parent="team"), share("beside", 0)))
    rounds.submit("high", 8, queue="beside", priority="high")
    rounds.submit("owner", 8, 2, queue="owner")
    assert [rounds.name(job) for job in rounds.line().jobs] == ["owner", "high"]


@pytest.mark.parametrize("known", [LENT_KEPT_FROM - 1, LENT_KEPT_FROM])
def test_a_fold_of_an_older_format_does_not_know_since_when_a_budget_keeps_a_loan(
    known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "FORMAT", known)
    rounds = Rounds(Queue(name="all"), share("owner", 8), share("other", 0), lent_kept_seconds=60)
    rounds.submit("borrows", 8, queue="other")
    rounds.settle()
    rounds.budgets.add("borrows")
    rounds.submit("owner", 8, queue="owner")
    rounds.round()
    rounds.round()
    assert rounds.state.format == known
    assert rounds.run("borrows").kept_ts > 0
    assert (rounds.run("borrows").kept_lent_ts > 0) is (known >= LENT_KEPT_FROM)
    rounds.commit(ms=60_000)
    rounds.round()
    rounds.round()
    assert (rounds.run("borrows") is None) is (known >= LENT_KEPT_FROM)


def test_a_budget_that_kept_a_run_from_preemption_in_its_queue_does_not_put_off_the_loans_time() -> None:
    rounds = Rounds(Queue(name="all"), share("owner", 8), share("other", 0), lent_kept_seconds=60)
    rounds.submit("borrows", 8, queue="other", priority="low")
    rounds.settle()
    rounds.budgets.add("borrows")
    rounds.submit("dearer", 8, queue="other")
    rounds.settle()
    assert (rounds.run("borrows").kept_ts > 0, rounds.run("borrows").kept_lent_ts) == (True, 0)
    rounds.commit(ms=5000)
    rounds.submit("owner", 8, queue="owner")
    rounds.settle()
    rounds.commit(ms=60_000)
    assert rounds.settle().running("owner")
