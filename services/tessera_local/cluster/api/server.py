"""
The simulated cluster behind HTTP: the paths, bodies, statuses and watch streams of a real API server.

Requests go straight from aiohttp's low-level server to `routes`: its router and middlewares cost more than the whole
rest of a call. Real time drives the core: a loop timer is kept at `next_due_ms`.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from tessera.kernel.ports import ApiError, Clock
from tessera_local.cluster.api import answers
from tessera_local.cluster.api.access import Access
from tessera_local.cluster.api.admin import apply_fault
from tessera_local.cluster.api.answers import AnswerLost
from tessera_local.cluster.api.discovery import discovered
from tessera_local.cluster.api.routes import Call, call_of, watched
from tessera_local.cluster.api.streams import stream_log, stream_watch
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.objects.shelf import Version
from tessera_local.cluster.objects.store import KINDS
from tessera_schemas.base import Json

_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2-tessera", "platform": "simulated"}
_STRATEGIC = "application/strategic-merge-patch+json"
_PATCHES = {"application/merge-patch+json": dict, "application/json-patch+json": list, _STRATEGIC: dict}
_BUILT_IN = ("pods", "nodes", "jobs")
"""Kinds whose lists the API knows how to merge; of others it takes no strategic patch."""
_MAX_BODY_BYTES = 3 * 1024 * 1024  # as the real one
_SUCCESS = orjson.dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})


class ApiServer:
    """Serves one SimCluster on a loopback port."""

    def __init__(self, cluster: SimCluster, clock: Clock, access: Access | None = None) -> None:
        self._cluster, self._clock, self._access = cluster, clock, access or Access()
        self._runner: web.ServerRunner | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._stopping = asyncio.Event()

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> int:
        """Listen and return the port; 0 picks a free one."""
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=2)
        await self._runner.setup()
        self._cluster.call_on_earlier(self._arm)
        self._arm()
        return await self._listen(host, port)

    async def start_tls(self, certificate: Path, port: int = 0, host: str = "127.0.0.1") -> int:
        """
        Listen on one more port, which speaks TLS, and return it; `certificate` is a file with its key and chain.

        Services stay on the plain one, which costs them less. Raises OSError for a file that holds no such thing.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        return await self._listen(host, port, context)

    async def _listen(self, host: str, port: int, context: ssl.SSLContext | None = None) -> int:
        assert self._runner is not None
        await web.TCPSite(self._runner, host, port, ssl_context=context).start()
        return int(self._runner.addresses[-1][1])

    async def stop(self) -> None:
        """End all watches, then the listener."""
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()
        self._cluster.close_watches()
        if self._runner is not None:
            await self._runner.cleanup()

    # -- requests -------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiError as error:
            return _refused(error)
        except AnswerLost:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()  # goes nowhere

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if path in ("/readyz", "/livez", "/healthz"):
            return web.Response(text="ok")
        if path == "/version":
            return _json(orjson.dumps(_VERSION))
        who = self._access.identify(request.headers.get("Authorization", ""))
        if path.startswith("/admin/"):
            who.check_admin()
            return await self._admin(request)
        if request.method == "GET" and (found := discovered(path)):
            return _json(orjson.dumps(found))
        call = call_of(request.method, path)
        if call.verb == "list" and request.query.get("watch") in ("1", "true"):
            call = watched(call)
        who.check(call)
        return await _VERBS[call.verb](self, call, request)

    async def _list(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        found, version, place = self._page(call, request)
        api_version, kind = KINDS[call.resource]
        meta = orjson.dumps({"resourceVersion": version, **({"continue": place} if place else {})})
        head = b'{"kind":"%sList","apiVersion":"%s","metadata":%s,"items":['
        begins = head % (kind.encode(), api_version.encode(), meta)
        return _json(begins + b",".join([one.json for one in found]) + b"]}")

    def _page(self, call: Call, request: web.BaseRequest) -> tuple[list[Version], str, str]:
        limit = request.query.get("limit", "0")
        if not limit.isdecimal():
            raise answers.bad_request(f"limit: {limit!r} is no number")
        if "continue" in request.query:
            self._cluster.faults.before("list")
            return self._cluster.pages.next(request.query["continue"], int(limit))
        found, version = self._cluster.list(call.resource, *_selectors(request))
        if call.namespace:
            found = [one for one in found if one.meta.get("namespace") == call.namespace]
        return self._cluster.pages.first(found, version, int(limit))

    async def _watch(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        labels, fields = _selectors(request)
        if call.namespace:
            fields = ",".join(filter(None, (fields, f"metadata.namespace={call.namespace}")))
        watch = self._cluster.open_watch(call.resource, request.query.get("resourceVersion", ""), labels, fields)
        return await stream_watch(request, watch, self._clock, self._stopping)

    async def _get(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        return _json(self._cluster.get(call.resource, call.namespace, call.name).json)

    async def _log(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        for name in ("tailLines", "sinceSeconds"):
            if not request.query.get(name, "0").isdecimal():
                raise answers.bad_request(f"{name}: {request.query[name]!r} is no number")
        read = partial(self._cluster.read_log, call.namespace, call.name)
        return await stream_log(request, read, self._clock, self._stopping)

    async def _create(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        created = self._cluster.create(call.resource, call.namespace, await _body(request))
        return _json(created.json, 201)

    async def _bind(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        self._cluster.bind(call.namespace, call.name, _object(await _body(request)))
        return _json(_SUCCESS, 201)

    async def _evict(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        self._cluster.evict(call.namespace, call.name, _object(await _body(request)))
        return _json(_SUCCESS, 201)

    async def _delete(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        options = await _body(request) if request.body_exists else {}
        return _json(self._cluster.delete(call.resource, call.namespace, call.name, _object(options)).json)

    async def _patch(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        wanted, by_keys = _PATCHES.get(request.content_type), request.content_type == _STRATEGIC
        if wanted is None or (by_keys and call.resource not in _BUILT_IN):
            raise ApiError(415, "UnsupportedMediaType", f"the body of the request was in {request.content_type!r}")
        patch = await _body(request)
        if not isinstance(patch, wanted):
            raise answers.bad_request("the patch does not have the form that its content type says")
        self._check_uid(call, patch)
        changed = self._cluster.patch(
            call.resource, call.namespace, call.name, patch, call.subresource, by_keys=by_keys
        )
        return _json(changed.json)

    def _check_uid(self, call: Call, patch: Any) -> None:
        """
        Refuses another UID in a merge patch: to the real server that is a forbidden change, not a failed precondition.
        """
        meta = patch.get("metadata") if isinstance(patch, dict) else None
        uid = meta.get("uid") if isinstance(meta, dict) else None
        if uid and uid != self._cluster.uid_of(call.resource, call.namespace, call.name):
            raise answers.invalid(call.resource, call.name, f'metadata.uid: Invalid value: "{uid}": field is immutable')

    async def _admin(self, request: web.BaseRequest) -> web.StreamResponse:
        if (request.method, request.path) == ("POST", "/admin/faults"):
            apply_fault(self._cluster, await request.read())
            return _json(_SUCCESS, 201)
        if (request.method, request.path) == ("GET", "/admin/sizes"):
            return _json(orjson.dumps(self._cluster.sizes()))
        raise ApiError(404, "NotFound", "the server could not find the requested resource")

    # -- time -----------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Keep one loop timer at the next due time; at least 1 ms ahead, so that what is due together runs together."""
        due_ms = self._cluster.next_due_ms()
        if due_ms is None or self._stopping.is_set():
            return
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        wait_ms = max(due_ms - self._clock.now_ms(), 1)
        self._timer_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._cluster.advance()
        self._arm()


_Serve = Callable[[ApiServer, Call, web.BaseRequest], Awaitable[web.StreamResponse]]
_VERBS: dict[str, _Serve] = {
    "list": ApiServer._list,
    "watch": ApiServer._watch,
    "get": ApiServer._get,
    "log": ApiServer._log,
    "create": ApiServer._create,
    "bind": ApiServer._bind,
    "evict": ApiServer._evict,
    "delete": ApiServer._delete,
    "patch": ApiServer._patch,
}


def _selectors(request: web.BaseRequest) -> tuple[str, str]:
    return request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")


async def _body(request: web.BaseRequest) -> Any:
    if (request.content_length or 0) > _MAX_BODY_BYTES:
        raise ApiError(413, "RequestEntityTooLarge", "limit is 3145728")
    try:
        return orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise answers.bad_request(f"the body is not JSON: {error}") from error


def _object(body: Any) -> Json:
    if not isinstance(body, dict):
        raise answers.bad_request("the body must be an object")
    return body


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _refused(error: ApiError) -> web.Response:
    response = _json(orjson.dumps(answers.status_object(error)), error.status)
    if error.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(int(error.retry_after_seconds))
    return response
