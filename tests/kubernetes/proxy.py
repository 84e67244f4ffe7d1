"""
A proxy before the API server that answers some calls itself, badly, as a loaded server or a broken network would.

`share` of all calls (never of watches) meet a fault drawn from a seed: refused with 409, 429 or 500 and no effect, or
carried out and never answered. `before` and `after` are awaited around every call, with its verb, and may end the
world of whoever calls. Watches can be cut, and stay cut until they are mended.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from tests.kubernetes.control_plane import ControlPlane

KINDS = ("409", "429", "500", "lost")
_REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}
_VERBS = {"GET": "get", "POST": "create", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}
_PASSED_ON = ("Content-Type", "Accept", "Authorization")

Hook = Callable[[str, str], Awaitable[None]]


async def _nothing(_verb: str, _path: str) -> None: ...


class Proxy:
    """`met` counts what was done to whom: (verb, kind of fault)."""

    def __init__(self, plane: ControlPlane, seed: int = 1) -> None:
        self._plane, self._chance = plane, random.Random(seed)
        self.share = 0.0
        self.before: Hook = _nothing
        self.after: Hook = _nothing
        self.met: Counter[tuple[str, str]] = Counter()
        self.url = ""
        self._lost: list[str] = []
        self._hung: list[str] = []
        self._cut = False
        self._watches: set[asyncio.Transport] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        connector = aiohttp.TCPConnector(limit=0, ssl=self._plane.api().tls)
        async with aiohttp.ClientSession(connector=connector) as self._session:
            try:
                yield self
            finally:
                self.cut_watches()
                await runner.cleanup()

    def calm_down(self) -> None:
        """Be as if not there, from now on."""
        self.before = self.after = _nothing
        self.share = 0.0
        self._lost, self._hung = [], []
        self.mend_watches()

    def lose_answer(self, verb: str) -> None:
        """Carry out the next call of this verb and answer nothing."""
        self._lost.append(verb)

    def hang(self, verb: str) -> None:
        """Carry out the next call of this verb and leave the caller waiting for its answer, for ever."""
        self._hung.append(verb)

    def cut_watches(self) -> None:
        """End all watches and let no new one begin."""
        self._cut = True
        for transport in self._watches:
            transport.abort()

    def mend_watches(self) -> None:
        self._cut = False

    # -- calls

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        verb = _verb(request)
        if verb == "watch":
            return await self._watch(request)
        await self.before(verb, request.path)
        fault = self._fault(verb)
        if fault in ("409", "429", "500"):
            return _refused(int(fault))
        answer = await self._forward(request)
        await self.after(verb, request.path)
        if verb in self._hung:
            self._hung.remove(verb)
            await asyncio.Event().wait()  # until the caller goes
        if fault == "lost" or answer is None:
            _abort(request)
        return answer or web.Response()

    def _fault(self, verb: str) -> str:
        if verb in self._lost:
            self._lost.remove(verb)
            return "lost"
        if self._chance.random() >= self.share:
            return ""
        kind = self._chance.choice(KINDS)
        self.met[verb, kind] += 1
        return kind

    async def _forward(self, request: web.BaseRequest) -> web.Response | None:
        """None while the server does not answer."""
        try:
            async with self._upstream(request, await request.read()) as answer:
                return web.Response(status=answer.status, headers=_headers(answer), body=await answer.read())
        except aiohttp.ClientError:
            return None

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        if self._cut or transport is None:
            _abort(request)
            return web.Response()
        self._watches.add(transport)
        try:
            async with self._upstream(request, None) as answer:
                response = web.StreamResponse(status=answer.status, headers=_headers(answer))
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                return response
        except (aiohttp.ClientError, ConnectionError):
            _abort(request)
            return web.Response()
        finally:
            self._watches.discard(transport)

    def _upstream(self, request: web.BaseRequest, body: bytes | None) -> Any:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        timeout = aiohttp.ClientTimeout(total=None if body is None else 120)
        url = self._plane.url + request.path_qs
        return self._session.request(request.method, url, data=body, headers=headers, timeout=timeout)


def _verb(request: web.BaseRequest) -> str:
    if request.query.get("watch") in ("1", "true"):
        return "watch"
    last = request.path.rsplit("/", 1)[-1]
    return {"binding": "bind", "eviction": "evict"}.get(last, _VERBS[request.method])


def _headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    kept = ("Content-Type", "Retry-After")
    return {name: answer.headers[name] for name in kept if name in answer.headers}


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()


def _refused(status: int) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": _REASONS[status]}
    answer = orjson.dumps({**body, "message": "a fault of the tests"})
    headers = {"Retry-After": "1"} if status == 429 else {}
    return web.Response(status=status, body=answer, content_type="application/json", headers=headers)
