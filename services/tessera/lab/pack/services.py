"""
A trace through all services in one process on virtual time: submitted, admitted, ordered, placed, bound, running.

What `pack` replays through the engine alone, this replays through the platform: the same arrivals in the same order,
each a job of one pod that goes on, and each decided before the next is sent. What finds no room is cancelled, as the
protocol drops it. In the end the ledger is replayed and recomputed.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from tessera.client.replay import verify
from tessera.domain.phases import Phase
from tessera.engine.lesson import Lesson
from tessera.engine.packing.learner import learnt
from tessera.engine.packing.policies import DEFAULT
from tessera.kernel.errors import KernelError
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.kernel.shard import Shard
from tessera.lab.cluster.driving import drive
from tessera.lab.cluster.nodes import NodeRow, node_object
from tessera.lab.pack.protocol import arrivals, node_order
from tessera.lab.sim.coverage import Coverage
from tessera.lab.sim.crew import SHARD, Crew
from tessera.lab.sim.faults import Rates
from tessera.lab.sim.loop import VirtualLoop
from tessera.lab.sim.verify import books
from tessera.lab.traces.alibaba import WHOLE, Trace, TracePod
from tessera.reclamation.decide.prices import FROM_ARRIVALS
from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.commands import ApplyConfig, CancelJob, SubmitJob
from tessera_schemas.config import ConfigBody, Limits, Policy, Queue, Tenant
from tessera_schemas.job import JobSpec, Resources, Role, Template

SERVICES = ("admission", "queueing", "scheduler", "preemption", "reclamation", "binder", "projection")
TENANT, QUEUE = "trace", "default"
MIB = 2**20
LOOK_SECONDS = 0.005  # of virtual time; how often a decision is looked for
DECIDED_SECONDS = 60.0
FOR_EVER_SECONDS = 10_000_000
Tell = Callable[[int, int], None]


class Undecided(KernelError):
    """A job was neither placed nor told to wait: the platform, and not its policy, failed the replay."""


@dataclass(frozen=True, slots=True)
class ThroughServices:
    """
    One run. `allocated_percent` is of the cluster's GPUs, when the last has arrived. `recomputed` of `messages` ledger
    messages were decided again by the replay, with the same result. `priced` is the settlement of the mix whose prices
    were in force in the end.
    """

    trace: str
    policy: str
    seed: int
    arrivals: int
    dropped: int
    allocated_percent: float
    messages: int
    recomputed: int
    priced: int


def through_services(
    trace: Trace, policy: str, seed: int, most: int | None = None, tell: Tell = lambda done, of: None
) -> ThroughServices:
    """Raises Undecided. `most` ends it after so many arrivals."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(_Run(loop, trace, policy, seed, tell).run(most))
    finally:
        loop.close()


class _Run:
    def __init__(self, loop: VirtualLoop, trace: Trace, policy: str, seed: int, tell: Tell) -> None:
        self.loop, self.trace, self.policy, self.seed, self.tell = loop, trace, policy, seed, tell
        rates, coverage = Rates(Random(seed)), Coverage()
        rates.stop()
        self.crew = Crew(loop, Random(seed), rates, coverage, _learn_here)
        self.client = MemoryBus(self.crew.broker, "client")
        self.shard = Shard()

    async def run(self, most: int | None) -> ThroughServices:
        order = arrivals([pod.total_gpu_milli for pod in self.trace.pods], self.seed, self.trace.gpu_milli)[:most]
        self._make_nodes()
        driving = self.loop.create_task(drive(self.crew.cluster, self.crew.clock))
        for slot in SERVICES:
            self.crew.start(slot)
        await self._configure()
        dropped = 0
        for number, at in enumerate(order.tolist()):
            dropped += not await self._placed(f"{number}", self.trace.pods[at])
            if self.policy == DEFAULT and self.trace.gpu_milli:
                await self._until(_is_priced)
            self.tell(number + 1, len(order))
        state = books(self.crew.broker, SHARD, self.shard)
        held = sum(run.amount.gpu_milli for run in state.runs.values())
        driving.cancel()
        await self.crew.close()
        if self.crew.violations:
            raise Undecided("; ".join(self.crew.violations))
        stored = self.crew.broker.stream(subjects.stream("LEDGER", SHARD)).messages
        replay = verify([stored[seq].data for seq in sorted(stored)])
        if not replay.ok:
            raise Undecided(f"the replay differs: {replay.findings[0]}")
        share = 100 * held / self.trace.gpu_milli
        return ThroughServices(
            trace=self.trace.name,
            policy=self.policy,
            seed=self.seed,
            arrivals=len(order),
            dropped=dropped,
            allocated_percent=share,
            messages=replay.messages,
            recomputed=replay.recomputed,
            priced=max((mix.priced for mix in state.mixes.values()), default=0),
        )

    def _make_nodes(self) -> None:
        """In the run's order, which their names carry: it decides between nodes that are equally good."""
        places = node_order(len(self.trace.nodes), self.seed)
        for node, place in zip(self.trace.nodes, places.tolist(), strict=True):
            row = NodeRow(
                name=f"node-{place:05d}",
                cpu=f"{node.cpu_milli}m",
                memory=f"{node.memory_mib}Mi",
                gpus=node.gpus,
                gpu_model=node.model,
            )
            self.crew.cluster.create("nodes", "", node_object(row, row.name))

    async def _configure(self) -> None:
        tenant = Tenant(name=TENANT, limits=Limits(jobs=None))
        policy = Policy.model_validate({"placement": self.policy})
        body = ConfigBody(tenants=(tenant,), queues=(Queue(name=QUEUE),), policy=policy)
        command = ApplyConfig(kind="apply_config", v=1, expected_version=0, body=body)
        await self.client.publish(Outgoing(subjects.control(SHARD), command.to_bytes()))
        nodes = len(self.trace.nodes)
        await self._until(lambda state: state.config.version > 0 and len(list(state.nodes.values())) == nodes)

    async def _placed(self, key: str, pod: TracePod) -> bool:
        """Submit one, wait for what becomes of it, and take it back if it found no room."""
        job = job_id(SHARD, TENANT, key)
        await self._send(SubmitJob(kind="submit_job", v=1, key=key, spec=_spec(pod)))

        def decided(state: Any) -> bool:
            found = state.jobs.get(job)
            return found is not None and (found.phase is not Phase.QUEUED or found.reason is not None)

        state = await self._until(decided)
        if state.jobs.get(job).phase is not Phase.QUEUED:
            return True
        await self._send(CancelJob(kind="cancel_job", v=1, job_id=job))
        await self._until(lambda state: state.jobs.get(job) is None)
        return False

    async def _send(self, command: SubmitJob | CancelJob) -> None:
        await self.client.publish(Outgoing(subjects.submit(SHARD, TENANT), command.to_bytes()))

    async def _until(self, condition: Callable[[Any], bool]) -> Any:
        deadline = self.loop.time() + DECIDED_SECONDS
        while not condition(state := books(self.crew.broker, SHARD, self.shard)):
            if self.loop.time() > deadline:
                raise Undecided(f"nothing was decided for {DECIDED_SECONDS:.0f} s; {self.crew.violations or ''}")
            await self.crew.clock.sleep(LOOK_SECONDS)
        return state


def _is_priced(state: Any) -> bool:
    """Virtual time hardly passes between two arrivals: as in the lab, the next one comes when all is learnt."""
    return all(mix.priced == mix.settled or mix.arrivals < FROM_ARRIVALS for mix in state.mixes.values())


async def _learn_here(lesson: Lesson, seconds: float) -> tuple[int, ...]:
    """In no virtual time."""
    return learnt(lesson)


def _spec(pod: TracePod) -> JobSpec:
    share = pod.gpus == 1 and pod.gpu_milli < WHOLE
    asked = Resources(
        cpu_milli=max(1, pod.cpu_milli),
        memory_bytes=max(1, pod.memory_mib) * MIB,
        gpus=0 if share else pod.gpus,
        gpu_milli=pod.gpu_milli if share else 0,
    )
    template = Template(image="trace:1", annotations={"tessera.io/simulate-seconds": str(FOR_EVER_SECONDS)})
    role = Role(name="pod", resources=asked, gpu_models=pod.models, template=template)
    return JobSpec(name="pod", queue=QUEUE, roles=(role,))


def lines_of(runs: Sequence[ThroughServices], separator: str = "") -> list[str]:
    """A table, or with a separator a file of such values."""
    head = ("trace", "policy", "seed", "arrivals", "dropped", "allocated %", "messages", "recomputed", "priced")
    rows = [
        (*row[:5], f"{run.allocated_percent:.2f}", *row[6:]) for run in runs for row in [tuple(asdict(run).values())]
    ]
    if separator:
        return [separator.join(str(value) for value in row) for row in (head, *rows)]
    return ["".join(f"{value:>12}" for value in row) for row in (head, *rows)]
