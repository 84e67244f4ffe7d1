"""Attacks on the store of logs: a tenant that prints without end, beside tenants that print a little."""

import asyncio
import os
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import pytest

from tessera.gateway.stored_logs import stores
from tessera.gateway.stored_logs.bounds import FILE_BYTES, BoundedStore, read_used
from tessera.gateway.stored_logs.stores import DirectoryLogStore, LogName, log_key
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Full, Transient
from tessera_schemas.base import job_id
from tessera_schemas.facts import RunAbsent, RunEnded
from tests.builders import SHARD, admitted
from tests.unit.gateway.gateway_world import SECONDS, Kubelet, World

TEXT = 20_000
SIZE = TEXT + FILE_BYTES
Disk = namedtuple("Disk", "total used free")


def bounded(kept: Path, bytes_max: int, tenants: Sequence[str] = ("hostile", "modest")) -> BoundedStore:
    return BoundedStore(DirectoryLogStore(kept), SHARD, lambda: tenants, bytes_max, SystemClock(), Mock())


def name(tenant: str, number: int) -> LogName:
    return LogName(tenant, f"job{number:04}", 1, 0)


def on_disk(kept: Path, tenant: str) -> list[str]:
    return sorted(path.stem.removesuffix("-1-0") for path in (kept / SHARD / tenant).rglob("*.log"))


async def test_a_share_may_be_filled_to_the_byte_and_one_byte_more_costs_the_oldest_log_alone(tmp_path: Path) -> None:
    store = bounded(tmp_path, 2 * 3 * SIZE)
    for number in range(3):
        await store.put(name("hostile", number), b"x" * TEXT)
    assert on_disk(tmp_path, "hostile") == ["job0000", "job0001", "job0002"]
    await store.put(name("hostile", 2), b"x" * (TEXT + 1))
    assert on_disk(tmp_path, "hostile") == ["job0001", "job0002"]


async def test_a_tenant_that_prints_without_end_costs_another_no_byte(tmp_path: Path) -> None:
    store = bounded(tmp_path, 10 * SIZE)
    await store.put(name("modest", 0), b"mine\n")
    await asyncio.gather(*(store.put(name("hostile", number), b"x" * TEXT) for number in range(100)))
    await store.put(name("modest", 1), b"mine, too\n")
    assert on_disk(tmp_path, "modest") == ["job0000", "job0001"]
    assert on_disk(tmp_path, "hostile") == [f"job{number:04}" for number in range(95, 100)]


async def test_empty_logs_count_what_their_files_take(tmp_path: Path) -> None:
    store = bounded(tmp_path, 2 * 5 * FILE_BYTES)
    for number in range(50):
        await store.put(name("hostile", number), b"")
    assert len(on_disk(tmp_path, "hostile")) == 5


async def test_a_log_as_large_as_a_share_is_kept_and_a_larger_one_is_not(tmp_path: Path) -> None:
    store = bounded(tmp_path, 2 * SIZE)
    await store.put(name("hostile", 0), b"x" * TEXT)
    with pytest.raises(Full, match="share"):
        await store.put(name("hostile", 1), b"x" * (TEXT + 1))
    assert on_disk(tmp_path, "hostile") == ["job0000"]


async def test_all_together_stay_within_the_bound_when_tenants_come_and_shares_become_smaller(tmp_path: Path) -> None:
    tenants = ["hostile"]
    store = bounded(tmp_path, 8 * SIZE, tenants)
    for number in range(8):
        await store.put(name("hostile", number), b"x" * TEXT)
    assert len(on_disk(tmp_path, "hostile")) == 8  # nobody else needs the room
    tenants += ["modest", "third", "fourth"]
    await asyncio.gather(*(store.put(name("modest", number), b"x" * TEXT) for number in range(2)))
    assert on_disk(tmp_path, "modest") == ["job0000", "job0001"]
    assert on_disk(tmp_path, "hostile") == ["job0006", "job0007"]


async def test_whoever_collects_next_counts_what_there_is_oldest_first(tmp_path: Path) -> None:
    first = bounded(tmp_path, 2 * 3 * SIZE)
    for number in (2, 0, 1):
        await first.put(name("hostile", number), b"x" * TEXT)
        os.utime(tmp_path / log_key(SHARD, name("hostile", number)), (1000 + number, 1000 + number))
    next_one = bounded(tmp_path, 2 * 3 * SIZE)
    await next_one.put(name("hostile", 3), b"x" * TEXT)
    assert on_disk(tmp_path, "hostile") == ["job0001", "job0002", "job0003"]
    await next_one.write_used()
    assert (await read_used(DirectoryLogStore(tmp_path), SHARD))["hostile"].gone_ms == 1_000_000


async def test_what_could_not_be_written_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bounded(tmp_path, 2 * 3 * SIZE)
    monkeypatch.setattr(stores.os, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    for number in range(9):
        with pytest.raises(Transient):
            await store.put(name("hostile", number), b"x" * TEXT)
    monkeypatch.undo()
    for number in range(3):
        await store.put(name("hostile", number), b"x" * TEXT)
    assert on_disk(tmp_path, "hostile") == ["job0000", "job0001", "job0002"]


async def test_a_directory_leaves_the_ledger_its_part_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, free = DirectoryLogStore(tmp_path), stores.DISK_FREE_BYTES_MIN + 4
    monkeypatch.setattr(stores.shutil, "disk_usage", lambda _: Disk(0, 0, free))
    await store.put("a", b"four")
    with pytest.raises(Full, match="MiB left"):
        await store.put("b", b"fives")


async def test_a_log_that_made_room_says_so_and_a_modest_tenant_reads_its_own(world: World, tmp_path: Path) -> None:
    kubelet, kept = Kubelet(), tmp_path / "kept"
    world.cluster = kubelet
    tokens = {tenant: world.token(tenant) for tenant in ("lab", "other")}
    modest, *hostile = [("other", "modest"), *(("lab", f"h{n}") for n in range(8))]
    operator = world.token(None)
    bound = {"logs_store": str(kept), "logs_bytes_max": 1_160_000, "logs_job_bytes_max": 1 << 18}  # 4 logs of each
    async with world.gateway(**bound) as gateway:
        for tenant, job_key in (modest, *hostile):
            job = job_id(SHARD, tenant, job_key)
            await world.commit(admitted(job_key).model_copy(update={"tenant": tenant, "job_id": job}))
            run = world.committed.start(job, job_key)
            kubelet.texts[f"{run}-0"] = b"mine\n" if tenant == "other" else b"spam\n" * 100_000
            await world.commit(RunEnded(kind="run_ended", run_id=run))
            async with asyncio.timeout(SECONDS):
                while not (kept / log_key(SHARD, LogName(tenant, job, 1, 0))).exists():
                    await asyncio.sleep(0.01)
            kubelet.texts.clear()
            await world.commit(RunAbsent(kind="run_absent", run_id=run))
        assert sum(path.stat().st_size for path in kept.rglob("*.log")) < 1_160_000
        assert gateway.measured("tessera_gateway_stored_log_tenants_full") == 1
        assert 0 < gateway.measured("tessera_gateway_stored_log_bytes") <= 1_160_000
        assert gateway.measured("tessera_gateway_stored_logs_gone_total") > 0

    async with world.gateway(**bound):
        first = await world.ask("GET", f"/v1/jobs/{job_id(SHARD, *hostile[0])}/logs", tokens["lab"])
        assert (first.status, first.code) == (409, "NoLogs")
        assert "gone: bound of stored logs of tenant lab" in first.body["sentence"]
        notes = (await world.ask("GET", "/v1/status", operator)).body["notes"]
        assert ["tenant lab" in note for note in notes] == [True]
        assert not (await world.ask("GET", "/v1/status", tokens["other"])).body.get("notes")
        url = f"{world.url}/v1/jobs/{job_id(SHARD, *modest)}/logs"
        async with aiohttp.ClientSession() as http:
            answer = await http.get(url, headers={"Authorization": f"Bearer {tokens['other']}"})
            assert await answer.text() == "mine\nlast words\n"
