"""The examples of the README, run word for word against a whole shard."""

import asyncio
import os
import sys
from pathlib import Path

from tessera.lab.platform import Platform

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SECONDS = 60.0


async def started(*command: str, home: Path) -> asyncio.subprocess.Process:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    environment = {**inherited, "PYTHONPATH": os.pathsep.join(sys.path), "TESSERA_HOME": str(home)}
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, env=environment, stdout=asyncio.subprocess.PIPE, cwd=home
    )


async def said(*command: str, home: Path) -> str:
    process = await started(*command, home=home)
    out, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == 0
    return out.decode()


async def test_the_examples_of_the_readme_work_as_they_stand(tmp_path: Path) -> None:
    home = tmp_path / "up"
    async with Platform(home, tenants=["demo"]):
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
        ended = await said("-m", "tessera", "submit", "--wait", "--timeout", str(SECONDS), "-f", job, home=home)
        assert ended.endswith(" succeeded\n")
