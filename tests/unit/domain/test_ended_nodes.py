"""An ended job keeps the nodes of the run with which it ended, and its time limit; older ones keep neither."""

from collections.abc import Sequence

import pytest

from tessera.projection.views import Views
from tessera.scheduler import decide
from tessera_schemas.facts import AnyFact, CancelRequested, RunEnded
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.views import JobView
from tests.builders import admitted, first_run, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

JOB = first_run("k1")[:-2]
FAILED = Reason(code=Code.POD_FAILED, numbers={"exit_code": 3})
CANCEL = CancelRequested(kind="cancel_requested", job_id=JOB)


def world(attempts: int = 1) -> Committed:
    """Two nodes, and a job of two pods, one for each node, that runs."""
    ledger = Committed().begin(node_seen("node-a", 8), node_seen("node-b", 8))
    spec = job_spec(
        role(gpus=8, replicas=2), time_limit_seconds=3600, retry={"max_attempts": attempts, "on_failure": True}
    )
    ledger.commit(admitted("k1", spec))
    return ledger


def shown(ledger: Committed) -> JobView:
    value = Views(ledger.state).value(("jobs", JOB))
    assert value is not None
    return JobView.from_bytes(value)


def failed(run_id: str) -> Sequence[AnyFact]:
    return RunEnded(kind="run_ended", run_id=run_id, reason=FAILED, own=True), run_absent(run_id)


def test_a_job_that_succeeded_or_failed_shows_its_nodes_and_time_limit() -> None:
    ledger = world()
    run = ledger.start(JOB, "k1")
    assert shown(ledger).nodes == ()
    ledger.commit(RunEnded(kind="run_ended", run_id=run))
    assert shown(ledger).nodes == ("node-a", "node-b")
    ledger.commit(run_absent(run))
    assert (shown(ledger).nodes, shown(ledger).placements) == (("node-a", "node-b"), ())
    assert shown(ledger).time_limit_seconds == 3600
    other = world()
    for fact in failed(other.start(JOB, "k1")):
        other.commit(fact)
    assert (shown(other).phase, shown(other).nodes) == ("failed", ("node-a", "node-b"))


def test_a_job_that_is_cancelled_while_it_waits_again_has_no_nodes() -> None:
    ledger = world(attempts=2)
    for fact in failed(ledger.start(JOB, "k1")):
        ledger.commit(fact)
    assert (shown(ledger).phase, shown(ledger).nodes, ledger.state.jobs.get(JOB).nodes) == ("queued", (), ())
    ledger.commit(CANCEL)
    assert (shown(ledger).phase, shown(ledger).nodes) == ("cancelled", ())


def test_a_ledger_of_an_earlier_format_keeps_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "FORMAT", 4)
    ledger = world()
    run = ledger.start(JOB, "k1")
    ledger.commit(RunEnded(kind="run_ended", run_id=run))
    assert (shown(ledger).nodes, shown(ledger).time_limit_seconds) == ((), 0)
