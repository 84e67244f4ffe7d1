"""A node as the API describes it, as the fact that the ledger takes in. Pure."""

from typing import Any

from pydantic import ValidationError

from tessera_schemas.facts import NodeSeen
from tessera_schemas.labels import DEVICE_PROFILE_ANNOTATION, GPU_MODEL_LABEL, GPU_RESOURCE, POOL_LABEL
from tessera_schemas.quantities import quantity


def node_seen(node: dict[str, Any]) -> NodeSeen:
    """The fact; a node that cannot be read counts as not ready, so that nothing is placed on a guess."""
    meta, status = node["metadata"], node.get("status", {})
    room = status.get("allocatable") or status.get("capacity") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    try:
        return NodeSeen(
            kind="node_seen",
            name=meta["name"],
            ready=ready and not node.get("spec", {}).get("unschedulable", False),
            pool=labels.get(POOL_LABEL, "default"),
            cpu_milli=int(quantity(room.get("cpu", 0)) * 1000),
            memory_bytes=int(quantity(room.get("memory", 0))),
            pods=int(quantity(room.get("pods", 0))),
            gpus=int(quantity(room.get(GPU_RESOURCE, 0))),
            gpu_model=labels.get(GPU_MODEL_LABEL, ""),
            device_profile=annotations.get(DEVICE_PROFILE_ANNOTATION)
            or labels.get(DEVICE_PROFILE_ANNOTATION)
            or "whole",
            labels=labels,
            taints=tuple(
                {"key": t["key"], "value": t.get("value", ""), "effect": t["effect"]}
                for t in node.get("spec", {}).get("taints", ())
            ),
        )
    except (ValidationError, ValueError, KeyError):
        return NodeSeen(kind="node_seen", name=meta["name"], ready=False)


def node_gone(name: str) -> NodeSeen:
    return NodeSeen(kind="node_seen", name=name, gone=True, ready=False)
