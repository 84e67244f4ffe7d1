"""Nodes as the account checker knows them: what each has, who holds it, and whether it takes anything new."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tessera.testkit.devices_checker import CheckedDevices
from tessera_schemas import ledger as m
from tessera_schemas.cluster.device_claims import OF_CLASS
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.cluster.devices import NAMES_ITS_CARDS, NAMES_NO_CARDS
from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import Role
from tessera_schemas.work.placement import Placement

AccountLine = tuple[str, str, str, str, str]
"""Resource (gpu, cpu, memory, or devices as `class:NAME`), pool, cause, tenant, job."""
SIZES = ("cpu", "cpu_milli"), ("memory", "memory_bytes")
WHOLE = 1000
LOST_SLOTS_FROM = 4
"""Format from which what is held in slots that a node has lost counts as others' GPUs for whoever places there."""
IDENTITY = ("device_profile", "gpu_uuids", "mig_geometry", "mig_instances", "share_milli")
CheckedKey = tuple[int, str]
"""Runs (0) before earmarks (1), each by its job: an earmark may lie on what a run still holds."""


@dataclass(slots=True, eq=False)
class CheckedHolder:
    """A run or an earmark: its pods by rank, their roles by name, and the cause of each."""

    key: CheckedKey
    tenant: str
    places: dict[int, Placement]
    roles: Mapping[str, Role]
    causes: dict[int, str] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)  # of the pods that it began with, those that are gone too
    first: str = ""  # the first of these nodes


class DividedNodes:
    """Every node's GPUs, CPU and memory, divided anew where something of it changed."""

    def __init__(self) -> None:
        self._seen: dict[str, NodeSeen] = {}
        self._others: dict[str, Counter[str]] = {}
        self.format = 0
        self._counted: set[str] = set()
        self._drained: set[str] = set()
        self._cut: dict[str, bool] = {}  # nodes whose MIG geometry is being changed; False: until it is seen again
        self._backoffs: dict[str, m.NodeBackedOff] = {}
        self._on: dict[str, dict[CheckedKey, CheckedHolder]] = {}
        self._holders: dict[CheckedKey, CheckedHolder] = {}
        self._divided: dict[str, Counter[AccountLine]] = {}
        self._devices = CheckedDevices(self._seen)

    def next_reopening(self, ts: int) -> int:
        """End of the next back-off after `ts`, 0 for none. Its node is divided anew at that moment."""
        for name, backoff in self._backoffs.items():
            if backoff.until_ts <= ts:
                self._divided.pop(name, None)
        return min((backoff.until_ts for backoff in self._backoffs.values() if backoff.until_ts > ts), default=0)

    def lines(self, ts: int) -> Counter[AccountLine]:
        """Thousandths of GPUs and CPU, and bytes, by line from `ts` on."""
        total = Counter[AccountLine]()
        for name, seen in self._seen.items():
            if name not in self._divided:
                self._divided[name] = self._divide(seen, ts)
            total.update(self._divided[name])
        return total

    def _divide(self, seen: NodeSeen, ts: int) -> Counter[AccountLine]:
        if seen.gone:
            return Counter()
        backoff = self._backoffs.get(seen.name)
        backs_off = backoff is not None and backoff.until_ts > ts
        is_out = backs_off or seen.name in self._drained or not seen.ready or seen.trouble is not None
        is_out = is_out or seen.name in self._cut
        return self._gpus(seen, is_out) + self._sizes(seen, is_out) + self._claimed(seen, is_out)

    def _claimed(self, seen: NodeSeen, is_out: bool) -> Counter[AccountLine]:
        """Devices that were drawn, by the class of the choice that each answers; none kept on a node that is out."""
        lines = Counter[AccountLine]()
        for key, holder in self._on.get(seen.name, {}).items():
            for rank, place in holder.places.items() if not (key[0] and is_out) else ():
                for name in _classes(holder.roles[place.role], place) if place.node == seen.name else ():
                    lines[OF_CLASS + name, seen.pool, holder.causes[rank], holder.tenant, key[1]] += 1
        return lines

    def _sizes(self, seen: NodeSeen, is_out: bool) -> Counter[AccountLine]:
        """CPU and memory: what runs ask for, then pods of others, then earmarks, each as far as there is any left."""
        lines, pool, on = Counter[AccountLine](), seen.pool, sorted(self._on.get(seen.name, {}).items())
        for resource, size in SIZES:
            claims = [
                (key[0], (holder.causes[rank], holder.tenant, key[1]), getattr(holder.roles[place.role], size))
                for key, holder in on
                for rank, place in sorted(holder.places.items())
                if place.node == seen.name
            ]
            theirs = (0, ("others", "", ""), self._others[seen.name][size])
            left = getattr(seen, size)
            lines[resource, pool, "capacity", "", ""] = left
            for is_mark, who, asked in sorted([*claims, theirs], key=lambda claim: (claim[0], claim[1][0] == "others")):
                took = min(left, asked)
                left -= took
                lines[resource, pool, *(("out", "", "") if is_mark and is_out else who)] += took
            lines[resource, pool, "out" if is_out else "free", "", ""] += left
        return +lines

    def _gpus(self, seen: NodeSeen, is_out: bool) -> Counter[AccountLine]:
        lines, pool = Counter[AccountLine](), seen.pool
        left, touched, lost = [WHOLE] * seen.gpus, set[int](), list[AccountLine]()
        for key, holder in sorted(self._on.get(seen.name, {}).items()):
            for rank, place in sorted(holder.places.items()):
                if place.node != seen.name:
                    continue
                who = ("out", "", "") if key[0] and is_out else (holder.causes[rank], holder.tenant, key[1])
                line = ("gpu", pool, *who)
                parts = [(device, place.gpu_milli) for device in place.devices]
                for device, milli in parts + self._devices.parts_of(
                    seen, ((d.id, dict(d.capacity)) for d in place.drawn if not d.admin)
                ):
                    if device >= seen.gpus:
                        lost.append(line)
                        continue
                    took = min(left[device], milli)
                    left[device] -= took
                    lines[line] += took
                    touched.add(device)
        if seen.device_profile not in NAMES_NO_CARDS or seen.name not in self._counted:
            lost = []  # a slot is one certain card, and it is gone; older ledgers did not count it otherwise
        # Who holds a slot that is gone has one of those that are there; as others', they are the highest untouched.
        theirs = self._others[seen.name]["gpus"] + len(lost)
        slots = [slot for slot in range(seen.gpus) if slot not in touched][-theirs:] if theirs else []
        for at, slot in enumerate(slots):
            lines[lost[at] if at < len(lost) else ("gpu", pool, "others", "", "")] += left[slot]
            left[slot] = 0
        for slot, milli in self._devices.parts_of(seen, ((taken.device, taken.capacity) for taken in seen.offer.taken)):
            took = min(left[slot], milli)
            left[slot] -= took
            lines["gpu", pool, "others", "", ""] += took
        lines["gpu", pool, "out" if is_out else "free", "", ""] += sum(left)
        lines["gpu", pool, "capacity", "", ""] += WHOLE * seen.gpus
        return +lines

    def see(self, seen: NodeSeen) -> None:
        """A node as the cluster describes it now; what is held there keeps the devices that it was given."""
        before = self._seen.get(seen.name)
        if not self._cut.get(seen.name, False):
            self._cut.pop(seen.name, None)
        if before is not None and self._on.get(seen.name) and not seen.gone and _identity(seen) != _identity(before):
            kept = {name: getattr(before, name) for name in ("gpus", *IDENTITY)}
            seen = seen.model_copy(update=kept | {"ready": False})
        elif before is not None and self._on.get(seen.name) and seen.gone:
            seen = seen.model_copy(update={name: getattr(before, name) for name in IDENTITY})
        (self._counted.add if self.format >= LOST_SLOTS_FROM else self._counted.discard)(seen.name)
        self._seen[seen.name], self._others[seen.name] = seen, Counter(seen.others.model_dump(exclude={"devices"}))
        self._divided.pop(seen.name, None)
        self._forget(seen.name)

    def note(self, fact: LayoutSeen | ClassSeen | DevicesSelected) -> None:
        """Take in what drivers publish; nodes of a layout that comes only now are divided anew."""
        self._devices.take(fact)
        if isinstance(fact, LayoutSeen):
            for name in [name for name, seen in self._seen.items() if seen.offer.layout == fact.layout.digest()]:
                self._divided.pop(name, None)

    def take_over(self, node: str, role: Role) -> None:
        """Count what a pod of others there asks for as ours from now on."""
        asked = {"gpus": role.resources.gpus} | {size: getattr(role, size) for _, size in SIZES}
        self._others[node] = self._others[node] - Counter(asked)
        self._divided.pop(node, None)

    def drain(self, node: str, drained: bool) -> None:
        """An operator takes the node out, or puts it back."""
        (self._drained.add if drained else self._drained.discard)(node)
        self._divided.pop(node, None)

    def cut(self, node: str, begun: bool) -> None:
        """The MIG geometry of the node is changed, or was: it is out until it is seen once more."""
        self._cut[node] = begun
        self._divided.pop(node, None)

    def back_off(self, record: m.NodeBackedOff) -> None:
        """The node takes no pods for a while."""
        self._backoffs[record.node] = record
        self._divided.pop(record.node, None)

    def open(self, holder: CheckedHolder, lasted: bool) -> None:
        """A run started on its nodes, or lasted, which alone ends the back-offs after failed programs."""
        for name in sorted(holder.nodes):
            backoff = self._backoffs.get(name)
            if backoff is not None and (lasted or not backoff.failed):
                del self._backoffs[name]
                self._divided.pop(name, None)

    def hold(
        self, key: CheckedKey, tenant: str, places: Iterable[Placement], roles: Mapping[str, Role]
    ) -> CheckedHolder:
        """Add a holder of these pods."""
        holder = self._holders[key] = CheckedHolder(key, tenant, {}, roles)
        self.grow(holder, places)
        holder.nodes = {place.node for place in holder.places.values()}
        holder.first = holder.places[min(holder.places)].node
        return holder

    def grow(self, holder: CheckedHolder, places: Iterable[Placement]) -> None:
        """The holder gets these, too."""
        for place in places:
            holder.places[place.rank] = place
            self._on.setdefault(place.node, {})[holder.key] = holder
        self.touch(holder)

    def give(self, holder: CheckedHolder, ranks: Iterable[int] = ()) -> None:
        """Take pods that are gone from their holder; without ranks all of them."""
        self.touch(holder)
        for rank in tuple(ranks) or tuple(holder.places):
            holder.places.pop(rank, None)
        at = {place.node for place in holder.places.values()}
        for name in [name for name, on in self._on.items() if on.get(holder.key) is holder and name not in at]:
            del self._on[name][holder.key]
            self._forget(name)

    def drop(self, key: CheckedKey) -> None:
        """Remove the holder of the key."""
        if (holder := self._holders.pop(key, None)) is not None:
            self.give(holder)

    def pool_of(self, holder: CheckedHolder) -> str:
        """Pool of the holder's first node."""
        return self._seen[holder.first].pool

    def touch(self, holder: CheckedHolder) -> None:
        """Nodes of the holder are divided anew."""
        for place in holder.places.values():
            self._divided.pop(place.node, None)

    def _forget(self, name: str) -> None:
        if name in self._seen and self._seen[name].gone and not self._on.get(name):
            self._backoffs.pop(name, None)


def _classes(role: Role, place: Placement) -> Iterator[str]:
    """The class of each device of a pod that answers a claim of the role, without those for administrators."""
    choices = {
        (claim.name, "/".join(filter(None, (request.name, choice.name)))): choice.device_class
        for claim in role.resources.claims
        for request in claim.requests
        for choice in request.choices
    }
    for device in place.drawn:
        if not device.admin and (device.claim, device.request) in choices:
            yield choices[device.claim, device.request]


def _identity(seen: NodeSeen) -> tuple[object, ...]:
    """Identity of the cards behind the node's slots, as far as the node says."""
    cut = (seen.mig_geometry, seen.mig_instances) if seen.device_profile == "mig" else ()
    cards = seen.gpu_uuids if seen.device_profile in NAMES_ITS_CARDS else ()
    return seen.device_profile, cut, cards, seen.share_milli
