"""
A guard around one seed: its name on whatever it raises, and a limit of the time that it may have of a processor.

Virtual time ends every wait, but not a loop in which none passes. The alarm is raised in the middle of such a loop, as
an interrupt, since asyncio lets nothing else out of a task. What else the machine does is none of a seed's time.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SEED_SECONDS = 300.0
AGAIN_SECONDS = 5.0
"""The alarm is raised again so often, in case somebody swallowed it."""


class SeedTooLong(KeyboardInterrupt):
    """The seed was still running when its time of a processor was over."""


class SeedFailed(Exception):
    """A seed did not come to its end; its text names the seed, why, and how to run it again."""


@contextmanager
def guarded(seed: int, seconds: float = SEED_SECONDS) -> Iterator[None]:
    """
    Raise SeedFailed, which names the seed, for whatever is raised inside or when that takes longer than `seconds`.

    Contract: in the main thread of its process, where alarms are heard.
    """
    before = signal.signal(signal.SIGPROF, _alarm)
    signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN_SECONDS)
    try:
        yield
    except SeedTooLong as error:
        raise SeedFailed(
            f"seed {seed}: not at its end after {seconds:g} s of a processor; it was at {error}; {again(seed)}"
        ) from error
    except Exception as error:
        raise SeedFailed(f"seed {seed}: {type(error).__name__}: {error}; {again(seed)}") from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def again(seed: int) -> str:
    """Words that say how to run one seed again."""
    return f"again: make sim FIRST={seed} SEEDS=1"


def _alarm(signum: int, frame: FrameType | None) -> None:
    where = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    raise SeedTooLong(where)
