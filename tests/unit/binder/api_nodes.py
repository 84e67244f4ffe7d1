"""Nodes as the API server describes them."""

from typing import Any


def api_node(**more: Any) -> dict[str, Any]:
    room = {"cpu": "63920m", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8", **more.pop("room", {})}
    return {
        "metadata": {"name": "node-a", "labels": {}, "annotations": {}, **more.pop("metadata", {})},
        "spec": more.pop("spec", {}),
        "status": {
            "allocatable": room,
            "conditions": more.pop("conditions", [{"type": "Ready", "status": "True"}]),
            **more.pop("status", {}),
        },
    }
