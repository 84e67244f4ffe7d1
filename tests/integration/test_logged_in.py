"""The command with a tenant's token and nothing else: what it reads and sends by HTTP, on real servers."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.live import Live, Said, configuration, eventually, job, tessera

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


class LoggedIn:
    """A tenant that knows the gateway's address and its token, in a home directory of its own."""

    def __init__(self, live: Live, folder: Path) -> None:
        self._live, self.environment = live, {"XDG_CONFIG_HOME": str(folder)}

    async def run(self, *words: str) -> Said:
        return await tessera(*words, environment=self.environment)

    async def log_in(self, tenant: str, folder: Path) -> None:
        (folder / "token").write_text((await self._live.command("token", "new", tenant)).out)

        async def taken() -> bool:
            url = self._live.platform.gateway_url
            return (await self.run("login", url, "--token-file", str(folder / "token"))).code == 0

        await eventually(taken, "the gateway takes the new token")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with Live.at(tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(live: Live, tmp_path_factory: pytest.TempPathFactory) -> LoggedIn:
    folder = tmp_path_factory.mktemp("lab")
    made = LoggedIn(live, folder)
    await made.log_in("lab", folder)
    return made


def written(folder: Path, name: str, seconds: float = 0.2) -> str:
    file = folder / f"{name}.yaml"
    file.write_text(job(name, seconds=seconds).model_dump_json(exclude_defaults=True))
    return str(file)


async def test_every_reading_command_answers_a_tenants_token(live: Live, lab: LoggedIn, tmp_path: Path) -> None:
    sent = await lab.run("submit", "-f", written(tmp_path, "by-http"), "--key", "in-1", "--wait", "--timeout", "60")
    assert sent.code == 0, sent.err
    assert "succeeded" in sent.out
    live.acknowledged.append(("lab", "in-1"))
    expected = {
        ("ls",): "by-http",
        ("get", "by-http"): "in-1",
        ("explain", "by-http"): "succeeded",
        ("top", "--once"): "default",
        ("queue", "list"): "default",
        ("queue", "show", "default"): "jobs wait",
        ("quota",): "gpus",
        ("nodes",): "gpu-0",
        ("templates",): "TEMPLATE",
        ("events", "--job", "by-http"): "job.released",
        ("squeue", "--all"): "by-http",
        ("sinfo",): "default",
    }
    for words, text in expected.items():
        said = await lab.run(*words)
        assert (said.code, said.err) == (0, ""), words
        assert text in said.out, words


async def test_a_tenant_holds_releases_and_cancels_its_job_by_name(live: Live, lab: LoggedIn, tmp_path: Path) -> None:
    file = written(tmp_path, "orders", seconds=600)
    assert (await lab.run("submit", "-f", file, "--key", "in-2", "--hold", "-o", "json")).code == 0
    live.acknowledged.append(("lab", "in-2"))
    assert "is held" in (await lab.run("hold", "orders")).out
    found = json.loads((await lab.run("get", "orders", "-o", "json")).out)
    assert found["held"] is True
    assert "is released" in (await lab.run("release", "orders")).out
    assert "is not held; nothing changes" in (await lab.run("release", "orders")).out
    assert "cancellation is under way" in (await lab.run("cancel", "orders")).out

    async def ended() -> bool:
        return bool(json.loads((await lab.run("get", "orders", "-o", "json")).out)["phase"] == "cancelled")

    await eventually(ended, "the job is cancelled")
    again = await lab.run("cancel", "orders")
    assert again.code == 4
    assert "has ended (cancelled)" in again.err


async def test_another_tenants_job_does_not_exist_and_its_reasons_are_all_told(
    live: Live, lab: LoggedIn, tmp_path: Path
) -> None:
    ops = LoggedIn(live, tmp_path)
    await ops.log_in("ops", tmp_path)
    assert "by-http" not in (await ops.run("ls")).out
    assert (await ops.run("get", "by-http")).code == 3
    refused = await ops.run("submit", "--queue", "nowhere", "--gpus", "1", "--", "true")
    assert refused.code == 6
    assert "refused: NoSuchQueue" in refused.err
    assert (await ops.run("slots")).code == 2
