"""
Whether one pod, or the pods of a bundle, fit one node: written once, asked by everybody.

The tests run in a fixed order, and the first that fails is the verdict; numbers about all nodes come from counting
verdicts. Whole GPUs need devices of which nothing is taken; a share needs one device with that much left; a MIG
instance needs a position inside one device. A pod of several shares needs as many devices, and one of several instances
as many positions. How pods are placed relative to each other is asked in `topology`.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tessera.domain.devices.claims import ClaimNeed
from tessera.domain.devices.datasets import read_together
from tessera.domain.devices.resources import NO_VALUE, WHOLE_GPU, Need, Node, NodePreferences, is_seat
from tessera.domain.storing.fast import replace
from tessera.domain.work.evidence import FitFailure
from tessera.engine.claims.drawing import as_of_one_pod, draw, free_devices, named, why_never
from tessera.engine.claims.extended import claims_on, devices_free, draw_bundle, never_gpus, sets_of
from tessera.engine.claims.numa_zones import count_in_zones
from tessera.engine.claims.shortages import Shortage
from tessera.engine.placement.mig import free_positions, has_profile, place_instances
from tessera_schemas.cluster.devices import ISOLATIONS, NAMES_ITS_CARDS, OF_REPLICAS, isolates, isolation_of, serves
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.cluster.resource_kinds import is_device
from tessera_schemas.work.placement import DrawnDevice, Placement

TAINT_BITS, SPARED_BITS = 8, 16  # a node has at most 64 taints, and devices of 64 names
KEEPS_OUT = ("NoSchedule", "NoExecute")
TaintParts = tuple[str, str, str]
"""Key, value and effect; in a toleration an empty effect is every effect, an empty value every value."""


def fits(need: Need, node: Node, of_gpus: bool = False) -> FitFailure | None:
    """The first test that the pod fails on the node; None when it fits now. `of_gpus`: others of its gang have GPUs."""
    return never_fits(need, node) or short_of(kind_of((need,), of_gpus), node)


def never_fits(need: Need, node: Node) -> FitFailure | None:
    """First failure that no departure of other pods would change."""
    if not node.ready:
        return FitFailure.CORDONED if node.cordoned else FitFailure.NOT_READY
    if (need.gpus or need.gpu_milli) and not node.offers_gpus_of(need.gpu_resource, need.gpu_models, need.as_made):
        return FitFailure.GPU_RESOURCE
    if need.gpu_models and node.gpu_model not in need.gpu_models:
        return FitFailure.GPU_MODEL
    if need.gpu_memory_bytes and gpu_memory_for(need, node) < need.gpu_memory_bytes:
        return FitFailure.GPU_MEMORY
    if need.node_selector and any(node.label(key) != value for key, value in need.node_selector):
        return FitFailure.SELECTOR
    if (need.affinity or need.affinity_any) and not _affinity_holds(need, node):
        return FitFailure.AFFINITY
    if node.taints and first_taint_against(need, node) is not None:
        return FitFailure.TAINT
    if need.claims and (failure := _never_drawn(need, node)) is not None:
        return failure
    if need.single_numa and not node.zones:
        return FitFailure.NO_ZONES
    return _never_served(need, node) or (_misses_pods(need, node) if need.by_pods else None)


def _misses_pods(need: Need, node: Node) -> FitFailure | None:
    """Whether pods of other jobs, by where they stand now, keep the pod off the node."""
    broken = next((each for each in need.by_pods if not node.meets((each,))), None)
    if broken is None:
        return None
    return FitFailure.APART if broken[1] == "NotIn" else FitFailure.FAR


def _never_served(need: Need, node: Node) -> FitFailure | None:
    """Why the node never hands GPUs out in the way that the pod can take them."""
    if need.devices and need.exclusive and need.gpus != node.gpus:
        return FitFailure.GPU_NUMBER
    if need.mig_profile:
        return None if has_profile(need, node) else FitFailure.MIG_PROFILE
    if need.gpus and node.device_profile == "dra":
        return never_gpus(node)
    if not _profile_serves(need, node):
        return FitFailure.DEVICE_PROFILE
    if need.gpu_milli and node.share_milli not in (0, need.gpu_milli):
        return FitFailure.SHARE_SIZE
    is_apart = not need.gpu_milli or isolates(isolation_of(node.device_profile, "share"), need.isolation)
    return None if is_apart else FitFailure.ISOLATION


def _never_drawn(need: Need, node: Node) -> FitFailure | None:
    """Why the node's devices could never answer the pod's claims, whatever others give back."""
    if node.offer is None:
        return FitFailure.CLAIMS
    found = why_never(free_devices(node), need.claims)
    if found is None:
        return None
    return FitFailure.UNKNOWN_CLAIMS if found.unknown else FitFailure.CLAIMS


def _profile_serves(need: Need, node: Node) -> bool:
    """Whether the node hands GPUs out in the way that the pod can take them."""
    if not (need.gpus or need.gpu_milli):
        return True
    if need.as_made and node.device_profile in NAMES_ITS_CARDS:
        return False
    if need.gpu_milli and node.device_profile in OF_REPLICAS:
        # Which GPU a replica is of is the plugin's choice. A pod that others made asks for one by naming the resource.
        return not need.apart and need.gpu_parts == 1 and (bool(need.gpu_resource) or not need.as_made)
    if need.gpu_milli and need.as_made and need.gpu_resource:
        return False
    return serves(node.device_profile, "whole" if need.gpus else "share")


def never_key(need: Need) -> tuple[object, ...]:
    """Needs with an equal key get the same verdict of `never_fits` from every node."""
    # The share belongs to the memory only where memory is asked for: it decides how much of a GPU's memory counts.
    memory = (need.gpu_memory_bytes, need.gpu_milli) if need.gpu_memory_bytes else ()
    kind = (need.gpus > 0, need.gpu_milli, need.mig_profile, need.as_made, need.gpu_resource, need.device_names)
    apart = (need.apart, need.isolation, need.gpu_parts > 1) if need.gpu_milli else ()
    conditions = (need.affinity, need.affinity_any) if need.affinity_any else need.affinity
    first = need.gpu_models, memory, need.node_selector, conditions, (need.tolerations, need.tolerated), kind, apart
    if need.devices and need.exclusive:
        return *first, need.claims, need.single_numa, need.by_pods, need.gpus
    if need.by_pods:
        return *first, need.claims, need.single_numa, need.by_pods
    return (*first, need.claims, need.single_numa) if need.claims or need.single_numa else first


def gpu_memory_for(need: Need, node: Node) -> int:
    """The memory of each whole GPU, or what the share comes to: so the shares of a GPU never exceed its memory."""
    return node.gpu_memory_bytes * need.gpu_milli // WHOLE_GPU if need.gpu_milli else node.gpu_memory_bytes


def _affinity_holds(need: Need, node: Node) -> bool:
    return any(node.meets((*need.affinity, *terms)) for terms in need.affinity_any or ((),))


def first_taint_against(need: Need, node: Node) -> TaintParts | None:
    """The first of the node's taints, by key, that keeps the pod out; None where there is none."""
    return next((taint for taint in node.taints if taint[2] in KEEPS_OUT and not is_tolerated(need, node, taint)), None)


def is_tolerated(need: Need, node: Node, taint: TaintParts) -> bool:
    """
    Whether the pod bears the taint: by its own tolerations, by a device that it asks for, or by those that its tenant
    or the node's pool has.

    As with Kubernetes' ExtendedResourceToleration, a pod that asks for a resource bears taints whose key is that
    resource, all but NoExecute. Kubelets look at NoExecute alone, for which a pod that somebody else made needs a
    toleration of its own.
    """
    key, _, effect = taint
    if _names(need.tolerations, taint) or (effect != "NoExecute" and key in need.device_names):
        return True
    if effect != "NoExecute" and key == node.gpu_resource and (need.gpus or need.gpu_milli):
        return True  # of a job that names a model, or leaves it to the pool, the pod asks for what its node offers
    return not (need.as_made and effect == "NoExecute") and _names((*need.tolerated, *node.tolerated), taint)


def _names(tolerations: Sequence[TaintParts], taint: TaintParts) -> bool:
    key, value, effect = taint
    meant = ("", value or NO_VALUE)
    return any(k == key and v in meant and e in ("", effect) for k, v, e in tolerations)


def _find_shortage(need: Need, node: Node) -> FitFailure | None:
    """First resource that is missing right now."""
    # The number of GPUs may refuse a node without a walk over its devices.
    if need.gpus and (node.gpus < need.gpus or node.gpu_free.count(WHOLE_GPU) < need.gpus):
        return FitFailure.GPU
    if need.gpu_milli and (not node.gpu_free or max(node.gpu_free) < need.gpu_milli):
        return FitFailure.GPU
    if need.gpu_parts > 1 and need.gpu_milli and sum(map(need.gpu_milli.__le__, node.gpu_free)) < need.gpu_parts:
        return FitFailure.GPU
    if need.mig_profile and free_positions(need, node) < need.gpu_parts:
        return FitFailure.GPU
    if need.devices and _sets_of_devices(need, node) < 1:
        short = (name for name, count in need.devices if devices_free(node, name) < count)
        return FitFailure.APART if all(map(is_seat, short)) else FitFailure.DEVICES
    if node.cpu_free < need.cpu_milli:
        return FitFailure.CPU
    if node.memory_free < need.memory_bytes:
        return FitFailure.MEMORY
    if node.pods_free < 1:
        return FitFailure.PODS
    return None


def _sets_of_devices(need: Need, node: Node) -> int:
    return min(devices_free(node, name) // count for name, count in need.devices)


def placed_on(
    node: Node,
    need: Need,
    rank: int,
    role: str,
    device: int | None = None,
    drawn: tuple[DrawnDevice, ...] | None = None,
) -> Placement:
    """
    Placement of the pod of `rank` on a node that it fits, and the thousandths that it takes of each device.

    Whole GPUs: the lowest free slots. A share: `device` if that is said, else the one with the least left that still
    holds it, then the lowest; of several shares `device` is not asked (`choose_gpus`). Cards that are known to be sick
    are taken where no others are free. Devices of its claims, unless
    they are said (`drawn`), are drawn so that what stays free is worth most; whole GPUs that a class answers are among
    these.
    """
    if drawn is None:
        claims = claims_on(need, node) if need.claims or node.offer is not None else ()
        drawn = _named(claims, node) if claims else ()
    if need.mig_profile:
        placed = place_instances(node, need, rank, role)
        return replace(placed, drawn=drawn) if drawn else placed
    if need.gpus and node.device_profile != "dra":
        free = [slot for slot, left in enumerate(node.gpu_free) if left == WHOLE_GPU]
        if node.sick_slots:
            free.sort(key=node.sick_slots.__contains__)
            return Placement(rank, role, node.name, tuple(sorted(free[: need.gpus])), WHOLE_GPU, drawn=drawn)
        return Placement(rank, role, node.name, tuple(free[: need.gpus]), WHOLE_GPU, drawn=drawn)
    if need.gpu_milli and need.gpu_parts > 1:
        return Placement(rank, role, node.name, choose_gpus(need, node.gpu_free), need.gpu_milli, drawn=drawn)
    if need.gpu_milli:
        if device is None or device in node.sick_slots:
            sick, fitting = node.sick_slots, (at for at, left in enumerate(node.gpu_free) if left >= need.gpu_milli)
            device = min(fitting, key=lambda slot: (slot in sick, slot != device, node.gpu_free[slot], slot))
        return Placement(rank, role, node.name, (device,), need.gpu_milli, drawn=drawn)
    return Placement(rank, role, node.name, drawn=drawn)


def _named(claims: tuple[ClaimNeed, ...], node: Node) -> tuple[DrawnDevice, ...]:
    """Devices for the claims on the node of a pod that fits it."""
    # Asked a second time, of the very state in which the count was above nothing: the answer is remembered, and whoever
    # places on a node without asking before hears of it here.
    found = draw(free_devices(node), claims)
    if isinstance(found, Shortage) or node.offer is None:
        raise ValueError(f"node {node.name} has no devices for {claims}")
    return named(found, node.offer, node.name)


def drawn_for(kind: "BundleKind", node: Node) -> Sequence[tuple[DrawnDevice, ...] | None]:
    """Devices for each of several pods of a bundle, on a node that it fits; None where there are no claims."""
    if not claims_on(kind.whole, node):
        return (None,) * len(kind.needs)
    found = draw_bundle(kind.needs, kind.whole, node)
    if isinstance(found, Shortage):
        raise ValueError(f"node {node.name} has no devices for {kind.whole.claims}")
    return found


def closed(node: Node, devices: Collection[int]) -> Node:
    """The node with nothing free on these devices: so a gang sees those of its shares that are `apart`."""
    return replace(
        node, gpu_free=tuple(min(0, left) if at in devices else left for at, left in enumerate(node.gpu_free))
    )


@dataclass(frozen=True, slots=True, eq=False)
class BundleKind:
    """
    Needs of a bundle, whichever gang it is of: `whole` is what one takes of its node, `labels` the keys asked for.

    `devices` are the names of the devices asked for. `spares`: no pod of the whole gang has a GPU, so that the bundle
    leaves what is kept beside free GPUs; the others of a gang are to start where its GPUs are. `preferred` are the
    preferences of all its pods. Kinds with an equal `never` suit the same nodes, and ask for devices of the same names.
    Equal needs have one object (`kind_of`), so that what is known of a kind is found without comparing needs.
    """

    needs: tuple[Need, ...]
    whole: Need
    labels: frozenset[str]
    never: tuple[tuple[object, ...], ...]
    devices: frozenset[str]
    spares: bool = False
    preferred: NodePreferences = ()


def kind_of(needs: tuple[Need, ...], of_gpus: bool = False) -> BundleKind:
    """The kind of bundles of one pod for each of these needs; `of_gpus`: others of the gang have GPUs."""
    return _kind_of(needs, not of_gpus and not any(need.total_gpu_milli for need in needs))


@lru_cache(maxsize=16_384)
def _kind_of(needs: tuple[Need, ...], spares: bool) -> BundleKind:
    labels = {key for need in needs for key, _ in need.node_selector}
    conditions = (each for need in needs for each in (need.affinity, need.by_pods, *need.affinity_any))
    labels |= {key for terms in conditions for key, _, _ in terms}
    never = tuple(dict.fromkeys(map(never_key, needs)))
    devices = frozenset(name for need in needs for name in need.device_names)
    preferred = tuple(each for need in needs for each in need.affinity_preferred)
    labels |= {key for _, terms in preferred for key, _, _ in terms}
    whole = _sum(needs) if len(needs) > 1 else needs[0]
    return BundleKind(needs, whole, frozenset(labels), never, devices, spares, preferred)


def short_of(kind: BundleKind, node: Node) -> FitFailure | None:
    """First resource that a bundle lacks on a node that suits all of its pods."""
    short = _find_shortage(kind.whole, node) or (FitFailure.PODS if node.pods_free < len(kind.needs) else None)
    if short is None and node.zones and not count_in_zones(kind.needs, node, 1):
        return FitFailure.ZONES
    # Devices that are claimed come after what is told by one comparison: a search for them costs a thousand of these.
    is_drawn = bool(kind.whole.claims) or node.offer is not None
    if short is None and is_drawn and not sets_of(kind.whole, node, 1):
        return FitFailure.CLAIMED
    # Asked last: a node that lacks the amount itself says so, and never that something is kept.
    if short is None and kind.spares:
        cpu, memory, pods = node.open
        if cpu < kind.whole.cpu_milli or memory < kind.whole.memory_bytes or pods < len(kind.needs):
            return FitFailure.KEPT
    return short


def count_bundles(kind: BundleKind, node: Node) -> int:
    """
    Number of bundles that a node takes now, 0 or more, when it suits all of their pods.

    Exact: equal pods use up each kind of room evenly, shares of one size do not disturb each other across devices where
    each pod has one (of several `count_sharing`), and no two legal positions of one MIG profile overlap.
    """
    cpu, memory, pods = node.open if kind.spares else (node.cpu_free, node.memory_free, node.pods_free)
    need, counts = kind.whole, [pods // len(kind.needs)]
    if need.gpus:
        counts.append(node.gpu_free.count(WHOLE_GPU) // need.gpus)
    elif need.gpu_milli and need.gpu_parts > 1:
        counts.append(count_sharing(shares_on(need, node.gpu_free), need.gpu_parts))
    elif need.gpu_milli:
        counts.append(
            sum(1 if need.apart else left // need.gpu_milli for left in node.gpu_free if left >= need.gpu_milli)
        )
    elif need.mig_profile:
        counts.append(free_positions(need, node) // need.gpu_parts)
    if need.cpu_milli:
        counts.append(cpu // need.cpu_milli)
    if need.memory_bytes:
        counts.append(memory // need.memory_bytes)
    if need.devices:
        counts.append(_sets_of_devices(need, node))
    most = max(min(counts), 0)
    if node.zones and most:
        most = count_in_zones(kind.needs, node, most)
    return most if node.offer is None and not need.claims else sets_of(need, node, most)


def shares_on(need: Need, gpu_free: Sequence[int]) -> list[int]:
    """Number of shares that each GPU takes; 1 at most where those of a gang are `apart`."""
    shares = [max(0, left) // need.gpu_milli for left in gpu_free]
    return [min(count, 1) for count in shares] if need.apart else shares


def count_sharing(shares: Sequence[int], parts: int) -> int:
    """
    Number of pods that GPUs which take so many `shares` hold, where each pod takes one of each of `parts` GPUs.

    So m pods fit if and only if the sum of min(share, m) is at least parts * m: no GPU serves a pod twice, and dealing
    the shares out in turns, GPU by GPU, gives no pod two of one. If m pods fit, fewer do.
    """
    most = sum(shares) // parts
    # What does not fit comes down at once to what the sum allows, which is never below the answer.
    while (fitting := sum(min(count, most) for count in shares) // parts) < most:
        most = fitting
    return most


def choose_gpus(need: Need, gpu_free: Sequence[int]) -> tuple[int, ...]:
    """
    GPUs for the shares of one pod: after it, one pod less fits than before, and never two.

    The tightest ones, then the lowest, but for as many of the roomiest as have to be among them. Raises ValueError
    where fewer GPUs have room.
    """
    shares = shares_on(need, gpu_free)
    tightest = [at for _, at in sorted((gpu_free[at], at) for at, count in enumerate(shares) if count)]
    if len(tightest) < need.gpu_parts:
        raise ValueError(f"{len(tightest)} GPUs have a share of {need.gpu_milli} left, and not {need.gpu_parts}")
    most = count_sharing(shares, need.gpu_parts)
    # A GPU with a share for each of the pods serves one less after this one, whether this one is on it or not: each of
    # these that is passed over costs a share more, and there are only so many to spare.
    roomiest = [at for at in tightest if shares[at] >= most]
    spare = sum(min(count, most) for count in shares) - need.gpu_parts * most
    needed = roomiest[: max(0, len(roomiest) - spare)]
    # Among those that may be chosen freely best fit leaves roomy GPUs to larger shares and to whole GPUs.
    others = [at for at in tightest if at not in needed]
    return tuple(sorted([*needed, *others[: need.gpu_parts - len(needed)]]))


def count_spared(kind: BundleKind, node: Node) -> int:
    """
    Number of what other pods need more on the node than the kind: of nodes with equal scores the least is taken.

    Kinds of devices that the bundle does not ask for, then soft taints (PreferNoSchedule) that its pods do not bear;
    both in one number of `SPARED_BITS`.
    """
    if not (node.devices or node.gpus or node.gpu_model or node.taints):
        return 0
    there = {name for name, _ in node.devices if is_device(name)}
    there |= {node.gpu_resource or GPU_RESOURCE} if node.gpus or node.gpu_model else set()
    soft = [taint for taint in node.taints if taint[2] == "PreferNoSchedule"]
    borne = sum(all(is_tolerated(need, node, taint) for need in kind.needs) for taint in soft)
    return (len(there - kind.devices) << TAINT_BITS) + len(soft) - borne


def _sum(needs: tuple[Need, ...]) -> Need:
    """
    Amount that a bundle takes of a node, but for the number of its pods.

    Whole GPUs add up. No two of the pods share GPUs or one of them alone does: the contract refuses what would.
    """
    devices = Counter[str]()
    for need in needs:
        devices.update(dict(need.devices))
    return Need(
        sum(need.cpu_milli for need in needs),
        sum(need.memory_bytes for need in needs),
        sum(need.gpus for need in needs),
        sum(need.gpu_milli for need in needs),
        mig_profile=next((need.mig_profile for need in needs if need.mig_profile), ""),
        devices=tuple(sorted(devices.items())),
        apart=any(need.apart for need in needs),
        claims=as_of_one_pod(need.claims for need in needs),
        isolation=max((need.isolation for need in needs), key=ISOLATIONS.index),
        gpu_parts=max(need.gpu_parts for need in needs),
        data=read_together(need.data for need in needs),
    )
