"""Whether a process that was written down is still there, and still that one: process ids are used again."""

import os
from pathlib import Path


def started_at(pid: int) -> int:
    """Start of the process, in the system's own ticks since boot; 0 where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])  # the command before it may hold anything
    except (OSError, ValueError, IndexError):
        return 0


def is_running(pid: int, started: int = 0) -> bool:
    """Whether the process lives; with `started` (`started_at`, 0: unknown) no other of the same number counts."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return not started or started_at(pid) in (0, started)
