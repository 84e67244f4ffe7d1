"""
A service whose wall clock is moved by a file: `python -m tests.chaos.skewed FILE SERVICE SHARD`.

Every service asks the machine for the time in one place, `SystemClock`; a rule of the linter keeps it so. The file
holds eight bytes, the milliseconds to add, and is read at each question: the clock jumps while the service runs.
Monotonic time and the clocks of NATS and Redis stay as they are, as they do when an administrator sets the wall clock.
"""

import mmap
import sys
from pathlib import Path

from tessera.kernel.clock import SystemClock
from tessera.launch import run_named

BYTES = 8


def write_skew(file: Path, milliseconds: int) -> None:
    """Move the clock of whoever was started with this file, at once; 0 puts it right."""
    with file.open("r+b" if file.exists() else "w+b") as opened:
        opened.write(milliseconds.to_bytes(BYTES, "little", signed=True))


def main() -> int:
    """Run the service until it is told to stop; returns its exit code."""
    file, service, shard = sys.argv[1:]
    with open(file, "rb") as opened:
        skew = mmap.mmap(opened.fileno(), BYTES, prot=mmap.PROT_READ)
    real = SystemClock.now_ms
    SystemClock.now_ms = lambda clock: real(clock) + int.from_bytes(skew[:BYTES], "little", signed=True)  # type: ignore[method-assign]
    return run_named(service, shard)


if __name__ == "__main__":
    sys.exit(main())
