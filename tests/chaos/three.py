"""
A platform whose NATS is three servers with three replicas of every stream, each in a network namespace where root may
make one: then a server is cut off from the other two, and from its clients, by taking its cable away.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from tessera.kernel.nats.once import connect_once
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera.kernel.provisioning.credentials import ensure_identities, reload_nats, tenant_identity
from tessera.kernel.provisioning.streams import Bounds, ensure_subscribers
from tessera_local.child_process import Child, Spawn
from tessera_local.free_port import LOOPBACK, free_port
from tessera_local.platform import CLUSTER, NATS, REDIS
from tessera_local.servers import find_nats_server, wait_until
from tessera_schemas import subjects
from tests.chaos.world import ChaosPlatform, World
from tests.e2e.live import eventually

SERVERS = 3
CLIENTS, ROUTES, MONITORING = 4222, 6222, 8222


def _ip(*words: str) -> bool:
    return not subprocess.run(["ip", *words], capture_output=True, check=False).returncode


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server listens; `cable` names hub and link of its only way to others, "" on the loopback."""

    name: str
    address: str
    clients: int
    routes: int
    monitoring: int
    cable: str = ""

    @property
    def url(self) -> str:
        return f"nats://{self.address}:{self.clients}"

    @property
    def monitor_url(self) -> str:
        return f"http://{self.address}:{self.monitoring}"


@contextmanager
def places(number: int) -> Iterator[list[Place]]:
    """
    Three namespaces on a bridge of 10.213.`number`.0/24, else three sets of ports of the loopback.

    The bridge has a namespace of its own: this machine's may have rules that let nothing through.
    """
    hub, network = f"tessera-chaos-{number}-hub", f"10.213.{number}"
    here, made = f"tsr{number}", [f"tessera-chaos-{number}-{at}" for at in range(SERVERS)]
    well = _ip("netns", "add", hub) and _ip("-n", hub, "link", "add", "hub", "type", "bridge")
    well = well and _ip("-n", hub, "link", "set", "hub", "up")
    well = well and _ip("link", "add", here, "type", "veth", "peer", "name", "outside", "netns", hub)
    well = well and _ip("-n", hub, "link", "set", "outside", "master", "hub", "up")
    well = well and _ip("addr", "add", f"{network}.1/24", "dev", here) and _ip("link", "set", here, "up")
    for at, name in enumerate(made):
        well = well and _join(hub, name, f"cable-{at}", f"{network}.{at + 10}/24")
    try:
        if well:
            yield [
                Place(name, f"{network}.{at + 10}", CLIENTS, ROUTES, MONITORING, f"{hub} cable-{at}")
                for at, name in enumerate(made)
            ]
        else:
            print("no network namespaces here: three servers on the loopback, and no partition", flush=True)
            yield [Place(f"nats-{at}", LOOPBACK, free_port(), free_port(), free_port()) for at in range(SERVERS)]
    finally:
        for name in (*made, hub):
            _ip("netns", "del", name)


def _join(hub: str, name: str, cable: str, address: str) -> bool:
    """Make a namespace with one link to the hub's bridge."""
    return (
        _ip("netns", "add", name)
        and _ip("-n", hub, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        and _ip("-n", hub, "link", "set", cable, "master", "hub", "up")
        and _ip("-n", name, "addr", "add", address, "dev", "eth0")
        and _ip("-n", name, "link", "set", "eth0", "up")
        and _ip("-n", name, "link", "set", "lo", "up")
    )


def _plug(place: Place, state: str) -> None:
    """Set a server's cable `up` or `down`."""
    hub, cable = place.cable.split()
    _ip("-n", hub, "link", "set", cable, state)


class ThreeServers:
    """What a platform asks of its NATS, of three servers as one."""

    def __init__(self, directory: Path, auth_file: Path, where: Sequence[Place]) -> None:
        self.directory, self.places = directory, list(where)
        routes = ", ".join(f'"nats://{place.address}:{place.routes}"' for place in where)
        for place in where:
            folder = directory / place.name
            folder.mkdir(parents=True)
            store = json.dumps(str(folder / "store"))
            (folder / "nats.conf").write_text(
                f'server_name: "{place.name}"\nlisten: "{place.address}:{place.clients}"\n'
                f'http: "{place.address}:{place.monitoring}"\n'
                f"jetstream {{ store_dir: {store}, max_file_store: 17179869184, sync_interval: always }}\n"
                f'cluster {{ name: chaos, listen: "{place.address}:{place.routes}", routes: [{routes}] }}\n'
                f"include {json.dumps(_relative(auth_file, folder))}\n"
            )

    @property
    def url(self) -> str:
        return ",".join(place.url for place in self.places)

    @property
    def monitor_url(self) -> str:
        return self.places[0].monitor_url

    def spawn(self, place: Place) -> Spawn:
        """Command of one server, in its namespace where it has one."""
        folder = self.directory / place.name
        command = [str(find_nats_server()), "-c", str(folder / "nats.conf"), "--ports_file_dir", str(folder)]
        return Spawn([*(["ip", "netns", "exec", place.name] if place.cable else []), *command])

    async def ready(self, place: Place, child: Child) -> None:
        """Wait until it listens. `ip netns exec` becomes the server, so that the process is the same."""
        await wait_until((self.directory / place.name / f"nats-server_{child.pid}.ports").exists, child)


def _relative(file: Path, folder: Path) -> str:
    return os.path.relpath(file.resolve(), folder.resolve())


class ThreeServerPlatform(ChaosPlatform):
    """The same platform over three servers; NATS is no child of its own, but three."""

    def __init__(self, directory: Path, where: Sequence[Place]) -> None:
        super().__init__(directory, sync=True)
        self._bounds = Bounds(replicas=SERVERS, ledger_bytes_max=2**30)
        self.places = list(where)

    @property
    def server_names(self) -> list[str]:
        return [place.name for place in self.places]

    def _prepare(self) -> None:
        super()._prepare()
        self.nats = ThreeServers(self.directory / "nats", self.credentials.nats_file, self.places)  # type: ignore[assignment]

    async def _start_servers(self) -> None:
        for place in self.places:
            self._add(place.name, partial(self.nats.spawn, place), partial(self.nats.ready, place))  # type: ignore[call-arg]
        started = asyncio.gather(*(self._children[name].start() for name in self.server_names))
        self._add(REDIS, self.redis.spawn, self.redis.ready)
        self._add(CLUSTER, self._spawn_cluster, self._cluster_ready)
        await started
        await self._start_together([REDIS, CLUSTER])
        self._children[NATS] = self._children[self.server_names[0]]  # what reads its pid finds one of them

    async def close(self) -> None:
        self._children.pop(NATS, None)
        await super().close()

    async def add_tenant(
        self, tenant: str, subscribers: Mapping[str, Sequence[str]] | None = None, shard: str | None = None
    ) -> Path:
        declared, shard = subscribers or {}, shard or self.shard
        credentials: CredentialDirectory = self.credentials_of(shard)
        if ensure_identities(credentials, [tenant_identity(tenant, declared)]):
            for place in self.places:
                await reload_nats(self._children[place.name].pid or 0, place.monitor_url, self.clock)
        await self._as(subjects.OPERATOR, shard, lambda admin: ensure_subscribers(admin, shard, {tenant: declared}))
        return credentials.file(tenant)

    async def leader(self) -> str:
        """Name of the server that leads the ledger's stream; "" while none does."""
        login = self.credentials.read(subjects.OPERATOR).nats
        admin = await connect_once(self.nats.url, login.user, login.password)
        try:
            info = await admin.jsm().stream_info(subjects.stream("LEDGER", self.shard))
            return (info.cluster and info.cluster.leader) or ""
        except Exception:  # no answer while nobody leads: whatever the client makes of it
            return ""
        finally:
            await admin.close()


class ServerFaults:
    """Faults of three servers, of which two always remain but for the restart of all."""

    def __init__(self, world: World, platform: ThreeServerPlatform, chance: Random) -> None:
        self._world, self._platform, self._chance = world, platform, chance
        self.kinds = (
            self.kill_the_leader,
            self.pause_the_leader,
            self.restart_all_servers,
            self.kill_all_servers,
            *([self.cut_the_leader_off, self.cut_a_server_off] if platform.places[0].cable else []),
        )

    async def _leader(self) -> str:
        found = ""

        async def leads() -> bool:
            nonlocal found
            found = await self._platform.leader()
            return bool(found)

        await eventually(leads, "a server leads the ledger")
        return found

    async def kill_the_leader(self) -> str:
        name = await self._leader()
        self._platform.kill(name)
        return f"kill -9 of the ledger's leader {name}"

    async def pause_the_leader(self) -> str:
        name, seconds = await self._leader(), self._chance.uniform(3.0, 12.0)
        self._platform.pause(name)
        await asyncio.sleep(seconds)
        self._platform.resume(name)
        return f"SIGSTOP of the ledger's leader {name} for {seconds:.1f} s"

    async def restart_all_servers(self) -> str:
        names = self._platform.server_names
        await asyncio.gather(*(self._platform.stop(name) for name in names))
        await asyncio.gather(*(self._platform.start(name) for name in names))
        return "all three servers stopped and started"

    async def kill_all_servers(self) -> str:
        for name in self._platform.server_names:
            self._platform.kill(name)
        return "kill -9 of all three servers"

    async def cut_the_leader_off(self) -> str:
        return await self._cut(await self._leader())

    async def cut_a_server_off(self) -> str:
        return await self._cut(self._chance.choice(self._platform.server_names))

    async def _cut(self, name: str) -> str:
        place = next(place for place in self._platform.places if place.name == name)
        seconds = self._chance.uniform(3.0, 15.0)
        _plug(place, "down")
        try:
            await asyncio.sleep(seconds)
        finally:
            _plug(place, "up")
        return f"{name} cut off for {seconds:.1f} s"

    async def heal(self) -> None:
        """Every cable in place, and somebody leads the ledger."""
        for place in self._platform.places:
            if place.cable:
                _plug(place, "up")
        await self._leader()
        await eventually(lambda: self._world.live.bus.connected, "we are connected")
