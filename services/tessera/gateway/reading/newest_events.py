"""Place at which the newest events of a subject begin in the stored stream, which has all tenants' in one order."""

from collections import deque

from tessera.kernel.errors import Transient
from tessera.kernel.ports import Bus

FIRST_LOOK, WIDER = 4, 8
"""How many places are looked at first for each event that is wanted, and by how much more each time."""
SILENCE_SECONDS = 5.0


async def place_of_newest(bus: Bus, stream: str, subject: str, count: int) -> int:
    """The place behind which the newest `count` events of a subject stand; 0 if there are fewer. Raises Transient."""
    newest = await bus.last(stream, subject)
    if newest is None:
        return 0
    width = FIRST_LOOK * count
    while True:
        after = max(0, newest.seq - width)
        found = await _newest_after(bus, stream, subject, after, newest.seq, count)
        if len(found) == count:
            return found[0] - 1
        if after == 0:
            return 0
        width *= WIDER


async def _newest_after(bus: Bus, stream: str, subject: str, after: int, upto: int, count: int) -> deque[int]:
    """Sequences of the newest `count` events of a subject from behind `after` up to `upto`."""
    found, source = deque[int](maxlen=count), bus.follow(stream, subject, after)
    try:
        while batch := await source.next(timeout=SILENCE_SECONDS):
            found += (message.seq for message in batch if message.seq <= upto)
            if batch[-1].seq >= upto:
                return found
    finally:
        await source.close()
    raise Transient(f"{stream}: silent for {SILENCE_SECONDS:g} s before its newest event")
