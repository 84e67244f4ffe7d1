"""
Commands in pods, by one `exec` call of the Kubernetes API each, as who calls and with their own rights.

The official client reads the kubeconfig. Its own stream is not used: it cannot say that the input has ended, and keeps
in memory what nobody reads; this one stops the program that writes it.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from tessera.client.outcomes import Exit, Failure
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import StartupError
from tessera.kernel.kubernetes.cluster import tls_context
from tessera.kernel.kubernetes.kubeconfig import ClusterAccess, find_access

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""Only the first (Kubernetes 1.30) can say that the input has ended."""
INPUT, OUTPUT, ERRORS, END, SIZE, CLOSE = 0, 1, 2, 3, 4, 255
PIECE_BYTES, PING_SECONDS, CONNECT_SECONDS = 64 * 1024, 20.0, 30.0
Take = Callable[[int, bytes], None]
"""Takes bytes that a program wrote, of 1 its output and 2 its errors; called in a thread, one call at a time."""


class NoProgram(Failure):
    """The container has no such program."""


def show(stream: int, written: bytes) -> None:
    """Write what a program wrote to this process's own output or errors."""
    to = (sys.stdout if stream == OUTPUT else sys.stderr).buffer
    to.write(written)
    to.flush()


@dataclass(frozen=True, slots=True)
class PodExec:
    """Calls to the pods of a namespace."""

    access: ClusterAccess
    session: aiohttp.ClientSession
    namespace: str

    async def run(
        self, pod: str, words: Sequence[str], take: Take = show, reads: bool = False, terminal: bool = False
    ) -> int:
        """The exit code of the words in the pod, with this process's input if it `reads`. Raises Failure."""
        flags = {"stdin": reads, "stdout": True, "stderr": not terminal, "tty": terminal}
        asked = [("command", word) for word in words] + [(name, "true") for name, is_so in flags.items() if is_so]
        url = URL(
            f"{self.access.url}/api/v1/namespaces/{self.namespace}/pods/{pod}/exec?{urlencode(asked)}", encoded=True
        )
        headers = {"Authorization": f"Bearer {token}"} if (token := await asyncio.to_thread(self.access.token)) else {}
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await self.session.ws_connect(url, protocols=PROTOCOLS, headers=headers, max_msg_size=0)
        except aiohttp.WSServerHandshakeError as refused:
            async with self.session.get(url, headers=headers) as answer:  # without an upgrade nothing runs
                raise self._failure(pod, refused.status, await answer.text()) from refused
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
            raise Failure(Exit.UNAVAILABLE, f"{self.access.url} is not reached: {why}; mend KUBECONFIG") from error
        pinging = asyncio.create_task(_ping(socket))
        try:
            async with socket:
                with _typed(socket, terminal) if reads else nullcontext():
                    return await self._until_end(pod, socket, take)
        finally:
            pinging.cancel()

    async def _until_end(self, pod: str, socket: aiohttp.ClientWebSocketResponse, take: Take) -> int:
        with suppress(aiohttp.ClientError, ConnectionError):
            async for message in socket:
                if not isinstance(message.data, bytes) or not message.data:
                    continue
                channel, written = message.data[0], message.data[1:]
                if channel in (OUTPUT, ERRORS) and written:
                    await asyncio.to_thread(take, channel, written)
                elif channel == END and written:
                    return _exit_code(pod, json.loads(written))
        raise Failure(Exit.UNAVAILABLE, f"{pod}: the connection broke; `tessera explain` says whether the pod is gone")

    def _failure(self, pod: str, status: int, text: str) -> Failure:
        """Why the API let nobody in."""
        try:
            text = str(json.loads(text)["message"])
        except (ValueError, LookupError, TypeError):
            text = text[:300]
        code, way_out = {
            401: (Exit.REFUSED, "log in to the cluster anew, or set KUBECONFIG"),
            403: (Exit.REFUSED, f"ask for `get` and `create` of `pods/exec` in the namespace {self.namespace}"),
            404: (Exit.NOT_FOUND, "the pod is gone, or KUBECONFIG names another cluster: see `tessera ls`"),
        }.get(status, (Exit.UNAVAILABLE, "`tessera explain` says how its job is"))
        return Failure(code, f"nothing runs in {pod} of {self.namespace}: {text} ({status}); {way_out}")


@asynccontextmanager
async def pods_of(namespace: str) -> AsyncIterator[PodExec]:
    """Calls with the caller's own kubeconfig. Raises Failure where there is none that can be used."""
    try:
        access = await asyncio.to_thread(find_access)
        tls = tls_context(access.ca_file, access.client)
    except StartupError as error:
        why = error.__cause__ or error
        way_out = 'set KUBECONFIG to one for the cluster of the jobs, with "pods/exec" in their namespace'
        if isinstance(why, ImportError):
            way_out = "pip install kubernetes"
        raise Failure(Exit.USAGE, f"pods are reached with your own kubeconfig: {why}; {way_out}") from error
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    async with aiohttp.ClientSession(connector=connector, trust_env=True) as session:
        yield PodExec(access, session, namespace)


async def _ping(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Keep proxies on the way from ending a connection on which nothing is said."""
    while not socket.closed:
        await SystemClock().sleep(PING_SECONDS)
        await socket.ping()


def _exit_code(pod: str, status: dict[str, object]) -> int:
    if status.get("status") == "Success":
        return 0
    details = status.get("details")
    causes = details.get("causes") or [] if isinstance(details, dict) else []
    codes = [cause.get("message", "") for cause in causes if cause.get("reason") == "ExitCode"]
    if codes and codes[0].isdecimal():
        return int(codes[0])
    said = str(status.get("message", status))
    kind = NoProgram if "no such file" in said or "not found" in said else Failure
    raise kind(Exit.FAILED, f"{pod}: {said}")


@contextmanager
def _typed(socket: aiohttp.ClientWebSocketResponse, terminal: bool) -> Iterator[None]:
    """This process's input goes to the program; a terminal hands on each key and its size."""
    loop, input_file = asyncio.get_running_loop(), sys.stdin.fileno()

    def send(data: bytes) -> None:
        asyncio.run_coroutine_threadsafe(socket.send_bytes(data), loop).result()

    def read() -> None:
        # The loop or the connection may end at any moment; then nobody reads any more.
        with suppress(RuntimeError, OSError, aiohttp.ClientError, CancelledError):
            while piece := os.read(input_file, PIECE_BYTES):
                send(bytes([INPUT]) + piece)
            if socket.protocol == PROTOCOLS[0]:
                send(bytes([CLOSE, INPUT]))

    # A thread that the interpreter does not wait for: nothing ends a read of a terminal.
    reader = threading.Thread(target=read, daemon=True)
    if not terminal:
        reader.start()
        yield
        return
    import termios
    import tty

    sending = set[asyncio.Task[None]]()

    def tell_size() -> None:
        columns, lines = shutil.get_terminal_size()
        with suppress(OSError):
            columns, lines = os.get_terminal_size(input_file)
        said = json.dumps({"Width": columns, "Height": lines}).encode()
        sending.add(task := asyncio.ensure_future(socket.send_bytes(bytes([SIZE]) + said)))
        task.add_done_callback(sending.discard)

    before = termios.tcgetattr(input_file)
    tell_size()
    loop.add_signal_handler(signal.SIGWINCH, tell_size)
    try:
        tty.setraw(input_file)
        reader.start()
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        termios.tcsetattr(input_file, termios.TCSADRAIN, before)
