"""Nodes as KWOK's objects: what a kubelet, a device plugin and GPU feature discovery would have said of them."""

from typing import Any

Json = dict[str, Any]
GPU_RESOURCE = "nvidia.com/gpu"


def kwok_node(
    name: str,
    *,
    gpus: int = 8,
    model: str = "H100",
    cpu: str = "96",
    memory: str = "768Gi",
    pods: int = 110,
    labels: dict[str, str] | None = None,
    taints: list[Json] | None = None,
    more: dict[str, str] | None = None,
) -> Json:
    """`more` are further extended resources, by name. A node without GPUs has no labels about them."""
    sizes = {"cpu": cpu, "memory": memory, "pods": str(pods), **({GPU_RESOURCE: str(gpus)} if gpus else {})}
    sizes |= more or {}
    discovered = {"nvidia.com/gpu.product": model, "nvidia.com/gpu.count": str(gpus)} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"type": "kwok", "kubernetes.io/hostname": name, **discovered, **(labels or {})},
        },
        "spec": {"taints": taints or []},
        "status": {"capacity": sizes, "allocatable": sizes},
    }
