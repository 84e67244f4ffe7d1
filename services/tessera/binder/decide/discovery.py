"""
Findings of GPU feature discovery about a node's GPUs, and whether the devices that the plugin counts are GPUs at all.

The stock plugin can offer a GPU several times (time-slicing, MPS) or an instance of a cut GPU as if it were a whole
one, all under the same name and with nothing that keeps the programs apart. Pure.

Source: NVIDIA, GPU feature discovery, generated labels: `nvidia.com/gpu.replicas`, the suffix `-SHARED` of the product,
`nvidia.com/mig.strategy`, `nvidia.com/gpu.count`.
"""

import re
from collections.abc import Mapping
from typing import Any

from tessera_schemas.cluster.labels import (
    GPU_COUNT_LABEL,
    GPU_MODEL_LABEL,
    GPU_PRODUCT_LABEL,
    GPU_REPLICAS_LABEL,
    GPU_RESOURCE,
    MIG_STRATEGY_LABEL,
)

SHARED_SUFFIX = "-SHARED"
Metadata = Mapping[str, Any]


def model_of(labels: Metadata) -> str:
    """The operator's name of the GPUs, else the product: the same whether each is offered once or often."""
    product: str = labels.get(GPU_PRODUCT_LABEL, "")
    return labels.get(GPU_MODEL_LABEL) or product.removesuffix(SHARED_SUFFIX)


def not_whole(offered: int, labels: Metadata) -> str:
    """Why `offered` of the GPU resource are not that many whole GPUs; "" when nothing says so."""
    product, replicas, there = labels.get(GPU_PRODUCT_LABEL, ""), _replicas(labels), _number(labels, GPU_COUNT_LABEL)
    if not offered:
        return ""
    if replicas > 1:
        return f"the device plugin offers each GPU {replicas} times"
    if product.endswith(SHARED_SUFFIX):
        return "the device plugin offers each GPU several times"
    if labels.get(MIG_STRATEGY_LABEL) == "single" and "-MIG-" in product:
        return f"what it offers as {GPU_RESOURCE} are instances of {product}"
    if there is not None and offered > there:
        return f"it offers {offered} of {GPU_RESOURCE} and has {there} GPUs"
    return ""


def cards(offered: int, labels: Metadata) -> int:
    """Number of GPUs, where a profile owns them all and may offer each several times."""
    return offered // max(1, _replicas(labels))


def _replicas(labels: Metadata) -> int:
    return _number(labels, GPU_REPLICAS_LABEL) or 1


def _number(labels: Metadata, label: str) -> int | None:
    value = labels.get(label, "")
    return int(value) if re.fullmatch("[0-9]{1,9}", value) else None
