"""Ended jobs that are packed: nobody sees it, and each costs little."""

import random
import tracemalloc
from collections import defaultdict

import pytest

from tessera.domain.devices.resources import Amount
from tessera.domain.entities import EndedJob
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.domain.work import ended_jobs
from tessera.domain.work.ended_jobs import EndedJobs
from tessera.domain.work.key_index import KeyIndex
from tessera.domain.work.phases import Phase
from tessera.domain.work.task_array import TaskArray
from tessera_schemas.base import job_id
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.arrays import task_id

CHANCE = random.Random(11)


def ended(number: int, forget_ts: int | None = None, **more: object) -> EndedJob:
    """As a job of a pipeline ends, with what nobody can compress: its id, its key, the hash of its spec, its trace."""
    key = f"pipeline-{CHANCE.randrange(10**6)}-{number}"
    ts = 1_760_000_000_000 + number * 10
    values = {
        "job_id": job_id("main", "lab", key),
        "tenant": f"tenant-{number % 20}",
        "queue": f"queue-{number % 7}",
        "name": f"train-{number % 1000}",
        "key": key,
        "spec_hash": CHANCE.randbytes(32).hex(),
        "phase": Phase.SUCCEEDED,
        "attempt": 1,
        "pods": 1 + number % 8,
        "amount": Amount(1000, 2**30, 1000),
        "submitted_ts": ts - 70_000 + number % 977,
        "started_ts": ts - 60_000 + number % 499,
        "ended_ts": ts,
        "forget_ts": ts + 604_800_000 if forget_ts is None else forget_ts,
        "trace": f"00-{CHANCE.randbytes(16).hex()}-{CHANCE.randbytes(8).hex()}-01",
        "priority_class": "normal",
    }
    return EndedJob(**(values | more))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_jobs, "BLOCK", 8)
    monkeypatch.setattr(ended_jobs, "UNPACKED_MAX", 16)


def test_packed_or_not_each_is_found_listed_and_counted() -> None:
    table, rows = EndedJobs(), [ended(number) for number in range(100)]
    why = Reason(code=Code.NO_FIT, detail='says "{"job_id":"')
    rows[3] = ended(3, phase=Phase.FAILED, exit_code=137, reason=why)
    for row in rows:
        table.put(row.job_id, row)
    assert len(table._rows) < 30, "most are packed"
    assert [table.get(row.job_id) for row in rows] == rows
    assert table.found([rows[0].job_id, "nobody", rows[99].job_id]) == [rows[0], rows[99]]
    assert (table.get("nobody"), len(table)) == (None, 100)
    assert sorted(table.values(), key=lambda row: row.ended_ts) == rows
    assert dict(table.items()) == {row.job_id: row for row in rows}


def test_the_latest_end_comes_first_whatever_was_unpacked_meanwhile() -> None:
    """Jobs of a block that is unpacked, since one of them may be forgotten, stand behind younger ones from then on."""
    table, rows = EndedJobs(), [ended(number) for number in range(100)]
    rows[5] = ended(5, forget_ts=rows[40].ended_ts)
    for row in rows[:60]:
        table.put(row.job_id, row)
    assert table.due(rows[40].ended_ts) == [rows[5].job_id]
    for row in rows[60:]:
        table.put(row.job_id, row)
    assert [row.ended_ts for row in table.newest_first()] == [row.ended_ts for row in reversed(rows)]


def test_they_are_due_when_their_time_has_come_and_not_before() -> None:
    table, forget = EndedJobs(), {}
    for number in range(200):
        row = ended(number, forget_ts=CHANCE.randrange(1, 1000))
        table.put(row.job_id, row)
        forget[row.job_id] = row.forget_ts
    for ts in (0, 1, 250, 500, 999):
        due = table.due(ts)
        assert sorted(due) == sorted(key for key, at in forget.items() if at <= ts)
        assert [forget[key] for key in due] == sorted(forget[key] for key in due)
        for key in due:
            table.drop(key)
            del forget[key]
    assert (len(table), table._blocks, len(table._index)) == (0, {}, 0)


def test_the_hash_is_that_of_a_state_in_which_none_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put, put again under the same key, dropped, before and after it was hashed: as of the rows that are there."""
    packed, hasher, there = State(), StateHash(), dict[str, EndedJob]()
    for number in range(300):
        kind = CHANCE.randrange(4)
        if kind == 0 and there:
            row = there.pop(CHANCE.choice(sorted(there)))
            packed.drop_ended(row)
        elif kind == 1 and there:
            old = there[CHANCE.choice(sorted(there))]
            row = ended(number, job_id=old.job_id)
            packed.put_ended(row)
            there[row.job_id] = row
        else:
            row = ended(number)
            packed.put_ended(row)
            there[row.job_id] = row
        if number % 10 == 0:
            hasher.of(packed)
    monkeypatch.setattr(ended_jobs, "UNPACKED_MAX", 10_000)
    plain = State()
    for row in there.values():
        plain.put_ended(row)
    assert packed.remembered._blocks
    assert not plain.remembered._blocks
    assert hasher.of(packed) == StateHash().of(plain)
    restored = load(iter(list(dump(packed))))
    assert StateHash().of(restored) == hasher.of(packed)


def test_what_is_due_but_still_here_is_not_packed_again() -> None:
    """The key of a run that is still held is kept: else each message would unpack it once more."""
    table = EndedJobs()
    held = ended(0, forget_ts=5)
    table.put(held.job_id, held)
    assert table.due(10) == [held.job_id]
    for number in range(1, 100):
        row = ended(number)
        table.put(row.job_id, row)
    assert held.job_id in table._rows
    assert table._blocks


def test_an_overlay_sees_what_is_packed_and_leaves_it_alone() -> None:
    state, rows = State(), [ended(number) for number in range(100)]
    for row in rows:
        state.put_ended(row)
    top = state.overlay()
    top.drop_ended(rows[0])
    assert (top.ended.get(rows[0].job_id), top.ended.get(rows[1].job_id)) == (None, rows[1])
    assert (state.ended.get(rows[0].job_id), len(top.ended), len(state.ended)) == (rows[0], 99, 100)


def test_an_index_finds_what_was_added_and_not_removed() -> None:
    index, there = KeyIndex(), set[tuple[int, int]]()
    for step in range(5_000):
        entry = (CHANCE.randrange(2**64) if step % 5 else 7, step)
        index.add(*entry)
        there.add(entry)
        if step % 3 == 0:
            gone = CHANCE.choice((entry, next(iter(there))))
            index.remove(*gone)
            there.discard(gone)
    assert len(index) == len(there)
    numbers = defaultdict(set)
    for fingerprint, number in there:
        numbers[fingerprint].add(number)
    assert all(set(index.find(fingerprint)) == found for fingerprint, found in numbers.items())
    assert list(index.find(8)) == []


def test_a_key_costs_less_than_a_tenth_of_what_an_entity_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    table, held = EndedJobs(), list[int]()
    tracemalloc.start()
    for number in range(20 * ended_jobs.BLOCK):
        row = ended(number)
        table.put(row.job_id, row)
        table.written.clear()  # as whenever the state is hashed
        if number % ended_jobs.BLOCK == 0:
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert (held[-1] - held[9]) / (10 * ended_jobs.BLOCK) < 200, "after the first blocks only packed rows are added"


def test_an_array_that_was_cut_short_is_found_by_the_ids_of_its_tasks_until_it_is_forgotten() -> None:
    table = EndedJobs()
    cut, whole = (ended(number, array=TaskArray("0-5", 0, queued=queued)) for number, queued in ((0, 2), (1, 6)))
    for row in (cut, whole, *map(ended, range(2, 100))):
        table.put(row.job_id, row)
    assert table.cut_short(task_id(cut.job_id, 3)) == cut.job_id
    assert table.cut_short(task_id(whole.job_id, 3)) == ""
    table.drop(cut.job_id)
    assert table.cut_short(task_id(cut.job_id, 3)) == ""
