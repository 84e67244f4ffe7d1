"""Queues that lend a part of their quota by the hour: who starts when, who gives back, and what explain says."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.client.cluster import applying
from tessera.client.input import files
from tessera.domain.storing.snapshot import dump, load
from tessera.engine.explain.explanation import explain
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tessera.testkit.rules_checker.quotas import is_within
from tessera_schemas.config import Queue
from tessera_schemas.shard.lending import DAYS, LendingHours, lent_percent, lent_until
from tests.builders import config_proposed
from tests.rounds import Rounds, share

PAGE = Path(__file__).parents[3] / "docs" / "queues.md"
SHARDS: list[Rounds] = []
"""Those that a test has made."""
CET = timezone(timedelta(hours=1))


def at(day: int, hour: int, minute: int = 0) -> int:
    """A time of the first week of December 2025, whose first day is a Monday, at UTC+1, in milliseconds."""
    return int(datetime(2025, 12, day, hour, minute, tzinfo=CET).timestamp() * 1000)


def shown_queues() -> tuple[Queue, ...]:
    """The queues of the page's example."""
    section = PAGE.read_text().split("## Lending by the hour")[1]
    (text,) = re.findall(r"```yaml\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    return applying.read_file(files.parse_yaml(f"tenants: [{{name: lab}}]\n{text}", "page"), "page").body.queues


def shard(ts: int) -> Rounds:
    """The page's queues on two nodes of eight GPUs, from a time on."""
    made = Rounds(share("old", 0, None), nodes={"node-a": 8, "node-b": 8})
    body = made.state.config.body.model_copy(update={"queues": shown_queues()})
    made.ts = ts
    made.commit(config_proposed(body, made.state.config.version, abandon=True))
    SHARDS.append(made)
    return made


@pytest.fixture(autouse=True)
def judged() -> Iterator[None]:
    """By the rules checker, which reads clock and calendar itself."""
    SHARDS.clear()
    yield
    for made in SHARDS:
        report = check(made.stored)
        check_rules(report, made.stored)
        assert report.violations == []


def ask(rounds: Rounds, key: str, gpus: int = 4, queue: str = "training") -> bool:
    """Whether a job of so many GPUs starts."""
    rounds.submit(key, gpus=gpus, queue=queue)
    rounds.settle()
    return rounds.running(key)


@pytest.mark.parametrize(
    ("ts", "starts"),
    [
        (at(1, 7, 59), [True, True, True, False]),
        (at(1, 8), [True, True, False, False]),
        (at(1, 19, 59), [True, True, False, False]),
        (at(1, 20), [True, True, True, False]),
        (at(6, 12), [True, True, True, False]),
    ],
    ids=["before the hour", "in the hour", "in its last minute", "after it", "on a Saturday"],
)
def test_training_borrows_as_much_as_the_hour_lets(ts: int, starts: list[bool]) -> None:
    rounds = shard(ts)
    assert [ask(rounds, f"train-{number}") for number in range(4)] == starts


def test_what_waits_for_the_hour_starts_with_it() -> None:
    rounds = shard(at(1, 19, 58))
    assert [ask(rounds, f"train-{number}") for number in range(3)] == [True, True, False]
    rounds.ts = at(1, 20)
    rounds.settle()
    assert rounds.running("train-2")


def test_a_loan_of_the_night_runs_on_by_day_until_its_owner_wants_it() -> None:
    rounds = shard(at(1, 7))
    assert [ask(rounds, f"train-{number}") for number in range(3)] == [True, True, True]
    rounds.ts = at(1, 8)
    rounds.settle()
    assert rounds.running("train-0", "train-1", "train-2")
    assert ask(rounds, "chat", gpus=8, queue="serving")
    assert len(rounds.evicted()) == 1
    assert not ask(rounds, "more")


def test_explain_says_who_lends_less_and_until_when() -> None:
    rounds = shard(at(5, 9))
    for number in range(3):
        ask(rounds, f"train-{number}")
    said = explain(rounds.state, rounds.job("train-2").job_id, rounds.ts)
    assert said is not None
    assert "Queue serving lends 0 % of its quota by its hours, until fri 20:00 (UTC+01:00)." in said.sentences
    assert not [sentence for sentence in said.sentences if "never starts" in sentence]


def test_a_restored_state_lends_as_the_one_that_was_stored() -> None:
    rounds = shard(at(1, 9))
    limits = [quota.lending_limit for quota in load(dump(rounds.state)).tree.queues["serving"].quotas]
    assert limits == [quota.lending_limit for quota in rounds.state.tree.queues["serving"].quotas] == [0]


def hours(**said: Any) -> LendingHours:
    return LendingHours.model_validate({"percent": 0} | said)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"hours": "08:00-08:00"}, "the whole day is 00:00-24:00"),
        ({"hours": "8-20"}, "hours"),
        ({"hours": "08:00-20:00", "days": "monday"}, "days"),
        ({"hours": "08:00-20:00", "utc_offset": "CET"}, "utc_offset"),
        ({"hours": "08:00-20:00", "percent": 101}, "percent"),
    ],
)
def test_what_no_hours_are_is_refused_by_name(said: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        hours(**said)


@pytest.mark.parametrize(
    ("entry", "inside", "outside"),
    [
        (hours(days="fri", hours="20:00-08:00"), [(5, 20), (5, 23, 59), (6, 7, 59)], [(5, 19, 59), (6, 8), (4, 21)]),
        (hours(days="sat-mon", hours="00:00-24:00"), [(6, 0), (7, 12), (1, 23, 59)], [(5, 23, 59), (2, 0)]),
        (hours(days="sun", hours="22:00-02:00"), [(7, 22), (1, 1, 59)], [(1, 2), (7, 21, 59)]),
    ],
    ids=["past midnight", "past the week's end", "past midnight of the week's end"],
)
def test_hours_hold_on_the_days_on_which_they_begin(entry: LendingHours, inside: Any, outside: Any) -> None:
    entry = entry.model_copy(update={"utc_offset": "+01:00"})
    assert [lent_percent([entry], at(*moment)) for moment in inside] == [0] * len(inside)
    assert [lent_percent([entry], at(*moment)) for moment in outside] == [None] * len(outside)


ENTRIES = st.builds(
    lambda first, last, begin, length, offset, percent: LendingHours(
        days=f"{DAYS[first]}-{DAYS[last]}",
        hours=f"{begin:02}:15-{(begin + length) % 24:02}:15",
        utc_offset=f"{offset:+03}:00",
        percent=percent,
    ),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 23),
    st.integers(1, 23),
    st.integers(-12, 14),
    st.integers(0, 100),
)


@given(st.lists(ENTRIES, min_size=1, max_size=3), st.integers(0, 10**6))
def test_the_next_change_is_the_first_and_is_one(calendar: list[LendingHours], minute: int) -> None:
    ts = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1000) + minute * 60_000
    until, now = lent_until(calendar, ts), lent_percent(calendar, ts)
    quarters = range(ts - ts % 900_000 + 900_000, ts + 8 * 86_400_000, 900_000)
    changes = (moment for moment in quarters if lent_percent(calendar, moment) != now)
    assert until == next(changes, 0)


@given(ENTRIES, st.integers(0, 10**6))
def test_the_checker_s_clock_and_the_engine_s_agree(entry: LendingHours, minute: int) -> None:
    ts = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1000) + minute * 60_000
    assert is_within(entry, ts) == (lent_percent([entry], ts) is not None)
