"""The GitHub action on a live gateway, run as GitHub's runner does: Node, and inputs in the environment."""

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.e2e.live import Live, configuration, eventually, job

NODE = shutil.which("node")
ACTION = Path(__file__).parents[2] / "integrations" / "github-action" / "main.mjs"
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(NODE is None, reason="no node on PATH: GitHub's runners have it"),
]


async def begin(url: str, folder: Path, token: str, **inputs: str) -> asyncio.subprocess.Process:
    """The action at work; its outputs go into the file `output`."""
    output = folder / "output"
    output.write_text("")
    given = {"url": url, "token": token, "job": str(folder / "job.json"), "logs": "0", **inputs}
    environment = {
        "PATH": os.environ["PATH"],
        "GITHUB_OUTPUT": str(output),
        **{f"INPUT_{name.upper()}": value for name, value in given.items()},
        "GITHUB_REPOSITORY": "acme/train",
        "GITHUB_RUN_ID": "17",
        "GITHUB_JOB": "nightly",
        "GITHUB_RUN_ATTEMPT": inputs.pop("attempt", "1"),
    }
    return await asyncio.create_subprocess_exec(
        str(NODE), str(ACTION), env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )


async def run(live: Live, folder: Path, token: str, **inputs: str) -> tuple[int, str, str]:
    """Exit code, what it printed, and its outputs."""
    process = await begin(live.platform.gateway_url, folder, token, **inputs)
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode(), (folder / "output").read_text()


class Gateway:
    """One that answers as it is told: `submit_seconds` late, `away` times with 503 to a cancel, a log for each run."""

    def __init__(self, submit_seconds: float = 0, away: int = 0, runs: int = 1, ends: bool = True) -> None:
        self.submit_seconds, self.away, self.runs, self.ends = submit_seconds, away, runs, ends
        self.asked, self.cancelled, self.run = asyncio.Event(), list[str](), 1
        self.cancels_at = list[float]()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/jobs", self.submit)
        app.router.add_post("/v1/jobs/{job}/cancel", self.cancel)
        app.router.add_get("/v1/jobs/{job}", self.get)
        app.router.add_get("/v1/jobs/{job}/wait", self.wait)
        app.router.add_get("/v1/jobs/{job}/logs", self.logs)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    def job(self) -> dict[str, Any]:
        ended = {"ended_ts": 1, "phase": "succeeded"} if self.ends and self.run > self.runs else {}
        return {"job": {"job_id": "j" * 20, "phase": "running", "attempt": min(self.run, self.runs), **ended}}

    async def submit(self, request: web.Request) -> web.Response:
        self.asked.set()
        await asyncio.sleep(self.submit_seconds)
        return web.json_response({"job_id": "j" * 20, "state": "queued"}, status=201)

    async def cancel(self, request: web.Request) -> web.Response:
        self.cancels_at.append(asyncio.get_running_loop().time())
        if self.away > 0:
            self.away -= 1
            later = {"Retry-After": "4"}
            return web.json_response({"sentence": "Unavailable: nothing was stored"}, status=503, headers=later)
        self.cancelled.append(request.headers["Idempotency-Key"])
        return web.json_response({"job_id": "j" * 20, "state": "accepted"})

    async def get(self, request: web.Request) -> web.Response:
        return web.json_response(self.job())

    async def wait(self, request: web.Request) -> web.Response:
        for _ in range(20 * int(request.query["timeout"])):
            if self.ends and self.run > self.runs:
                break
            await asyncio.sleep(0.05)
        return web.json_response(self.job())

    async def logs(self, request: web.Request) -> web.Response:
        attempt, self.run = int(request.query["attempt"]), self.run + 1
        return web.Response(text=f"line of run {attempt}\n::error::said by the pod\n::set-output name=x::y")


async def test_a_workflow_that_is_cancelled_while_it_submits_cancels_the_job_that_comes_of_it(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"name": "nightly"}))
    gateway = Gateway(submit_seconds=1, away=1, ends=False)
    async with gateway.serving() as url:
        process = await begin(url, tmp_path, "t", key="k1", logs="")
        await gateway.asked.wait()
        process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        said, _ = await process.communicate()
    assert (process.returncode, gateway.cancelled) == (1, ["k1"]), said.decode()
    assert b"is cancelled: the workflow was cancelled" in said


async def test_a_cancel_after_the_workflows_time_outlives_a_gateway_that_is_away_for_a_moment(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"name": "nightly"}))
    gateway = Gateway(away=1, ends=False)
    async with gateway.serving() as url:
        process = await begin(url, tmp_path, "t", key="k1", logs="", **{"timeout-minutes": "0.02"})
        said, _ = await process.communicate()
    assert (process.returncode, gateway.cancelled) == (10, ["k1"]), said.decode()
    first, second = gateway.cancels_at
    assert second - first >= 3.9, "it comes again no earlier than Retry-After says"


async def test_the_logs_of_all_runs_are_shown(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"name": "nightly"}))
    async with Gateway(runs=2).serving() as url:
        process = await begin(url, tmp_path, "t", key="k1")
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert re.findall(r"line of run \d", said.decode()) == ["line of run 1", "line of run 2"]


async def test_no_line_of_a_log_is_a_command_to_the_runner(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"name": "nightly"}))
    async with Gateway(runs=2).serving() as url:
        process = await begin(url, tmp_path, "t", key="k1")
        said, _ = await process.communicate()
    stopped_by, heeded = "", list[str]()
    for line in said.decode().splitlines():
        if stopped_by:
            stopped_by = "" if line == f"::{stopped_by}::" else stopped_by
        elif line.startswith("::stop-commands::"):
            stopped_by = line.removeprefix("::stop-commands::")
        elif line.startswith("::"):
            heeded.append(line)
    assert (heeded, stopped_by) == ([], ""), said.decode()
    assert "said by the pod" in said.decode()


async def lets_in(live: Live, token: str) -> bool:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as http, http.get(f"{live.platform.gateway_url}/v1/jobs") as said:
        return said.status == 200


async def test_the_action_submits_shows_the_log_and_ends_as_the_job_does(tmp_path: Path) -> None:
    async with Live.at(tmp_path / "up", configuration()) as live:
        token = (await live.command("token", "new", "lab")).out.strip().splitlines()[0]
        await eventually(lambda: lets_in(live, token), "the gateway takes the new token")
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
