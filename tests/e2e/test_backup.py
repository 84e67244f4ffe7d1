"""A ledger is rolled over and copied while the shard works, lost with all its servers, and goes on in new ones."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tessera.client.ledger.backup import Backup
from tessera.kernel.ledger.stream import StreamLedger
from tessera_local import up
from tessera_local.platform import Platform
from tests.e2e.live import SMALL, TENANTS, Live, configuration, eventually, job, tessera

pytestmark = pytest.mark.asyncio(loop_scope="module")


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


async def roll_over(live: Live, backup: Path) -> None:
    """A roll-over that is killed again and again before it is let finish."""
    words = ("ledger", "roll", str(backup), "--keep", "0")
    await live.kill("scheduler")  # the next epoch begins with a checkpoint, and so comes a snapshot to roll over by
    for seconds in (0.4, 0.6, 0.8, 1.0, 1.2):
        trial = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tessera", *words, env={**os.environ, "TESSERA_HOME": str(live.home)},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await asyncio.sleep(seconds)
        if trial.returncode is None:
            trial.send_signal(signal.SIGKILL)
        await trial.wait()

    async def rolled() -> bool:
        return (await live.command(*words)).code == 0

    await eventually(rolled, "a snapshot is there to roll over by")
    assert await StreamLedger(live.bus, live.shard_name).first() > 1


async def test_a_ledger_is_rolled_over_at_work_copied_and_goes_on_in_new_servers(tmp_path: Path) -> None:
    backup, late = tmp_path / "backup", tmp_path / "late"
    async with Live.at(tmp_path / "up", configuration(), layout=SMALL) as live:
        ended = await live.submit(job("ended"), key="first")
        await live.until_ended(ended.job_id)
        assert (await live.command("ledger", "backup", str(backup))).code == 0
        runs = await live.submit(job("runs", gpus=8, seconds=12), key="second")
        await live.until_phase(runs.job_id, "running")
        waits = await live.submit(job("waits", gpus=8, replicas=4, seconds=1), key="third")
        await live.until_phase(waits.job_id, "queued")
        before = len(live.stored)
        await roll_over(live, backup)
        await live.kill("binder")  # what it remembers of templates: their messages are in the ledger no more
        await live.until_ended(runs.job_id, waits.job_id)
        assert {live.phase(one.job_id) for one in (runs, waits)} == {"succeeded"}
        said = await live.command("replay", "--verify")
        assert said.code == 0, said.out + said.err
        assert "begins with the generation" in said.out
        code, told = await up.roll_over(live.platform, live.shard_name)
        assert (code, "nothing to roll over yet" in told) == (0, True), told
        code, told = await up.roll_over(live.platform, live.shard_name, larger_gib=0)
        assert (code, "a generation opens after" in told) == (0, True), told
        assert len(live.stored) > before  # who followed all the while has seen every message
        assert (await live.command("ledger", "backup", str(backup))).code == 0
        kept = [data for _, data in Backup.read(backup).messages()]
        assert kept == live.stored[: len(kept)]

        lasts = await live.submit(job("lasts", gpus=8, seconds=12), key="fourth")
        await live.until_phase(lasts.job_id, "running")
        said = await live.command("ledger", "backup", str(late))
        assert "segments 1" in said.out, said.err
        # What comes after the copy is lost with the servers.
        lost = await live.submit(job("lost"), key="fifth")
        await live.until_ended(lost.job_id)

    for directory in (backup, late):
        proved = await tessera("replay", "--verify", "--from-file", str(directory), environment={})
        assert proved.code == 0, proved.out + proved.err
    async with Restored(tmp_path / "new", late) as platform, Live.on(platform) as live:
        assert "restored shard main up to" in platform.said
        assert live.phase(ended.job_id) == "succeeded"
        await live.until_ended(lasts.job_id)  # its pod is gone with the cluster: it runs again
        assert live.phase(lasts.job_id) == "succeeded"
        again = await live.submit(job("ended"), key="first")
        assert again.job_id == ended.job_id
        fresh = await live.submit(job("fresh"), key="sixth")
        await live.until_ended(fresh.job_id)
        said = await live.command("replay", "--verify")
        assert said.code == 0, said.out + said.err


async def test_a_backup_is_not_restored_over_another_ledger_nor_beside_streams_of_init(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async with Live.at(tmp_path / "up", configuration(), layout=SMALL) as live:
        done = await live.submit(job("done"))
        await live.until_ended(done.job_id)
        assert (await live.command("ledger", "backup", str(backup))).code == 0
    # Neither the ledger nor EVENTS has these bounds there: that is no drift to mend, but a ledger to leave alone.
    words = ("ledger", "restore", str(backup), "--ledger-gib", "3", "--events-gib", "5")
    async with Live.at(tmp_path / "other", configuration(), layout=SMALL) as other:
        environment = other.platform.environment("operator")
        before = await other.ledger_end()
        said = await tessera(*words, "--credentials", str(other.platform.credentials.root), environment=environment)
        assert said.code == 4
        assert "restore into servers on which `tessera init` was not run" in said.err
        assert await other.ledger_end() >= before
        assert (await other.command("replay", "--verify")).code == 0
