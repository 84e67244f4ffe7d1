"""
Meaning of a node's slots, constant for as long as a run holds them.

A placement names slots. Under another device profile, with other cards or other instances, the same numbers would be
other devices: a node that changes so takes nothing new and keeps its old devices in the state until its runs have left.
Pure.
"""

from tessera.domain.devices.resources import Node
from tessera_schemas.cluster.devices import NAMES_ITS_CARDS
from tessera_schemas.facts import NodeSeen
from tessera_schemas.reasons import Code, Reason


def while_held(seen: NodeSeen, before: Node | None) -> NodeSeen:
    """The node to take in: as seen, or with the devices from `before` while runs or earmarks hold some of them."""
    if before is None or not before.is_held:
        return seen
    meaning = {
        "device_profile": before.device_profile,
        "gpu_uuids": before.gpu_uuids,
        "mig_geometry": before.mig_geometry,
        "mig_instances": dict(before.mig_instances),
    }
    if seen.gone:  # it says nothing more, and may be back
        return seen.model_copy(update=meaning)
    if not _changed(seen, before):
        return seen
    other = seen.device_profile != before.device_profile
    detail = f"{before.device_profile} before, {seen.device_profile} now" if other else f"of {before.device_profile}"
    trouble = Reason(code=Code.DEVICES_CHANGED, field=f"nodes.{seen.name}", detail=detail)
    taking_nothing = {"gpus": before.gpus, "ready": False, "trouble": seen.trouble or trouble}
    return seen.model_copy(update=meaning | taking_nothing)


def _changed(seen: NodeSeen, before: Node) -> bool:
    """Interchangeable slots: a changed count is not a change of device identity."""
    if seen.device_profile != before.device_profile:
        return True
    if seen.device_profile == "mig":
        cut = seen.mig_geometry, tuple(sorted(seen.mig_instances.items()))
        return cut != (before.mig_geometry, before.mig_instances)
    return seen.device_profile in NAMES_ITS_CARDS and seen.gpu_uuids != before.gpu_uuids
