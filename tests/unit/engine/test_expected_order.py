"""A queue with `order: expected`: the least expected GPU time first, bounded by patience, inside class and share."""

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tessera.domain.runtimes import JobKind, kind_of, learn
from tessera.domain.storing.snapshot import dump, load
from tessera.engine.ahead.durations import UNKNOWN, expected
from tessera.engine.explain.explanation import explain
from tessera.engine.queueing.orders import ORDERS
from tessera.queueing.decide import order
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.config import OrderName, Policy, Queue
from tessera_schemas.shard.orders import Order
from tests.builders import admitted, config_body, job_spec, node_seen, role
from tests.ledgers import Committed

HOUR = 3_600_000
PATIENCE = 10


def shard(patience: int = PATIENCE, **more: Any) -> Committed:
    """One GPU; jobs called short have run for a second, those called long for an hour."""
    policy = Policy(order_patience_seconds=patience, **more)
    body = config_body(Queue(name="research", order="expected"), policy=policy)
    ledger = Committed().begin(node_seen("node-a", 1), body=body)
    for number in range(8):
        learn(ledger.state.runtimes, JobKind("lab", "research", "short", 1), 1000, number)
        learn(ledger.state.runtimes, JobKind("lab", "research", "long", 1), HOUR, number)
    return ledger


def submit(ledger: Committed, *keys: str, ms: int = 1000, tenant: str = "lab", **more: Any) -> None:
    """A job is named as its key, up to the digit."""
    specs = [(key, job_spec(role(), name=key.rstrip("0123456789"), **more)) for key in keys]
    ledger.commit(*(admitted(key, spec, tenant) for key, spec in specs), ms=ms)


def line_of(ledger: Committed, ts: int | None = None) -> list[str]:
    names = {job.job_id: job.key for job in ledger.state.jobs.values()}
    return [names[job_id] for job_id in order(ledger.state, "default", ledger.ts if ts is None else ts)]


def test_whoever_is_expected_to_take_the_least_goes_first_and_equals_go_by_age() -> None:
    ledger = shard()
    submit(ledger, "long1", "short1", "long2", "short2")
    assert line_of(ledger) == ["short1", "short2", "long1", "long2"]


def test_a_time_limit_below_what_was_learnt_is_believed() -> None:
    ledger = shard()
    submit(ledger, "short1")
    submit(ledger, "long1", time_limit_seconds=1)
    submit(ledger, "long2")
    assert line_of(ledger) == ["long1", "short1", "long2"]


@pytest.mark.parametrize(("waited_ms", "first"), [(23_000, "long2"), (25_000, "long1")])
def test_a_wait_counts_by_how_often_it_holds_the_expected_runtime(waited_ms: int, first: str) -> None:
    """Eight seconds of expected runtime and twenty-four of waiting are a slowdown of four, and weigh two seconds."""
    ledger = shard(patience=1000)
    submit(ledger, "long1", time_limit_seconds=8)
    submit(ledger, "long2", ms=waited_ms, time_limit_seconds=2)
    assert line_of(ledger)[0] == first


def test_a_job_that_has_waited_for_the_patience_goes_before_all_that_have_not() -> None:
    ledger = shard()
    submit(ledger, "long1")
    due = ledger.ts + PATIENCE * 1000
    submit(ledger, "long2", "short1")
    assert line_of(ledger, due - 1) == ["short1", "long1", "long2"]
    assert line_of(ledger, due) == ["long1", "short1", "long2"]
    assert line_of(ledger, due + 1000) == ["long1", "long2", "short1"]


def test_class_and_share_go_before_what_a_job_is_expected_to_take() -> None:
    ledger = shard()
    submit(ledger, "short1", "short2")
    submit(ledger, "long1", priority_class="high")
    submit(ledger, "long2", tenant="other")
    assert line_of(ledger) == ["long1", "long2", "short1", "short2"]


def test_users_of_a_tenant_take_turns_and_each_has_an_order_of_their_own() -> None:
    ledger = shard()
    submit(ledger, "long1", "short1", user="ada")
    submit(ledger, "long2", "short2", user="bob")
    assert line_of(ledger) == ["short1", "short2", "long1", "long2"]


def test_what_ends_later_changes_the_order_of_those_that_wait() -> None:
    ledger = shard()
    submit(ledger, "long1", "short1")
    for number in range(200):
        learn(ledger.state.runtimes, JobKind("lab", "research", "short", 1), 5 * HOUR, 100 + number)
    assert line_of(ledger) == ["long1", "short1"]


def test_a_job_that_leaves_and_comes_back_stands_where_it_stood_and_no_bucket_stays_empty() -> None:
    ledger = shard()
    submit(ledger, "short1", "long1")
    ledger.commit(orders=(ledger.line(),))
    assert line_of(ledger) == ["long1"]
    ledger.commit(orders=(ledger.line(),))
    assert [len(buckets) for buckets in ledger.state.index.buckets.values()] == [1]


def test_a_restored_state_and_another_configuration_have_the_same_buckets() -> None:
    ledger = shard()
    submit(ledger, "long1", "short1", "long2")
    restored = load(dump(ledger.state))
    assert order(restored, "default", ledger.ts) == order(ledger.state, "default", ledger.ts)
    assert restored.index.buckets == ledger.state.index.buckets


def test_each_order_of_the_contract_is_there() -> None:
    assert set(ORDERS) == set(get_args(OrderName))


def test_a_strict_queue_with_another_order_than_age_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="order: a strict_fifo queue goes by age"):
        Queue(name="research", order="expected", queueing_strategy="strict_fifo")


def test_a_job_is_told_how_long_it_is_expected_to_take_and_who_goes_before_it_why() -> None:
    ledger = shard()
    submit(ledger, "long1")
    submit(ledger, "long2", "short1", ms=PATIENCE * 1000)
    waiting = next(job for job in ledger.state.jobs.values() if job.key == "long2")
    found = explain(ledger.state, waiting.job_id, ledger.ts)
    assert found is not None
    told = " ".join(found.sentences)
    assert (
        "1 that have waited longer than the shard's patience, 1 expected to take less GPU time, as waits are counted"
        in told
    )
    assert "It is expected to run for 52m" in told
    assert "on 1 GPU, by how long such jobs ran" in told
    assert "Nobody younger passes it once it has waited for 10s" in told


def violations(ledger: Committed, *jobs: str) -> set[str]:
    """What the rules checker finds when queueing publishes this order now."""
    ids = {job.key: job.job_id for job in ledger.state.jobs.values()}
    line = ledger.line()
    ledger.commit(orders=(Order.model_validate({**line.model_dump(), "jobs": tuple(ids[key] for key in jobs)}),))
    report = Report()
    check_rules(report, ledger.stored)
    return {violation.invariant for violation in report.violations}


def test_the_checker_names_an_order_in_which_somebody_who_is_due_is_passed() -> None:
    for jobs, found in ((("long1", "short1"), set()), (("short1", "long1"), {"order"})):
        ledger = shard()
        submit(ledger, "long1")
        submit(ledger, "short1", ms=PATIENCE * 1000)
        assert violations(ledger, *jobs) == found


def test_the_checker_lets_shorter_jobs_pass_one_that_is_not_due() -> None:
    ledger = shard()
    submit(ledger, "long1")
    submit(ledger, "short1", ms=PATIENCE * 1000 - 1)
    assert violations(ledger, "short1", "long1") == set()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["short", "long", "new"]), st.integers(0, 3), st.integers(1, 6000))))
def test_the_merge_of_buckets_is_the_plain_sort_of_all_jobs(sent: list[tuple[str, int, int]]) -> None:
    ledger = shard()
    for number, (name, limit, ms) in enumerate(sent):
        submit(ledger, f"{name}{number}", ms=ms, **({"time_limit_seconds": limit} if limit else {}))

    def key(job: Any) -> tuple[Any, ...]:
        due = ledger.ts - job.submitted_ts >= PATIENCE * 1000
        mean, limit = expected(ledger.state.runtimes, kind_of(job)), job.time_limit_seconds * 1000
        assert mean <= UNKNOWN
        runtime = min(mean, limit) if limit else mean
        waited = ledger.ts - job.submitted_ts
        return not due, 0 if due else runtime**2 // (runtime + waited), job.taken_n, job.fact_index

    plain = [job.job_id for job in sorted(ledger.state.jobs.values(), key=key)]
    assert list(order(ledger.state, "default", ledger.ts)) == plain
