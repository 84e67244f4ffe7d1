"""Windows of time as people say them: a start, an end or a length, and a rule by which they recur."""

from datetime import datetime, timedelta
from typing import Any

from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm import values
from tessera.kernel.clock import SystemClock
from tessera_schemas.shard.bookings import WINDOWS_MAX
from tessera_schemas.text import quantities
from tessera_schemas.text.quantities import QuantityError


def read_windows(
    doing: str, start: str, end: str | None, length: str | None, repeat: str | None
) -> list[dict[str, int]]:
    """The windows, ascending, in milliseconds since the epoch. Raises Failure that names the option."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000).astimezone()
    begin_ms = values.begin_ms(values.Said(doing, "start", start), now)
    if (end is None) is (length is None):
        raise Failure(Exit.USAGE, f"{doing}: say how long: --for, such as 8h, or --end")
    if length is not None:
        try:
            long_ms = quantities.seconds(length) * 1000
        except QuantityError as error:
            raise Failure(Exit.USAGE, f"{doing}: --for: {error}") from error
    else:
        long_ms = values.begin_ms(values.Said(doing, "end", end or ""), now) - begin_ms
    if long_ms <= 0:
        raise Failure(Exit.USAGE, f"{doing}: --end: it is not after --start")
    starts = [begin_ms] if repeat is None else recurring(doing, begin_ms, repeat)
    return [{"start_ts": at, "end_ts": at + long_ms} for at in starts]


def recurring(doing: str, begin_ms: int, rule: str) -> list[int]:
    """
    Times at which windows begin, the first at `begin_ms`, by a rule of RFC 5545 in the local zone. Raises Failure.

    Clocks that are put forward or back leave the hour of the day as it is.
    """
    from dateutil.rrule import rrulestr

    first = datetime.fromtimestamp(begin_ms / 1000)  # naive: the hour on the wall is what recurs
    if not {"COUNT", "UNTIL"} & {part.partition("=")[0].strip() for part in rule.upper().split(";")}:
        raise Failure(Exit.USAGE, f"{doing}: --repeat: say its end, COUNT= or UNTIL=, as in FREQ=WEEKLY;COUNT=8")
    try:
        found: Any = rrulestr(rule.removeprefix("RRULE:"), dtstart=first, ignoretz=True)
        times: list[datetime] = []
        for time in found:
            times.append(time)
            if len(times) > WINDOWS_MAX or time - first > timedelta(days=367):
                break
    except (ValueError, TypeError, KeyError) as error:
        raise Failure(Exit.USAGE, f"{doing}: --repeat: {error}") from error
    if not times:
        raise Failure(Exit.USAGE, f"{doing}: --repeat: it names no time from --start on")
    if len(times) > WINDOWS_MAX:
        raise Failure(Exit.USAGE, f"{doing}: --repeat: more than {WINDOWS_MAX} windows; make it end sooner")
    return [int(time.timestamp() * 1000) for time in times]
