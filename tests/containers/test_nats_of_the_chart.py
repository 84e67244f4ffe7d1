"""
The chart's three NATS servers as its pods would run them: their containers' commands, variables, mounts and rights as
rendered, on a network that knows the names of its Services, with TLS by a Secret of the names that it asks for.
"""

import asyncio
import json
import os
import ssl
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tessera.kernel import ids
from tessera.kernel.errors import Conflict, Transient
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera.kernel.provisioning.credentials import ensure_identities, system_identities, tenant_identity
from tessera_local.free_port import free_port
from tests.containers.engine import docker
from tests.e2e.live import eventually
from tests.kubernetes.binaries import Unavailable
from tests.kubernetes.certificates import Certificates
from tests.kubernetes.deployed import documents, rendered

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

Json = dict[str, Any]
NETWORK, SERVICE, SHARD, SECRET = "tessera-chart", "tessera-nats", "main", "given"
PATIENCE = 120.0
ROUTE_PASSWORD = ids.password()
STREAM = f"LEDGER_{SHARD}"


def dns_names() -> list[str]:
    """What the chart would have cert-manager sign."""
    values = {"nats.tls.certManager": {"enabled": True, "issuerRef": {"name": "ours"}}}
    (certificate,) = documents(rendered(values), "Certificate")
    return [f"DNS:{name}" for name in certificate["spec"]["dnsNames"]]


@dataclass
class Nats:
    """The StatefulSet's pods as containers; what their volumes hold is below `folder`, readable by their user."""

    folder: Path
    objects: list[Json]
    credentials: CredentialDirectory
    certificates: Certificates
    ports: dict[str, int] = field(default_factory=dict)
    monitors: dict[str, int] = field(default_factory=dict)

    @property
    def spec(self) -> Json:
        (found,) = [
            one["spec"] for one in self.objects if one["kind"] == "StatefulSet" and one["metadata"]["name"] == SERVICE
        ]
        return dict(found)

    @property
    def pods(self) -> list[str]:
        return [f"{SERVICE}-{number}" for number in range(self.spec["replicas"])]

    @property
    def url(self) -> str:
        return ",".join(f"tls://127.0.0.1:{port}" for port in self.ports.values())

    def fill(self) -> None:
        """Each volume's files, as a kubelet writes them."""
        (config,) = [
            one["data"] for one in self.objects if one["kind"] == "ConfigMap" and one["metadata"]["name"] == SERVICE
        ]
        tls = {
            "ca.crt": self.certificates.ca,
            "tls.crt": self.certificates.serving,
            "tls.key": self.certificates.serving_key,
        }
        volumes = {
            "config": {name: text.encode() for name, text in config.items()},
            "auth": {"nats-auth.conf": self.credentials.nats_file.read_bytes()},
            "tls": {name: path.read_bytes() for name, path in tls.items()},
        }
        for volume, files in volumes.items():
            (self.folder / volume).mkdir(exist_ok=True)
            for name, data in files.items():
                (self.folder / volume / name).write_bytes(data)
        for pod in self.pods:
            for own in ("data", "pid"):
                (self.folder / pod / own).mkdir(parents=True)
                (self.folder / pod / own).chmod(0o777)  # fsGroup does it in a cluster

    def start(self) -> None:
        for pod in self.pods:
            self.ports[pod], self.monitors[pod] = free_port(), free_port()
            published = (f"127.0.0.1:{self.ports[pod]}:4222", f"127.0.0.1:{self.monitors[pod]}:8222")
            names = (SERVICE, f"{pod}.{self.spec['serviceName']}")
            network = [
                "--network",
                NETWORK,
                "--hostname",
                pod,
                *_each("--network-alias", names),
                *_each("-p", published),
            ]
            server, reload = self.spec["template"]["spec"]["containers"]
            # The processes of a pod that shares them, and who outlives them.
            docker("run", "-d", "--name", f"{pod}-pause", "--entrypoint", "sleep", server["image"], "infinity")
            processes = ["--pid", f"container:{pod}-pause"]
            docker("run", "-d", "--name", pod, *processes, *network, *self._container(pod, server))
            docker("run", "-d", "--name", f"{pod}-reload", *processes, *self._container(pod, reload))

    def _container(self, pod: str, container: Json) -> list[str]:
        variables = dict[str, str]()
        for one in container.get("env", ()):
            source = one.get("valueFrom", {})
            secret = ROUTE_PASSWORD if "secretKeyRef" in source else pod
            variables[one["name"]] = expanded(one["value"], variables) if "value" in one else secret
        mounts = list[str]()
        for mount in container["volumeMounts"]:
            shared = mount["name"] in ("config", "auth", "tls")
            folder = self.folder / mount["name"] if shared else self.folder / pod / mount["name"]
            mounts.append(f"{folder / mount.get('subPath', '')}:{mount['mountPath']}{':ro' if shared else ''}")
        first, *rest = container["command"]
        return [
            *rights(self.spec["template"]["spec"], container),
            *_each("-e", [f"{name}={value}" for name, value in variables.items()]),
            *_each("-v", mounts),
            *("--entrypoint", first, container["image"], *rest),
        ]

    def asked(self, pod: str, path: str) -> Json:
        """What a server's monitoring says; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitors[pod]}{path}", timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):
            return {}

    def probed(self, pod: str, probe: str) -> bool:
        """Whether the kubelet's probe of the server would be content."""
        path = self.spec["template"]["spec"]["containers"][0][probe]["httpGet"]["path"]
        return self.asked(pod, path).get("status") == "ok"

    def streams(self, pod: str) -> dict[str, Json]:
        """Each stream that a server holds a copy of: configuration, state and cluster."""
        said = self.asked(pod, "/jsz?streams=true&config=true&acc=TESSERA")
        return {
            one["name"]: one for account in said.get("account_details", ()) for one in account.get("stream_detail", ())
        }

    def leader(self, stream: str) -> str:
        """The pod that leads a stream, as those say that answer; "" while they do not agree."""
        said = {self.streams(pod).get(stream, {}).get("cluster", {}).get("leader", "") for pod in self.pods}
        return said.pop() if len(said) == 1 else ""

    @asynccontextmanager
    async def bus(self, identity: str) -> AsyncIterator[NatsBus]:
        login = self.credentials.read(identity).nats
        tls = ssl.create_default_context(cafile=str(self.certificates.ca))
        bus = await NatsBus.connect(
            self.url, user=login.user, password=login.password, inbox_prefix=f"_INBOX.{identity}", tls=tls
        )
        try:
            yield bus
        finally:
            await bus.close()


def rights(pod: Json, container: Json) -> list[str]:
    """The security contexts, as the engine says them."""
    assert pod["securityContext"]["runAsNonRoot"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    dropped = _each("--cap-drop", context["capabilities"]["drop"])
    return ["--user", user, "--read-only", "--security-opt", "no-new-privileges:true", *dropped]


def expanded(value: str, variables: Mapping[str, str]) -> str:
    for name, said in variables.items():
        value = value.replace(f"$({name})", said)
    return value


def _each(flag: str, values: Any) -> list[str]:
    return [word for value in values for word in (flag, value)]


@pytest.fixture(scope="module")
def nats(images: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    """Three servers that found each other, empty."""
    try:
        objects = documents(rendered({"nats.tls.secret": SECRET}))
        names = dns_names()
    except Unavailable as why:
        pytest.skip(str(why))
    folder = tmp_path_factory.mktemp("chart")
    credentials = CredentialDirectory(folder / "credentials", SHARD)
    ensure_identities(credentials, [*system_identities(), tenant_identity("acme")])
    nats = Nats(folder, objects, credentials, Certificates.made_in(folder / "certificates", *names))
    nats.fill()
    containers = [f"{pod}{part}" for pod in nats.pods for part in ("", "-reload", "-pause")]
    _clear(containers)
    docker("network", "create", NETWORK)
    try:
        nats.start()
        yield nats
    finally:
        _clear(containers)


def _clear(containers: list[str]) -> None:
    docker("rm", "-f", "-v", *containers, check=False)
    docker("network", "rm", NETWORK, check=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provided(nats: Nats) -> Nats:
    """The streams, made by the container of the chart's Job that follows on the one that makes identities."""
    for pod in nats.pods:
        await until(lambda pod=pod: nats.probed(pod, "startupProbe"), f"{pod} is up: {_log(pod)}")
        await until(lambda pod=pod: nats.probed(pod, "readinessProbe"), f"{pod} is ready")
    (job,) = [
        one["spec"]["template"]["spec"]
        for one in nats.objects
        if one["kind"] == "Job" and "init" in one["metadata"]["name"]
    ]
    (container,) = job["containers"]
    own = nats.folder / "own"
    own.mkdir()
    for path in nats.credentials.root.iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    for path in (own, *own.iterdir()):
        os.chown(path, *(job["securityContext"][key] for key in ("runAsUser", "runAsGroup")))
    folders = {"credentials": own, "ca": nats.folder / "tls"}
    words = [
        *rights(job, container),
        *_each("-e", [f"{one['name']}={one['value']}" for one in container["env"]]),
        *_each("-v", [f"{folders[mount['name']]}:{mount['mountPath']}" for mount in container["volumeMounts"]]),
        *("--entrypoint", container["command"][0], container["image"], *container["args"]),
    ]
    await asyncio.to_thread(docker, "run", "--rm", "--network", NETWORK, *words)
    return nats


def _log(pod: str) -> str:
    done = docker("logs", "--tail", "20", pod, check=False)
    return done.stdout + done.stderr


async def until(condition: Any, what: str) -> None:
    await eventually(lambda: asyncio.to_thread(condition), what, PATIENCE)


async def appended(ledger: StreamLedger, seq: int) -> int:
    """Record `seq` + 1, written once whatever became of the answers meanwhile."""
    data = b"record %d" % (seq + 1)
    while True:
        try:
            return await ledger.append(data, seq)
        except (Transient, Conflict):
            try:
                last = await ledger.tail(to_append=True)  # it is compared below
            except Transient:
                last = None
            if last is not None and last.seq == seq + 1:
                assert last.data == data
                return last.seq
        await asyncio.sleep(0.1)


async def test_every_stream_has_a_copy_on_each_of_the_three_servers(provided: Nats) -> None:
    def says_all(pod: str) -> bool:
        """A server shows the other copies of a stream once it has heard of its leader, a moment later."""
        found = provided.streams(pod)
        return STREAM in found and all(len(one["cluster"]["replicas"]) == 2 for one in found.values())

    for pod in provided.pods:
        await until(lambda pod=pod: says_all(pod), f"{pod} has heard of each stream's other copies")
        found = provided.streams(pod)
        assert STREAM in found
        assert {one["config"]["num_replicas"] for one in found.values()} == {3}
        assert all(len(one["cluster"]["replicas"]) == 2 for one in found.values())


async def test_each_server_asks_for_tls_and_its_peers_for_certificates_and_syncs_every_write(provided: Nats) -> None:
    for pod in provided.pods:
        said = provided.asked(pod, "/varz")
        assert said["tls_required"]
        assert said["auth_required"]
        assert said["cluster"]["tls_required"]
        assert said["cluster"]["tls_verify"]
        assert said["jetstream"]["config"]["sync_always"]


async def test_a_leader_that_is_killed_is_followed_and_comes_back(provided: Nats) -> None:
    async with provided.bus("scheduler") as bus:
        ledger = StreamLedger(bus, SHARD)
        seq = 0
        for _ in range(50):
            seq = await appended(ledger, seq)
        killed = provided.leader(STREAM)
        assert killed in provided.pods
        docker("kill", "-s", "KILL", killed)
        for _ in range(50):
            seq = await appended(ledger, seq)
        assert seq == 100
        docker("start", killed)
        await until(lambda: provided.probed(killed, "readinessProbe"), f"{killed} is ready again")

        def caught_up() -> bool:
            copies = [provided.streams(pod).get(STREAM, {}).get("state", {}) for pod in provided.pods]
            return all(copy.get("last_seq") == 100 and copy.get("messages") == 100 for copy in copies)

        await until(caught_up, "each server has every record")
        assert [(await ledger.read(n)).data for n in (1, 50, 51, 100)] == [  # type: ignore[union-attr]
            b"record 1",
            b"record 50",
            b"record 51",
            b"record 100",
        ]


async def test_a_tenant_that_is_let_in_reaches_every_server_without_a_restart(provided: Nats) -> None:
    """The container beside each server sees that the Secret's file changed, and has the server read it."""
    ensure_identities(provided.credentials, [tenant_identity("late")])
    (provided.folder / "auth" / "nats-auth.conf").write_bytes(provided.credentials.nats_file.read_bytes())
    login = provided.credentials.read("late").nats
    tls = ssl.create_default_context(cafile=str(provided.certificates.ca))

    async def let_in(port: int) -> bool:
        try:
            url = f"tls://127.0.0.1:{port}"
            bus = await NatsBus.connect(url, user=login.user, password=login.password, startup_seconds=2, tls=tls)
        except Exception:
            return False
        await bus.close()
        return True

    for pod, port in provided.ports.items():
        await eventually(lambda port=port: let_in(port), f"{pod} lets the tenant in", PATIENCE)
