"""Hundreds of blocked jobs keep nobody from idle nodes: in a long line they make way in the order for jobs that fit."""

from collections.abc import Sequence

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.state import State
from tessera.engine.queueing.ordering import order_jobs
from tessera.queueing.decide import STAY, TOLD, OrderCache, first_in_line, order
from tessera_schemas.config import Flavor, PriorityClass, Queue, Quota
from tessera_schemas.facts import AnyFact, BindFailed, CancelRequested
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.orders import HEADS_MAX
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, queue, role, run_absent
from tests.ledgers import Committed

BLOCKED = 1_000
SMALL = admitted("small").job_id


def crowd(*queues: Queue, kinds: int = BLOCKED, of: str = "research") -> Committed:
    """Two nodes of four GPUs, 1,000 jobs of that many kinds that ask for eight on one, and then a job that fits."""
    ledger = Committed()
    ledger.commit(config_proposed(config_body(*(queues or (queue(),)))), holder="scheduler-1")
    ledger.commit(node_seen("a", gpus=4), node_seen("b", gpus=4))
    large = [job_spec(role(gpus=8, cpu_milli=1000 + kind), queue=of) for kind in range(kinds)]
    submit(ledger, [admitted(f"k{at}", large[at % kinds]) for at in range(BLOCKED)])
    ledger.commit(admitted("small", job_spec(role(gpus=1), queue=of)))
    return ledger


def submit(ledger: Committed, jobs: Sequence[AnyFact]) -> None:
    for first in range(0, len(jobs), 250):
        ledger.commit(*jobs[first : first + 250])


def started(ledger: Committed) -> list[str]:
    return [r.job_id for r in ledger.commit(orders=(ledger.line(),)).records if r.kind == "allocated"]


@pytest.mark.parametrize("kinds", [1, BLOCKED])
def test_a_job_that_fits_starts_at_once_behind_a_thousand_blocked_ones(kinds: int) -> None:
    ledger = crowd(kinds=kinds)
    jobs = ledger.line().jobs
    assert len(jobs) == HEADS_MAX
    assert jobs[: HEADS_MAX - 1] == first_in_line(ledger.state, "default", ledger.ts)[: HEADS_MAX - 1]
    assert started(ledger) == [SMALL]
    report = verify(ledger.stored)
    assert (report.findings, report.orders, report.orders_not_recomputed) == ([], 1, 0)


def test_it_starts_behind_jobs_that_lack_quota_as_well() -> None:
    ledger = crowd(queue("research", gpu_milli=4_000), queue("other"))
    ledger.commit(admitted("other", job_spec(role(gpus=1), queue="other")))
    assert set(started(ledger)) == {SMALL, admitted("other").job_id}


def test_a_job_that_two_flavors_would_take_starts_behind_six_hundred_that_lack_quota() -> None:
    two = (Flavor(name="a100", gpu_models=("a100",)), Flavor(name="h100", gpu_models=("h100",)))
    of_each = tuple(Quota(resource="gpu_milli", nominal=8000, flavor=flavor.name) for flavor in two)
    none = Quota(resource="gpu_milli", nominal=0)
    queues = Queue(name="able", quotas=of_each), Queue(name="barred", quotas=(none,))
    classes = (PriorityClass(name="high", value=100), PriorityClass(name="normal", value=0))
    ledger = Committed()
    body = config_body(*queues, flavors=two, priority_classes=classes)
    ledger.commit(config_proposed(body), holder="scheduler-1")
    ledger.commit(node_seen("a", gpu_model="a100"), node_seen("h", gpu_model="h100"))
    submit(
        ledger, [admitted(f"b{at}", job_spec(role(gpus=1), queue="barred", priority_class="high")) for at in range(600)]
    )
    ledger.commit(admitted("small", job_spec(role(gpus=1), queue="able")))
    assert list(order_jobs(ledger.state, "default", ledger.ts))[-1] == SMALL
    assert started(ledger) == [SMALL]


def test_in_a_strict_queue_nobody_passes_the_blocked_head() -> None:
    ledger = crowd(Queue(name="research", queueing_strategy="strict_fifo"))
    assert ledger.line().jobs == first_in_line(ledger.state, "default", ledger.ts)
    assert started(ledger) == []


def test_a_strict_queue_is_named_without_gaps_whatever_makes_way() -> None:
    ledger = crowd()
    strict = config_body(queue(), Queue(name="strict", queueing_strategy="strict_fifo", weight=2))
    ledger.commit(config_proposed(strict, expected_version=1))
    submit(ledger, [admitted(f"s{at}", job_spec(role(gpus=1), queue="strict")) for at in range(400)])
    named = [job for job in ledger.line().jobs if ledger.state.jobs.get(job).queue == "strict"]
    waiting = [job for *_, job in ledger.state.index.waiting["strict"]]
    assert named == waiting[: len(named)]
    assert SMALL in ledger.line().jobs


def test_jobs_that_may_start_give_way_to_nobody() -> None:
    ledger = crowd()
    submit(ledger, [admitted(f"m{at}", job_spec(role(gpus=1))) for at in range(600)])
    jobs, every = ledger.line().jobs, list(order_jobs(ledger.state, "default", ledger.ts))
    assert len(jobs) == len(set(jobs)) == HEADS_MAX
    assert list(jobs) == sorted(jobs, key=every.index)
    assert [job for job in jobs if job in every[:BLOCKED]] == every[:TOLD]
    assert jobs[-1] == every[BLOCKED + HEADS_MAX - TOLD - 1]


def test_jobs_that_no_node_could_hold_hide_none_that_waits_for_runs() -> None:
    """A thousand wait for eight GPUs on one node, where nodes have four; behind them 500 for what runs hold."""
    ledger = crowd()
    ledger.commit(*(admitted(f"run-{at}", job_spec(role(gpus=3))) for at in range(2)))
    started(ledger)
    submit(ledger, [admitted(f"m{at}", job_spec(role(gpus=4))) for at in range(500)])
    every = [admitted(f"m{at}").job_id for at in range(500)]
    named = [job for job in ledger.line().jobs if job in every]
    assert len(named) >= STAY - TOLD
    assert named == [job for job in order_jobs(ledger.state, "default", ledger.ts) if job in every][: len(named)]
    jobs = first_in_line(ledger.state, "default", ledger.ts)
    assert not set(jobs) & set(every)


def test_an_order_is_the_same_whatever_was_known_before() -> None:
    ledger = crowd(kinds=40)
    known = OrderCache()
    for change in (
        (),
        (node_seen("c", gpus=8),),
        (node_seen("c", gpus=8, ready=False),),
        (node_seen("a", gpus=8), node_seen("b", gone=True)),
    ):
        ledger.commit(*change)
        jobs = order(ledger.state, "default", ledger.ts, known)
        assert jobs == order(ledger.state, "default", ledger.ts)
        assert jobs == order(Committed.continuing(ledger.stored).state, "default", ledger.ts)
        ledger.commit(orders=(ledger.line(),))


def test_the_waiting_kinds_follow_every_job_that_comes_starts_and_ends() -> None:
    ledger = Committed().begin()
    ledger.state.index.kinds(ledger.state)
    submit(ledger, [admitted(f"w{at}", job_spec(role(gpus=1 + at % 3))) for at in range(30)])
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(*(CancelRequested(kind="cancel_requested", job_id=admitted(f"w{at}").job_id) for at in (20, 29)))
    waiting = ledger.state.index.waiting["research"]
    assert 0 < len(waiting) < 28
    assert kinds(ledger.state) == kinds(Committed.continuing(ledger.stored).state)
    assert kinds(ledger.state)


def kinds(state: State) -> dict[object, object]:
    return {
        (pool, kind, queue, bucket, whose): list(line)
        for pool, found in state.index.kinds(state).items()
        for kind, queues in found.items()
        for queue, buckets in queues.items()
        for bucket, users in buckets.items()
        for whose, line in users.items()
    }


def test_jobs_whose_namespace_refuses_pods_make_way_for_other_tenants() -> None:
    ledger, other = Committed(), admitted("k", job_spec(role(gpus=1)), tenant="other")
    classes = (PriorityClass(name="high", value=100), PriorityClass(name="normal", value=0))
    ledger.commit(config_proposed(config_body(priority_classes=classes)), holder="scheduler-1")
    ledger.commit(node_seen("a", gpus=4))
    urgent = job_spec(role(gpus=1), priority_class="high")
    submit(ledger, [admitted(f"k{at}", urgent) for at in range(BLOCKED)])
    ledger.commit(other, orders=(ledger.line(),))
    assert other.job_id not in ledger.line().jobs
    no, held = Reason(code=Code.BIND_REFUSED, numbers={"status": 403}), list(ledger.state.runs.values())
    ledger.commit(*(BindFailed(kind="bind_failed", run_id=run.run_id, rank=0, reason=no) for run in held))
    ledger.commit(*(run_absent(run.run_id) for run in held))
    assert other.job_id in ledger.line().jobs
    assert other.job_id in started(ledger)
    assert verify(ledger.stored).findings == []
