"""A node as the API describes it, as the fact that the ledger takes in. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from tessera.binder.decide.discovery import Metadata, memory_of, model_of, offered_kinds, sharing_of
from tessera.binder.decide.node_devices import (
    Gpus,
    being_cut,
    chosen_kind,
    chosen_profile,
    count_replicas,
    exclude_cut_cards,
    gpus_of,
    with_trouble,
)
from tessera.binder.decide.told_data import told_datasets
from tessera.binder.devices.decide.gpus import NO_GPUS, NO_OFFER, PublishedGpus
from tessera.binder.devices.decide.numa_zones import ZoneFacts
from tessera_schemas.cluster.device_layouts import NodeOffer
from tessera_schemas.cluster.device_vendors import GPU_RESOURCES, NVIDIA_SHARED, GpuResource, known_gpu_resources
from tessera_schemas.cluster.devices import NAMES_ITS_CARDS, NAMES_NO_CARDS
from tessera_schemas.cluster.labels import (
    DEVICE_PROFILE_ANNOTATION,
    GPU_RESOURCE,
    MIG_RESOURCE_PREFIX,
    POOL_LABEL,
)
from tessera_schemas.cluster.resource_kinds import is_counted_by_name, is_device
from tessera_schemas.config import Pool
from tessera_schemas.facts import NodeSeen, Others
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.quantities import quantity

NOBODY = Others()
NVIDIA = known_gpu_resources()[GPU_RESOURCE]


def node_seen(
    node: dict[str, Any],
    others: Others = NOBODY,
    pools: Sequence[Pool] = (),
    offer: NodeOffer = NO_OFFER,
    published: PublishedGpus = NO_GPUS,
    known: Collection[GpuResource] = (*GPU_RESOURCES, NVIDIA_SHARED),
    zones: ZoneFacts = (),
) -> NodeSeen:
    """
    The fact; a node that cannot be read counts as not ready, so that nothing is placed on a guess.

    `pools` may say who hands out the GPUs of their nodes, and which resource these are; `known` are the resources that
    are GPUs. Where a driver publishes GPUs (`published`) and no device plugin offers any, the driver does.
    """
    meta, status = node["metadata"], node.get("status", {})
    capacity = status.get("allocatable") or status.get("capacity") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    ready = any((c.get("type"), c.get("status")) == ("Ready", "True") for c in status.get("conditions") or ())
    cordoned = ready and node.get("spec", {}).get("unschedulable", False)
    pool = labels.get(POOL_LABEL, "default")
    profile, contradiction = chosen_profile(_list_profiles(pool, labels, annotations, pools), _stock(labels, known))
    try:
        preferred = next((each.gpu_resource for each in pools if each.name == pool), None)
        found, mixed = chosen_kind(capacity, offered_kinds(capacity, known), preferred)
        kind = found or NVIDIA
        plugin = _list_plugin(capacity, kind)
        if published.count and profile in NAMES_NO_CARDS and not plugin:
            profile = "dra"
        memory_bytes = memory_of(labels, kind)
        read = gpus_of(profile, capacity, labels, annotations, memory_bytes, kind)
        gpus = _gpus_with_driver(profile, read, published, plugin)
        seen = NodeSeen(
            kind="node_seen",
            name=meta["name"],
            ready=ready and not cordoned,
            pool=pool,
            cpu_milli=int(quantity(capacity.get("cpu", 0)) * 1000),
            memory_bytes=int(quantity(capacity.get("memory", 0))),
            pods=int(quantity(capacity.get("pods", 0))),
            gpus=gpus.count,
            gpu_model=model_of(labels, kind) or published.model,
            gpu_memory_bytes=gpus.memory_bytes or memory_bytes or published.memory_bytes,
            device_profile=profile,
            gpu_uuids=gpus.uuids,
            mig_geometry=gpus.mig_geometry,
            mig_instances=gpus.mig_instances,
            devices=_further(capacity, kind),
            labels=labels,
            taints=_taints(node),
            others=count_replicas(gpus, exclude_cut_cards(profile, _counted_by(others, kind))),
            cordoned=cordoned,
            capacity=_more_than_allocatable(status),
            offer=offer,
            gpu_resource="" if kind is NVIDIA else kind.resource,
            gpu_default=found is None or kind.resource in _default_kinds(preferred),
            share_milli=gpus.share_milli,
            zones=zones,
            datasets=told_datasets(labels, annotations),
        )
    except (ValidationError, ValueError, KeyError) as error:
        return NodeSeen(kind="node_seen", name=meta["name"], ready=False, trouble=_unreadable(meta["name"], error))
    if contradiction or mixed:
        return with_trouble(seen, Code.DEVICE_CONFLICT, contradiction or mixed)
    # While GPUs are cut their plugin is away: its silence is no fault of the node.
    if trouble := being_cut(labels) or gpus.trouble:
        return with_trouble(seen, *trouble)
    if profile in NAMES_ITS_CARDS and others.gpus:
        return with_trouble(seen, Code.DEVICE_CONFLICT, f"pods that are not ours have {others.gpus} of {GPU_RESOURCE}")
    return seen


def _taints(node: dict[str, Any]) -> tuple[dict[str, str], ...]:
    found = node.get("spec", {}).get("taints", ())
    return tuple({"key": t["key"], "value": t.get("value", ""), "effect": t["effect"]} for t in found)


def _stock(labels: Metadata, known: Collection[GpuResource]) -> str:
    """The profile of the stock device plugin, by the node's labels."""
    return (sharing_of(labels) if NVIDIA_SHARED in known else "") or "whole"


def _default_kinds(preferred: str | None) -> tuple[str, ...]:
    """Resources whose GPUs jobs get that name neither one nor a model; replicas of NVIDIA's are NVIDIA's."""
    return (preferred,) if preferred not in (None, GPU_RESOURCE) else (GPU_RESOURCE, NVIDIA_SHARED.resource)


def _further(capacity: Mapping[str, Any], kind: GpuResource) -> dict[str, int]:
    """Further devices: all but the node's GPUs."""
    counted = [name for name in capacity if is_counted_by_name(name) and name != kind.resource]
    named = [(name, int(quantity(capacity[name]))) for name in counted]
    # A device that is not there any more is news to who holds it; of a built-in kind most nodes have none.
    return {name: count for name, count in named if count or is_device(name)}


def _counted_by(others: Others, kind: GpuResource) -> Others:
    """Use by other pods, of which GPUs of another vendor are counted by their name at first."""
    if kind is NVIDIA or not (others.gpus or kind.resource in others.devices):
        return others
    devices = {name: count for name, count in others.devices.items() if name != kind.resource}
    devices |= {GPU_RESOURCE: others.gpus} if others.gpus else {}
    return others.model_copy(update={"gpus": others.devices.get(kind.resource, 0), "devices": devices})


def _list_plugin(capacity: Mapping[str, Any], kind: GpuResource) -> list[str]:
    """Offer of a device plugin: GPUs and of their instances."""
    named = [name for name in sorted(capacity) if name == kind.resource or name.startswith(MIG_RESOURCE_PREFIX)]
    return [f"{capacity[name]} of {name}" for name in named if quantity(capacity[name])]


def _gpus_with_driver(profile: str, gpus: Gpus, published: PublishedGpus, plugin: Sequence[str]) -> Gpus:
    """The GPUs of the node, where a driver may publish some; two who hand out the same ones are a trouble."""
    if profile != "dra" and not published.count:
        return gpus
    if published.count and (plugin or profile != "dra"):
        who = f"a device plugin offers {', '.join(plugin)}" if plugin else f"profile {profile} hands out GPUs"
        return replace(gpus, trouble=(Code.DEVICE_CONFLICT, f"a driver publishes {published.count} GPUs and {who}"))
    return Gpus(published.count, memory_bytes=published.memory_bytes)


def _more_than_allocatable(status: Mapping[str, Any]) -> dict[str, int]:
    """Capacity of each device of which fewer can be allocated, as long as a plugin is away or calls some unhealthy."""
    allocatable, found = status.get("allocatable") or {}, dict[str, int]()
    for name, amount in (status.get("capacity") or {}).items() if allocatable else ():
        if name == GPU_RESOURCE or is_device(name):
            count = int(quantity(amount))
            found |= {name: count} if count > quantity(allocatable.get(name, 0)) else {}
    return found


def _unreadable(name: str, error: Exception) -> Reason:
    """The first thing that the node says and nobody can read, by the name that it has here."""
    field, why = f"nodes.{name}", str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        field, why = ".".join((field, *map(str, first["loc"]))), f"{first['msg']}, not {first['input']!r:.100}"
    return Reason(code=Code.INVALID_FIELD, field=field[:300], detail="".join(filter(str.isprintable, why))[:300])


def _list_profiles(pool: str, labels: Metadata, annotations: Metadata, pools: Sequence[Pool]) -> list[tuple[str, str]]:
    """Sources of the device profile and their values: the configuration, then the node."""
    configured = next((each.device_profile for each in pools if each.name == pool), None)
    return [
        (f"pools.{pool}.device_profile", configured or ""),
        (f"the node's annotation {DEVICE_PROFILE_ANNOTATION}", annotations.get(DEVICE_PROFILE_ANNOTATION, "")),
        (f"the node's label {DEVICE_PROFILE_ANNOTATION}", labels.get(DEVICE_PROFILE_ANNOTATION, "")),
    ]


def node_gone(name: str) -> NodeSeen:
    """Fact that the cluster has no such node any more."""
    return NodeSeen(kind="node_seen", name=name, gone=True, ready=False)
