"""Jobs with claims on a simulated API server; the committer draws the devices."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tessera_schemas.base import Json
from tessera_schemas.config import Policy
from tessera_schemas.job import JobSpec, Resources
from tests.unit.binder.claim_builders import device_claim, device_class, resource_slice
from tests.unit.binder.cluster_world import RESERVED, World, train


def with_claims(replicas: int = 1, rank_seconds: int = 0, **more: Any) -> JobSpec:
    """A gang of which each pod claims a device, and works so much longer than the one before it."""
    spec = train(replicas, gpus=0, **more)
    (role,) = spec.roles
    asked = Resources(cpu_milli=1000, memory_bytes=2**30, claims=(device_claim(),))
    notes = role.template.annotations | {f"{RESERVED}rank-seconds": str(rank_seconds)}
    template = role.template.model_copy(update={"annotations": notes})
    return spec.model_copy(update={"roles": (role.model_copy(update={"resources": asked, "template": template}),)})


@asynccontextmanager
async def world_of_devices(policy: Policy | None = None, **device: Any) -> AsyncIterator[World]:
    """Node a publishes two devices; each pod is given the one of its rank."""
    async with World(nodes=("node-a",), policy=policy, start_ms=200, gpus=0) as world:
        publish_devices(world, **device)
        await world.run(3)  # until the ledger has the devices
        yield world


def publish_devices(world: World, **device: Any) -> None:
    """Node a publishes two devices; of a gang of two each pod gets the one of its rank."""
    devices = [{"name": f"gpu-{rank}"} | device for rank in range(2)]
    world.core.create("resourceslices", "", resource_slice("node-a", *devices))
    world.core.create("deviceclasses", "", device_class())


def claims(world: World) -> list[Json]:
    return [one.object for one in world.core.list("resourceclaims")[0]]
