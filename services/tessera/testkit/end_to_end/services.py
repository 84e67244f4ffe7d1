"""The services that a trace goes through: started, configured, spoken to, and in the end held to their ledger."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, TypeVar

from tessera.client.replay import ReplayReport, verify
from tessera.domain.state import State
from tessera.engine.pricing.learner import learnt
from tessera.engine.pricing.pricing_problem import PricingProblem
from tessera.kernel.errors import KernelError
from tessera.kernel.ledger.shard import Shard
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.local.cluster.driving import drive
from tessera.local.cluster.nodes import NodeRow, node_object
from tessera.testkit.sim.coverage import SIMULATED, Coverage
from tessera.testkit.sim.faults import Rates
from tessera.testkit.sim.loop import VirtualLoop
from tessera.testkit.sim.services import SHARD, SimulatedServices
from tessera.testkit.sim.verify import books
from tessera_schemas import subjects
from tessera_schemas.commands import ApplyConfig, CancelJob, SubmitJob
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import JobSpec, Resources, Role, Template
from tessera_schemas.labels import SIMULATE_PREFIX

SETTINGS: dict[str, dict[str, Any]] = {
    "scheduler": {"tick_seconds": 10.0, "slots_seconds": 3600.0},
    "projection": {"snapshot_seconds": 3600.0, "redis_check_seconds": 300.0},
    "binder": {"resync_seconds": 600.0},
}
"""What they look at by the clock alone serves where something was lost, and nothing is. So an idle hour is cheap."""
LEASE_SECONDS = 60.0
LOOK_SECONDS = 0.005  # of virtual time; how often a decision is looked for
DECIDED_SECONDS = 60.0
FOR_EVER_SECONDS = 10_000_000
MIB = 2**20
Result = TypeVar("Result")


class Undecided(KernelError):
    """The platform, and not its policy, failed the replay: a job without a verdict, or a ledger that differs."""


class TraceServices:
    """One shard's services on nodes of one's own; nothing of it fails, and time passes only where all of them wait."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        rates = Rates(Random(seed))
        rates.stop()
        patient = {name: {**SETTINGS.get(name, {}), "lease_seconds": LEASE_SECONDS} for name in SIMULATED}
        self.services = SimulatedServices(loop, Random(seed), rates, Coverage(), _learn_here, patient)
        self.clock = self.services.clock
        self._client = MemoryBus(self.services.broker, "client")
        self._shard = Shard()
        self._driving = loop.create_task(drive(self.services.cluster, self.clock))

    async def start(self, nodes: Iterable[NodeRow], body: ConfigBody) -> None:
        """Start all services and wait until all nodes are known. Raises Undecided."""
        rows = list(nodes)
        for row in rows:
            self.services.cluster.create("nodes", "", node_object(row, row.name))
        for slot in SIMULATED:
            self.services.start(slot)
        command = ApplyConfig(kind="apply_config", v=1, expected_version=0, body=body)
        await self._client.publish(Outgoing(subjects.control(SHARD), command.to_bytes()))
        await self.until(lambda state: state.config.version > 0 and len(state.nodes) == len(rows))

    async def send(self, tenant: str, command: SubmitJob | CancelJob) -> None:
        """Publishes a command on the tenant's subject, as a client does."""
        await self._client.publish(Outgoing(subjects.submit(SHARD, tenant), command.to_bytes()))

    async def until(self, condition: Callable[[State], bool]) -> State:
        """The state in which the condition holds. Raises Undecided when that takes longer than any decision does."""
        deadline = self.clock.monotonic() + DECIDED_SECONDS
        while not condition(state := self.state()):
            if self.clock.monotonic() > deadline:
                raise Undecided(f"nothing was decided for {DECIDED_SECONDS:.0f} s; {self.services.violations or ''}")
            await self.clock.sleep(LOOK_SECONDS)
        return state

    def state(self) -> State:
        """As of the head of the ledger."""
        return books(self.services.broker, SHARD, self._shard)

    def stored(self, after: int = 0) -> list[bytes]:
        """The ledger's messages behind number `after`."""
        stream = self.services.broker.stream(subjects.stream("LEDGER", SHARD))
        return [stream.messages[n].data for n in range(after + 1, stream.last_seq + 1)]

    async def close(self) -> ReplayReport:
        """Stop everything, then decide the whole ledger again. Raises Undecided where anything differs."""
        await self.stop()
        if self.services.violations:
            raise Undecided("; ".join(self.services.violations))
        replay = verify(self.stored())
        if not replay.ok:
            raise Undecided(f"the replay differs: {replay.findings[0]}")
        return replay

    async def stop(self) -> None:
        """Twice does no harm."""
        self._driving.cancel()
        await self.services.close()


def run_end_to_end(seed: int, play: Callable[[TraceServices], Awaitable[Result]]) -> Result:
    """Run `play` with services of its own on virtual time, and end them in any case. Raises Undecided."""

    async def played() -> Result:
        services = TraceServices(loop, seed)
        try:
            return await play(services)
        finally:
            await services.stop()

    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(played())


def job(name: str, queue: str, pods: Iterable[tuple[int, Resources, tuple[str, ...]]], seconds: float) -> JobSpec:
    """A gang of (how many, what each needs, of which GPU models) whose programs all end after so long."""
    template = Template(image="trace:1", annotations={f"{SIMULATE_PREFIX}seconds": str(seconds)})
    roles = tuple(
        Role(name=f"pod-{at}", replicas=many, resources=each, gpu_models=models, template=template)
        for at, (many, each, models) in enumerate(pods)
    )
    return JobSpec(name=name, queue=queue, roles=roles)


async def _learn_here(problem: PricingProblem, seconds: float) -> tuple[int, ...]:
    """In no virtual time."""
    return learnt(problem)
