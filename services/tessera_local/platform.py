"""
The local platform behind `tessera up`: nats-server, Redis, a simulated cluster, `init`, and every service.

Everything is an ordinary process on a free port of the loopback, supervised, with a log file each, and everything it
keeps is in one directory. `platform.json` there says where things are, once they are ready. It is also what tests use
to kill, stop and restart any part.

Several shards share the servers and the cluster; each has every service once. A service of the first is known by its
own name, that of another as `service@shard`.
"""

import asyncio
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import aiohttp

import tessera
import tessera_schemas
from tessera.client.sending.sdk import Notify
from tessera.gateway.entrance.tokens import FILE_NAME as TOKENS_FILE
from tessera.gateway.entrance.tokens import keep_operator_token
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import StartupError
from tessera.kernel.nats.once import connect_once
from tessera.kernel.process.same_process import started_at
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera.kernel.provisioning.credentials import (
    NOTIFIER,
    ensure_identities,
    reload_nats,
    system_identities,
    tenant_identity,
)
from tessera.kernel.provisioning.streams import Bounds, ensure_streams, ensure_subscribers
from tessera_local.child_process import Child, Spawn
from tessera_local.forking import ForkServer
from tessera_local.free_port import LOOPBACK, choose_ports, free_port
from tessera_local.kubeconfig import write_certificate, write_kubeconfig
from tessera_local.servers import NatsServer, RedisServer, find_nats_server, find_redis_server, wait_until
from tessera_schemas import subjects
from tessera_schemas.cluster.labels import SHARD_LABEL
from tessera_schemas.shard.services import LAYOUTS, SEPARATE, SERVICES

GATEWAY = "gateway"


def own_settings(service: str, directory: Path, api_port: int, tokens: Path) -> dict[str, str]:
    """Environment of a service beyond what all have; `directory` is the platform's."""
    if service == GATEWAY:
        logs = str(directory / "job-logs")
        return {"TESSERA_API_PORT": str(api_port), "TESSERA_TOKENS_FILE": str(tokens), "TESSERA_LOGS_STORE": logs}
    if service == NOTIFIER:  # receivers of this machine are what somebody tries here
        keys = directory / "webhook-secrets"
        keys.mkdir(exist_ok=True, mode=0o700)
        loopback = json.dumps(["127.0.0.0/8", "::1/128"])
        return {"TESSERA_KEYS_DIR": str(keys), "TESSERA_ALLOW_HTTP": "true", "TESSERA_ALLOWED_NETWORKS": loopback}
    return {}


NATS, REDIS, CLUSTER = "nats", "redis", "cluster"
EACH = "{service}"  # in a setting: the name of each service of a process
LEDGER_BYTES_MAX = 2 * 1024**3
STEPS_IMAGE = "tessera-steps:simulated"  # no simulated node pulls one
EVENTS_BYTES_MAX = 1024**3
LEDGER_CHECK = "ledger"  # one that is nearly full keeps new work out, and nobody from looking at it
ALWAYS_IMPORTED = ("tessera.launch", "tessera.kernel.process.lifecycle", "tessera_local.cluster.__main__")
READY_SECONDS = 60.0  # a cold machine compiles every module first
DEFAULT_NODES = "- {{name: {name}, count: {count}, cpu: '96', memory: 768Gi, gpus: 8, gpu_model: H100{labels}}}\n"


def service_command(services: Sequence[str], shard: str) -> list[str]:
    """Command that runs services as one process in this interpreter, by its own command line."""
    return [sys.executable, "-m", "tessera", "run", "+".join(services), "--shard", shard]


def default_nodes(shards: Sequence[str], count: int = 4) -> str:
    """
    Default nodes, `count` for each shard; those of the main one have no label, as in a cluster that knows of no shards.
    """
    lines = []
    for shard in shards:
        main = shard == subjects.MAIN_SHARD
        labels = "" if main else f", labels: {{{SHARD_LABEL}: {shard}}}"
        lines.append(DEFAULT_NODES.format(name="gpu" if main else f"gpu-{shard}", count=count, labels=labels))
    return "".join(lines)


class Platform:
    """
    One or more whole shards on this machine, for as long as the `async with` lasts. `shard` is the first of them, which
    is meant wherever none is named.

    `nodes` is a file of the simulated cluster's nodes. `sync` makes every acknowledged write survive a power cut, at
    a fifth of the speed; services are told to accept that it is off. `api_port` is the first shard's; 0: the
    one that it had in this directory before.
    """

    def __init__(
        self,
        directory: Path,
        services: Sequence[str] = SERVICES,
        nodes: Path | None = None,
        tenants: Sequence[str] = (),
        shards: Sequence[str] = (subjects.MAIN_SHARD,),
        sync: bool = False,
        layout: str = SEPARATE,
        cluster: bool = True,
        ledger_bytes_max: int = LEDGER_BYTES_MAX,
        api_port: int = 0,
        notify: Notify = print,
        command: Callable[[Sequence[str], str], Sequence[str]] = service_command,
    ) -> None:
        self._layout = LAYOUTS[layout]
        self.directory, self.services = directory.resolve(), tuple(services)
        self.shards, self.shard = _checked(shards), shards[0]
        self.clock = SystemClock()
        self.timings: dict[str, float] = {}
        self._nodes, self._tenants, self._sync, self._notify, self._command = nodes, tenants, sync, notify, command
        self._with_cluster = cluster
        self._bounds = Bounds(ledger_bytes_max=ledger_bytes_max, events_bytes_max=EVENTS_BYTES_MAX)
        self._lock: IO[str] | None = None
        self._children: dict[str, Child] = {}
        self._cluster_port, self._tls_port = (free_port(), free_port()) if cluster else (0, 0)
        self._api_port = api_port
        self._gateway_ports: dict[str, int] = {}
        self._ready = False
        mains = [f"tessera.{service}.main" for service in self.services]
        self._forks = ForkServer(self.directory, [*mains, *ALWAYS_IMPORTED], _same_code())

    # -- life

    async def __aenter__(self) -> Self:
        began = self.clock.monotonic()
        self._take_lock()
        try:
            self._prepare()
            if self._command is service_command and (self.services or self._with_cluster):
                await self._forks.warm_up()
            await self._timed("servers", self._start_servers())
            await self._timed("init", self._init())
            await self._timed("services", self._start_services())
        except BaseException:
            await self.close()
            raise
        self.timings["ready"] = self.clock.monotonic() - began
        self._ready = True
        self._write_state()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop everything in reverse order: the services first, so that each drains while its servers are there."""
        self._ready = False
        self._state_file.unlink(missing_ok=True)
        servers = (CLUSTER, REDIS, NATS)
        services = [child for name, child in self._children.items() if name not in servers]
        await asyncio.gather(*(child.stop() for child in services))
        for name in servers:
            if name in self._children:
                await self._children[name].stop()
        await self._forks.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def hosted_with(self, name: str) -> tuple[str, ...]:
        """The services of the process of a service, itself among them; none of a server."""
        return self.parts.get(self._process_of(name), ((), ""))[0]

    def _process_of(self, name: str) -> str:
        service, _, shard = name.partition("@")
        hosts = (part for part, (of, on) in self.parts.items() if service in of and on == (shard or self.shard))
        return next(hosts, name)

    def _child(self, name: str) -> Child:
        return self._children[self._process_of(name)]

    # -- what tests do to it

    async def start(self, name: str) -> None:
        """Start a part that `stop` took down, and wait until it is ready."""
        await self._child(name).start()

    async def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """Take a part down, in an orderly way unless another signal is named; it stays down."""
        await self._child(name).stop(number)
        self._write_state()

    def kill(self, name: str) -> None:
        """kill -9; the supervisor starts it again after its back-off."""
        self._child(name).signal(signal.SIGKILL)

    def pause(self, name: str) -> None:
        """Stop a process so that it answers nobody until `resume`."""
        self._child(name).freeze()

    def resume(self, name: str) -> None:
        """Let a paused part go on where it stood still."""
        self._child(name).signal(signal.SIGCONT)

    async def restart(self, name: str) -> None:
        """An orderly stop and a start, on the same ports and the same data."""
        await self._child(name).stop()
        await self._child(name).start()

    async def restart_nats(self) -> None:
        """Stop and start nats-server in an orderly way, on the same ports and data."""
        await self.restart(NATS)

    async def restart_redis(self) -> None:
        """Stop and start Redis in an orderly way, on the same port and data."""
        await self.restart(REDIS)

    def pid(self, name: str) -> int | None:
        """Process id of a part; None while the part is down."""
        return self._child(name).pid

    async def ready(self, name: str) -> dict[str, str]:
        """The checks of a service's `/readyz`; a text under `http` when it does not answer."""
        return await _readyz(self._port_file(name))

    async def add_tenant(
        self, tenant: str, subscribers: Mapping[str, Sequence[str]] | None = None, shard: str | None = None
    ) -> Path:
        """
        Let a tenant into a shard, with its durable subscribers and their event types, while everything runs.

        Returns its credential file. Raises StartupError for a name that is refused.
        """
        declared, shard = subscribers or {}, shard or self.shard
        credentials = self.credentials_of(shard)
        if ensure_identities(credentials, [tenant_identity(tenant, declared)]):
            await reload_nats(self._children[NATS].pid or 0, self.nats.monitor_url, self.clock)
        subscribed = partial(ensure_subscribers, shard=shard, declared={tenant: declared})
        await self._as(subjects.OPERATOR, shard, subscribed)
        return credentials.file(tenant)

    def credentials_of(self, shard: str) -> CredentialDirectory:
        """Credentials of a shard; all shards share one directory, since they share the servers."""
        return CredentialDirectory(self.directory / "credentials", shard)

    @property
    def credentials(self) -> CredentialDirectory:
        """Credentials of the first shard."""
        return self.credentials_of(self.shard)

    def part(self, service: str, shard: str) -> str:
        """Name by which a shard's service is stopped, killed and looked at."""
        return service if shard == self.shard else f"{service}@{shard}"

    @property
    def parts(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """The services and the shard of each part that is no server."""
        here = {name: tuple(one for one in of if one in self.services) for name, of in self._layout.items()}
        return {self.part(name, shard): (of, shard) for shard in self.shards for name, of in here.items() if of}

    def _services_of(self, part: str) -> list[str]:
        services, shard = self.parts[part]
        return [self.part(service, shard) for service in services]

    def environment(self, identity: str, shard: str | None = None) -> dict[str, str]:
        """The settings of a process that connects as `identity`."""
        shard = shard or self.shard
        return {
            "TESSERA_SHARD": shard,
            "TESSERA_CREDENTIALS_FILE": str(self.credentials_of(shard).file(identity)),
            "TESSERA_NATS_URL": self.nats.url,
            "TESSERA_NATS_MONITOR_URL": self.nats.monitor_url,
            "TESSERA_REDIS_URL": self.redis.url,
            "TESSERA_CLUSTER_URL": self.cluster_url,
            "TESSERA_ALLOW_UNSYNCED": json.dumps(not self._sync),
            "TESSERA_ALLOW_ANYBODY": json.dumps(not self._sync),
            **({"TESSERA_STEPS_IMAGE": STEPS_IMAGE} if self.cluster_url else {}),
        }

    @property
    def cluster_url(self) -> str:
        """Address of the simulated cluster; "" without one."""
        return f"http://{LOOPBACK}:{self._cluster_port}" if self._cluster_port else ""

    @property
    def kubeconfig(self) -> Path:
        """File by which kubectl and other clients find the simulated cluster, as the operator."""
        return self.directory / "kubeconfig"

    @property
    def _certificate(self) -> Path:
        return self.directory / "cluster" / "certificate.pem"

    @property
    def gateway_url(self) -> str:
        """Address of the first shard's HTTP API; "" without a gateway."""
        return self.gateway_url_of(self.shard)

    def gateway_url_of(self, shard: str) -> str:
        """Address of a shard's HTTP API; "" without a gateway."""
        port = self._gateway_ports.get(shard, 0)
        return f"http://{LOOPBACK}:{port}" if port else ""

    @property
    def tokens_file(self) -> Path:
        """File of the bearer tokens that the first shard's gateway accepts."""
        return self.credentials.path / TOKENS_FILE

    # -- start, in order

    @property
    def _state_file(self) -> Path:
        return self.directory / "platform.json"

    def _port(self, part: str) -> int:
        return _port(self._port_file(part))

    def _port_file(self, part: str) -> Path:
        return self.directory / "run" / f"{part}.port"

    def _take_lock(self) -> None:
        """The lock is inherited by the servers, so that data that a killed platform's children still use is safe."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (self.directory / "lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "unknown"
            self._lock.close()
            self._lock = None
            raise StartupError(
                f"{self.directory}: another platform (process {owner}, or servers it left) uses this directory; "
                "stop it, or choose another directory"
            ) from None
        self._state_file.unlink(missing_ok=True)  # of one that was killed: its ports may be anybody's by now
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    def _prepare(self) -> None:
        find_nats_server(), find_redis_server()  # before anything is started, or what is missing is told late
        for folder in ("logs", "run", "cluster"):
            (self.directory / folder).mkdir(exist_ok=True)
        for shard in self.shards:
            credentials = self.credentials_of(shard)
            known = {path.stem for path in credentials.path.glob("*.json")}
            new = [tenant_identity(tenant) for tenant in self._tenants if tenant not in known]
            ensure_identities(credentials, [*system_identities(), *new])
            if GATEWAY in self.services:
                keep_operator_token(credentials.path / TOKENS_FILE, credentials.operator_token)
        if GATEWAY in self.services:
            self._gateway_ports = choose_ports(self.directory / "run" / "api-ports.json", self.shards, self._api_port)
        self.nats = NatsServer(self.directory / "nats", self.credentials.nats_file, sync=self._sync)
        self.redis = RedisServer(self.directory / "redis", self.credentials.redis_file)
        if self._with_cluster:
            operator = self.credentials.read(subjects.OPERATOR)
            trusted = write_certificate(self._certificate)
            write_kubeconfig(self.kubeconfig, self._tls_port, trusted, operator.identity.name, operator.cluster_token)

    async def _start_servers(self) -> None:
        self._add(NATS, self.nats.spawn, self.nats.ready)
        self._add(REDIS, self.redis.spawn, self.redis.ready)
        names = [NATS, REDIS]
        if self._with_cluster:
            self._add(CLUSTER, self._spawn_cluster, self._cluster_ready)
            names.append(CLUSTER)
        await self._start_together(names)

    def _spawn_cluster(self) -> Spawn:
        folder = self.directory / "cluster"
        nodes = self._nodes or folder / "nodes.yaml"
        if self._nodes is None and not nodes.exists():
            nodes.write_text(default_nodes(self.shards))
        command = [sys.executable, "-m", "tessera_local.cluster", "--jobs", "--nodes", str(nodes)]
        command += ["--credentials", str(self.credentials.root), "--pods-file", str(folder / "pods.json")]
        command += ["--port", str(self._cluster_port), "--port-file", str(self._port_file(CLUSTER))]
        command += ["--tls-port", str(self._tls_port), "--certificate", str(self._certificate)]
        self._port_file(CLUSTER).unlink(missing_ok=True)
        return Spawn(command, _same_code())

    async def _cluster_ready(self, child: Child) -> None:
        await wait_until(lambda: _port(self._port_file(CLUSTER)) > 0, child)

    async def _init(self) -> None:
        for shard in self.shards:
            # Nobody else runs `init --mend` here: a directory of an older version gets the present table.
            streams = partial(ensure_streams, shard=shard, bounds=self._bounds, mend=True)
            await self._as(subjects.ADMINISTRATOR, shard, streams)

    async def _start_services(self) -> None:
        for part in self.parts:
            self._add(part, partial(self._spawn_service, part), self._service_ready)
        await self._start_together(list(self.parts))

    def _spawn_service(self, part: str) -> Spawn:
        services, shard = self.parts[part]
        each = EACH if len(services) > 1 else services[0]  # one of an earlier version knows no other way
        settings = self.environment(each, shard) | {"TESSERA_HTTP_PORT": "0"}
        settings["TESSERA_PORT_FILE"] = str(self._port_file(self.part(each, shard)))
        tokens = self.credentials_of(shard).path / TOKENS_FILE
        for name in self._services_of(part):
            self._port_file(name).unlink(missing_ok=True)
        for service in services:
            settings |= own_settings(service, self.directory, self._gateway_ports.get(shard, 0), tokens)
        return Spawn(self._command(services, shard), {**_same_code(), **settings})

    async def _service_ready(self, child: Child) -> None:
        async def well() -> bool:
            texts.clear()
            for part in parts:
                texts.update({(part, name): text for name, text in (await self.ready(part)).items()})
            return all(text == "ok" for (_, name), text in texts.items() if name != LEDGER_CHECK)

        texts: dict[tuple[str, str], str] = {}
        parts = self._services_of(child.name)
        try:
            await wait_until(well, child, READY_SECONDS)
        except StartupError as error:
            unwell = ", ".join(f"{name}: {text}" for (_, name), text in texts.items() if text != "ok")
            raise StartupError(f"{error}; {unwell}" if unwell else str(error)) from error

    # -- small parts

    def _add(self, name: str, spawn: Callable[[], Spawn], ready: Callable[[Child], Any]) -> None:
        inherit = [self._lock.fileno()] if self._lock is not None and name in (NATS, REDIS) else []
        log = self.directory / "logs" / f"{name}.log"
        self._children[name] = Child(
            name, spawn, ready, log, self.clock, self._notify, self._write_state, inherit, self._forks
        )

    async def _start_together(self, names: Sequence[str]) -> None:
        """All at once; the first failure stops the others' waiting."""

        async def start(name: str) -> None:
            await self._timed(name, self._children[name].start())

        try:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(start(name))
        except ExceptionGroup as errors:  # what `except*` raises stays in a group until Python 3.11.3
            raise errors.exceptions[0] from None

    async def _timed(self, name: str, work: Any) -> None:
        began = self.clock.monotonic()
        await work
        self.timings[name] = self.clock.monotonic() - began

    async def _as(self, identity: str, shard: str, work: Callable[[Any], Any]) -> None:
        login = self.credentials_of(shard).read(identity).nats
        admin = await connect_once(self.nats.url, login.user, login.password)
        try:
            await work(admin)
        finally:
            await admin.close()

    def _write_state(self) -> None:
        """Write the addresses for the command line, once everything was started."""
        if not self._ready:
            return
        state = {
            "shards": self.shards,
            "nats_url": self.nats.url,
            "nats_monitor_url": self.nats.monitor_url,
            "redis_url": self.redis.url,
            "cluster_url": self.cluster_url,
            "gateway_urls": {shard: self.gateway_url_of(shard) for shard in self.shards},
            "credentials": str(self.credentials.root),
            "sync": self._sync,
            "platform_pid": os.getpid(),
            "platform_started": started_at(os.getpid()),
            "pids": {name: child.pid for name, child in self._children.items()},
            "http": {
                name: f"http://{LOOPBACK}:{port}"
                for part in self.parts
                for name in self._services_of(part)
                if (port := _port(self._port_file(name)))
            },
            "seconds": {name: round(seconds, 3) for name, seconds in self.timings.items()},
        }
        fresh = self._state_file.with_suffix(".new")
        fresh.write_text(json.dumps(state, indent=2) + "\n")
        fresh.replace(self._state_file)


def _checked(shards: Sequence[str]) -> tuple[str, ...]:
    for shard in shards:
        if not subjects.NAME.fullmatch(shard):
            raise StartupError(f"shard {shard!r}: the name must match [a-z0-9-]{{1,63}}; choose another")
    if not shards or len(set(shards)) < len(shards):
        raise StartupError(f"shards {', '.join(shards)}: each must be named, once")
    return tuple(shards)


def _same_code() -> dict[str, str]:
    """Children run the very packages that this process runs, installed or not."""
    folders = [str(Path(package.__path__[0]).parent) for package in (tessera, tessera_schemas)]
    inherited = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([*folders, *([inherited] if inherited else [])])}


def _port(path: Path) -> int:
    """0 until the file says otherwise."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


async def _readyz(port_file: Path) -> dict[str, str]:
    url = f"http://{LOOPBACK}:{_port(port_file)}/readyz"
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http, http.get(url) as answer:
            texts: dict[str, str] = await answer.json()
            return texts
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return {"http": str(error) or type(error).__name__}
