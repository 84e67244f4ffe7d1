"""Offers and claims for tests of draws: each test says what matters to it alone."""

from collections.abc import Mapping, Sequence

from tessera.domain.devices.claims import ChoiceNeed, ClaimNeed, ConstraintNeed, RequestNeed
from tessera.domain.devices.offers import DeviceClass, Offer, Selection
from tessera.engine.claims.drawing import Drawn, FreeOffer, draw
from tessera.engine.claims.shortages import Shortage
from tessera_schemas.cluster.device_layouts import (
    DeviceCapacity,
    DeviceLayout,
    DevicePool,
    OfferedDevice,
    selectors_digest,
)

MEMORY = "gpu.example.com/memory"
PARTS = {"7g": (8, (0,)), "3g": (4, (0, 4)), "2g": (2, (0, 2, 4)), "1g": (1, (0, 1, 2, 3, 4, 5, 6))}
"""Memory slices of each part of a GPU, and those at which it may begin."""


def device(
    name: str,
    uses: tuple[tuple[int, int], ...] = (),
    capacity: Mapping[str, DeviceCapacity] | None = None,
    shared: bool = False,
    **same: int,
) -> OfferedDevice:
    """`same` are numbers of attributes."""
    return OfferedDevice(pool=0, name=name, uses=uses, capacity=capacity or {}, is_shared=shared, same=same)


def cut_gpus(count: int, **parts: tuple[int, tuple[int, ...]]) -> tuple[list[OfferedDevice], tuple[int, ...]]:
    """GPUs of eight memory slices, each counted by itself, with the parts into which they may be cut."""
    devices = [
        device(f"gpu{gpu}-{name}-{start}", tuple((8 * gpu + at, 1) for at in range(start, start + size)), gpu=gpu)
        for gpu in range(count)
        for name, (size, starts) in (parts or PARTS).items()
        for start in starts
    ]
    return devices, (1,) * 8 * count


def offer(
    devices: Sequence[OfferedDevice],
    counters: tuple[int, ...] = (),
    selected: Mapping[str, Sequence[int]] | None = None,
    errors: Mapping[str, str] | None = None,
) -> Offer:
    """Class `any` takes every device, and class NAME of `selected` those places by a selector of that name."""
    named = {name: sum(1 << at for at in places) for name, places in (selected or {}).items()}
    errors = errors or {}
    layout = DeviceLayout(
        pools=(DevicePool(driver="gpu.example.com"),), counters=counters, devices=tuple(devices), kinds="0" * 64
    )
    return Offer(
        layout.digest(),
        layout,
        {name: DeviceClass(name, () if name == "any" else (name,)) for name in ("any", "unseen", *named, *errors)},
        {selectors_digest((name,)): Selection(named.get(name, 0), errors.get(name, "")) for name in (*named, *errors)},
    )


def by_part(devices: Sequence[OfferedDevice]) -> dict[str, list[int]]:
    """Places of the devices of each part of a GPU."""
    parts = {each.name.split("-")[1] for each in devices}
    return {part: [at for at, each in enumerate(devices) if each.name.split("-")[1] == part] for part in sorted(parts)}


def choice(device_class: str = "any", count: int = 1, name: str = "", **more: object) -> ChoiceNeed:
    return ChoiceNeed(name, device_class, count=count, **more)


def claim(*requests: ChoiceNeed | Sequence[ChoiceNeed], name: str = "c", **more: object) -> ClaimNeed:
    """Requests r0, r1 and so on, of one choice or of several."""
    needs = [RequestNeed(f"r{at}", (r,) if isinstance(r, ChoiceNeed) else tuple(r)) for at, r in enumerate(requests)]
    return ClaimNeed(name, tuple(needs), **more)


def match(attribute: str, *requests: str, distinct: bool = False) -> tuple[ConstraintNeed, ...]:
    return (ConstraintNeed(requests, attribute, distinct),)


def had(*places: int) -> tuple[tuple[int, tuple[()]], ...]:
    return tuple((at, ()) for at in sorted(places))


def drawn(free: FreeOffer, *claims: ClaimNeed) -> list[Drawn]:
    """The devices of a draw that succeeds."""
    found = draw(free, claims)
    assert not isinstance(found, Shortage), found
    return [*found]


def shortage(free: FreeOffer, *claims: ClaimNeed) -> Shortage:
    """The shortage of a draw that fails."""
    found = draw(free, claims)
    assert isinstance(found, Shortage), found
    return found
