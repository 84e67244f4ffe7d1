"""Amounts that a share takes of the capacities of a device, by the request policies of Kubernetes."""

from collections.abc import Mapping
from functools import lru_cache

from tessera.domain.devices.offers import Offer
from tessera_schemas.cluster.device_layouts import DeviceCapacity

ShareAmounts = tuple[int, ...]
"""One for each capacity of a device, in the order of their names."""


@lru_cache(maxsize=1_024)
def amounts_asked(offer: Offer, asked: tuple[tuple[str, int], ...]) -> Mapping[int, ShareAmounts]:
    """The amounts that a request takes of each device of an offer; a device that it cannot be asked of is left out."""
    wanted, found = dict(asked), dict[int, ShareAmounts]()
    for index, device in enumerate(offer.devices):
        amounts = amounts_of(device.capacity, wanted)
        if amounts is not None:
            found[index] = amounts
    return found


def amounts_of(capacity: Mapping[str, DeviceCapacity], asked: Mapping[str, int]) -> ShareAmounts | None:
    """
    The amounts taken where `asked` is asked for; None where the device lacks one of them or its policy refuses.

    A device that is not shared is taken whole, but it must have the amounts just as well.
    """
    if asked and not asked.keys() <= capacity.keys():
        return None
    amounts = []
    for name in sorted(capacity):
        policy = capacity[name]
        amount = _rounded(policy, asked.get(name))
        if amount > policy.value or not _is_allowed(policy, amount):
            return None
        amounts.append(amount)
    return tuple(amounts)


def _rounded(policy: DeviceCapacity, asked: int | None) -> int:
    if asked is None:
        return policy.value if policy.default is None else policy.default
    # Kubernetes rounds to whole units where there is a step; thousandths are exact here.
    if policy.least is not None:
        if asked <= policy.least or not policy.step:
            return max(asked, policy.least)
        return policy.least - (policy.least - asked) // policy.step * policy.step
    return next((valid for valid in sorted(policy.valid) if valid >= asked), asked)


def _is_allowed(policy: DeviceCapacity, amount: int) -> bool:
    if amount == policy.default:
        return True  # even where it is none of the valid ones
    if policy.least is not None or policy.most is not None:
        if policy.most is not None and amount > policy.most:
            return False
        return not policy.step or (amount - (policy.least or 0)) % policy.step == 0
    return not policy.valid or amount in policy.valid
