"""One child process: started, logged, started again when it ends unasked, stopped when asked."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tessera.kernel.errors import StartupError
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.task_group import cancel_all
from tessera_local.fork_server import end_with_parent
from tessera_local.forking import ForkServer

BACKOFF_SECONDS = 0.2
BACKOFF_SECONDS_MAX = 10.0
STEADY_SECONDS = 30.0  # up for this long, and the back-off starts over
STOP_SECONDS = 15.0  # above the drain of every service


@dataclass(frozen=True, slots=True)
class Spawn:
    """A command to run as a child process."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Process(Protocol):
    """The part of a process handle that is used here; asyncio's have it."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Exit code, minus the signal for a process that a signal ended; None while it runs."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Send a signal to it."""
        ...

    def kill(self) -> None:
        """End it by SIGKILL."""
        ...

    async def wait(self) -> int:
        """Wait for its end; returns its exit code."""
        ...


class Child:
    """
    A supervised process. `spawn` is asked at every start, so that a restart may differ; `ready` returns when the
    process serves; `changed` is called after every start, and again when the process serves. `forks` makes what runs a
    module of ours; everything else, or all without it, is executed, and inherits the open files `inherit`.
    """

    def __init__(
        self,
        name: str,
        spawn: Callable[[], Spawn],
        ready: Callable[["Child"], Awaitable[None]],
        log: Path,
        clock: Clock,
        notify: Callable[[str], None],
        changed: Callable[[], None],
        inherit: Sequence[int] = (),
        forks: ForkServer | None = None,
    ) -> None:
        self.name, self.log, self.clock = name, log, clock
        self._spawn, self._ready, self._notify, self._changed = spawn, ready, notify, changed
        self._inherit, self._forks = tuple(inherit), forks
        self._process: Process | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None while the child is down."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """True from start until the operating system reports an end; says nothing about being ready."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, wait until it is ready, and keep it running from then on. Raises StartupError when it is not."""
        await self._launch()
        try:
            await self._ready(self)
        except BaseException:
            await self._end(signal.SIGTERM)
            raise
        self._changed()
        self._supervisor = asyncio.create_task(self._supervise(), name=f"supervise {self.name}")

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """Tell it to end by signal `number` and wait; kill it when it has not after STOP_SECONDS. It stays down."""
        if self._supervisor is not None:
            await cancel_all(self._supervisor)
            self._supervisor = None
        await self._end(number)

    def signal(self, number: int) -> None:
        """Send a signal; an unasked end is mended by the supervisor, as in real life."""
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def freeze(self) -> None:
        """
        Stop it as it stands until SIGCONT: connections stay open, and nobody answers.

        Returns when every thread of it stands still; until then it may answer yet.
        """
        self.signal(signal.SIGSTOP)
        while self.pid is not None and not _stands_still(self.pid):
            os.sched_yield()

    def last_line(self) -> str:
        """The newest line of its log that says anything."""
        try:
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        except OSError:
            return "no log"
        return lines[-1][:300] if lines else "it said nothing"

    async def _launch(self) -> None:
        spawn = self._spawn()
        environment = {**os.environ, **spawn.environment}
        if self._forks is not None and self._forks.takes(spawn.command):
            self._process = await self._forks.launch(self.name, spawn.command, environment, self.log)
            return
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *spawn.command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the platform alone, which stops its children in order
                pass_fds=self._inherit,
                preexec_fn=end_with_parent,
            )

    async def _supervise(self) -> None:
        wait = BACKOFF_SECONDS
        while True:
            assert self._process is not None
            started = self.clock.monotonic()
            code = await self._process.wait()
            if self.clock.monotonic() - started >= STEADY_SECONDS:
                wait = BACKOFF_SECONDS
            self._notify(f"{self.name} ended with code {code}; starting it again in {wait:g} s; log: {self.log}")
            await self.clock.sleep(wait)
            wait = min(2 * wait, BACKOFF_SECONDS_MAX)
            with suppress(StartupError):  # it ended again, or is not well: that is looked at above, and by others
                await self._launch()
                self._changed()
                await self._ready(self)
            self._changed()

    async def _end(self, number: int) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(number)
        if number != signal.SIGKILL:
            process.send_signal(signal.SIGCONT)  # a paused process would never see it
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            self._notify(f"{self.name} did not end within {STOP_SECONDS:.0f} s and is killed; log: {self.log}")
            process.kill()
            await process.wait()


def _stands_still(pid: int) -> bool:
    """True when every thread of a stopped process has stopped, and when the process has ended (Linux)."""
    try:
        states = [(task / "stat").read_text().rpartition(") ")[2][0] for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return True
    return all(state in "TtZX" for state in states)
