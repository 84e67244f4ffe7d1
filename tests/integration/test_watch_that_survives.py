"""Lists and watches over HTTP against a server that does to them what real ones do; and freeing goes on in a jam."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.ports import ApiError
from tessera_schemas.base import Json
from tests.virtual_time import ImpatientClock

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers lists and watches of pods as scripted, one after the other; the last answer stands. Notes what came."""

    def __init__(self) -> None:
        self.lists: list[Answer] = []
        self.watches: list[Answer] = []
        self.asked: list[dict[str, str]] = []
        self.stuck = asyncio.Event()
        self.done: list[tuple[str, str]] = []
        self.refuse_patch = 0
        self.hangs: Callable[[web.Request], bool] = _creates_and_binds

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            return await self._write(request)
        self.asked.append(dict(request.query))
        script = self.watches if "watch" in request.query else self.lists
        return await (script.pop(0) if len(script) > 1 else script[0])(request)

    def versions(self) -> list[str]:
        """Where the watches began."""
        return [query["resourceVersion"] for query in self.asked if "watch" in query]

    async def _write(self, request: web.Request) -> web.StreamResponse:
        """What hangs waits until nothing is stuck; everything else is done."""
        if request.method == "PATCH" and self.refuse_patch:
            status, self.refuse_patch = self.refuse_patch, 0
            return web.json_response({"reason": "Invalid", "message": "a test failed"}, status=status)
        if self.hangs(request):
            await self.stuck.wait()
        self.done.append((request.method, request.path.rpartition("/")[2]))
        return web.json_response({"kind": "Status"})


def _creates_and_binds(request: web.Request) -> bool:
    return request.method == "POST" and not request.path.endswith("/eviction")


def _conditions_and_events(request: web.Request) -> bool:
    return request.path.endswith(("/status", "/events"))


@asynccontextmanager
async def serving(server: Server, **lanes: int) -> AsyncIterator[HttpCluster]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    cluster = HttpCluster(f"http://127.0.0.1:{runner.addresses[0][1]}", **lanes)
    try:
        yield cluster
    finally:
        server.stuck.set()
        await cluster.close()
        await runner.cleanup()


def pod(name: str, version: int = 1) -> Json:
    meta = {"name": name, "namespace": "n", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**meta, "managedFields": [{"manager": "somebody"}]}}


def page(*names: str, version: int = 7, place: str = "") -> Answer:
    body = {"metadata": {"resourceVersion": str(version), "continue": place}, "items": [pod(name) for name in names]}
    return lambda _: _json(body)


def refusal(status: int, reason: str, wait: str = "") -> Answer:
    return lambda _: _json({"reason": reason, "message": "no"}, status, {"Retry-After": wait} if wait else {})


async def _json(body: Json, status: int = 200, headers: Any = None) -> web.StreamResponse:
    return web.json_response(body, status=status, headers=headers)


def stream(*events: Json, cut: bytes = b"", hangs: bool = False) -> Answer:
    """Events, then perhaps a part of one; then the connection breaks, if there was a part, or the watch ends."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(orjson.dumps(event) + b"\n")
        if cut:
            await response.write(cut)
            assert request.transport is not None
            request.transport.abort()
        while hangs:
            await asyncio.sleep(0.01)
        return response

    return answer


def event(kind: str, name: str, version: int) -> Json:
    return {"type": kind, "object": pod(name, version)}


def bookmark(version: int) -> Json:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}


QUIET = stream(hangs=True)


async def shown(server: Server, until: Callable[[Informer], bool]) -> tuple[Informer, ImpatientClock]:
    """An informer that has read until what it shows is so."""
    clock = ImpatientClock()
    async with serving(server) as cluster, asyncio.timeout(120):
        informer = Informer(cluster, "pods", clock)
        while not until(informer):
            await informer.next()
        await informer.close()
    return informer, clock


def names(informer: Informer) -> set[str]:
    return {one["metadata"]["name"] for one in informer.objects.values()}


# -- lists -------------------------------------------------------------------------------------------------------------


async def test_a_long_list_is_read_in_pages_and_each_is_reduced_before_the_next_is_asked_for() -> None:
    server, kept = Server(), list[int]()
    server.lists = [page("a", "b", place="p1"), page("c", place="p2"), page("d")]

    def reduce(found: Json) -> Json:
        kept.append(len(server.asked))
        return {"name": found["metadata"]["name"]}

    async with serving(server) as cluster:
        found, version = await cluster.list("pods", "app=x", "spec.nodeName!=", reduce)
    assert ([one["name"] for one in found], version) == (["a", "b", "c", "d"], "7")
    assert kept == [1, 1, 2, 3]
    selected = {"labelSelector": "app=x", "fieldSelector": "spec.nodeName!=", "limit": "500"}
    assert server.asked == [selected, {**selected, "continue": "p1"}, {**selected, "continue": "p2"}]


async def test_a_list_whose_version_is_forgotten_between_two_pages_is_read_again_whole() -> None:
    server = Server()
    server.lists = [page("a", place="p1"), refusal(410, "Expired"), page("b", "c", version=9)]
    async with serving(server) as cluster:
        found, version = await cluster.list("pods")
    assert ([one["metadata"]["name"] for one in found], version) == (["b", "c"], "9")
    assert server.asked[-1] == {}


async def test_another_refusal_between_two_pages_is_the_callers() -> None:
    server = Server()
    server.lists = [page("a", place="p1"), refusal(429, "TooManyRequests", "3")]
    async with serving(server) as cluster:
        with pytest.raises(ApiError) as caught:
            await cluster.list("pods")
    assert (caught.value.status, caught.value.retry_after_seconds) == (429, 3)


# -- watches -----------------------------------------------------------------------------------------------------------


async def test_a_watch_goes_on_after_the_last_bookmark_and_not_after_the_last_change() -> None:
    server = Server()
    server.lists = [page("a")]
    server.watches = [stream(event("ADDED", "b", 8), bookmark(50)), stream(event("ADDED", "c", 51)), QUIET]
    informer, _ = await shown(server, lambda informer: names(informer) == {"a", "b", "c"})
    assert server.versions()[:2] == ["7", "50"]
    assert "managedFields" not in informer.objects["uid-b"]["metadata"]


async def test_a_connection_that_breaks_in_the_middle_of_a_change_loses_nothing() -> None:
    server = Server()
    server.lists = [page("a")]
    broken = stream(event("ADDED", "b", 8), cut=orjson.dumps(event("ADDED", "c", 9))[:20])
    server.watches = [broken, stream(event("ADDED", "c", 9)), QUIET]
    await shown(server, lambda informer: names(informer) == {"a", "b", "c"})
    assert server.versions()[:2] == ["7", "8"]
    assert sum("watch" not in query for query in server.asked) == 1


@pytest.mark.parametrize("way", ["as an event", "as an answer"])
async def test_a_version_that_is_forgotten_is_a_new_list_and_the_differences(way: str) -> None:
    server = Server()
    error = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    expired = stream(error) if way == "as an event" else refusal(410, "Expired")
    server.lists, server.watches = [page("a", "b"), page("b", "c", version=90)], [expired, QUIET]
    await shown(server, lambda informer: names(informer) == {"b", "c"})
    async with asyncio.timeout(120):
        assert server.versions()[0] == "7"


@pytest.mark.parametrize("status", [500, 503, 403])
async def test_a_refused_watch_is_tried_again_from_a_new_list(status: int) -> None:
    server = Server()
    server.lists = [page("a"), page("a", "b", version=20)]
    server.watches = [refusal(status, "Whatever"), QUIET]
    await shown(server, lambda informer: names(informer) == {"a", "b"})


async def test_an_overloaded_server_is_left_alone_for_as_long_as_it_says() -> None:
    server = Server()
    server.lists = [refusal(429, "TooManyRequests", "5"), page("a")]
    server.watches = [QUIET]
    _, clock = await shown(server, lambda informer: names(informer) == {"a"})
    assert clock.waits == [5]


async def test_what_is_no_json_breaks_the_watch_and_not_the_reader() -> None:
    server = Server()
    server.lists = [page("a")]
    server.watches = [stream(event("ADDED", "b", 8), cut=b"<html>\n"), stream(event("ADDED", "c", 9)), QUIET]
    await shown(server, lambda informer: names(informer) == {"a", "b", "c"})


# -- freeing goes on in a jam ------------------------------------------------------------------------------------------


async def test_a_jam_of_creates_and_binds_does_not_keep_devices_from_being_freed() -> None:
    server = Server()
    server.lists = [lambda _: _json({"metadata": {**pod("p")["metadata"], "finalizers": ["f", "theirs"]}})]
    async with serving(server, in_flight=4, in_flight_releases=2) as cluster:
        creates = [cluster.create_pod("n", pod(f"c{number}")) for number in range(8)]
        binds = [cluster.bind_pod("n", f"b{number}", "uid", "node", {}) for number in range(8)]
        jam = [asyncio.create_task(call) for call in (*creates, *binds)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(120):
            await cluster.delete_pod("n", "p", "uid-p")
            await cluster.evict_pod("n", "p", "uid-p")
            await cluster.annotate_pod("n", "p", "uid-p", {"notice": "now"})
            await cluster.remove_finalizer("n", "p", "uid-p", "f")
            server.refuse_patch = 422  # there is another finalizer: the pod is looked at, and ours alone taken off
            await cluster.remove_finalizer("n", "p", "uid-p", "f")
        assert [method for method, _ in server.done] == ["DELETE", "POST", "PATCH", "PATCH", "PATCH"]
        assert not any(task.done() for task in jam)
        server.stuck.set()
        await asyncio.gather(*jam)


async def test_a_jam_of_conditions_and_events_does_not_keep_a_pod_from_being_bound() -> None:
    server = Server()
    server.hangs = _conditions_and_events
    async with serving(server, in_flight=4, in_flight_told=2) as cluster:
        conditions = [cluster.patch_pod_status("n", f"p{number}", {"status": {}}) for number in range(8)]
        events = [cluster.create_event("n", {"reason": "Waits"}) for _ in range(8)]
        jam = [asyncio.create_task(call) for call in (*conditions, *events)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(120):
            await cluster.create_pod("n", pod("p"))
            await cluster.bind_pod("n", "p", "uid-p", "node", {})
        assert server.done == [("POST", "pods"), ("POST", "binding")]
        assert not any(task.done() for task in jam)
        server.stuck.set()
        await asyncio.gather(*jam)


async def test_a_create_that_timed_out_frees_its_place_in_the_lane() -> None:
    server = Server()
    server.lists = [lambda _: _json(pod("p"))]
    async with serving(server, in_flight=1, timeout_seconds=2) as cluster:
        with pytest.raises(Transient):
            await cluster.create_pod("n", pod("c"))
        assert (await cluster.get_pod("n", "p"))["metadata"]["uid"] == "uid-p"
