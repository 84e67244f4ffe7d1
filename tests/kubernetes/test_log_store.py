"""Stored logs in a real object store that speaks S3 and checks signatures."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tessera.gateway.stored_logs.stores import LogStore, ObjectLogStore, open_store
from tessera.kernel.errors import StartupError, Transient
from tessera_local.free_port import free_port
from tests.kubernetes.binaries import Unavailable, find

ACCESS, SECRET, BUCKET = "tests", "only-in-this-test", "logs"
SECONDS = 120


def options(port: int) -> dict[str, str]:
    return {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}


@pytest.fixture
async def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """A server with one bucket, and credentials for it in the environment."""
    try:
        program = find("versitygw")
    except Unavailable as reason:
        pytest.skip(str(reason))
    pytest.importorskip("obstore", reason="the extra `logs` is not installed")
    (tmp_path / BUCKET).mkdir()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    chosen = free_port()
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}
    command = [str(program), "--port", f"127.0.0.1:{chosen}", "--quiet", "posix", str(tmp_path)]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(SECONDS), aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(f"http://127.0.0.1:{chosen}/"):
                        break
                except aiohttp.ClientError:
                    assert server.poll() is None
                    await asyncio.sleep(0.05)
        yield chosen
    finally:
        server.kill()
        server.wait()


async def keys(store: LogStore, folder: str) -> dict[str, int]:
    return {each.key: each.bytes async for batch in store.batches(folder) for each in batch}


async def test_a_bucket_keeps_logs_under_its_prefix_and_gives_them_back(port: int, tmp_path: Path) -> None:
    store = open_store(f"s3://{BUCKET}/shard-logs", options(port))
    assert isinstance(store, ObjectLogStore)
    first, second, other = "main/lab/j1/1/0.log", "main/lab/j1/1/1.log", "main/lab/j11/1/0.log"
    for key, text in ((first, b"one\n"), (second, b""), (other, b"x" * 8_000_000)):
        await store.put(key, text)
    assert await store.get(first) == b"one\n"
    assert await store.get(second) == b""
    assert await store.get("main/lab/j1/2/0.log") is None
    assert await keys(store, "main/lab/j1") == {first: 4, second: 0}
    assert await keys(store, "main") == {first: 4, second: 0, other: 8_000_000}
    assert (tmp_path / BUCKET / "shard-logs" / first).read_bytes() == b"one\n"
    await store.remove([first, "main/lab/not-there/1/0.log"])
    await store.remove([])
    assert set(await keys(store, "main")) == {second, other}


async def test_a_store_that_refuses_or_is_away_is_transient(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    for at in (port, free_port()):
        store = open_store(f"s3://{BUCKET}", options(at))
        assert store is not None
        with pytest.raises(Transient, match="log store"):
            await store.put("main/lab/j1/1/0.log", b"one")
        with pytest.raises(Transient, match="log store"):
            await store.get("main/lab/j1/1/0.log")
        with pytest.raises(Transient, match="log store"):
            await keys(store, "main")


def test_an_option_that_no_store_has_is_refused_at_the_start() -> None:
    pytest.importorskip("obstore", reason="the extra `logs` is not installed")
    for wrong in ("no_such_option", "allow_http"):
        with pytest.raises(StartupError, match="logs_store"):
            open_store(f"s3://{BUCKET}", {wrong: "true"})
