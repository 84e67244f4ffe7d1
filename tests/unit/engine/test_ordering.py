"""Who is next: priority, then age, back-off left out, at most 512."""

from tessera.engine.ordering import next_retry, order
from tessera_schemas.facts import BindFailed
from tessera_schemas.orders import HEADS_MAX
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, config_body, job_spec, node_seen, queue, run_absent
from tests.ledgers import Committed


def line_of(ledger: Committed, pool: str = "default") -> list[str]:
    names = {job.job_id: job.key for job in ledger.state.jobs.values()}
    return [names[job_id] for job_id in order(ledger.state, pool, ledger.ts)]


def test_a_higher_priority_class_goes_first_and_within_a_class_the_older_job() -> None:
    ledger = Committed().begin()
    ledger.commit(admitted("n1"), admitted("l1", job_spec(priority_class="low")), admitted("n2"))
    ledger.commit(admitted("h1", job_spec(priority_class="high")), admitted("n3"))
    assert line_of(ledger) == ["h1", "n1", "n2", "n3", "l1"]


def test_jobs_of_one_message_keep_the_order_of_their_facts() -> None:
    ledger = Committed().begin()
    ledger.commit(*(admitted(f"k{number}") for number in (3, 1, 2)))
    assert line_of(ledger) == ["k3", "k1", "k2"]


def test_each_pool_has_a_line_of_its_own() -> None:
    ledger = Committed().begin(body=config_body(queue("research"), queue("batch", pool="blue")))
    ledger.commit(admitted("k1"), admitted("k2", job_spec(queue="batch")))
    assert (line_of(ledger), line_of(ledger, "blue"), line_of(ledger, "none")) == (["k1"], ["k2"], [])


def test_a_line_has_at_most_512_jobs() -> None:
    ledger = Committed().begin()
    ledger.commit(*(admitted(f"k{number}") for number in range(HEADS_MAX + 3)))
    assert line_of(ledger) == [f"k{number}" for number in range(HEADS_MAX)]


def in_back_off() -> Committed:
    """k1 was refused by the cluster and waits 10 s; k2 and k3 wait for room."""
    ledger = Committed().begin(node_seen(gpus=1))
    ledger.commit(admitted("k1"))
    ledger.commit(orders=(ledger.line(),))
    run = f"{admitted('k1').job_id}-1"
    ledger.commit(BindFailed(kind="bind_failed", run_id=run, rank=0, reason=Reason(code=Code.BIND_REFUSED)))
    ledger.commit(run_absent(run), admitted("k2"), admitted("k3"))
    return ledger


def test_a_job_in_back_off_is_left_out_until_its_time_and_then_has_its_old_place() -> None:
    ledger = in_back_off()
    assert line_of(ledger) == ["k2", "k3"]
    ledger.ts += 9_999
    assert line_of(ledger) == ["k2", "k3"]
    ledger.ts += 1
    assert line_of(ledger) == ["k1", "k2", "k3"]


def test_the_next_retry_is_the_end_of_the_nearest_back_off() -> None:
    ledger = in_back_off()
    assert next_retry(ledger.state, ledger.ts) == ledger.ts + 10_000
    assert next_retry(ledger.state, ledger.ts + 10_000) is None
    assert next_retry(Committed().begin().state, 0) is None
