"""What quotes rest on, followed along a ledger: equal ledgers give equal records, stored or not."""

import json

import pytest

from tessera.domain.runtimes import kind_of
from tessera.engine.quoting import Quote, quote
from tessera.engine.quoting.pool_now import pool_now, shape_of
from tessera.engine.quoting.record import QuoteRecord
from tessera.engine.quoting.scorecard import scorecard
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.facts import CancelRequested, RunAbsent, RunEnded
from tessera_schemas.ledger import LedgerMessage
from tests.builders import admitted, config_body, job_spec, role
from tests.ledgers import Committed
from tests.random_ledger import random_ledger

POOL = "default"
MINUTE = 60_000


def end(made: Committed, run: str) -> None:
    """A run ends and is gone, and the next in line is placed."""
    made.commit(RunEnded(kind="run_ended", run_id=run))
    made.commit(RunAbsent(kind="run_absent", run_id=run))
    made.commit(orders=(made.line(),))


def cancel(made: Committed, job_id: str) -> LedgerMessage:
    return made.commit(CancelRequested(kind="cancel_requested", job_id=job_id, tenant="lab"))


def drawn(record: QuoteRecord, made: Committed | Shard) -> list[Quote]:
    state = made.state
    now = pool_now(state, POOL)
    found = quote(record.outlook(now, POOL, state.runtimes), now.ts, futures=4) if now.waiting else []
    return record.give(found, now, POOL, state.runtimes)


def followed(stored: list[bytes], every: int = 20, again: bool = False) -> tuple[QuoteRecord, list[list[Quote]], Shard]:
    """A record of a whole ledger with quotes now and then; `again`: as JSON holds it, each time."""
    shard, record, told = Shard(), QuoteRecord(), list[list[Quote]]()
    for seq, data in enumerate(stored, start=1):
        entry = decode_entry(Message("", seq, data))
        shard.fold(entry)
        record.follow(entry.message, shard.state)
        if seq % every == 0:
            told.append(drawn(record, shard))
            record = QuoteRecord.read(json.loads(json.dumps(record.stored()))) if again else record
    return record, told, shard


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_equal_ledgers_give_equal_quotes_though_the_record_was_stored_meanwhile(seed: int) -> None:
    stored = random_ledger(seed, 120).stored
    record, told, _ = followed(stored)
    read, told_again, _ = followed(stored, again=True)
    assert any(told), "somebody waits for GPUs"
    assert told == told_again
    assert json.dumps(record.stored()) == json.dumps(read.stored())
    assert record.scored(10**15) == []


def busy() -> tuple[Committed, QuoteRecord, str]:
    """A pool of two nodes whose 16 GPUs one job has for ten minutes, and the record of it."""
    made = Committed().begin(body=config_body())
    record = QuoteRecord.begin(made.state)
    first = admitted("first", job_spec(role(replicas=2, gpus=8), time_limit_seconds=600))
    record.follow(made.commit(first), made.state)
    run = made.start(first.job_id, "first")
    record.catch_up(made.state)
    return made, record, run


def test_a_quote_is_scored_once_by_when_its_job_has_its_devices() -> None:
    made, record, run = busy()
    late = admitted("late", job_spec(role(gpus=8)))
    record.follow(made.commit(late), made.state)
    [given] = drawn(record, made)
    assert given.job_id == late.job_id
    assert 0 < given.wait_at(500) <= 12 * MINUTE
    record.follow(made.commit(ms=4 * MINUTE), made.state)
    assert drawn(record, made)[0].ts == made.ts, "lists tell what is known now"
    before = len(made.stored)
    end(made, run)
    for seq, data in enumerate(made.stored[before:], start=before + 1):
        record.follow(decode_entry(Message("", seq, data)).message, made.state)
    [scored] = record.scored(made.ts)
    assert scored.given.ts == given.ts, "the first quote is scored, and none that came later"
    assert scored.given.told == given.waits_ms
    assert scored.wait_ms == made.state.runs.get(f"{late.job_id}-1").allocated_ts - given.ts
    assert scored.given.naive.ahead_and_running > scored.given.naive.ahead == 0
    card = scorecard([scored])
    assert card.quotes == 1
    assert dict(card.held_by)[950] in (0, 1000)
    assert card.error_ms == abs(given.wait_at(500) - scored.wait_ms)


def test_who_is_cancelled_scores_nothing() -> None:
    made, record, _ = busy()
    late = admitted("late", job_spec(role(gpus=8)))
    record.follow(made.commit(late), made.state)
    assert len(drawn(record, made)) == 1
    record.follow(cancel(made, late.job_id), made.state)
    assert not record.book.is_open(late.job_id)
    assert record.scored(made.ts) == []


def test_what_was_not_seen_is_caught_up_from_the_state() -> None:
    made, record, run = busy()
    late, gone = admitted("late", job_spec(role(gpus=8))), admitted("gone", job_spec(role(gpus=8)))
    record.follow(made.commit(late, gone), made.state)
    assert len(drawn(record, made)) == 2
    cancel(made, gone.job_id)
    end(made, run)
    record.catch_up(made.state)
    assert record.lengths.running == (late.job_id,)
    [scored] = record.scored(made.ts)
    assert scored.given.ts + scored.wait_ms == made.state.runs.get(f"{late.job_id}-1").allocated_ts
    assert not record.book.open_jobs


def test_runs_that_the_shard_remembers_count_for_a_record_that_begins_late() -> None:
    made = Committed().begin(body=config_body())
    for at in range(30):
        made.run_to_its_end(f"job-{at}", gpus=8)
    kind = kind_of(made.state.ended.get(admitted("job-0").job_id) or made.state.jobs.get(admitted("job-0").job_id))
    seen, nothing = (record.lengths.chances() for record in (QuoteRecord.begin(made.state), QuoteRecord()))
    assert 4 * seen.quantile(kind, 900) < nothing.quantile(kind, 900)


def test_what_is_learnt_later_moves_no_outlook() -> None:
    made, record, _ = busy()
    late = admitted("late", job_spec(role(gpus=8)))
    record.follow(made.commit(late), made.state)
    now = pool_now(made.state, POOL)
    ahead = record.outlook(now, POOL, made.state.runtimes)
    first = quote(ahead, 3)
    for at in range(200):
        record.lengths.start(f"other-{at}", now.waiting[0].shape.kind, made.ts)
        record.lengths.end(f"other-{at}", made.ts + at)
    assert quote(ahead, 3) == first


def test_a_job_that_is_not_in_line_is_told_and_never_scored() -> None:
    made, record, _ = busy()
    late = admitted("late", job_spec(role(gpus=8)))
    record.follow(made.commit(late), made.state)
    [asked] = [quote for quote in drawn(record, made) if quote.job_id == late.job_id]
    shape = shape_of(made.state.tree, made.state.jobs.get(late.job_id))
    assert shape is not None
    before = record.book.open_jobs
    assert record.correct(asked, POOL, shape).job_id == late.job_id
    assert record.book.open_jobs == before


@pytest.mark.parametrize("wrong", [{}, {"lengths": {}}, {"lengths": {"running": [["a"]]}}, {"lengths": []}])
def test_what_was_not_stored_by_a_record_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((AttributeError, KeyError, IndexError, TypeError, ValueError)):
        QuoteRecord.read(wrong)
