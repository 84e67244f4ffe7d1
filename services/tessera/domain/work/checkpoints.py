"""Known checkpoints of a run: each counts once, however many of its pods show it, and however late."""

import hashlib

from tessera.domain.entities import Run

MARKS_MAX = 32
"""How many checkpoints back a late report is still known for what it is."""

AGAIN_MS = 60_000
"""A known path that is reported by command so long after the run's last checkpoint is used again: it was saved anew."""


def mark_of(path: str, at: str) -> str:
    """A checkpoint in eight characters; `at` tells it from earlier ones in the same place."""
    return hashlib.blake2b(f"{path}\0{at}".encode(), digest_size=4).hexdigest()


def is_known(run: Run, path: str, at: str) -> bool:
    """Tells whether the run remembers this checkpoint, whichever of its pods reported it."""
    return mark_of(path, at) in run.saved_marks


def is_used_again(run: Run, ts: int) -> bool:
    """Tells whether a report at `ts` of a known path is of a new checkpoint, and not of one by another pod."""
    return ts - run.saved_ts >= AGAIN_MS


def marks_with(run: Run, path: str, at: str) -> tuple[str, ...]:
    """The run's marks after one more checkpoint."""
    return (*run.saved_marks, mark_of(path, at))[-MARKS_MAX:] if path else run.saved_marks
