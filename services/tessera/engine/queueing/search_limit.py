"""
A limit of the searches in vain of one message: it bounds the message's time, by counted looks and never by the clock.

Most refusals follow from counts and cost nothing. A gang whose roles are in each other's way is known not to fit only
once its pods were tried one after the other, in each rack that might hold it; and an order may name hundreds of such
gangs, of thousands of pods each. So the first gangs of a line are searched for in each message, up to a number of looks
at pods and nodes, and the others by turns, up to the same number: from a place in the line on that the time of the
message names. Who needs few looks is always searched for.

Nothing of it depends on what is remembered from earlier messages, so that a replay counts the same.
"""

from zlib import crc32

from tessera_schemas.shard.orders import HEADS_MAX

LOOKS_MAX = 65_536
"""Looks in vain of one message: as many for the first gangs of all lines, for others by turns, and for small ones."""


class SearchLimit:
    """The limit of one message for one line of so many jobs. Without `looks_max` there is none: as in `tessera-5`."""

    def __init__(self, jobs: int, ts: int, looks_max: int | None) -> None:
        self._looks_max = looks_max
        # Scattered, so that every place has its turn at whatever pace messages come.
        self._turn = crc32(b"%d" % ts) * jobs >> 32
        self._first = self._by_turns = 0

    def is_open(self, place: int) -> bool:
        """Whether any gang may be searched for at this place of the line."""
        if self._looks_max is None or self._first < self._looks_max:
            return True
        # Places from the turn on, until the looks are used up: the next message's turn lies elsewhere, so that whoever
        # is behind the end of this one comes first in another.
        return place >= self._turn and self._by_turns < self._looks_max

    def is_small(self, looks: int) -> bool:
        """Whether a search of so many looks is made whatever was searched for before."""
        # All jobs that an order may name, each with so few looks, stay within the limit together: so small ones need no
        # count.
        return self._looks_max is None or looks * HEADS_MAX <= self._looks_max

    def searched_in_vain(self, looks: int) -> None:
        """Count the looks of a search that found no room."""
        if self._looks_max is None or self._first < self._looks_max:
            self._first += looks
        elif not self.is_small(looks):
            self._by_turns += looks
