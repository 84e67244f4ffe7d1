"""Public events: one for each record of interest, and nothing but the ledger decides what is in them."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.errors import Contradiction
from tessera.domain.state import State
from tessera.kernel.ledger.shard import Entry, Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.projection.events import DESCRIBE, Cursor, StoredEvent, events_of, last_cursor, rfc3339
from tessera.scheduler import decide
from tessera_schemas.config import Queue
from tessera_schemas.events import EVENT_TYPES, CloudEvent
from tessera_schemas.facts import (
    CancelRequested,
    CheckpointSaved,
    HoldRequested,
    JobRefused,
    MoveRequested,
    PlanProposed,
    PodsBound,
    PodsMade,
    PriorityRequested,
    RunEnded,
    RunIdle,
    RunStarted,
    UpdateRequested,
)
from tessera_schemas.job import JobArray
from tessera_schemas.ledger import NodeDrained, Started, Waiting
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.spec_changes import SpecChanges
from tests.builders import (
    SHARD,
    Chain,
    admitted,
    config_body,
    config_proposed,
    first_run,
    job_spec,
    node_seen,
    placement,
    role,
    run_absent,
)
from tests.ledgers import Committed
from tests.random_ledger import TRACE, random_ledger

TYPES = {event.type: event for event in EVENT_TYPES}


def steps(stored: list[bytes]) -> Iterator[tuple[Entry, State, tuple[StoredEvent, ...]]]:
    """Each message with the state before it and its events."""
    shard = Shard()
    for n, data in enumerate(stored, start=1):
        entry = decode_entry(Message("", n, data))
        yield entry, shard.state, events_of(SHARD, entry.message, shard.state)
        shard.fold(entry)


def newest(ledger: Committed) -> list[tuple[StoredEvent, dict[str, Any]]]:
    """The events of the last message, decoded."""
    *_, (_, _, events) = steps(ledger.stored)
    return [(event, orjson.loads(event.data)) for event in events]


def told(ledger: Committed) -> list[tuple[str, dict[str, Any]]]:
    return [(found["type"].removeprefix("io.tessera."), found["data"]) for _, found in newest(ledger)]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_each_record_of_interest_gives_one_valid_event_and_no_other_gives_any(seed):
    for entry, _, events in steps(random_ledger(seed, 60).stored):
        told = [type(record) in DESCRIBE for record in entry.message.records]
        # The end of a drain of a node that is no more names no pool, and is told to nobody.
        silent = [isinstance(record, NodeDrained) and not record.pool for record in entry.message.records]
        of_interest = [i for i, is_of_interest in enumerate(told) if is_of_interest and not silent[i]]
        assert [event.cursor for event in events] == [Cursor(entry.message.n, i) for i in of_interest]
        assert last_cursor(entry.message) == (events[-1].cursor if events else None)
        for event in events:
            envelope = CloudEvent.model_validate_json(event.data)
            data = TYPES[envelope.type].model_validate(envelope.data)
            # The very bytes that the models would have written.
            whole = CloudEvent.model_validate({**envelope.model_dump(), "data": data.to_data()})
            assert whole.to_bytes() == event.data
            assert event.subject.startswith(f"events.{SHARD}.{envelope.tenant}.")
            assert event.subject.endswith(envelope.type.removeprefix("io.tessera."))


def test_the_envelope_says_where_the_event_comes_from():
    ledger = Committed().begin()
    ledger.commit(admitted("k1").model_copy(update={"trace": TRACE}))
    ((event, found),) = newest(ledger)
    assert event.subject == "events.main.lab.research.job.admitted.v1"
    assert found == {
        "specversion": "1.0",
        "id": "4.0",
        "source": "/tessera/main",
        "type": "io.tessera.job.admitted.v1",
        "subject": admitted("k1").job_id,
        "time": rfc3339(ledger.ts),
        "dataschema": "urn:tessera:schema:io.tessera.job.admitted.v1",
        "tenant": "lab",
        "sequence": "0000000000000004",
        "causationid": "tx-00000004",
        "traceparent": TRACE,
        "data": {
            "job_id": admitted("k1").job_id,
            "name": "train",
            "queue": "research",
            "key": "k1",
            "gpu_milli": 1000,
            "pods": 1,
            "number": 1,
            "digest": admitted("k1").digest()[:16],
        },
    }


def test_times_are_written_to_the_millisecond_in_utc():
    assert rfc3339(1_760_000_000_007) == "2025-10-09T08:53:20.007Z"


def test_a_job_is_told_of_from_submit_to_release():
    ledger = Committed().begin()
    run, common = first_run(), {"job_id": admitted("k1").job_id, "name": "train", "queue": "research"}
    fact = admitted("k1", job_spec(role(gpus=0, replicas=2)))
    ledger.commit(fact)
    assert told(ledger) == [
        ("job.admitted.v1", {**common, "key": "k1", "pods": 2, "number": 1, "digest": fact.digest()[:16]})
    ]
    ledger.commit(orders=(ledger.line(),))
    (kind, data), common = told(ledger)[0], {**common, "attempt": 1}
    assert kind == "job.allocated.v1"
    placements = [{"rank": rank, "role": "worker", "node": "node-a"} for rank in (0, 1)]
    assert data == {**common, "placements": placements}
    ledger.commit(PodsMade(kind="pods_made", run_id=run, uids=("u0", "u1")))
    assert told(ledger) == [("job.binding.v1", common)]
    ledger.commit(PodsBound(kind="pods_bound", run_id=run))
    assert told(ledger) == [("job.bound.v1", common)]
    ledger.commit(RunStarted(kind="run_started", run_id=run))
    assert told(ledger) == [("job.running.v1", common)]
    ledger.commit(RunEnded(kind="run_ended", run_id=run, exit_code=0))
    assert told(ledger) == [("job.succeeded.v1", common)]
    ledger.commit(run_absent(run))
    assert told(ledger) == [("job.released.v1", common)]


def test_a_run_that_ends_before_its_start_was_seen_is_told_of_whole_in_one_message():
    ledger = Committed().begin()
    ledger.commit(admitted("k1"))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(PodsMade(kind="pods_made", run_id=first_run(), uids=("u0",)))
    ledger.commit(RunEnded(kind="run_ended", run_id=first_run(), exit_code=0))
    assert [kind for kind, _ in told(ledger)] == ["job.bound.v1", "job.running.v1", "job.succeeded.v1"]


def test_a_failed_run_is_evicted_and_comes_back_with_its_reason():
    ledger = Committed().begin()
    why = Reason(code=Code.POD_FAILED, numbers={"exit_code": 3})
    ledger.commit(admitted("k1", job_spec(retry={"max_attempts": 2, "backoff_seconds": 10, "on_failure": True})))
    for attempt in (1, 2):
        ledger.commit(orders=(ledger.line(),))
        run = f"{admitted('k1').job_id}-{attempt}"
        ledger.commit(PodsMade(kind="pods_made", run_id=run, uids=("u0",)))
        ledger.commit(RunEnded(kind="run_ended", run_id=run, reason=why, own=True, exit_code=3))
        assert [(kind, data["reason"]["code"]) for kind, data in told(ledger)] == [("job.evicting.v1", "PodFailed")]
        ledger.commit(run_absent(run), ms=60_000)
        released, last = told(ledger)
        assert released[0] == "job.released.v1"
        assert last[1]["attempt"] == attempt
        if attempt == 1:
            assert (last[0], last[1]["not_before"]) == ("job.requeued.v1", ledger.ts + 10_000)
            ledger.commit(ms=10_000)
    assert (last[0], last[1]["reason"]["code"], last[1]["exit_code"]) == ("job.failed.v1", "AttemptsExhausted", 3)


def test_a_cancelled_job_that_never_ran_is_told_of_as_attempt_zero():
    ledger = Committed().begin()
    ledger.commit(admitted("k1"))
    ledger.commit(CancelRequested(kind="cancel_requested", job_id=admitted("k1").job_id, tenant="lab", why="enough"))
    ((kind, data),) = told(ledger)
    assert (kind, data["attempt"], data["reason"]) == ("job.cancelled.v1", 0, {"code": "Cancelled", "detail": "enough"})


def test_a_job_taken_in_and_told_to_wait_in_one_message_gives_two_events():
    ledger = Committed().begin()
    ledger.commit(admitted("k1", job_spec(queue="nowhere")))
    assert [kind for kind, _ in told(ledger)] == ["job.admitted.v1", "job.waiting.v1"]
    assert newest(ledger)[1][0].subject == "events.main.lab.nowhere.job.waiting.v1"


def test_a_refusal_of_admission_gives_all_its_reasons_under_no_queue():
    ledger = Committed().begin()
    why = (Reason(code=Code.UNKNOWN_FIELD, field="a"), Reason(code=Code.INVALID_FIELD, field="b"))
    ledger.commit(JobRefused(kind="job_refused", tenant="lab", name="train", reasons=why, repeats=4))
    ((event, found),) = newest(ledger)
    assert (event.subject, found["subject"]) == ("events.main.lab.none.job.refused.v1", "none")
    reasons = [{"code": "UnknownField", "field": "a"}, {"code": "InvalidField", "field": "b"}]
    assert found["data"] == {"name": "train", "reasons": reasons, "repeats": 4}


def test_a_job_that_the_committer_turned_away_is_told_of_in_its_queue():
    ledger = Committed().begin()
    ledger.commit(admitted("k1"))
    ledger.commit(admitted("k1", job_spec(name="another")))
    ((event, found),) = newest(ledger)
    assert event.subject == "events.main.lab.research.job.refused.v1"
    assert (found["data"]["name"], found["data"]["reasons"][0]["code"]) == ("another", "IdempotencyConflict")


def test_notes_of_a_submit_are_told_with_the_job():
    ledger = Committed().begin()
    ledger.commit(admitted("k1").model_copy(update={"notes": ("t:2: --hint is passed over",)}))
    assert told(ledger)[0][1]["notes"] == ["t:2: --hint is passed over"]


def test_a_submit_under_a_key_in_use_is_not_told_as_the_job_that_has_it():
    ledger = Committed().begin()
    ledger.commit(admitted("k1"))
    other = admitted("k1", job_spec(name="another"))
    ledger.commit(other)
    ((_, found),) = newest(ledger)
    data = found["data"]
    assert (found["subject"], data.get("job_id"), data["conflicts_with"]) == ("none", None, other.job_id)
    assert (data["key"], data["digest"]) == ("k1", other.digest()[:16])


def test_events_of_a_ledger_that_numbers_no_jobs_are_what_was_stored_of_them(monkeypatch):
    monkeypatch.setattr(decide, "FORMAT", 3)
    ledger = Committed().begin()
    ledger.commit(admitted("k1"))
    assert "digest" not in told(ledger)[0][1]
    ledger.commit(admitted("k1", job_spec(name="another")))
    ((_, found),) = newest(ledger)
    assert found["data"].keys() == {"job_id", "name", "reasons"}


def test_a_refusal_of_admission_stands_in_the_trace_of_its_submit():
    ledger = Committed().begin()
    why = (Reason(code=Code.UNKNOWN_FIELD, field="a"),)
    ledger.commit(JobRefused(kind="job_refused", tenant="lab", reasons=why, trace=TRACE))
    ((_, found),) = newest(ledger)
    assert found["traceparent"] == TRACE


def test_a_run_that_is_held_beyond_the_memory_of_its_key_is_released_under_its_name():
    ledger = Committed().begin(body=config_body(policy={"key_memory_seconds": 1}))
    ledger.commit(admitted("k1"))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(PodsMade(kind="pods_made", run_id=first_run(), uids=("u0",)))
    ledger.commit(RunEnded(kind="run_ended", run_id=first_run(), exit_code=0))
    ledger.commit(ms=5000)
    ledger.commit(run_absent(first_run()))
    ((event, found),) = newest(ledger)
    assert event.subject == "events.main.lab.research.job.released.v1"
    assert found["data"] == {"job_id": admitted("k1").job_id, "name": "train", "queue": "research", "attempt": 1}


def test_what_only_concerns_the_shard_itself_is_not_public():
    ledger = Committed().begin()
    ledger.commit(config_proposed(config_body(), 7), node_seen("node-c"), holder="scheduler-2", checkpoint=True)
    assert newest(ledger) == []


def full_of_low(preset: str = "priority") -> Committed:
    """Tenant lab's low run holds the only GPU of a queue that it shares with tenant other."""
    ledger = Committed().begin(
        node_seen("node-a", gpus=1), body=config_body(policy={"preset": preset, "min_runtime_seconds": 0})
    )
    ledger.commit(admitted("k1", job_spec(priority_class="low")))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(PodsMade(kind="pods_made", run_id=first_run(), uids=("u0",)))
    ledger.commit(RunStarted(kind="run_started", run_id=first_run()))
    return ledger


def plan(owner: str) -> PlanProposed:
    return PlanProposed(
        kind="plan_proposed",
        cause="preemption",
        job_id=owner,
        basis_n=1,
        ts=1,
        engine="test-1",
        policy=1,
        preset="priority",
        victims=(first_run(),),
        placements=(placement(),),
    )


@pytest.mark.parametrize("tenant", ["lab", "other"])
def test_a_preempted_job_is_told_by_which_job_only_when_that_is_of_its_own_tenant(tenant):
    ledger = full_of_low()
    urgent = admitted("k2", job_spec(priority_class="high"), tenant=tenant)
    ledger.commit(urgent)
    ledger.commit(plan(urgent.job_id))
    evicting, earmarked, waiting = told(ledger)
    assert (waiting[0], waiting[1]["reason"]["code"]) == ("job.waiting.v1", "WaitingForPreemptedWorkloads")
    by = {"by": urgent.job_id} if tenant == "lab" else {}
    common = {"job_id": admitted("k1").job_id, "name": "train", "queue": "research", "attempt": 1}
    assert evicting == (
        "job.evicting.v1",
        {**common, "reason": {"code": "Preempted", "detail": "preset priority"}, **by},
    )
    assert earmarked[0] == "job.earmarked.v1"
    assert (earmarked[1]["runs_stopping"], earmarked[1]["preset"]) == (1, "priority")
    ledger.commit(run_absent(first_run()))
    kinds = [kind for kind, _ in told(ledger)]
    assert kinds[:4] == ["job.released.v1", "job.requeued.v1", "job.unearmarked.v1", "job.allocated.v1"]
    assert told(ledger)[1][1]["strike"] is False
    for event, found in (entry for *_, events in steps(ledger.stored) for entry in _decoded(events)):
        stranger = urgent.job_id if found["tenant"] == "lab" else admitted("k1").job_id
        assert found["tenant"] == tenant == "lab" or stranger not in event.data.decode()


def _decoded(events: tuple[StoredEvent, ...]) -> list[tuple[StoredEvent, dict[str, Any]]]:
    return [(event, orjson.loads(event.data)) for event in events]


def test_holds_priorities_warnings_and_checkpoints_are_told():
    ledger = full_of_low("off")
    common = {"job_id": admitted("k1").job_id, "name": "train", "queue": "research"}
    hold = HoldRequested(kind="hold_requested", job_id=common["job_id"], tenant="lab")
    ledger.commit(hold)
    assert told(ledger) == [("job.held.v1", {**common, "by": "lab"})]
    ledger.commit(hold.model_copy(update={"undo": True, "tenant": ""}))
    assert told(ledger) == [("job.unheld.v1", {**common, "by": "operator"})]
    ledger.commit(
        PriorityRequested(kind="priority_requested", job_id=common["job_id"], tenant="lab", priority_class="high")
    )
    assert told(ledger) == [("job.reprioritized.v1", {**common, "priority_class": "high"})]
    ledger.commit(config_proposed(config_body(policy={"idle": "warn", "idle_warn_seconds": 60}), 1))
    for idle_seconds, says in ((60, {"idle_seconds": 60}), (0, {})):
        ledger.commit(RunIdle(kind="run_idle", run_id=first_run(), idle_seconds=idle_seconds))
        assert told(ledger) == [("job.warned.v1", {**common, "attempt": 1, **says})]
    ledger.commit(CheckpointSaved(kind="checkpoint_saved", run_id=first_run(), path="/data/7"))
    assert told(ledger) == [("job.saved.v1", {**common, "attempt": 1, "path": "/data/7"})]


def test_a_task_that_is_queued_beside_its_arrays_new_name_is_called_by_that():
    ledger = Committed().begin()
    array = admitted("k1", job_spec(role(), array=JobArray(tasks="0-1"), begin_ts=0))
    ledger.commit(array)
    changes = SpecChanges(name="renamed", time_limit_seconds=0, begin_ts=0)
    asked = UpdateRequested(kind="update_requested", job_id=array.job_id, tenant="lab", changes=changes)
    ledger.commit(asked)
    (type_, updated), *queued = told(ledger)
    assert (type_, updated["name"], updated["from_name"], updated["by"]) == (
        "job.updated.v1",
        "renamed",
        "train",
        "lab",
    )
    assert {(type_, data["name"]) for type_, data in queued if "admitted" in type_} == {("job.admitted.v1", "renamed")}


def test_a_refused_update_names_no_job():
    ledger = Committed().begin()
    asked = {"kind": "update_requested", "job_id": "a" * 20, "tenant": "lab", "changes": {"name": "mine"}}
    ledger.commit(UpdateRequested.model_validate(asked))
    ((type_, data),) = told(ledger)
    assert (type_, data) == ("job.refused.v1", {"reasons": [{"code": "NoSuchJob", "field": "job_id"}]})


def test_a_job_that_moves_is_told_on_the_subject_of_its_new_queue():
    ledger = Committed().begin(body=config_body(Queue(name="research"), Queue(name="prod")))
    ledger.commit(admitted("k1"))
    job = admitted("k1").job_id
    ledger.commit(MoveRequested(kind="move_requested", job_id=job, tenant="lab", queue="prod"))
    ((_, data),) = told(ledger)
    assert data == {"job_id": job, "name": "train", "queue": "prod", "from_queue": "research", "by": "lab"}
    (*_, (*_, events)) = steps(ledger.stored)
    assert [event.subject for event in events] == ["events.main.lab.prod.job.moved.v1"]
    ledger.commit(CancelRequested(kind="cancel_requested", job_id=job, tenant="lab"))
    ((_, data),) = told(ledger)
    assert data["queue"] == "prod"


def test_a_tenant_whose_name_looks_like_a_job_cancels_under_its_name():
    """Only the job that a plan was made for may be hidden, and nothing is made of a name that merely looks like one."""
    name = "abcdefghij234567abcd"
    ledger = Committed().begin(body=config_body(tenants=(name,)))
    fact = admitted("k1", tenant=name)
    ledger.commit(fact)
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(CancelRequested(kind="cancel_requested", job_id=fact.job_id, tenant=name))
    ((kind, data),) = told(ledger)
    assert (kind, data["by"]) == ("job.evicting.v1", name)


def test_a_refused_plan_is_not_public():
    ledger = full_of_low("off")
    urgent = admitted("k2", job_spec(priority_class="high"))
    ledger.commit(urgent)
    assert [record.kind for record in ledger.commit(plan(urgent.job_id)).records] == ["plan_refused"]
    assert newest(ledger) == []


@pytest.mark.parametrize(
    "record",
    [
        Started(kind="started", run_id=first_run()),
        Waiting(kind="waiting", job_id=admitted().job_id, reason=Reason(code=Code.NO_FIT)),
    ],
)
def test_a_record_about_a_job_that_nobody_knows_is_a_contradiction(record):
    chain = Chain()
    chain.add(record)
    entry = decode_entry(Message("", 1, chain.stored[0]))
    with pytest.raises(Contradiction):
        events_of(SHARD, entry.message, State())


@pytest.mark.parametrize("text", ["1", "1.x", "x.1"])
def test_a_cursor_is_read_back_or_refused(text):
    assert Cursor.parse(str(Cursor(12, 3))) == Cursor(12, 3) > Cursor.parse("9.7") > Cursor.parse("")
    with pytest.raises(ValueError, match=r"."):
        Cursor.parse(text)
