"""
Hours of the week, and lending by them: which part of a queue's nominal quota others may borrow. Integers alone.

A time zone is a fixed offset to UTC: rules of summer time change with the machine, and a replay must find the same.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from tessera_schemas.base import Strict

LENDING_HOURS_MAX = 32
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTE_MS = 60 * 1000
DAY_MS = 24 * 60 * MINUTE_MS
WEEK_MS = 7 * DAY_MS
EPOCH_DAY = 3
"""The first of January 1970 was a Thursday."""
_DAY = "(mon|tue|wed|thu|fri|sat|sun)"
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"


class WeekHours(Strict):
    """Hours of a week, by a clock with a fixed offset to UTC."""

    days: Annotated[
        str,
        StringConstraints(pattern=rf"^{_DAY}(-{_DAY})?$"),
        Field(description="Days on which the hours begin: one, or from one to another, such as mon-fri"),
    ] = "mon-sun"
    hours: Annotated[
        str,
        StringConstraints(pattern=rf"^{_HOUR}-({_HOUR}|24:00)$"),
        Field(description="From and to, such as 08:00-20:00; 20:00-08:00 ends on the next day"),
    ]
    utc_offset: Annotated[
        str,
        StringConstraints(pattern=rf"^[+-]{_HOUR}$"),
        Field(description="Offset of the hours' clock to UTC, all year, such as +01:00"),
    ] = "+00:00"

    @model_validator(mode="after")
    def _lasts(self) -> Self:
        if self.hours[:5] == self.hours[6:]:
            raise ValueError("hours: begin and end are the same; the whole day is 00:00-24:00")
        return self

    @property
    def offset_ms(self) -> int:
        """Milliseconds by which its clock is before UTC."""
        return _ms(self.utc_offset[1:]) * (-1 if self.utc_offset[0] == "-" else 1)

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Begin of each span and its length in milliseconds, from Monday 00:00 UTC on."""
        first, last = DAYS.index(self.days[:3]), DAYS.index(self.days[-3:])
        begin, end = _ms(self.hours[:5]), _ms(self.hours[6:])
        days = range(first, last + 1 + 7 * (last < first))
        length = (end - begin) % DAY_MS or DAY_MS
        return tuple(((day * DAY_MS + begin - self.offset_ms) % WEEK_MS, length) for day in days)

    def holds(self, at: int) -> bool:
        """Whether a time of the week is within the hours."""
        return any((at - begin) % WEEK_MS < length for begin, length in self.spans)

    def clock(self, ts: int) -> str:
        """A time by the hours' own clock, such as `fri 20:00 (UTC+01:00)`."""
        local = ts + EPOCH_DAY * DAY_MS + self.offset_ms
        hour, minute = divmod(local % DAY_MS // MINUTE_MS, 60)
        return f"{DAYS[local % WEEK_MS // DAY_MS]} {hour:02}:{minute:02} (UTC{self.utc_offset})"


class LendingHours(WeekHours):
    """Hours of a week in which others may borrow at most a part of the queue's nominal quota."""

    percent: Annotated[
        int, Field(ge=0, le=100, strict=True, description="Part of the nominal quota that may be lent; 0: nothing")
    ]


Lending = Annotated[
    tuple[LendingHours, ...],
    Field(max_length=LENDING_HOURS_MAX, description="Hours with a lending limit; the first that holds counts"),
]


def is_within(calendar: Sequence[WeekHours], ts: int) -> bool:
    """Whether `ts` is within some of the hours."""
    at = (ts + EPOCH_DAY * DAY_MS) % WEEK_MS
    return any(entry.holds(at) for entry in calendar)


def next_within(calendar: Sequence[WeekHours], ts: int) -> int:
    """The next time, after `ts`, at which some of the hours begin."""
    at = (ts + EPOCH_DAY * DAY_MS) % WEEK_MS
    return ts + min((begin - at) % WEEK_MS or WEEK_MS for entry in calendar for begin, _ in entry.spans)


def week_of(ts: int) -> int:
    """Number of the week that a time is in; weeks begin on Monday, 00:00 UTC."""
    return (ts + EPOCH_DAY * DAY_MS) // WEEK_MS


def week_begins(week: int) -> int:
    """Begin of a week, in milliseconds since the Unix epoch."""
    return week * WEEK_MS - EPOCH_DAY * DAY_MS


def lent_percent(calendar: Sequence[LendingHours], ts: int) -> int | None:
    """Part of the nominal quota that may be lent at `ts`, by the first entry that holds; None: by none."""
    at = (ts + EPOCH_DAY * DAY_MS) % WEEK_MS
    return next((entry.percent for entry in calendar if entry.holds(at)), None)


def lent_until(calendar: Sequence[LendingHours], ts: int) -> int:
    """The next time at which another part may be lent, 0 if there is none."""
    at, now = (ts + EPOCH_DAY * DAY_MS) % WEEK_MS, lent_percent(calendar, ts)
    spans = [span for entry in calendar for span in entry.spans]
    edges = {edge for begin, length in spans for edge in (begin, begin + length)}
    waits = sorted((edge - at) % WEEK_MS or WEEK_MS for edge in edges)
    return next((ts + wait for wait in waits if lent_percent(calendar, ts + wait) != now), 0)


def _ms(hours: str) -> int:
    return (int(hours[:2]) * 60 + int(hours[3:])) * MINUTE_MS
