"""A quote of a job that is not submitted yet, and the changes that would start it earlier."""

from typing import Any

from tessera.domain.state import State
from tessera.engine.quoting.asked import AskedQuote, quote_asked
from tessera.engine.quoting.record import QuoteRecord
from tessera_schemas.base import job_id
from tessera_schemas.config import Flavor, Queue
from tessera_schemas.facts import JobAdmitted, RunAbsent, RunEnded
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.arrays import Dependency
from tessera_schemas.work.money import Money
from tests.builders import SHARD, admitted, config_body, job_spec, node_seen, role
from tests.ledgers import Committed

HOUR = 3_600_000


def asked_of(state: State, fact: JobAdmitted, ts: int, changes: bool = True) -> AskedQuote | Reason:
    drawing = quote_asked(state, QuoteRecord.begin(state), fact, ts, changes)
    while True:
        try:
            next(drawing)
        except StopIteration as done:
            found: AskedQuote | Reason = done.value
            return found


def busy(minutes: int = 60, **config: Any) -> Committed:
    """Two nodes of eight GPUs, one of them with a run, and six that ran for so long before it."""
    made = Committed().begin(node_seen("node-a"), node_seen("node-b"), **config)
    for at in range(6):
        past = admitted(f"past-{at}", job_spec(role(gpus=8), name="train"))
        made.commit(past)
        run = made.start(past.job_id, past.key)
        made.commit(RunEnded(kind="run_ended", run_id=run), ms=minutes * 60_000)
        made.commit(RunAbsent(kind="run_absent", run_id=run))
    runs = admitted("runs", job_spec(role(gpus=8), name="train"))
    made.commit(runs)
    made.start(runs.job_id, "runs")
    return made


def new(*roles: Any, **spec: Any) -> JobAdmitted:
    return admitted("new", job_spec(*(roles or (role(gpus=8),)), name="train", **spec))


def test_a_job_that_would_start_at_once_is_told_so_and_no_change() -> None:
    made = busy()
    found = asked_of(made.state, new(), made.ts)
    assert isinstance(found, AskedQuote)
    assert set(found.quote.waits_ms) == {0}
    assert (found.pool, found.changes, found.tried) == ("default", (), 0)


def test_what_no_node_has_the_cpu_for_is_not_told_to_start_at_once() -> None:
    made = busy()
    found = asked_of(made.state, new(role(gpus=8, cpu_milli=65_000)), made.ts)
    assert isinstance(found, AskedQuote)
    assert found.quote.waits_ms[-1] > 0


def test_smaller_jobs_that_start_earlier_are_changes_and_others_are_none() -> None:
    made = busy()
    found = asked_of(made.state, new(role(gpus=8, replicas=2)), made.ts)
    assert isinstance(found, AskedQuote)
    assert found.quote.wait_at(500) > 600_000
    assert [(one.kind, one.value, one.text) for one in found.changes] == [
        ("pods", "1", "1 instead of 2 pods"),
        ("gpus", "4", "4 instead of 8 GPUs per pod"),
    ]
    assert [(one.quote.wait_at(500), one.spec.gpu_milli()) for one in found.changes] == [(1000, 8000), (1000, 8000)]
    assert found.tried > 2


def test_the_answer_is_the_same_for_an_equal_state_and_leaves_it_as_it_was() -> None:
    made = busy()
    before = made.shard.hasher.of(made.state)
    fact = new(role(gpus=8, replicas=2))
    assert asked_of(made.state, fact, made.ts) == asked_of(made.state, fact, made.ts)
    assert made.shard.hasher.of(made.state) == before
    assert made.state.jobs.get(fact.job_id) is None


def test_cost_is_by_what_such_runs_took_and_no_longer_than_the_limit() -> None:
    money = Money.model_validate({"currency": "EUR", "prices": [{"flavor": "h100", "gpu_hour_micros": 2_000_000}]})
    flavors = (Flavor(name="h100", gpu_models=("h100",)),)
    made = busy(body=config_body(flavors=flavors, money=money))
    found = asked_of(made.state, new(), made.ts)
    limited = asked_of(made.state, new(time_limit_seconds=600), made.ts)
    assert isinstance(found, AskedQuote)
    assert isinstance(limited, AskedQuote)
    assert found.is_learnt
    assert 40 * 60_000 < found.length_ms < 90 * 60_000
    assert limited.length_ms == 600_000
    assert found.cost_micros // (found.length_ms * 8 * 2_000_000 // HOUR) == 1
    assert limited.cost_micros == -(-8 * 2_000_000 // 6)


def test_who_has_no_start_that_can_be_told_is_refused_with_the_field() -> None:
    made = busy(body=config_body(Queue(name="research"), Queue(name="shut", stop_policy="hold")))
    for fact, code, field in (
        (new(role(gpus=0)), Code.INVALID_FIELD, "roles"),
        (new(queue="nowhere"), Code.NO_SUCH_QUEUE, "queue"),
        (new(queue="shut"), Code.QUEUE_STOPPED, "queues.shut"),
        (
            new(after=(Dependency(job=job_id(SHARD, "lab", "runs"), condition="afterok"),)),
            Code.INVALID_FIELD,
            "after",
        ),
    ):
        found = asked_of(made.state, fact, made.ts)
        assert isinstance(found, Reason), fact
        assert (found.code, found.field) == (code, field)
