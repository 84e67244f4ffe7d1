"""Logs through a real API server, from a kubelet that speaks its protocol."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ports import ApiError
from tessera_schemas.cluster.cluster_roles import LOG_READER
from tests.kubernetes.certificates import Certificates
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.nodes import kwok_node

NAMESPACE, NODE, READER = "logs", "logs-1", "log-reader"


class Kubelet:
    """Answers for one container: two lines at once, a third once `more` is set; then its end."""

    def __init__(self) -> None:
        self.more, self.asked, self.left = asyncio.Event(), list[dict[str, str]](), asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            await response.write(b"one\ntwo\n")
            if request.query.get("follow") == "true":
                await self.more.wait()
                await response.write(b"three\n")
        finally:
            self.left.set()
        return response

    @asynccontextmanager
    async def listening(self, certificates: Certificates) -> AsyncIterator[int]:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificates.serving, certificates.serving_key)
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self.answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        try:
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()


def begin(plane: ControlPlane, port: int) -> None:
    """A node at that port, on which one pod runs and one waits."""
    api = plane.api()
    plane.add_namespace(NAMESPACE)
    node = kwok_node(NODE, gpus=0)
    node["metadata"]["labels"].pop("type")  # or KWOK would play it
    api.create(node)
    where = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    api.patch(f"/api/v1/nodes/{NODE}/status", {"status": where})
    for name, place in (("runs", {"nodeName": NODE}), ("waits", {})):
        spec: dict[str, Any] = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "img"}], **place}
        meta = {"name": name, "namespace": NAMESPACE}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    api.patch(f"/api/v1/namespaces/{NAMESPACE}/pods/runs/status", {"status": {"phase": "Running"}})
    (rule,) = LOG_READER.rules
    rules = [{"apiGroups": list(rule.groups), "resources": list(rule.resources), "verbs": list(rule.verbs)}]
    plane.grant(READER, rules)


@pytest.fixture
async def kubelet(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[tuple[Kubelet, HttpCluster]]:
    made = Kubelet()
    async with made.listening(Certificates.made_in(tmp_path)) as port:
        await asyncio.to_thread(begin, plane, port)
        cluster = plane.cluster(READER)
        try:
            yield made, cluster
        finally:
            await cluster.close()
            await asyncio.to_thread(plane.api().call, "DELETE", f"/api/v1/nodes/{NODE}")


async def read(cluster: HttpCluster, name: str, **how: Any) -> bytes:
    async with asyncio.timeout(30), aclosing(cluster.read_log(NAMESPACE, name, **how)) as pieces:
        return b"".join([piece async for piece in pieces])


async def test_the_right_to_read_logs_is_enough_and_gives_nothing_else(
    kubelet: tuple[Kubelet, HttpCluster],
) -> None:
    node, cluster = kubelet
    assert await read(cluster, "runs") == b"one\ntwo\n"
    await read(cluster, "runs", tail_lines=3, since_seconds=9)
    assert node.asked == [{}, {"sinceSeconds": "9", "tailLines": "3"}]
    with pytest.raises(ApiError) as refused:
        await cluster.get_pod(NAMESPACE, "runs")
    assert refused.value.status == 403
    for name, status in (("waits", 400), ("nobody", 404)):
        with pytest.raises(ApiError) as refused:
            await read(cluster, name)
        assert refused.value.status == status

    async with aclosing(cluster.read_log(NAMESPACE, "runs", follow=True)) as pieces:
        assert await anext(pieces) == b""
        assert await anext(pieces) == b"one\ntwo\n"
        node.more.set()
        assert [piece async for piece in pieces] == [b"three\n"]

    node.more.clear(), node.left.clear()
    async with aclosing(cluster.read_log(NAMESPACE, "runs", follow=True)) as pieces:
        await anext(pieces)
        await anext(pieces)
    await asyncio.wait_for(node.left.wait(), 30)  # whoever reads no more ends it at the kubelet, too
