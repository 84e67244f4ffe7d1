"""
docs/install.md as an operator follows it: the commands of "On a cluster", in their order and as they stand there, on a
real API server; with NATS and Redis as the page asks for those of one's own.

Three commands cannot run as they are, since this cluster has no network of its own and nobody sits at the terminal:
`kubectl port-forward` does nothing, `helm install` gets the servers' addresses besides, `tessera apply` says --yes.
"""

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import yaml

from tessera.kernel.ports import ApiError
from tessera_local.free_port import free_port
from tessera_local.servers import NatsServer, RedisServer, find_nats_server
from tessera_schemas.shard.services import SERVICES
from tests.kubernetes import binaries
from tests.kubernetes.control_plane import ControlPlane, wait_until
from tests.kubernetes.deployed import NAMESPACE, RELEASE, nats_of_the_chart
from tests.kubernetes.kubelet import Kubelet
from tests.pages import commands_of

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "install.md"
TENANT = "demo"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
Json = dict[str, Any]


class OwnServers:
    """NATS and Redis outside of the release: each starts once the Secret is there that its users stand in."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._api = plane.api()
        self._files = {"nats-auth": directory / "nats-auth.conf", "redis-acl": directory / "redis-users.acl"}
        self.nats = NatsServer(directory / "nats", self._files["nats-auth"], sync=True)
        self.redis = RedisServer(directory / "redis", self._files["redis-acl"])
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping, self._thread = threading.Event(), threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        for process in self._running.values():
            process.kill()
            process.wait()

    def values(self) -> Json:
        """What the page says about servers of one's own, and sizes for a machine of two processors."""
        return {
            "nats": {"enabled": False, "url": self.nats.url, "monitorUrl": self.nats.monitor_url},
            "redis": {"enabled": False, "url": self.redis.url},
            "init": {"streamReplicas": 1, "ledgerGib": 2},
            "services": {"gateway": {"settings": {"api_port": 0}}} | {name: {"replicas": 1} for name in SERVICES[:-1]},
        }

    def environment(self) -> dict[str, str]:
        """Where the operator's machine reaches them; on a network it would be the port-forwards' defaults."""
        urls = {"NATS_URL": self.nats.url, "NATS_MONITOR_URL": self.nats.monitor_url, "REDIS_URL": self.redis.url}
        return {f"TESSERA_{name}": url for name, url in urls.items()}

    def _work(self) -> None:
        while not self._stopping.wait(0.25):
            for name, file in self._files.items():
                with suppress(ApiError):
                    self._follow(name, file)

    def _follow(self, name: str, file: Path) -> None:
        data = base64.b64decode(self._api.get(f"{SECRETS}/{RELEASE}-{name}")["data"][file.name])
        if file.exists() and file.read_bytes() == data:
            return
        file.write_bytes(data)
        if name not in self._running:
            server = self.nats if name == "nats-auth" else self.redis
            self._running[name] = subprocess.Popen(server.spawn().command, stdout=subprocess.DEVNULL)
        elif name == "nats-auth":
            for _ in range(2):  # as the chart's own server: imports come with the second
                self._running[name].send_signal(signal.SIGHUP)
                self._stopping.wait(1.0)


@pytest.fixture(scope="module")
def servers(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServers]:
    own_plane.add_nodes(2, "gpu")
    with (
        Kubelet(own_plane, tmp_path_factory.mktemp("kubelet"), NAMESPACE),
        OwnServers(own_plane, tmp_path_factory.mktemp("servers")) as servers,
    ):
        yield servers


class Operator:
    """A machine with helm, kubectl and tessera, and a checkout."""

    def __init__(self, plane: ControlPlane, servers: OwnServers, home: Path) -> None:
        (home / "deploy").symlink_to(REPOSITORY / "deploy")
        (home / "docs").symlink_to(REPOSITORY / "docs")
        (home / "servers.yaml").write_text(yaml.safe_dump(servers.values()))
        programs = home / "bin"
        programs.mkdir()
        kubectl, helm = binaries.find("kubectl"), binaries.find("helm")
        self._program(programs / "kubectl", f'case "$1" in port-forward) exit 0;; esac\nexec {kubectl} "$@"')
        self._program(
            programs / "helm",
            f'case "$1" in install|upgrade) set -- "$@" -f {home}/servers.yaml --timeout 300s;; esac\nexec {helm} "$@"',
        )
        self._program(
            programs / "tessera",
            f'case "$1" in apply) set -- "$@" --yes;; esac\nexec {sys.executable} -m tessera "$@"',
        )
        self.home = home
        self._environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(home),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "KUBECONFIG": str(plane.kubeconfig()),
            **servers.environment(),
        }
        self._said = ""

    @staticmethod
    def _program(path: Path, body: str) -> None:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def __call__(self, block: str) -> str:
        """What the block prints; one shell for all blocks would keep variables, so that they are kept by hand."""
        exports = "".join(f"{line.strip()}\n" for line in block.splitlines() if line.strip().startswith("export "))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._said + block],
            cwd=self.home,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=500,
        )
        self._said += exports
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def operator(own_plane: ControlPlane, servers: OwnServers, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return Operator(own_plane, servers, tmp_path_factory.mktemp("operator"))


async def test_the_pages_commands_bring_up_a_platform_that_places_a_users_job(
    own_plane: ControlPlane, operator: Operator
) -> None:
    blocks = commands_of(PAGE.name, "On a cluster")
    said = [await asyncio.to_thread(operator, block) for block in blocks]
    assert len(blocks) == 5, "one block for each step of the page"
    assert "gpu-0" in said[-1], "the nodes are listed"
    assert "nothing found" in said[-1], "the doctor has nothing to say"
    pods = own_plane.api().items(f"/api/v1/namespaces/{TENANT}/pods")
    assert [pod["spec"]["nodeName"] for pod in pods] in (["gpu-0"], ["gpu-1"])
    assert "everything is there already" in await asyncio.to_thread(operator, blocks[2])


async def test_the_pages_command_for_tokens_makes_the_secret_that_the_gateway_mounts(
    own_plane: ControlPlane, operator: Operator
) -> None:
    page = PAGE.read_text()
    (new,) = re.findall(r"`(tessera token new [^`]*)` writes", page)
    (create,) = re.findall(r"`(kubectl create secret generic tessera-gateway-tokens [^`]*)`", page)
    await asyncio.to_thread(operator, f"{new}\n{create}")
    assert set(own_plane.api().get(f"{SECRETS}/tessera-gateway-tokens")["data"]) == {"gateway-tokens.toml"}


async def test_a_tenant_whose_namespace_enforces_restricted_reads_which_rule_its_job_violates(
    own_plane: ControlPlane, operator: Operator
) -> None:
    """A level that somebody else has set stays as it is, and the API server's own words reach the user."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    own_plane.api().patch(f"/api/v1/namespaces/{TENANT}", {"metadata": {"labels": labels}})
    await asyncio.to_thread(operator, f"tessera submit --as {TENANT} --gpus 1 --key level -- sleep 1")
    await asyncio.to_thread(
        wait_until, lambda: "violates PodSecurity" in operator("tessera explain sleep"), "the rule is named", 240.0
    )


class ChartsNats:
    """
    The chart's own NATS servers as processes on loopback, with the page's certificate and a new shard's identities.

    Ports and folders are others than a pod's, and `localhost`, which the certificate names, stands for the pods' names.
    """

    def __init__(self, home: Path, secret: Json, users: Path) -> None:
        self._home, self._secret, self._users = home, secret, users
        self.clients, self._monitors, self._routes = ([free_port() for _ in range(3)] for _ in range(3))

    def start(self, config: str, routes: str) -> list[subprocess.Popen[bytes]]:
        for number, route in enumerate(self._routes):
            routes = routes.replace(f"{RELEASE}-nats-{number}.{RELEASE}-nats-peers:6222", f"localhost:{route}")
        routes = routes.replace("$(ROUTE_PASSWORD)", "secret")
        return [self._server(number, config, routes) for number in range(3)]

    def _server(self, number: int, config: str, routes: str) -> subprocess.Popen[bytes]:
        home = self._home / f"nats-{number}"
        (home / "auth").mkdir(parents=True)
        (home / "auth" / "nats-auth.conf").write_bytes(self._users.read_bytes())
        for name, data in self._secret.items():
            (home / name).write_bytes(base64.b64decode(data))
        ports = {"4222": self.clients[number], "8222": self._monitors[number], "6222": self._routes[number]}
        for given, here in (ports | {"/data": f"{home}/data", "/pid/": f"{home}/", " /tls/": f" {home}/"}).items():
            assert given in config
            config = config.replace(given, str(here))
        (home / "nats.conf").write_text(config)
        environment = {"POD_NAME": home.name, "ROUTE_PASSWORD": "secret", "ROUTES": routes}
        command = [str(find_nats_server()), "-c", str(home / "nats.conf"), "-l", str(home / "log")]
        return subprocess.Popen(command, env=environment)

    def monitor_url(self, number: int) -> str:
        return f"http://localhost:{self._monitors[number]}"

    def told(self, number: int, path: str) -> Json:
        """What a server's monitoring says; nothing before it listens."""
        try:
            with urllib.request.urlopen(f"{self.monitor_url(number)}/{path}", timeout=60) as answer:
                found: Json = json.load(answer)
                return found
        except OSError:
            return {}

    def has_leader(self) -> bool:
        """Whether all three know who leads JetStream's own records."""
        return all(self.told(number, "jsz").get("meta_cluster", {}).get("leader") for number in range(3))

    def copies_of(self, stream: str) -> list[int]:
        """For each server, how many others it knows to keep the stream."""
        found = [self.told(number, "jsz?accounts=true&streams=true") for number in range(3)]
        streams = [one for said in found for account in said["account_details"] for one in account["stream_detail"]]
        return [len(one["cluster"]["replicas"]) for one in streams if one["name"] == stream]


@pytest.fixture
def charts_nats(own_plane: ControlPlane, operator: Operator, tmp_path: Path) -> Iterator[ChartsNats]:
    operator(commands_of(PAGE.name, "TLS at NATS")[0])
    operator("tessera init --only-identities --credentials with-tls")
    name = f"{RELEASE}-nats-tls"
    secret = own_plane.api().get(f"{SECRETS}/{name}")["data"]
    nats = ChartsNats(tmp_path, secret, operator.home / "with-tls" / "nats-auth.conf")
    running = nats.start(*nats_of_the_chart({"nats.tls.secret": name}))
    yield nats
    for process in running:
        process.kill()
        process.wait()


def test_the_charts_three_servers_take_the_pages_certificate_and_keep_three_copies(
    operator: Operator, charts_nats: ChartsNats
) -> None:
    reach = commands_of(PAGE.name, "TLS at NATS")[1].strip().replace("export ", "env ")
    wait_until(charts_nats.has_leader, "the three servers are one cluster")
    for number, port in enumerate(charts_nats.clients):
        trusting = f"{reach.replace('4222', str(port))} TESSERA_NATS_MONITOR_URL={charts_nats.monitor_url(number)}"
        said = operator(f"{trusting} tessera init --credentials with-tls --replicas 3 --ledger-gib 1")
        assert ("made LEDGER_main" if number == 0 else "everything is there already") in said
    assert charts_nats.copies_of("LEDGER_main") == [2, 2, 2]
    with pytest.raises(AssertionError, match="certificate verify failed"):
        operator(f"env TESSERA_NATS_URL=tls://localhost:{charts_nats.clients[0]} tessera init --credentials with-tls")
