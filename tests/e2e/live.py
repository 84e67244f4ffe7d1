"""
A whole shard as real processes, with a client of each tenant beside it, and everything a test waits for.

What is waited for is read from the ledger itself, folded here, and never from the views: they may be what a test broke.
Every wait has a generous deadline and ends as soon as it can.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis

from tessera.client.connect.connecting import open_bus, open_store
from tessera.client.connect.locating import find
from tessera.client.outcomes import Submitted
from tessera.client.sending.sdk import Tessera
from tessera.domain.state import State
from tessera.domain.work.phases import TERMINAL
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ledger.shard import Shard, decode_entry, restore
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.messaging.requests import Requester
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.redis.store import RedisStore
from tessera.testkit.checker import PodChange
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.cluster.labels import SHARD_LABEL
from tessera_schemas.commands import ApplyConfig
from tessera_schemas.config import ConfigBody, Queue, Quota, Tenant
from tessera_schemas.events import CloudEvent, short_type
from tessera_schemas.job import JobSpec, Resources, Retry, Role, Template
from tessera_schemas.shard.receivers import Subscriber
from tessera_schemas.shard.services import COMPACT, SEPARATE, SERVICES
from tests.forked_command import run_command

SECONDS = 120.0
"""For anything to come to pass, on a machine that does much else; a wait ends as soon as it can."""
TENANTS = ("lab", "ops")
LAYOUT = os.environ.get("TEST_LAYOUT", SEPARATE)  # the same tests against services that share a process
SMALL = os.environ.get("TEST_LAYOUT", COMPACT)
"""Where no service that shares a process there is stopped by itself: nine wait for half a processor's time."""
EVERYTHING = "everything"
GPUS = 32

Json = dict[str, Any]


def configuration(**more: Any) -> ConfigBody:
    """Two tenants, the first with a subscriber to all its events, and a queue whose quota is the whole cluster."""
    quota = Quota(resource="gpu_milli", nominal=GPUS * 1000)
    tenants = tuple(Tenant(name=name, subscribers=(Subscriber(name=EVERYTHING),)) for name in TENANTS)
    return ConfigBody(**{"tenants": tenants, "queues": (Queue(name="default", quotas=(quota,)),)} | more)


def job(
    name: str = "train",
    *,
    gpus: int = 1,
    gpu_milli: int = 0,
    replicas: int = 1,
    seconds: float = 0.1,
    exit_code: int = 0,
    **more: Any,
) -> JobSpec:
    """A job of one role; its pods are cleared away as soon as it has ended, so that none is left over to explain."""
    behaviour = {"tessera.io/simulate-seconds": str(seconds), "tessera.io/simulate-exit-code": str(exit_code)}
    role = Role(
        name="worker",
        replicas=replicas,
        resources=Resources(cpu_milli=1000, memory_bytes=2**30, gpus=gpus, gpu_milli=gpu_milli),
        template=Template(image="train:1", annotations=behaviour),
    )
    defaults = {"queue": "default", "ttl_seconds_after_finished": 0, "termination_grace_seconds": 1}
    retry = Retry(max_attempts=10, backoff_seconds=0)
    return JobSpec(**{"name": name, "roles": (role,), "retry": retry, **defaults, **more})


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, f"ended with {self.code} and printed nothing: {self.err}"
        return json.loads(self.out)


@dataclass
class Live:
    """
    The platform, a connection of each tenant, and what was seen of the ledger and of the pods.

    `acknowledged` are the (tenant, key) of every submit whose publish was acknowledged; `taken_in` are the ids of the
    jobs that a fact in the ledger is about.
    """

    platform: Platform
    bus: NatsBus
    shard_name: str = subjects.MAIN_SHARD
    clients: dict[str, Tessera] = field(default_factory=dict)
    shard: Shard = field(default_factory=Shard)
    stored: list[bytes] = field(default_factory=list)
    pods: list[PodChange] = field(default_factory=list)
    acknowledged: list[tuple[str, str]] = field(default_factory=list)
    taken_in: set[str] = field(default_factory=set)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    looking: list[asyncio.Task[None]] = field(default_factory=list)
    keys: Iterator[str] = field(default_factory=lambda: (f"key-{number}" for number in range(1_000_000)))

    @classmethod
    @asynccontextmanager
    async def at(
        cls,
        directory: Path,
        body: ConfigBody | None = None,
        services: Sequence[str] = SERVICES,
        layout: str = LAYOUT,
    ) -> AsyncIterator["Live"]:
        """Everything started, `body` in force, the tenants connected."""
        platform = Platform(directory, services, tenants=TENANTS, layout=layout)
        async with platform, cls.on(platform, body) as live:
            yield live

    @classmethod
    @asynccontextmanager
    async def on(
        cls, platform: Platform, body: ConfigBody | None = None, shard: str = subjects.MAIN_SHARD
    ) -> AsyncIterator["Live"]:
        """One shard of a platform that runs."""
        async with AsyncExitStack() as stack:
            for tenant in TENANTS:
                await platform.add_tenant(tenant, {EVERYTHING: ()}, shard)
            place = find(platform.directory, shard=shard)
            bus = await stack.enter_async_context(open_bus(place, place.identity(subjects.OPERATOR)))
            live = cls(platform, bus, shard)
            live.looking = [asyncio.create_task(live._fold()), asyncio.create_task(live._watch_pods())]
            stack.push_async_callback(live.stop_looking)
            for tenant in TENANTS:
                client = Tessera.at(place, place.identity(tenant))
                live.clients[tenant] = await stack.enter_async_context(client)
            if body is not None:
                await live.configure(body)
            if "binder" in platform.services:
                await live.until_nodes_are_known()
            yield live

    @property
    def state(self) -> State:
        return self.shard.state

    @property
    def home(self) -> Path:
        return self.platform.directory

    # -- doing

    async def configure(self, body: ConfigBody, expected_version: int = 0) -> None:
        requester = await Requester.open(self.bus, subjects.OPERATOR)
        command = ApplyConfig(kind="apply_config", v=1, expected_version=expected_version, body=body)
        answer = await requester.ask(subjects.control(self.shard_name), command)
        assert answer is not None
        assert answer.accepted, answer
        await self.until(lambda state: state.config.version == expected_version + 1, "the configuration is in force")
        # Admission reads it from the views; a submit before that is refused for a tenant that is not there yet.
        await self.until_shown()

    async def submit(self, spec: JobSpec, tenant: str = "lab", key: str | None = None, **more: Any) -> Submitted:
        key = key or next(self.keys)
        done = await self.clients[tenant].submit(spec, key, **more)
        self.acknowledged.append((tenant, key))
        return done

    async def command(self, *words: str, environment: Mapping[str, str] | None = None) -> Said:
        """Run `tessera WORDS` as a process of its own, forked from one that has imported it, at this platform."""
        here = {"TESSERA_HOME": str(self.home), "TESSERA_SHARD": self.shard_name, **(environment or {})}
        return await forked(*words, environment=here)

    @asynccontextmanager
    async def listening(self, tenant: str = "lab") -> AsyncIterator["Heard"]:
        """A tenant's durable subscriber at work meanwhile."""
        heard = Heard()
        subscription = self.clients[tenant].subscribe(EVERYTHING)

        async def listen() -> None:
            async for event in subscription:
                heard.events.append(event)
                heard.came.set()

        task = asyncio.create_task(listen())
        try:
            yield heard
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await subscription.close()

    @asynccontextmanager
    async def down(self, name: str, how: int = signal.SIGTERM) -> AsyncIterator[None]:
        """A part of the platform stopped meanwhile; started again and ready afterwards."""
        if len(self.platform.hosted_with(name)) > 1:
            await self._clear()
            pytest.skip(f"{name} goes down with the services that share its process")
        await self.platform.stop(name, how)
        try:
            yield
        finally:
            await self.platform.start(name)

    async def _clear(self) -> None:
        """Cancel what is under way, which would be in the way of the next test."""
        for one in list(self.state.jobs.values()):
            await self.clients[one.tenant].cancel(one.job_id)
        await self.until_idle()

    @asynccontextmanager
    async def another(
        self, service: str, command: Sequence[str] | None = None, **settings: str
    ) -> AsyncIterator["Instance"]:
        """One more instance of a service, beside the one that the platform runs; `command` starts it otherwise."""
        folder = self.home / "run"
        number = len(list(folder.glob(f"{service}-more-*")))
        port_file = folder / f"{service}-more-{number}.port"
        environment = {
            **self.platform.environment(service, self.shard_name),
            "TESSERA_PORT_FILE": str(port_file),
            **settings,
        }
        with (folder / f"{service}-more-{number}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(command or _python("run", service)), env=_environment(environment), stdout=log, stderr=log
            )
        try:
            yield Instance(process, port_file)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
                await asyncio.wait_for(process.wait(), SECONDS)

    # -- looking

    async def until(self, condition: Callable[[State], bool], what: str, seconds: float = SECONDS) -> None:
        """Wait until the state satisfies `condition`."""
        with told(lambda: f"{what}: not so after {seconds:g} s; {self._summary()}"):
            async with asyncio.timeout(seconds):
                while not condition(self.state):
                    self.moved.clear()
                    await self.moved.wait()

    async def until_nodes_are_known(self) -> None:
        """Every node of the cluster is in the ledger: a job that comes before them waits for them first."""
        cluster = self.cluster()
        try:
            nodes, _ = await cluster.list("nodes")
        finally:
            await cluster.close()
        shards = {node["metadata"]["name"]: (node["metadata"].get("labels") or {}).get(SHARD_LABEL) for node in nodes}
        names = [name for name, shard in shards.items() if (shard or subjects.MAIN_SHARD) == self.shard_name]
        await self.until(lambda state: len(state.nodes.found(names)) == len(names), f"{len(names)} nodes are known")

    async def until_ended(self, *jobs: str) -> None:
        await self.until(lambda state: all(terminal(state, job) for job in jobs), f"{len(jobs)} jobs have ended")

    async def until_phase(self, job: str, *phases: str) -> None:
        await self.until(lambda _: self.phase(job) in phases, f"job {job} is {' or '.join(phases)}")

    async def until_idle(self) -> None:
        """Every acknowledged submit is taken in, every job has ended and every run is released."""
        due = {job_id(self.shard_name, tenant, key) for tenant, key in self.acknowledged}
        await self.until(
            lambda state: due <= self.taken_in and not len(state.jobs) and not len(state.runs), "everything has ended"
        )

    async def ledger_end(self) -> int:
        """How far the ledger goes, whatever of it has been folded here."""
        last = await StreamLedger(self.bus, self.shard_name).tail()
        return 0 if last is None else last.seq

    async def until_shown(self) -> None:
        """The views show all that has been folded here: they are a moment behind."""
        async with self.store() as store:
            await eventually(lambda: at_least(store, self.state.n), f"the views are at {self.state.n}")

    def id_of(self, number: str) -> str:
        """The id of the job with this number, as `sbatch` prints it."""
        jobs = (*self.state.jobs.values(), *self.state.ended.values())
        (found,) = (job.job_id for job in jobs if number == str(job.number))
        return found

    def number_of(self, job_id: str) -> str:
        """The number of a job, as Slurm's words name it."""
        known = self.state.jobs.get(job_id) or self.state.ended.get(job_id)
        assert known is not None, job_id
        return str(known.number)

    async def until_folded(self) -> None:
        """All that the ledger holds by now has been folded here: what a command has just done is in the state."""
        end = await self.ledger_end()
        await self.until(lambda state: state.n >= end, f"the ledger is folded up to {end}")

    def cluster(self) -> HttpCluster:
        """The cluster as its operator sees it. Whoever asks for it closes it."""
        token = self.platform.credentials.read(subjects.OPERATOR).cluster_token
        return HttpCluster(self.platform.cluster_url, token)

    def is_ours(self, pod: Json) -> bool:
        """Whether a pod is not one of another shard."""
        return (pod["metadata"].get("labels") or {}).get(SHARD_LABEL, self.shard_name) == self.shard_name

    def phase(self, job: str) -> str:
        known = self.state.jobs.get(job) or self.state.ended.get(job)
        return "unknown" if known is None else known.phase.value

    @asynccontextmanager
    async def store(self) -> AsyncIterator[RedisStore]:
        """The views, read as the operator does."""
        place = find(self.home, shard=self.shard_name)
        async with open_store(place, place.identity(subjects.OPERATOR)) as store:
            yield store

    async def redis_admin(self) -> Redis:
        """
        A connection that may do everything, as the server's administrator has one; Tessera itself has none.

        The user comes with the next start of Redis, which is killed for it.
        """
        rules = self.platform.credentials.redis_file
        if "user admin" not in rules.read_text():
            rules.write_text(rules.read_text() + "user admin on nopass ~* &* +@all\n")
            await self.kill("redis")
        return Redis.from_url(self.platform.redis.url, username="admin", password="any", protocol=2)

    async def kill(self, name: str) -> None:
        """kill -9, and wait until the supervisor has started it again; whether it is ready is for others to see."""
        pid = self.platform.pid(name)
        self.platform.kill(name)
        await eventually(lambda: self.platform.pid(name) not in (None, pid), f"{name} runs again")

    async def until_ready(self, service: str) -> None:
        async def ready() -> bool:
            return all(text == "ok" for text in (await self.platform.ready(service)).values())

        await eventually(ready, f"{service} is ready")

    # -- in the background

    async def stop_looking(self) -> None:
        """Look at nothing any more; raises what went wrong while looking."""
        tasks, self.looking = self.looking, []
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _fold(self) -> None:
        ledger = StreamLedger(self.bus, self.shard_name)
        if await ledger.first() > 1:
            self.shard = await restore(self.bus, ledger, self.shard_name)
        source = ledger.follow(self.state.n)
        while True:
            try:
                messages = await source.next()
            except Transient:
                await asyncio.sleep(0.05)
                continue
            for message in messages:
                self.stored.append(message.data)
                entry = decode_entry(message)
                self.shard.fold(entry)
                self.taken_in |= {getattr(taken.fact, "job_id", "") for taken in entry.message.facts}
                self.moved.set()
                await asyncio.sleep(0)  # those who wait see every state, also one that the next message ends

    async def _watch_pods(self) -> None:
        cluster = self.cluster()
        try:
            found, version = await cluster.list("pods")
            self.pods += [PodChange("ADDED", pod) for pod in found if self.is_ours(pod)]
            while True:
                with suppress(Transient):
                    async for event in cluster.watch("pods", version):
                        version = event.object["metadata"]["resourceVersion"]
                        if event.type != "BOOKMARK" and self.is_ours(event.object):
                            self.pods.append(PodChange(event.type, event.object))
        finally:
            await cluster.close()

    def _summary(self) -> str:
        live = [f"{job.name} {job.phase.value}" for job in self.state.jobs.values()]
        return f"n {self.state.n}, {len(self.state.runs)} runs, live jobs: {', '.join(sorted(live)[:20]) or 'none'}"


@dataclass
class Heard:
    """What a subscriber was given, in the order in which it came."""

    events: list[CloudEvent] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def of(self, job: str, last: str) -> list[CloudEvent]:
        """The events of a job, once there is one of the kind `last` among them."""
        with told(lambda: f"no event {last} of job {job} within {SECONDS:g} s"):
            async with asyncio.timeout(SECONDS):
                while True:
                    self.came.clear()
                    found = [event for event in self.events if event.data.get("job_id") == job]
                    if any(kind(event) == last for event in found):
                        return found
                    await self.came.wait()


def kind(event: CloudEvent) -> str:
    """`allocated` for `io.tessera.job.allocated.v1`."""
    return short_type(event.type).split(".")[1]


@dataclass(frozen=True, slots=True)
class Instance:
    """A service's process that the platform knows nothing of."""

    process: asyncio.subprocess.Process
    port_file: Path

    async def readyz(self) -> tuple[int, dict[str, str]]:
        """Status and body; (0, {}) while it does not answer."""
        try:
            url = f"http://127.0.0.1:{int(self.port_file.read_text())}/readyz"
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http, http.get(url) as answer:
                return answer.status, await answer.json()
        except (OSError, ValueError, aiohttp.ClientError, TimeoutError):
            return 0, {}

    async def until_ready(self) -> None:
        await eventually(self._is_ready, "the other instance is ready")

    async def until_halted(self) -> str:
        """The reason that `/readyz` gives, while the process stays up."""
        await eventually(self._is_halted, "the other instance has halted")
        assert self.process.returncode is None
        return (await self.readyz())[1]["halted"]

    async def _is_ready(self) -> bool:
        assert self.process.returncode is None, "it ended"
        return (await self.readyz())[0] == 200

    async def _is_halted(self) -> bool:
        assert self.process.returncode is None, "it ended"
        status, texts = await self.readyz()
        return status == 503 and texts["halted"] != "ok"


async def append(live: Live, stored: list[bytes]) -> None:
    """Write messages at the ledger's end, with the rights of the scheduler."""
    place = find(live.home)
    async with open_bus(place, place.identity("scheduler")) as bus:
        ledger = StreamLedger(bus, live.platform.shard)
        tail = await ledger.tail()
        for seq, data in enumerate(stored, start=tail.seq if tail else 0):
            await ledger.append(data, seq)


async def until_halted(live: Live, service: str) -> str:
    """The reason that `/readyz` of one of the platform's services gives."""
    texts: dict[str, str] = {}

    async def halted() -> bool:
        texts.update(await live.platform.ready(service))
        return texts.get("halted", "ok") != "ok"

    await eventually(halted, f"{service} has halted")
    return texts["halted"]


async def started(
    *words: str, environment: Mapping[str, str], stdin: int = asyncio.subprocess.DEVNULL
) -> asyncio.subprocess.Process:
    """`tessera WORDS` on its way; no CI run and no other platform is in its environment."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *_python(*words),
        env=_environment(environment),
        stdin=stdin,
        stdout=pipe,
        stderr=pipe,
        preexec_fn=_interruptible,
    )


def _interruptible() -> None:
    """Whoever started the tests in the background may have had signals ignored, which children inherit."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


async def tessera(*words: str, environment: Mapping[str, str]) -> Said:
    """Run `tessera WORDS` to its end, in a new interpreter as people do."""
    process = await started(*words, environment=environment)
    try:
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())


async def forked(*words: str, environment: Mapping[str, str]) -> Said:
    """The same in a process forked from one that has imported the command, which is faster than a person."""
    return Said(*await run_command(words, _environment(environment), SECONDS))


async def eventually(condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = SECONDS) -> None:
    """Ask again and again until it is so."""
    with told(lambda: f"{what}: not so after {seconds:g} s"):
        async with asyncio.timeout(seconds):
            while not (answer if isinstance(answer := condition(), bool) else await answer):
                await asyncio.sleep(0.05)


@contextmanager
def told(what: Callable[[], str]) -> Iterator[None]:
    """A deadline that passes becomes a sentence."""
    try:
        yield
    except TimeoutError:
        raise AssertionError(what()) from None


def terminal(state: State, job: str) -> bool:
    ended = state.ended.get(job)
    return ended is not None and ended.phase in TERMINAL


async def at_least(store: RedisStore, n: int) -> bool:
    return await store.cursor() >= n


def _python(*words: str) -> list[str]:
    return [sys.executable, "-m", "tessera", *words]


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")
    }
    return {**inherited, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200", **more}
