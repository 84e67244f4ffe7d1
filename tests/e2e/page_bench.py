"""
How smooth the page is on a large cluster: `make bench-page`, or `python -m tests.e2e.page_bench`.

A gateway of this process before views in memory: NODES nodes of eight GPUs, JOBS jobs of which a part runs. Chromium
shows the page as an operator. Printed as JSON: time to the first paint and to all nodes drawn, time from an event to
the change on the page, what one update costs the browser's main thread, and memory before and after as many events as
an hour has at PER_SECOND, replayed faster. Then the pages Queue, with a whole order in line, and History: time to all
rows drawn, and CPU of the main thread and of this process for one reading while events come.
"""

import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
from playwright.async_api import CDPSession, Page, async_playwright

from tessera.kernel.memory.store import MemoryStore
from tessera.kernel.ports import Change, Outgoing
from tessera_schemas import subjects
from tessera_schemas.shard.orders import HEADS_MAX
from tessera_schemas.views import JobView, NodeView
from tessera_schemas.work.placement import Placement
from tests.builders import SHARD, admitted, job_spec, role
from tests.unit.gateway.gateway_world import World, a_world

NODES, GPUS, JOBS, PER_SECOND = 1000, 8, 10_000, 10
RUNNING = 4 * NODES  # of two GPUs each: every node is full
UPDATES = 5
PAGES = {
    "queue": ("v1/line", "tbody tr:nth-child(512)"),
    "history": ("v1/usage", '[aria-label^="Time in which jobs waited"] tbody tr'),
}
"""By name: what one reading of the page asks for once, and what is there when all is drawn."""
WATCHED_SECONDS = 20
TYPE = "job.running.v1"
BUSY = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")


def node(number: int, free: int = 0) -> NodeView:
    """A node of which so many GPUs are free, the last ones."""
    slots = (0,) * (GPUS - free) + (1000,) * free
    return NodeView(name=f"gpu-{number:04}", pool="default", ready=True, gpus=GPUS, gpu_free=slots, gpu_model="H100")


def job(number: int, now: int) -> JobView:
    """The first run on two GPUs each; the others wait."""
    runs = number < RUNNING
    at = 2 * (number % 4)
    place = Placement(node=f"gpu-{number // 4:04}", role="worker", rank=0, devices=(at, at + 1), gpu_milli=1000)
    return JobView(
        job_id=f"{number:020}",
        tenant=f"tenant-{number % 20}",
        queue="default",
        name=f"train-{number}",
        key=str(number),
        phase="running" if runs else "queued",
        priority=0,
        attempt=1,
        pods=1,
        gpu_milli=2000,
        submitted_ts=now - number * 100,
        started_ts=now if runs else 0,
        placements=(place,) if runs else (),
    )


async def show(world: World, *, changed: int | None = None) -> None:
    """Views of the cluster; of `changed` one GPU is free."""
    now = world.clock.now_ms()
    nodes = [node(number, free=int(number == changed)) for number in range(NODES)]
    jobs = [job(number, now) for number in range(JOBS)]
    rows = [Change("nodes", each.name, each.to_bytes()) for each in nodes]
    rows += [Change("jobs", each.job_id, each.to_bytes()) for each in jobs]
    await MemoryStore(world.views).replace(world.clock.now_ms(), rows)


def tell(world: World, number: int) -> None:
    """An event of a job, as projection publishes it."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    data = {"job_id": f"{number % JOBS:020}", "name": f"train-{number % JOBS}", "queue": "default", "phase": "running"}
    event = {"type": f"io.tessera.{TYPE}", "id": str(number), "time": at, "tenant": "tenant-0", "data": data}
    world.broker.store(Outgoing(subjects.event(SHARD, "tenant-0", "default", TYPE), orjson.dumps(event)))


async def metrics(session: CDPSession) -> dict[str, float]:
    """The browser's own figures: seconds of CPU of the main thread, bytes of its heap, elements."""
    found = await session.send("Performance.getMetrics")
    return {each["name"]: each["value"] for each in found["metrics"]}


async def memory(session: CDPSession) -> tuple[float, int]:
    """MB of the heap after a collection, and elements."""
    await session.send("HeapProfiler.collectGarbage")
    found = await metrics(session)
    return round(found["JSHeapUsedSize"] / 2**20, 1), int(found["Nodes"])


async def updated(world: World, page: Page, number: int) -> float:
    """Seconds from an event, with a node changed, until the page shows the change."""
    await show(world, changed=number)
    began = time.perf_counter()
    tell(world, number)
    label = f'[data-node="gpu-{number:04}"][aria-label*="1 of 8 GPUs wholly free"]'
    await page.wait_for_selector(label, timeout=60_000)
    return time.perf_counter() - began


async def line_up(world: World) -> None:
    """As many jobs wait as an order names, of which none fits."""
    for batch in range(0, HEADS_MAX, 64):
        specs = [job_spec(role(gpus=8, replicas=9), name=f"waits-{number}") for number in range(batch, batch + 64)]
        await world.commit(*(admitted(spec.name, spec) for spec in specs))
    await world.commit(orders=(world.committed.line(),))


async def read_again(world: World, page: Page, session: CDPSession, name: str) -> dict[str, float]:
    """Milliseconds until the page is drawn, and of CPU for one reading while events come."""
    once, drawn = PAGES[name]
    await page.goto(f"http://127.0.0.1:{world.port}/ui#/{name}")
    await page.reload()
    await page.wait_for_selector(drawn, timeout=60_000)
    until_drawn = await page.evaluate("performance.now()")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    before, spent = await metrics(session), time.process_time()
    for number in range(WATCHED_SECONDS):
        tell(world, number)
        await asyncio.sleep(1)
    after = await metrics(session)
    readings = sum(once in url for url in asked)
    figures = {"drawn_ms": round(until_drawn), "readings": readings}
    cpu = {"main_thread": after["TaskDuration"] - before["TaskDuration"], "gateway": time.process_time() - spent}
    return figures | {f"{who}_cpu_ms_per_reading": round(1000 * used / readings) for who, used in cpu.items()}


async def measure(world: World, page: Page, session: CDPSession) -> dict[str, Any]:
    """Every figure, in the order of the module's text."""
    url = f"http://127.0.0.1:{world.port}/ui"
    await page.goto(url)
    await page.evaluate("token => sessionStorage.setItem('tessera-token', token)", world.token(None))
    await asyncio.sleep(2.5)  # a new token counts within two seconds
    await page.reload()
    await page.wait_for_selector(f'[data-node="gpu-{NODES - 1:04}"]', timeout=60_000)
    drawn = await page.evaluate("performance.now()")
    paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    spent = await metrics(session)
    figures: dict[str, Any] = {"first_paint_ms": round(paint), "all_nodes_drawn_ms": round(drawn)}
    figures["main_thread_cpu_ms_until_drawn"] = {name: round(1000 * spent[name]) for name in BUSY}
    await asyncio.sleep(5)
    before = await metrics(session)
    waits = sorted([await updated(world, page, number) for number in range(UPDATES)])
    after = await metrics(session)
    busy = {name: (after[name] - before[name]) / UPDATES for name in BUSY}
    figures |= {"update_seconds_median": round(waits[len(waits) // 2], 2), "update_seconds_most": round(waits[-1], 2)}
    figures["main_thread_cpu_ms_per_update"] = {name: round(1000 * value) for name, value in busy.items()}
    heap, elements = await memory(session)
    events = 3600 * PER_SECOND
    began = time.perf_counter()
    for number in range(events):
        tell(world, number)
        if number % 200 == 199:
            await asyncio.sleep(0.25)
    await asyncio.sleep(5)
    heap_after, elements_after = await memory(session)
    await page.goto(f"{url}#/events")
    await page.wait_for_selector("#events li")
    figures |= {"events": events, "events_replayed_in_s": round(time.perf_counter() - began)}
    figures |= {"heap_mb": [heap, heap_after], "elements": [elements, elements_after]}
    return figures | {name: await read_again(world, page, session, name) for name in PAGES}


async def main() -> None:
    """Raises RuntimeError where there is no browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise RuntimeError("chromium: not found; `make chromium` installs it")
    with tempfile.TemporaryDirectory() as home:
        world = await a_world(Path(home))
        async with (
            world.gateway(requests_per_second=1000, requests_burst=1000, views_seconds=60),
            async_playwright() as playwright,
        ):
            await line_up(world)
            await show(world)
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = await browser.new_page(viewport={"width": 1920, "height": 1080})
            session = await page.context.new_cdp_session(page)
            await session.send("Performance.setTimeDomain", {"timeDomain": "threadTicks"})  # CPU, not the clock's time
            await session.send("Performance.enable")
            figures = await measure(world, page, session)
            await browser.close()
    json.dump({"nodes": NODES, "gpus": NODES * GPUS, "jobs": JOBS, **figures}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    asyncio.run(main())
