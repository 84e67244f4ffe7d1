"""Small nodes with devices that drivers publish, claims on them, and solutions found by trying all."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from random import Random

from tessera.domain.devices.claims import ChoiceNeed, ClaimNeed, ConstraintNeed, RequestNeed
from tessera.domain.devices.offers import DeviceClass, Offer, Selection
from tessera.engine.claims.drawing import FreeOffer
from tessera_schemas.cluster.device_claims import (
    DeviceChoice,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    DeviceToleration,
)
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.cluster.device_layouts import (
    DeviceCapacity,
    DeviceLayout,
    DevicePool,
    DeviceTaint,
    NodeOffer,
    OfferedDevice,
    TakenDevice,
    selectors_digest,
)
from tessera_schemas.facts import NodeSeen
from tessera_schemas.work.placement import DrawnDevice

SELECTORS = ("s0", "s1", "s2")
TAINT = ("sick", "", "NoSchedule")


@dataclass(frozen=True)
class DeviceWorld:
    """A layout, which devices each selector takes, those that are tainted, and what is taken of which."""

    layout: DeviceLayout
    takes: Mapping[str, int]
    tainted: tuple[int, ...]
    taken: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]

    @property
    def free(self) -> FreeOffer:
        return FreeOffer(self.offer, tuple((index, *TAINT) for index in self.tainted), self.taken)

    @property
    def offer(self) -> Offer:
        classes = {"any": DeviceClass("any"), "some": DeviceClass("some", ("s0",))}
        sets = [set(names) for size in (1, 2, 3) for names in combinations(SELECTORS, size)]
        selections = {selectors_digest(sorted(names)): Selection(self.selected(names)) for names in sets}
        return Offer(self.layout.digest(), self.layout, classes, selections)

    def selected(self, names: set[str]) -> int:
        mask = (1 << len(self.layout.devices)) - 1
        for name in names:
            mask &= self.takes[name]
        return mask


def random_world(random: Random, most: int = 5) -> DeviceWorld:
    """Devices of many makes, or GPUs of one make beside their NICs; some taken, some tainted."""
    devices, counters = _alike(random) if random.random() < 0.5 else _mixed(random, most)
    pools = (DevicePool(driver="gpu.example.com"),)
    layout = DeviceLayout(pools=pools, counters=counters, devices=devices, kinds="0" * 64)
    size, likely = 1 << len(devices), random.choice((0, 0.2))
    had = [at for at in range(len(devices)) if random.random() < likely]
    taken = tuple(
        (at, (("a/memory", random.choice((1, 2))),) if devices[at].is_shared and devices[at].capacity else ())
        for at in had
    )
    tainted = tuple(at for at in range(len(devices)) if random.random() < likely)
    masks = (size - 1, 0b010101010101 % size, 0b101010101010 % size, random.randrange(size) | random.randrange(size))
    return DeviceWorld(layout, {name: random.choice(masks) for name in SELECTORS}, tainted, taken)


def _mixed(random: Random, most: int) -> tuple[tuple[OfferedDevice, ...], tuple[int, ...]]:
    counters, devices = tuple(random.choice((1, 2, 3)) for _ in range(random.randint(1, 3))), []
    for number in range(random.randint(1, most)):
        shared = random.random() < 0.3
        uses = ((random.randrange(len(counters)), random.choice((0, 1, 1, 2))),) if random.random() < 0.6 else ()
        capacity = random.choice(({}, {"a/memory": DeviceCapacity(value=random.choice((2, 4)))}))
        if shared and random.random() < 0.7:
            capacity = {"a/memory": DeviceCapacity(value=4, default=1, least=1, step=random.choice((1, 2)), most=4)}
        same = {name: random.randrange(2) for name in ("a/x", "a/y") if random.random() < 0.8}
        devices.append(
            OfferedDevice(pool=0, name=f"d{number}", same=same, uses=uses, capacity=capacity, is_shared=shared)
        )
    return tuple(devices), counters


def _alike(random: Random) -> tuple[tuple[OfferedDevice, ...], tuple[int, ...]]:
    """Attribute x tells GPUs apart and is that of a NIC, y is of halves of the node."""
    gpus, amounts, nics = random.choice((2, 3)), random.choice(((2, 1), (1, 1), (2,), (1, 1, 2))), random.random() < 0.6
    devices = []
    for gpu in range(gpus):
        same = {"a/x": gpu, "a/y": gpu % 2}
        for number, amount in enumerate(amounts if nics else (*amounts, 1)):
            devices.append(OfferedDevice(pool=0, name=f"g{gpu}-{number}", same=same, uses=((gpu, amount),)))
        if nics:
            devices.append(OfferedDevice(pool=0, name=f"nic{gpu}", same=same, is_shared=random.random() < 0.2))
    return tuple(devices), (2,) * gpus


def random_claims(random: Random) -> tuple[ClaimNeed, ...]:
    """One or two claims of few requests, some with choices and constraints."""
    return tuple(_claim(random, f"c{number}") for number in range(random.choice((1, 1, 2))))


def _claim(random: Random, name: str) -> ClaimNeed:
    requests = []
    for number in range(random.choice((1, 1, 2))):
        choices = random.choice((1, 1, 2, 3))
        requests.append(
            RequestNeed(f"r{number}", tuple(_choice(random, f"x{c}" if choices > 1 else "") for c in range(choices)))
        )
    named = [(), ("r0",), *((f"r0/{choice.name}",) for choice in requests[0].choices if choice.name)]
    constraints = tuple(
        ConstraintNeed(random.choice(named), random.choice(("a/x", "a/y")), random.random() < 0.4)
        for _ in range(random.choice((0, 0, 1, 2)))
    )
    return ClaimNeed(name, tuple(requests), constraints)


def _choice(random: Random, name: str) -> ChoiceNeed:
    return ChoiceNeed(
        name,
        random.choice(("any", "any", "some")),
        tuple(sorted({random.choice(SELECTORS) for _ in range(random.choice((0, 0, 1)))})),
        random.choice((1, 1, 1, 2, 2, 3, 0)),
        not name and random.random() < 0.1,
        (("sick", "", "", True),) if random.random() < 0.3 else (),
        (("a/memory", random.choice((1, 2, 3))),) if random.random() < 0.3 else (),
    )


Assigned = list[tuple[int, ChoiceNeed, RequestNeed, ClaimNeed, tuple[int, ...]]]
"""The number of the claim, and the devices that a choice of a request has."""


def best_choices(world: DeviceWorld, claims: Sequence[ClaimNeed]) -> tuple[int, ...] | None:
    """The choices of the first solution in the order of choices; None where there is none."""
    asked = [(number, claim, request) for number, claim in enumerate(claims) for request in claim.requests]
    for vector in product(*(range(len(request.choices)) for _, _, request in asked)):
        chosen = [
            (n, request.choices[at], request, claim) for at, (n, claim, request) in zip(vector, asked, strict=True)
        ]
        for devices in product(*(_sets(world, choice) for _, choice, _, _ in chosen)):
            given = [(*each, had) for each, had in zip(chosen, devices, strict=True)]
            if legal(world, given):
                return vector
    return None


def _sets(world: DeviceWorld, choice: ChoiceNeed) -> Iterator[tuple[int, ...]]:
    names = {*choice.selectors, *({"s0"} if choice.device_class == "some" else ())}
    fits = [
        at
        for at in range(len(world.layout.devices))
        if world.selected(names) >> at & 1 and _asks(world, choice, at) is not None
    ]
    if choice.count:
        return combinations(fits, choice.count)
    return iter([tuple(at for at in fits if choice.admin or _has_room(world, choice, at))] if fits else [])


def _asks(world: DeviceWorld, choice: ChoiceNeed, at: int) -> int | None:
    """The memory that is taken; 0 of a device without."""
    policy, asked = world.layout.devices[at].capacity.get("a/memory"), dict(choice.capacity).get("a/memory")
    if policy is None:
        return None if asked else 0
    if asked is None:
        return policy.value if policy.default is None else policy.default
    if policy.least is not None:
        steps = [n for n in range(policy.least, policy.value + 1) if (n - policy.least) % (policy.step or 1) == 0]
        asked = next((n for n in steps if n >= asked), policy.value + 1)
    return asked if asked <= policy.value and (policy.most is None or asked <= policy.most) else None


def _has_room(world: DeviceWorld, choice: ChoiceNeed, at: int) -> bool:
    device = world.layout.devices[at]
    if not device.is_shared or not device.capacity:
        return True
    had = sum(dict(part).get("a/memory", 0) for index, part in world.taken if index == at)
    return had + (_asks(world, choice, at) or 0) <= device.capacity["a/memory"].value


def legal(world: DeviceWorld, given: Assigned) -> bool:
    """Whether nothing is given twice, beyond its amount, against a taint, a constraint or a size."""
    devices, whole, memory = world.layout.devices, Counter[int](), Counter[int]()
    before = {at for at, _ in world.taken}
    used = {*before}
    for at, part in world.taken:
        memory[at] += dict(part).get("a/memory", 0)
        whole[at] += not devices[at].is_shared
    in_claim = Counter[tuple[int, int]]()
    for number, choice, _, _, had in given:
        if not had or len(set(had)) < len(had):
            return False
        for at in had:
            if at in world.tainted and not choice.tolerations:
                return False
            in_claim[number, at] += not devices[at].is_shared
            if not choice.admin:
                whole[at] += not devices[at].is_shared
                memory[at] += (_asks(world, choice, at) or 0) if devices[at].is_shared else 0
                used.add(at)
    drawn = {at for _, choice, _, _, had in given if not choice.admin for at in had}
    spent, fresh = Counter[int](), Counter[int]()
    for at in used:
        for counter, amount in devices[at].uses:
            spent[counter] += amount
            fresh[counter] += 1 if at in drawn - before else 0
    return (
        all(n <= 1 for at, n in whole.items() if at in drawn)
        and all(n <= 1 for n in in_claim.values())
        and all(
            not devices[at].capacity or n <= devices[at].capacity["a/memory"].value
            for at, n in memory.items()
            if at in drawn
        )
        and all(spent[counter] <= world.layout.counters[counter] for counter, n in fresh.items() if n)
        and all(_holds(world, number, given) for number in {each[0] for each in given})
    )


def _holds(world: DeviceWorld, number: int, given: Assigned) -> bool:
    mine = [each for each in given if each[0] == number]
    for constraint in mine[0][3].constraints:
        values = [
            world.layout.devices[at].same.get(constraint.attribute)
            for _, choice, request, _, had in mine
            if not constraint.requests or {request.name, f"{request.name}/{choice.name}"} & {*constraint.requests}
            for at in had
        ]
        if None in values or len(set(values)) not in ((0, len(values)) if constraint.distinct else (0, 1)):
            return False
    return True


# -- in the words of the contract -----------------------------------------------------------------------------------


def spec_of(claim: ClaimNeed) -> DeviceClaim:
    """The claim of a job's spec that the engine reads as this one."""
    requests = [
        DeviceRequest(
            name=request.name,
            choices=tuple(
                DeviceChoice(
                    name=choice.name,
                    device_class=choice.device_class,
                    selectors=choice.selectors,
                    count=choice.count or 1,
                    every=not choice.count,
                    admin=choice.admin,
                    tolerations=tuple(DeviceToleration(key=key, operator="Exists") for key, *_ in choice.tolerations),
                    capacity=dict(choice.capacity),
                )
                for choice in request.choices
            ),
        )
        for request in claim.requests
    ]
    constraints = [
        DeviceConstraint(requests=c.requests, **{"distinct" if c.distinct else "match": c.attribute})
        for c in claim.constraints
    ]
    return DeviceClaim(name=claim.name, requests=tuple(requests), constraints=tuple(constraints))


def facts_of(world: DeviceWorld, node: str) -> tuple[list[LayoutSeen | ClassSeen | DevicesSelected], NodeSeen]:
    """The world as the binder would tell it, on a node of that name."""
    layout = world.layout.digest()
    sets = [names for size in (1, 2, 3) for names in combinations(SELECTORS, size)]
    selected = [
        DevicesSelected(
            kind="devices_selected", layout=layout, selectors=names, devices=f"{world.selected({*names}):x}"
        )
        for names in sets
    ]
    classes = [
        ClassSeen(kind="class_seen", name="any"),
        ClassSeen(kind="class_seen", name="some", selectors=("s0",)),
    ]
    ids = [f"gpu.example.com/{node}/{device.name}" for device in world.layout.devices]
    key, value, effect = TAINT
    offer = NodeOffer(
        layout=layout,
        tainted=tuple(DeviceTaint(device=ids[at], key=key, value=value, effect=effect) for at in world.tainted),
        taken=tuple(TakenDevice(device=ids[at], capacity=dict(part)) for at, part in world.taken),
    )
    seen = NodeSeen(kind="node_seen", name=node, gpus=0, cpu_milli=1, memory_bytes=1, pods=1, offer=offer)
    return [LayoutSeen(kind="layout_seen", layout=world.layout), *classes, *selected], seen


def drawn_of(world: DeviceWorld, given: Assigned, node: str) -> tuple[DrawnDevice, ...]:
    """Assigned devices as a placement names them."""
    found = []
    for _, choice, request, claim, had in given:
        name = f"{request.name}/{choice.name}" if choice.name else request.name
        for at in had:
            device = world.layout.devices[at]
            share = device.is_shared and device.capacity and not choice.admin
            part = (("a/memory", _asks(world, choice, at) or 0),) if share else ()
            found.append(DrawnDevice(claim.name, name, "gpu.example.com", node, device.name, part, choice.admin))
    return tuple(found)


def random_assignment(random: Random, world: DeviceWorld, claims: Sequence[ClaimNeed]) -> Assigned:
    """Devices that each request might have, whether they are to be had or not."""
    given = []
    for number, claim in enumerate(claims):
        for request in claim.requests:
            choice = random.choice(request.choices)
            sets = [*_sets(world, choice)]
            given.append((number, choice, request, claim, random.choice(sets) if sets else ()))
    return given
