"""`python -m tessera_local.down [DIR]`: end the local platform that runs in a directory, by the pid it wrote there."""

import json
import os
import signal
import sys
from pathlib import Path

from tessera.kernel.process.same_process import is_running


def down(directory: Path) -> str:
    """Ask the platform of `directory` to stop; returns what was done, in one line."""
    try:
        state = json.loads((directory / "platform.json").read_text())
        pid = int(state["platform_pid"])
        if not is_running(pid, int(state.get("platform_started", 0))):
            return f"no platform runs in {directory}: the last one was killed (pid {pid})"
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f"no platform runs in {directory}"
    return f"asked the platform in {directory} to stop (pid {pid})"


if __name__ == "__main__":
    print(down(Path(sys.argv[1] if len(sys.argv) > 1 else ".tessera")))
