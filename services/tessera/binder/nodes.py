"""A node as the API describes it, as the fact that the ledger takes in. Pure."""

import re
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from tessera_schemas.facts import NodeSeen
from tessera_schemas.labels import DEVICE_PROFILE_ANNOTATION, GPU_MODEL_LABEL, GPU_RESOURCE, POOL_LABEL

SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("0.001"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
QUANTITY = re.compile(
    r"(?P<digits>[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))"
    r"(?:(?P<exponent>[eE][+-]?[0-9]{1,2})|(?P<suffix>[numkMGTPE]|[KMGTPE]i))?"
)


def quantity(text: str) -> Decimal:
    """A Kubernetes quantity as an exact number; ValueError when it is none."""
    found = QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a quantity")
    return Decimal(found["digits"] + (found["exponent"] or "")) * SUFFIXES[found["suffix"] or ""]


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
            cpu_milli=int(quantity(str(room.get("cpu", 0))) * 1000),
            memory_bytes=int(quantity(str(room.get("memory", 0)))),
            pods=int(quantity(str(room.get("pods", 0)))),
            gpus=int(quantity(str(room.get(GPU_RESOURCE, 0)))),
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
