"""A gateway on loopback before an in-memory shard: a real listener, real requests, all else in this process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from tessera.admission.decide.outcome import Origin, judge_operator_command
from tessera.admission.decide.policy import AdmissionPolicy, templates_of, tree_of
from tessera.admission.decide.templates import ExpandedJob, from_template
from tessera.gateway.entrance.tokens import FILE_NAME, Only, add_token
from tessera.gateway.main import serve
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.clock import SystemClock
from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker, Stream
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.ports import ApiError, Message, Outgoing
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.projection.events import events_of
from tessera.projection.views import all_views
from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.commands import REPLY_HEADER, TENANT_COMMAND, Answer, SubmitJob, SubmitTemplate
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.text.reading import read_health_report, read_reservation, read_tenant_command
from tests.builders import SHARD, node_seen
from tests.ledgers import Committed

Json = dict[str, Any]
SECONDS = 60.0


class Away:
    """A store or bus that may fail or hang; the calls whose name or subject begins with `only`."""

    def __init__(self, only: str = "") -> None:
        self.error: Exception | None = None
        self.only = only
        self._there = asyncio.Event()
        self.come_back()

    def go_away(self, error: Exception | None) -> None:
        """Every call raises `error`; with None it hangs until `come_back`."""
        self.error = error
        if error is None:
            self._there.clear()

    def come_back(self) -> None:
        self.error = None
        self._there.set()

    async def before(self, op: str, subject: str = "") -> None:
        if (subject or op).startswith(self.only):
            await self._there.wait()
            if self.error is not None:
                raise self.error

    async def after(self, op: str, subject: str = "") -> None: ...

    def deliver(self, batch: list[Any]) -> list[Any]:
        return batch


@dataclass
class Said:
    """An answer: status, headers, decoded body."""

    status: int
    headers: dict[str, str]
    body: Json

    @property
    def code(self) -> str:
        return str(self.body.get("code"))


@dataclass
class Event:
    """One block of a stream; `name` is "" for an ordinary event."""

    id: int
    name: str
    data: Json


@dataclass
class World:
    """`committed` is the shard's truth; `commit` makes ledger, views and events follow it."""

    directory: Path
    clock: SystemClock = field(default_factory=SystemClock)
    committed: Committed = field(default_factory=Committed)
    store_faults: Away = field(default_factory=Away)
    bus_faults: Away = field(default_factory=Away)
    answers: bool = True
    commands: list[tuple[str, Json]] = field(default_factory=list)
    subjects: list[str] = field(default_factory=list)
    judge: Callable[[str, Json], Answer] | None = None
    port: int = 0
    cluster: Any = None
    tokens: dict[str, str] = field(default_factory=dict)
    ended_max: int = 100
    """So many ended jobs are shown."""
    name: str = "gateway-1"
    broker: Any = None
    views: Any = None
    """Another world's, to have two gateways of one shard."""

    def __post_init__(self) -> None:
        if self.broker is None:
            self.broker, self.views = MemoryBroker(self.clock), MemoryViews(self.clock)
            self.broker.add_shard(SHARD)
        self.tokens_file = self.directory / FILE_NAME
        self.stop = asyncio.Event()
        self._told = 0

    def token(self, tenant: str | None, user: str = "", only: Only | None = None, source: str | None = None) -> str:
        return add_token(self.tokens_file, tenant, user, only, source)

    def stream(self, kind: str) -> Stream:
        return self.broker.stream(subjects.stream(kind, SHARD))

    async def publish_what_is_committed(self) -> None:
        """As scheduler and projection would: ledger, events, views."""
        for data in self.committed.stored[self._told :]:
            entry = decode_entry(Message("", LEDGER_MESSAGE.validate_json(data).n, data))
            for event in events_of(SHARD, entry.message, self._before):
                self.broker.store(Outgoing(event.subject, event.data))
            self.broker.store(Outgoing(subjects.ledger(SHARD), data))
            self._shadow.fold(entry)
        self._told = len(self.committed.stored)
        store = MemoryStore(self.views)
        await store.replace(self.committed.state.n, list(all_views(self.committed.state, self.ended_max)))

    @property
    def _shadow(self) -> Any:
        if not hasattr(self, "_shadow_shard"):
            self._shadow_shard = Committed()
        return self._shadow_shard.shard

    @property
    def _before(self) -> Any:
        return self._shadow.state

    async def commit(self, *facts: Any, **more: Any) -> None:
        self.committed.commit(*facts, **more)
        await self.publish_what_is_committed()

    def event(self, tenant: str, text: str = "x", kind: str = "job.waiting.v1", queue: str = "research") -> int:
        """An event that nothing stands behind; returns its sequence."""
        data = orjson.dumps({"type": f"io.tessera.{kind}", "tenant": tenant, "data": {"job_id": text}})
        return self.broker.store(Outgoing(subjects.event(SHARD, tenant, queue, kind), data))

    def ports(self) -> Ports:
        bus, metrics = MemoryBus(self.broker, "gateway", self.bus_faults), Metrics("gateway")
        store = MemoryStore(self.views, self.store_faults)
        health = Health(self.clock, metrics)
        return Ports(self.clock, bus, StreamLedger(bus, SHARD), store, self.cluster, health, metrics, self.name, str)

    @asynccontextmanager
    async def gateway(self, **settings: Any) -> AsyncIterator["World"]:
        """It listens, and admission answers."""
        port_file = self.directory / "api.port"
        port_file.unlink(missing_ok=True)
        given = {"api_port": 0, "api_port_file": port_file, "tokens_file": self.tokens_file, **settings}
        self.stop, ports = asyncio.Event(), self.ports()
        self.metrics, self.health = ports.metrics, ports.health
        tasks = [
            asyncio.create_task(serve(ports, GatewaySettings(**given), self.stop)),
            asyncio.create_task(self._admission()),
            asyncio.create_task(self._controls()),
        ]
        try:
            async with asyncio.timeout(SECONDS):
                while not port_file.exists():
                    if tasks[0].done():
                        tasks[0].result()
                    await asyncio.sleep(0.005)
            self.port = int(port_file.read_text())
            self._serving = tasks[0]
            yield self
            self.stop.set()
            if not tasks[0].done():
                await asyncio.wait_for(tasks[0], SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def ended(self) -> None:
        """Wait until the gateway has ended by itself; raises what it raised."""
        await asyncio.wait_for(asyncio.shield(self._serving), SECONDS)

    def measured(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, {**labels}) or 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, method: str, path: str, token: str | None = None, json: Any = None, **more: Any) -> Said:
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if json is not None:
            more["data"] = orjson.dumps(json)
            headers.setdefault("Content-Type", "application/json")
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.request(method, f"{self.url}{path}", headers=headers, **more) as answer,
        ):
            return Said(answer.status, dict(answer.headers), await answer.json(content_type=None) or {})

    @asynccontextmanager
    async def streaming(self, path: str, token: str, **headers: str) -> AsyncIterator["Streamed"]:
        headers = {"Authorization": f"Bearer {token}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        async with (
            aiohttp.ClientSession(read_bufsize=1 << 22) as http,
            http.get(f"{self.url}{path}", headers=headers) as answer,
        ):
            assert answer.status == 200, await answer.text()
            yield Streamed(answer)

    def _fact(self, tenant: str, data: bytes) -> JobAdmitted:
        command, source = TENANT_COMMAND.validate_json(data), None
        if isinstance(command, SubmitTemplate):
            config = self.committed.state.config
            made = from_template(command, AdmissionPolicy(1, tree_of(config), templates=templates_of(config)))
            assert isinstance(made, ExpandedJob), made
            command, source = made.command, made.source
        assert isinstance(command, SubmitJob)
        job, spec = job_id(SHARD, tenant, command.key), command.spec
        more = {"spec": spec, "held": command.held, "template": source}
        return JobAdmitted(kind="job_admitted", job_id=job, tenant=tenant, key=command.key, **more)

    async def _admission(self) -> None:
        """Answers what is submitted, and admits jobs into the ledger unless `judge` says otherwise."""
        work = MemoryBus(self.broker).work(subjects.stream("SUBMIT", SHARD), "admission")
        while True:
            for delivery in await work.next():
                message = delivery.message
                tenant, command = subjects.sent_by(message.subject)[0], json.loads(message.data)
                self.commands.append((tenant, command))
                self.subjects.append(message.subject)
                unreadable = read_tenant_command(message.data).reasons
                answer = Answer(accepted=not unreadable, reasons=unreadable)
                answer = answer if self.judge is None else self.judge(tenant, command)
                if self.answers:
                    self.broker.send(message.headers[REPLY_HEADER], answer.to_bytes())
                taken_in = answer.accepted and not command.get("dry_run")
                if taken_in and command["kind"] in ("submit_job", "submit_template") and self.answers:
                    await self.commit(self._fact(tenant, message.data))
                await work.ack(delivery)

    async def _controls(self) -> None:
        """Answers reports of health and orders about reservations, and takes them into the ledger while `answers`."""
        work = MemoryBus(self.broker).work(subjects.stream("CONTROL", SHARD), "admission-control")
        while True:
            for delivery in await work.next():
                message = delivery.message
                self.commands.append((subjects.OPERATOR, json.loads(message.data)))
                self.subjects.append(message.subject)
                of_health = message.subject == subjects.health_reports(SHARD)
                parsed = (read_health_report if of_health else read_reservation)(message.data)
                outcome = judge_operator_command(parsed, Origin(SHARD, subjects.OPERATOR, message.seq))
                if self.answers:
                    self.broker.send(message.headers[REPLY_HEADER], outcome.answer.to_bytes())
                if self.answers and outcome.answer.accepted:
                    await self.commit(outcome.fact)
                await work.ack(delivery)


@dataclass
class Kubelet:
    """Pods with what they have written; one in `open` is followed until it is taken out."""

    texts: dict[str, bytes] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    errors: list[Exception] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    reading: asyncio.Event = field(default_factory=asyncio.Event)
    away: Exception | None = None
    """Whoever calls gets this, whatever for."""
    looks: int = 0
    """Calls that ask for no log."""

    async def may(self, *_: Any) -> bool:
        self.looks += 1
        if self.away is not None:
            raise self.away
        return True

    async def read_log(self, namespace: str, name: str, *, follow: bool = False, **_: Any) -> AsyncIterator[bytes]:
        self.asked.append(f"{namespace}/{name}")
        if self.away is not None:
            raise self.away
        if self.errors:
            raise self.errors.pop()
        if name not in self.texts:
            raise ApiError(404, "NotFound", "pods not found")
        yield b""
        yield self.texts[name]
        self.reading.set()
        while follow and name in self.open:
            await asyncio.sleep(0.01)
        if follow:
            yield b"last words\n"


class Streamed:
    """What comes on a stream, block by block."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self.last_id = -1
        self.heartbeats = 0

    async def next(self) -> Event | None:
        """The next block with data; None at the end."""
        block: list[str] = []
        with suppress(aiohttp.ClientPayloadError):
            async with asyncio.timeout(SECONDS):
                async for line in self.answer.content:
                    text = line.decode().rstrip("\n")
                    if text:
                        block.append(text)
                        continue
                    found = self._read(block)
                    block = []
                    if found is not None:
                        return found
        return None

    async def take(self, number: int) -> list[Event]:
        found = [event for _ in range(number) if (event := await self.next()) is not None]
        assert len(found) == number, "the stream ended"
        return found

    def _read(self, block: Sequence[str]) -> Event | None:
        fields = dict(line.split(": ", 1) for line in block if not line.startswith(":"))
        if "id" in fields:
            self.last_id = int(fields["id"])
        if "data" not in fields:
            self.heartbeats += 1
            return None
        return Event(self.last_id, fields.get("event", ""), json.loads(fields["data"]))


async def a_world(directory: Path) -> World:
    """A shard with a configuration and two nodes."""
    world = World(directory)
    world.committed.begin(node_seen("node-a"), node_seen("node-b"))
    await world.publish_what_is_committed()
    return world
