"""Amounts as people read them: memory, thousandths, time spans and moments. Never raw bytes or milliseconds."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

_SPANS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def format_memory(value: int) -> str:
    """1099511627776 as `1Ti`; never longer than seven characters."""
    for power, letter in ((5, "Pi"), (4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if value >= 1024**power:
            tenths = value * 10 // 1024**power
            return f"{tenths // 10}{letter}" if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10}{letter}"
    return str(value)


def format_milli(value: int) -> str:
    """1500 thousandths as `1.5`."""
    whole, rest = divmod(abs(value), 1000)
    sign = "-" if value < 0 else ""
    return sign + (f"{whole}.{rest:03}".rstrip("0") if rest else str(whole))


def format_size(cpu_milli: int, memory_bytes: int) -> str:
    """Size of a pod as sentences say it: `1.5 CPU and 16Gi`."""
    return f"{format_milli(cpu_milli)} CPU and {format_memory(memory_bytes)}"


def format_part(percent: int) -> str:
    """A part of a whole as configuration files say it: `all`, `50%`."""
    return "all" if percent == 100 else f"{percent}%"


def format_age(milliseconds: int) -> str:
    """The two largest units, such as `3h12m`."""
    total = max(0, milliseconds) // 1000
    for size, unit, below, lower in _SPANS:
        if total >= size:
            rest = total % size // below
            return f"{total // size}{unit}{rest}{lower}" if rest else f"{total // size}{unit}"
    return f"{total}s"


def format_moment(ts: int) -> str:
    """Milliseconds since the epoch in UTC, such as `2026-11-22 18:35:58 UTC`."""
    try:
        return datetime.fromtimestamp(ts / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


UNITS: Mapping[str, tuple[Callable[[int], str], str]] = {
    "seconds": (lambda value: format_age(value * 1000), "time"),
    "ms": (format_age, "time"),
    "ts": (format_moment, ""),
    "milli": (format_milli, ""),
    "bytes": (format_memory, ""),
}
"""By the word that says a number's unit in its name: how it is written, and what is said in place of the word."""

ALONE = {"bytes": "size", "ts": "at"}
"""What is said of a number whose whole name is its unit."""

WORDED = {
    "retry_after_seconds": "retry after",
    "may_be_taken": "runs that may be taken",
    "runs_kept_by_VictimGone": "runs that stop already",
    "runs_kept_by_NotAllowedByPreset": "runs that the preset does not let it take",
    "runs_kept_by_EvictionBudgetSpent": "runs not preemptible, too young or evicted too often",
    "runs_kept_by_BlockedByDisruptionBudget": "runs that a disruption budget keeps",
}
"""Names that say more than a number and its unit, or that name a code."""

OF_RESOURCE = frozenset({"wanted", "available", "used", "nominal", "nominal_quota", "most", "lent", "borrowed"})
"""Numbers without a unit in their name, which count in that of the quota that their reason is about."""


def counted_by(field: str) -> str:
    """The resource of a quota by a reason's field: `gpu_milli` of `queues.research.gpu_milli of h100`."""
    return field.partition(" of ")[0].split(".", 2)[-1]


def format_number(name: str, value: int, about: str = "") -> str:
    """
    A number of a reason with its name: `give_up_seconds` becomes `give up time 14d`, `wanted_gpu_milli` `wanted gpu 8`.

    `about` is the reason's field, such as `queues.research.gpu_milli of h100`.
    """
    words = name.split("_")
    unit = next((word for word in UNITS if word in words), "")
    if not unit and name in OF_RESOURCE:
        resource = counted_by(about).split("_")
        write = next((UNITS[word][0] for word in ("milli", "bytes") if word in resource), str)
        return f"{name.replace('_', ' ')} {write(value)}"
    write, instead = UNITS[unit] if unit else (str, "")
    said = WORDED.get(name) or " ".join(instead if word == unit else word for word in words if word != unit or instead)
    return f"{said or ALONE.get(unit, '')} {write(value)}".strip()
