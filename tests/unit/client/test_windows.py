"""Windows as people say them, in the local zone: starts, lengths and rules by which they recur."""

import os
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from tessera.client.outcomes import Failure
from tessera.client.slurm.windows import read_windows, recurring

HOUR = 3_600_000


@pytest.fixture
def in_berlin() -> Iterator[None]:
    """Clocks are put forward on 31 March 2030 there."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


def local(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def test_a_window_has_a_start_and_a_length_or_an_end(in_berlin: None) -> None:
    (by_length,) = read_windows("x", "2040-01-31T12:00", None, "90m", None)
    (by_end,) = read_windows("x", "2040-01-31T12:00", "2040-01-31T13:30", None, None)
    assert by_length == by_end == {"start_ts": local("2040-01-31T12:00"), "end_ts": local("2040-01-31T13:30")}


def test_a_rule_keeps_the_hour_of_the_day_across_a_change_of_clocks(in_berlin: None) -> None:
    starts = recurring("x", local("2030-03-24T02:30"), "FREQ=WEEKLY;COUNT=3")
    assert [datetime.fromtimestamp(at / 1000).strftime("%d %H:%M") for at in starts] == [
        *("24 02:30", "31 03:30", "07 02:30"),  # on the 31st there is no half past two
    ]
    assert starts[2] - starts[0] == 14 * 24 * HOUR - HOUR


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (("now", None, None, None), "say how long"),
        (("now", "now+1hour", "1h", None), "say how long"),
        (("now+2hours", "now+1hour", None, None), "not after --start"),
        (("now", None, "soon", None), "--for"),
        (("whenever", None, "1h", None), "start=whenever"),
        (("now", None, "1h", "FREQ=WEEKLY"), "say its end"),
        (("now", None, "1h", "FREQ=SOMETIMES;COUNT=2"), "--repeat"),
        (("now", None, "1h", "FREQ=HOURLY;COUNT=10000"), "more than 64"),
        (("now", None, "1h", "FREQ=DAILY;UNTIL=20010101"), "names no time"),
    ],
)
def test_a_window_that_is_none_is_refused_by_its_option(said: tuple[str | None, ...], words: str) -> None:
    with pytest.raises(Failure, match=words):
        read_windows("x", *said)  # type: ignore[arg-type]
