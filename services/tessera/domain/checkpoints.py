"""Known checkpoints of a run: each counts once, however many of its pods report it, and however late."""

import hashlib

from tessera.domain.entities import Run

MARKS_MAX = 32
"""How many checkpoints back a late report is still known for what it is."""


def mark_of(path: str, at: str) -> str:
    """A checkpoint in eight characters; `at` tells it from earlier ones in the same place."""
    return hashlib.blake2b(f"{path}\0{at}".encode(), digest_size=4).hexdigest()


def is_known(run: Run, path: str, at: str) -> bool:
    """Tells whether the run remembers this checkpoint, whichever of its pods reported it."""
    return mark_of(path, at) in run.saved_marks


def marks_with(run: Run, path: str, at: str) -> tuple[str, ...]:
    """The run's marks after one more checkpoint."""
    return (*run.saved_marks, mark_of(path, at))[-MARKS_MAX:] if path else run.saved_marks
