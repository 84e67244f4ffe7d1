"""How much of a busy CPU a process gets beside others on the same machine."""

import os
import time
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")
TRIES, AGAIN_SECONDS = 20, 0.05


def give_way(nice: int) -> None:
    """
    Let others go first, on the usual scale to 19; 0 changes nothing.

    Where Linux schedules by session (sched(7), autogroup), niceness counts only within one: a process that has a
    session of its own gives way with all of it.
    """
    if not nice:
        return
    os.nice(nice)
    if os.getsid(0) != os.getpid():
        return
    for _ in range(TRIES):
        try:
            AUTOGROUP.write_text(str(nice))
        except BlockingIOError:  # who is not root may do so ten times a second, all processes taken together
            time.sleep(AGAIN_SECONDS)
        except OSError:  # not Linux, or switched off
            return
        else:
            return
