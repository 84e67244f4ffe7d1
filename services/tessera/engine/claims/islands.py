"""
A node's devices in islands: on one island are devices that draw on a common counter, directly or by way of others.

A GPU with all the instances into which it may be cut is an island, and so is a device by itself. No draw on one island
changes another, and islands of one make in one state are interchangeable. So what was found out for one holds for each.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tessera.domain.devices.offers import Device, Offer, ShareAmounts

IslandState = tuple[ShareAmounts, int, tuple[tuple[int, ShareAmounts], ...]]
"""
Of an island: what is left of its counters; the devices that are had wholly, as bits; and those of which shares are had,
each with what is left of its capacities. Devices are places on the island. Counters may be below nothing.
"""


@dataclass(frozen=True, slots=True, eq=False)
class IslandDevice:
    """
    A device as an island of its make has it; `uses` are places in the island's counters, with amounts, and `gpu_milli`
    how much of a GPU it is.
    """

    uses: tuple[tuple[int, int], ...]
    is_shared: bool
    capacity: ShareAmounts
    gpu_milli: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class IslandMake:
    """Devices and counters of islands of one make; one object for each make of an offer."""

    devices: tuple[IslandDevice, ...]
    counters: ShareAmounts

    @property
    def untouched(self) -> IslandState:
        """The state in which claims have nothing."""
        return self.counters, 0, ()


@dataclass(frozen=True, slots=True, eq=False)
class Island:
    """
    `devices` are places in the offer, in order, and `mask` has their bits; `is_row` says that they are neighbours.
    """

    make: IslandMake
    devices: tuple[int, ...]
    mask: int
    is_row: bool

    def bits(self, devices: int) -> int:
        """Bits, by places on the island, of these devices of the offer that are on it."""
        here = devices & self.mask
        if self.is_row or not here:
            return here >> self.devices[0]
        return sum(1 << local for local, index in enumerate(self.devices) if here >> index & 1)


@lru_cache(maxsize=512)
def islands_of(offer: Offer, attributes: tuple[str, ...]) -> tuple[tuple[Island, ...], tuple[str, ...]]:
    """
    The islands of an offer, and those of `attributes` whose values join devices to islands as counters do.

    A GPU and the NIC on its PCIe root belong together where a claim wants both on one root: then the pairs are
    interchangeable, and not each with each. An attribute that two alike islands have a value of in common, such as the
    NUMA node of four GPUs, joins none: those four are more alike than two nodes of four.
    """
    # Counters alone say first which devices belong together; then each attribute is asked whether it joins these.
    keys: list[list[Hashable]] = [[counter for counter, _ in device.uses] for device in offer.devices]
    alone, joining = _joined(keys), []
    for attribute in attributes:
        makes: dict[int, list[Hashable]] = {}
        for places in alone:
            content = _content(offer, places, ())
            for value in {offer.devices[at].same[attribute] for at in places if attribute in offer.devices[at].same}:
                makes.setdefault(value, []).append(content)
        # Values of a joining attribute are on one island each, so that to swap two islands is to swap their values.
        if all(len(set(alike)) == len(alike) for alike in makes.values()):
            joining.append(attribute)
    for each, device in zip(keys, offer.devices, strict=True):
        each += [(attribute, device.same[attribute]) for attribute in joining if attribute in device.same]
    made: dict[Hashable, IslandMake] = {}
    islands = []
    for places in _joined(keys):
        content = _content(offer, places, tuple(joining))
        make = made.setdefault(content, _make(offer, places))
        mask = sum(1 << at for at in places)
        islands.append(Island(make, tuple(places), mask, places[-1] - places[0] + 1 == len(places)))
    return tuple(islands), tuple(joining)


def _joined(keys: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Places with a key in common, directly or by way of others; in the order of the first of each."""
    above, first = list(range(len(keys))), dict[Hashable, int]()

    def root(at: int) -> int:
        while above[at] != at:
            above[at] = at = above[above[at]]
        return at

    for place, each in enumerate(keys):
        for key in each:
            one, other = root(place), root(first.setdefault(key, place))
            # The lower place stays on top, so that groups come in the order of their first.
            above[max(one, other)] = min(one, other)
    together: dict[int, list[int]] = {}
    for place in range(len(keys)):
        together.setdefault(root(place), []).append(place)
    return list(together.values())


def _counters(devices: Sequence[Device]) -> dict[int, int]:
    """The island's place of each counter of the offer that these devices draw on, in the order of their mention."""
    return {counter: at for at, counter in enumerate(dict.fromkeys(c for device in devices for c, _ in device.uses))}


def _content(offer: Offer, places: Sequence[int], attributes: tuple[str, ...]) -> Hashable:
    """Equal for islands that are interchangeable as far as counters, capacities and these attributes go."""
    devices = [offer.devices[at] for at in places]
    local, values = _counters(devices), dict[tuple[str, int | None], int]()
    return (
        tuple(offer.counters[counter] for counter in local),
        tuple(
            (
                tuple((local[counter], amount) for counter, amount in device.uses),
                device.is_shared,
                device.gpu_milli,
                tuple(sorted((name, repr(capacity)) for name, capacity in device.capacity.items())),
                tuple(
                    values.setdefault((name, device.same[name]), len(values)) if name in device.same else -1
                    for name in attributes
                ),
            )
            for device in devices
        ),
    )


def _make(offer: Offer, places: Sequence[int]) -> IslandMake:
    devices = [offer.devices[at] for at in places]
    local = _counters(devices)
    return IslandMake(
        tuple(
            IslandDevice(
                tuple((local[counter], amount) for counter, amount in device.uses),
                device.is_shared,
                tuple(device.capacity[name].value for name in sorted(device.capacity)),
                device.gpu_milli,
            )
            for device in devices
        ),
        tuple(offer.counters[counter] for counter in local),
    )


def bits_of(mask: int) -> Iterator[int]:
    """Places of the bits that are set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@lru_cache(maxsize=65_536)
def possible(make: IslandMake, state: IslandState) -> int:
    """Devices that counters and holders leave to be had, wholly or in part, as bits."""
    # Asked for each step of each search; its answers are few, because makes are few and states come back.
    left, had, shared = state
    holders = {local for local, _ in shared}
    return sum(
        1 << local
        for local, device in enumerate(make.devices)
        # The counters of a device with shares were taken with the first of them.
        if not had >> local & 1 and (local in holders or all(left[at] >= amount for at, amount in device.uses))
    )


def amounts_left(make: IslandMake, state: IslandState, local: int) -> ShareAmounts:
    """The rest of each capacity of a shared device."""
    return next((left for at, left in state[2] if at == local), make.devices[local].capacity)


def after(make: IslandMake, state: IslandState, local: int, amounts: ShareAmounts | None) -> IslandState:
    """
    The island when one more claim has the device: all of it where `amounts` is None, else a share.

    Whether there is enough of it is not asked: what others have may be more than there is.
    """
    left, had, shared = state
    device = make.devices[local]
    if not had >> local & 1 and all(at != local for at, _ in shared) and device.uses:
        rest = list(left)
        for at, amount in device.uses:
            rest[at] -= amount
        left = tuple(rest)
    if amounts is None:
        return left, had | 1 << local, shared
    remaining = tuple(has - takes for has, takes in zip(amounts_left(make, state, local), amounts, strict=True))
    return left, had, tuple(sorted([*(each for each in shared if each[0] != local), (local, remaining)]))


@lru_cache(maxsize=65_536)
def cost(make: IslandMake, state: IslandState, local: int) -> tuple[bool, int, int, int]:
    """
    Cost of a draw of the device to others; less is better, compared in order.

    Whether its island is untouched; how many devices can be had there, which is least on the fullest; how much of a
    shared device is left, in thousandths of its scarcest capacity; and how many other devices it rules out.
    """
    device, now = make.devices[local], possible(make, state)
    # Amounts of several units are made comparable as parts of each; no float decides.
    room = 0
    if device.is_shared:
        both = zip(amounts_left(make, state, local), device.capacity, strict=True)
        room = min((1000 * left // of for left, of in both if of), default=1000)
    # A further share of a device that has holders takes no counters, and rules out nothing.
    after_it = possible(make, after(make, state, local, None))
    return state == make.untouched, now.bit_count(), room, (now & ~after_it & ~(1 << local)).bit_count()
