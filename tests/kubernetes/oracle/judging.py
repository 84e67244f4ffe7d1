"""
The judge: whether devices are legal answers to claims, and whether a pod that waits would fit. From API objects alone.

It reads slices, classes and claims itself and evaluates no CEL: `worlds.PREDICATES` says what each expression means.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Any

from tests.kubernetes.oracle.worlds import PREDICATES

Json = dict[str, Any]
STEPS_MAX = 200_000
RESULTS_MAX = 32
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "m": Fraction(1, 1000)}


class GaveUp(Exception):
    """A search for a place took more steps than it may."""


class WrongExpression(Exception):
    """An expression looks at what a device has not."""


@dataclass(frozen=True)
class PlacedPod:
    """A pod on its node: the spec of each of its claims, and the results of its allocation."""

    name: str
    node: str
    claims: tuple[tuple[Json, list[Json]], ...]


@dataclass(frozen=True)
class Device:
    """A device as its slice has it; attributes by domain and name, their values with their types."""

    id: str
    node: str
    driver: str
    attributes: dict[str, tuple[str, Any]]
    capacity: dict[str, Json]
    uses: tuple[tuple[tuple[str, ...], Fraction], ...]
    shared: bool
    taints: tuple[Json, ...]

    def seen(self, domain: str, name: str) -> Any:
        """As expressions see it. Raises KeyError."""
        if not domain:
            return {"driver": self.driver, "shared": self.shared}[name]
        if domain == "capacity":
            return amount(self.capacity[name]["value"])
        return self.attributes[f"{domain}/{name}"][1]


def amount(quantity: str) -> Fraction:
    """A quantity as a number."""
    for unit, factor in _UNITS.items():
        if quantity.endswith(unit):
            return Fraction(quantity.removesuffix(unit)) * factor
    return Fraction(quantity)


@dataclass
class Book:
    """What is had of devices: `whole` in claims, `part` of capacities, `spent` of counters."""

    whole: Counter[str] = field(default_factory=Counter)
    part: Counter[tuple[str, str]] = field(default_factory=Counter)
    spent: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def add(self, device: Device, consumed: dict[str, Fraction], sign: int = 1) -> None:
        """One more claim has the device; one less with a sign of -1."""
        before = self.whole[device.id]
        self.whole[device.id] += sign
        if 0 in (before, before + sign):
            for counter, used in device.uses:
                self.spent[counter] += sign * used  # type: ignore[assignment]
        for name, taken in consumed.items() if device.shared else ():
            self.part[device.id, name] += sign * taken  # type: ignore[assignment]


class Judge:
    """The devices and classes of a world."""

    def __init__(self, slices: Sequence[Json], classes: Sequence[Json]) -> None:
        self.classes = {one["metadata"]["name"]: one["spec"].get("selectors") or [] for one in classes}
        self.devices: dict[str, Device] = {}
        self.counters: dict[tuple[str, ...], Fraction] = {}
        self.incomplete: set[str] = set()
        self._steps = 0
        pools: dict[tuple[str, str], list[Json]] = {}
        for one in slices:
            pools.setdefault((one["spec"]["driver"], one["spec"]["pool"]["name"]), []).append(one["spec"])
        for key, specs in pools.items():
            newest = max(spec["pool"]["generation"] for spec in specs)
            current = [spec for spec in specs if spec["pool"]["generation"] == newest]
            if len(current) < current[0]["pool"]["resourceSliceCount"]:
                self.incomplete |= {spec["nodeName"] for spec in current}
                continue
            for spec in current:
                self._read(key, spec)

    def _read(self, key: tuple[str, str], spec: Json) -> None:
        driver, pool = key
        for one in spec.get("sharedCounters") or ():
            for name, said in one["counters"].items():
                self.counters[driver, pool, one["name"], name] = amount(said["value"])
        for each in spec.get("devices") or ():
            attributes = {
                name if "/" in name else f"{driver}/{name}": next(iter(value.items()))
                for name, value in (each.get("attributes") or {}).items()
            }
            uses = tuple(
                ((driver, pool, one["counterSet"], name), amount(said["value"]))
                for one in each.get("consumesCounters") or ()
                for name, said in one["counters"].items()
            )
            device = f"{driver}/{pool}/{each['name']}"
            self.devices[device] = Device(
                device,
                spec["nodeName"],
                driver,
                attributes,
                each.get("capacity") or {},
                uses,
                bool(each.get("allowMultipleAllocations")),
                tuple(each.get("taints") or ()),
            )

    # -- legality -----------------------------------------------------------------------------------------------------

    def faults(self, pods: Sequence[PlacedPod]) -> list[str]:
        """Everything wrong with these pods together."""
        wrong, book = [], Book()
        for pod in pods:
            for spec, results in pod.claims:
                try:
                    wrong += [f"{pod.name}: {why}" for why in self._claim_faults(pod.node, spec, results)]
                except WrongExpression as error:
                    wrong.append(f"{pod.name}: {error} has no outcome for a device that it is about")
                for result in results:
                    if (device := self.devices.get(_id(result))) and not result.get("adminAccess"):
                        said = result.get("consumedCapacity") or {}
                        book.add(device, {name: amount(value) for name, value in said.items()})
        for name, times in book.whole.items():
            device = self.devices[name]
            wrong += [f"{name} is had {times} times"] if times > 1 and not device.shared else []
        for (name, capacity), taken in book.part.items():
            if taken > amount(self.devices[name].capacity[capacity]["value"]):
                wrong.append(f"{taken} of {capacity} of {name} are had")
        wrong += [f"{spent} of {name} are spent" for name, spent in book.spent.items() if spent > self.counters[name]]
        return wrong

    def _claim_faults(self, node: str, spec: Json, results: list[Json]) -> Iterator[str]:
        strange = [_id(result) for result in results if _id(result) not in self.devices]
        if strange or any(self.devices[_id(result)].node != node for result in results):
            yield f"{strange or 'a device'} is not on {node}"
            return
        whole = Counter(_id(result) for result in results if not self.devices[_id(result)].shared)
        if len(results) > RESULTS_MAX or max(whole.values(), default=1) > 1:
            yield "a device twice, or too many"
        answered = 0
        for request in spec["devices"]["requests"]:
            named = dict(_alternatives(request))
            mine = [result for result in results if result["request"] in named]
            answered += len(mine)
            if len({result["request"] for result in mine}) != 1:
                yield f"request {request['name']} has not one answer"
                continue
            yield from self._request_faults(node, named[mine[0]["request"]], mine)
        if answered < len(results):
            yield "devices for no request"
        for constraint in spec["devices"].get("constraints") or ():
            had = [(result["request"], self.devices[_id(result)]) for result in results]
            if not _holds(constraint, had):
                yield f"{constraint} is broken"

    def _request_faults(self, node: str, asked: Json, results: list[Json]) -> Iterator[str]:
        had = [self.devices[_id(result)] for result in results]
        name = asked["deviceClassName"]
        if len({each.id for each in had}) < len(had):
            yield f"{name}: a device twice"
        if asked.get("allocationMode") == "All":
            plain = [each for each in self._matching(node, asked) if not each.shared]
            # A device that has not the capacity asked for is not meant; of a shared one too little may be left.
            missed = [each.id for each in plain if _takes(each, asked) is not None and each not in had]
            if missed or node in self.incomplete:
                yield f"{name}: All without {missed}"
        elif len(had) != asked.get("count", 1):
            yield f"{name}: {len(had)} devices"
        for device, result in zip(had, results, strict=True):
            admin = bool(asked.get("adminAccess"))
            takes = _takes(device, asked)
            if not self._selects(asked, device) or not _tolerates(asked, device) or takes is None:
                yield f"{name} must not have {device.id}"
            elif bool(result.get("adminAccess")) is not admin:
                yield f"{name}: other access to {device.id}"
            elif device.shared and not admin:
                said = {key: amount(value) for key, value in (result.get("consumedCapacity") or {}).items()}
                if said != takes or not result.get("shareID"):
                    yield f"{name}: {said} instead of {takes} of {device.id}"

    def _selects(self, asked: Json, device: Device) -> bool:
        """Whether every expression holds. Raises WrongExpression, where none is false."""
        selectors = (*self.classes[asked["deviceClassName"]], *(asked.get("selectors") or ()))
        wrong = ""
        for text in (selector["cel"]["expression"] for selector in selectors):
            try:
                if not PREDICATES[text](device.seen):
                    return False
            except KeyError:
                wrong = text
        if wrong:
            raise WrongExpression(wrong)
        return True

    def _matching(self, node: str, asked: Json) -> list[Device]:
        return [each for each in self.devices.values() if each.node == node and self._selects(asked, each)]

    def ends_in_an_error(self, claims: Sequence[Json], node: str) -> bool:
        """Whether an expression of these claims has no outcome for a device of the node."""
        try:
            for claim in claims:
                for request in claim["devices"]["requests"]:
                    for _, asked in _alternatives(request):
                        self._matching(node, asked)
        except WrongExpression:
            return True
        return False

    # -- a place for what waits --------------------------------------------------------------------------------------

    def fits(self, pods: Sequence[Sequence[Json]], placed: Sequence[PlacedPod], nodes: Sequence[str]) -> bool:
        """
        Whether pods with these claims fit together beside those that are placed: every set is tried. Raises GaveUp.
        """
        book = Book()
        for pod in placed:
            for _, results in pod.claims:
                for result in results:
                    if not result.get("adminAccess"):
                        said = result.get("consumedCapacity") or {}
                        consumed = {name: amount(value) for name, value in said.items()}
                        book.add(self.devices[_id(result)], consumed)
        self._steps, self.met_wrong_expression = 0, False
        return any(True for _ in self._gang(pods, book, nodes))

    def _gang(self, pods: Sequence[Sequence[Json]], book: Book, nodes: Sequence[str]) -> Iterator[None]:
        if not pods:
            yield None
            return
        for node in nodes:
            try:
                for _ in self._pod(pods[0], book, node):
                    yield from self._gang(pods[1:], book, nodes)
            except WrongExpression:
                self.met_wrong_expression = True
                continue

    def _pod(self, claims: Sequence[Json], book: Book, node: str) -> Iterator[None]:
        # What `All` means is settled before anything is taken for the pod.
        every: dict[int, list[Device]] = {}
        for claim in claims:
            for request in claim["devices"]["requests"]:
                for _, asked in _alternatives(request):
                    # Every expression of a pod is evaluated, whichever choice is taken.
                    matching = self._matching(node, asked)
                    if asked.get("allocationMode") == "All":
                        every[id(asked)] = [each for each in matching if self._has_room(each, asked, book)]
                        # Nobody knows what all is there, and that ends it as a wrong expression does.
                        if node in self.incomplete:
                            return
        yield from self._claims(claims, book, node, every)

    def _claims(self, claims: Sequence[Json], book: Book, node: str, every: dict[int, list[Device]]) -> Iterator[None]:
        if not claims:
            yield None
            return
        spec = claims[0]["devices"]
        for _ in self._requests(spec, 0, [], book, node, every):
            yield from self._claims(claims[1:], book, node, every)

    def _requests(
        self, spec: Json, at: int, had: list[tuple[str, Device]], book: Book, node: str, every: dict[int, list[Device]]
    ) -> Iterator[None]:
        if at == len(spec["requests"]):
            yield None
            return
        for name, asked in _alternatives(spec["requests"][at]):
            for devices in self._sets(asked, node, every):
                self._steps += 1
                if self._steps > STEPS_MAX:
                    raise GaveUp
                now = [*had, *((name, each) for each in devices)]
                if not self._may_have(asked, devices, had, book) or len(now) > RESULTS_MAX:
                    continue
                if not all(_holds(constraint, now) for constraint in spec.get("constraints") or ()):
                    continue
                taken = [] if asked.get("adminAccess") else [(each, _takes(each, asked) or {}) for each in devices]
                for device, takes in taken:
                    book.add(device, takes)
                yield from self._requests(spec, at + 1, now, book, node, every)
                for device, takes in taken:
                    book.add(device, takes, -1)

    def _sets(self, asked: Json, node: str, every: dict[int, list[Device]]) -> Iterable[Sequence[Device]]:
        if asked.get("allocationMode") == "All":
            return [every[id(asked)]] if every[id(asked)] else []
        matching = [each for each in self._matching(node, asked) if _takes(each, asked) is not None]
        return combinations(matching, asked.get("count", 1))

    def _may_have(self, asked: Json, devices: Sequence[Device], had: list[tuple[str, Device]], book: Book) -> bool:
        """Taints are borne, no device is had twice by the claim unless it is shared, and there is enough of each."""
        before = {each.id for _, each in had}
        if not all(_tolerates(asked, each) and (each.shared or each.id not in before) for each in devices):
            return False
        return bool(asked.get("adminAccess")) or self._can_take(asked, devices, book)

    def _can_take(self, asked: Json, devices: Sequence[Device], book: Book) -> bool:
        fresh = Counter[tuple[str, ...]]()
        for device in devices:
            if not self._has_room(device, asked, book) or (book.whole[device.id] and not device.shared):
                return False
            if not book.whole[device.id]:
                for counter, used in device.uses:
                    fresh[counter] += used  # type: ignore[assignment]
        return all(book.spent[counter] + used <= self.counters[counter] for counter, used in fresh.items())

    def _has_room(self, device: Device, asked: Json, book: Book) -> bool:
        takes = _takes(device, asked)
        if takes is None or not device.shared or asked.get("adminAccess"):
            return takes is not None
        return all(
            book.part[device.id, name] + taken <= amount(device.capacity[name]["value"])
            for name, taken in takes.items()
        )


def _id(result: Json) -> str:
    return f"{result['driver']}/{result['pool']}/{result['device']}"


def _alternatives(request: Json) -> Iterator[tuple[str, Json]]:
    if "exactly" in request:
        yield request["name"], request["exactly"]
    for each in request.get("firstAvailable") or ():
        yield f"{request['name']}/{each['name']}", each


def _tolerates(asked: Json, device: Device) -> bool:
    known = [(each.get("key"), each.get("operator")) for each in asked.get("tolerations") or ()]
    return all((taint["key"], "Exists") in known for taint in device.taints)


def _takes(device: Device, asked: Json) -> dict[str, Fraction] | None:
    """What a claim takes of each capacity; None where the device cannot give it."""
    wanted = (asked.get("capacity") or {}).get("requests") or {}
    if not wanted.keys() <= device.capacity.keys():
        return None
    taken = {}
    for name, capacity in device.capacity.items():
        policy, has = capacity.get("requestPolicy") or {}, amount(capacity["value"])
        default = amount(policy["default"]) if "default" in policy else has
        takes = default if name not in wanted else _rounded(policy, amount(wanted[name]))
        bounds = policy.get("validRange") or {}
        if takes > has or (takes != default and "max" in bounds and takes > amount(bounds["max"])):
            return None
        if takes != default and (valid := policy.get("validValues")) and takes not in map(amount, valid):
            return None
        taken[name] = takes
    return taken


def _rounded(policy: Json, wanted: Fraction) -> Fraction:
    bounds = policy.get("validRange") or {}
    if bounds:
        least, step = amount(bounds["min"]), amount(bounds.get("step", "0"))
        steps = -((least - wanted) // step) if step and wanted > least else 0
        return max(least + steps * step, wanted if not step else least)
    larger = sorted(value for value in map(amount, policy.get("validValues") or ()) if value >= wanted)
    return larger[0] if larger else wanted


def _holds(constraint: Json, had: Sequence[tuple[str, Device]]) -> bool:
    """Whether the devices that a constraint is about have one value, or each another."""
    about = constraint.get("requests") or []
    name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
    values = [
        device.attributes.get(name)
        for request, device in had
        if not about or request in about or request.partition("/")[0] in about
    ]
    if None in values:
        return False
    return len(set(values)) <= 1 if "matchAttribute" in constraint else len(set(values)) == len(values)
