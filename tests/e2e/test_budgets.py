"""A budget of one unit, on real servers: what is told at its end, who waits then, and what a grant lets go on."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tessera_schemas.config import Flavor
from tessera_schemas.reasons import Code
from tessera_schemas.work.budgets import Budget, month_end
from tessera_schemas.work.money import FlavorPrice, Money
from tests.e2e.live import Live, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

SECOND_MICROS = 3_600 * 10**6
"""Price of a GPU and hour of which a GPU and second costs one."""
LONGEST_SECONDS = 120


async def test_a_spent_budget_holds_new_work_until_an_operator_grants_more(tmp_path: Path) -> None:
    now = datetime.now(UTC).timestamp()
    left = month_end(int(now * 1000)) / 1000 - now
    if left < LONGEST_SECONDS:  # with a new month all of it is there again
        await asyncio.sleep(left + 1)
    body = configuration(
        flavors=(Flavor(name="any"),),
        money=Money(currency="EUR", prices=(FlavorPrice(flavor="any", gpu_hour_micros=SECOND_MICROS),)),
        budgets=(Budget(tenant="lab", amount=2, when_spent="hold"),),
    )
    async with Live.at(tmp_path, body) as live, live.listening() as heard:
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
