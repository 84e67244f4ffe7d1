"""Who of several shares a queue, and who holds GPUs without using them; on real processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from tessera_schemas.config import Policy
from tessera_schemas.job import JobIdle
from tessera_schemas.ledger import LEDGER_MESSAGE, Allocated, Warned
from tests.e2e.live import Instance, Live, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio(loop_scope="module")

METRIC = "DCGM_FI_DEV_GPU_UTIL"
LONG = 3600.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    home: Path = tmp_path_factory.mktemp("platform")
    policy = Policy(idle="warn", idle_warn_seconds=2)
    async with Live.at(home, configuration(policy=policy)) as live:
        yield live


def records(live: Live) -> list[Any]:
    return [record for stored in live.stored for record in LEDGER_MESSAGE.validate_json(stored).records]


def allocated(live: Live) -> list[str]:
    """The jobs in the order in which they got their devices."""
    return [record.job_id for record in records(live) if isinstance(record, Allocated)]


def warned(live: Live) -> list[str]:
    return [record.run_id for record in records(live) if isinstance(record, Warned)]


async def test_one_tenants_flood_goes_behind_the_tenant_and_the_user_who_hold_less(live: Live) -> None:
    """Of four places in a queue the flood holds three; each time that the fourth is free it is somebody's turn."""
    anna, ben = {"gpus": 8, "user": "anna"}, {"gpus": 8, "user": "ben"}
    held = [await live.submit(job(f"long-{number}", seconds=LONG, **anna)) for number in range(4)]
    for each in held:
        await live.until_phase(each.job_id, "running")
    flood = [await live.submit(job(f"flood-{number}", **anna)) for number in range(12)]
    her_colleague = [await live.submit(job(f"few-{number}", **ben)) for number in range(3)]
    others = [await live.submit(job(f"other-{number}", gpus=8), "ops") for number in range(5)]
    due = {each.job_id for each in (*flood, *her_colleague, *others)}
    await live.until(lambda state: all(state.jobs.get(each) is not None for each in due), "all wait")
    said = await live.command("explain", flood[0].job_id, "--as", "operator")
    assert "5 of tenants that hold less for their weight" in " ".join(said.out.split())
    await live.clients["lab"].cancel(held[0].job_id)
    await live.until_ended(*due)
    order = [each for each in allocated(live) if each in due]
    assert set(order[:5]) == {each.job_id for each in others}
    assert set(order[5:8]) == {each.job_id for each in her_colleague}
    for each in held[1:]:
        await live.clients["lab"].cancel(each.job_id)
    await assert_all_is_well(live)


@asynccontextmanager
async def exporters(live: Live, busy: str) -> AsyncIterator[str]:
    """The exporter of each node, on one port: the pods of the job `busy` use their GPUs, all others do not."""

    async def answer(request: web.Request) -> web.Response:
        lines = [
            f'{METRIC}{{gpu="{gpu}",namespace="lab",pod="{run.run_id}-{place.rank}"}} {80 * (run.job_id == busy)}\n'
            for run in live.state.runs.values()
            for place in run.placements
            if place.node == request.match_info["node"]
            for gpu in place.devices
        ]
        return web.Response(text="".join(lines))

    app = web.Application()
    app.router.add_get("/{node}/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/{{node}}/metrics"
    finally:
        await runner.cleanup()


async def test_by_the_nodes_own_exporters_an_idle_run_is_told_of_and_no_other(live: Live) -> None:
    works = await live.submit(job("works", gpus=8, seconds=LONG))
    allowed = await live.submit(job("session", gpus=8, seconds=LONG, idle=JobIdle(allow_idle=True)))
    idle = await live.submit(job("idle", gpus=4, seconds=LONG))
    jobs = [works.job_id, allowed.job_id, idle.job_id]
    for each in jobs:
        await live.until_phase(each, "running")

    async with live.down("reclamation"), exporters(live, works.job_id) as url:
        settings = {"TESSERA_UTILISATION_EXPORTER": url, "TESSERA_UTILISATION_SECONDS": "1"}
        async with live.another("reclamation", **settings) as measuring:
            await measuring.until_ready()
            await live.until(lambda _: bool(warned(live)), "an idle run is warned about")
            await eventually(lambda: is_measured(measuring), "the metric says so, too")
            said = await asyncio.gather(*(live.command("explain", each, "--as", "operator") for each in jobs))
            await live.clients["lab"].cancel(works.job_id)
            await eventually(lambda: is_used(live, works.job_id), "how much of its GPUs worked is known at its end")
    assert warned(live) == [f"{idle.job_id}-1"]
    slots = " ".join((await live.command("slots", "--as", "operator")).out.split())
    assert "4 more are held, but 1 run uses none of theirs" in slots
    await eventually(lambda: is_in_top(live), "the overview says whose it is")
    assert ["holds GPUs and uses none" in " ".join(one.out.split()) for one in said] == [False, False, True]
    assert "It may hold GPUs and use none (idle.allow_idle)." in " ".join(said[1].out.split())
    for each in jobs[1:]:
        await live.clients["lab"].cancel(each)
    await assert_all_is_well(live)


async def is_used(live: Live, job_id: str) -> bool:
    """All eight GPUs, at 80 percent of the time that was measured."""
    told = " ".join((await live.command("get", job_id, "--as", "operator")).out.split())
    return "8 GPUs held" in told and "8 were used (80 % of" in told


async def is_in_top(live: Live) -> bool:
    """In the views, which may be a moment behind the ledger."""
    lines = (await live.command("top", "--once", "--as", "operator")).out.splitlines()
    told = [after.split() for line, after in pairwise(lines) if line.startswith("WARNED OF USING NONE")]
    return [(row[0], row[-1]) for row in told] == [("lab", "4")]


async def is_measured(reclamation: Instance) -> bool:
    """The idle job's four GPUs, and the eight of the job that may be idle."""
    url = f"http://127.0.0.1:{int(reclamation.port_file.read_text())}/metrics"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        lines = (await answer.text()).splitlines()
    held = [line for line in lines if line.startswith("tessera_held_idle_gpus{") and 'tenant="lab"' in line]
    return [line.split()[-1] for line in held] == ["12.0"]
