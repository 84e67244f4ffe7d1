"""
Findings of the vendors' labellers about a node's GPUs, and whether the devices that a plugin counts are GPUs at all.

NVIDIA's stock plugin can offer a GPU several times (time-slicing, MPS) or an instance of a cut GPU as if it were a
whole one, all under the same name and with nothing that keeps the programs apart. Pure.

Source: NVIDIA, GPU feature discovery, generated labels: `nvidia.com/gpu.replicas`, the suffix `-SHARED` of the product,
`nvidia.com/mig.strategy`, `nvidia.com/gpu.count`, `nvidia.com/gpu.sharing-strategy`, `nvidia.com/mps.capable`, and
`.replicas` of each resource of instances. Google, GKE, labels of nodes:
`cloud.google.com/gke-max-shared-clients-per-gpu`, `cloud.google.com/gke-gpu-partition-size`. AMD, node labeller:
`amd.com/compute-memory-partition`. Intel, GPU plugin: `gpu.intel.com/device.count`, below what is offered where
containers share a card.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tessera.domain.devices.resources import WHOLE_GPU
from tessera.domain.state import State
from tessera_schemas.cluster.device_vendors import (
    AMD_PARTITION_LABEL,
    AMD_RESOURCE,
    AMD_UNCUT,
    GPU_RESOURCES,
    NVIDIA_SHARED,
    GpuResource,
    known_gpu_resources,
)
from tessera_schemas.cluster.devices import OF_REPLICAS
from tessera_schemas.cluster.labels import (
    GKE_CLIENTS_LABEL,
    GKE_PARTITION_LABEL,
    GPU_MODEL_LABEL,
    GPU_PRODUCT_LABEL,
    GPU_REPLICAS_LABEL,
    GPU_RESOURCE,
    GPU_SHARING_LABEL,
    MIG_RESOURCE_PREFIX,
    MIG_STRATEGY_LABEL,
    MPS_CAPABLE_LABEL,
)
from tessera_schemas.shard.ledger_form import GPU_RESOURCES_FROM

SHARED_SUFFIX, REPLICAS_SUFFIX = "-SHARED", ".replicas"
Metadata = Mapping[str, Any]


def known_kinds(state: State) -> tuple[GpuResource, ...]:
    """Resources that are GPUs, replicas too: NVIDIA's GPUs alone for a ledger whose committer knows no others."""
    if state.format < GPU_RESOURCES_FROM:
        return GPU_RESOURCES[:1]
    body = state.config.body
    return (*known_gpu_resources(() if body is None else body.gpu_resources).values(), NVIDIA_SHARED)


def offered_kinds(amounts: Metadata, known: Iterable[GpuResource]) -> list[GpuResource]:
    """Kinds of GPUs of which a node's capacity counts any, in the order of their names."""
    return sorted((kind for kind in known if kind.resource in amounts), key=lambda kind: kind.resource)


def model_of(labels: Metadata, kind: GpuResource) -> str:
    """The operator's name of the GPUs, else the product: the same whether each is offered once or often."""
    product = str(labels.get(kind.model_label, "")) if kind.model_label else ""
    return str(labels.get(GPU_MODEL_LABEL) or product.removesuffix(SHARED_SUFFIX))


def memory_of(labels: Metadata, kind: GpuResource) -> int:
    """
    Bytes of each GPU: the label's MiB, or its GiB where it ends in G or Gi; 0, not known, for anything else.

    Jobs that ask for memory of GPUs go elsewhere then.
    """
    found = re.fullmatch("([0-9]{1,9})(Mi?|Gi?)?", str(labels.get(kind.memory_label, "")) if kind.memory_label else "")
    return 0 if found is None else int(found[1]) * 2 ** (30 if (found[2] or "").startswith("G") else 20)


def not_whole(offered: int, labels: Metadata, kind: GpuResource) -> str:
    """Why `offered` of the GPU resource are not that many whole GPUs; "" when nothing says so."""
    replicas, there = replicas_of(labels, kind), _number(labels, kind.count_label)
    if not offered:
        return ""
    if replicas > 1:
        return f"the device plugin offers each GPU {replicas} times"
    if kind.resource == NVIDIA_SHARED.resource:
        return "the device plugin offers each GPU several times"
    if kind.resource == GPU_RESOURCE:
        product = str(labels.get(GPU_PRODUCT_LABEL, ""))
        if product.endswith(SHARED_SUFFIX):
            return "the device plugin offers each GPU several times"
        if labels.get(MIG_STRATEGY_LABEL) == "single" and "-MIG-" in product:
            return f"what it offers as {GPU_RESOURCE} are instances of {product}"
        if profile := str(labels.get(GKE_PARTITION_LABEL, "")):
            return f"what it offers as {GPU_RESOURCE} are instances of {profile}"
    cut = str(labels.get(AMD_PARTITION_LABEL, "")) if kind.resource == AMD_RESOURCE else ""
    if cut and not cut.startswith(AMD_UNCUT):
        return f"what it offers as {kind.resource} are partitions ({cut})"
    if there is not None and offered > there:
        return f"it offers {offered} of {kind.resource} and has {there} GPUs"
    return ""


def cards(offered: int, labels: Metadata, kind: GpuResource) -> int:
    """Number of GPUs, where a profile owns them all and may offer each several times."""
    return offered // replicas_of(labels, kind)


def shared_instances(labels: Metadata, profiles: Iterable[str]) -> str:
    """The first kind of MIG instances that the device plugin offers several times each, in words; "" for none."""
    found = ((each, _number(labels, f"{MIG_RESOURCE_PREFIX}{each}{REPLICAS_SUFFIX}") or 1) for each in profiles)
    said = (f"each instance of {each} {times} times" for each, times in found if times > 1)
    return next((f"the device plugin offers {each}" for each in said), "")


def sharing_of(labels: Metadata) -> str:
    """
    The profile of replicas by which NVIDIA's plugin offers GPUs of this node, as its labels say; "" for none.

    Before there was MPS no label named the strategy. Replicas of instances, and MPS where it does not run, are none.
    """
    if (_number(labels, GPU_REPLICAS_LABEL) or 1) < 2 or "-MIG-" in str(labels.get(GPU_PRODUCT_LABEL, "")):
        return ""
    strategy = str(labels.get(GPU_SHARING_LABEL, "time-slicing"))
    runs = strategy != "mps" or labels.get(MPS_CAPABLE_LABEL) == "true"
    return strategy if strategy in OF_REPLICAS and runs else ""


def replica_milli(replicas: int) -> int:
    """Thousandths of a GPU that one of so many equal replicas is; 0 where as many do not make up one GPU."""
    milli = WHOLE_GPU // replicas
    return milli if replicas > 1 and milli and WHOLE_GPU // milli == replicas else 0


def replicas_of(labels: Metadata, kind: GpuResource) -> int:
    """Number of times that each GPU is offered, at least 1. GKE shares NVIDIA's GPUs without NVIDIA's labels."""
    said = _number(labels, kind.replicas_label)
    if said is None and kind.resource == GPU_RESOURCE:
        said = _number(labels, GKE_CLIENTS_LABEL)
    return max(1, said or 1)


def _number(labels: Metadata, label: str) -> int | None:
    value = str(labels.get(label, "")) if label else ""
    return int(value) if re.fullmatch("[0-9]{1,9}", value) else None
