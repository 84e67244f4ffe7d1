"""The fold learns how long runs take from those that ended by themselves, and from no others."""

import pytest

from tessera.domain.runtimes import JobKind
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.ahead.durations import UNKNOWN, quantile
from tessera_schemas.facts import AnyFact, CancelRequested, PodsMade, RunAbsent, RunEnded, RunLost, RunStarted
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, first_run, job_spec, node_seen, role
from tests.ledgers import Committed

HOUR = 3_600_000
RUN = first_run()
TRAIN = JobKind("lab", "research", "train", 2)


def ended_after(hours: int, *ends: AnyFact, started: bool = True) -> Committed:
    ledger = Committed().begin()
    ledger.commit(admitted("k1", job_spec(role(gpus=2))))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(PodsMade(kind="pods_made", run_id=RUN, uids=("uid-0",)))
    if started:
        ledger.commit(RunStarted(kind="run_started", run_id=RUN))
    ledger.commit(*ends, ms=hours * HOUR)
    return ledger


def reason(code: Code) -> Reason:
    return Reason(code=code)


LEARNT = [
    pytest.param(RunEnded(kind="run_ended", run_id=RUN), id="it succeeded"),
    pytest.param(RunEnded(kind="run_ended", run_id=RUN, reason=reason(Code.POD_FAILED), own=True), id="it failed"),
    pytest.param(RunLost(kind="run_lost", run_id=RUN, reason=reason(Code.TIME_LIMIT)), id="it reached its time limit"),
]


@pytest.mark.parametrize("end", LEARNT)
def test_a_run_that_ended_by_itself_tells_how_long_such_jobs_run(end: AnyFact) -> None:
    rows = ended_after(10, end).state.runtimes
    assert 10 * HOUR < quantile(rows, TRAIN, 900) <= 15 * HOUR
    assert sorted(key for key, _ in rows.items()) == sorted(TRAIN.row_keys())


CUT_SHORT = [
    pytest.param(CancelRequested(kind="cancel_requested", job_id=RUN[:-2], tenant="lab"), id="cancelled"),
    pytest.param(RunLost(kind="run_lost", run_id=RUN, reason=reason(Code.NODE_LOST)), id="its node was lost"),
    pytest.param(RunEnded(kind="run_ended", run_id=RUN, reason=reason(Code.POD_DELETED)), id="somebody deleted a pod"),
]


@pytest.mark.parametrize("end", CUT_SHORT)
def test_a_run_that_was_cut_short_tells_nothing(end: AnyFact) -> None:
    ledger = ended_after(1, end, RunAbsent(kind="run_absent", run_id=RUN))
    assert ledger.state.runs.get(RUN) is None
    assert quantile(ledger.state.runtimes, TRAIN, 900) == UNKNOWN


def test_a_share_of_a_gpu_counts_as_a_gpu_and_a_job_without_one_as_none() -> None:
    ledger = Committed().begin(node_seen(device_profile="shares"))
    for key, gpu_milli in (("k1", 300), ("k2", 0)):
        ledger.run_to_its_end(key, gpus=0, gpu_milli=gpu_milli)
    assert {key for key, _ in ledger.state.runtimes.items()} >= {"lab/research/train/1", "lab/research/train/0"}


def test_what_was_learnt_is_in_the_snapshot_and_in_the_hash() -> None:
    state = ended_after(3, RunEnded(kind="run_ended", run_id=RUN)).state
    restored = load(dump(state))
    assert dict(restored.runtimes.items()) == dict(state.runtimes.items())
    whole = StateHash().of(restored)
    restored.runtimes.drop(TRAIN.row_keys()[0])
    assert StateHash().of(restored) != whole
