"""A waiting job hears who passed it and why, whether room is kept for it, and who holds the resource it lacks."""

from typing import Any

import pytest

from tessera.engine.explain.explanation import explain
from tessera.engine.explain.passing import NAMED_MAX, ORDER
from tessera_schemas.config import Policy, PriorityClass, Queue
from tessera_schemas.facts import DrainRequested, HoldRequested
from tests.builders import admitted, config_body, job_spec, node_seen, role
from tests.ledgers import Committed
from tests.rounds import Rounds, share
from tests.unit.scheduler.reserving_world import HOUR, end, ids, of_model, shard, submit


def said(ledger: Committed, key: str = "head", viewer: str | None = None) -> list[str]:
    found = explain(ledger.state, admitted(key).job_id, ledger.ts, viewer)
    assert found is not None
    return list(found.sentences)


def behind_a_head(**policy: Any) -> Committed:
    """A run of 4 GPUs for two hours, and a head that wants the whole node."""
    ledger = shard(**policy)
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    return ledger


def test_who_passed_a_job_is_named_with_the_time_and_the_rule_also_once_it_has_ended() -> None:
    ledger = behind_a_head()
    assert not any("passed it" in each for each in said(ledger))
    submit(ledger, ("short", 1, 1))
    why = "it was expected to end before the room kept for this job is needed"
    short = admitted("short").job_id
    assert f"train ({short}) of queue research, with 1 GPU, 0s ago: {why}." in said(ledger)
    assert any(each.startswith("1 job has passed it since 3s ago") for each in said(ledger))
    end(ledger, short, ms=60_000)
    assert any(each.startswith(f"train ({short})") and each.endswith(f"{why}.") for each in said(ledger))


def test_of_many_that_passed_a_job_the_last_few_are_named_and_all_are_counted() -> None:
    ledger = behind_a_head()
    for key in (f"small-{i}" for i in range(NAMED_MAX + 4)):
        submit(ledger, (key, 1, 1))
        end(ledger, admitted(key).job_id)
    sentences = said(ledger)
    count = next(each for each in sentences if "passed it" in each)
    assert count.startswith("9 jobs have passed it since ")
    assert count.endswith(" ago; the last ones:")
    named = [each for each in sentences if each.startswith("train (")]
    assert [each[7:27] for each in named] == ids(*(f"small-{i}" for i in range(8, 3, -1)))


def test_another_tenants_job_that_passed_has_no_name() -> None:
    ledger = behind_a_head()
    ledger.commit(admitted("other", job_spec(role(gpus=1), time_limit_seconds=HOUR), "other"))
    ledger.commit(orders=(ledger.line(),))
    other = admitted("other", tenant="other").job_id
    assert not any(other in each for each in said(ledger, viewer="lab"))
    assert f"of other tenants 1: {ORDER}." in said(ledger, viewer="lab")
    assert any(other in each for each in said(ledger))


@pytest.mark.parametrize(
    ("later", "why"),
    [
        ({"priority": "high"}, "its priority class is higher"),
        ({"queue": "b"}, ORDER),
        ({}, "it found room, and none was kept for this job"),
    ],
)
def test_who_stood_before_it_by_class_or_shares_passed_it_by_that(later: dict[str, Any], why: str) -> None:
    classes = (PriorityClass(name="normal", value=0), PriorityClass(name="high", value=1))
    queues = Queue(name="all"), share("a", 8), share("b", 8)
    rounds = Rounds(*queues, nodes={"n": 8}, classes=classes, preset="off")
    rounds.submit("runs", gpus=4, queue="a")
    rounds.settle()
    rounds.submit("head", gpus=8, queue="a")
    rounds.settle()
    rounds.submit("later", gpus=1, **{"queue": "a", **later})
    rounds.settle()
    assert any(each.startswith("later (") and each.endswith(f"{why}.") for each in said(rounds)), said(rounds)


def test_a_job_with_kept_room_hears_since_when() -> None:
    ledger = behind_a_head()
    assert "Nobody could take that room from it yet; it is Reserved as soon as a later job could." in said(ledger)
    submit(ledger, ("long", 1, 9))
    ledger.commit(ms=90_000)
    assert "Room has been kept for it for 1m30s." in said(ledger)


def test_a_job_without_kept_room_hears_why() -> None:
    off = "whoever fits may start (policy.backfill is off)"
    assert f"No room is kept for it: {off}." in said(behind_a_head(backfill="off"))
    first = "it has to wait for 60 s first (policy.backfill_patience_seconds)"
    assert f"No room is kept for it: {first}." in said(behind_a_head(backfill_patience_seconds=60))


def test_a_job_beyond_the_depth_hears_for_whom_room_is_kept() -> None:
    ledger = behind_a_head()
    submit(ledger, ("next", 8, 1), ("long", 1, 9))
    head = admitted("head").job_id
    depth = f"1 at a time (policy.backfill_depth), now for train ({head})"
    assert f"No room is kept for it: on nodes that it could use it is kept for {depth}." in said(ledger, "next")
    others = [each for each in said(ledger, "next", "theirs") if each.startswith("No room")]
    assert others
    assert head not in others[0]


def test_a_job_that_no_end_helps_hears_that() -> None:
    nodes = node_seen("node-h", gpu_model="h100"), node_seen("node-a", gpu_model="a100")
    ledger = shard(*nodes)
    ledger.commit(DrainRequested(kind="drain_requested", node="node-h"))
    ledger.commit(of_model("head", "h100"))
    ledger.commit(orders=(ledger.line(),))
    assert "No room is kept for it: no end of a run makes any." in said(ledger)


def test_a_held_job_hears_that_none_is_kept_meanwhile() -> None:
    rounds = Rounds(nodes={"n": 8}, preset="off", backfill="reserve")
    rounds.submit("runs", gpus=8)
    rounds.settle()
    rounds.submit("head", gpus=8)
    rounds.settle()
    rounds.commit(HoldRequested(kind="hold_requested", job_id=admitted("head").job_id, tenant="lab"))
    assert "No room is kept for it as long as it is held or its queue is stopped." in said(rounds)


def test_holders_are_told_in_the_resource_that_is_short() -> None:
    ledger = Committed().begin(node_seen("n", 8), body=config_body(Queue(name="research"), policy=Policy()))
    ledger.commit(admitted("runs", job_spec(role(gpus=1, cpu_milli=60_000), name="runs")))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(admitted("head", job_spec(role(gpus=4, cpu_milli=8_000), name="head")))
    ledger.commit(orders=(ledger.line(),))
    found = explain(ledger.state, admitted("head").job_id, ledger.ts)
    assert found is not None
    (holder,) = found.holders.describe()
    assert holder == f"60 CPUs held by runs ({admitted('runs').job_id}-1) of queue research"
