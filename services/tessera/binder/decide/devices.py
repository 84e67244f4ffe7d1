"""
Device settings of a pod, so that it gets exactly the devices of its placement, by the profile of its node. Pure.

A container's resources and environment cannot change once the pod is made, and need not: the placement is known by
then. Annotations that a plugin reads when the kubelet starts the pod are written with the bind.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from tessera.binder.decide import hami
from tessera.domain.devices.resources import Node
from tessera_schemas.cluster.devices import serves
from tessera_schemas.cluster.labels import DEVICES_ANNOTATION, GPU_MILLI_ANNOTATION, GPU_RESOURCE
from tessera_schemas.job import Resources
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NONE_OF_THEM = "void"


@dataclass(frozen=True, slots=True)
class Given:
    """Extended resources of the container, and its environment."""

    amounts: dict[str, int] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


class NoDevice(Exception):
    """The node does not say which device a slot is, or serves no such devices: nothing is given on a guess."""

    def __init__(self, placement: Placement, why: str) -> None:
        at = f"nodes.{placement.node}.devices"
        numbers = {"rank": placement.rank}
        self.reason = Reason(code=Code.DEVICE_UNKNOWN, field=at, numbers=numbers, detail=why[:1024])
        super().__init__(self.reason.sentence())


def given(asked: Resources, placement: Placement, node: Node | None) -> Given:
    """
    Requests and environment of the container; `node` as the ledger has it, None when it is gone.

    Raises NoDevice.
    """
    if asked.kind is None:
        # Images for GPUs ask the runtime for all of them; a pod that was given none must see none.
        return Given(asked.extended, {VISIBLE: NONE_OF_THEM})
    if node is None:
        raise NoDevice(placement, "the node is gone")
    # A class of the driver's answers for whole GPUs by their number, which the kubelet then takes from the pod's claim.
    if node.device_profile == "dra" and placement.drawn and asked.gpus:
        return Given(asked.extended | {GPU_RESOURCE: asked.gpus})
    if not serves(node.device_profile, asked.kind):
        raise NoDevice(placement, f"under profile {node.device_profile} there is no {asked.kind}")
    gpus = _GIVE[node.device_profile](asked, placement, node)
    return Given(asked.extended | gpus.amounts, gpus.env)


def at_bind(placement: Placement, node: Node | None, now: datetime) -> dict[str, str]:
    """The slots, and what the node's plugin reads. Raises NoDevice."""
    ours = {
        DEVICES_ANNOTATION: ",".join(str(device) for device in dict.fromkeys(placement.devices)),
        GPU_MILLI_ANNOTATION: str(placement.gpu_milli),
    }
    if node is None or node.device_profile != "hami" or not placement.devices:
        return ours
    uuids = _uuids(placement, node)
    theirs = hami.bind_annotations(node.name, uuids, placement.gpu_milli, node.gpu_memory_bytes, now)
    return ours | theirs


def _uuids(placement: Placement, node: Node) -> list[str]:
    """UUIDs of the cards in the placement's slots. Raises NoDevice."""
    unknown = [slot for slot in placement.devices if not 0 <= slot < len(node.gpu_uuids)]
    if unknown:
        raise NoDevice(placement, f"it names {len(node.gpu_uuids)} GPUs, and not those of slots {unknown}")
    return [node.gpu_uuids[slot] for slot in placement.devices]


def _counted(asked: Resources, placement: Placement, node: Node) -> Given:
    """The kubelet picks whole cards; a share is the plugin's own affair, which reads our annotations."""
    return Given({node.gpu_resource or GPU_RESOURCE: asked.gpus} if asked.gpus else {})


def _replica(asked: Resources, placement: Placement, node: Node) -> Given:
    """Request one replica; the kubelet picks it, since all of a node are alike."""
    return Given({node.gpu_resource or GPU_RESOURCE: 1})


def _visible(asked: Resources, placement: Placement, node: Node) -> Given:
    return Given({}, {VISIBLE: ",".join(_uuids(placement, node))})


def _hami(asked: Resources, placement: Placement, node: Node) -> Given:
    if node.gpu_memory_bytes < hami.MIB:
        raise NoDevice(placement, "the memory of its GPUs is not known")
    return Given(hami.amounts(len(_uuids(placement, node)), placement.gpu_milli, node.gpu_memory_bytes))


def _instance(asked: Resources, placement: Placement, node: Node) -> Given:
    """Request MIG instances by the name of their profile; the plugin picks them, since all of one profile are alike."""
    if asked.mig_profile not in dict(node.mig_instances):
        raise NoDevice(placement, f"nobody made instances of {asked.mig_profile} on it")
    return Given()


_GIVE: dict[str, Callable[[Resources, Placement, Node], Given]] = {
    "whole": _counted,
    "shares": _counted,
    "plugin": _counted,
    "visible-devices": _visible,
    "hami": _hami,
    "mig": _instance,
    "time-slicing": _replica,
    "mps": _replica,
}
