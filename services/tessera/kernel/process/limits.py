"""What a process takes of its machine: its share of the CPU, open files, and when it looks for garbage."""

import gc
import os
import resource
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


WANTED = 65_536  # some systems allow a billion, and then programs that we start close each of them


def raise_soft_limit() -> None:
    """Raise the soft limit to the hard one, which needs no right; the usual 1,024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # a sandbox says no; what is there has to do
            return


def soft_limit() -> int:
    """Number of descriptors that this process may have open; 65,536 where nothing limits them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


def collect_rarely() -> None:
    """
    Call it once everything is imported.

    What is loaded by then stays, and messages, entities and events form no cycles: looking for some among all of them
    as often as the defaults do takes a tenth of a busy service's time. Pods are trees of fifty small objects and live
    for a moment in each of their versions: with 50,000 objects between two searches the binder still spent a tenth.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(500_000, 20, 100)


def end_uncollected() -> None:
    """
    Call it last: the interpreter searches what is left for cycles no more, whose memory the kernel takes back anyway.

    With copies of 10,000 nodes and as many pods that search took longer than a platform waits for a service to end.
    """
    gc.freeze()
