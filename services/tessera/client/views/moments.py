"""Moments as people read them at a terminal: in the local zone, by TZ, which is named once beside them."""

from datetime import UTC, datetime

WINTER, SUMMER = 1_767_225_600, 1_782_864_000
"""Seconds since the epoch half a year apart: a zone with summer time has two names."""


def local_time(ts: int) -> datetime:
    """Milliseconds since the epoch as a time in the local zone."""
    return datetime.fromtimestamp(ts / 1000, UTC).astimezone()


def local_of(stamp: str) -> datetime:
    """A time of RFC 3339, such as an event's, in the local zone."""
    return datetime.fromisoformat(stamp).astimezone()


def zone_name() -> str:
    """The local zone's name, such as `UTC` or `CET/CEST`."""
    names = (local_time(1000 * seconds).tzname() or "local" for seconds in (WINTER, SUMMER))
    return "/".join(dict.fromkeys(names))
