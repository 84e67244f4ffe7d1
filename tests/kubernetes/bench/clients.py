"""
`python -m tests.kubernetes.bench.clients`: CPU per call of our adapter, of aiohttp alone and of the asynchronous
client that the `kubernetes` package carries, against the simulated cluster in a process of its own, which answers all
alike.

All are asked for the same on one connection: make a pod, bind it, list a thousand pods. The floor is a socket that
sends the same requests and counts the bytes of the answers; aiohttp reads them undecoded. What importing costs is told,
too.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import orjson
import uvloop
from kubernetes.aio import client as official

from tessera.kernel.kubernetes.cluster import HttpCluster

PODS, LISTS = 500, 10
IMPORTS = {"ours": "tessera.kernel.kubernetes.cluster", "kubernetes.aio": "kubernetes.aio.client"}
Rows = dict[str, float]


def pod(name: str) -> dict[str, Any]:
    """A pod as the binder makes it, with a few of its annotations."""
    notes = {f"tessera.io/note-{number}": "x" * 40 for number in range(6)}
    requests = {"cpu": "1", "memory": "1Gi"}
    container = {"name": "main", "image": "train:1", "resources": {"requests": requests, "limits": requests}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": notes, "labels": {"tessera.io/run": name}},
        "spec": {"schedulerName": "tessera", "containers": [container]},
    }


@asynccontextmanager
async def cluster_process() -> AsyncIterator[str]:
    """Address of a simulated cluster that starts nothing, so that its pods stay as they are."""
    with TemporaryDirectory() as folder:
        nodes, port = Path(folder) / "nodes.yaml", Path(folder) / "port"
        nodes.write_text("- {name: n, count: 1, cpu: '9000', memory: 9000Gi}\n")
        command = [sys.executable, "-m", "tessera_local.cluster", "--nodes", str(nodes), "--port-file", str(port)]
        process = subprocess.Popen([*command, "--start-ms", "600000"], stdout=subprocess.DEVNULL)
        try:
            while not port.exists():
                await asyncio.sleep(0.05)
            yield f"http://127.0.0.1:{port.read_text()}"
        finally:
            process.terminate()
            process.wait()


async def timed(work: Callable[[int], Awaitable[object]], count: int) -> float:
    """Microseconds of this process's CPU per call, one call after another."""
    began = time.process_time()
    for number in range(count):
        await work(number)
    return (time.process_time() - began) / count * 1e6


async def ours(url: str, prefix: str) -> Rows:
    """Our adapter of the Cluster port."""
    cluster = HttpCluster(url)
    try:
        made = await timed(lambda n: cluster.create_pod("default", pod(f"{prefix}-{n}")), PODS)
        uids = [(await cluster.get_pod("default", f"{prefix}-{n}"))["metadata"]["uid"] for n in range(PODS)]
        notes = {"tessera.io/permit": "1"}
        bound = await timed(lambda n: cluster.bind_pod("default", f"{prefix}-{n}", uids[n], "n-0", notes), PODS)
        return {"create": made, "bind": bound, "list of 1000": await timed(lambda _: cluster.list("pods"), LISTS)}
    finally:
        await cluster.close()


async def of_package(url: str, prefix: str) -> Rows:
    """The package's client, which makes an object of every answer."""
    configuration = official.Configuration()
    configuration.host = url
    async with official.ApiClient(configuration) as api:
        core = official.CoreV1Api(api)
        made = await timed(lambda n: core.create_namespaced_pod("default", pod(f"{prefix}-{n}")), PODS)
        uids = [(await core.read_namespaced_pod(f"{prefix}-{n}", "default")).metadata.uid for n in range(PODS)]

        def bind(n: int) -> Awaitable[object]:
            name = f"{prefix}-{n}"
            meta = {"name": name, "uid": uids[n], "annotations": {"tessera.io/permit": "1"}}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": "n-0"}}
            return core.create_namespaced_pod_binding_without_preload_content(name, "default", body)

        bound = await timed(bind, PODS)
        listed = await timed(lambda _: core.list_pod_for_all_namespaces(), LISTS)
        return {"create": made, "bind": bound, "list of 1000": listed}


class Counting(asyncio.Protocol):
    """Counts the bytes of an answer, whose head is taken to come in one piece."""

    transport: asyncio.Transport
    done: asyncio.Future[None]
    left = 0

    def connection_made(self, transport: Any) -> None:
        """Keep what is written to."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Find the length, if this is the beginning."""
        if not self.left:
            head = data.index(b"\r\n\r\n") + 4
            begins = data.index(b"Content-Length: ") + 16
            self.left = head + int(data[begins : data.index(b"\r", begins)])
        self.left -= len(data)
        if not self.left:
            self.done.set_result(None)


async def bare(url: str, prefix: str) -> Rows:
    """A socket, and as little as can be said around it."""
    loop, host = asyncio.get_running_loop(), url.removeprefix("http://")
    name, _, port = host.partition(":")
    _, wire = await loop.create_connection(Counting, name, int(port))

    async def ask(method: str, path: str, body: Any = None) -> None:
        sent = b"" if body is None else orjson.dumps(body)
        kind = f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n"
        wire.done = loop.create_future()
        wire.transport.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{kind}\r\n".encode() + sent)
        await wire.done

    try:
        return await same_calls(ask, prefix)
    finally:
        wire.transport.close()


async def of_aiohttp(url: str, prefix: str) -> Rows:
    """The library that our adapter stood on before."""
    async with aiohttp.ClientSession() as session:

        async def ask(method: str, path: str, body: Any = None) -> bytes:
            data = None if body is None else orjson.dumps(body)
            headers = {"Content-Type": "application/json"}
            async with session.request(method, url + path, data=data, headers=headers) as answer:
                return await answer.read()

        return await same_calls(ask, prefix)


async def same_calls(ask: Callable[..., Awaitable[object]], prefix: str) -> Rows:
    """Requests of our adapter, with answers undecoded."""
    pods = "/api/v1/namespaces/default/pods"
    made = await timed(lambda n: ask("POST", pods, pod(f"{prefix}-{n}")), PODS)
    target = {"target": {"kind": "Node", "name": "n-0"}, "metadata": {"annotations": {"tessera.io/permit": "1"}}}
    bound = await timed(lambda n: ask("POST", f"{pods}/{prefix}-{n}/binding", target), PODS)
    return {"create": made, "bind": bound, "list of 1000": await timed(lambda _: ask("GET", "/api/v1/pods"), LISTS)}


def importing(module: str) -> float:
    """Milliseconds of CPU of an interpreter that imports this."""
    code = f"import time, {module}; print(time.process_time() * 1000)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


async def main(rounds: int) -> None:
    clients = {"floor": bare, "ours": ours, "aiohttp": of_aiohttp, "kubernetes.aio": of_package}
    found: dict[str, list[Rows]] = {name: [] for name in clients}
    for number in range(rounds):
        for name, work in clients.items():
            async with cluster_process() as url:
                async with aiohttp.ClientSession() as session:  # the other half of the list
                    for n in range(PODS):
                        await (await session.post(f"{url}/api/v1/namespaces/default/pods", json=pod(f"o-{n}"))).read()
                found[name].append(await work(url, f"r{number}"))
    for what in found["floor"][0]:
        cells = {name: median(row[what] for row in rows) for name, rows in found.items()}
        told = ", ".join(f"{name} {value:,.0f} ({value / cells['floor']:.2f})" for name, value in cells.items())
        print(f"{what}: microseconds of CPU per call (by the floor): {told}")
    imports = {name: median(importing(module) for _ in range(rounds)) for name, module in IMPORTS.items()}
    print("import: " + ", ".join(f"{name} {value:,.0f} ms of CPU" for name, value in imports.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    uvloop.run(main(parser.parse_args().rounds))
