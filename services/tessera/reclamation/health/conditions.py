"""
Health that nodes show by themselves: conditions, NVSentinel's label, device taints, devices that are missing.

Pure: objects of Kubernetes and nodes of the ledger in, sightings out. Conditions are those that node-problem-detector,
the agents of AKS and EKS, and NVSentinel are known to set; any other says nothing unless the settings name it, since
many controllers write conditions whose `True` is good news.
"""

from collections.abc import Mapping

from tessera.domain.devices.resources import Node
from tessera.reclamation.health.damping import Sighting
from tessera_schemas.base import Json
from tessera_schemas.cluster.health import Ailment, HealthCause
from tessera_schemas.cluster.labels import GPU_RESOURCE

EVIDENCE_MAX = 256
FALSE = "=False"
"""End of the name of a condition that is bad news while its status is `False`."""
_MACHINE = dict.fromkeys(
    (
        *("KernelDeadlock", "ReadonlyFilesystem", "XfsShutdown", "CperHardwareErrorFatal", "CorruptDockerOverlay2"),
        *("FrequentKubeletRestart", "FrequentDockerRestart", "FrequentContainerdRestart"),
        *("KubeletUnhealthy", "ContainerRuntimeUnhealthy"),  # node-problem-detector
        *("FilesystemCorruptionProblem", "KubeletProblem", "ContainerRuntimeProblem"),  # AKS
        *(f"{name}Ready{FALSE}" for name in ("Kernel", "Storage", "ContainerRuntime")),  # EKS
    ),
    HealthCause.NODE_CONDITION,
)
_NETWORK = dict.fromkeys(
    ("FrequentUnregisterNetDevice", "IBLinkFlapping", f"NetworkingReady{FALSE}"), HealthCause.NETWORK
)
_LINKS = dict.fromkeys(
    ("NVLinkStatusInactive", "GpuNvlinkWatch", "SysLogsSXIDError", "NVSwitchFatalError", "NVSwitchDown"),
    HealthCause.LINK_ERRORS,
)
_GPUS = dict.fromkeys(
    (
        *("GpuPcieWatch", "GpuPowerWatch", "GpuInforomWatch", "GpuSmWatch", "GpuMcuWatch", "GpuPmuWatch"),
        *("GpuDriverWatch", "SysLogsXIDError"),  # NVSentinel
        *("XIDErrors", f"AcceleratedHardwareReady{FALSE}"),
    ),
    HealthCause.GPU_FAULT,
)
CONDITIONS: dict[str, HealthCause] = {
    **_MACHINE,
    **_NETWORK,
    **_LINKS,
    **_GPUS,
    "GpuMemWatch": HealthCause.GPU_MEMORY,
    "GpuThermalWatch": HealthCause.GPU_THROTTLED,
    "GPUClockThrottling": HealthCause.GPU_THROTTLED,
    "SysLogsGPUFallenOff": HealthCause.GPU_LOST,
    "GPUMissing": HealthCause.DEVICES_MISSING,
}
"""Type of each condition that is bad news, and what it tells."""

SENTINEL_LABEL, SENTINEL_DRAINS = "dgxc.nvidia.com/nvsentinel-state", "draining"
"""Where NVSentinel says how far it is with a node, and the state in which it asks for the node to be emptied."""
SENTINEL_REASONS = ("k8s.nvidia.com/cordon-reason", "k8saas.nvidia.com/cordon-reason")


def conditions_of_node(node: Json, more: Mapping[str, HealthCause]) -> list[Sighting]:
    """Conditions that say that the node is not well; `more` are those that the settings name."""
    found = []
    for each in (node.get("status") or {}).get("conditions") or ():
        name = f"{each.get('type')}{FALSE if each.get('status') == 'False' else ''}"
        cause = (more.get(name) or CONDITIONS.get(name)) if each.get("status") in ("True", "False") else None
        if cause is not None:
            words = ": ".join(str(each[key]) for key in ("type", "reason", "message") if each.get(key))
            found.append(Sighting(Ailment(cause=cause, evidence=words[:EVIDENCE_MAX])))
    return found


def quarantine_of_node(node: Json) -> list[Sighting]:
    """
    NVSentinel's state of the node. While it drains, it asks for the node to be emptied; in every other state it
    keeps the node from use, until it takes its label off.
    """
    labels = node["metadata"].get("labels") or {}
    state = labels.get(SENTINEL_LABEL)
    if not state:
        return []
    cause = HealthCause.DRAIN_ASKED if state == SENTINEL_DRAINS else HealthCause.QUARANTINED
    why = next((f": {labels[key]}" for key in SENTINEL_REASONS if labels.get(key)), "")
    return [Sighting(Ailment(cause=cause, evidence=f"NVSentinel: {state}{why}"[:EVIDENCE_MAX]), at_once=True)]


def taints_of_devices(node: Node) -> list[Sighting]:
    """Device taints (DRA) by drivers or by an administrator's rule."""
    return [
        Sighting(
            Ailment(
                cause=HealthCause.DEVICE_TAINTED,
                device=device[-128:],
                evidence=f"{key}={value}:{effect}"[:EVIDENCE_MAX],
            )
        )
        for device, key, value, effect in node.tainted
    ]


def missing_devices(node: Node) -> list[Sighting]:
    """A node that offers fewer GPUs than are installed; not while it is away, or while its GPUs are being cut."""
    if not node.is_short or node.trouble is not None or node.is_cut or node.gone or node.silent:
        return []
    installed = dict(node.capacity).get(node.gpu_resource or GPU_RESOURCE, 0)
    words = f"{node.gpus} of {installed} GPUs are offered"
    return [Sighting(Ailment(cause=HealthCause.DEVICES_MISSING, evidence=words))]
