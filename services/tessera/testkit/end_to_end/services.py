"""The services that a trace goes through: started, configured, spoken to, and in the end held to their ledger."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, TypeVar

from tessera.client.ledger.replay import ReplayReport, verify
from tessera.domain.state import State
from tessera.engine.pricing.learner import learnt
from tessera.engine.pricing.pricing_problem import PricingProblem
from tessera.kernel.errors import KernelError
from tessera.kernel.ledger.shard import Shard
from tessera.kernel.ledger.stream import read_plain
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.testkit.sim.coverage import SIMULATED, Coverage
from tessera.testkit.sim.faults import Rates
from tessera.testkit.sim.loop import VirtualClock, VirtualLoop
from tessera.testkit.sim.services import SHARD, SimulatedServices
from tessera.testkit.sim.verify import fold_stored
from tessera_local.cluster.in_memory import drive
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas import subjects
from tessera_schemas.cluster.labels import SIMULATE_PREFIX
from tessera_schemas.commands import ApplyConfig, CancelJob, SubmitJob
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import JobSpec, Resources, Role, Template

SLEEP_SECONDS_MAX = 1800.0
"""Leases must last longer."""


class IdleClock(VirtualClock):
    """`idle_seconds` says how long nothing will come from outside, and is 0 while something is going on."""

    def __init__(self, loop: VirtualLoop, idle_seconds: Callable[[], float], skew_ms: int = 0) -> None:
        super().__init__(loop, skew_ms=skew_ms)
        self._idle_seconds = idle_seconds

    async def sleep(self, seconds: float) -> None:
        """Sleeps as often as the idle time has room for: whoever looks by the clock keeps to its beat."""
        times = int(min(self._idle_seconds(), SLEEP_SECONDS_MAX) / seconds) if seconds > 0 else 1
        await super().sleep(seconds * max(1, times))


SETTINGS: dict[str, dict[str, Any]] = {
    "scheduler": {"tick_seconds": 10.0, "slots_seconds": 3600.0},
    "projection": {"snapshot_seconds": 3600.0, "redis_check_seconds": 300.0, "quote_seconds": 0.0},
    "binder": {"resync_seconds": 600.0},
}
"""What they look at by the clock alone serves where something was lost, and nothing is. So an idle hour is cheap."""
LEASE_SECONDS = 14_400.0
"""Nobody dies here, and to renew a lease is to look, too."""
SETTLED_SECONDS = 5.0
"""Of virtual time; what the services have to say to one another they have said within it."""
TALK = tuple(subjects.stream(name, SHARD) for name in ("SUBMIT", "FACTS", "LEDGER"))
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
        self.services = SimulatedServices(
            loop, Random(seed), rates, Coverage(), _learn_here, SETTINGS, self._clock, LEASE_SECONDS
        )
        self.clock = self.services.clock
        self._client = MemoryBus(self.services.broker, "client")
        self._last: tuple[int | None, ...] = ()  # how far the streams and the cluster have come
        self._moved_at = 0.0
        self._nothing_until_ms = 0
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

    async def sleep_until(self, at_ms: int) -> None:
        """Sleeps until `at_ms`, before which nothing is sent: the services skip looks by the clock alone meanwhile."""
        self._nothing_until_ms = at_ms
        await self.clock.sleep(max(0, at_ms - self.clock.now_ms()) / 1000)

    def _clock(self, loop: VirtualLoop, skew_ms: int) -> VirtualClock:
        return IdleClock(loop, self._idle_seconds, skew_ms)

    def _idle_seconds(self) -> float:
        """Seconds until the next submit or the cluster's next change; 0 while services have something to say."""
        broker, due_ms = self.services.broker, self.services.cluster.next_due_ms()
        last, now = (due_ms, *(broker.stream(name).last_seq for name in TALK)), self.clock.monotonic()
        if last != self._last:
            self._last, self._moved_at = last, now
        if now - self._moved_at < SETTLED_SECONDS:
            return 0.0
        until_ms = self._nothing_until_ms if due_ms is None else min(due_ms, self._nothing_until_ms)
        return max(0, until_ms - self.clock.now_ms()) / 1000

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
        """State at the head of the ledger."""
        return fold_stored(self.services.broker.stream(subjects.stream("LEDGER", SHARD)).messages, self._shard)

    def stored(self, after: int = 0) -> list[bytes]:
        """The ledger's messages behind number `after`."""
        stream = self.services.broker.stream(subjects.stream("LEDGER", SHARD))
        return [read_plain(stream.messages[n]).data for n in range(after + 1, stream.last_seq + 1)]

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


def run_end_to_end(seed: int, run: Callable[[TraceServices], Awaitable[Result]]) -> Result:
    """Run `play` with services of its own on virtual time, and end them in any case. Raises Undecided."""

    async def played() -> Result:
        services = TraceServices(loop, seed)
        try:
            return await run(services)
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
    """Learns prices in no virtual time."""
    return learnt(problem)
