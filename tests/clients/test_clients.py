"""
Libraries that call Slurm's commands, each as its users have it, against a whole platform by way of `slurm-shims`.

The simulated cluster runs nothing of a job: what is seen is that a library submits, reads the number, sees the end and
cancels, and that the ledger says the same of both jobs.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.live import Live, configuration

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = Path(__file__).parents[2] / "build" / "clients" / "bin" / "python"
SECONDS = 300.0
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not PYTHON.exists(), reason="build/clients is not there: `make test-clients` makes it"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with Live.at(tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


@pytest.mark.parametrize(
    "program", sorted(PROGRAMS.glob("*_jobs.py")), ids=lambda path: path.stem.removesuffix("_jobs")
)
async def test_a_library_submits_sees_the_end_and_cancels(live: Live, program: Path, tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    assert (await live.command("slurm-shims", str(shims), "--home", str(live.home), "--as", "lab")).code == 0
    here = {"PATH": f"{shims}:{os.environ['PATH']}", "TESSERA_CONTAINER_IMAGE": "train:1", "HOME": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(
        *(PYTHON, program),
        env=os.environ | here,
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
    assert process.returncode == 0, out.decode()
    told = json.loads(out.decode().splitlines()[-1])
    ended, cancelled = (live.id_of(told[name]) for name in ("ended", "cancelled"))
    await live.until_ended(ended, cancelled)
    assert (live.phase(ended), live.phase(cancelled)) == ("succeeded", "cancelled")
