"""The GitHub action on a live gateway, run as GitHub's runner does: Node, and inputs in the environment."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.live import Live, configuration, job

NODE = shutil.which("node")
ACTION = Path(__file__).parents[2] / "integrations" / "github-action" / "main.mjs"
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(NODE is None, reason="no node on PATH: GitHub's runners have it"),
]


async def run(live: Live, folder: Path, token: str, **inputs: str) -> tuple[int, str, str]:
    """Exit code, what it printed, and its outputs."""
    output = folder / "output"
    output.write_text("")
    given = {"url": live.platform.gateway_url, "token": token, "job": str(folder / "job.json"), "logs": "0", **inputs}
    environment = {
        "PATH": os.environ["PATH"],
        "GITHUB_OUTPUT": str(output),
        **{f"INPUT_{name.upper()}": value for name, value in given.items()},
        "GITHUB_REPOSITORY": "acme/train",
        "GITHUB_RUN_ID": "17",
        "GITHUB_JOB": "nightly",
        "GITHUB_RUN_ATTEMPT": inputs.pop("attempt", "1"),
    }
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(ACTION), env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode(), output.read_text()


async def test_the_action_submits_shows_the_log_and_ends_as_the_job_does(tmp_path: Path) -> None:
    async with Live.at(tmp_path / "up", configuration()) as live:
        token = (await live.command("token", "new", "lab")).out.strip().splitlines()[0]
        await asyncio.sleep(3)  # a new token counts within two seconds
        spec = job("nightly", seconds=4, ttl_seconds_after_finished=60).model_dump(mode="json", exclude_defaults=True)
        (tmp_path / "job.json").write_text(json.dumps({"spec": spec}))
        code, said, output = await run(live, tmp_path, token)
        assert code == 0, said
        assert "simulated program, rank 0: 4 s of work" in said
        assert "exit code 0" in said
        assert "key github:acme/train:17:nightly:1:nightly" in said
        first = dict(line.split("=") for line in output.split())
        assert first["phase"] == "succeeded"

        code, said, output = await run(live, tmp_path, token)  # the step is sent again after a lost connection
        assert (code, dict(line.split("=") for line in output.split())) == (0, first), said
        assert "existing" in said

        failing = job("fails", exit_code=3, retry={"max_attempts": 1}).model_dump(mode="json", exclude_defaults=True)
        (tmp_path / "job.json").write_text(json.dumps(failing))
        code, said, output = await run(live, tmp_path, token, logs="")
        assert (code, "phase=failed" in output) == (1, True), said
        assert "PodFailed" in said or "AttemptsExhausted" in said

        (tmp_path / "job.json").write_text(json.dumps({"spec": {**spec, "queue": "nowhere"}}))
        code, said, output = await run(live, tmp_path, token, name="other")
        assert code == 1
        assert "::error::NoSuchQueue" in said

        slow = job("slow", seconds=600).model_dump(mode="json", exclude_defaults=True)
        (tmp_path / "job.json").write_text(json.dumps(slow))
        code, said, output = await run(live, tmp_path, token, **{"timeout-minutes": "0.05"})
        assert (code, "is cancelled: the workflow's time is over" in said) == (10, True), said
        await live.until_phase(dict(line.split("=") for line in output.split())["job-id"], "cancelled")
        assert token not in said
