"""The whole docker-compose.yml, run under a name of its own, and the parts of `Platform` that a live test looks at."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tessera.client.cluster.applying import shown
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera_local.free_port import free_port
from tessera_schemas import subjects
from tessera_schemas.config import ConfigBody
from tessera_schemas.shard.services import SERVICES
from tests.containers.engine import docker

ROOT = Path(__file__).parents[2]
FILES = ("-f", "docker-compose.yml", "-f", "tests/containers/published.yml")
LIVEZ = """
import socket
connection = socket.create_connection(("127.0.0.1", 8080), 9)
connection.sendall(b"GET /readyz HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n")
print(connection.makefile("rb").read().split(b"\\r\\n\\r\\n", 1)[1].decode())
"""


def program() -> list[str]:
    """Compose 2 where the engine's command line has it, else 1.29, as `make compose-up` chooses."""
    return ["docker", "compose"] if docker("compose", "version", check=False).returncode == 0 else ["docker-compose"]


@dataclass
class ComposeStack:
    """
    One project; `directory` holds what is copied out of it: the identities, and where its servers are.

    `profiles` are those that a person would switch on, `command` is the program of Compose, `settings` further
    variables, `over` files over docker-compose.yml.
    """

    directory: Path
    project: str
    services: tuple[str, ...] = SERVICES
    shard: str = subjects.MAIN_SHARD
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in ("nats", "redis", "cluster")})
    monitor_port: int = field(default_factory=free_port)
    api_port: int = field(default_factory=free_port)
    prometheus_port: int = field(default_factory=free_port)
    profiles: str = "sim"
    command: list[str] = field(default_factory=program)
    settings: dict[str, str] = field(default_factory=dict)
    over: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        return (*FILES, *(word for name in self.over for word in ("-f", name)))

    @property
    def environment(self) -> dict[str, str]:
        """What the compose file is told: ports of our own, and who is to be let in first."""
        return {
            "COMPOSE": " ".join([*self.command, "-p", self.project, *self.files]),
            "TESSERA_NATS_PORT": str(self.ports["nats"]),
            "TESSERA_TEST_REDIS_PORT": str(self.ports["redis"]),
            "TESSERA_TEST_CLUSTER_PORT": str(self.ports["cluster"]),
            "TESSERA_TEST_MONITOR_PORT": str(self.monitor_port),
            "TESSERA_API_PORTS": f"{self.api_port}-{self.api_port + 9}",
            "TESSERA_PROMETHEUS_PORT": str(self.prometheus_port),
            "TESSERA_TENANT": "first",
            "DOCKER_BUILDKIT": "0",
            **self.settings,
        }

    def make(self, *words: str, timeout: float = 300) -> str:
        """One of the Makefile's targets, as a person calls it."""
        return self._run("make", *words, timeout=timeout, COMPOSE_PROFILES=self.profiles)

    def compose(self, *words: str, timeout: float = 300, profiles: str = "") -> str:
        """Compose itself; all profiles are on, unless some are named."""
        profiles = profiles or f"{self.profiles},cli,watch".removeprefix(",")
        words = (*self.command, "-p", self.project, *self.files, *words)
        return self._run(*words, timeout=timeout, COMPOSE_PROFILES=profiles)

    def configure(self, body: ConfigBody) -> None:
        """A configuration in force and its tenants let in, as the docs say it; then their identities are at hand."""
        file = self.directory / "config.yaml"
        file.write_text(shown(body))
        self.cli("apply", "--yes", "-f", "/in.yaml", file=file)
        self.make("compose-identities")
        self.take_out()

    def new_token(self, tenant: str) -> str:
        """A token of the HTTP API, which the gateway has when this returns."""
        said = self.cli("token", "new", tenant, "--credentials", "/var/lib/tessera/credentials")
        self.make("compose-identities")
        return said.split()[-1]

    def cli(self, *words: str, file: Path | None = None) -> str:
        """A command in the client's container; `file` is there as /in.yaml."""
        mounted = ["-v", f"{file}:/in.yaml:ro"] if file else []
        return self.compose("run", "--rm", "-T", *mounted, "cli", *words)

    def take_out(self) -> None:
        """Copy the identities out, and write where the servers are, as a local platform does."""
        shutil.rmtree(self.directory / "credentials", ignore_errors=True)
        name = f"{self.project}-copy"
        docker("create", "--name", name, "-v", f"{self.project}_credentials:/c", "redis:7-bookworm", "true")
        try:
            docker("cp", f"{name}:/c", str(self.directory / "credentials"))
        finally:
            docker("rm", "-f", name)
        state: dict[str, Any] = {
            "shards": [self.shard],
            "nats_url": f"nats://127.0.0.1:{self.ports['nats']}",
            "nats_monitor_url": f"http://127.0.0.1:{self.monitor_port}",
            "redis_url": f"redis://127.0.0.1:{self.ports['redis']}/0",
            "credentials": str(self.credentials.root),
            "pids": {},
        }
        (self.directory / "platform.json").write_text(json.dumps(state))

    def containers(self, service: str) -> list[str]:
        """Names of a service's containers that run."""
        ids = docker(
            *("ps", "-q", "--filter", f"label=com.docker.compose.project={self.project}"),
            *("--filter", f"label=com.docker.compose.service={service}"),
        )
        return ids.stdout.split()

    def readiness(self, container: str) -> dict[str, str]:
        """What `/readyz` says inside a container; empty while nobody answers."""
        done = docker("exec", container, "python", "-I", "-S", "-c", LIVEZ, check=False, timeout=180)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def is_ready(self, service: str, replicas: int = 1) -> bool:
        """Whether so many containers of a service run and each says that all is well."""
        containers = self.containers(service)
        if len(containers) != replicas:
            return False
        texts = [self.readiness(container) for container in containers]
        return all(found and set(found.values()) == {"ok"} for found in texts)

    # -- what `Live` asks of a platform

    @property
    def credentials(self) -> CredentialDirectory:
        return CredentialDirectory(self.directory / "credentials", self.shard)

    @property
    def cluster_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['cluster']}"

    async def add_tenant(self, *_: object) -> None:
        """Nothing to do: `apply` and `make compose-identities` let tenants in."""

    def _run(self, *words: str, timeout: float, **more: str) -> str:
        environment = {**os.environ, **self.environment, **more}
        done = subprocess.run(
            words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout
