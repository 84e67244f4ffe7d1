"""The simulated cluster as a process and over HTTP: start, stop, statuses, faults on order."""

import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import which
from typing import Any

import aiohttp
import kubernetes.client
import kubernetes.config
import pytest

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ports import ApiError
from tessera_local.cluster.api.access import Access, TokenIdentity
from tessera_local.cluster.api.server import ApiServer
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.objects.store import Options
from tessera_local.kubeconfig import write_certificate, write_kubeconfig

POD: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    clock = SystemClock()
    server = ApiServer(SimCluster(clock), clock)
    yield f"http://127.0.0.1:{await server.start()}"
    await server.stop()


@pytest.fixture
async def cluster(url: str) -> AsyncIterator[HttpCluster]:
    cluster = HttpCluster(url)
    yield cluster
    await cluster.close()


async def order(url: str, **fault: Any) -> int:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/admin/faults", json=fault) as response:
        await response.read()
        return response.status


async def test_a_refusal_is_a_status_object_with_retry_after(url: str, cluster: HttpCluster):
    await order(url, fault="answer", verb="create", status=429, retry_after_seconds=3)
    with pytest.raises(ApiError) as caught:
        await cluster.create_pod("default", POD)
    assert (caught.value.status, caught.value.reason) == (429, "TooManyRequests")
    assert caught.value.retry_after_seconds == 3


async def test_a_watch_from_an_expired_version_is_410(url: str, cluster: HttpCluster):
    _items, version = await cluster.list("pods")
    await cluster.create_pod("default", POD)
    await order(url, fault="expire_history")
    with pytest.raises(ApiError) as caught:
        async for _event in cluster.watch("pods", version):
            pass
    assert caught.value.status == 410


async def test_watches_repeat_or_lose_events_as_ordered_and_say_that_some_are_lost(url: str, cluster: HttpCluster):
    _items, version = await cluster.list("pods")
    watch = cluster.watch("pods", version)
    await cluster.create_pod("default", POD)
    assert (await anext(watch)).type == "ADDED"  # it is open, and orders are of open watches
    await order(url, fault="repeat_events", count=1)
    await order(url, fault="drop_events", count=2)
    for number in range(4):
        await cluster.create_pod("default", {**POD, "metadata": {"name": f"more-{number}"}})
    with pytest.raises(ApiError) as caught:
        await anext(watch)
    assert caught.value.status == 410
    fresh = cluster.watch("pods", version)
    await anext(fresh)
    await order(url, fault="repeat_events", count=1)
    await cluster.create_pod("default", {**POD, "metadata": {"name": "twice"}})
    seen: list[str] = []
    while seen.count("twice") < 2:
        seen.append((await anext(fresh)).object["metadata"]["name"])


async def test_a_watch_that_fell_behind_ends_with_410_as_its_last_event():
    clock = SystemClock()
    core = SimCluster(clock, options=Options(history=4))
    server = ApiServer(core, clock)
    cluster = HttpCluster(f"http://127.0.0.1:{await server.start()}")
    version = core.resource_version

    async def read() -> None:
        async for _event in cluster.watch("pods", version):
            for number in range(20):  # at one go: the stream has no chance to keep up
                core.create("pods", "default", {**POD, "metadata": {"name": f"p{number}"}})

    reading = asyncio.create_task(read())
    await cluster.create_pod("default", POD)
    with pytest.raises(ApiError) as caught:
        async with asyncio.timeout(120):
            await reading
    assert caught.value.status == 410
    await cluster.close()
    await server.stop()


async def test_closed_watches_end_without_an_error(url: str, cluster: HttpCluster):
    _items, version = await cluster.list("pods")

    async def read() -> None:
        async for event in cluster.watch("pods", version):
            if event.type == "ADDED":
                await order(url, fault="close_watches")

    reading = asyncio.create_task(read())
    await cluster.create_pod("default", POD)
    async with asyncio.timeout(120):
        await reading


async def test_a_server_that_is_not_there_is_transient():
    cluster = HttpCluster("http://127.0.0.1:9")
    with pytest.raises(Transient):
        await cluster.list("pods")
    with pytest.raises(Transient):
        async for _event in cluster.watch("pods", "1"):
            pass
    await cluster.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/admin/faults", b'{"fault": "no such"}', 400),
        ("POST", "/api/v1/namespaces/default/pods", b"{", 400),
        ("POST", "/api/v1/namespaces/default/pods", b"[]", 400),
        ("POST", "/api/v1/namespaces/default/pods", b'{"metadata": {"name": "UPPER"}}', 422),
        ("POST", "/api/v1/namespaces/default/pods", b'{"metadata": {"name": "x"}}', 422),
        ("PATCH", "/api/v1/namespaces/default/pods/p", b"{}", 415),
        ("GET", "/api/v1/pods?labelSelector=a!", b"", 400),
        ("GET", "/api/v1/pods?fieldSelector=spec.priority%3D1", b"", 400),
        ("GET", "/nowhere", b"", 404),
    ],
)
async def test_a_bad_request_is_refused_as_the_api_would(url: str, method: str, path: str, body: bytes, status: int):
    async with aiohttp.ClientSession() as session, session.request(method, url + path, data=body) as response:
        answer = await response.json()
    assert (response.status, answer["kind"], answer["code"]) == (status, "Status", status)


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "answer", "verb": "bind", "status": 409},
        {"fault": "lose_answers", "verb": "bind", "after_effect": False},
        {"fault": "close_watches"},
        {"fault": "expire_history"},
        {"fault": "drop_events", "count": 2},
        {"fault": "repeat_events", "count": 2},
        {"fault": "node_reachable", "node": "n", "reachable": False},
        {"fault": "node_gpus", "node": "n", "gpus": 1},
        {"fault": "node_cordoned", "node": "n", "cordoned": True},
        {"fault": "node_out_of_service", "node": "n", "out": True},
        {"fault": "node_gone", "node": "n"},
        {"fault": "delete_pod", "namespace": "default", "name": "p"},
        {"fault": "delete_pod", "namespace": "default", "name": "p", "vanish": True},
        {"fault": "clear"},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
async def test_every_fault_can_be_ordered_over_http(url: str, cluster: HttpCluster, fault: dict[str, Any]):
    await cluster.create_pod("default", POD)
    node = {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "1", "nvidia.com/gpu": "2"}}}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/api/v1/nodes", json=node) as response:
        assert response.status == 201
    assert await order(url, **fault) == 201


async def test_it_says_when_it_is_ready_and_stops_cleanly_on_sigterm(tmp_path: Path):
    nodes, port_file = tmp_path / "nodes.yaml", tmp_path / "port"
    nodes.write_text("- {name: n, cpu: 4, memory: 8Gi, gpus: 2, count: 3}\n")
    command = ("-m", "tessera_local.cluster", "--nodes", str(nodes), "--port-file", str(port_file))
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(120):
        line = (await process.stdout.readline()).decode()
        cluster = HttpCluster(f"http://127.0.0.1:{port_file.read_text()}")
        items, _version = await cluster.list("nodes")
        await cluster.close()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert "with 3 nodes" in line
    assert len(items) == 3


async def test_a_missing_nodes_file_is_one_line_and_no_traceback(tmp_path: Path):
    command = ("-m", "tessera_local.cluster", "--nodes", str(tmp_path / "none.csv"))
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
    _out, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().count("\n") == 1
    assert "none.csv" in err.decode()


async def test_the_official_python_client_uses_the_cluster_by_the_kubeconfig_and_patches_statuses(
    tmp_path: Path,
) -> None:
    clock, file = SystemClock(), tmp_path / "kubeconfig"
    core = SimCluster(clock)
    core.create("pods", "lab", POD)
    server = ApiServer(core, clock, Access({"secret": TokenIdentity("operator", frozenset({"*"}))}))
    await server.start()
    trusted = write_certificate(tmp_path / "certificate.pem")
    port = await server.start_tls(tmp_path / "certificate.pem")
    write_kubeconfig(file, port, trusted, "operator", "secret")
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}

    async def answered(token: str) -> int:
        """The status of a request over TLS that names this token, "" none."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        trust = ssl.create_default_context(cadata=trusted.decode())
        url = f"https://127.0.0.1:{port}/api/v1/pods"
        async with aiohttp.ClientSession() as http, http.get(url, headers=headers, ssl=trust) as answer:
            return answer.status

    def use() -> list[str]:
        config = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(str(file), client_configuration=config)
        with kubernetes.client.ApiClient(config) as client:
            api = kubernetes.client.CoreV1Api(client)
            condition = {"type": "Checked", "status": "True"}
            api.patch_namespaced_pod_status("p", "lab", {"status": {"conditions": [condition]}})
            api.patch_namespaced_pod("p", "lab", {"metadata": {"labels": {"a": "b"}}})
            (pod,) = api.list_namespaced_pod("lab").items
            assert pod.metadata.labels == {"a": "b"}
            return [one.type for one in pod.status.conditions]

    try:
        assert "Checked" in await asyncio.to_thread(use)
        assert [await answered(token) for token in ("secret", "wrong", "")] == [200, 401, 401]
    finally:
        await server.stop()


@pytest.mark.skipif(which("kubectl") is None, reason="no kubectl on this machine, so the kubeconfig cannot be tried")
async def test_kubectl_uses_the_cluster_by_the_kubeconfig_and_nobody_else_is_let_in(tmp_path: Path) -> None:
    clock, file = SystemClock(), tmp_path / "kubeconfig"
    core = SimCluster(clock)
    core.create("pods", "lab", POD)
    server = ApiServer(core, clock, Access({"secret": TokenIdentity("operator", frozenset({"*"}))}))
    await server.start()
    trusted = write_certificate(tmp_path / "certificate.pem")
    port = await server.start_tls(tmp_path / "certificate.pem")

    async def kubectl(*words: str) -> tuple[int | None, str]:
        environment = {**os.environ, "KUBECONFIG": str(file), "HOME": str(tmp_path)}
        process = await asyncio.create_subprocess_exec(
            "kubectl", *words, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await process.communicate()
        return process.returncode, out.decode()

    try:
        write_kubeconfig(file, port, trusted, "operator", "secret")
        assert file.stat().st_mode & 0o777 == 0o600
        code, out = await kubectl("get", "po", "-A")
        assert (code, out.split()[3:5]) == (0, ["lab", "p"])
        assert "Status:       Pending" in (await kubectl("describe", "pod", "-n", "lab", "p"))[1]
        assert (await kubectl("wait", "--for=jsonpath={.status.phase}=Pending", "-n", "lab", "pod/p"))[0] == 0
        for form in ("merge", "strategic", "json"):
            patch: Any = {"status": {"conditions": [{"type": "Checked", "status": "True", "reason": form}]}}
            if form == "json":
                patch = [{"op": "add", "path": "/status/message", "value": "hello"}]
            words = (
                "patch",
                "pod",
                "p",
                "-n",
                "lab",
                "--subresource=status",
                f"--type={form}",
                "-p",
                json.dumps(patch),
            )
            assert await kubectl(*words) == (0, "pod/p patched\n")
        status = core.get("pods", "lab", "p").object["status"]
        assert (status["message"], status["conditions"][0]["reason"]) == ("hello", "strategic")
        assert await kubectl("patch", "pod", "p", "-n", "lab", "-p", '{"metadata":{"labels":{"a":"b"}}}') == (
            0,
            "pod/p patched\n",
        )
        assert "directive" in (await kubectl("patch", "pod", "p", "-n", "lab", "-p", '{"spec":{"$patch":"delete"}}'))[1]
        assert (await kubectl("delete", "pod", "-n", "lab", "p"))[0] == 0
        job = str(Path(__file__).parents[2] / "docs" / "examples" / "kubernetes-job.yaml")
        assert await kubectl("create", "-n", "lab", "-f", job) == (0, "job.batch/hello created\n")
        write_kubeconfig(file, port, trusted, "operator", "wrong")
        assert (await kubectl("get", "nodes"))[0] != 0
    finally:
        await server.stop()
