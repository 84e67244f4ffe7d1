"""
Claims of pods on devices that drivers publish (DRA), as decisions look at it: hashable, and in integers.

Parameters for drivers stay in the ledger's spec: no decision depends on them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tessera.domain.devices.amounts import DeviceCounts
from tessera.domain.devices.offers import Offer, amounts_asked
from tessera.domain.storing.fast import fast_init, replace
from tessera.domain.storing.later import later
from tessera_schemas.cluster.device_claims import (
    DeviceChoice,
    DeviceClaim,
    DeviceConstraint,
    DeviceToleration,
)
from tessera_schemas.work.placement import DrawnDevice

BorneTaint = tuple[str, str, str, bool]
"""Key, value and effect of a device taint that is borne, and whether any value is; "" is every key, every effect."""


@fast_init
@dataclass(frozen=True, slots=True)
class ChoiceNeed:
    """
    Devices of one class: `count` of them, or every one that matches where `count` is 0.

    `gpu_milli` is the most of a GPU that any device which the ledger knows for it is, 0 while none is known: no node
    that is not known takes the pod. `most` is the most devices that any layout which the ledger knows has for it, where
    every one is taken; 0 of a number. `isolation` is the least that shared GPUs have to have.
    """

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    count: int = 1
    admin: bool = False
    tolerations: tuple[BorneTaint, ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()
    gpu_milli: int = 0
    most: int = 0
    isolation: str = later("none")

    @property
    def counted(self) -> int:
        """Devices that it counts for against quotas of its class before they are drawn."""
        return 0 if self.admin else self.count or max(1, self.most)


@fast_init
@dataclass(frozen=True, slots=True)
class RequestNeed:
    """Choices that would do, best first."""

    name: str
    choices: tuple[ChoiceNeed, ...]


@fast_init
@dataclass(frozen=True, slots=True)
class ConstraintNeed:
    """Devices of `requests` (all, where there are none) have one value of `attribute`, or each another (`distinct`)."""

    requests: tuple[str, ...]
    attribute: str
    distinct: bool = False


@fast_init
@dataclass(frozen=True, slots=True)
class ClaimNeed:
    """One claim of a pod. `shared_as`: pods of a gang with this name of a claim share its devices; "": of one pod."""

    name: str
    requests: tuple[RequestNeed, ...]
    constraints: tuple[ConstraintNeed, ...] = ()
    shared_as: str = ""

    @property
    def gpu_milli(self) -> int:
        """The most that its devices can count for against quotas of GPUs."""
        return sum(max(choice.gpu_milli * (choice.count or 1) for choice in each.choices) for each in self.requests)


def counted_by_class(claims: tuple[ClaimNeed, ...]) -> DeviceCounts:
    """Devices of each class that one pod may get at most, whichever of its choices is drawn."""
    found = Counter[str]()
    for request in (each for claim in claims for each in claim.requests):
        most = dict[str, int]()
        for choice in request.choices:
            most[choice.device_class] = max(choice.counted, most.get(choice.device_class, 0))
        found.update(most)
    return tuple(sorted((name, count) for name, count in found.items() if count))


def classes_of(claims: tuple[ClaimNeed, ...]) -> dict[tuple[str, str], str]:
    """The class of each choice, by the names of its claim and of the request that a device answers."""
    return {
        (claim.name, f"{request.name}/{choice.name}" if choice.name else request.name): choice.device_class
        for claim in claims
        for request in claim.requests
        for choice in request.choices
    }


def drawn_by_class(claims: tuple[ClaimNeed, ...], drawn: tuple[DrawnDevice, ...]) -> DeviceCounts:
    """Devices of each class that one pod got; without those that it looks after only (admin access)."""
    classes = classes_of(claims)
    named = (classes.get((each.claim, each.request)) for each in drawn if not each.admin)
    return tuple(sorted(Counter(name for name in named if name is not None).items()))


def weighed(claims: tuple[ClaimNeed, ...], offers: Iterable[Offer]) -> tuple[ClaimNeed, ...]:
    """The claims with what their devices count for against quotas of GPUs, by what these offers have."""
    known = tuple(offers)
    return tuple(
        replace(
            claim,
            requests=tuple(
                replace(request, choices=tuple(_weighed(choice, known) for choice in request.choices))
                for request in claim.requests
            ),
        )
        for claim in claims
    )


def _weighed(choice: ChoiceNeed, offers: Sequence[Offer]) -> ChoiceNeed:
    most = max((_most_gpu_milli(choice, offer) for offer in offers), default=0)
    count = 0 if choice.count else max((_most_devices(choice, offer) for offer in offers), default=0)
    same = (most, count) == (choice.gpu_milli, choice.most)
    return choice if same else replace(choice, gpu_milli=most, most=count)


def _most_devices(choice: ChoiceNeed, offer: Offer) -> int:
    found = offer.selected(choice.device_class, choice.selectors)
    return 0 if found is None else found.devices.bit_count()


def _most_gpu_milli(choice: ChoiceNeed, offer: Offer) -> int:
    found = None if choice.admin else offer.selected(choice.device_class, choice.selectors)
    if found is None or not found.devices:
        return 0
    # Devices of which as much cannot be asked are never drawn, and are not among these.
    every = amounts_asked(offer, choice.capacity).items()
    asked = ((offer.devices[at], shares) for at, shares in every if found.devices >> at & 1)
    amounts = [device.part(dict(zip(sorted(device.capacity), shares, strict=True))) for device, shares in asked]
    # Every device that matches is taken: together they may be several GPUs, of which the choice has one number.
    return max(amounts, default=0) if choice.count else sum(amounts)


def claim_needs(claims: tuple[DeviceClaim, ...], isolation: str = "none") -> tuple[ClaimNeed, ...]:
    """The claims of a spec for which devices are drawn, in its order; those that have devices already are left out."""
    return tuple(
        ClaimNeed(
            claim.name,
            tuple(
                RequestNeed(request.name, tuple(_choice(choice, isolation) for choice in request.choices))
                for request in claim.requests
            ),
            tuple(map(_constraint, claim.constraints)),
            claim.shared_as,
        )
        for claim in claims
        if not claim.allocated
    )


def _constraint(constraint: DeviceConstraint) -> ConstraintNeed:
    attribute = constraint.match or constraint.distinct
    return ConstraintNeed(tuple(constraint.requests), attribute, bool(constraint.distinct))


def _choice(choice: DeviceChoice, isolation: str) -> ChoiceNeed:
    return ChoiceNeed(
        choice.name,
        choice.device_class,
        tuple(sorted(set(choice.selectors))),
        0 if choice.every else choice.count,
        choice.admin,
        tuple(sorted(map(_toleration, choice.tolerations))),
        tuple(sorted(choice.capacity.items())),
        isolation=isolation,
    )


def _toleration(toleration: DeviceToleration) -> BorneTaint:
    return toleration.key, toleration.value, toleration.effect, toleration.operator == "Exists"
