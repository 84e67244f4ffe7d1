"""
Loss of GPU pieces: by how much more than it takes a draw lessens what the usual claims could still get of an island.

An instance of a cut GPU may lie in the way of others, so that less is left to be had than is free. Which others matter
is learnt (`tessera.domain.mix`): where nobody asks for halves, a hole that only a half would fill is no loss. What
could still be had is exact, the most that any set of the usual devices comes to, in thousandths of a GPU.
"""

from functools import lru_cache

from tessera.domain.devices.offers import Offer, ShareAmounts
from tessera.engine.claims.islands import Island, IslandMake, IslandState, after, bits_of, possible

DEVICES_MAX = 64
"""Devices on one island; of islands with more nothing counts as lost."""
STATES_MAX = 2_048
"""Ways to cut an island that are told apart; of islands with more nothing counts as lost."""
KEPT_MAX = 65_536


@lru_cache(maxsize=512)
def usual_devices(offer: Offer, pieces: tuple[str, ...] = ()) -> int:
    """The devices of an offer, as bits, that any of these expressions takes; each by its `selectors_digest`."""
    usual = 0
    for piece in pieces:
        found = offer.selections.get(piece)
        usual |= 0 if found is None else found.devices
    # Devices that are no part of a GPU, such as NICs, and shares of a device are never cut from one.
    parts = (1 << at for at, device in enumerate(offer.devices) if device.gpu_milli and not device.is_shared)
    return usual & sum(parts)


def lost_of(island: Island, before: IslandState, now: IslandState, usual: int, taken: int) -> int:
    """As `lost`, of several draws that together took so many thousandths of a GPU of the island."""
    packing = _packing(island.make, island.bits(usual))
    return 0 if packing is None else packing.most(before) - packing.most(now) - taken


@lru_cache(maxsize=65_536)
def lost(make: IslandMake, state: IslandState, local: int, usual: int) -> int:
    """
    Thousandths of a GPU that a draw of the device takes, beyond its own size, from what is left for the usual ones.

    Below 0 where it takes what none of them could have used. `usual` are bits, by places on the island. A shared device
    rules out nothing that could be counted.
    """
    device, packing = make.devices[local], _packing(make, usual)
    # Counters of a device with shares stay taken as long as one holder has it: a further share changes nothing.
    if packing is None or device.is_shared or not device.gpu_milli:
        return 0
    return packing.most(state) - packing.most(after(make, state, local, None)) - device.gpu_milli


@lru_cache(maxsize=1_024)
def _packing(make: IslandMake, usual: int) -> "_Packing | None":
    """None where there is nothing usual on the island, or it may be cut in too many ways; a pure function."""
    # A GPU has some twenty devices. Each state looks at all of them, so that a driver which publishes a hundred
    # thousand on one counter would hold up the committer.
    if not usual or len(make.devices) > DEVICES_MAX:
        return None
    try:
        # From any other state there are no more ways on than from the untouched one, so that the bound holds for all.
        return _Packing(make, usual)
    except _TooManyStates:
        return None


class _TooManyStates(Exception):
    """The island may be cut in more ways than are counted."""


class _Packing:
    """The most that the usual devices come to on an island, by its state."""

    def __init__(self, make: IslandMake, usual: int) -> None:
        self._make, self._usual = make, usual
        self._most: dict[tuple[ShareAmounts, int], int] = {}
        """By what is left of the island's counters, and which of the usual devices can be had."""
        self._bound = STATES_MAX
        # All states are looked at once, so that whether they are too many does not hang on which is asked about first.
        self.most(make.untouched)
        self._bound = KEPT_MAX

    def most(self, state: IslandState) -> int:
        """Thousandths of GPUs that can still be had of the island at once."""
        usable = possible(self._make, state) & self._usual
        # Which devices were drawn matters no more once their counters are taken: many ways lead to one rest.
        rest = state[0], usable
        found = self._most.get(rest)
        if found is None:
            make = self._make
            ways = (make.devices[at].gpu_milli + self.most(after(make, state, at, None)) for at in bits_of(usable))
            found = max(ways, default=0)
            if len(self._most) >= self._bound:
                if self._bound == STATES_MAX:
                    raise _TooManyStates
                # Forgetting costs time and changes no answer.
                self._most.clear()
            self._most[rest] = found
        return found
