"""A real Prometheus beside a live platform: it reads the real services, and rings by the rules that operators load."""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tessera_local.free_port import LOOPBACK, free_port
from tessera_local.platform import CLUSTER
from tessera_schemas.shard.services import SERVICES
from tests.e2e.live import SECONDS, Live, eventually

RULES = Path(__file__).parents[2] / "deploy" / "alerts.yaml"
Json = dict[str, Any]


def rings_after_a_second(rules: str) -> str:
    """The same rules with every wait (`for`) a second, and the followers' minute three; all else stays as it is."""
    return re.sub(r"offset 1m", "offset 3s", re.sub(r"^( +)for: .*$", r"\1for: 1s", rules, flags=re.MULTILINE))


@dataclass
class Prometheus:
    """A server that runs; `rang` are all (alarm, service) that were ever seen to ring."""

    url: str
    rang: set[tuple[str, str]] = field(default_factory=set)
    _rings: frozenset[tuple[str, str]] = frozenset()

    async def query(self, expr: str) -> list[Json]:
        """Samples of an expression; none while the server is not there."""
        found: list[Json] = (await self._asked("query", query=expr)).get("result", [])
        return found

    async def query_range(self, expr: str, begin: float, end: float) -> list[Json]:
        """Series of an expression between two Unix times, a point every third second."""
        asked = await self._asked("query_range", query=expr, start=f"{begin:.3f}", end=f"{end:.3f}", step="3")
        found: list[Json] = asked.get("result", [])
        return found

    async def gives(self, expr: str) -> None:
        """Wait until an expression has samples."""

        async def is_there() -> bool:
            return bool(await self.query(expr))

        await eventually(is_there, f"{expr} has a sample")

    async def until_rings(self, alarm: str, service: str = "") -> None:
        """Wait until an alarm has rung, for a moment at least."""
        await eventually(lambda: (alarm, service) in self.rang, f"{alarm} of {service or 'the shard'} rings")

    async def until_silent(self, alarm: str, service: str = "") -> None:
        """Wait until an alarm that rang does so no more."""
        await eventually(lambda: (alarm, service) not in self._rings, f"{alarm} of {service or 'the shard'} is silent")

    async def until_nothing_rings(self) -> None:
        """Wait until no alarm rings."""
        await eventually(lambda: not self._rings, "nothing rings")

    async def look(self) -> None:
        """Read what rings, again and again."""
        while True:
            alerts = (await self._asked("alerts")).get("alerts", [])
            self._rings = frozenset(
                (alert["labels"]["alertname"], alert["labels"].get("service", ""))
                for alert in alerts
                if alert["state"] == "firing"
            )
            self.rang |= self._rings
            await asyncio.sleep(0.25)

    async def _asked(self, path: str, **query: str) -> Json:
        try:
            async with aiohttp.ClientSession() as http, http.get(f"{self.url}/api/v1/{path}", params=query) as answer:
                return dict((await answer.json())["data"])
        except (aiohttp.ClientError, KeyError, ValueError):
            return {}


def targets_of(live: Live) -> list[Json]:
    """
    Every process of a service on the port that it took, further ones of `Live.another` included.

    The instance is the process' name, as it is the pod's on Kubernetes: a restart is the same instance.
    """
    ports = {path.stem: path.read_text().strip() for path in sorted((live.home / "run").glob("*.port"))}
    return [
        {
            "targets": [f"{LOOPBACK}:{port}"],
            "labels": {"service": name.partition("-more-")[0], "shard": "main", "instance": name},
        }
        for name, port in ports.items()
        if name != CLUSTER and port
    ]


@asynccontextmanager
async def reading(folder: Path, targets: list[Json], rules: str, job: Json) -> AsyncIterator[Prometheus]:
    """A server that reads once a second, with these rules and one scrape job; its files are in `folder`."""
    (folder / "alerts.yaml").write_text(rules)
    (folder / "targets.json").write_text(json.dumps(targets))
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [job | {"file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    address = f"{LOOPBACK}:{free_port()}"
    words = [f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(["prometheus", *words, f"--web.listen-address={address}"], stdout=log, stderr=log)
    prometheus = Prometheus(f"http://{address}")
    looking = asyncio.create_task(prometheus.look())
    try:
        yield prometheus
    finally:
        looking.cancel()
        server.terminate()
        server.wait(SECONDS)


@asynccontextmanager
async def watching(live: Live, folder: Path) -> AsyncIterator[Prometheus]:
    """A server that reads every service of a live platform, wherever a restart brings it."""

    async def keep_targets() -> None:
        file = folder / "targets.json"
        while True:
            fresh = json.dumps(targets_of(live))
            if file.read_text() != fresh:
                new = file.with_suffix(".new")
                new.write_text(fresh)
                new.replace(file)
            await asyncio.sleep(0.2)

    rules = rings_after_a_second(RULES.read_text())
    async with reading(folder, targets_of(live), rules, {"job_name": "tessera"}) as prometheus:
        keeping = asyncio.create_task(keep_targets())
        try:
            await prometheus.gives(f"count(up == 1) == {len(SERVICES)}")
            yield prometheus
        finally:
            keeping.cancel()
