"""
A real Kubernetes control plane for tests and benchmarks: etcd, kube-apiserver, kube-controller-manager, and KWOK for
the kubelets of nodes that exist only as objects. On the loopback, without containers or root, ready in seconds.

    with ControlPlane(directory) as plane:
        plane.add_nodes(20, gpus=8)
        cluster = plane.cluster("binder")

`python -m tests.kubernetes.control_plane` runs one in the foreground and prints its kubeconfig.
"""

import argparse
import base64
import shutil
import signal
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ports import ApiError
from tessera_local.free_port import free_port
from tests.kubernetes import binaries, commands, identities
from tests.kubernetes.api import Api, Json
from tests.kubernetes.certificates import Certificates
from tests.kubernetes.nodes import kwok_node
from tests.servers import Server

# An API server begins with 20 s of CPU time, 7 of them for collecting its garbage; it takes 120 MiB more so.
COLLECTS_SELDOM = {"GOGC": "400"}
STARTUP_SECONDS = 180.0  # of each part, on a machine that does much else
LOG_TAIL_LINES, LOG_TAIL_COLUMNS = 12, 300
PORT_ATTEMPTS = 3  # somebody may take a port between our look and the server's


class ControlPlane:
    """
    Runs for as long as the `with` lasts. What it writes is under `directory`.

    `lease_seconds` is how long the lease of a node lasts that KWOK renews, `silence_seconds` after how long without
    one the node's condition becomes Unknown. Short ones make a lost node quick to test and cost requests. `gates` are
    features that are switched on everywhere; `api_flags` and `controller_flags`, as `name=value`, win over the API
    server's and kube-controller-manager's. `api_server` is the program of the API server. `address` is where that
    listens, one of this machine's that its clients reach.
    """

    def __init__(
        self,
        directory: Path,
        *,
        lease_seconds: int = 40,
        silence_seconds: int = 50,
        kubelets: bool = True,
        scheduler: bool = False,
        gates: Sequence[str] = (),
        api_server: str = "kube-apiserver",
        api_flags: Sequence[str] = (),
        controller_flags: Sequence[str] = (),
        address: str = "127.0.0.1",
        kubelets_at: Sequence[str] = (),
        say: Callable[[str], None] = print,
    ) -> None:
        self.directory = directory.resolve()
        self._lease_seconds, self._silence_seconds = lease_seconds, silence_seconds
        self._kubelets, self._scheduler, self._gates = kubelets, scheduler, tuple(gates)
        self._api_flags = [f"--{flag}" for flag in api_flags]
        self._controller_flags = [f"--{flag}" for flag in controller_flags]
        self._tokens, self._address = identities.new_tokens(), address
        self._addresses = dict.fromkeys((address, *kubelets_at))
        self.parts: dict[str, Server] = {}
        self._port = 0
        programs = [*binaries.NEEDED, *(["kube-scheduler"] if scheduler else [])]
        self._programs = {program: binaries.find(program, say) for program in programs}
        self._programs["kube-apiserver"] = binaries.find(api_server, say)
        if shutil.which("openssl") is None:
            raise binaries.Unavailable("openssl: not on PATH, and the API server needs certificates")

    # -- life

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._certificates = Certificates.made_in(
            self.directory / "certificates", *(f"IP:{address}" for address in self._addresses)
        )
        identities.write_token_file(self.directory / "tokens.csv", self._tokens)
        try:
            self._start_etcd()
            self._start_api_server()
            self._start_the_others()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """All at once would leave each waiting for the others' answers; the newest first ends in no time."""
        for part in reversed(self.parts.values()):
            part.stop(signal.SIGKILL)  # nothing of what it keeps is ever read again

    # -- who talks to it

    @property
    def url(self) -> str:
        return f"https://{self._address}:{self._port}"

    @property
    def ca_file(self) -> Path:
        return self._certificates.ca

    def token(self, user: str = identities.ADMIN) -> str:
        return self._tokens[user]

    def kubeconfig(self, user: str = identities.ADMIN, token: str = "", url: str = "") -> Path:
        """The file that lets `user` in; with another `token`, say of a service account, or through another `url`."""
        path = self.directory / f"{user}.kubeconfig"
        identities.write_kubeconfig(path, url or self.url, self.ca_file, user, {"token": token or self.token(user)})
        return path

    def kubeconfig_by_certificate(self, user: str, group: str) -> Path:
        """The file that lets somebody in as one of kubeadm or kind does, by a client's certificate inline."""
        path, parts = self.directory / f"{user}.kubeconfig", ("client-certificate-data", "client-key-data")
        files = self._certificates.of_client(user, group)
        inline = (base64.b64encode(file.read_bytes()).decode() for file in files)
        identities.write_kubeconfig(path, self.url, self.ca_file, user, dict(zip(parts, inline, strict=True)))
        return path

    def api(self, user: str = identities.ADMIN, token: str = "") -> Api:
        return Api(self.url, token or self.token(user), self.ca_file)

    def cluster(self, user: str = identities.ADMIN, token: str = "", **bounds: Any) -> HttpCluster:
        """The adapter that the services use. Whoever asks for it closes it."""
        return HttpCluster(self.url, token or self.token(user), self.ca_file, **bounds)

    def service_account_token(self, namespace: str, name: str) -> str:
        """As a pod of that account has it; the account must be there."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token: str = self.api().call("POST", path, request)["status"]["token"]
        return token

    def grant(self, user: str, rules: Sequence[Mapping[str, Any]]) -> None:
        """Let a named identity do what `rules` (of a ClusterRole) say, in the whole cluster."""
        meta = {"name": f"test:{user}"}
        group = "rbac.authorization.k8s.io"
        role: Json = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": meta, "rules": list(rules)}
        binding: Json = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": meta["name"]},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
        self.api().create(role)
        self.api().create(binding)

    # -- what is in it

    def add_nodes(self, count: int, prefix: str = "gpu", **what: Any) -> list[str]:
        """So many equal nodes (see `kwok_node`), ready and without taints when this returns."""
        names = [f"{prefix}-{number}" for number in range(count)]
        api = self.api()
        for name in names:
            api.create(kwok_node(name, **what))
        self.wait_for_nodes(names)
        return names

    def wait_for_nodes(self, names: Sequence[str]) -> None:
        def all_ready() -> bool:
            found = {node["metadata"]["name"]: node for node in self.api().items("/api/v1/nodes")}
            return all(name in found and _is_ready(found[name]) for name in names)

        wait_until(all_ready, f"{len(names)} nodes are ready")

    def add_namespace(self, name: str) -> None:
        """Ready for pods: with its default service account."""
        self.api().create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.wait_for_namespace(name)

    def wait_for_namespace(self, name: str) -> None:
        wait_until(lambda: self._has_default_account(0, name), f"namespace {name} has its service account")

    def restart_api_server(self) -> None:
        """Killed and started again on its port, with what is in etcd; ready when this returns. Main thread only."""
        self.parts["kube-apiserver"].restart(signal.SIGKILL)

    def log_tails(self) -> dict[str, str]:
        """The last that each part said, by name."""
        logs = {name: part.directory / "server.log" for name, part in self.parts.items()}
        return {
            name: "\n".join(line[:LOG_TAIL_COLUMNS] for line in _lines(log)[-LOG_TAIL_LINES:])
            for name, log in logs.items()
            if log.exists()
        }

    # -- its parts

    def _start(self, name: str, arguments: Sequence[str], ready: Callable[[int], bool] | None = None) -> None:
        folder = self.directory / name
        folder.mkdir(exist_ok=True)
        command = [str(self._programs[name]), *arguments]
        server = Server(
            command,
            folder,
            self._port,
            ready or (lambda _: True),
            startup_seconds=STARTUP_SECONDS,
            ends_with_us=True,
            environment=COLLECTS_SELDOM,
        )
        self.parts[name] = server
        server.start()

    def _start_etcd(self) -> None:
        for attempt in range(1, PORT_ATTEMPTS + 1):
            clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
            arguments = commands.etcd(self.directory / "etcd" / f"data-{attempt}", clients, peers)
            try:
                self._start("etcd", arguments, lambda _, url=clients: _answers(f"{url}/health"))  # type: ignore[misc]
            except RuntimeError:
                if attempt == PORT_ATTEMPTS:
                    raise
            else:
                self._etcd_url = clients
                return

    def _start_api_server(self) -> None:
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._port = free_port()
            tokens = self.directory / "tokens.csv"
            arguments = commands.api_server(
                self._address, self._port, self._etcd_url, tokens, self._certificates, self._gates
            )
            try:
                self._start("kube-apiserver", [*arguments, *self._api_flags], lambda _: self._is_ready())
            except RuntimeError:
                if attempt == PORT_ATTEMPTS:
                    raise
            else:
                return

    def _start_the_others(self) -> None:
        controllers = self.kubeconfig(identities.CONTROLLERS)
        arguments = commands.controller_manager(controllers, self._certificates, self._silence_seconds, self._gates)
        arguments += self._controller_flags
        self._start("kube-controller-manager", arguments, self._has_default_account)
        if self._kubelets:
            self._start("kwok", commands.kwok(self.kubeconfig(identities.KUBELETS), self._lease_seconds))
        if self._scheduler:
            config = self.directory / "kube-scheduler.yaml"
            kubeconfig = self.kubeconfig(identities.SCHEDULER)
            self._start("kube-scheduler", commands.kube_scheduler(kubeconfig, config, self._gates))

    def _is_ready(self) -> bool:
        """Whether the default roles are there, too: controllers end where these are ten seconds late."""
        return self.api().is_ready()

    def _has_default_account(self, _port: int = 0, namespace: str = "default") -> bool:
        try:
            self.api().get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
        except (OSError, ApiError):
            return False
        return True


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 180.0) -> None:
    """Ask again and again until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not so after {seconds:g} s")
        time.sleep(0.05)


def _is_ready(node: Json) -> bool:
    conditions = {one["type"]: one["status"] for one in node["status"].get("conditions", ())}
    taints = {taint["key"] for taint in node["spec"].get("taints", ())}
    return conditions.get("Ready") == "True" and "node.kubernetes.io/not-ready" not in taints


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description="A Kubernetes control plane with simulated nodes, until Ctrl-C.")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=8, help="of each node")
    parser.add_argument("--directory", type=Path, help="kept afterwards; without it a temporary one")
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="tessera-kubernetes-"))
    try:
        with ControlPlane(directory) as plane:
            plane.add_nodes(arguments.nodes, gpus=arguments.gpus)
            print(f"export KUBECONFIG={plane.kubeconfig()}", flush=True)
            signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
            signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        if arguments.directory is None:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
