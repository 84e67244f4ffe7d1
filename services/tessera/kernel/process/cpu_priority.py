"""CPU share of a process beside others on the same busy machine."""

import os
from pathlib import Path

from tessera.kernel.ports import Clock

AUTOGROUP = Path("/proc/self/autogroup")
TRIES, AGAIN_SECONDS = 20, 0.05


async def give_way(nice: int, clock: Clock) -> None:
    """
    Let others go first, on the usual scale to 19; 0 changes nothing.

    Where Linux schedules by session (sched(7), autogroup), niceness counts only within one: a process that has a
    session of its own gives way with all of it.
    """
    if not nice:
        return
    os.nice(nice)
    for _ in range(TRIES):
        if session_gives_way(nice):
            return
        await clock.sleep(AGAIN_SECONDS)


def session_gives_way(nice: int) -> bool:
    """False when it is to be tried again: who is not root may do so ten times a second, all processes together."""
    if os.getsid(0) == os.getpid():
        try:
            AUTOGROUP.write_text(str(nice))
        except BlockingIOError:
            return False
        except OSError:  # not Linux, or switched off
            pass
    return True
