"""
Meaning of a node's slots, constant for as long as a run holds them.

A placement names slots. Under another device profile, with other cards or other instances, the same numbers would be
other devices: a node that changes so takes nothing new and keeps its old devices in the state until its runs have left.
Pure.
"""

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Node
from tessera_schemas.cluster.devices import NAMES_ITS_CARDS
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.facts import NodeSeen
from tessera_schemas.reasons import Code, Reason


def while_held(seen: NodeSeen, before: Node | None) -> NodeSeen:
    """The node to take in: as seen, or with the devices from `before` while runs or earmarks hold some of them."""
    if before is not None and before.is_cut and not seen.gone:
        # Whatever the device plugin offers meanwhile is half of the old instances, or half of the new ones.
        seen = seen.model_copy(update={"ready": False, "trouble": before.trouble})
    if before is None or not before.is_held:
        return seen
    meaning = {
        "device_profile": before.device_profile,
        "gpu_uuids": before.gpu_uuids,
        "mig_geometry": before.mig_geometry,
        "mig_instances": dict(before.mig_instances),
        "gpu_resource": before.gpu_resource,
        "share_milli": before.share_milli,
    }
    if seen.gone:  # it says nothing more, and may be back
        return seen.model_copy(update=meaning)
    if not _changed(seen, before):
        return seen
    profiles = before.device_profile, seen.device_profile
    resources = before.gpu_resource or GPU_RESOURCE, seen.gpu_resource or GPU_RESOURCE
    was, now = resources if _other_gpus(seen, before) else profiles
    detail = f"{was} before, {now} now" if was != now else f"of {was}"
    trouble = Reason(code=Code.DEVICES_CHANGED, field=f"nodes.{seen.name}", detail=detail)
    taking_nothing = {"gpus": before.gpus, "ready": False, "trouble": seen.trouble or trouble}
    return seen.model_copy(update=meaning | taking_nothing)


def _changed(seen: NodeSeen, before: Node) -> bool:
    """Interchangeable slots: a changed count is not a change of device identity."""
    if (seen.device_profile, seen.share_milli) != (before.device_profile, before.share_milli):
        return True
    if _other_gpus(seen, before):
        return True
    if seen.device_profile == "mig":
        cut = seen.mig_geometry, tuple(sorted(seen.mig_instances.items()))
        return cut != (before.mig_geometry, before.mig_instances)
    return seen.device_profile in NAMES_ITS_CARDS and seen.gpu_uuids != before.gpu_uuids


def _other_gpus(seen: NodeSeen, before: Node) -> bool:
    """Whether GPUs of one resource took the place of another's, or of devices of that name that runs may hold."""
    if not seen.gpus or seen.gpu_resource == before.gpu_resource:
        return False
    return before.gpus > 0 or seen.gpu_resource in dict(before.devices)


SHAPE = (
    "pool",
    "ready",
    "cpu_milli",
    "memory_bytes",
    "pods",
    "gpus",
    "gpu_model",
    "device_profile",
    "labels",
    "taints",
    "gone",
    "gpu_memory_bytes",
    "mig_geometry",
    "devices",
    "others",
    "gpu_uuids",
    "mig_instances",
    "trouble",
    "cordoned",
    "capacity",
    "tainted",
    "drawn_by_others",
    "missing",
    "gpu_resource",
    "gpu_default",
    "share_milli",
    "zones",
    "told_data",
)


def is_as_seen(node: Node | None, seen: NodeSeen) -> bool:
    """Whether the ledger's node is the one that was seen, whatever runs hold on it. No node equals a gone one."""
    if node is None:
        return seen.gone
    fresh = empty_node(seen)
    layout = "" if node.offer is None else node.offer.digest
    return layout == seen.offer.layout and all(getattr(node, name) == getattr(fresh, name) for name in SHAPE)
