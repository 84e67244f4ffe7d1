"""
Whether one pod fits one node: written once, asked by everybody.

The tests run in a fixed order, and the first that fails is the verdict; numbers about all nodes come from counting
verdicts. Whole GPUs need devices of which nothing is taken; a share needs one device with that much left.
"""

from enum import StrEnum

from tessera.domain.resources import WHOLE_GPU, Need, Node

KEEPS_OUT = ("NoSchedule", "NoExecute")


class Miss(StrEnum):
    """The test that a node failed. The values name the numbers in a reason."""

    NOT_READY = "nodes_not_ready"
    GPU_MODEL = "nodes_of_other_gpu_model"
    SELECTOR = "nodes_not_selected"
    TAINT = "nodes_tainted"
    DEVICE_PROFILE = "nodes_of_other_device_profile"
    GPU = "nodes_short_of_gpu"
    CPU = "nodes_short_of_cpu"
    MEMORY = "nodes_short_of_memory"
    PODS = "nodes_full_of_pods"


def fits(need: Need, node: Node) -> Miss | None:
    """None when the pod fits now, else the first test that fails."""
    return never_fits(need, node) or lacks_room(need, node)


def never_fits(need: Need, node: Node) -> Miss | None:
    """What no departure of others would change."""
    if not node.ready:
        return Miss.NOT_READY
    if need.gpu_models and node.gpu_model not in need.gpu_models:
        return Miss.GPU_MODEL
    if need.node_selector and not set(need.node_selector) <= set(node.labels):
        return Miss.SELECTOR
    if node.taints and any(
        effect in KEEPS_OUT and not _tolerated(need, key, value, effect) for key, value, effect in node.taints
    ):
        return Miss.TAINT
    if (need.gpus and node.device_profile == "shares") or (need.gpu_milli and node.device_profile == "whole"):
        return Miss.DEVICE_PROFILE
    return None


def lacks_room(need: Need, node: Node) -> Miss | None:
    """What is missing right now."""
    if need.gpus and (node.gpus < need.gpus or node.gpu_free.count(WHOLE_GPU) < need.gpus):
        return Miss.GPU
    if need.gpu_milli and (not node.gpu_free or max(node.gpu_free) < need.gpu_milli):
        return Miss.GPU
    if node.cpu_free < need.cpu_milli:
        return Miss.CPU
    if node.memory_free < need.memory_bytes:
        return Miss.MEMORY
    if node.pods_free < 1:
        return Miss.PODS
    return None


def _tolerated(need: Need, key: str, value: str, effect: str) -> bool:
    return any(k == key and v in ("", value) and e in ("", effect) for k, v, e in need.tolerations)


def devices_for(need: Need, node: Node) -> tuple[tuple[int, ...], int]:
    """
    The device slots the pod takes on a node that it fits, and the thousandths of each.

    Whole GPUs: the lowest free slots. A share: the device with the least left that still holds it, then the lowest.
    """
    if need.gpus:
        free = [slot for slot, left in enumerate(node.gpu_free) if left == WHOLE_GPU]
        return tuple(free[: need.gpus]), WHOLE_GPU
    if need.gpu_milli:
        _, slot = min((left, slot) for slot, left in enumerate(node.gpu_free) if left >= need.gpu_milli)
        return (slot,), need.gpu_milli
    return (), 0
