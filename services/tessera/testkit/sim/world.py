"""One seed: a shard, its clients and its faults, from the first submit until everything has ended and was checked."""

import asyncio
import gc
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from traceback import format_exception
from typing import Any

import orjson

from tessera.client.ledger.replay import verify
from tessera.domain.state import State
from tessera.kernel.errors import Full, KernelError
from tessera.kernel.ledger.shard import Shard
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.kernel.tasks.task_group import cancel_all
from tessera.testkit.account_checker import AccountSaid, check_account
from tessera.testkit.bookings_checker import check_bookings
from tessera.testkit.checker import PodChange, check
from tessera.testkit.datasets_checker import check_datasets
from tessera.testkit.events_checker import check_events
from tessera.testkit.pays_checker import check_pays
from tessera.testkit.relations_checker import check_relations
from tessera.testkit.rules_checker import check_rules
from tessera.testkit.sessions_checker import check_sessions
from tessera.testkit.sim.chaos import Chaos
from tessera.testkit.sim.coverage import NAMED_POINTS, SIMULATED, Coverage, seen_on
from tessera.testkit.sim.devices.drivers import GPU_DRIVER, Drivers
from tessera.testkit.sim.devices.parks import DRIVEN, ZONED, park_of, rows_of, suited
from tessera.testkit.sim.devices.pieces import answer_offers, submit_pieces
from tessera.testkit.sim.devices.zones import ZoneExporter
from tessera.testkit.sim.faults import Rates, ServiceFaults
from tessera.testkit.sim.guard import SEED_SECONDS, SeedFailed, guarded
from tessera.testkit.sim.loop import VirtualLoop
from tessera.testkit.sim.rolling import RollingOperator
from tessera.testkit.sim.services import SHARD, SimulatedServices
from tessera.testkit.sim.users import (
    Users,
    promise_starts,
    reserve_nodes,
    submit_due,
    submit_hanging,
    submit_neighbours,
    submit_readers,
    submit_sessions,
)
from tessera.testkit.sim.verify import CountedState, digests, fold_stored, stored_account
from tessera.testkit.sim.workload import (
    HUGE_KEY,
    HUGE_TENANT,
    SETTLED,
    Command,
    cancel,
    commands,
    configuration,
    drain,
    release,
    settling,
)
from tessera_local.cluster.in_memory import drive
from tessera_local.cluster.machines.nodes import NodeRow, TaintRow, node_object
from tessera_local.cluster.objects.jobs import JobController
from tessera_schemas.base import job_id
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.commands import REPLY_HEADER
from tessera_schemas.job import JobSpec
from tessera_schemas.subjects import OPERATOR, control, inbox

TWICE = ("admission", "scheduler", "binder")
SLOTS = tuple(slot for name in SIMULATED for slot in ((name, f"{name}/2") if name in TWICE else (name,)))
CHAOS_SECONDS = 12.0
SETTLING_SECONDS = 60.0
QUIET_SECONDS = 300.0
FAULTS_MIN = 5
JOBS = (20, 30)
TRACEBACK_ENTRIES = 6


@dataclass(slots=True)
class SeedOutcome:
    """Outcome of one seed."""

    seed: int
    violations: list[str]
    coverage: Coverage
    jobs: int = 0
    records: int = 0
    ledger_hash: str = ""
    virtual_seconds: float = 0.0
    examined: dict[str, int] = field(default_factory=dict)


class World:
    def __init__(self, seed: int, loop: VirtualLoop, groups: Sequence[Sequence[str]] = ()) -> None:
        self.seed, self.loop, self.park = seed, loop, park_of(seed)
        self.random = Random(seed)
        self.coverage = Coverage()
        self.rates = Rates(Random(seed + 1))
        self.services = SimulatedServices(loop, Random(seed + 2), self.rates, self.coverage, groups=groups)
        self.acknowledged: list[tuple[str, str]] = []
        self.asked: dict[str, list[JobSpec | None]] = {}
        """Specs by the job id that they were sent for; None: of a template."""
        self._cancels: dict[str, Command] = {}
        self.pods: list[PodChange] = []
        self._shard = Shard(CountedState(self.coverage))
        clock = self.services.clock
        by_operator = ServiceFaults("operator", clock, self.rates, self.coverage, lambda _: None)
        self._rolling = RollingOperator(self.services.broker, SHARD, clock, Random(seed + 5), by_operator)
        drawn = Random(seed + 6)
        driven = (DRIVEN,) if self.park == "published" else ()
        nodes = ("gpu-a", "gpu-c", *driven)  # on that one two drivers have a pool of one name
        drivers = Drivers(self.services.cluster, clock, drawn, nodes, self.coverage, self.state)
        drawn = Random(seed + 8)
        gpus = Drivers(self.services.cluster, clock, drawn, driven, self.coverage, self.state, GPU_DRIVER)
        zoned = (ZONED,) if self.park == "zones" else ()
        zones = ZoneExporter(self.services.cluster, clock, Random(seed + 7), zoned, self.coverage)
        self._around_devices = (drivers, gpus, zones)
        self._clients = MemoryBus(
            self.services.broker,
            "client",
            ServiceFaults("client", self.services.clock, self.rates, self.coverage, lambda _: None),
        )

    async def run(self) -> SeedOutcome:
        """Runs the seed to its end and returns what came of it, with every violation that was found."""
        nodes = self.make_nodes()
        self._record_pods()
        rolling = self._rolling.work(self.coverage)
        around = [self.loop.create_task(going) for going in (*self.around(), *self._users(), rolling)]
        for slot in SLOTS:
            self.services.start(slot)
        half = len(NAMED_POINTS) // 2  # two points that lie so far apart are of two services
        points = [NAMED_POINTS[(self.seed + ahead) % len(NAMED_POINTS)] for ahead in (0, half)]
        evicts = any(point.startswith("preemption") for point in points)  # it is to say something in this run
        jobs = self.random.randrange(*JOBS) * (2 if evicts else 1)
        script = [configuration(SHARD, self.random, evicts=evicts)]
        script += commands(SHARD, self.random, jobs, CHAOS_SECONDS * 0.7, evicts)
        script += submit_neighbours(SHARD, Random(f"neighbours {self.seed}"), CHAOS_SECONDS * 0.7)
        script += submit_readers(SHARD, Random(f"readers {self.seed}"), CHAOS_SECONDS * 0.7)
        script += submit_sessions(SHARD, Random(f"sessions {self.seed}"), CHAOS_SECONDS * 0.7)
        script += submit_due(SHARD, Random(f"due {self.seed}"), CHAOS_SECONDS * 0.7)
        script += reserve_nodes(SHARD, Random(f"bookings {self.seed}"), CHAOS_SECONDS * 0.7)
        script += promise_starts(SHARD, Random(f"promises {self.seed}"), CHAOS_SECONDS * 0.7)
        script += submit_hanging(SHARD, Random(f"hanging {self.seed}"), CHAOS_SECONDS * 0.7)
        clients = [self.loop.create_task(self.send(suited(self.park, command))) for command in script]
        chaos = Chaos(self.services, Random(self.seed + 3), nodes, CHAOS_SECONDS, points, self.state)
        devices = [self.loop.create_task(each.run(CHAOS_SECONDS)) for each in self._around_devices]
        await chaos.run()
        await cancel_all(*devices)
        for ended in (each for each in devices if not each.cancelled()):
            ended.result()
        for each in self._around_devices:
            each.end()
        await asyncio.gather(*clients)
        await self.send(cancel(SHARD, HUGE_TENANT, HUGE_KEY))
        await self._settle()
        if not self.park:
            await submit_pieces(self.seed, SHARD, self.services.clock, self.state, self.send)
        drained = await self.drain()
        said = await stored_account(MemoryBus(self.services.broker, "checker"), SHARD)
        outcome = self._judge(drained, said)
        for task in around:
            task.cancel()
        await self.services.close()
        outcome.violations += self.services.violations
        if sum(self.coverage.faults.values()) < FAULTS_MIN or not self.coverage.crashes["scheduler"]:
            outcome.violations.append(f"a tame seed: fewer than {FAULTS_MIN} faults, or no crash of the committer")
        outcome.jobs = jobs
        return outcome

    def around(self) -> list[Coroutine[Any, Any, None]]:
        """The cluster's own life: kubelets, and the controller of Jobs."""
        cluster, clock = self.services.cluster, self.services.clock
        return [drive(cluster, clock), JobController(cluster, clock).run()]

    def _users(self) -> list[Coroutine[Any, Any, None]]:
        """Users who make pods and Jobs at the cluster itself, and programs that are asked whether they move."""
        users = Users(self.services.cluster, self.services.clock, Random(self.seed + 4))
        moved = answer_offers(SHARD, Random(self.seed + 9), self.services.clock, self.state, self.send)
        return [users.work(CHAOS_SECONDS * 0.7), users.tidy(), moved]

    def state(self) -> State:
        """The shard's state as the stored ledger has it."""
        return fold_stored(self._rolling.archive, self._shard, self.coverage.message)

    async def _settle(self) -> None:
        """
        Settles as operators do in the end: nothing is stopped, drained, held or out of quota any more.

        Clocks are set right, too: a job whose begin time an hour's error has put off waits that long, and should. A
        tenant's command whose delivery was lost comes again much later, behind younger ones: a hold after release, or a
        submit after the cancel without which the job would not end.
        """
        self.services.set_clocks_right()
        deadline = self.loop.time() + SETTLING_SECONDS
        while self.loop.time() < deadline:
            state = self.state()
            left = [drain(SHARD, node, undo=True) for node, _ in state.drains.items()]
            left += [release(SHARD, job.job_id) for job in state.jobs.values() if job.held]
            left += [settling(SHARD, state.config.version)] if state.config.body != SETTLED else []
            left += [self._cancels.pop(job) for job in list(self._cancels) if state.jobs.get(job) is not None]
            if not left and not self._commands_wait() and not self._facts_wait(state):
                return  # a job that came held may have been submitted, and not yet have been taken in
            for command in left:
                await self.send(command)
            await self.services.clock.sleep(2.0)

    def make_nodes(self) -> list[NodeRow]:
        """Nodes of the cluster: GPUs of several models, shares, MIG, two kinds of taints, and those of the park."""
        rows = [
            NodeRow(name="gpu-a", cpu="64", memory="256Gi", gpus=8, gpu_model="H100"),
            NodeRow(name="gpu-b", cpu="64", memory="256Gi", gpus=8, gpu_model="A100", device_profile="visible-devices"),
            NodeRow(
                name="gpu-c",
                cpu="32",
                memory="128Gi",
                gpus=4,
                gpu_model="A100",
                taints=(TaintRow(key=GPU_RESOURCE, value="present", effect="NoSchedule"),),
            ),
            NodeRow(
                name="gpu-d", cpu="32", memory="128Gi", gpus=4, taints=(TaintRow(key="dedicated", effect="NoSchedule"),)
            ),
            NodeRow(name="mig-a", cpu="16", memory="64Gi", gpu_memory="80Gi", device_profile="mig", mig={"1g.10gb": 3}),
            *rows_of(self.park),
        ]
        for row in rows:
            self.services.cluster.create("nodes", "", node_object(row, row.name))
        for each in self._around_devices:
            each.begin()
        return rows

    def _record_pods(self) -> None:
        """
        Every change of a pod with the ledger's n at that moment, for the checker.

        Devices are held by what the kubelets run, not by objects: a pod whose object is gone under its containers is
        still there.
        """
        watch = self.services.cluster.open_watch("pods", self.services.cluster.resource_version)
        ledger = self.services.broker.stream(f"LEDGER_{SHARD}")

        def take() -> None:
            for kind, data in watch.take():
                last = ledger.last(f"ledger.{SHARD}")
                pod = orjson.loads(data)
                if kind == "DELETED" and self.services.cluster.still_runs(pod):
                    kind = "MODIFIED"
                self.pods.append(PodChange(kind, pod, 0 if last is None else last.seq))
                for seen in seen_on(pod):
                    self.coverage.fault(seen)
            if watch.closed:  # a fault that is meant for the services
                self._record_pods()

        watch.on_ready = take

    async def send(self, command: Command) -> None:
        """Sends as the SDK does: the same bytes again until they are acknowledged."""
        await self.services.clock.sleep(max(0.0, command.at - self.loop.time()))
        if command.key:
            self.asked.setdefault(job_id(SHARD, command.tenant, command.key), []).append(command.spec)
        while True:
            try:
                await self._clients.publish(Outgoing(command.subject, command.data, headers=answered(command)))
                break
            except Full:
                await self.services.clock.sleep(1.0)
            except KernelError:
                await self.services.clock.sleep(0.2)
        if command.key:
            self.acknowledged.append((command.tenant, command.key))
        if command.cancels:
            self._cancels[command.cancels] = command

    async def drain(self) -> bool:
        """Give everything time to end, as long as jobs do: an array of few at once may be long; True when all has."""
        ended, deadline = 0, self.loop.time() + QUIET_SECONDS
        while self.loop.time() < deadline:
            await self.services.clock.sleep(1.0)
            self.state()  # counts what is new
            if (now := self.coverage.records["finished"]) > ended:
                ended, deadline = now, self.loop.time() + QUIET_SECONDS
            if await self._is_quiet():
                await self.services.clock.sleep(3.0)
                if await self._is_quiet():
                    return True
        return False

    def _commands_wait(self) -> bool:
        return any(self.services.broker.stream(f"{name}_{SHARD}").messages for name in ("SUBMIT", "CONTROL"))

    def _facts_wait(self, state: State) -> bool:
        """Whether a fact is stored that the committer has not taken in."""
        return state.facts_upto < max(self.services.broker.stream(f"FACTS_{SHARD}").messages, default=0)

    async def _is_quiet(self) -> bool:
        if self._commands_wait():
            return False
        cluster = self.services.cluster
        if any(cluster.list(kind)[0] for kind in ("pods", "services", "jobs")):
            return False
        state, views = self.state(), self.services.views.current
        if self._facts_wait(state):
            return False
        return not len(state.jobs) and not len(state.runs) and views is not None and views.cursor == state.n

    def _judge(self, drained: bool, said: AccountSaid | None) -> SeedOutcome:
        broker, state = self.services.broker, self.state()
        stored = [self._rolling.archive[n].data for n in range(1, state.n + 1)]
        events = [(m.subject, m.headers, m.data) for m in broker.stream(f"EVENTS_{SHARD}").messages.values()]
        report = check(
            stored,
            pods=self.pods,
            acknowledged=self.acknowledged,
            digests=digests(self.services.views, state),
            drained=True,
        )
        check_events(report, stored, events, drained=True)
        check_rules(report, stored, self.asked)
        check_pays(report, stored)
        check_relations(report, stored)
        check_bookings(report, stored)
        check_datasets(report, stored, {node.name: node.kept_data for node in state.nodes.values()})
        check_sessions(report, stored, [(change.n, change.object) for change in self.pods])
        if report.demand(said is not None, "account", 0, "no account is stored") and said is not None:
            check_account(report, stored, said)
        violations = [f"{v.invariant} at {v.n}: {v.text}" for v in report.violations]
        if not drained:
            violations.insert(0, f"I12: not drained {QUIET_SECONDS:.0f} s after the last job that ended")
        violations += [f"replay: {finding}" for finding in verify(stored).findings]
        return SeedOutcome(
            self.seed,
            violations,
            self.coverage,
            records=len(stored),
            ledger_hash=state.chain,
            virtual_seconds=self.loop.time(),
            examined=dict(report.examined),
        )


def answered(command: Command) -> dict[str, str]:
    """Every sender wants its answer, though nobody reads it here."""
    sender = OPERATOR if command.subject.startswith(control(SHARD)) else command.subject.split(".")[2]
    return {REPLY_HEADER: f"{inbox(sender)}.client"}


def run_seed(seed: int, seconds: float = SEED_SECONDS) -> SeedOutcome:
    """Run one seed from beginning to end. Raises SeedFailed, which names it, when it does not get there in time."""
    with guarded(seed, seconds):
        loop = VirtualLoop()
        try:
            asyncio.set_event_loop(loop)
            outcome = loop.run_until_complete(World(seed, loop).run())
            loop.run_until_complete(_end_all_tasks())
            return outcome
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def judge_seed(seed: int, seconds: float = SEED_SECONDS) -> SeedOutcome:
    """
    The same; a seed that does not come to its end is one that fails, beside the others.

    What it leaves are cycles of some 5 MB, which nobody would look for in hundreds of seeds.
    """
    try:
        return run_seed(seed, seconds)
    except SeedFailed as failed:
        told = "".join(format_exception(failed.__cause__)[-TRACEBACK_ENTRIES:]).rstrip()
        return SeedOutcome(seed, [f"{failed}\n{told}"], Coverage())
    finally:
        gc.collect()


async def _end_all_tasks() -> None:
    """Crashed services may still be on their way out."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
