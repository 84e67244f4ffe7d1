"""A node as the API describes it, as the fact that the ledger takes in. Pure."""

import re
from typing import Any

from pydantic import ValidationError

from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import is_device
from tessera_schemas.labels import (
    DEVICE_PROFILE_ANNOTATION,
    GPU_MEMORY_LABEL,
    GPU_MODEL_LABEL,
    GPU_PRODUCT_LABEL,
    GPU_RESOURCE,
    MIG_GEOMETRY_LABEL,
    POOL_LABEL,
)
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
            gpu_model=labels.get(GPU_MODEL_LABEL) or labels.get(GPU_PRODUCT_LABEL, ""),
            gpu_memory_bytes=_gpu_memory_bytes(labels),
            device_profile=annotations.get(DEVICE_PROFILE_ANNOTATION)
            or labels.get(DEVICE_PROFILE_ANNOTATION)
            or "whole",
            mig_geometry=labels.get(MIG_GEOMETRY_LABEL, ""),
            devices={name: int(quantity(amount)) for name, amount in room.items() if is_device(name)},
            labels=labels,
            taints=tuple(
                {"key": t["key"], "value": t.get("value", ""), "effect": t["effect"]}
                for t in node.get("spec", {}).get("taints", ())
            ),
        )
    except (ValidationError, ValueError, KeyError):
        return NodeSeen(kind="node_seen", name=meta["name"], ready=False)


def _gpu_memory_bytes(labels: dict[str, str]) -> int:
    """0, not known, when the label is not there or no number: then jobs that ask for memory go elsewhere."""
    mebibytes = labels.get(GPU_MEMORY_LABEL, "")
    return int(mebibytes) * 2**20 if re.fullmatch("[0-9]{1,9}", mebibytes) else 0


def node_gone(name: str) -> NodeSeen:
    return NodeSeen(kind="node_seen", name=name, gone=True, ready=False)
