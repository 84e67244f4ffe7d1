"""A shard in one process and virtual time, of two nodes and without chance."""

from collections.abc import Sequence
from random import Random
from typing import Any

from tessera.domain.state import State
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ledger.stream import read_plain
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.testkit.sim.coverage import SIMULATED, Coverage
from tessera.testkit.sim.faults import Rates
from tessera.testkit.sim.loop import VirtualLoop
from tessera.testkit.sim.services import SHARD, SimulatedServices
from tessera.testkit.sim.workload import SETTLED, TENANTS, Command, apply_config, submit_job
from tessera.testkit.sim.world import answered
from tessera_local.cluster.in_memory import drive
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas.base import job_id
from tessera_schemas.config import Policy
from tessera_schemas.job import JobSpec, Template
from tests.builders import job_spec, role

START_SECONDS, LOST_SECONDS, ORPHAN_SECONDS = 15, 12, 10.0
SETTINGS: dict[str, dict[str, Any]] = {"binder": {"resync_seconds": 2.0, "orphan_seconds": ORPHAN_SECONDS}}


def spec(seconds: float, limit: int | None = None) -> JobSpec:
    template = Template(image="train:1", annotations={"tessera.io/simulate-seconds": str(seconds)})
    worker = role(gpus=2).model_copy(update={"template": template})
    return job_spec(worker, time_limit_seconds=limit)


class World:
    """A shard of two nodes without chance."""

    def __init__(self, loop: VirtualLoop, beside: "World | None" = None, groups: Sequence[Sequence[str]] = ()) -> None:
        """`beside` is an installation on the same cluster, which has a NATS, a Redis and a ledger of its own."""
        self.loop, rates = loop, Rates(Random(1))
        rates.stop()
        self.services = SimulatedServices(loop, Random(2), rates, Coverage(), settings=SETTINGS, groups=groups)
        self.clients = MemoryBus(self.services.broker, "client")
        if beside is not None:
            self.services.cluster = beside.services.cluster
            self.services._started = 1000  # chance that is not the first one's, which names the ledger
        self.driving = None if beside else loop.create_task(drive(self.services.cluster, self.services.clock))
        for name in ("node-a", "node-b") if beside is None else ():
            row = NodeRow(name=name, cpu="64", memory="512Gi", gpus=8)
            self.services.cluster.create("nodes", "", node_object(row, name))
        for name in SIMULATED:
            self.services.start(name)

    async def send(self, command: Command) -> None:
        await self.clients.publish(Outgoing(command.subject, command.data, headers=answered(command)))

    async def submit(self, key: str, job: JobSpec) -> str:
        await self.send(submit_job(SHARD, 0.0, TENANTS[0], key, job))
        return job_id(SHARD, TENANTS[0], key)

    async def sleep(self, seconds: float) -> None:
        await self.services.clock.sleep(seconds)

    def records(self) -> list[Any]:
        stored = self.services.broker.stream(f"LEDGER_{SHARD}").messages.values()
        return [record for each in stored for record in decode_entry(read_plain(each)).message.records]

    def state(self) -> State:
        shard = Shard()
        for each in self.services.broker.stream(f"LEDGER_{SHARD}").messages.values():
            shard.fold(decode_entry(read_plain(each)))
        return shard.state

    async def close(self) -> None:
        if self.driving is not None:
            self.driving.cancel()
        await self.services.close()


async def configure(world: World, **more: Any) -> None:
    policy = Policy(start_timeout_seconds=START_SECONDS, node_lost_seconds=LOST_SECONDS, **more)
    await world.send(apply_config(SHARD, SETTLED.model_copy(update={"policy": policy}), 0))
    await world.sleep(2)
