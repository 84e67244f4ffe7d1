"""Devices that drivers publish (DRA) and NUMA zones, for the checker: who may have them, and how much there is."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from tessera_schemas.cluster.device_claims import (
    DeviceChoice,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    DeviceToleration,
)
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.cluster.device_layouts import DeviceCapacity, DeviceLayout, OfferedDevice, selectors_digest
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.cluster.resource_kinds import CLASS_PREFIX
from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import Resources, Role
from tessera_schemas.work.placement import EXTENDED_CLAIM, DrawnDevice

DEVICES_OF_A_CLAIM = 32
ANY = 2**62
"""As many claims as like may have shares of a device."""
NodeAmounts = Counter[tuple[str, str]]
"""(node, what) to amount: drawn/<device> in claims, part/<device>|<capacity> in thousandths."""


def drawn_amounts(drawn: Iterable[DrawnDevice]) -> Counter[str]:
    """One pod's devices as a book of amounts has them; administrators take nothing."""
    held = Counter[str]()
    for each in drawn:
        if not each.admin:
            held[f"drawn/{each.id}"] += 1
            held.update({f"part/{each.id}|{name}": amount for name, amount in each.capacity})
    return held


def fits_a_zone(asked: Resources, node: NodeSeen) -> bool:
    """Whether one NUMA zone has the pod's GPUs, instances and devices, of those that the node's zones have at all."""
    there = {name for zone in node.zones for name, amount in zone.items() if amount}
    every = {node.gpu_resource or GPU_RESOURCE: asked.gpus, **asked.extended}
    counted = {name: amount for name, amount in every.items() if name in there}
    return not counted or any(all(zone.get(n, 0) >= amount for n, amount in counted.items()) for zone in node.zones)


class CheckedDevices:
    """Layouts, classes and selections as the ledger has taken them in; `nodes` are those of whoever has the book."""

    def __init__(self, nodes: Mapping[str, NodeSeen]) -> None:
        self._nodes = nodes
        self.layouts, self.classes = dict[str, DeviceLayout](), dict[str, ClassSeen]()
        self.selected = dict[tuple[str, str], int]()
        self._named = dict[tuple[str, str], dict[str, tuple[int, OfferedDevice]]]()

    def take(self, fact: LayoutSeen | ClassSeen | DevicesSelected) -> None:
        if isinstance(fact, LayoutSeen):
            self.layouts[fact.layout.digest()] = fact.layout
        elif isinstance(fact, DevicesSelected):
            devices = 0 if fact.error else int(fact.devices, 16)
            self.selected[fact.layout, selectors_digest(fact.selectors)] = devices
        elif fact.gone:
            self.classes.pop(fact.name, None)
        else:
            self.classes[fact.name] = fact

    def _devices(self, node: NodeSeen) -> Mapping[str, tuple[int, OfferedDevice]]:
        layout, key = self.layouts.get(node.offer.layout), (node.offer.layout, node.name)
        if layout is None:
            return {}
        if key not in self._named:
            pools = [f"{pool.driver}/{pool.name or node.name}" for pool in layout.pools]
            self._named[key] = {f"{pools[d.pool]}/{d.name}": (at, d) for at, d in enumerate(layout.devices)}
        return self._named[key]

    def held(self, book: NodeAmounts, node: NodeSeen, what: str) -> int:
        """As much of `what` as claims have that reach it on the node: of a network's device wherever their pods are."""
        device = what.partition("/")[2].partition("|")[0]
        _, offered = self._devices(node).get(device, (0, None))
        if offered is None or not self.layouts[node.offer.layout].pools[offered.pool].network:
            return book[node.name, what]
        return sum(book[name, what] for name in self._nodes)

    # -- amounts -----------------------------------------------------------------------------------------------------

    def size(self, node: NodeSeen, what: str) -> int:
        """As much of `what` (as in `NodeAmounts`) as claims of Tessera may have on the node, beside those of others."""
        kind, _, rest = what.partition("/")
        device, _, capacity = rest.partition("|")
        _, offered = self._devices(node).get(device, (0, None))
        theirs = [taken for taken in node.offer.taken if taken.device == device]
        if offered is None:
            return 0
        if kind == "part":
            had = sum(taken.capacity.get(capacity, 0) for taken in theirs)
            return offered.capacity[capacity].value - had if capacity in offered.capacity else 0
        if not offered.is_shared:
            return 0 if theirs else 1
        return 0 if any(offered.capacity and not taken.capacity for taken in theirs) else ANY

    def overdrawn(self, book: NodeAmounts, node: NodeSeen, added: Mapping[str, int]) -> list[str]:
        """
        Counters below nothing after these devices of the node were added to the book, each in so many claims.

        A device takes of its counters with the first claim that has it, and nothing with further ones.
        """
        devices, theirs = self._devices(node), {taken.device for taken in node.offer.taken}
        held = {name: self.held(book, node, f"drawn/{name}") for name in devices}
        spent = Counter[int]()
        for name, (_, device) in devices.items():
            if name in theirs or held[name] > 0:
                for counter, amount in device.uses:
                    spent[counter] += amount
        fresh = [name for name in added if name in devices and name not in theirs and held[name] <= added[name]]
        counters = {counter for name in fresh for counter, _ in devices[name][1].uses}
        most = self.layouts[node.offer.layout].counters if counters else ()
        return [f"counter/{counter}" for counter in sorted(counters) if spent[counter] > most[counter]]

    def parts_of(self, node: NodeSeen, drawn: Iterable[tuple[str, Mapping[str, int]]]) -> list[tuple[int, int]]:
        """Slot and thousandths of the GPU that each of these devices of a node is, or is a part of; of others none."""
        known = self._devices(node) if node.device_profile == "dra" else {}
        found = [(known[name][1], had) for name, had in drawn if name in known]
        return [(one.gpu, part_of_gpu(one, had)) for one, had in found if one.gpu is not None and one.gpu < node.gpus]

    def gpu_parts(self, book: NodeAmounts, node: NodeSeen) -> Iterator[tuple[int, int]]:
        """Slot and thousandths of each GPU of which claims have devices, ours and those of others."""
        theirs, had = Counter(taken.device for taken in node.offer.taken), Counter[tuple[str, str]]()
        for taken in node.offer.taken:
            had.update({(taken.device, of): amount for of, amount in taken.capacity.items()})
        for name, (_, device) in self._devices(node).items() if node.device_profile == "dra" else ():
            claims = book[node.name, f"drawn/{name}"] + theirs[name]
            if device.gpu is not None and device.gpu < node.gpus and claims:
                amounts = {of: book[node.name, f"part/{name}|{of}"] + had[name, of] for of in device.capacity}
                known = amounts if all(one.capacity for one in node.offer.taken if one.device == name) else {}
                yield device.gpu, part_of_gpu(device, known) if device.is_shared else device.gpu_milli * claims

    # -- quotas ------------------------------------------------------------------------------------------------------

    def gpu_milli(self, claim: DeviceClaim) -> int:
        """Most thousandths of GPUs that a claim may get of any layout that is known, whichever choice is drawn."""
        requests = () if claim.allocated else claim.requests
        return sum(max(self._most_of(choice) for choice in request.choices) for request in requests)

    def _most_of(self, choice: DeviceChoice) -> int:
        found = [] if choice.admin else [self._parts(choice, *known) for known in self.layouts.items()]
        if choice.every:
            return max(map(sum, found), default=0)
        return choice.count * max((part for parts in found for part in parts), default=0)

    def _parts(self, choice: DeviceChoice, digest: str, layout: DeviceLayout) -> list[int]:
        """Thousandths of its GPU that each device which answers the choice is; 0 of what is no GPU."""
        selected, parts = self._selected_of(choice, digest, layout), []
        for at, device in enumerate(layout.devices):
            shares = {name: _least_share(policy, choice.capacity.get(name)) for name, policy in device.capacity.items()}
            has_it = None not in shares.values() and choice.capacity.keys() <= shares.keys()
            if selected >> at & 1 and has_it:
                parts.append(part_of_gpu(device, {name: share or 0 for name, share in shares.items()}))
        return parts

    # -- answers -----------------------------------------------------------------------------------------------------

    def class_for(self, resource: str, node: NodeSeen) -> str:
        """The class that answers a counted resource on a node whose device plugin has none of it; "" for none."""
        driven = node.device_profile == "dra" if resource == GPU_RESOURCE else not node.extended.get(resource)
        names = [name for name, known in sorted(self.classes.items()) if known.extended_resource == resource]
        named = resource.removeprefix(CLASS_PREFIX)
        names += [named] if named != resource and named in self.classes else []
        return names[0] if driven and node.offer.layout and names else ""

    def claims_on(self, role: Role, node: NodeSeen) -> tuple[DeviceClaim, ...]:
        """Claims of a pod of the role on the node, with the one for what it counts on and a class answers there."""
        counted = {GPU_RESOURCE: role.resources.gpus, **role.named_amounts}
        requests = tuple(
            DeviceRequest.model_construct(name=name, choices=(DeviceChoice(device_class=of, count=count),))
            for name, count in counted.items()
            if count and (of := self.class_for(name, node))
        )
        more = (DeviceClaim.model_construct(name=EXTENDED_CLAIM, requests=requests),) if requests else ()
        return (*role.resources.claims, *more)

    def are_isolated(self, drawn: Sequence[DrawnDevice], node: NodeSeen, least: str) -> bool:
        """Whether no GPU among these devices is shared with less isolation; HAMi's driver alone enforces any."""
        devices = self._devices(node)
        named = [(each, devices[each.id][1]) for each in drawn if each.id in devices and not each.admin]
        limited = "hami-core-gpu.project-hami.io"
        shared = [
            each for each, device in named if device.is_shared and (device.gpu is not None or each.driver == limited)
        ]
        return all(each.driver == limited and least != "hardware" for each in shared)

    def unanswered(
        self,
        claims: Sequence[DeviceClaim],
        drawn: Sequence[DrawnDevice],
        node: NodeSeen,
        joined: Set[str] = frozenset(),
    ) -> str:
        """
        Why these devices do not answer the claims of a pod, whoever else has them; "" where they do. Of the shared
        claims `joined` another pod of its gang has the devices.
        """
        # A claim that has devices already gets none with the pod; the role's affinity says where they are.
        asked = [claim for claim in claims if not claim.allocated and claim.shared_as not in joined]
        wrong = [] if {each.claim for each in drawn} == {claim.name for claim in asked} else ["other claims"]
        for claim in asked:
            mine = [each for each in drawn if each.claim == claim.name]
            wrong += self._claim_faults(claim, mine, node)
        return "; ".join(wrong)

    def _claim_faults(self, claim: DeviceClaim, drawn: Sequence[DrawnDevice], node: NodeSeen) -> Iterator[str]:
        devices = self._devices(node)
        if unknown := [each.id for each in drawn if each.id not in devices]:
            yield f"the node has no {unknown[0]}"
            return
        whole = Counter(each.id for each in drawn if not devices[each.id][1].is_shared)
        if len(drawn) > DEVICES_OF_A_CLAIM or max(whole.values(), default=1) > 1:
            yield f"{claim.name} has a device twice, or too many"
        answered = 0
        for request in claim.requests:
            names = {f"{request.name}/{c.name}" if c.name else request.name: c for c in request.choices}
            had = [each for each in drawn if each.request in names]
            answered += len(had)
            if len({each.request for each in had}) != 1:
                yield f"{claim.name} {request.name} has not one choice"
                continue
            yield from (f"{claim.name} {request.name}: {why}" for why in self._faults(names[had[0].request], had, node))
        if answered != len(drawn):
            yield f"{claim.name} has devices for no request"
        for constraint in claim.constraints:
            values = [
                devices[each.id][1].same.get(constraint.match or constraint.distinct)
                for each in drawn
                if _concerns(constraint, each.request)
            ]
            allowed = {0, len(values)} if constraint.distinct else {0, 1}
            if None in values or len(set(values)) not in allowed:
                yield f"{claim.name} breaks {constraint.match or constraint.distinct}"

    def _faults(self, choice: DeviceChoice, had: Sequence[DrawnDevice], node: NodeSeen) -> Iterator[str]:
        devices, ids = self._devices(node), {each.id for each in had}
        selected = self._selected(choice, node)
        if not choice.every and len(had) != choice.count:
            yield f"{len(had)} devices instead of {choice.count}"
        if len(ids) != len(had) or any(each.admin is not choice.admin for each in had):
            yield "a device twice, or another access to it"
        if choice.every:
            # A device whose capacity does not do is left out, and so is a shared one of which too little is left.
            plain = {name for name, (_, device) in devices.items() if not (device.is_shared or device.capacity)}
            left_out = {name for name in plain - ids if selected >> devices[name][0] & 1}
            if node.offer.missing or (left_out and not choice.capacity):
                yield f"not every device: {sorted(left_out)}"
        for each in had:
            index, device = devices[each.id]
            if not selected >> index & 1:
                yield f"{each.id} is none that it selects"
            taints = [(t.key, t.value, t.effect) for t in node.offer.tainted if t.device == each.id]
            if any(not any(_bears(toleration, *taint) for toleration in choice.tolerations) for taint in taints):
                yield f"{each.id} has a taint that is not borne"
            shares = device.is_shared and not each.admin
            if {name for name, _ in each.capacity} != (device.capacity.keys() if shares else set()):
                yield f"{each.id} has parts of other capacities"
            elif not all(
                _is_share(policy, choice.capacity.get(name), dict(each.capacity).get(name))
                for name, policy in device.capacity.items()
            ) or not (choice.capacity.keys() <= device.capacity.keys()):
                yield f"{each.id} has not the capacity"

    def _selected(self, choice: DeviceChoice, node: NodeSeen) -> int:
        layout = self.layouts.get(node.offer.layout)
        return 0 if layout is None else self._selected_of(choice, node.offer.layout, layout)

    def _selected_of(self, choice: DeviceChoice, digest: str, layout: DeviceLayout) -> int:
        known = self.classes.get(choice.device_class)
        if known is None:
            return 0
        selectors = (*known.selectors, *choice.selectors)
        there = sum(1 << at for at, device in enumerate(layout.devices) if not device.beyond)
        return there & self.selected.get((digest, selectors_digest(selectors)), 0) if selectors else there


def part_of_gpu(device: OfferedDevice, had: Mapping[str, int]) -> int:
    """Thousandths of its GPU that a device is, or a share with these amounts (none: unknown); memory counts first."""
    if not (device.is_shared and device.gpu_milli) or (device.capacity and not had):
        return device.gpu_milli
    sizes = {name: each.value for name, each in device.capacity.items()}
    by = {name: size for name, size in sizes.items() if name.split("/")[-1] == "memory"} or sizes
    return max([1, *(device.gpu_milli * had.get(name, 0) // size for name, size in by.items() if size)])


def _concerns(constraint: DeviceConstraint, request: str) -> bool:
    return not constraint.requests or bool({request, request.partition("/")[0]} & {*constraint.requests})


def _bears(toleration: DeviceToleration, key: str, value: str, effect: str) -> bool:
    if toleration.key not in ("", key) or toleration.effect not in ("", effect):
        return False
    return toleration.operator == "Exists" or toleration.value == value


def _is_share(policy: DeviceCapacity, asked: int | None, given: int | None) -> bool:
    """Whether a share of `given` answers what was asked for; None of a device that is had whole."""
    if given is None:
        return asked is None or asked <= policy.value
    default = policy.value if policy.default is None else policy.default
    steps = policy.least is None or not policy.step or (given - policy.least) % policy.step == 0
    ranged = steps and (policy.least or 0) <= given <= (policy.value if policy.most is None else policy.most)
    allowed = given == default or (given in policy.valid if policy.valid and policy.least is None else ranged)
    return given <= policy.value and allowed and (given == default if asked is None else given >= asked)


def _least_share(policy: DeviceCapacity, asked: int | None) -> int | None:
    """Least share that answers what was asked for; None where no share does."""
    default = policy.value if policy.default is None else policy.default
    least, given = policy.least or 0, asked or 0
    stepped = least - (least - given) // policy.step * policy.step if policy.step and given > least else given
    shares = {default} if asked is None else {given, least, stepped, *policy.valid}
    return min((share for share in shares if _is_share(policy, asked, share)), default=None)
