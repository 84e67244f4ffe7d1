"""
A service that holds its event loop for four seconds at each SIGUSR1: `python -m tests.chaos.held SERVICE SHARD`.

As a handler that computes for too long does: nothing of the process goes on meanwhile but its watch on the loop.
"""

import signal
import sys
import time

from tessera.launch import run_named

HELD_SECONDS = 4.0


def main() -> int:
    """Run the service until it is told to stop; returns its exit code."""
    service, shard = sys.argv[1:]
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(HELD_SECONDS))
    return run_named(service, shard)


if __name__ == "__main__":
    sys.exit(main())
