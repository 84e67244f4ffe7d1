"""A ledger is copied while the shard works, lost with all its servers, and goes on in new ones."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tessera.local.platform import Platform
from tests.e2e.live import TENANTS, Live, configuration, job, tessera

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


class Restored(Platform):
    """Empty servers that get a ledger from a backup where others run `init`; the first try is killed half-way."""

    def __init__(self, directory: Path, backup: Path, **more: Any) -> None:
        super().__init__(directory, tenants=TENANTS, **more)
        self._backup, self.said = backup, ""

    async def _init(self) -> None:
        words = [
            "ledger",
            "restore",
            str(self._backup),
            "--credentials",
            str(self.credentials.root),
            "--ledger-gib",
            "1",
        ]
        environment = self.environment("operator")
        first = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tessera", *words, env={**os.environ, **environment},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await asyncio.sleep(1.0)
        if first.returncode is None:
            first.send_signal(signal.SIGKILL)
        await first.wait()
        said = await tessera(*words, environment=environment)
        assert said.code == 0, said.err
        self.said = said.out


async def test_a_ledger_goes_on_in_new_servers_from_a_backup_that_was_made_at_work(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async with Live.at(tmp_path / "up", configuration()) as live:
        ended = await live.submit(job("ended"), key="first")
        await live.until_ended(ended.job_id)
        assert (await live.command("ledger", "backup", str(backup))).code == 0
        runs = await live.submit(job("runs", gpus=8, seconds=12), key="second")
        await live.until_phase(runs.job_id, "running")
        waits = await live.submit(job("waits", gpus=8, replicas=4, seconds=1), key="third")
        await live.until_phase(waits.job_id, "queued")
        said = await live.command("ledger", "backup", str(backup))
        assert "segments 2" in said.out, said.err
        # What comes after the copy is lost with the servers.
        lost = await live.submit(job("lost"), key="fourth")
        await live.until_ended(lost.job_id)

    proved = await tessera("replay", "--verify", "--from-file", str(backup), environment={})
    assert proved.code == 0, proved.out + proved.err
    async with Restored(tmp_path / "new", backup) as platform, Live.on(platform) as live:
        assert "restored shard main up to" in platform.said
        assert live.phase(ended.job_id) == "succeeded"
        await live.until_ended(runs.job_id)  # its pod is gone with the cluster: it runs again
        await live.until_ended(waits.job_id)
        assert {live.phase(one.job_id) for one in (runs, waits)} == {"succeeded"}
        again = await live.submit(job("ended"), key="first")
        assert again.job_id == ended.job_id
        fresh = await live.submit(job("fresh"), key="fifth")
        await live.until_ended(fresh.job_id)
        said = await live.command("replay", "--verify")
        assert said.code == 0, said.out + said.err


async def test_a_backup_is_not_restored_over_another_ledger_nor_beside_streams_of_init(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async with Live.at(tmp_path / "up", configuration()) as live:
        done = await live.submit(job("done"))
        await live.until_ended(done.job_id)
        assert (await live.command("ledger", "backup", str(backup))).code == 0
    words = ("ledger", "restore", str(backup), "--ledger-gib", "2")
    async with Live.at(tmp_path / "other", configuration()) as other:
        environment = other.platform.environment("operator")
        before = await other.ledger_end()
        said = await tessera(*words, "--credentials", str(other.platform.credentials.root), environment=environment)
        assert said.code == 4
        assert "restore into servers on which `tessera init` was not run" in said.err
        assert await other.ledger_end() >= before
        assert (await other.command("replay", "--verify")).code == 0
