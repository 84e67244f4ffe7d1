"""
Needs of pods and capacity of nodes, in integers: CPU in thousandths, memory in bytes, GPUs in thousandths per device.

Capacity is checked per device, never on a sum: two halves on two GPUs are not one GPU.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tessera.domain.devices.amounts import NOTHING as NOTHING
from tessera.domain.devices.amounts import RESOURCES as RESOURCES
from tessera.domain.devices.amounts import Amount as Amount
from tessera.domain.devices.amounts import DevicesFree as DevicesFree
from tessera.domain.devices.amounts import is_seat as is_seat
from tessera.domain.devices.amounts import least_devices as least_devices
from tessera.domain.devices.amounts import seat_name
from tessera.domain.devices.amounts import seats_of as seats_of
from tessera.domain.devices.claims import ClaimNeed, claim_needs, counted_by_class, drawn_by_class
from tessera.domain.devices.neighbours import NeighbourTerms, read_terms
from tessera.domain.devices.neighbours import NodeConditions as NodeConditions
from tessera.domain.devices.neighbours import NodePreferences as NodePreferences
from tessera.domain.devices.offers import ClassUse, Offer, Taken
from tessera.domain.devices.zones import ZoneAmounts, held_in_zones
from tessera.domain.storing.fast import fast_init, replace
from tessera.domain.storing.later import later
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.cluster.mig import PROFILES, resource_of
from tessera_schemas.cluster.node_terms import label_holds
from tessera_schemas.cluster.resource_kinds import WHOLE_NODE, is_device
from tessera_schemas.job import GPU_MILLI, AffinityTerm, Role, RoleReach, Toleration
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import DrawnDevice, Placement

WHOLE_GPU = GPU_MILLI
GpuKind = tuple[str, str, str, bool, int]
"""
Model, device profile, resource, whether jobs that name neither resource nor model get them, and the size of every share
in thousandths of a GPU, 0 where shares are of any size.
"""
ReadData = tuple[str, int, int]
"""Data set that a pod reads: its name in the shard, its bytes, and millionths of a GPU that are lost by reading it."""
KeptData = tuple[str, int, int]
"""Data set that a node has in a cache: its name in the shard, its bytes, and when it was used last."""
GroupNeed = tuple[str, int, tuple[str, ...], bool]
"""Group of pods: name, pods of the role in a copy (0: all), labels tried (narrowest first), and `RoleNeed.bound`."""
NO_VALUE = "="
"""In a toleration of a need, whose "" stands for every value: the empty value alone. No taint can have it."""


@fast_init
@dataclass(frozen=True, slots=True)
class Need:
    """
    Need of each of `replicas` equal pods. Equal needs compare and hash equal, so verdicts can be shared.

    `as_made`: somebody else makes the pods, so that nothing can be put into their containers. `tolerated` are the
    standing tolerations of the job's tenant, which every pod that the binder makes of it has. `apart`: of the shares of
    its gang no two are on one device. `claims` are on devices that drivers publish (DRA). `gpu_resource` names the
    resource of which its GPUs are, "" where the job does not. `shared_cpus`: no kubelet gives its CPUs to it alone.
    `single_numa`: it goes to nodes alone whose kubelet keeps a pod within one NUMA zone.
    `isolation` is the least that keeps its GPUs from others. `gpu_parts` is how many shares,
    each of a GPU of its own, or MIG instances a pod takes. Besides `affinity` all of one of `affinity_any` must hold.
    `data` are the data sets that it reads, in order.
    By `affinity_preferred` some nodes are taken before others; it keeps the pod off no node. `by_pods` are conditions
    that follow from where pods of other jobs stand.
    """

    cpu_milli: int
    memory_bytes: int
    gpus: int = 0
    gpu_milli: int = 0
    gpu_models: tuple[str, ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[tuple[str, str, str], ...] = ()
    affinity: NodeConditions = ()
    gpu_memory_bytes: int = 0
    mig_profile: str = ""
    devices: tuple[tuple[str, int], ...] = ()
    as_made: bool = False
    tolerated: tuple[tuple[str, str, str], ...] = later(())
    apart: bool = later(False)
    claims: tuple[ClaimNeed, ...] = later(())
    gpu_resource: str = later("")
    shared_cpus: bool = later(False)
    single_numa: bool = later(False)
    isolation: str = later("none")
    gpu_parts: int = later(1)
    affinity_any: tuple[NodeConditions, ...] = later(())
    data: tuple[ReadData, ...] = later(())
    affinity_preferred: NodePreferences = later(())
    by_pods: NodeConditions = later(())

    def by_the_piece(self, gpu_resource: str) -> list[tuple[str, int]]:
        """
        Amounts that a kubelet hands out by the piece: GPUs, instances, devices, and CPUs that the pod may have alone.

        `gpu_resource` is the resource by which the node offers its GPUs, "" for NVIDIA's.
        """
        # What containers of others' pods ask for one by one is not known here, and CPUs are given to containers.
        alone = not (self.as_made or self.shared_cpus or self.cpu_milli % 1000)
        devices = (each for each in self.devices if not is_seat(each[0]))
        counted = [("cpu", self.cpu_milli if alone else 0), (gpu_resource or GPU_RESOURCE, self.gpus), *devices]
        return [*counted, (resource_of(self.mig_profile), self.gpu_parts)] if self.mig_profile else counted

    @property
    def exclusive(self) -> bool:
        """Whether each pod has a node to itself."""
        return bool(self.devices) and any(name == WHOLE_NODE for name, _ in self.devices)

    @property
    def total_gpu_milli(self) -> int:
        """Thousandths of a GPU that one pod takes: whole GPUs, shares, MIG instances and its claims together."""
        claimed = sum(claim.gpu_milli for claim in self.claims) if self.claims else 0
        part = self.gpu_milli + PROFILES.get(self.mig_profile, 0)
        return self.gpus * WHOLE_GPU + self.gpu_parts * part + claimed

    @property
    def device_names(self) -> tuple[str, ...]:
        """Kubernetes' names of the devices that one pod takes, in order; a share or a MIG instance is of a GPU, too."""
        names = [name for name, _ in self.devices if is_device(name) and not is_seat(name)]
        names += [resource_of(self.mig_profile)] if self.mig_profile else []
        return tuple(sorted([*names, self.gpu_resource or GPU_RESOURCE] if self.total_gpu_milli else names))

    @property
    def shared(self) -> frozenset[str]:
        """Names of the claims that it may share with other pods of its gang."""
        return frozenset(claim.shared_as for claim in self.claims if claim.shared_as)

    def joining(self, shared: Collection[str]) -> "Need":
        """Need of a pod that uses the devices which another pod has for these shared claims."""
        if not shared or not self.claims:
            return self
        return replace(self, claims=tuple(claim for claim in self.claims if claim.shared_as not in shared))

    @property
    def amount(self) -> Amount:
        """Amount of one pod that counts against quotas."""
        classes = counted_by_class(self.claims) if self.claims else ()
        return Amount(self.cpu_milli, self.memory_bytes, self.total_gpu_milli, classes)

    def amount_drawn(self, placement: Placement) -> Amount:
        """Amount of the pod that was placed so: of devices of each class what it got, and not what it might have."""
        if not self.claims:
            return self.amount
        return replace(self.amount, device_classes=drawn_by_class(self.claims, placement.drawn))


@fast_init
@dataclass(frozen=True, slots=True)
class RoleNeed:
    """
    One role of a gang: how many pods, what each needs, and how they are placed relative to each other.

    `levels` are the labels whose domains it tries, narrowest first; `bound` says that the last one may not be left.
    Roles of one `group` share the domain. `beside` names the role whose pods' nodes it goes to, `spread` the label
    over whose values its pods are spread, so that their numbers differ by `max_skew` at most. `more` pods may be added
    while nobody waits for the room. `together`: its pods are released when the run is, and not one by one as they end.
    Roles of an equal `one_model`, the name of the first of them, are on one GPU model at a time; `model_order` is the
    order in which their owner wants models. `groups` are those of its pods, widest first. `neighbours` are its terms
    about pods of other jobs.
    """

    name: str
    replicas: int
    need: Need
    levels: tuple[str, ...] = ()
    bound: bool = False
    group: str = ""
    beside: str = ""
    spread: str = ""
    more: int = 0
    together: bool = later(False)
    one_model: str = later("")
    model_order: tuple[str, ...] = later(())
    max_skew: int = later(1)
    groups: tuple[GroupNeed, ...] = later(())
    neighbours: NeighbourTerms | None = later(None)


def role_need(role: Role, as_made: bool = False, zones: bool = True, tenant: str = "", job_id: str = "") -> RoleNeed:
    """The part of a role that decisions look at, NUMA zones among it (`zones`); the template stays in the ledger."""
    asked, topology, named = role.resources, role.topology, role.named_amounts
    preferred = tuple(sorted((one.weight, _conditions(one.terms)) for one in role.affinity_preferred))
    if role.anti_affinity:
        named = named | {seat_name(each.group, tenant, job_id): 1 for each in role.anti_affinity}
    return RoleNeed(
        role.name,
        role.gang,
        Need(
            role.cpu_milli,
            role.memory_bytes,
            asked.gpus,
            asked.gpu_milli,
            tuple(sorted(set(role.gpu_models))) if role.gpu_models else (),
            tuple(sorted(role.node_selector.items())) if role.node_selector else (),
            tolerated_taints(role.tolerations),
            _conditions(role.affinity) if role.affinity else (),
            asked.gpu_memory_bytes,
            asked.mig_profile,
            tuple(sorted(named.items())) if named else (),
            as_made,
            claims=claim_needs(asked.claims, asked.isolation) if asked.claims else (),
            gpu_resource=asked.gpu_resource,
            shared_cpus=zones and role.shares_cpus,
            single_numa=bool(asked.numa_policy),
            isolation=asked.isolation,
            gpu_parts=asked.gpu_parts,
            affinity_any=tuple(sorted({_conditions(terms) for terms in role.affinity_any})),
            affinity_preferred=preferred,
        ),
        (topology.level, *topology.wider) if topology else (),
        bool(topology and topology.required),
        (topology.group or "") if topology else "",
        role.same_node_as or "",
        role.spread or "",
        role.most - role.gang,
        role.release == "together",
        max_skew=role.max_skew,
        neighbours=read_terms(role.neighbours, tenant, preferred) if role.neighbours else None,
    )


def _conditions(terms: Iterable[AffinityTerm]) -> NodeConditions:
    return tuple(sorted(map(_condition, terms)))


def within_reach(need: RoleNeed, reaches: Sequence[RoleReach], sign: int = 1) -> RoleNeed:
    """The role kept to the nodes that these terms reach besides its own, or with a `sign` of -1 no more."""
    terms = {term for reach in reaches if reach.role == need.name for term in map(_condition, reach.terms)}
    own = set(need.need.affinity)
    after = own | terms if sign > 0 else own - terms
    return need if after == own else replace(need, need=replace(need.need, affinity=tuple(sorted(after))))


def _condition(term: AffinityTerm) -> tuple[str, str, tuple[str, ...]]:
    return term.key, term.operator.value, tuple(sorted(set(term.values)))


def tolerated_taints(tolerations: Sequence[Toleration]) -> tuple[tuple[str, str, str], ...]:
    """Key, value and effect of each, in order, as `Need.tolerations` has them."""
    return tuple(sorted((t.key, _value_of(t), t.effect) for t in tolerations)) if tolerations else ()


def _value_of(toleration: Toleration) -> str:
    return toleration.value if toleration.value or toleration.every_value else NO_VALUE


@fast_init
@dataclass(frozen=True, slots=True)
class OthersUse:
    """Use of a node by pods that are not ours. It counts as used, whatever runs hold besides."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    gpus: int = 0
    devices: tuple[tuple[str, int], ...] = ()


NO_OTHERS = OthersUse()


@fast_init
@dataclass(frozen=True, slots=True)
class Node:
    """
    A node with its size and what is free on it: neither held by runs and earmarks nor taken by `others`.

    Free may be negative while a node has shrunk under its runs, or others came beside them. Nobody says which GPUs
    others hold, and where slots are interchangeable it does not matter: of the slots that no run holds the highest
    count as theirs, and `gpu_others` names these. `tolerated` are the standing tolerations of its pool, which every
    pod that the binder makes there has. `capacity` counts the devices of which there are more than can be allocated.

    `gpu_beyond` is how much is held in slots that the node does not have now, where nobody says which card a slot is:
    whoever holds it still has as many of the GPUs that are there, so that these count as `gpu_others`, too; a share
    counts as a whole one; None where nothing is held so. `cordoned`: well, but not `ready`, as somebody said. `away_ts`
    is since when it is silent or cordoned, 0 while it is neither; `short_ts` since when it is in trouble, or has fewer
    whole GPUs than its capacity says. `kept_percent` of each free GPU's part of CPU, memory and places is kept from
    jobs without GPUs; `promised` thousandths of GPUs, free now and taken in what is looked ahead, count as free there.

    `offer` are the devices that drivers publish (DRA), `tainted` those with taints (device, key, value, effect), and
    `missing` the pools that cannot be read. `drawn` is what claims of runs and earmarks have of them, and
    `drawn_by_others` what claims have that Tessera did not allocate. `drawn_elsewhere` is what runs and earmarks on
    other nodes have of networks, pools of several nodes that this one is among.

    `gpu_resource` is the resource by which the node offers its GPUs, "" for NVIDIA's. `gpu_default`: jobs that name
    neither such a resource nor a model get these GPUs in its pool. `share_milli` is the size of every share there, 0
    where they are of any.
    `zones` are the NUMA zones within one of which the kubelet keeps each pod; none where it does not, or nobody says
    so. `in_zones` is what pods of runs and earmarks have that counts in zones, of each pod, in order.
    `pieces` are what jobs of its pool usually claim of GPUs that drivers publish, and all that they claim, by the
    `selectors_digest` of each. `is_cut`: its MIG geometry is being changed, and until then it takes nothing new.
    `kept_data` are the data sets in its caches, as far as runs have shown, and `told_data` those that the node says
    itself, each in order. `sick_slots` are those of cards that are known to be sick, where the node names its cards:
    pods get them last.
    """

    name: str
    pool: str
    ready: bool
    cpu_milli: int
    memory_bytes: int
    pods: int
    gpus: int
    gpu_model: str
    device_profile: str
    labels: tuple[tuple[str, str], ...]
    taints: tuple[tuple[str, str, str], ...]
    cpu_free: int
    memory_free: int
    pods_free: int
    gpu_free: tuple[int, ...]
    gone: bool = False
    gpu_memory_bytes: int = 0
    mig_geometry: str = ""
    devices: tuple[tuple[str, int], ...] = ()
    devices_free: DevicesFree = ()
    mig_taken: tuple[tuple[int, ...], ...] = ()
    others: OthersUse = NO_OTHERS
    gpu_others: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    mig_instances: tuple[tuple[str, int], ...] = ()
    trouble: Reason | None = None
    cordoned: bool = later(False)
    away_ts: int = later(0)
    gpu_beyond: int | None = later(None)
    tolerated: tuple[tuple[str, str, str], ...] = later(())
    capacity: tuple[tuple[str, int], ...] = later(())
    short_ts: int = later(0)
    kept_percent: int = later(0)
    promised: int = later(0)
    offer: Offer | None = later(None)
    tainted: tuple[tuple[str, str, str, str], ...] = later(())
    drawn: Taken = later(())
    drawn_by_others: Taken = later(())
    missing: tuple[str, ...] = later(())
    gpu_resource: str = later("")
    gpu_default: bool = later(True)
    share_milli: int = later(0)
    drawn_elsewhere: Taken = later(())
    pieces: tuple[tuple[str, ...], ...] = later(())
    is_cut: bool = later(False)

    def offers_gpus_of(self, resource: str, models: Sequence[str] = (), as_made: bool = False) -> bool:
        """
        Whether its GPUs are of the resource that a pod names; who names none, but a model, means that model's.

        A pod that somebody else made (`as_made`) has its resource written down already: NVIDIA's where it names none.
        """
        if resource or as_made:
            return (self.gpu_resource or GPU_RESOURCE) == (resource or GPU_RESOURCE)
        return bool(models) or self.gpu_default

    zones: tuple[ZoneAmounts, ...] = later(())
    in_zones: tuple[ZoneAmounts, ...] = later(())
    kept_data: tuple[KeptData, ...] = later(())
    told_data: tuple[str, ...] = later(())
    sick_slots: tuple[int, ...] = later(())

    @property
    def gpu_kind(self) -> GpuKind:
        """All of its GPUs by which pods are told apart that may run on them; nodes with equal ones serve alike."""
        return self.gpu_model, self.device_profile, self.gpu_resource, self.gpu_default, self.share_milli

    @property
    def is_short(self) -> bool:
        """Whether it is in trouble, or has fewer whole GPUs than its capacity says."""
        most = dict(self.capacity).get(self.gpu_resource or GPU_RESOURCE, 0) if self.device_profile == "whole" else 0
        return self.trouble is not None or self.gpus < most

    @property
    def idle(self) -> int:
        """Thousandths of its GPUs beside which CPU and memory are kept."""
        return self.promised + sum(left for left in self.gpu_free if left > 0)

    def promising(self, idle: int) -> "Node":
        """The node, beside so many thousandths of whose GPUs CPU and memory are kept, though some are taken here."""
        more = idle - self.idle if self.kept_percent else 0
        return replace(self, promised=self.promised + more) if more > 0 else self

    @property
    def open(self) -> tuple[int, int, int]:
        """CPU, memory and places free to jobs without GPUs: what is kept beside free GPUs is not."""
        free = self.cpu_free, self.memory_free, self.pods_free
        if not self.kept_percent:
            return free
        idle, whole = self.kept_percent * self.idle, 100 * WHOLE_GPU * self.gpus
        sizes = self.cpu_milli, self.memory_bytes, self.pods
        cpu, memory, pods = (
            min(left, max(0, left - size * idle // whole)) for left, size in zip(free, sizes, strict=True)
        )
        return cpu, memory, pods

    @property
    def silent(self) -> bool:
        """Whether its kubelet does not answer, though the cluster still has the node."""
        return not (self.ready or self.cordoned or self.gone) and self.trouble is None

    @property
    def is_held(self) -> bool:
        """Whether a run or an earmark is on it."""
        return self.pods_free + self.others.pods != self.pods

    @property
    def overfull(self) -> bool:
        """Whether more is held than there is of anything."""
        amounts = (self.cpu_free, self.memory_free, self.pods_free, *self.gpu_free)
        return min(amounts) < 0 or any(free < 0 for _, free in self.devices_free) or self._has_shared_slices

    @property
    def _has_shared_slices(self) -> bool:
        return any(holders > 1 for slices in self.mig_taken for holders in slices)

    def label(self, key: str) -> str | None:
        """The value of a label; `labels` are in order, so that it is found without looking at all of them."""
        at = bisect_left(self.labels, (key,))
        return self.labels[at][1] if at < len(self.labels) and self.labels[at][0] == key else None

    def meets(self, conditions: NodeConditions) -> bool:
        """Whether its labels meet all of these conditions."""
        return all(label_holds(operator, values, self.label(key)) for key, operator, values in conditions)

    def taking(self, need: Need, placement: Placement, sign: int) -> "Node":
        """
        The node after a pod took (`sign` 1) or gave back (-1) its share.

        `mig_taken` counts the holders of each memory slice of each device, on a node that serves MIG instances: two
        where an earmark lies on what a stopping run still has.
        """
        gpu, theirs, beyond = list(self.gpu_free), self.gpu_others, self.gpu_beyond
        for device in theirs:
            gpu[device] = WHOLE_GPU
        for device in placement.devices:
            if device < len(gpu):
                gpu[device] -= sign * placement.gpu_milli
            elif beyond is not None:
                beyond += sign  # the node shrank meanwhile: its holder has another one of those that are left
        if self.others.gpus or beyond is not None:
            theirs = give_others(gpu, self.others.gpus + max(0, beyond or 0))
        if placement.drawn:
            for slot, milli in self.gpu_parts((each.id, each.capacity) for each in placement.drawn if not each.admin):
                gpu[slot] -= sign * milli
        return replace(
            self,
            cpu_free=self.cpu_free - sign * need.cpu_milli,
            memory_free=self.memory_free - sign * need.memory_bytes,
            pods_free=self.pods_free - (sign * self._places_taken(need) if need.devices else sign),
            gpu_free=tuple(gpu),
            devices_free=self._devices_after(need, sign) if need.devices else self.devices_free,
            mig_taken=self.mig_taken if placement.mig is None else self._slices_after(placement, sign),
            gpu_others=theirs,
            gpu_beyond=beyond,
            drawn=self._drawn_after(placement, sign) if placement.drawn else self.drawn,
            in_zones=self._in_zones_after(need, sign) if self.zones else (),
        )

    def _places_taken(self, need: Need) -> int:
        """Places for pods that one pod takes: all that others leave where it has the node to itself."""
        # So that nothing finds room beside it, whoever asks. A node's facts change it as a whole, with all that is held
        # on it, so that as many places come back.
        return max(1, self.pods - self.others.pods) if need.exclusive else 1

    def _in_zones_after(self, need: Need, sign: int) -> tuple[ZoneAmounts, ...]:
        return held_in_zones(self.zones, self.in_zones, need.by_the_piece(self.gpu_resource), sign)

    def offering(self, offer: Offer | None) -> "Node":
        """The node with another offer, of which its claims have what they had."""
        node = replace(self, offer=offer)
        if self.device_profile != "dra":
            return node
        gpu = [WHOLE_GPU] * self.gpus
        for slot, milli in node.gpu_parts((*self.drawn, *self.drawn_by_others)):
            gpu[slot] -= milli
        return replace(node, gpu_free=tuple(gpu))

    @property
    def device_classes(self) -> tuple[ClassUse, ...]:
        """Devices of the node that drivers publish, by class."""
        if self.offer is None:
            return ()
        taken = (device for device, _ in self.drawn_in_all)
        return self.offer.by_class(self.name, taken, (device for device, *_ in self.tainted))

    @property
    def drawn_in_all(self) -> Taken:
        """Devices of the node that claims have, whosever these are, and wherever their pods."""
        return (*self.drawn, *self.drawn_by_others, *self.drawn_elsewhere)

    def gpu_parts(self, drawn: Iterable[tuple[str, tuple[tuple[str, int], ...]]]) -> list[tuple[int, int]]:
        """
        Slot and thousandths of the GPU that each of these devices is, or is a part of, by what is had of it; of others
        nothing.
        """
        if self.offer is None or self.device_profile != "dra":
            return []
        there = ((self.offer.find(name, self.name), amounts) for name, amounts in drawn)
        parts = [(self.offer.devices[at], dict(amounts)) for at, amounts in there if at is not None]
        return [(each.gpu, each.part(had)) for each, had in parts if each.gpu is not None and each.gpu < self.gpus]

    def _drawn_after(self, placement: Placement, sign: int) -> Taken:
        return taken_after(self.drawn, placement.drawn, sign)

    def taking_over(self, need: Need) -> "Node":
        """The node on which what one pod of others takes counts as theirs no more; its GPUs are whole ones."""
        had, asked = self.others, dict(need.devices)
        devices = ((name, count - asked.get(name, 0)) for name, count in had.devices)
        left = OthersUse(
            max(0, had.cpu_milli - need.cpu_milli),
            max(0, had.memory_bytes - need.memory_bytes),
            max(0, had.pods - 1),
            max(0, had.gpus - need.gpus),
            tuple((name, count) for name, count in devices if count > 0),
        )
        theirs, before = dict(left.devices), dict(had.devices)
        free = ((name, n + before.get(name, 0) - theirs.get(name, 0)) for name, n in self.devices_free)
        gpu = list(self.gpu_free)
        for device in self.gpu_others:
            gpu[device] = WHOLE_GPU
        gpu_others = give_others(gpu, left.gpus + max(0, self.gpu_beyond or 0))
        return replace(
            self,
            cpu_free=self.cpu_free + had.cpu_milli - left.cpu_milli,
            memory_free=self.memory_free + had.memory_bytes - left.memory_bytes,
            pods_free=self.pods_free + had.pods - left.pods,
            gpu_free=tuple(gpu),
            devices_free=tuple(free),
            others=left,
            gpu_others=gpu_others,
        )

    def counting(self, beyond: int) -> "Node":
        """The node, on which so many GPUs are held in slots that it does not have now."""
        gpu = list(self.gpu_free)
        for device in self.gpu_others:
            gpu[device] = WHOLE_GPU
        theirs = give_others(gpu, self.others.gpus + beyond)
        return replace(self, gpu_free=tuple(gpu), gpu_others=theirs, gpu_beyond=beyond)

    def _devices_after(self, need: Need, sign: int) -> DevicesFree:
        asked = dict(need.devices)
        after = tuple((name, free - sign * asked.pop(name, 0)) for name, free in self.devices_free)
        if not is_seat(need.devices[0][0]):
            return after
        # What is left of `asked` are seats that nobody had, and devices that the node does not have.
        seats = [(name, 1 - sign) for name in asked if is_seat(name)]
        seats += [(name, free) for name, free in after if is_seat(name) and free != 1]
        return tuple(sorted([*seats, *(each for each in after if not is_seat(each[0]))]))

    def _slices_after(self, placement: Placement, sign: int) -> tuple[tuple[int, ...], ...]:
        size = 0 if placement.mig is None else placement.mig[1]
        taken = list(self.mig_taken)
        for device, start in placement.instances:
            if device < len(taken):
                held = enumerate(taken[device])
                taken[device] = tuple(n + sign * (start <= at < start + size) for at, n in held)
        return tuple(taken)


def taken_after(had: Taken, devices: Iterable[DrawnDevice], sign: int) -> Taken:
    """Devices that are had after these came to it (`sign` 1) or left it (-1); administrators take nothing."""
    change, before = Counter((each.id, each.capacity) for each in devices if not each.admin), Counter(had)
    return tuple(sorted((before + change if sign > 0 else before - change).elements()))


def give_others(gpu: list[int], count: int) -> tuple[int, ...]:
    """Take the highest slots that are wholly free, at most `count`; returns them in order."""
    theirs = [slot for slot, left in enumerate(gpu) if left == WHOLE_GPU][-count:] if count else []
    for slot in theirs:
        gpu[slot] = 0
    return tuple(theirs)
