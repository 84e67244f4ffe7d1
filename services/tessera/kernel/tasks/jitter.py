"""Waits of those who would otherwise all come back at once: spread by a hash, so that a run can be repeated."""

import hashlib

MORE_SECONDS = 5.0
_PARTS = 1 << 16


def spread(seconds: float, *who: object) -> float:
    """`seconds` and up to half as much again, at most 5 s more, by who waits and for what."""
    digest = hashlib.blake2b("/".join(map(str, who)).encode(), digest_size=2).digest()
    return seconds + min(seconds / 2, MORE_SECONDS) * int.from_bytes(digest, "big") / _PARTS
