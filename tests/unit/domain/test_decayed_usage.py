"""What queues, tenants and users have used counts by a half-life, to the digit whatever lies in between."""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tessera.client.ledger.replay import verify
from tessera.domain.folding import decayed_usage
from tessera.domain.folding.books import put_in_force
from tessera.domain.folding.decayed_usage import (
    GROWTH,
    TICKS,
    Decay,
    DecayedUsage,
    Usages,
    decay_of,
    follow_half_life,
)
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.domain.table import Table
from tessera_schemas.config import Config, FairShare, Queue, Tenant
from tessera_schemas.facts import RunEnded
from tessera_schemas.ledger import FORMAT
from tessera_schemas.shard.ledger_form import HISTORY_FROM
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

HOUR = 3600
DECAY = Decay(1000, 64_000)  # half of it counts after 64 s

Changes = list[tuple[int, int]]
"""Times at which a name began to hold so many thousandths of a GPU more."""


def by_tick(changes: Changes, ts: int, decay: Decay) -> int:
    """The rule, tick by tick in fractions: later milliseconds weigh more, and the end of a half-life halves the sum."""
    total, held = Fraction(0), 0
    for (at, more), (until, _) in pairwise([*changes, (ts, 0)]):
        held += more
        while at < until:
            end = min(until, (at // decay.tick_ms + 1) * decay.tick_ms)
            tick = at // decay.tick_ms % TICKS
            weight = next(w for w in range(GROWTH[tick], 0, -1) if Fraction(w, 2**20) ** TICKS <= 2**tick)
            total += held * (end - at) * weight
            at = end
            if at % decay.half_life_ms == 0:
                total = Fraction(total // 2)
    return total // GROWTH[ts // decay.tick_ms % TICKS]


def added(changes: Iterable[tuple[int, int]]) -> Usages:
    rows: Usages = Table()
    for at, more in changes:
        DECAY.add(rows, at, "q", held=more)
    return rows


steps = st.lists(st.tuples(st.integers(0, 90_000), st.sampled_from((0, 250, 1000, 8000, -1))), min_size=1, max_size=8)


def changes_of(drawn: list[tuple[int, int]], at: int = 1_760_000_000_000) -> Changes:
    found, held = Changes(), 0
    for pause, more in drawn:
        at, more = at + pause, -held if more < 0 else more
        held += more
        found.append((at, more))
    return found


@settings(max_examples=40, deadline=None, derandomize=True)
@given(steps, st.integers(0, 400_000))
def test_what_was_used_is_the_sum_over_ticks_to_the_digit(drawn: list[tuple[int, int]], pause: int) -> None:
    changes = changes_of(drawn)
    ts = changes[-1][0] + pause
    assert DECAY.used(added(changes).get("q"), ts) == by_tick(changes, ts, DECAY)


@given(steps, st.integers(0, 10**7), st.lists(st.integers(0, 10**7)))
def test_no_update_in_between_changes_what_was_used(drawn: list[tuple[int, int]], pause: int, looks: list[int]) -> None:
    changes = changes_of(drawn)
    ts, begin = changes[-1][0] + pause, changes[0][0]
    between = [(begin + look, 0) for look in looks if begin + look <= ts]
    assert added(sorted([*changes, *between], key=lambda each: each[0])) is not None
    few, many = added(changes).get("q"), added(sorted([*changes, *between], key=lambda each: each[0])).get("q")
    assert DECAY.used(few, ts) == DECAY.used(many, ts)


@pytest.mark.parametrize("half_lives", [1, 2, 10, 30])
def test_half_of_it_counts_after_each_half_life(half_lives: int) -> None:
    used = 10**15
    rows: Usages = Table()
    DECAY.add(rows, 0, "q", used=used)
    assert DECAY.used(rows.get("q"), half_lives * DECAY.half_life_ms) == used >> half_lives
    half = DECAY.used(rows.get("q"), DECAY.half_life_ms // 2)
    assert abs(half**2 * 2 - used**2) < used**2 // 10**5


def test_who_has_always_held_as_many_gpus_has_used_them_on_average_and_sums_of_any_size_are_kept() -> None:
    week = decay_of(7 * 24 * HOUR)
    assert week is not None
    rows: Usages = Table()
    week.add(rows, 0, "q", held=10**9)  # a million GPUs
    now = 400 * 7 * 24 * HOUR * 1000
    week.add(rows, now, "q")
    row = rows.get("q")
    assert row is not None
    assert max(row.high, row.low) < 2**62
    average = week.average_of(week.used(row, now))
    assert abs(average - 10**9) < 10**7  # a hundredth: the tick that runs counts in full


def test_what_has_come_to_nothing_goes_at_the_end_of_a_half_life() -> None:
    rows: Usages = Table()
    DECAY.add(rows, 0, "gone", used=2)
    DECAY.add(rows, 0, "holds", held=1000)
    DECAY.forget(rows, 0, DECAY.half_life_ms - 1)
    DECAY.forget(rows, DECAY.half_life_ms, 2 * DECAY.half_life_ms - 1)
    assert len(rows) == 2
    DECAY.forget(rows, 2 * DECAY.half_life_ms - 1, 2 * DECAY.half_life_ms)
    assert [row.name for row in rows.values()] == ["holds"]


# -- in the fold -------------------------------------------------------------------------------------------------------

NAMES = ("research", "research/lab", "research/lab/ann")


def policy(half_life: int = 64 * 60) -> dict[str, Any]:
    return {"fair_share": FairShare(half_life_seconds=half_life)}


def ran(ledger: Committed, key: str = "k1", seconds: int = 3600, tenant: str = "lab", **spec: Any) -> tuple[int, int]:
    """A job of 2 GPUs that holds them for so long; from when and until when."""
    job = admitted(key, job_spec(role(gpus=2), **{"user": "ann"} | spec), tenant=tenant)
    ledger.commit(job)
    run, began = ledger.start(job.job_id, key), ledger.ts - 2000
    ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=seconds * 1000 - 3000)
    ledger.commit(run_absent(run))
    return began, ledger.ts


def used(state: State, name: str, ts: int = 0) -> int:
    assert state.decay is not None
    return state.decay.used(state.decayed.get(name), ts or state.ts)


def test_a_run_counts_for_its_queue_its_tenant_and_its_user_from_its_start_until_its_devices_are_free() -> None:
    ledger = Committed().begin(node_seen("node-a", 8), body=config_body(policy=policy()))
    began, free = ran(ledger)
    assert free - began == 3_600_000
    until = by_tick([(began, 2000), (free, -2000)], free, ledger.state.decay)
    assert [used(ledger.state, name) for name in NAMES] == [until] * 3
    assert 2000 * 3_600_000 * 7 // 10 < until < 2000 * 3_600_000 * 8 // 10
    ran(ledger, "k2", user="", seconds=10)
    assert used(ledger.state, "research/lab/") > 0
    assert used(ledger.state, "research/lab") - used(ledger.state, "research/lab/") <= until


def test_a_snapshot_a_replay_and_every_checkpoint_in_between_give_the_same_rows() -> None:
    ledger = Committed().begin(node_seen("node-a", 8), body=config_body(policy=policy()))
    for number in range(4):
        ran(ledger, f"k{number}", seconds=1000 * (number + 1))
        ledger.commit(checkpoint=True)
        again = load(iter(list(dump(ledger.state))))
        assert StateHash().of(again) == ledger.shard.hasher.of(ledger.state)
        assert dict(again.decayed.items()) == dict(ledger.state.decayed.items())
        assert again.decay == ledger.state.decay
    assert verify(ledger.stored).ok


@pytest.mark.parametrize(("seconds", "format_"), [(0, FORMAT), (HOUR, HISTORY_FROM - 1)])
def test_without_a_half_life_and_in_older_ledgers_nothing_is_kept(seconds: int, format_: int) -> None:
    ledger = Committed().begin(node_seen("node-a", 8), body=config_body(policy=policy(HOUR)))
    ledger.commit(admitted("k1", job_spec(role(gpus=2))))
    ledger.commit(orders=(ledger.line(),))
    state, run = State(), next(iter(ledger.state.runs.values()))
    state.format = format_
    put_in_force(state, Config(version=1, body=config_body(policy=policy(seconds))))
    state.put_run(run)
    assert len(state.decayed) == 0
    assert len(ledger.state.decayed) == 3


def test_what_runs_hold_begins_to_count_with_the_half_life_goes_on_with_another_and_is_forgotten_without() -> None:
    ledger = Committed().begin(node_seen("node-a", 8), body=config_body())
    ledger.commit(admitted("k1", job_spec(role(gpus=2), user="ann")))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(config_proposed(config_body(policy=policy()), 1))
    since = ledger.ts
    ledger.commit(ms=HOUR * 1000)
    was = used(ledger.state, NAMES[2])
    assert was == by_tick([(since, 2000)], ledger.ts, ledger.state.decay) > 0
    ledger.commit(config_proposed(config_body(policy=policy(10 * HOUR)), 2), ms=0)
    assert was - 1 <= used(ledger.state, NAMES[2]) <= was
    ledger.commit(config_proposed(config_body(), 3))
    assert len(ledger.state.decayed) == 0
    assert verify(ledger.stored).ok


def test_what_a_queue_has_used_goes_to_the_one_that_takes_its_place() -> None:
    ledger = Committed().begin(node_seen("node-a", 8), body=config_body(Queue(name="old"), policy=policy()))
    ran(ledger, queue="old")
    ledger.commit(admitted("k2", job_spec(role(gpus=2), queue="old")))
    ledger.commit(orders=(ledger.line(),))
    before = used(ledger.state, "old")
    ledger.commit(config_proposed(config_body(Queue(name="new", was="old"), policy=policy()), 1), ms=0)
    assert before - 1 <= used(ledger.state, "new/lab") <= before
    for _ in range(3):
        ledger.commit()
    holding = {name: row.gpu_milli for name, row in ledger.state.decayed.items() if row.gpu_milli}
    assert holding == {"new": 2000, "new/lab": 2000, "new/lab/": 2000}


def test_of_too_many_names_those_with_the_least_are_counted_together_and_who_holds_something_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decayed_usage, "NAMES_MAX", 64)
    monkeypatch.setattr(decayed_usage, "LOOK_EVERY", 2)
    tenants = tuple(Tenant(name=f"t{number}") for number in range(40))
    body = config_body(policy=policy()).model_copy(update={"tenants": tenants})
    ledger = Committed().begin(node_seen("node-a", 8), body=body)
    ledger.commit(admitted("long", job_spec(role(gpus=1)), tenant="t39"))
    order = list(range(39))
    Random(4).shuffle(order)
    for number in order:
        ran(ledger, f"k{number}", 10 * (number + 1), f"t{number}", user="")
        assert len(ledger.state.decayed) <= 66
    names = {name for name, _ in ledger.state.decayed.items()}
    assert {"research", "research/t39", "research/t39/", "/", "//"} <= names
    assert "research/t0" not in names
    tenants_sum = sum(used(ledger.state, name) for name in names if name.count("/") == 1)
    assert abs(tenants_sum - used(ledger.state, "research")) < 100
    assert verify(ledger.stored).ok


def test_a_half_life_of_less_than_an_hour_is_refused_by_its_field() -> None:
    for seconds in (1, 7, 3599):
        with pytest.raises(ValidationError, match=r"(?s)fair_share.half_life_seconds.*3600 or more"):
            config_body().model_validate(
                {
                    "tenants": [{"name": "lab"}],
                    "queues": [{"name": "q"}],
                    "policy": {"fair_share": {"half_life_seconds": seconds}},
                }
            )
    assert FairShare(half_life_seconds=3600).half_life_seconds == 3600
    assert FairShare().half_life_seconds == 0


def test_the_same_half_life_put_in_force_again_changes_no_row() -> None:
    rows: Usages = Table()
    DECAY.add(rows, 5, "q", used=12_345)
    before = rows.get("q")
    follow_half_life(rows, DECAY, DECAY, 10**6, (), {})
    assert rows.get("q") is before
    assert isinstance(before, DecayedUsage)
    assert replace(before) == before
