"""Free capacity of one node: CPU, memory, pods, and each device in thousandths. The kubelet's last check."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tessera_local.cluster.api.values import thousandths, units
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_vendors import NVIDIA_SHARED, known_gpu_resources
from tessera_schemas.cluster.devices import OF_REPLICAS, Kind, serves
from tessera_schemas.cluster.labels import (
    DEVICE_PROFILE_ANNOTATION,
    DEVICES_ANNOTATION,
    GPU_MILLI_ANNOTATION,
    GPU_REPLICAS_LABEL,
    GPU_RESOURCE,
    GPU_UUIDS_ANNOTATION,
    MIG_RESOURCE_PREFIX,
)
from tessera_schemas.cluster.resource_kinds import is_counted_by_name

WHOLE_DEVICE = 1000
BY_UUID = "visible-devices"
CLAIMED = "extendedResourceClaimStatus"
NO_KUBELETS = ("nvidia.com/gpumem", "nvidia.com/gpucores")
"""Names by which HAMi accounts; no node offers them, and a kubelet ignores what its node does not offer."""


class AdmissionError(Exception):
    """The kubelet does not take this pod; the text says what it lacks."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """
    Request of a pod to its node. `devices` None lets the device plugin pick `gpus` of them; `further` are the extended
    resources that are not whole GPUs, by name; `uuids` are the cards that its environment names; `counted` is how many
    GPUs its limits count.
    """

    cpu_milli: int
    memory_bytes: int
    gpus: int = 0
    gpu_milli: int = 0
    devices: tuple[int, ...] | None = None
    further: tuple[tuple[str, int], ...] = ()
    uuids: tuple[str, ...] = ()
    counted: int = 0


def request_of(pod: Json) -> PodRequest:
    """Raises AdmissionError for quantities or annotations that cannot be read."""
    try:
        return _read(pod)
    except (ValueError, TypeError, AttributeError) as error:
        raise AdmissionError(f"the pod's request cannot be read: {error}") from error


def _read(pod: Json) -> PodRequest:
    cpu_milli = memory_bytes = limit_gpus = 0
    further: Counter[str] = Counter()
    uuids: list[str] = []
    claimed = {one["resourceName"] for one in (pod.get("status") or {}).get(CLAIMED, {}).get("requestMappings", ())}
    for container in pod["spec"].get("containers", ()):
        resources = container.get("resources") or {}
        # What a claim answers no device plugin hands out, and a kubelet does not count.
        limits = {name: each for name, each in (resources.get("limits") or {}).items() if name not in claimed}
        asked = {**limits, **(resources.get("requests") or {})}
        cpu_milli += thousandths(asked.get("cpu", 0))
        memory_bytes += units(asked.get("memory", 0))
        limit_gpus += _gpus(limits)
        further.update(_further(limits))
        uuids += _cards(container.get("env") or ())
    notes = pod["metadata"].get("annotations") or {}
    listed = notes.get(DEVICES_ANNOTATION, "")
    devices = tuple(int(slot) for slot in listed.split(",")) if listed else None
    gpus = limit_gpus if devices is None else len(devices)
    gpu_milli = int(notes.get(GPU_MILLI_ANNOTATION) or 0) or (WHOLE_DEVICE if gpus else 0)
    if gpu_milli and not gpus:
        gpus = 1  # a share whose device the plugin picks
    if not 0 <= gpu_milli <= WHOLE_DEVICE or len(set(devices or ())) != len(devices or ()):
        raise ValueError(f"{DEVICES_ANNOTATION}={listed!r} with {GPU_MILLI_ANNOTATION}={gpu_milli}")
    named = tuple(further.items())
    return PodRequest(cpu_milli, memory_bytes, gpus, gpu_milli, devices, named, tuple(uuids), limit_gpus)


def _cards(env: Iterable[Json]) -> list[str]:
    """The UUIDs that the runtime would show the container; names of none and of all of them are no UUIDs."""
    listed = next((entry.get("value", "") for entry in env if entry.get("name") == "NVIDIA_VISIBLE_DEVICES"), "")
    return [card for card in listed.split(",") if card.startswith("GPU-")]


def _gpus(amounts: Json) -> int:
    """GPUs of any vendor; those of others than NVIDIA count by their name as well (`_further`)."""
    return sum(units(amounts[name]) for name in (*known_gpu_resources(), NVIDIA_SHARED.resource) if name in amounts)


def _further(amounts: Json) -> dict[str, int]:
    return {
        name: units(amount)
        for name, amount in amounts.items()
        if ("/" in name or is_counted_by_name(name)) and name not in (GPU_RESOURCE, *NO_KUBELETS)
    }


@dataclass(slots=True)
class NodeUse:
    """
    Used and total of one node. Totals may shrink below use: pods that run keep what they hold.

    `gpus` are its slots; of these `gpus_offered` may be in use, fewer while some are unhealthy, whichever those are.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    gpus: int = 0
    gpus_offered: int = 0
    further: dict[str, int] = field(default_factory=dict)
    profile: str = "plugin"
    uuids: tuple[str, ...] = ()
    used_cpu_milli: int = 0
    used_memory_bytes: int = 0
    used_pods: int = 0
    used_devices: dict[int, int] = field(default_factory=dict)
    used_further: Counter[str] = field(default_factory=Counter)

    def resize(self, node: Json) -> None:
        """Read totals, device profile and cards from the node's object; what is used stays as it is."""
        status = node.get("status") or {}
        allocatable = status.get("allocatable") or {}
        self.cpu_milli = thousandths(allocatable.get("cpu", 0))
        self.memory_bytes = units(allocatable.get("memory", 0))
        self.pods = units(allocatable.get("pods", 0))
        self.gpus_offered = _gpus(allocatable)
        self.gpus = max(_gpus(status.get("capacity") or {}), self.gpus_offered)
        self.further = _further(allocatable)
        meta = node["metadata"]
        notes = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
        self.profile = notes.get(DEVICE_PROFILE_ANNOTATION, "plugin")
        self.uuids = tuple(filter(None, notes.get(GPU_UUIDS_ANNOTATION, "").split(",")))
        if self.profile == BY_UUID:
            self.gpus = self.gpus_offered = len(self.uuids)
        if self.profile in OF_REPLICAS:
            times = int(notes.get(GPU_REPLICAS_LABEL, 1))
            self.gpus, self.gpus_offered = self.gpus // times, self.gpus_offered // times

    def take(self, request: PodRequest) -> tuple[int, ...]:
        """Reserve all of it and return the devices held. Raises AdmissionError, with nothing reserved."""
        _room("cpu", self.used_cpu_milli, request.cpu_milli, self.cpu_milli)
        _room("memory", self.used_memory_bytes, request.memory_bytes, self.memory_bytes)
        _room("pods", self.used_pods, 1, self.pods)
        for name, count in request.further:
            _room(name, self.used_further[name], count, self.further.get(name, 0))
        devices = self._devices_for(request)
        self.hold(request, devices)
        return devices

    def resized(self, had: PodRequest, asked: PodRequest) -> str | None:
        """
        Hold CPU and memory of a pod that is resized in place as it asks now; else why not, as kubelets say it:
        `Deferred` for now, `Infeasible` for ever.
        """
        more_cpu, more_memory = asked.cpu_milli - had.cpu_milli, asked.memory_bytes - had.memory_bytes
        if asked.cpu_milli > self.cpu_milli or asked.memory_bytes > self.memory_bytes:
            return "Infeasible"
        lacks_cpu = more_cpu > 0 and self.used_cpu_milli + more_cpu > self.cpu_milli
        if lacks_cpu or (more_memory > 0 and self.used_memory_bytes + more_memory > self.memory_bytes):
            return "Deferred"
        self.used_cpu_milli += more_cpu
        self.used_memory_bytes += more_memory
        return None

    def hold(self, request: PodRequest, devices: tuple[int, ...]) -> None:
        """Count what a pod holds already, whatever the totals are."""
        self._add(request, devices, 1)

    def give_back(self, request: PodRequest, devices: tuple[int, ...]) -> None:
        """Free what `take` reserved: the same request, and the devices that were returned."""
        self._add(request, devices, -1)

    def _devices_for(self, request: PodRequest) -> tuple[int, ...]:
        if not request.gpus:
            return ()
        is_instance = any(name.startswith(MIG_RESOURCE_PREFIX) for name, _ in request.further)
        kind: Kind = "instance" if is_instance else "share" if request.gpu_milli < WHOLE_DEVICE else "whole"
        if not serves(self.profile, kind):
            raise AdmissionError(f"{GPU_RESOURCE}: a node of device profile {self.profile!r} has no such device")
        if kind == "instance":
            return ()  # the plugin picks one; they were counted as what they are called
        self._check_cards(request)
        if self.profile in OF_REPLICAS and request.counted != 1:
            raise AdmissionError(f"{GPU_RESOURCE}: asked {request.counted} replicas, a pod has one")
        free = [slot for slot in range(self.gpus) if self._used(slot) + request.gpu_milli <= WHOLE_DEVICE]
        if request.devices is None:
            _room(GPU_RESOURCE, 0, request.gpus, len(free))
            self._check_offered(free[: request.gpus])
            return tuple(free[: request.gpus])
        for slot in request.devices:
            if slot not in free:
                _room(
                    f"{GPU_RESOURCE} device {slot}",
                    self._used(slot),
                    request.gpu_milli,
                    WHOLE_DEVICE * (slot < self.gpus),
                )
        self._check_offered(request.devices)
        return request.devices

    def _check_offered(self, slots: Iterable[int]) -> None:
        """Check that no more devices come into use than the plugin calls healthy."""
        used = sum(1 for slot in range(self.gpus) if self._used(slot))
        _room(GPU_RESOURCE, used, sum(1 for slot in slots if not self._used(slot)), self.gpus_offered)

    def _check_cards(self, request: PodRequest) -> None:
        """Check that the container names exactly the cards of its slots, where no device plugin picks them."""
        if self.profile != BY_UUID:
            return
        slots = [slot for slot in request.devices or () if slot < len(self.uuids)]
        if not slots or {self.uuids[slot] for slot in slots} != set(request.uuids) or len(slots) != len(request.uuids):
            raise AdmissionError(f"NVIDIA_VISIBLE_DEVICES: {list(request.uuids)} are not the cards of its slots")

    def _used(self, slot: int) -> int:
        return self.used_devices.get(slot, 0)

    def _add(self, request: PodRequest, devices: tuple[int, ...], sign: int) -> None:
        self.used_cpu_milli += sign * request.cpu_milli
        self.used_memory_bytes += sign * request.memory_bytes
        self.used_pods += sign
        for name, count in request.further:
            self.used_further[name] += sign * count
        for slot in devices:
            self.used_devices[slot] = self._used(slot) + sign * request.gpu_milli


def _room(resource: str, used: int, asked: int, total: int) -> None:
    if used + asked > total:
        raise AdmissionError(f"{resource}: asked {asked}, used {used}, capacity {total}")
