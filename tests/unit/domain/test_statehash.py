"""The hash of a state follows every change, and depends on what the state holds and on nothing else."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.entities import Job
from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record
from tessera.domain.state import TABLES, State
from tessera.domain.storing.canonical import _embed, _unused, encode
from tessera.domain.storing.fast import replace
from tessera.domain.storing.later import later
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.explain.what_if import WhatIf
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.base import INT_MAX
from tessera_schemas.job import JobIdle
from tessera_schemas.ledger import FORMAT, Waiting
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.arrays import Dependency
from tests.builders import admitted, job_spec, role
from tests.ledgers import Committed
from tests.random_ledger import random_ledger


@pytest.fixture(scope="module")
def stored() -> list[bytes]:
    return random_ledger(7, messages=60).stored


def test_the_hash_kept_up_step_by_step_is_the_hash_made_from_scratch(stored: list[bytes]) -> None:
    shard = Shard()
    for seq, data in enumerate(stored, start=1):
        shard.fold(decode_entry(Message("", seq, data)))
        kept = shard.hasher.of(shard.state)
        for name in TABLES:
            for key, _ in getattr(shard.state, name).items():
                getattr(shard.state, name).written[key] = None
        assert StateHash().of(shard.state) == kept
        shard.hasher.of(shard.state)


def test_how_often_the_hash_was_asked_for_does_not_matter(stored: list[bytes]) -> None:
    often, once = Shard(), Shard()
    for seq, data in enumerate(stored, start=1):
        for shard in (often, once):
            shard.fold(decode_entry(Message("", seq, data)))
        often.hasher.of(often.state)
    # Asked only now, `once` digests everything at once, but for the checkpoints that the ledger made it check.
    assert often.hasher.of(often.state) == once.hasher.of(once.state)


def test_every_message_changes_the_hash(stored: list[bytes]) -> None:
    shard, seen = Shard(), set()
    for seq, data in enumerate(stored, start=1):
        shard.fold(decode_entry(Message("", seq, data)))
        seen.add(shard.hasher.of(shard.state))
    assert len(seen) == len(stored)


def test_the_order_of_insertion_does_not_matter() -> None:
    one, other = State(), State()
    ledger = Committed().begin()
    ledger.commit(admitted("k1"), admitted("k2"))
    jobs = list(ledger.state.jobs.values())
    for job in jobs:
        one.jobs.put(job.job_id, job)
    for job in reversed(jobs):
        other.jobs.put(job.job_id, job)
    assert StateHash().of(one) == StateHash().of(other)


def test_the_same_row_under_another_key_is_another_state() -> None:
    one, other = State(), State()
    ledger = Committed().begin()
    node = ledger.state.nodes.get("node-a")
    one.nodes.put("node-a", node)
    other.nodes.put("node-b", node)
    assert StateHash().of(one) != StateHash().of(other)


def test_an_overlay_leaves_the_hash_of_its_base_alone() -> None:
    ledger = Committed().begin()
    before = ledger.shard.hasher.of(ledger.state)
    top = ledger.state.overlay()
    top.nodes.drop("node-a")
    assert ledger.shard.hasher.of(ledger.state) == before


@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_gives_back_an_equal_state(seed: int) -> None:
    ledger = random_ledger(seed)
    restored = load(dump(ledger.state))
    assert StateHash().of(restored) == ledger.shard.hasher.of(ledger.state)
    for name in TABLES:
        assert dict(getattr(restored, name).items()) == dict(getattr(ledger.state, name).items())
    mine, theirs = restored.index, ledger.state.index
    assert {pool: list(line) for pool, line in mine.waiting.items() if line} == {
        pool: list(line) for pool, line in theirs.waiting.items() if line
    }
    assert list(mine.retry_at) == list(theirs.retry_at)
    assert list(mine.start_by) == list(theirs.start_by)
    assert restored.remembered.due(INT_MAX) == ledger.state.remembered.due(INT_MAX)
    assert sorted(mine.strays) == sorted(theirs.strays)


def test_a_restored_committer_writes_the_bytes_that_the_old_one_would_have_written() -> None:
    """Two equal gangs wait with a smaller job between them: numbers in a reason must not depend on who remembers."""
    old = Committed().begin()
    for key, gpus, replicas in (("big-1", 8, 3), ("small", 1, 1), ("big-2", 8, 3)):
        old.commit(admitted(key, job_spec(role(gpus=gpus, replicas=replicas))))
    new = Committed(ts=old.ts)
    new.shard.state, new.stored, new.facts_upto = load(dump(old.state)), list(old.stored), old.facts_upto
    line = old.line()
    old.commit(orders=(line,))
    new.commit(orders=(line,))
    assert new.stored[-1] == old.stored[-1]


def test_a_state_whose_rows_were_restored_in_another_order_decides_the_same_bytes() -> None:
    old = Committed().begin()
    old.commit(admitted("tainted", job_spec(role(gpus=8, replicas=9))))
    head, *rows = dump(old.state)
    new = Committed(ts=old.ts)
    new.shard.state = load(iter([head, *reversed(rows)]))
    new.stored, new.facts_upto = list(old.stored), old.facts_upto
    line = old.line()
    old.commit(orders=(line,))
    new.commit(orders=(line,))
    assert new.stored[-1] == old.stored[-1]


def test_amounts_that_no_machine_has_do_not_break_the_hash() -> None:
    """Before any node is known nothing is inadmissible, so that a tenant may ask for what cannot be."""
    ledger = Committed()
    ledger.commit(holder="scheduler-1")
    huge = job_spec(role(memory_bytes=2**53 - 1, cpu_milli=2**53 - 1))
    ledger.commit(*(admitted(f"k{number}", huge) for number in range(2100)))
    use = ledger.state.tenant_use.get("lab")
    assert use.amount.memory_bytes <= 2**62
    assert use.jobs < 2100
    assert len(ledger.shard.hasher.of(ledger.state)) == 64


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    weight: int = later(0)


@dataclass(frozen=True, slots=True)
class Outer:
    parts: tuple[Inner, ...]
    note: str = later("")
    more: Inner | None = later(None)


@pytest.mark.parametrize(
    ("entity", "canonical"),
    [
        (Outer((Inner("a"),)), b'{"parts":[{"name":"a"}]}'),
        (Outer((Inner("a", 1), Inner("b"))), b'{"parts":[{"name":"a","weight":1},{"name":"b"}]}'),
        (Outer((), note="n"), b'{"parts":[],"note":"n"}'),
        (Outer((), more=Inner("m")), b'{"parts":[],"note":"","more":{"name":"m"}}'),
        (Outer((Inner(',"note":""}'),)), b'{"parts":[{"name":",\\"note\\":\\"\\"}"}]}'),
    ],
    ids=["unused", "used inside", "the last one unused", "the last one used", "a text that looks like one"],
)
def test_later_fields_are_left_out_of_the_canonical_form_while_they_are_not_used(entity: Outer, canonical: bytes):
    assert encode(entity) == canonical


def encode_plainly(entity: Any) -> bytes:
    """One replacement after the other, of the whole."""
    data = orjson.dumps(entity, default=_embed)
    for unused in _unused(type(entity)):
        data = data.replace(unused, b"}")
    return data


INNER = st.builds(Inner, st.text(max_size=4), st.integers(0, 1))
OUTER = st.builds(Outer, st.lists(INNER, max_size=3).map(tuple), st.sampled_from(["", "n"]), st.none() | INNER)


@given(OUTER)
def test_the_canonical_form_is_that_of_the_plain_replacements(entity: Outer) -> None:
    assert encode(entity) == encode_plainly(entity)


TEXTS = st.sampled_from(["", "k", ',"task":0}'])
USED = st.fixed_dictionaries(
    {
        "name": TEXTS,
        "user": TEXTS,
        "task_of": TEXTS,
        "task": st.integers(0, 1),
        "after": st.sampled_from([(), (Dependency(condition="singleton"),)]),
        "idle": st.sampled_from([None, JobIdle()]),
    }
)


@given(USED)
def test_a_jobs_canonical_form_is_that_of_the_plain_replacements(used: dict[str, Any]) -> None:
    used_job = replace(queued_job(), **used)
    assert encode(used_job) == encode_plainly(used_job)


@cache
def queued_job() -> Job:
    ledger = Committed().begin()
    ledger.commit(admitted("k1"))
    return next(iter(ledger.state.jobs.values()))


@pytest.mark.parametrize("seed", range(4))
def test_every_row_of_a_state_has_the_canonical_form_of_the_plain_replacements(seed: int) -> None:
    state = random_ledger(seed, 120).state
    rows = [row for name in TABLES for row in getattr(state, name).values()]
    assert len({type(row) for row in rows}) > 4
    assert [encode(row) for row in rows] == [encode_plainly(row) for row in rows]


@pytest.mark.parametrize("seed", range(4))
def test_a_restored_state_hashes_by_the_bytes_it_was_read_from_as_by_its_rows(seed: int) -> None:
    lines, hasher = list(dump(random_ledger(seed, 120).state)), StateHash()
    by_bytes, by_rows = load(iter(lines), hasher), load(iter(lines))
    assert hasher.of(by_bytes) == StateHash().of(load(iter(lines)))
    job = next(iter(by_rows.jobs.values()))
    for state in (by_bytes, by_rows):
        state.put_job(replace(job, evictions=job.evictions + 1))
    assert hasher.of(by_bytes) == StateHash().of(by_rows)


def test_a_snapshot_of_a_format_to_come_is_refused() -> None:
    state = random_ledger(1).state
    state.format = FORMAT + 1
    with pytest.raises(Contradiction, match="format"):
        load(iter(list(dump(state))))


def test_an_overlay_is_refused_once_the_state_below_has_moved() -> None:
    ledger = Committed().begin()
    ledger.commit(admitted("one"))
    top = ledger.state.overlay()
    over = top.overlay()
    over.check_base()
    ledger.commit(admitted("two"))
    for moved in (top, over):
        with pytest.raises(Contradiction, match=r"an overlay of state \d+ was used when that stood at \d+"):
            moved.check_base()
    record = Waiting(kind="waiting", job_id=admitted("one").job_id, reason=Reason(code=Code.NO_FIT))
    with pytest.raises(Contradiction, match="make it anew"):
        apply_record(over, record, ())


def test_a_question_is_refused_once_the_state_has_moved() -> None:
    ledger = Committed().begin()
    job = admitted("one")
    ledger.commit(job)
    asked = ledger.state.jobs.get(job.job_id)
    what_if = WhatIf(ledger.state, asked, ledger.ts)
    what_if.verdict(asked)
    ledger.commit(admitted("two"))
    with pytest.raises(Contradiction, match="make it anew"):
        what_if.verdict(asked)
