"""Alarms that ring for planted faults: a real Prometheus reads the real services, by the rules that operators load."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from tessera.client.where import find
from tessera.kernel.ports import Outgoing
from tessera.local.free_port import LOOPBACK, free_port
from tessera_schemas import subjects
from tessera_schemas.services import SERVICES
from tests.e2e.live import Live, configuration, eventually, job

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus: `make prometheus` installs it"),
]
DEPLOY = Path(__file__).parents[2] / "deploy"


@dataclass(frozen=True)
class Watched:
    live: Live
    url: str

    async def ringing(self) -> set[tuple[str, str]]:
        """The alarms that ring, and the service that each is about."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/api/v1/alerts") as answer:
            alerts = (await answer.json())["data"]["alerts"]
        return {(a["labels"]["alertname"], a["labels"].get("service", "")) for a in alerts if a["state"] == "firing"}

    async def until(self, alarm: str, service: str = "", rings: bool = True) -> None:
        async def so() -> bool:
            return ((alarm, service) in await self.ringing()) is rings

        await eventually(so, f"{alarm} of {service or 'the shard'} {'rings' if rings else 'is silent'}")


def sooner(rules: str) -> str:
    """The same rules, which ring after a second; what they ask for stays as it is."""
    return re.sub(r"offset 1m", "offset 3s", re.sub(r"^( +)for: .*$", r"\1for: 1s", rules, flags=re.MULTILINE))


def targets(live: Live) -> list[dict[str, Any]]:
    """Every service on the port that it took; another start takes another."""
    folder = live.home / "run"
    return [
        {"targets": [f"{LOOPBACK}:{port.read_text().strip()}"], "labels": {"service": port.stem, "shard": "main"}}
        for port in sorted(folder.glob("*.port"))
        if port.stem in SERVICES
    ]


async def keep_targets(live: Live, file: Path) -> None:
    while True:
        fresh = json.dumps(targets(live))
        if not file.exists() or file.read_text() != fresh:
            new = file.with_suffix(".new")
            new.write_text(fresh)
            new.replace(file)
        await asyncio.sleep(0.2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    home = tmp_path_factory.mktemp("watched")
    (home / "alerts.yaml").write_text(sooner((DEPLOY / "alerts.yaml").read_text()))
    job_of_ours = {"job_name": "tessera", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [job_of_ours],
    }
    (home / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    async with Live.at(home / "up", configuration()) as live:
        keeping = asyncio.create_task(keep_targets(live, home / "targets.json"))
        port = free_port()
        with (home / "prometheus.log").open("wb") as log:
            server = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={home / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={home / 'data'}",
                    f"--web.listen-address={LOOPBACK}:{port}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            watched = Watched(live, f"http://{LOOPBACK}:{port}")
            await eventually(lambda: all_are_up(watched), "every service is read")
            yield watched
        finally:
            keeping.cancel()
            server.terminate()
            server.wait(10)


async def query(watched: Watched, expr: str) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as http:
        try:
            async with http.get(f"{watched.url}/api/v1/query", params={"query": expr}) as answer:
                found: list[dict[str, Any]] = (await answer.json())["data"]["result"]
                return found
        except (aiohttp.ClientError, KeyError):
            return []


async def all_are_up(watched: Watched) -> bool:
    return len(await query(watched, "up == 1")) == len(SERVICES)


async def test_nothing_rings_while_all_is_well_and_every_metric_is_there(watched: Watched) -> None:
    done = await watched.live.submit(job("well"))
    await watched.live.until_ended(done.job_id)
    await eventually(lambda: is_silent(watched), "nothing rings")
    for expr in ("tessera_ledger_bytes > 0", "tessera_redis_bytes > 0", "tessera_pool_gpus > 0", "tessera_tenant_jobs"):
        await eventually(lambda expr=expr: is_there(watched, expr), expr)


async def is_silent(watched: Watched) -> bool:
    return not await watched.ringing()


async def is_there(watched: Watched, expr: str) -> bool:
    return bool(await query(watched, expr))


async def test_a_service_that_is_down_rings_and_is_silent_when_it_is_back(watched: Watched) -> None:
    async with watched.live.down("queueing"):
        await watched.until("TesseraServiceDown", "queueing")
        await watched.until("TesseraNobodyLeads", "queueing")
    await watched.until("TesseraServiceDown", "queueing", rings=False)
    await watched.until("TesseraNobodyLeads", "queueing", rings=False)


async def test_redis_away_rings_at_projection(watched: Watched) -> None:
    async with watched.live.down("redis"):
        await watched.live.submit(job("unseen"))
        await watched.until("TesseraNotReady", "projection")
    await watched.until("TesseraNotReady", "projection", rings=False)


async def test_a_message_that_is_no_fact_rings_as_a_dead_letter(watched: Watched) -> None:
    place = find(watched.live.home)
    async with place.bus(place.identity("binder")) as bus:
        await bus.publish(Outgoing(subjects.fact("main", "binder", "run-ended"), b"no fact"))
    await watched.until("TesseraDeadLetters", "scheduler")
