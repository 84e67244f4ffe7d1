"""The local platform: real servers, a simulated cluster and supervised services in one directory."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from nats.js.api import StoreCompression, StreamConfig

from tessera.client.connect.locating import find
from tessera.client.outcomes import Failure
from tessera.kernel.errors import StartupError
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.kubernetes.kubeconfig import find_access
from tessera.kernel.nats.once import connect_once
from tessera_local.free_port import PORTS
from tessera_local.platform import Platform
from tessera_local.up import timing_lines
from tessera_schemas.subjects import ADMINISTRATOR, OPERATOR

# A service that does nothing but start the way a real one does: settings, preflight, health.
STAND_IN = """
import asyncio, signal
from tessera.kernel.clock import SystemClock
from tessera.kernel.service.health import Health
from tessera.kernel.process.preflight import open_bus
from tessera.kernel.process.settings import ServiceSettings, load_settings
from tessera.kernel.service.metrics import Metrics

async def main():
    settings = load_settings(ServiceSettings)
    bus = await open_bus(settings, ["LEDGER"])
    health = Health(SystemClock(), Metrics("binder"))
    await health.serve(settings.http_host, settings.http_port, settings.port_file)
    health.started()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await health.close()
    await bus.close()

asyncio.run(main())
"""
SECONDS = 120.0
SAME_PATH = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def stand_in(_services: Sequence[str], _shard: str) -> Sequence[str]:
    return [sys.executable, "-c", STAND_IN]


def platform(directory: Path, said: list[str] | None = None, cluster: bool = False) -> Platform:
    say = said.append if said is not None else print
    return Platform(directory, services=["binder"], cluster=cluster, command=stand_in, notify=say)


def told(running: Platform) -> dict[str, dict[str, Any]]:
    """What `platform.json` says now."""
    state: dict[str, dict[str, Any]] = json.loads((running.directory / "platform.json").read_text())
    return state


async def until_ready(running: Platform, old_pid: int | None) -> None:
    async with asyncio.timeout(SECONDS):
        while running.pid("binder") in (old_pid, None) or (await running.ready("binder")).get("startup") != "ok":
            await asyncio.sleep(0.05)


async def test_when_it_is_ready_every_part_is_and_the_file_says_where(tmp_path: Path) -> None:
    async with platform(tmp_path / "up", cluster=True) as running:
        state = json.loads((running.directory / "platform.json").read_text())
        token = running.credentials.read("binder").cluster_token
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
            async with http.get(f"{state['cluster_url']}/api/v1/nodes") as answer:
                assert len((await answer.json())["items"]) == 4
            async with http.get(f"{state['http']['binder']}/readyz") as answer:
                assert answer.status == 200
    assert not (running.directory / "platform.json").exists()


async def test_readyz_answers_beside_more_half_open_connections_than_there_are_descriptors(tmp_path: Path) -> None:
    async with platform(tmp_path / "up") as running:
        pid = running.pid("binder")
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (256, 256))
        port, held = urlsplit(told(running)["http"]["binder"]).port, []
        for _ in range(400):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=SECONDS))
            held[-1].send(b"GET /readyz HTTP/1.1")
        async with asyncio.timeout(SECONDS):
            assert set((await running.ready("binder")).values()) == {"ok"}
        for connection in held:
            connection.close()


async def test_a_killed_service_is_started_again_and_one_line_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    async with platform(tmp_path / "up", said) as running:
        pid = running.pid("binder")
        running.kill("binder")
        await until_ready(running, pid)
        port = (running.directory / "run" / "binder.port").read_text().strip()
        async with asyncio.timeout(SECONDS):
            while told(running)["http"].get("binder") != f"http://127.0.0.1:{port}":
                assert ":0" not in told(running)["http"].get("binder", "")
                await asyncio.sleep(0.05)
        assert told(running)["pids"]["binder"] == running.pid("binder")
    assert [line for line in said if "binder ended with code -9; starting it again in 0.2 s" in line]


async def test_a_stopped_service_stays_down_until_it_is_started(tmp_path: Path) -> None:
    said: list[str] = []
    async with platform(tmp_path / "up", said) as running:
        await running.stop("binder")
        assert running.pid("binder") is None
        await running.start("binder")
        assert (await running.ready("binder"))["startup"] == "ok"
    assert said == []


async def test_servers_come_back_on_their_ports_with_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with platform(tmp_path / "up", cluster=True) as running:
        before = running.nats.url, running.nats.monitor_url, running.redis.url, running.cluster_url
        # While one is down, a connection that goes out anywhere on the machine must not be given its port.
        assert all(urlsplit(url).port in PORTS for url in before)
        await running.restart_nats()
        await running.restart_redis()
        async with operator(running) as cluster:
            pod = await cluster.create_pod(
                "lab", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
            )
        await running.restart("cluster")
        async with operator(running) as cluster:
            assert (await cluster.get_pod("lab", "p"))["metadata"]["uid"] == pod["metadata"]["uid"]
        for module in ("kubernetes.config", "kubernetes.config.kube_config"):  # read when it is first imported
            monkeypatch.setattr(f"{module}.KUBE_CONFIG_DEFAULT_LOCATION", str(running.kubeconfig))
        by_file = find_access().cluster()
        assert (await by_file.get_pod("lab", "p"))["metadata"]["uid"] == pod["metadata"]["uid"]
        await by_file.close()
        assert (running.nats.url, running.nats.monitor_url, running.redis.url, running.cluster_url) == before
        await running.restart("binder")  # its preflight finds the streams


@asynccontextmanager
async def operator(running: Platform) -> AsyncIterator[HttpCluster]:
    cluster = HttpCluster(running.cluster_url, running.credentials.read(OPERATOR).cluster_token)
    yield cluster
    await cluster.close()


async def test_a_directory_of_an_older_version_is_used_on(tmp_path: Path) -> None:
    """Its streams get the present bounds: nobody but `up` would set them there."""
    async with platform(tmp_path) as first:
        older = await changed_as_administrator(first, "EVENTS_main", max_bytes=-1, compression=StoreCompression.S2)
    async with platform(tmp_path) as again:
        newer = await changed_as_administrator(again, "EVENTS_main")
    assert older.max_bytes == -1
    assert newer.max_bytes is not None
    assert newer.max_bytes > 0
    assert newer.compression == StoreCompression.NONE


async def changed_as_administrator(running: Platform, stream: str, **fields: Any) -> StreamConfig:
    """The stream's configuration as the server has it, with these fields."""
    login = running.credentials.read(ADMINISTRATOR).nats
    admin = await connect_once(running.nats.url, login.user, login.password, seconds=60)
    try:
        found = (await admin.jsm().stream_info(stream)).config
        return (await admin.jsm().update_stream(replace(found, **fields))).config
    finally:
        await admin.close()


async def test_a_second_platform_does_not_share_the_directory(tmp_path: Path) -> None:
    async with platform(tmp_path / "up"):
        with pytest.raises(StartupError, match=f"process {os.getpid()}") as caught:
            await platform(tmp_path / "up").__aenter__()
        assert "\n" not in str(caught.value)
    async with platform(tmp_path / "up"):  # and afterwards it is free again, with all it held
        pass


async def test_a_service_that_ends_at_once_is_named_and_everything_is_stopped(tmp_path: Path) -> None:
    def broken(_services: Sequence[str], _shard: str) -> Sequence[str]:
        return [sys.executable, "-c", "raise SystemExit('setting shard: wrong')"]

    faulty = Platform(tmp_path / "up", services=["binder"], cluster=False, command=broken)
    with pytest.raises(StartupError, match=r"binder: ended at once \(setting shard: wrong\)"):
        await faulty.__aenter__()
    assert faulty.pid("nats") is None
    assert faulty.pid("redis") is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
async def test_a_platform_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib\nfrom tessera_local.up import up\n"
        f"asyncio.run(up(pathlib.Path({str(tmp_path / 'up')!r}), services=[]))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=SAME_PATH)
    state = tmp_path / "up" / "platform.json"
    async with asyncio.timeout(SECONDS):
        while not state.exists():
            await asyncio.sleep(0.05)
        pids = json.loads(state.read_text())["pids"].values()
        process.kill()
        await process.wait()
        while any(Path(f"/proc/{pid}/cmdline").read_bytes() if Path(f"/proc/{pid}").exists() else b"" for pid in pids):
            await asyncio.sleep(0.05)
    with pytest.raises(Failure, match="was killed"):
        find(tmp_path / "up")
    async with Platform(tmp_path / "up", services=[], cluster=False):
        assert json.loads(state.read_text())["platform_pid"] == os.getpid()
        find(tmp_path / "up")


async def test_up_stops_in_order_when_told_to(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib\nfrom tessera_local.up import up\n"
        f"asyncio.run(up(pathlib.Path({str(tmp_path / 'up')!r}), services=[], time=True))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env=SAME_PATH, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert b"starting in" in await asyncio.wait_for(process.stdout.readline(), SECONDS)
    assert b"ready in" in await asyncio.wait_for(process.stdout.readline(), SECONDS)
    process.send_signal(signal.SIGINT)
    output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == 0
    assert output.decode().splitlines()[-1] == "stopping"


def test_the_time_to_ready_is_set_against_bare_imports() -> None:
    lines = timing_lines({"nats": 0.1, "ready": 3.0}, {"binder": 1.0, "scheduler": 0.5})
    assert lines[-1] == "ready / sum of bare imports = 2.00"
    assert timing_lines({"ready": 3.0}, {}) == ["ready          3.000 s"]
