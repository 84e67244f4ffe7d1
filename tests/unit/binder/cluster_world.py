"""
Binder and reclamation at a simulated cluster, in virtual time, with the committer's own decisions and nothing between.

What they say is committed at each turn as the scheduler would, in the order in which it was said.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

from tessera.binder.adoption.assembly import UsersWork
from tessera.binder.decide.steps import read_pod
from tessera.binder.devices.reports import DeviceReports
from tessera.binder.handlers import Runs
from tessera.binder.nodes.fenced_nodes import FencedNodes
from tessera.binder.nodes.other_ledgers import OtherLedgers
from tessera.binder.nodes.others import OthersByNode, informers_of_others
from tessera.binder.nodes.ownership import Ownership
from tessera.binder.nodes.uses import only_what_is_read
from tessera.binder.nodes.watching import NodeReports
from tessera.binder.settings import BinderSettings
from tessera.domain.entities import Job, Run
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.kubernetes.looks import Looks
from tessera.kernel.kubernetes.node_troubles import NodeTroubles
from tessera.kernel.kubernetes.pods_by_run import PodsByRun
from tessera.kernel.kubernetes.users_pods import UsersPods
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import ApiError, Message, WatchEvent
from tessera.kernel.process.leases import PARTITIONS, Members
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.kernel.tasks.freshness import Freshness, keep_looking
from tessera.reclamation.absence.handlers import Absences, GonePods, only_what_is_judged
from tessera.reclamation.fencing.handlers import Fences
from tessera.reclamation.fencing.webhook import PowerSwitch
from tessera.reclamation.health.handlers import CountersOfNodes, HealthLooks
from tessera.reclamation.idle_runs.handlers import Idleness, Utilisation
from tessera.reclamation.lost_runs.handlers import LostRuns
from tessera.reclamation.node_tests import NodeTestProposals
from tessera.reclamation.progress.handlers import ProgressLooks
from tessera.reclamation.settings import ReclamationSettings
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.in_memory import MemoryCluster, drive
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_local.cluster.objects.store import Options
from tessera_schemas.base import Json
from tessera_schemas.cluster.health import HealthPolicy
from tessera_schemas.cluster.labels import NAMES_US, RUN_LABEL, USERS_PODS, pods_of_shard
from tessera_schemas.config import Policy
from tessera_schemas.facts import FACT_MESSAGE, AnyFact
from tessera_schemas.job import JobSpec, Retry, Role, Template
from tessera_schemas.ledger import AnyRecord, LedgerMessage
from tests.builders import SHARD, admitted, config_body, job_spec, role
from tests.ledgers import Committed
from tests.virtual_time import VirtualClock

TURN_SECONDS = 0.25
RESERVED = "tessera.io/simulate-"


class Everything:
    """A replica that works alone."""

    count = 1

    def partitions(self) -> frozenset[int]:
        return frozenset(range(PARTITIONS))


class NoLedger:
    """A ledger from which the binder fetches what it has forgotten."""

    def __init__(self, books: Committed) -> None:
        self._books, self.is_away = books, False

    async def read(self, n: int) -> Message:
        if self.is_away:
            raise Transient("no responders")
        return Message("", n, self._books.stored[n - 1])

    async def tail(self) -> Message:
        return await self.read(len(self._books.stored))


class Hanging(MemoryCluster):
    """A cluster whose watches may hang: nothing comes, and nothing fails; and that may not let us read events."""

    hangs = False
    hides_events = False
    events_asked = 0

    async def list_events(self, namespace: str, uid: str) -> list[Json]:
        self.events_asked += 1
        if self.hides_events:
            raise ApiError(403, "Forbidden", 'events is forbidden: User "binder" cannot list resource "events"')
        return await super().list_events(namespace, uid)

    async def watch(self, *args: Any) -> AsyncIterator[WatchEvent]:
        async for event in super().watch(*args):
            while self.hangs:
                await self._clock.sleep(0.5)
            yield event


BEGIN_MS = 3000
"""What the messages take that `Committed.begin` writes."""


class OwnClock:
    """A process's clocks: the wall clock may be wrong."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self.ahead_ms = clock, 0

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.ahead_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


class World:
    """
    `nodes` have `gpus` of a device plugin each, and start pods `start_ms` after their bind. Use it as a context; `run`
    lets time pass.
    """

    def __init__(
        self,
        nodes: tuple[str, ...] = ("node-a", "node-b"),
        policy: Policy | None = None,
        utilisation: Utilisation | None = None,
        counters: CountersOfNodes | None = None,
        health: HealthPolicy | None = None,
        beside: "World | None" = None,
        start_ms: int = 5,
        gpus: int = 8,
        switch: PowerSwitch | None = None,
        **settings: Any,
    ) -> None:
        """
        `switch` turns lost nodes off. `beside` is an installation that has the same cluster, with NATS and a ledger of
        its own.
        """
        self.clock = VirtualClock() if beside is None else beside.clock
        self.core = SimCluster(self.clock, options=Options(start_ms=start_ms)) if beside is None else beside.core
        self._beside = beside
        self.broker = MemoryBroker(self.clock)
        self.broker.add_shard(SHARD)
        # What begins a ledger is written before now, so that none of its times are yet to come.
        self.books = Committed(ts=self.clock.now_ms() - BEGIN_MS, name="tx" if beside is None else "second")
        self.records: list[AnyRecord] = []
        self.facts: list[AnyFact] = []
        self._utilisation, self._counters, self._settings = utilisation, counters, settings
        self._switch = switch
        self._cursor = 0
        self.clock_of: dict[str, OwnClock] = {}
        self._cluster_of: dict[str, Hanging] = {}
        self._ledger_of: dict[str, NoLedger] = {}
        self.metrics: dict[str, Metrics] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._has_listener: dict[str, Any] = {}
        self.books.begin(body=config_body(policy=policy or Policy(node_lost_seconds=30), health=health))
        for name in nodes:
            self.core.create("nodes", "", node_object(NodeRow(name=name, cpu="64", memory="512Gi", gpus=gpus), name))

    async def __aenter__(self) -> "World":
        if self._beside is None:
            self._tasks["cluster"] = [asyncio.create_task(drive(self.core, self.clock))]
        self.start_binder()
        self.start_reclamation()
        await self.run(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self._tasks):
            await self.stop(name)

    async def stop(self, name: str) -> None:
        tasks = self._tasks.pop(name)
        self._has_listener.pop(name, None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def start_binder(self) -> None:
        """A new one, that remembers nothing."""
        ports, settings = self._ports("binder"), BinderSettings(**self._mine(BinderSettings))
        pods, nodes = (
            Informer(ports.cluster, "pods", self.clock, pods_of_shard(SHARD), reduce=only_what_is_read),
            Informer(ports.cluster, "nodes", self.clock),
        )
        members = cast(Members, Everything())
        fresh = Freshness(self.clock)
        troubles = NodeTroubles(nodes, self.clock, settings.node_gone_seconds, fresh)
        looks = Looks(ports.cluster, ports.ledger, self.state, nodes, (pods,), troubles.counted)
        ownership = Ownership(nodes, ports.cluster, self.clock, SHARD)
        users = UsersWork(ports, settings, self.state, members, fresh)
        by_run = PodsByRun(pods, read_pod)
        runs = Runs(ports, settings, self.state, by_run, troubles, ownership, members, users.runs, fresh)
        others = OthersByNode(informers_of_others(ports.cluster, self.clock), users.pods)
        facts, seconds = Facts(ports.bus, SHARD, "binder"), settings.others_seconds
        devices = DeviceReports(ports.cluster, facts, self.state, members, self.clock)
        seen = NodeReports(nodes, others, devices, ownership, facts, self.state, members, self.clock, seconds)
        users.listeners += [runs.on_users, seen.on_users]
        users.on_run_ready = runs.worklist.name
        self.strangers = OtherLedgers(self.state, ports.metrics)
        runs.listeners += [seen.on_pods, self.strangers.take]

        async def on_ledger(entries: list[Entry]) -> None:
            await runs.on_ledger(entries)
            await users.on_ledger(entries)
            await devices.on_ledger(entries)

        self._has_listener["binder"] = on_ledger
        fenced = FencedNodes(nodes, ports.cluster, self.state, members, self.clock)
        node_loops = (
            seen.follow(),
            *(seen.follow_others(informer) for informer in others.informers),
            seen.resync(settings.resync_seconds),
            seen.worklist.run(),
            *devices.loops(settings.resync_seconds),
        )
        loops = (
            keep_looking(fresh, self.clock, looks.look),
            runs.follow_pods(),
            runs.follow_services(),
            runs.published.follow(),
            runs.resync(),
            runs.worklist.run(),
            runs.events.publish(),
            runs.warnings.read(),
            fenced.work(),
        )
        self._start("binder", *loops, *node_loops, *users.loops())

    def start_reclamation(self) -> None:
        """A new one, that remembers nothing."""
        ports, settings = self._ports("reclamation"), ReclamationSettings(**self._mine(ReclamationSettings))
        gone = GonePods(self.state)
        ours = Informer(ports.cluster, "pods", self.clock, pods_of_shard(SHARD))
        pods: PodsByRun[Json] = PodsByRun(ours, dict, gone.note)
        nodes, members = Informer(ports.cluster, "nodes", self.clock), cast(Members, Everything())
        informer = Informer(ports.cluster, "pods", self.clock, USERS_PODS, NAMES_US, only_what_is_judged)
        users: UsersPods[Json] = UsersPods(informer, dict, gone.note)
        absences = Absences(ports, settings, self.state, pods, users, members, gone)
        fresh = Freshness(self.clock)
        troubles = NodeTroubles(nodes, self.clock, settings.node_gone_seconds, fresh)
        looks = Looks(ports.cluster, ports.ledger, self.state, nodes, (ours, informer), troubles.counted)
        losses = LostRuns(ports, settings, self.state, pods, users, troubles, members, fresh)
        measured = self._utilisation and Idleness(ports, settings, self.state, self._utilisation, members)
        unused = measured.unused_seconds if measured else lambda _: 0
        progress = ProgressLooks(ports, settings, self.state, pods, members, fresh, unused)
        parts: list[Any] = [absences, losses, progress]
        follow = (absences.follow_pods(), absences.follow_users(), _drain(nodes))
        health = HealthLooks(ports, settings, self.state, nodes, members, self._counters)
        reports = absences.report(), losses.report(), health.report(), progress.report()
        tests = NodeTestProposals(ports, SHARD, self.state, members)
        loops = [keep_looking(fresh, self.clock, looks.look), *follow, *reports, tests.propose()]
        if measured:
            parts.insert(0, measured)
            loops.append(measured.report())
        if self._switch is not None:
            loops.append(Fences(ports, settings, self.state, nodes, troubles, members, self._switch, fresh).work())

        async def on_ledger(entries: list[Entry]) -> None:
            for part in parts:
                await part.on_ledger(entries)

        self._has_listener["reclamation"] = on_ledger
        self._start("reclamation", *loops)

    # -- time, and what is committed as it passes

    async def run(self, seconds: float, turn: float = TURN_SECONDS) -> None:
        """Let time pass; what was said is committed every `turn` seconds."""
        for _ in range(round(seconds / turn)):
            await self.clock.run(turn)
            await self.turn()

    async def turn(self) -> None:
        stored = self.broker.stream(f"FACTS_{SHARD}").messages
        new = [FACT_MESSAGE.validate_json(stored[seq].data).fact for seq in sorted(stored) if seq > self._cursor]
        self._cursor = max(stored, default=0)
        waiting = any(self.state.index.waiting.values())
        start_by = self.state.index.start_by
        due = start_by and start_by[0][0] <= self.clock.now_ms()
        if new or waiting or due or self.state.index.elastic or self.state.index.restarting:
            await self.commit(*new)

    async def commit(self, *facts: AnyFact) -> LedgerMessage:
        self.facts += facts
        orders = (self.books.line(),) if any(self.state.index.waiting.values()) else ()
        passed_ms = max(0, self.clock.now_ms() - self.books.ts)
        message = self.books.commit(*facts, orders=orders, ms=passed_ms)
        self.records += message.records
        for hear in list(self._has_listener.values()):
            await hear([Entry(message, self.books.stored[-1])])
        return message

    # -- what tests ask for

    @property
    def state(self) -> Any:
        return self.books.state

    async def submit(self, key: str = "k1", spec: JobSpec | None = None) -> str:
        """Its job id, once it runs."""
        fact = admitted(key, spec or train())
        await self.commit(fact)
        await self.run(3)
        assert self.job(fact.job_id).phase == "running", self.job(fact.job_id)
        return fact.job_id

    def job(self, job_id: str) -> Job:
        found: Job = self.state.jobs.get(job_id) or self.state.ended.get(job_id)
        return found

    def current(self, job_id: str) -> Run:
        run: Run = self.state.runs.get(self.job(job_id).run_id)
        return run

    def nodes_of(self, job_id: str) -> set[str]:
        return {placement.node for placement in self.current(job_id).placements}

    def pods(self, run_id: str = "") -> list[Json]:
        found, _ = self.core.list("pods", f"{RUN_LABEL}={run_id}" if run_id else "")
        return [version.object for version in found]

    def kinds(self) -> list[str]:
        return [record.kind for record in self.records]

    def measured(self, name: str) -> float | None:
        """A metric of reclamation's."""
        return self.metrics["reclamation"].registry.get_sample_value(name)

    def said(self, kind: str) -> list[Any]:
        return [fact for fact in self.facts if fact.kind == kind]

    @property
    def api(self) -> Hanging:
        """The binder's way to the cluster."""
        return self._cluster_of["binder"]

    # -- absence

    @asynccontextmanager
    async def cut_off(self, name: str, road: str) -> AsyncIterator[None]:
        """One service without the API server (`cluster`) or the ledger's leader (`ledger`)."""
        cluster, ledger = self._cluster_of[name], self._ledger_of[name]

        async def refuse(_operation: str) -> None:
            raise Transient("connection refused")

        before = cluster.before
        if road == "cluster":
            cluster.before = refuse
            self.core.close_watches()
        ledger.is_away = road == "ledger"
        yield
        cluster.before, ledger.is_away = before, False

    @asynccontextmanager
    async def hanging_watches(self, name: str) -> AsyncIterator[None]:
        """One service whose watches bring nothing any more."""
        self._cluster_of[name].hangs = True
        yield
        self._cluster_of[name].hangs = False

    # -- wiring

    def _mine(self, model: Any) -> dict[str, Any]:
        return {name: value for name, value in self._settings.items() if name in model.model_fields}

    def _ports(self, name: str) -> Ports:
        metrics = self.metrics[name] = Metrics(name)
        clock = self.clock_of[name] = OwnClock(self.clock)
        cluster = self._cluster_of[name] = Hanging(self.core, clock, name)
        ledger = self._ledger_of[name] = NoLedger(self.books)
        return Ports(
            clock=clock,
            bus=MemoryBus(self.broker, name),
            ledger=cast(Any, ledger),
            store=cast(Any, None),
            cluster=cluster,
            health=Health(self.clock, metrics),
            metrics=metrics,
            instance=f"{name}-1",
            new_tx=lambda: "",
        )

    def _start(self, name: str, *loops: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = [asyncio.create_task(loop) for loop in loops]


async def _drain(informer: Informer) -> None:
    while True:
        await informer.next()


def train(
    replicas: int = 1,
    gpus: int = 1,
    seconds: float = 600,
    saves_every: float = 0,
    notice: int | None = None,
    **more: Any,
) -> JobSpec:
    """A gang that trains for `seconds`; with `notice` it declares checkpoints, with `saves_every` it makes them."""
    behaviour = {f"{RESERVED}seconds": str(seconds), f"{RESERVED}checkpoint-seconds": str(saves_every)}
    plain = role(replicas=replicas, gpus=gpus)
    worker: Role = plain.model_copy(update={"template": Template(image="train:1", annotations=behaviour)})
    declared = {} if notice is None else {"checkpoint": {"interval_seconds": 60, "notice_seconds": notice}}
    defaults: dict[str, Any] = {
        "retry": Retry(backoff_seconds=0),
        "ttl_seconds_after_finished": 0,
        "termination_grace_seconds": 5,
    }
    return JobSpec.model_validate(job_spec(worker, **defaults | more).model_dump() | declared)
