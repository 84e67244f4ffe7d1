"""
GPUs of a node, read where its device profile says them. Pure.

A missing or contradictory value is a trouble with a code, and the node takes nothing new: a slot that might be another
card than the ledger says would be given twice.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tessera.binder.decide.discovery import (
    Metadata,
    cards,
    not_whole,
    replica_milli,
    replicas_of,
    shared_instances,
    sharing_of,
)
from tessera.binder.decide.hami import NODE_ANNOTATION, read_cards
from tessera.domain.devices.mig.instances import geometry_of, layout
from tessera.domain.devices.resources import WHOLE_GPU
from tessera_schemas.cluster.device_vendors import GpuResource
from tessera_schemas.cluster.devices import OF_REPLICAS
from tessera_schemas.cluster.labels import (
    GPU_RESOURCE,
    GPU_SHARING_LABEL,
    GPU_UUIDS_ANNOTATION,
    MIG_CONFIG_LABEL,
    MIG_CONFIG_STATE_LABEL,
    MIG_GEOMETRY_LABEL,
    MIG_RESOURCE_PREFIX,
    MPS_CAPABLE_LABEL,
)
from tessera_schemas.cluster.mig import PROFILES
from tessera_schemas.facts import NodeSeen, Others
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.quantities import quantity


@dataclass(frozen=True, slots=True)
class Gpus:
    """
    `memory_bytes` is of each, 0 where only a label says it; `share_milli` is the size of every share, 0 where they are
    of any; `trouble` is a code and what exactly is wrong.
    """

    count: int = 0
    uuids: tuple[str, ...] = ()
    memory_bytes: int = 0
    mig_geometry: str = ""
    mig_instances: dict[str, int] = field(default_factory=dict)
    share_milli: int = 0
    trouble: tuple[Code, str] | None = None


def chosen_profile(sources: Iterable[tuple[str, str]], otherwise: str) -> tuple[str, str]:
    """
    (profile, contradiction or "") from (who says it, profile) in order of rank; "" says nothing.

    Where nobody says anything it is `otherwise`, of the stock device plugin.
    """
    named = [(who, profile) for who, profile in sources if profile]
    if not named:
        return otherwise, ""
    differ = len({profile for _, profile in named}) > 1
    return named[0][1], ", ".join(f"{who} says {profile}" for who, profile in named) if differ else ""


def gpus_of(
    profile: str, capacity: Metadata, labels: Metadata, annotations: Metadata, gpu_memory_bytes: int, kind: GpuResource
) -> Gpus:
    """The GPUs of a node of this profile, which offers those of a `kind`. Raises ValueError for a bad quantity."""
    offered = int(quantity(capacity.get(kind.resource, 0)))
    if profile == "whole":
        wrong = not_whole(offered, labels, kind)
        return Gpus(trouble=(Code.NOT_WHOLE_GPUS, wrong)) if wrong else Gpus(offered)
    if profile in OF_REPLICAS:
        return _replicas(profile, offered, labels, kind)
    if profile not in _READ:
        return Gpus(cards(offered, labels, kind))
    if offered and kind.resource != GPU_RESOURCE:
        conflict = f"it offers {offered} of {kind.resource}, and profile {profile} hands out NVIDIA's GPUs"
        return Gpus(trouble=(Code.DEVICE_CONFLICT, conflict))
    return _READ[profile](capacity, labels, annotations, gpu_memory_bytes)


def chosen_kind(
    capacity: Metadata, kinds: Sequence[GpuResource], preferred: str | None
) -> tuple[GpuResource | None, str]:
    """
    (kind of a node's GPUs, contradiction or ""): the pool's (`preferred`), else NVIDIA's, else the only other one.

    A kind of which it offers none now counts where there is no other: its plugin may be away.
    """
    default = preferred or GPU_RESOURCE
    there = [kind for kind in kinds if quantity(capacity[kind.resource])]
    chosen = next((kind for kind in there or kinds if kind.resource == default), None)
    chosen = chosen or next(iter(there or kinds), None)
    if len(there) < 2 or default in {kind.resource for kind in there}:
        return chosen, ""
    offers = " and ".join(f"{capacity[kind.resource]} of {kind.resource}" for kind in there)
    return chosen, f"it offers {offers}; say in pools[].gpu_resource which of them are its GPUs"


def _replicas(profile: str, offered: int, labels: Metadata, kind: GpuResource) -> Gpus:
    """GPUs that the stock plugin offers several times each; all of a node's replicas are alike."""
    said, times = sharing_of(labels), replicas_of(labels, kind)
    trouble = None
    if said and said != profile:
        trouble = Code.DEVICE_CONFLICT, f"profile {profile}, and the node's labels say {said}"
    elif profile == "mps" and not said:
        trouble = Code.DEVICE_UNKNOWN, f"{GPU_SHARING_LABEL} and {MPS_CAPABLE_LABEL} do not say that MPS runs"
    elif not replica_milli(times):
        why = "no label says how often each GPU is offered" if times < 2 else f"each GPU is offered {times} times"
        trouble = Code.DEVICE_UNKNOWN, f"{why}: no equal thousandths of a GPU are so many shares"
    return Gpus(offered // times, share_milli=replica_milli(times), trouble=trouble)


def _visible(capacity: Metadata, labels: Metadata, annotations: Metadata, gpu_memory_bytes: int) -> Gpus:
    """No plugin may hand out what we hand out by UUID."""
    listed = [uuid.strip() for uuid in annotations.get(GPU_UUIDS_ANNOTATION, "").split(",")]
    uuids = tuple(uuid for uuid in listed if uuid)
    trouble = None
    if not uuids:
        trouble = Code.DEVICE_UNKNOWN, f"{GPU_UUIDS_ANNOTATION} names no GPU"
    elif len(set(uuids)) != len(uuids):
        trouble = Code.DEVICE_CONFLICT, f"{GPU_UUIDS_ANNOTATION} names a GPU twice"
    elif offered := int(quantity(capacity.get(GPU_RESOURCE, 0))):
        trouble = Code.DEVICE_CONFLICT, f"a device plugin offers {offered} of {GPU_RESOURCE} here as well"
    return Gpus(len(uuids), uuids, trouble=trouble)


def _hami(capacity: Metadata, labels: Metadata, annotations: Metadata, gpu_memory_bytes: int) -> Gpus:
    cards = read_cards(annotations.get(NODE_ANNOTATION, ""))
    if not cards:
        return Gpus(trouble=(Code.DEVICE_UNKNOWN, f"{NODE_ANNOTATION} names no GPU, or cannot be read"))
    uuids = tuple(card.uuid for card in cards)
    sick = [card.uuid for card in cards if not card.healthy]
    other = sorted({card.mode for card in cards} - {"hami-core"})
    trouble = None
    if len(set(uuids)) != len(uuids):
        trouble = Code.DEVICE_CONFLICT, f"{NODE_ANNOTATION} names a GPU twice"
    elif other:
        trouble = Code.DEVICE_CONFLICT, f"HAMi runs here in mode {', '.join(other)}"
    elif sick:
        trouble = Code.DEVICE_UNHEALTHY, ", ".join(sick)
    return Gpus(len(cards), uuids, min(card.memory_mib for card in cards) * 2**20, trouble=trouble)


def _mig(capacity: Metadata, labels: Metadata, annotations: Metadata, gpu_memory_bytes: int) -> Gpus:
    offered = {name.removeprefix(MIG_RESOURCE_PREFIX): amount for name, amount in capacity.items()}
    made = {name: int(quantity(offered[name])) for name in sorted(offered.keys() & PROFILES.keys())}
    instances = {name: count for name, count in made.items() if count}
    if not instances:
        return Gpus(trouble=(Code.DEVICE_UNKNOWN, f"it offers no {MIG_RESOURCE_PREFIX}* of a known profile"))
    if shared := shared_instances(labels, instances):
        return Gpus(trouble=(Code.NOT_WHOLE_GPUS, shared))
    geometry = geometry_of(frozenset(instances), labels.get(MIG_GEOMETRY_LABEL, ""), gpu_memory_bytes)
    if geometry is None:
        profiles = ", ".join(instances)
        return Gpus(trouble=(Code.DEVICE_CONFLICT, f"{MIG_GEOMETRY_LABEL} does not tell which GPU has {profiles}"))
    return Gpus(len(layout(geometry, tuple(instances.items()))), mig_geometry=geometry, mig_instances=instances)


_READ: dict[str, Callable[[Metadata, Metadata, Metadata, int], Gpus]] = {
    "visible-devices": _visible,
    "hami": _hami,
    "mig": _mig,
}


def being_cut(labels: Metadata) -> tuple[Code, str] | None:
    """The trouble of a node whose GPUs NVIDIA's mig-manager has begun to cut anew, and not ended."""
    state = labels.get(MIG_CONFIG_STATE_LABEL, "")
    # A change that failed is over: what the device plugin offers then is what there is.
    if state not in ("pending", "rebooting"):
        return None
    return Code.GPUS_BEING_CUT, f"{MIG_CONFIG_LABEL} {labels.get(MIG_CONFIG_LABEL, '')!r} is {state}"


def exclude_cut_cards(profile: str, others: Others) -> Others:
    """
    Use by other pods, as the profile counts: whole cards beside those that are cut are none of ours, and what drivers
    publish is counted by claims.
    """
    return others.model_copy(update={"gpus": 0}) if profile in ("mig", "dra") else others


def count_replicas(gpus: Gpus, others: Others) -> Others:
    """Use by other pods, whose replicas count as the fewest GPUs that they may be of, wholly taken then."""
    shares = WHOLE_GPU // gpus.share_milli if gpus.share_milli else 1
    return others.model_copy(update={"gpus": -(-others.gpus // shares)}) if shares > 1 else others


def with_trouble(seen: NodeSeen, code: Code, detail: str) -> NodeSeen:
    """The node as it is, but taking nothing new; the trouble that is known already stays."""
    if seen.trouble is not None:
        return seen
    trouble = Reason(code=code, field=f"nodes.{seen.name}.devices", detail=detail[:1024])
    return seen.model_copy(update={"ready": False, "trouble": trouble})
