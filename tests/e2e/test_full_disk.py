"""NATS on a disk without room: it stays connected and answers, and every service says that it is not ready."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera_local.platform import NATS, Platform
from tessera_schemas.shard.services import SERVICES
from tests.e2e.live import eventually
from tests.full_disk import fill

WITHOUT_A_CLUSTER = [service for service in SERVICES if service not in ("binder", "reclamation")]
DISK_BYTES = 64 * 2**20  # what NATS reserves, with room for logs once the ballast is gone


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB; making one needs the right to mount."""
    folder = tmp_path / "up"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("no right to mount a file system here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_no_service_is_ready_while_nats_cannot_store_and_each_is_after_its_restart(small_disk: Path) -> None:
    async with Platform(small_disk, WITHOUT_A_CLUSTER, cluster=False) as platform:

        async def says(text: str) -> bool:
            told = [(await platform.ready(service)).get("store", "") for service in WITHOUT_A_CLUSTER]
            return all(text in one for one in told)

        await eventually(lambda: says("ok"), "all are ready")
        ballast = small_disk / "ballast"
        await asyncio.to_thread(fill, ballast)
        await eventually(lambda: says("NATS does not store"), "each says that nothing is stored")
        ballast.unlink()
        await platform.restart(NATS)
        await eventually(lambda: says("ok"), "all are ready again")
