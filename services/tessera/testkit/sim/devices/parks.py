"""
Further nodes of a simulated world, and what some of its jobs ask for because of them.

Each seed has one park, so that every kind is tried and no seed takes longer. Jobs change by amounts that were drawn
already: further draws would make another life of every seed.
"""

from dataclasses import replace
from typing import Any, Literal

from tessera.testkit.sim.devices.asked import nic_claim
from tessera.testkit.sim.devices.pieces import rows_of_pieces
from tessera.testkit.sim.workload import Command
from tessera_local.cluster.machines.nodes import NodeRow
from tessera_schemas.cluster.device_claims import DeviceChoice, DeviceClaim, DeviceRequest
from tessera_schemas.commands import SubmitJob
from tessera_schemas.job import Resources, Role

ParkName = Literal["", "replicas", "zones", "published"]
PARKS: tuple[ParkName, ...] = ("", "replicas", "zones", "published")
DRIVEN, GPUS, MIG = "dra-a", "gpu.nvidia.com", "mig.nvidia.com"
"""The node whose GPUs a driver publishes, that driver and its class of whole GPUs, and its class of their halves."""
PUBLISHED_GPUS = 4
ZONED, CARD = "numa-a", "rdma/hca"
"""The node whose kubelet keeps each pod within a NUMA zone, and devices that a plugin offers there."""
SINGLE_GPUS_MAX = 4
QUARTERS, HALVES = 250, 500
"""Thousandths of a GPU that a replica is under time-slicing, and under MPS, which keeps programs apart."""


def park_of(seed: int) -> ParkName:
    """The park of a seed's world; that of "" has nothing that other jobs ask for."""
    return PARKS[seed % len(PARKS)]


def rows_of(park: ParkName) -> list[NodeRow]:
    """Further nodes."""
    sized: dict[str, Any] = {"cpu": "32", "memory": "128Gi", "gpus": 2, "gpu_model": "H100"}
    if park == "published":
        return [NodeRow(name=DRIVEN, cpu="32", memory="128Gi")]
    if park == "zones":
        return [NodeRow(name=ZONED, **sized | {"gpus": 8, "devices": {CARD: 4}})]
    if park == "replicas":
        return [
            NodeRow(name="slice-a", device_profile="time-slicing", replicas=1000 // QUARTERS, **sized),
            NodeRow(name="mps-a", device_profile="mps", replicas=1000 // HALVES, **sized),
        ]
    return rows_of_pieces()


def suited(park: ParkName, command: Command) -> Command:
    """The command as a client of such a cluster sends it: a submit may ask for what only the park has."""
    if command.spec is None or len(command.spec.roles) > 1:
        return command
    (role,) = command.spec.roles
    if not (more := _asked_of(park, role)):
        return command
    # Validated: a copy alone might be a job that no client can send.
    asked = Resources.model_validate(role.resources.model_dump() | more)
    spec = command.spec.model_copy(update={"roles": (role.model_copy(update={"resources": asked}),)})
    sent = SubmitJob.model_validate_json(command.data).model_copy(update={"spec": spec})
    return replace(command, data=sent.to_bytes(), spec=spec)


def _asked_of(park: ParkName, role: Role) -> dict[str, Any]:
    """Fields of a pod's resources in which it asks for the park's devices; none: as they were drawn."""
    drawn, alone = role.resources, role.replicas == 1 and not role.exclusive
    single = alone and 0 < drawn.gpus <= SINGLE_GPUS_MAX
    if park == "replicas" and drawn.gpu_milli:
        return {"gpu_milli": HALVES, "isolation": "compute"} if drawn.gpu_milli >= HALVES else {"gpu_milli": QUARTERS}
    if park == "published" and single and drawn.cpu_milli % 2:
        return {"claims": (nic_claim(fast=False),)}
    if park == "published" and single and not (drawn.claims or role.gpu_models):
        return {"gpus": 0, "claims": (_gpu_claim(MIG if drawn.cpu_milli % 8 == 2 else GPUS, drawn.gpus),)}
    # One pod alone: a gang of the largest pods would find no such nodes, and wait for ever.
    if park == "zones" and single and drawn.cpu_milli % 2 and not drawn.claims:
        own: dict[str, Any] = {"devices": {CARD: 1}}
        own = own if drawn.cpu_milli % 4 == 1 else {"numa_policy": "single-numa-node"}
        return {"cpu_milli": -(-drawn.cpu_milli // 1000) * 1000} | own
    return {}


def _gpu_claim(device_class: str, count: int) -> DeviceClaim:
    choice = DeviceChoice(device_class=device_class, count=count)
    return DeviceClaim(name="gpu", requests=(DeviceRequest(name="some", choices=(choice,)),))
