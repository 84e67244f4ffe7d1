"""A month as one page: its sums are those of the ledger, names are escaped, and nothing is loaded from elsewhere."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tessera.client.ledger.reading import LedgerFile
from tessera.client.ledger.showback.month import gpu_hours, money_text, read_month
from tessera.client.ledger.showback.page import showback_page
from tessera.client.outcomes import Failure
from tessera_schemas.base import job_id
from tessera_schemas.config import ConfigBody, Flavor
from tessera_schemas.facts import RunEnded, RunIdle
from tessera_schemas.work.budgets import MICROS, Budget, month_ts
from tessera_schemas.work.money import GPU_HOUR, FlavorPrice, Money
from tests.builders import SHARD, admitted, config_body, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

ODD = "<script>alert(1)</script>"


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def ran(ledger: Committed, key: str, until: str, gpus: int, tenant: str, **more: Any) -> None:
    """A job whose GPUs are held from the next second on until then."""
    ledger.commit(admitted(key, job_spec(role(gpus=gpus), name=key.lower(), **more), tenant=tenant), ms=0)
    run = ledger.start(job_id(SHARD, tenant, key), key)
    ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=at(until) - ledger.ts)
    ledger.commit(run_absent(run), ms=0)


@pytest.fixture
def stored(tmp_path: Path) -> LedgerFile:
    """October: vision a day of 2 GPUs. November: a day of 4, whose price doubles at noon, and speech half of 1."""
    prices = (("", 2_000_000), ("2026-11-10T12", 4_000_000))
    money = Money(
        currency="EUR", prices=tuple(FlavorPrice(flavor="a100", gpu_hour_micros=p, since=s) for s, p in prices)
    )
    given = {"flavors": (Flavor(name="a100"),), "money": money, "budgets": (Budget(tenant="vision", amount=300),)}
    body = config_body(tenants=("vision", "speech")).model_copy(update=given)
    ledger = Committed(ts=at("2026-10-09T23:59:56")).begin(
        node_seen("node-a"), body=ConfigBody.model_validate(body.model_dump())
    )
    ran(ledger, "old", "2026-10-11", 2, "vision")
    ledger.commit(ms=at("2026-11-09T23:59:59") - ledger.ts)
    ran(ledger, "train", "2026-11-11", 4, "vision", user="ana", project="vlm")
    ledger.commit(ms=at("2026-11-19T23:59:59") - ledger.ts)
    ran(ledger, "serve", "2026-11-20T12:00", 1, "speech")
    ledger.commit(ms=at("2026-12-03") - ledger.ts)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(data + b"\n" for data in ledger.stored))
    return LedgerFile(path)


async def test_a_month_has_what_its_runs_held_by_the_price_of_each_hour(stored: LedgerFile) -> None:
    found = await read_month(stored, month_ts("2026-11"))
    assert gpu_hours(found.now.used) == "108.0"
    assert gpu_hours(found.before.used) == "48.0"
    assert {name: money_text(cost) for name, cost in found.now.cost["tenant"].items()} == {
        "vision": "288.00",
        "speech": "48.00",
    }
    assert found.now.capacity == 30 * 24 * 8 * GPU_HOUR == found.now.used + found.now.free + found.now.out
    assert sum(found.now.days.values()) == found.now.used
    (budget,) = found.budgets
    assert (budget.spent_micros, budget.limit_micros) == (288 * MICROS, 300 * MICROS)


async def test_the_page_stands_alone_and_escapes_what_users_wrote(stored: LedgerFile) -> None:
    found = await read_month(stored, month_ts("2026-11"))
    odd = {job: f"{ODD} {name}" for job, name in found.names.items()}
    page = showback_page(replace(found, names=odd, currency="<b>"), ODD)
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import", page)
    assert "<b>Cost" not in page
    assert f"GPU use of 2026-11, cluster {ODD}" in unescape(page)
    for text in ("train (vision)", "+100 %", "new", "96 %", "288.00 EUR", "vision/ana", "By project", "vision/vlm"):
        assert text in page
    (picture,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(ElementTree.fromstring(picture).findall("rect")) == 2


async def test_a_page_without_projects_has_no_table_of_them(stored: LedgerFile) -> None:
    assert "By project" not in showback_page(await read_month(stored, month_ts("2026-10")), "main")


async def test_what_a_run_holds_that_was_warned_of_idle_gpus_is_paid_like_all_it_holds(tmp_path: Path) -> None:
    ledger = Committed(ts=at("2026-11-09T23:59:56")).begin(node_seen("node-a"))
    ledger.commit(admitted("idle", job_spec(role(gpus=2))), ms=0)
    run = ledger.start(job_id(SHARD, "lab", "idle"), "idle")
    ledger.commit(RunIdle(kind="run_idle", run_id=run, idle_seconds=60), ms=0)
    ledger.commit(ms=at("2026-11-11") - ledger.ts)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(data + b"\n" for data in ledger.stored))
    found = await read_month(LedgerFile(path), month_ts("2026-11"))
    assert gpu_hours(found.now.used) == "48.0"


async def test_a_month_of_which_the_ledger_has_nothing_is_said(stored: LedgerFile) -> None:
    with pytest.raises(Failure, match="has nothing of 2026-09; ask for another month"):
        await read_month(stored, month_ts("2026-09"))


def test_numbers_are_rounded_down_once() -> None:
    assert gpu_hours(GPU_HOUR * 12_345 - 1) == "12,344.9"
    assert money_text(GPU_HOUR * 1_234_567_899_999) == "1,234,567.89"
