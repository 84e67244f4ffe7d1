"""
An API server of pods' `exec` calls over loopback: it notes each call, and a function of the test plays the program.

    async with exec_calls(tmp_path, play) as server: ...   # server.kubeconfig is for KUBECONFIG
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import ClientSession, WSMsgType, web

from tessera.client.slurm.in_pods import PodExec
from tessera.kernel.kubernetes.kubeconfig import ClusterAccess

TOKEN = "of-the-user"


@dataclass
class Call:
    """A call: what was asked for, the sizes that a terminal told, and the socket to the caller."""

    pod: str
    words: list[str]
    flags: set[str]
    socket: web.WebSocketResponse
    sizes: list[dict[str, int]] = field(default_factory=list)

    async def write(self, written: bytes, stream: int = 1) -> None:
        await self.socket.send_bytes(bytes([stream]) + written)

    async def read(self) -> bytes:
        """The next of the input, b"" at its end or for a size."""
        async for message in self.socket:
            assert message.type is WSMsgType.BINARY
            match message.data[0]:
                case 0:
                    return bytes(message.data[1:])
                case 4:
                    self.sizes.append(json.loads(message.data[1:]))
                    return b""
                case 255:
                    assert message.data[1:] == b"\0"
                    return b""
        return b""

    async def end(self, code: int = 0) -> None:
        cause = {"reason": "ExitCode", "message": str(code)}
        failed = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
        await self.fail(failed if code else {"status": "Success"})

    async def fail(self, status: dict[str, object]) -> None:
        await self.socket.send_bytes(b"\3" + json.dumps(status).encode())


Play = Callable[[Call], Awaitable[None]]


@dataclass
class ExecCalls:
    """The server; `refusal` is a status and a message in place of every call."""

    kubeconfig: Path
    play: Play
    url: str = ""
    refusal: tuple[int, str] | None = None
    calls: list[Call] = field(default_factory=list)

    @asynccontextmanager
    async def pods(self) -> AsyncIterator[PodExec]:
        """Calls to it, without a kubeconfig."""
        async with ClientSession() as session:
            yield PodExec(ClusterAccess(self.url, lambda: TOKEN, None), session, "lab")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.refusal is not None:
            code, message = self.refusal
            return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        flags = {name for name in ("stdin", "stdout", "stderr", "tty") if request.query.get(name) == "true"}
        call = Call(request.match_info["pod"], request.query.getall("command"), flags, socket)
        self.calls.append(call)
        await self.play(call)
        await socket.close()
        return socket


@asynccontextmanager
async def exec_calls(folder: Path, play: Play) -> AsyncIterator[ExecCalls]:
    """The server while it is there, with a kubeconfig for it in the folder."""
    server = ExecCalls(folder / "kubeconfig", play)
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/lab/pods/{pod}/exec", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    server.kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
                "clusters": [{"name": "here", "cluster": {"server": server.url}}],
                "users": [{"name": "me", "user": {"token": TOKEN}}],
            }
        )
    )
    try:
        yield server
    finally:
        await runner.cleanup()
