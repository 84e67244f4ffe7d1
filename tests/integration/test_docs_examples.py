"""The examples of the README, run word for word against a whole shard."""

import asyncio
import os
import sys
from pathlib import Path

from tessera_local.platform import Platform

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SECONDS = 120.0


async def started(*command: str, home: Path, **settings: str) -> asyncio.subprocess.Process:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    environment = {**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **(settings or {"TESSERA_HOME": str(home)})}
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, env=environment, stdout=asyncio.subprocess.PIPE, cwd=home
    )


async def said(*command: str, home: Path, **settings: str) -> str:
    process = await started(*command, home=home, **settings)
    out, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == 0
    return out.decode()


async def test_the_examples_of_the_readme_work_as_they_stand(tmp_path: Path) -> None:
    home = tmp_path / "up"
    async with Platform(home, tenants=["demo", "lab"]) as platform:
        await _the_first_configuration_is_applied_as_it_is_written(home)
        await _each_example_of_tenants_would_be_admitted(home)
        await said("-m", "tessera", "apply", "--yes", "-f", str(EXAMPLES / "config.yaml"), home=home)
        subscriber = await started(str(EXAMPLES / "subscribe.py"), home=home)
        try:
            submitted = await said(str(EXAMPLES / "submit.py"), home=home)
            assert submitted.endswith(" admitted\n")
            assert subscriber.stdout is not None
            event = await asyncio.wait_for(subscriber.stdout.readline(), SECONDS)
            assert submitted.split()[0] in event.decode()
        finally:
            subscriber.kill()
            await subscriber.wait()
        job = str(EXAMPLES / "job.yaml")
        ended = await said(
            "-m", "tessera", "submit", "--as", "demo", "--wait", "--timeout", str(SECONDS), "-f", job, home=home
        )
        assert ended.endswith(" succeeded\n")
        credential = {
            "TESSERA_NATS_URL": platform.nats.url,
            "TESSERA_CREDENTIALS_FILE": str(platform.credentials.file("demo")),
        }
        (elsewhere := tmp_path / "runner").mkdir()
        for _run_and_rerun in range(2):
            waited = ("submit", "--wait", "--timeout", str(SECONDS), "--key", "nightly", "-f", job)
            assert (await said("-m", "tessera", *waited, home=elsewhere, **credential)).endswith(" succeeded\n")


async def _the_first_configuration_is_applied_as_it_is_written(home: Path) -> None:
    file = str(home / "first.yaml")
    await _until_nodes_are_known(home)
    assert file in await said("-m", "tessera", "config", "init", "-f", file, home=home)
    assert "# for 4 nodes with 32 " in Path(file).read_text()
    applied = await said("-m", "tessera", "apply", "--yes", "-f", file, home=home)
    assert "version 1 is in force" in applied
    assert "filled in" not in applied
    Path(file).write_text(await said("-m", "tessera", "config", "show", home=home))
    assert "nothing changes" in await said("-m", "tessera", "apply", "--yes", "-f", file, home=home)


async def _each_example_of_tenants_would_be_admitted(home: Path) -> None:
    files = [EXAMPLES / "job.yaml", EXAMPLES / "training.yaml", *(EXAMPLES / "tutorial").glob("busy.yaml")]
    scripts = [path for path in (EXAMPLES / "slurm").iterdir() if "tessera sbatch" not in path.read_text()]
    assert len(scripts) > 5
    asked = [("submit", "--as", tenant, "--dry-run", "-f", str(path)) for path in files for tenant in ("demo", "lab")]
    asked += [("sbatch", "--as", "lab", "--test-only", "--container-image=x", str(path)) for path in scripts]
    for words in asked:  # `said` wants exit code 0
        await said("-m", "tessera", *words, home=home)


async def _until_nodes_are_known(home: Path) -> None:
    async with asyncio.timeout(SECONDS):
        while "gpu" not in await said("-m", "tessera", "nodes", "-o", "json", home=home):
            await asyncio.sleep(0.2)
