"""Times as the API writes them: RFC 3339 in UTC, whole seconds."""

from datetime import UTC, datetime
from functools import lru_cache


def rfc3339(ms: int) -> str:
    """`ms` milliseconds since the Unix epoch, rounded down to the second."""
    return _format_second(ms // 1000)


@lru_cache(maxsize=1024)
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
