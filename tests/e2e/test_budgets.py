"""A budget on real servers: what is told, also to a webhook, who waits at its end, and what a grant lets go on."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from tessera_schemas.config import Flavor
from tessera_schemas.reasons import Code
from tessera_schemas.work.budgets import Budget, month_end
from tessera_schemas.work.money import FlavorPrice, Money
from tests.e2e.live import SMALL, Live, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio

SECOND_MICROS = 3_600 * 10**6
"""Price of a GPU and hour of which a GPU and second costs one."""
LONGEST_SECONDS = 300
BUDGET = "project/lab/vlm"


async def until_the_month_has_time() -> None:
    """With a new month all of a budget is there again: waits for it where it is near."""
    now = datetime.now(UTC).timestamp()
    left = month_end(int(now * 1000)) / 1000 - now
    if left < LONGEST_SECONDS:
        await asyncio.sleep(left + 1)


async def test_a_spent_budget_holds_new_work_until_an_operator_grants_more(tmp_path: Path) -> None:
    await until_the_month_has_time()
    body = configuration(
        flavors=(Flavor(name="any"),),
        money=Money(currency="EUR", prices=(FlavorPrice(flavor="any", gpu_hour_micros=SECOND_MICROS),)),
        budgets=(Budget(tenant="lab", amount=2, when_spent="hold"),),
    )
    async with Live.at(tmp_path, body, layout=SMALL) as live, live.listening() as heard:
        first = await live.submit(job("first", seconds=3))
        await live.until_ended(first.job_id)
        spent = "io.tessera.budget.spent.v1"  # 80 percent are told where there is time for it before 100
        await eventually(lambda: spent in {event.type for event in heard.events}, "its owner hears it")
        second = await live.submit(job("second"))
        await live.until_phase(second.job_id, "queued")

        def says_why() -> bool:
            known = live.state.jobs.get(second.job_id)
            return known is not None and known.reason is not None and known.reason.code is Code.BUDGET_SPENT

        await live.until(lambda _: says_why(), "it waits for the budget")
        (row,) = json.loads((await live.command("budget", "-o", "json")).out)["items"]
        assert (row["budget"], row["is_spent"], row["spent_micros"] >= 2_000_000) == ("tenant/lab", True, True)
        refused = await live.command("budget", "grant", "lab", "--amount", "5", "--reason", "more", "--as", "lab")
        assert (refused.code, "only operators grant" in refused.err) == (2, True), refused
        granted = await live.command("budget", "grant", "lab", "--amount", "100", "--reason", "a deadline")
        assert (granted.code, "100 EUR more" in granted.out) == (0, True), granted
        await live.until_ended(second.job_id)
        assert live.phase(second.job_id) == "succeeded"
        await live.until_idle()
        await assert_all_is_well(live)


@dataclass
class Receiver:
    """A webhook's end: requests as they came."""

    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.got.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        return web.Response(status=204)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serves, and gives the URL."""
        app = web.Application()
        app.router.add_post("/hook", self.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        finally:
            await runner.cleanup()


async def test_a_webhook_is_told_at_eighty_percent_of_a_projects_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until_the_month_has_time()
    monkeypatch.setenv("TESSERA_CONFIG_SECONDS", "0.2")
    receiver = Receiver()
    price = 200 * SECOND_MICROS
    body = configuration(
        flavors=(Flavor(name="any"),),
        money=Money(currency="EUR", prices=(FlavorPrice(flavor="any", gpu_hour_micros=price),)),
    ).model_dump(mode="json", exclude_defaults=True)
    async with receiver.listening() as url, Live.at(tmp_path, configuration(), layout=SMALL) as live:
        (live.home / "webhook-secrets" / "lab.signs").write_text("only-the-receiver-and-the-notifier")
        (lab,) = [tenant for tenant in body["tenants"] if tenant["name"] == "lab"]
        lab["webhooks"] = [{"name": "money", "url": url, "secret": "signs", "types": ["budget.warned.v1"]}]
        await apply_budget(live, body, amount=10**9)
        run = await live.submit(job("train", seconds=2).model_copy(update={"project": "vlm"}))
        await live.until_ended(run.job_id)
        await live.until_idle()
        # Nothing is held any more, and with this amount it is between 80 and 100 percent however long the run was.
        row = live.state.spending.get(BUDGET)
        assert row is not None
        spent = row.micros
        assert spent >= 200_000_000
        await apply_budget(live, body, amount=spent * 10 // 9 // 1_000_000)
        await eventually(lambda: bool(receiver.got), "the webhook is told")
        headers, data = receiver.got[0]
        event = json.loads(data)
        assert headers["webhook-id"] == f"main.{event['id']}"
        assert event["type"] == "io.tessera.budget.warned.v1"
        assert event["data"] == {
            "budget": BUDGET,
            "month": f"{datetime.now(UTC):%Y-%m}",
            "percent": 80,
            "spent_micros": spent,
            "limit_micros": spent * 10 // 9 // 1_000_000 * 1_000_000,
            "unit": "EUR",
            "when_spent": "hold",
        }
        (shown,) = json.loads((await live.command("budget", "-o", "json")).out)["items"]
        assert (shown["budget"], shown["spent_micros"], shown["is_spent"]) == (BUDGET, spent, False)


async def apply_budget(live: Live, body: dict[str, Any], amount: int) -> None:
    file = live.home / "config.yaml"
    file.write_text(yaml.safe_dump(body | {"budgets": [{"tenant": "lab", "project": "vlm", "amount": amount}]}))
    applied = await live.command("apply", "-f", str(file), "--yes")
    assert applied.code == 0, applied.err
