"""The platform's side of the fork server: processes that are forked from it, used like those of asyncio."""

import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tessera.kernel.errors import StartupError
from tessera_local.fork_server import ForkRequest, end_with_parent

MODULE_OPTION = "-m"


@dataclass(eq=False)
class ForkedProcess:
    """A process that the fork server made; `returncode` is None while it runs."""

    pid: int
    returncode: int | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    def send_signal(self, number: int) -> None:
        """Send a signal; one that has ended gets none, also before its end was reported here."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end; returns its exit code, minus the signal for one that a signal ended."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def has_ended(self, code: int) -> None:
        """Note its exit code, and wake who waits for it."""
        self.returncode = code
        self._ended.set()


class ForkServer:
    """
    Forks `python -m MODULE …` of processes that share what `modules` import.

    It is started with the first process, or by `warm_up`; one that died is started again with the next process, and its
    processes count as stopped by SIGTERM, which is what Linux sends them then.
    """

    def __init__(self, directory: Path, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = [sys.executable, MODULE_OPTION, "tessera_local.fork_server", str(directory), *modules]
        self._environment = dict(environment)
        self._log = directory / "logs" / "fork-server.log"
        self._server: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._asked: deque[asyncio.Future[ForkedProcess]] = deque()
        self._running: dict[int, ForkedProcess] = {}
        self._starting = asyncio.Lock()

    @staticmethod
    def takes(command: Sequence[str]) -> bool:
        """True for a command that runs a module in this interpreter."""
        return list(command[:2]) == [sys.executable, MODULE_OPTION]

    async def warm_up(self) -> None:
        """Start the server unless it runs; it imports while the caller does something else."""
        async with self._starting:
            if self._server is not None and self._server.returncode is None:
                return
            with self._log.open("ab") as log:
                self._server = await asyncio.create_subprocess_exec(
                    *self._command,
                    env={**os.environ, **self._environment},
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=end_with_parent,
                )
            self._reader = asyncio.create_task(self._read(self._server), name="read what the fork server reports")

    async def launch(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> ForkedProcess:
        """Fork one process. Raises StartupError when the server ends instead, as it does when an import fails."""
        await self.warm_up()
        assert self._server is not None
        assert self._server.stdin is not None
        _, _, module, *arguments = command
        request = ForkRequest(
            name=name,
            module=module,
            arguments=arguments,
            environment=dict(environment),
            directory=os.getcwd(),
            log=str(log),
        )
        pid: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        self._asked.append(pid)
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        return await asyncio.shield(pid)

    async def close(self) -> None:
        """End the server, whose processes have been stopped before."""
        if self._server is not None and self._reader is not None:
            assert self._server.stdin is not None
            self._server.stdin.close()
            await self._server.wait()
            await self._reader

    async def _read(self, server: asyncio.subprocess.Process) -> None:
        """Pass on what the server reports, until it has ended."""
        assert server.stdout is not None
        while line := await server.stdout.readline():
            news = json.loads(line)
            if "code" in news:
                self._running.pop(news["pid"]).has_ended(news["code"])
            else:
                process = self._running[news["pid"]] = ForkedProcess(news["pid"])
                self._asked.popleft().set_result(process)
        await server.wait()
        for process in self._running.values():
            process.has_ended(-signal.SIGTERM)
        self._running.clear()
        for asked in self._asked:
            asked.set_exception(StartupError(f"the fork server ended; log: {self._log}"))
        self._asked.clear()
