"""Each job of a shard has a number of its own, counted from 1, as Slurm's clients need one."""

import pytest

from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.scheduler import decide
from tessera_schemas.facts import CancelRequested
from tessera_schemas.ledger import JobQueued, TakenFact
from tessera_schemas.work.arrays import JobArray
from tests.builders import admitted, job_spec, role
from tests.ledgers import Committed


def test_jobs_and_tasks_are_counted_in_the_order_in_which_they_come() -> None:
    ledger = Committed().begin()
    ledger.commit(admitted("one"), admitted("sweep", job_spec(role(gpus=1), array=JobArray(tasks="3-4"))))
    ledger.commit(admitted("last"))
    ledger.commit()
    jobs = sorted(ledger.state.jobs.values(), key=lambda job: job.number)
    assert [(job.key, job.task, job.number, job.array_number) for job in jobs] == [
        ("one", 0, 1, 0),
        ("sweep", 0, 2, 0),
        ("last", 0, 3, 0),
        ("sweep", 3, 4, 2),
        ("sweep", 4, 5, 2),
    ]


def test_a_number_is_kept_by_an_ended_job_and_never_given_again() -> None:
    ledger = Committed().begin()
    fact = admitted("one")
    ledger.commit(fact)
    ledger.commit(CancelRequested(kind="cancel_requested", job_id=fact.job_id, tenant="lab"))
    ended = ledger.state.ended.get(fact.job_id)
    assert ended is not None
    assert ended.number == 1
    ledger.commit(admitted("two"))
    assert [job.number for job in ledger.state.jobs.values()] == [2]


def test_a_snapshot_keeps_the_last_number_and_its_hash_vouches_for_it() -> None:
    ledger = Committed().begin()
    ledger.commit(admitted("one"))
    hasher = StateHash()
    restored = load(dump(ledger.state), hasher)
    assert restored.last_number == 1
    before = hasher.of(restored)
    assert before == StateHash().of(ledger.state)
    restored.last_number = 7
    assert hasher.of(restored) != before


def test_a_record_with_a_number_that_was_given_is_refused() -> None:
    ledger = Committed().begin()
    ledger.commit(admitted("one"))
    fact = admitted("two")
    record = JobQueued(kind="job_queued", fact=0, job_id=fact.job_id, number=1)
    with pytest.raises(Contradiction, match="number 1, which was given"):
        apply_record(ledger.state.overlay(), record, (TakenFact(seq=9, service="admission", fact=fact),))


def test_jobs_of_an_earlier_format_have_no_number_and_those_after_it_count_from_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(decide, "FORMAT", 3)
        ledger = Committed().begin()
        ledger.commit(admitted("old"))
    assert [job.number for job in ledger.state.jobs.values()] == [0]
    assert b"number" not in b"".join(dump(ledger.state))
    ledger.commit(holder="scheduler-2")
    ledger.commit(admitted("new"))
    assert sorted(job.number for job in ledger.state.jobs.values()) == [0, 1]
