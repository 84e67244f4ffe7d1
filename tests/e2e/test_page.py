"""The page at /ui in a real browser, on real servers: what a person sees, and what they never do."""

import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Route, async_playwright, expect

from tessera.domain.state import State
from tessera.kernel.clock import SystemClock
from tessera_schemas.config import Limits, Policy, Queue, Quota
from tessera_schemas.job import DatasetHint, JobSpec, Retry
from tessera_schemas.work.arrays import JobArray, ServiceSize
from tests.e2e.lasting import finish, lasting
from tests.e2e.live import GPUS, SMALL, TENANTS, Live, configuration, eventually
from tests.e2e.live import job as unlimited

DAY_MS = 86_400_000

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: `make chromium` installs it"),
]
SECONDS = 60.0
expect.set_options(timeout=SECONDS * 1000)
POLICY = Policy(backfill="reserve", preset="priority", min_runtime_seconds=0)
ASKED = """async ([method, path, body]) => {
    const Authorization = `Bearer ${sessionStorage.getItem("tessera-token")}`;
    const headers = { Authorization, "Content-Type": "application/json" };
    const answer = await fetch(path, { method, headers, body: body ?? undefined });
    return [answer.status, (await answer.json()).code];
}"""
LIMIT_SECONDS = 600
"""Of jobs: they end before the room that is kept for the large job begins, so that they pass it."""
HELD_SECONDS = 3000
"""How long the jobs run that all tests of this file share: longer than the file may take on a busy machine."""
PAGES = ("Now", "Queue", "Jobs", "Services", "Data", "History", "Events")


def job(name: str = "job", **more: Any) -> JobSpec:
    """A job with a time limit, unless it is said to have another."""
    return unlimited(name, **{"time_limit_seconds": LIMIT_SECONDS} | more)


def is_told_why(state: State, job_id: str) -> bool:
    known = state.jobs.get(job_id)
    return known is not None and known.reason is not None


def all_gpus(queue: str) -> Queue:
    return Queue(name=queue, quotas=(Quota(resource="gpu_milli", nominal=GPUS * 1000),))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """One job that holds GPUs of each tenant, and one that waits for more than there are."""
    body = configuration(queues=(all_gpus("default"), all_gpus("batch")), policy=POLICY)
    async with Live.at(tmp_path_factory.mktemp("platform"), body, layout=SMALL) as live:
        await live.until_nodes_are_known()
        runs_on = {"seconds": HELD_SECONDS, "time_limit_seconds": HELD_SECONDS}
        specs = {tenant: job(f"runs-of-{tenant}", gpus=4, **runs_on) for tenant in TENANTS}
        runs = [await live.submit(spec, tenant) for tenant, spec in specs.items()]
        for run in runs:
            await live.until_phase(run.job_id, "running")
        waits = await live.submit(job("waits-of-lab", gpus=8, replicas=4), "lab")
        await live.until(lambda state: is_told_why(state, waits.job_id), "the large job is told why it waits")
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        made = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        await made.close()


def answering(items: list[dict[str, Any]]) -> Callable[[Route], Awaitable[None]]:
    """Answers every request with these items."""

    async def answer(route: Route) -> None:
        await route.fulfill(json={"as_of": 1, "items": items, "next": None})

    return answer


@asynccontextmanager
async def signed_in(
    browser: Browser, live: Live, tenant: str = "", width: int = 1280, height: int = 800
) -> AsyncIterator[Page]:
    """A page of somebody with a token of the tenant, or the operator's; an error in its console fails the test."""
    said = await live.command("token", "new", *([tenant] if tenant else ["--operator"]))
    context = await browser.new_context(viewport={"width": width, "height": height})
    page = await context.new_page()
    page.set_default_timeout(SECONDS * 1000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    token, asked = said.out.strip().splitlines()[0], list[str]()
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"{live.platform.gateway_url}/ui")
    await until_taken(live, token)
    await page.get_by_label("Token").fill(token)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
    yield page
    assert not errors
    assert all(url.startswith(live.platform.gateway_url) and token not in url for url in asked)
    assert not await context.cookies()  # what no browser sends by itself, no other site can use
    await context.close()


async def until_taken(live: Live, token: str) -> None:
    """The gateway has read of a new token."""

    async def taken() -> bool:
        url, headers = f"{live.platform.gateway_url}/v1/jobs", {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as answer:
            return answer.status == 200

    await eventually(taken, "the gateway takes the new token")


async def test_the_first_page_shows_nodes_who_holds_their_gpus_and_what_is_free(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live) as page:
        tiles = page.locator(".mosaic .node")
        await expect(tiles).to_have_count(4)
        held = [await tiles.nth(at).get_attribute("aria-label") or "" for at in range(4)]
        assert sum("runs-of-lab" in label for label in held) == 1
        assert sum("8 of 8 GPUs wholly free" in label for label in held) >= 2
        await expect(page.locator(".tiles")).to_contain_text("8 / 32")
        queues = page.get_by_role("region", name="Queues: what waits, what is live, and how much of the quota is used")
        await expect(queues.get_by_role("row").filter(has_text="default")).to_contain_text("8 of 32")
        await page.get_by_role("button", name="runs-of-lab").click()
        await expect(page.get_by_role("dialog")).to_contain_text("runs-of-lab")


async def test_reservations_are_a_calendar_and_a_table(browser: Browser, live: Live) -> None:
    listed, now = re.compile("/v1/reservations$"), SystemClock().now_ms()
    windows = [{"start_ts": now + day * DAY_MS, "end_ts": now + day * DAY_MS + 7_200_000} for day in (1, 8, 40)]
    kept = {"pool": "default", "nodes": ["gpu-0"], "gpus": 8, "booked_ts": now, "is_now": False, "windows": windows}
    demo = {**kept, "name": "demo", "who": ["lab"], "missing": ["gpu-0"], "why": "<b>board</b>", "windows": windows[:1]}
    fans = {**kept, "name": "fans-of-a-rack-with-a-long-name", "is_maintenance": True}

    async def with_reservations(route: Route) -> None:
        await route.fulfill(json={"as_of": 1, "items": [demo, fans]})

    async with signed_in(browser, live) as page:
        await expect(page.locator(".mosaic .node")).to_have_count(4)
        await expect(page.get_by_role("heading", name="Reservations")).to_have_count(0)
        await page.route(listed, with_reservations)
        rows = page.get_by_role("region", name="Reservations of nodes").get_by_role("row")
        await expect(rows).to_have_count(3)
        cells = rows.filter(has_text="demo").get_by_role("cell")
        await expect(cells.nth(8)).to_have_text("gpu-0")
        await expect(cells.nth(9)).to_have_text("<b>board</b>")
        bars = page.get_by_role("region", name="Calendar of reservations").locator("rect")
        await expect(bars).to_have_count(3)  # the last window is later than the calendar
        await is_accessible(page, 1280)
        await page.unroute(listed)


async def test_how_quotes_held_is_a_picture_and_a_table(browser: Browser, live: Live) -> None:
    listed = re.compile("/v1/quotes/scores$")
    held = {"held_by_50": 512, "held_by_80": 800, "held_by_95": 951, "held_in_80": 790, "held_in_95": 940}
    errors = {"error_ms": 60_000, "naive_ahead_ms": 240_000, "naive_running_ms": 180_000, "naive_class_ms": 150_000}
    empty = {"pool": "new", "quotes": 0, **dict.fromkeys([*held, *errors], 0)}

    async def with_scores(route: Route) -> None:
        await route.fulfill(
            json={"as_of": 1, "ts": 1, "items": [{"pool": "default", "quotes": 40, **held, **errors}, empty]}
        )

    async with signed_in(browser, live) as page:
        await expect(page.locator(".mosaic .node")).to_have_count(4)
        await page.route(listed, with_scores)
        rows = page.get_by_role("region", name="Quotes of the last weeks").get_by_role("row")
        await expect(rows).to_have_count(2)  # a pool of which nothing is scored yet is left out
        cells = rows.filter(has_text="default").get_by_role("cell")
        await expect(cells).to_have_text(
            ["default", "40", "51.2 %", "80 %", "95.1 %", "79 %", "94 %", "1m0s", "4m0s", "3m0s", "2m30s"]
        )
        picture = page.get_by_role("region", name="Scores of quotes of pool default")
        await expect(picture.locator("rect.part")).to_have_count(9)
        await expect(picture.locator("rect.saved")).to_have_count(5)
        await is_accessible(page, 1280)
        await page.unroute(listed)


async def test_the_line_and_a_job_say_by_when_it_starts_with_which_chance(browser: Browser, live: Live) -> None:
    quote = {f"by_{chance}_ts": SystemClock().now_ms() + chance * 60_000 for chance in (10, 50, 80, 95)}
    quote |= {"ts": 1, "evicted_permille": 25, "words": "in 50m (50 %), by 1h20m (80 %), by 1h35m (95 %)"}

    async def with_quotes(route: Route) -> None:
        said = await (await route.fetch()).json()
        for place in said.get("items", ()):
            place |= {"quote": quote} if place["name"] == "waits-of-lab" else {}
        await route.fulfill(json=said if "items" in said else said | {"quote": quote})

    async with signed_in(browser, live, "lab") as page:
        await page.route(re.compile("/v1/line$|/v1/jobs/[a-z2-7]{20}$"), with_quotes)
        await page.get_by_role("link", name="Queue").click()
        line = page.get_by_role("row").filter(has_text="waits-of-lab")
        await expect(line).to_contain_text("in 50m (50 %), by 1h20m (80 %), by 1h35m (95 %)")
        await expect(line).to_contain_text("2.5 % of such runs are stopped for others")
        await line.get_by_role("link").first.click()
        starts = page.get_by_role("row", name="Starts in 50m")
        await expect(starts).to_contain_text("by 1h20m (80 %)")
        await page.unroute(re.compile("/v1/line$|/v1/jobs/[a-z2-7]{20}$"))


async def test_sick_nodes_are_listed_with_what_is_wrong_who_says_so_and_what_is_done(
    live: Live, browser: Browser
) -> None:
    listed = re.compile("/v1/nodes$")

    async def with_sick_ones(route: Route) -> None:
        said = await (await route.fetch()).json()
        first, second = said["items"][:2]
        assert first["ailments"] == []
        ailment = {"cause": "gpu_lost", "device": "GPU-3", "evidence": "XID 79"}
        known = {"source": "dcgm", "ailment": ailment, "since_ts": 1_700_000_000_000}
        first |= {"ailments": [known], "drained": True, "drained_by": "health", "fence": "asked"}
        first |= {"test": {"job_id": "a" * 20, "since_ts": 1_700_000_000_000, "failures": 1}}
        mild = {"cause": "reported", "device": "", "evidence": "<b>fans</b>"}
        second |= {"ailments": [{**known, "source": "rack-agent", "ailment": mild}], "health_held_back": True}
        second |= {"test": {"job_id": "b" * 20, "since_ts": 1, "ended_ts": 1_700_000_000_000, "outcome": "passed"}}
        await route.fulfill(json=said)

    async with signed_in(browser, live) as page:
        heading = page.get_by_role("heading", name="Nodes that are not well")
        await expect(page.locator(".mosaic .node")).to_have_count(4)
        await expect(heading).to_have_count(0)
        await page.route(listed, with_sick_ones)
        await expect(heading).to_be_visible()
        rows = page.get_by_role("region", name="What is wrong with nodes").get_by_role("row")
        lost = rows.filter(has_text="dcgm").get_by_role("cell")
        await expect(lost.nth(1)).to_have_text("a GPU does not answer any more (XID 79)")
        await expect(lost.nth(4)).to_have_text("GPU-3: XID 79")
        await expect(lost.nth(5)).to_have_text("takes nothing new; the fencing webhook: asked")
        await expect(lost.nth(6)).to_have_text(
            re.compile(r"^under test since .+, its job; before: 0 passed, 1 failed$")
        )
        await expect(lost.nth(6).get_by_role("link")).to_have_attribute("href", f"#/jobs/{'a' * 20}")
        mild = rows.filter(has_text="rack-agent").get_by_role("cell")
        await expect(mild.nth(4)).to_have_text("<b>fans</b>")
        await expect(mild.nth(5)).to_have_text("held back: too many of its pool are out")
        await expect(mild.nth(6)).to_have_text(re.compile("^passed .+, its job$"))
        await is_accessible(page, 1280)
        await page.unroute(listed)


async def test_devices_of_a_class_are_shown_with_their_node_and_the_quota_of_their_queue(
    live: Live, browser: Browser
) -> None:
    async def with_nics(route: Route) -> None:
        answer = await (await route.fetch()).json()
        for item in answer["items"]:
            if "quotas" in item:
                item["quotas"] = [
                    *item["quotas"],
                    {"resource": "class:dra.net", "flavor": "", "nominal": 16, "used": 14},
                ]
            else:
                item["device_classes"] = [["dra.net", 8, 3, 2]]
        await route.fulfill(json=answer)

    async with signed_in(browser, live) as page:
        for path in ("nodes", "queues"):
            await page.route(f"**/v1/{path}*", with_nics)
        queues = page.get_by_role("region", name="Queues: what waits, what is live, and how much of the quota is used")
        await expect(queues.get_by_role("row").filter(has_text="default")).to_contain_text("dra.net 14 of 16")
        await page.get_by_role("button", name="runs-of-lab").click()
        await expect(page.get_by_role("dialog")).to_contain_text("8 devices of class dra.net, 3 taken, 2 tainted")


async def test_the_page_of_a_job_names_the_devices_of_each_pod_by_their_class(live: Live, browser: Browser) -> None:
    async def with_cards(route: Route) -> None:
        body = await (await route.fetch()).json()
        drawn = {"claim": "net", "request": "card", "driver": "nic.example.com", "pool": "gpu-1", "capacity": []}
        devices = [drawn | {"device": "card-0", "admin": False}, drawn | {"device": "card-1", "admin": True}]
        body["job"]["placements"] = [each | {"drawn": devices} for each in body["job"]["placements"]]
        body["job"]["claimed"] = [["worker", "net", "card", "dra.net"]]
        await route.fulfill(json=body)

    async with signed_in(browser, live, "lab") as page:
        await page.route(re.compile("/v1/jobs/[a-z2-7]{20}$"), with_cards)
        await show_job(page, "runs-of-lab")
        pods = page.get_by_role("region", name="Pods of attempt 1, their GPUs by number, and devices by class")
        told = "dra.net: nic.example.com/gpu-1/card-0, dra.net: nic.example.com/gpu-1/card-1 (admin)"
        await expect(pods.get_by_role("row").nth(1)).to_contain_text(told)
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


async def test_a_page_over_a_dead_scheduler_says_so_and_as_of_which_record_it_is(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live) as page:
        banner, status = page.locator("#banner"), page.get_by_role("status")
        await expect(banner).to_be_hidden()
        async with live.down("scheduler"):
            await expect(banner).to_contain_text("no scheduler leads")
            said = await live.command("status", "-o", "json")
            assert (said.code, said.json["led"]) == (1, False)
            when = await page.evaluate("(ts) => new Date(ts).toLocaleTimeString()", said.json["ledger_ts"])
            await expect(status).to_have_text(
                re.compile(rf"^As of {re.escape(when)} \(times in .+\), record {said.json['ledger_n']}$")
            )
        await expect(banner).to_be_hidden(timeout=SECONDS * 1000)


async def test_idle_gpus_stand_in_a_legend_by_cause_with_counts(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live) as page:
        legend = page.get_by_role("list", name="Where the GPUs are")
        await expect(legend).to_contain_text("8 held by jobs")
        await expect(legend).to_contain_text("24 free: all that waits lacks its queue's quota")
        await expect(page.get_by_role("row").filter(has_text="in one node")).to_have_count(4)
        empty = page.get_by_role("button", name="8 of 8 GPUs wholly free").first
        drained = await empty.get_attribute("data-node") or ""
        await live.command("drain", drained, "--why", "a fan")
        try:
            await expect(legend).to_contain_text("8 on nodes that are not ready, or drained")
            tile = page.locator(f'[data-node="{drained}"]')
            # Nodes and idle GPUs are two lists, of which one may be a record older; the dialog says what the tile does.
            await expect(tile).to_have_attribute("aria-label", re.compile("drained a fan"))
            await tile.press("Enter")
            await expect(page.get_by_role("dialog")).to_contain_text("drained a fan")
            await page.keyboard.press("Escape")
        finally:
            await live.command("undrain", drained)
        await expect(legend).to_contain_text("24 free: all that waits")


async def test_the_queue_page_says_who_is_next_and_why_it_waits(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live) as page:
        await page.get_by_role("link", name="Queue").click()
        row = page.get_by_role("row").filter(has_text="waits-of-lab")
        await expect(row).to_contain_text("its queue's quota is used up")
        await row.get_by_role("link").click()
        await expect(page.get_by_role("heading", name="waits-of-lab")).to_be_visible()
        await expect(page.locator("main")).to_contain_text("Place 1 of 1 in line.")
        await expect(page.locator(".story")).to_contain_text("job.admitted")


@asynccontextmanager
async def waiting(live: Live, *specs: JobSpec) -> AsyncIterator[list[str]]:
    """Jobs of tenant lab that wait, with their reasons told; cancelled afterwards."""
    sent = [(await live.submit(spec, "lab")).job_id for spec in specs]
    try:
        for one in sent:
            await live.until(lambda state, one=one: is_told_why(state, one), "a job is told why it waits")
        yield sent
    finally:
        for one in sent:
            await live.clients["lab"].cancel(one)
        await live.until_ended(*sent)


async def test_an_expected_start_is_shown_where_room_is_kept_and_nowhere_else(live: Live, browser: Browser) -> None:
    gangs = [job(f"gang-{number}", gpus=6, replicas=4, seconds=600) for number in (1, 2)]
    async with waiting(live, *gangs), signed_in(browser, live, "lab") as page:
        await page.get_by_role("link", name="Queue").click()
        first, second = (page.get_by_role("row").filter(has_text=spec.name) for spec in gangs)
        head = page.get_by_role("row").filter(has_text="waits-of-lab")
        await expect(head).to_contain_text("by the time limits of runs")
        await expect(head).to_contain_text(re.compile(r"in \d+m\d+s"))
        for behind in (first, second):  # until their first quote is drawn
            await expect(behind).to_contain_text(re.compile(r"not known|\(50 %\)"))
            await expect(behind).not_to_contain_text("by the time limits of runs")


async def test_the_queue_is_searched_filtered_and_shows_mine_first_and_remembers_that(
    live: Live, browser: Browser
) -> None:
    specs = [job(f"of-{user}", gpus=8, replicas=4, user=user) for user in ("ada", "bob")]
    async with (
        waiting(live, *specs, job("in-batch", queue="batch", gpus=8, replicas=4)),
        signed_in(browser, live, "lab") as page,
    ):
        await page.get_by_role("link", name="Queue").click()
        rows = page.get_by_role("row")
        await expect(page.get_by_label("Mine first")).to_be_checked()  # a tenant's own jobs, as `squeue --me` has it
        await expect(rows.nth(1)).to_contain_text("in-batch")  # its queue holds nothing yet
        await page.get_by_label("I am").select_option("bob")
        await expect(rows.nth(1)).to_contain_text("of-bob")
        await page.reload()
        await expect(rows.nth(1)).to_contain_text("of-bob")
        await page.get_by_label("Mine first").focus()
        await page.keyboard.press("Space")
        await expect(rows.nth(1)).to_contain_text("in-batch")
        await page.reload()
        await expect(page.get_by_label("Mine first")).not_to_be_checked()
        link = page.get_by_role("link", name="of-bob")
        await link.focus()
        async with waiting(live, job("comes-later", gpus=8, replicas=4)):
            await expect(page.get_by_role("link", name="comes-later")).to_be_visible()
            await expect(link).to_be_focused()
        await page.get_by_label("Job, queue, tenant or user").fill("ADA")
        await expect(rows).to_have_count(2)
        await page.get_by_label("Job, queue, tenant or user").fill("")
        await page.get_by_label("Queue", exact=True).select_option("batch")
        await expect(rows).to_have_count(2)
        await expect(rows.nth(1)).to_contain_text("in-batch")


async def test_all_jobs_are_searched_and_filtered_by_keyboard_and_older_ones_are_asked_for(
    live: Live, browser: Browser
) -> None:
    specs = [job(f"seek-{user}", gpus=8, replicas=4, user=user) for user in ("eve", "fay")]
    async with (
        waiting(live, *specs, job("seek-night", queue="batch", gpus=8, replicas=4)),
        signed_in(browser, live, "lab", width=360) as page,
    ):
        # A page of one job: what a shard with hundreds of jobs does with pages of 200.
        await page.route(
            re.compile("limit=200"), lambda route: route.continue_(url=route.request.url.replace("=200", "=1"))
        )
        await page.get_by_role("link", name="Jobs").click()
        rows, search = page.get_by_role("row"), page.get_by_label("Job, queue, tenant or user")
        await expect(rows).to_have_count(1 + 5)
        await page.get_by_role("button", name="Show older jobs").press("Enter")
        await expect(rows).not_to_have_count(1 + 5)
        await search.focus()
        await page.keyboard.type("SEEK")
        await expect(rows).to_have_count(1 + len(specs) + 1)
        await expect(search).to_be_focused()
        await expect(page.get_by_role("region", name="3 jobs of those searched for")).to_be_visible()
        await is_accessible(page, 360)
        await page.get_by_label("Queue", exact=True).select_option("batch")
        await expect(rows.nth(1)).to_contain_text("seek-night")
        await expect(rows).to_have_count(2)
        await page.get_by_label("Phase").select_option("succeeded")
        await expect(rows).to_have_count(1)
        await page.get_by_label("Phase").select_option("")
        await page.get_by_label("Queue", exact=True).select_option("")
        await search.fill("fay")
        await expect(rows.nth(1)).to_contain_text("seek-fay")
        await expect(rows).to_have_count(2)


async def test_what_a_person_asks_for_is_not_kept_waiting_by_the_pause_between_readings(
    live: Live, browser: Browser
) -> None:
    async with signed_in(browser, live, "lab") as page:
        await page.add_init_script("window.setTimeout = () => 1")  # no pause that has begun ever ends
        await page.reload()
        await page.get_by_role("link", name="Jobs").click()
        await expect(page.get_by_role("link", name="runs-of-lab")).to_be_visible()
        await page.get_by_label("Job, queue, tenant or user").press_sequentially("waits")
        await expect(page.get_by_role("link", name="waits-of-lab")).to_be_visible()
        await expect(page.get_by_role("link", name="runs-of-lab")).to_have_count(0)


async def test_what_has_happened_and_what_happens_is_shown_without_a_reload(live: Live, browser: Browser) -> None:
    await live.until_ended((await live.submit(job("went-before", gpus=1, seconds=0.2), "lab")).job_id)
    async with signed_in(browser, live) as page:
        await page.get_by_role("link", name="Events").click()
        stored = page.locator("#events li").filter(has_text="job.succeeded")
        await expect(stored.filter(has_text="went-before")).to_have_count(1)
        passes = (await live.submit(job("passes-by", gpus=1, seconds=0.2), "lab")).job_id
        await expect(stored.filter(has_text="passes-by")).to_contain_text("passes-by lab, default")
        for sought, count in ((f'JOB.SUCCEEDED.V1",{{"JOB_ID":"{passes.upper()}"', 1), ("tenant-nobody", 0)):
            await page.get_by_label("Text in the event").fill(sought)
            await expect(page.locator("#events li")).to_have_count(count)
            await expect(page.locator("main")).to_contain_text(f"{count} of ")
        await page.get_by_role("link", name="Jobs").click()
        await expect(page.get_by_role("row").filter(has_text="passes-by")).to_contain_text("succeeded")


async def show_job(page: Page, name: str) -> None:
    await page.get_by_role("link", name="Jobs").click()
    await page.get_by_role("row").filter(has_text=name).get_by_role("link").click()
    await expect(page.get_by_role("heading", name=name)).to_be_visible()


async def test_services_are_listed_with_what_they_keep_and_why_some_replicas_are_missing(
    live: Live, browser: Browser
) -> None:
    size = ServiceSize(min_replicas=1, max_replicas=3, replicas=2)
    serves = job("serves", gpus=8, time_limit_seconds=None, service=size)
    async with waiting(live, serves) as (sent,), signed_in(browser, live, "lab") as page:
        await page.get_by_role("link", name="Services").click()
        mine = page.get_by_role("row").filter(has_text="service/serves")
        cells = mine.get_by_role("cell")
        for at, text in enumerate(("service/serves", "lab", "default", "1", "2", "3", "0", "1", "0 of 1", "0")):
            await expect(cells.nth(at)).to_have_text(text)
        await live.clients["lab"].hold(sent)
        await expect(cells.last).to_have_text(re.compile(r"^Below its minimum\. it is held"))
        other = {"name": "Deployment/chat", "tenant": "lab", "queue": "batch", "job_id": "", "max_replicas": 0}
        other |= {"min_replicas": 2, "replicas": 5, "running": 4, "guaranteed": 2, "gpu_milli": 4500, "why": ""}
        rolls = {**other, "name": "service/rolls", "running": 5, "revision": 3, "renewed": 2, "rollout": "stopped"}
        await page.route(re.compile("/v1/services$"), answering([other, rolls]))
        stopped = page.get_by_role("row").filter(has_text="service/rolls").get_by_role("cell")
        await expect(stopped.nth(7)).to_have_text("3: 2 of 5, stopped")
        own = page.get_by_role("row").filter(has_text="Deployment/chat").get_by_role("cell")
        for at, text in enumerate(("2", "5", "–", "4", "–", "2 of 2", "4.5", "Its replicas are starting."), start=3):
            await expect(own.nth(at)).to_have_text(text)
        await is_accessible(page, 1280)
        await page.unroute(re.compile("/v1/services$"))
        await mine.get_by_role("link").click()
        await expect(page.get_by_role("heading", name="serves")).to_be_visible()


async def test_a_service_is_scaled_by_keyboard_once_it_is_said_what_comes_of_it(live: Live, browser: Browser) -> None:
    size = ServiceSize(min_replicas=1, max_replicas=3, replicas=2)
    serves = job("scales", gpus=8, time_limit_seconds=None, service=size)
    async with waiting(live, serves) as (sent,), signed_in(browser, live, "lab") as page:
        await page.goto(f"{live.platform.gateway_url}/ui#/jobs/{sent}")
        await page.get_by_role("button", name="Scale…").press("Enter")
        box, number = page.get_by_role("dialog"), page.get_by_label("Replicas", exact=True)
        await expect(box).to_contain_text("It is to have 2 replicas, and may have 1 to 3.")
        await number.fill("4")
        await expect(page.get_by_role("button", name="Scale the service")).to_be_disabled()
        await number.fill("3")
        await expect(box).to_contain_text("brings 1 more replica into line")
        await is_accessible(page, 1280)
        await page.get_by_role("button", name="Scale the service").press("Enter")
        await expect(box).to_have_count(0)
        await expect(page.get_by_role("row", name="Replicas")).to_contain_text("3 wanted, 1 to 3 allowed")
        await live.until(lambda state: wanted(state, sent) == 3, "the service is to have three replicas")


def wanted(state: State, job_id: str) -> int:
    service = state.jobs.get(job_id)
    return 0 if service is None or service.array is None else service.array.wanted


async def test_data_sets_are_listed_with_who_has_them_and_who_waits(live: Live, browser: Browser) -> None:
    reads = job("reads-maps", gpus=8, replicas=4, datasets=(DatasetHint(name="maps", size_bytes=3 * 2**39),))
    async with waiting(live, reads) as (sent,), signed_in(browser, live, "lab") as page:
        await page.get_by_role("link", name="Data", exact=True).click()
        cells = page.get_by_role("row").filter(has_text="maps").get_by_role("cell")
        for at, text in enumerate(("maps", "lab", "1.5Ti", "never", "none", "–")):
            await expect(cells.nth(at)).to_have_text(text)
        await expect(cells.last.get_by_role("link", name="reads-maps")).to_have_attribute("href", f"#/jobs/{sent}")
        nodes = [f"node-{at}" for at in range(10)]
        kept = {"tenant": "lab", "dataset": "corpus", "size_bytes": 900, "nodes": nodes, "used_ts": 1, "waiting": 0}
        kept |= {"level": "rack", "domains": [{"domain": "r1", "has": 2, "nodes": 8}], "told_nodes": [], "readers": []}
        await page.route(re.compile("/v1/datasets$"), answering([kept]))
        cells = page.get_by_role("row").filter(has_text="corpus").get_by_role("cell")
        named = ", ".join(nodes[:8])
        for at, text in ((2, "900"), (4, f"{named} and 2 more"), (5, "rack r1: 2 of 8"), (6, "none")):
            await expect(cells.nth(at)).to_have_text(text)
        await is_accessible(page, 1280)


async def test_a_jobs_log_grows_as_its_pod_writes_and_stays_after_its_end(live: Live, browser: Browser) -> None:
    limited = {"seconds": LIMIT_SECONDS // 2, "time_limit_seconds": LIMIT_SECONDS}
    sent = await live.submit(lasting("writes", gpus=1, ttl_seconds_after_finished=120, **limited), "lab")
    await live.until_phase(sent.job_id, "running")
    async with signed_in(browser, live, "lab") as page:
        await show_job(page, "writes")
        log = page.get_by_role("region", name="Log", exact=True)
        await expect(log).to_contain_text(f"simulated program, rank 0: {LIMIT_SECONDS // 2} s of work")
        assert "exit code 0" not in await log.inner_text()
        await finish(live, sent.job_id)
        await expect(log).to_contain_text("exit code 0")
        await expect(page.locator("#log-state")).to_have_text("The pod has ended.")
        assert (await log.inner_text()).count("simulated program") == 1


async def test_the_log_of_a_pod_by_which_a_run_has_grown_is_chosen_and_a_line_without_an_end_is_cut(
    live: Live, browser: Browser
) -> None:
    async def grown(route: Route) -> None:
        body = await (await route.fetch()).json()
        body["job"]["placements"] += [each | {"rank": 1} for each in body["job"]["placements"]]
        await route.fulfill(json=body)

    async def endless(route: Route) -> None:
        await route.fulfill(content_type="text/plain", body="#" * 3_000_000)

    async with signed_in(browser, live, "lab") as page:
        await show_job(page, "runs-of-lab")
        choice = page.get_by_label("Pod", exact=True)
        await expect(choice.get_by_role("option")).to_have_text(["0"])
        await page.route(re.compile("/v1/jobs/[a-z2-7]{20}$"), grown)
        await page.route(re.compile("/logs.*rank=1"), endless)
        await expect(choice.get_by_role("option")).to_have_text(["0", "1"])
        await choice.select_option("1")
        await expect(page.locator("#log-state")).to_have_text("The pod has ended.")
        assert await page.evaluate("document.getElementById('log').textContent.length") == 1_000_000


async def test_the_log_of_an_earlier_attempt_is_chosen(live: Live, browser: Browser) -> None:
    retry = Retry(max_attempts=2, backoff_seconds=0, on_failure=True)
    spec = job("fails-twice", seconds=0.2, exit_code=3, retry=retry, ttl_seconds_after_finished=60)
    sent = await live.submit(spec, "lab")
    await live.until_ended(sent.job_id)
    async with signed_in(browser, live, "lab") as page:
        await show_job(page, "fails-twice")
        choice = page.get_by_label("Attempt", exact=True)
        await expect(choice.get_by_role("option")).to_have_text(["2", "1"])
        async with page.expect_response(lambda answer: "attempt=1" in answer.url) as asked:
            await choice.select_option("1")
        assert (await asked.value).status == 200
        await expect(page.get_by_role("region", name="Log", exact=True)).to_contain_text("exit code 3")
        await expect(page.locator("#log-state")).to_have_text("The pod has ended.")


async def test_a_job_is_held_released_and_cancelled_by_keyboard_and_the_log_says_why_there_is_none(
    live: Live, browser: Browser
) -> None:
    sent = await live.submit(job("too-large", gpus=8, replicas=4, seconds=600), "lab")
    async with signed_in(browser, live, "lab") as page:
        await show_job(page, "too-large")
        await page.get_by_role("button", name="Hold").press("Enter")
        await page.get_by_role("button", name="Release").press("Enter")
        await expect(page.get_by_role("button", name="Hold")).to_be_visible()
        asked = list[str]()
        page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
        twice = "button => { button.focus(); button.click(); button.click(); }"  # before the first is answered
        await page.get_by_role("button", name="Cancel…").evaluate(twice)
        await expect(page.get_by_role("dialog")).to_have_count(1)
        assert asked.count("consequences") == 1, "a second answer would open the dialog again"
        await page.keyboard.press("Escape")  # asked, and taken back
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.get_by_role("button", name="Cancel…").press("Enter")
        await page.get_by_role("button", name="Cancel the job").press("Enter")
        await live.until_phase(sent.job_id, "cancelled")
        await expect(page.get_by_role("row", name="Phase")).to_contain_text("cancelled")
        await expect(page.get_by_role("button", name="Cancel…")).to_have_count(0)


async def test_a_jobs_attempts_are_a_picture_and_words_with_who_stopped_it_and_what_was_saved(
    live: Live, browser: Browser
) -> None:
    half = {"gpus": 8, "replicas": 2, "seconds": 600, "queue": "batch"}
    victim = (await live.submit(job("victim", priority_class="low", **half), "lab")).job_id
    await live.until_phase(victim, "running")
    await live.clients["lab"].checkpoint(victim, "/data/step-4")
    urgent = (await live.submit(job("urgent", priority_class="high", **half), "lab")).job_id
    await live.until_phase(urgent, "running")
    await live.until_phase(victim, "queued")
    try:
        async with signed_in(browser, live, "lab") as page:
            await show_job(page, "victim")
            first = page.get_by_role("listitem").filter(has_text="Attempt 1")
            await expect(first).to_contain_text(re.compile(r"waited \d+s, started in \d+s on gpu-\d.*, ran \d+s"))
            await expect(first).to_contain_text(
                "saved once, last at /data/step-4; stopped: a job of a higher priority class"
            )
            await expect(first).to_contain_text("went back to its queue")
            await expect(page.get_by_role("listitem").filter(has_text="Attempt 2")).to_contain_text("so far")
            picture = await page.get_by_role("img", name="Attempts over").get_attribute("aria-label") or ""
            assert "by job urgent" in picture
            assert await page.locator(".chart rect.stops").count() == 1
            assert await page.locator(".chart path.saved").count() == 1
            found = await Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            await first.get_by_role("link", name="urgent").click()
            await expect(page.get_by_role("heading", name="urgent")).to_be_visible()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            pods = page.get_by_role("region", name="Pods of attempt 1")
            await expect(pods.get_by_role("row")).to_have_count(3)
            await expect(pods).to_contain_text(f"{urgent}-1-1")
            await live.clients["lab"].checkpoint(urgent, "/data/step-9")  # comes by the stream that is open
            await expect(page.locator(".attempts")).to_contain_text("/data/step-9")
            assert sum("after=0" in url for url in asked) <= 1
    finally:
        for one in (victim, urgent):
            await live.clients["lab"].cancel(one)
        await live.until_ended(victim, urgent)


async def test_a_change_that_explain_tried_is_submitted_as_a_new_job_by_keyboard(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live, "lab") as page:
        old = (await live.submit(job("too-wide", gpus=6, replicas=4, seconds=600), "lab")).job_id
        await live.until(lambda state: is_told_why(state, old), "the job is told why it waits")
        await show_job(page, "too-wide")
        change = page.get_by_role("button", name="Submit with this change: 4 instead of 6 GPUs per pod")
        dialog = page.get_by_role("dialog")
        await change.press("Enter")
        await expect(dialog.get_by_role("row", name="roles.worker.resources.gpus")).to_contain_text("64")
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        await page.keyboard.press("Escape")  # nothing is sent
        await expect(dialog).to_have_count(0)
        await expect(change).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(dialog).to_be_visible()
        while not await page.evaluate("document.activeElement.id === 'replace'"):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Space")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("row", name="Asks for")).to_contain_text("16 GPUs in 4 pods")
        new = page.url.rpartition("/")[2]
        assert new != old
        await live.until_phase(new, "running")
        await live.until_phase(old, "cancelled")
        await live.clients["lab"].cancel(new)
        await live.until_ended(new)


async def test_a_job_that_has_ended_is_submitted_again_by_keyboard_and_by_no_operator(
    live: Live, browser: Browser
) -> None:
    old = (await live.submit(job("once-more", gpus=2, seconds=1), "lab")).job_id
    await live.until_ended(old)
    async with signed_in(browser, live, "lab") as page:
        await page.goto(f"{live.platform.gateway_url}/ui#/jobs/{old}")
        again, dialog = page.get_by_role("button", name="Submit again…"), page.get_by_role("dialog")
        await again.press("Enter")
        await expect(dialog).to_contain_text("Its spec is submitted as it was")
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        await page.keyboard.press("Escape")  # nothing is sent
        await expect(dialog).to_have_count(0)
        await expect(again).to_be_focused()
        await page.keyboard.press("Enter")
        await dialog.get_by_role("button", name="Submit as a new job").press("Enter")
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_role("heading", name="once-more")).to_be_visible()
        new = page.url.rpartition("/")[2]
        assert new != old
        await live.until_ended(new)
    async with signed_in(browser, live) as page:
        await page.goto(f"{live.platform.gateway_url}/ui#/jobs/{old}")
        await expect(page.get_by_role("heading", name="once-more")).to_be_visible()
        await expect(page.get_by_role("button", name="Submit again…")).to_have_count(0)


async def test_an_array_is_one_row_and_its_page_counts_tasks_and_names_those_that_failed(
    live: Live, browser: Browser
) -> None:
    retry = {"max_attempts": 1}
    spec = job("sweep-of-fails", seconds=0.2, exit_code=3, retry=retry, array=JobArray(tasks="4-6"))
    array = (await live.submit(spec, "lab")).job_id
    await live.until_ended(array)
    async with signed_in(browser, live, "lab") as page:
        await page.goto(f"{live.platform.gateway_url}/ui#/jobs")
        await page.get_by_label("Job, queue, tenant or user").fill("sweep-of-fails")
        await expect(page.get_by_role("row", name="sweep-of-fails")).to_have_count(1)
        await expect(page.get_by_role("row", name="sweep-of-fails")).to_contain_text("3 failed")
        await page.get_by_label("Tasks of arrays").press("Space")
        await expect(page.get_by_role("link", name="sweep-of-fails_5")).to_be_visible()
        await page.get_by_role("link", name="sweep-of-fails", exact=True).press("Enter")
        await expect(page.get_by_role("row", name="Of these")).to_contain_text("3 failed")
        await expect(page.get_by_role("row", name="Asks for")).to_have_count(0)
        failed = page.get_by_role("region", name="3 failed tasks of 3")
        await expect(failed.get_by_role("row", name="sweep-of-fails_6")).to_contain_text("exit code 3")
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        await failed.get_by_role("link", name="sweep-of-fails_4").press("Enter")
        await expect(page.get_by_role("row", name="Task 4 of sweep-of-fails")).to_be_visible()


async def test_a_refused_submission_shows_its_reason_and_leaves_the_old_job_alone(live: Live, browser: Browser) -> None:
    known = live.state.config
    one_job = {"limits": Limits(jobs=1)}
    tenants = tuple(each.model_copy(update=one_job if each.name == "lab" else {}) for each in known.body.tenants)
    async with waiting(live, job("gang", gpus=6, replicas=4)) as (old,), signed_in(browser, live, "lab") as page:
        await page.goto(f"{live.platform.gateway_url}/ui#/jobs/{old}")
        await page.get_by_role("button", name="Submit with this change: 4 instead").click()
        await live.configure(known.body.model_copy(update={"tenants": tenants}), known.version)
        try:
            await page.get_by_label("Cancel the old one").check()
            await page.get_by_role("button", name="Submit as a new job").press("Enter")
            said = page.get_by_role("dialog").get_by_role("alert")
            await expect(said).to_contain_text("limits.jobs")
            await page.keyboard.press("Escape")
            assert live.phase(old) == "queued"
        finally:
            await live.configure(known.body, known.version + 1)


async def test_an_operator_who_submits_no_jobs_is_offered_no_change_to_submit(live: Live, browser: Browser) -> None:
    async with waiting(live, job("gang", gpus=6, replicas=4)) as (one,), signed_in(browser, live) as page:
        await page.goto(f"{live.platform.gateway_url}/ui#/jobs/{one}")
        await expect(page.get_by_role("listitem").filter(has_text="4 instead of 6 GPUs per pod")).to_be_visible()
        await expect(page.get_by_role("button", name="Submit with this change")).to_have_count(0)


async def test_a_waiting_jobs_priority_class_is_changed_by_keyboard(live: Live, browser: Browser) -> None:
    async with waiting(live, job("gang", gpus=8, replicas=4)) as (one,), signed_in(browser, live, "lab") as page:
        await page.goto(f"{live.platform.gateway_url}/ui#/jobs/{one}")
        await page.get_by_role("button", name="Priority…").press("Enter")
        await expect(page.get_by_role("dialog")).to_contain_text("It has class normal.")
        await page.get_by_label("Priority class", exact=True).select_option("low")
        await expect(page.get_by_role("button", name="Set")).to_be_enabled()
        await page.get_by_role("button", name="Set").press("Enter")
        await expect(page.get_by_role("row", name="Class")).to_contain_text("low")
        await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_tenant_can_neither_see_nor_act_on_anothers_job(live: Live, browser: Browser) -> None:
    async with waiting(live, job("gang-of-lab", gpus=6, replicas=4)) as (theirs,):
        async with signed_in(browser, live, "ops") as page:
            await show_job(page, "runs-of-ops")
            await page.goto(f"{live.platform.gateway_url}/ui#/jobs/{theirs}")
            await expect(page.get_by_role("status")).to_contain_text("NoSuchJob")
            await expect(page.get_by_role("heading", name=theirs)).to_be_visible()  # nobody acts on the job before
            await expect(page.get_by_role("button", name="Cancel…")).to_have_count(0)
            for method, path, body in (
                ("GET", "", None),
                ("GET", "/spec", None),
                ("GET", "/priority", None),
                ("GET", "/explain", None),
                ("POST", "/priority", '{"priority_class": "low"}'),
                ("POST", "/hold", "{}"),
                ("POST", "/cancel", "{}"),
            ):
                answered = await page.evaluate(ASKED, [method, f"v1/jobs/{theirs}{path}", body])
                assert answered == [404, "NoSuchJob"], path
        assert live.phase(theirs) == "queued"
        assert live.state.jobs.get(theirs).priority_class == "normal"


async def test_history_draws_the_gpus_in_use_and_counts_them_by_tenant(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live) as page:
        await page.get_by_role("link", name="History").click()
        chart = page.get_by_role("img", name="GPUs over time")
        await expect(chart).to_be_visible()
        assert "of 32." in (await chart.get_attribute("aria-label") or "")
        held = page.get_by_role("region", name="GPU-hours held within the time shown")
        for tenant in ("lab", "ops"):
            await expect(held.get_by_role("row").filter(has_text=tenant)).to_be_visible()
        idle = page.get_by_role("region", name="GPU-hours that were idle")
        await expect(idle).to_contain_text("free: all that waits lacks its queue's quota")
        waits = page.get_by_role("region", name="Time in which jobs waited")
        await expect(waits.get_by_role("row").filter(has_text=re.compile(r"default\s*[1-9]"))).to_be_visible()
        await page.get_by_text("The chart in numbers").press("Enter")
        await expect(page.get_by_role("region", name="GPUs on the average of each time")).to_be_visible()
        await page.get_by_label("Areas", exact=True).select_option("tenant")
        for times in ("168", "744", "8784"):
            await page.get_by_label("Show", exact=True).select_option(times)
            await expect(chart).to_have_attribute("aria-label", re.compile("lab.* ops.*held by no job; of 32"))


async def test_history_draws_cpus_and_memory_and_tells_projects_apart(live: Live, browser: Browser) -> None:
    sent = await live.submit(job("of-a-project", gpus=1, seconds=600, project="vlm"), "lab")
    await live.until_phase(sent.job_id, "running")
    async with signed_in(browser, live) as page:
        await page.get_by_role("link", name="History").click()
        for resource, unit in (("cpu", "CPU"), ("memory", "GiB"), ("gpu", "GPU")):
            await page.get_by_label("Of", exact=True).select_option(resource)
            await expect(page.get_by_role("img", name=re.compile(f"^{unit}s? over time"))).to_be_visible()
            await expect(page.get_by_role("region", name=f"{unit}-hours that were idle")).to_be_visible()
        await page.get_by_label("Areas", exact=True).select_option("project")
        chart = page.get_by_role("img", name="GPUs over time")
        await expect(chart).to_have_attribute("aria-label", re.compile("lab/vlm.*held by no job; of 32"))
        held = page.get_by_role("region", name="GPU-hours held within the time shown")
        await expect(held.get_by_role("row").filter(has_text="lab/vlm")).to_be_visible()
    async with signed_in(browser, live, "ops") as page:
        await page.get_by_role("link", name="History").click()
        await page.get_by_label("Areas", exact=True).select_option("project")
        await expect(page.get_by_role("region", name="GPU-hours held")).to_contain_text("other tenants together")
        assert "vlm" not in await page.content()


async def test_history_counts_what_a_run_that_had_to_begin_again_has_cost_its_tenant(
    live: Live, browser: Browser
) -> None:
    sent = await live.submit(job("moves-of-lab", gpus=8, seconds=600), "lab")
    await live.until_phase(sent.job_id, "running")
    node = next(run for run in live.state.runs.values() if run.job_id == sent.job_id).placements[0].node
    await live.command("drain", node, "--evict", "--why", "a fan")
    await live.until(
        lambda state: any(run.run_id == f"{sent.job_id}-2" for run in state.runs.values()),
        "the job begins again elsewhere",
    )
    await live.command("undrain", node)
    cost = "Runs that begin again"
    async with signed_in(browser, live, "lab") as page:
        await page.get_by_role("link", name="History").click()
        row = page.get_by_role("region", name=cost).get_by_role("row").filter(has_text="an operator drains a node")
        await expect(row).to_contain_text("lab")
        assert float(await row.get_by_role("cell").last.inner_text()) >= 0
    async with signed_in(browser, live, "ops") as page:
        await page.get_by_role("link", name="History").click()
        held = page.get_by_role("region", name="GPU-hours held within the time shown")
        await expect(held).to_contain_text("other tenants together")
        await expect(page.locator("main")).to_contain_text("No run was stopped to begin again")
        assert "of-lab" not in await page.content()


async def test_a_node_with_kept_shared_and_cut_gpus_says_so_in_words_and_in_its_dialog(
    live: Live, browser: Browser
) -> None:
    """The platform's nodes have whole GPUs alone, so that the answers about one node are changed on their way."""
    node = {"name": "gpu-9", "pool": "default", "ready": True, "gpus": 4, "gpu_free": [0, 500, 750, 0]}
    node |= {"mig_instances": [["1g.10gb", 7]], "others": {"gpus": 1}}
    place = {"rank": 0, "role": "worker", "node": "gpu-9", "devices": [1], "gpu_milli": 500}
    cut = place | {"devices": [2], "gpu_milli": 250, "mig": [0, 1]}
    jobs = [
        {"job_id": name, "name": name, "idle_ts": idle, "placements": [at]}
        for name, at, idle in (("shares", place, 0), ("cuts", cut, 7))
    ]
    kept = {"devices": [0], "gpu_milli": 1000, "cause": "preemption", "until_ts": 1, "job_id": "", "name": ""}
    stranded = [["others", 1000], ["reserved", 1000], ["shape", 500], ["none", 750]]
    idle = {"node": "gpu-9", "pool": "default", "stranded": stranded, "reserved": [kept]}
    async with signed_in(browser, live, "ops") as page:
        for path, items in (("nodes", [node]), ("idle", [idle]), ("jobs", jobs)):
            await page.route(re.compile(f"/v1/{path}($|\\?)"), answering(items))
        tile = page.locator('[data-node="gpu-9"]')
        await expect(tile).to_be_visible(timeout=SECONDS * 1000)
        told = await tile.get_attribute("aria-label") or ""
        assert all(part in told for part in ("held by shares, cuts", "kept for another tenant's job", "MIG, shares"))
        drawn = await tile.locator("i").evaluate("bar => bar.style.background")
        assert all(f"var(--{colour})" in drawn for colour in ("reserved", "unused", "remainder", "other"))
        await tile.press("Enter")
        rows = page.get_by_role("dialog").get_by_role("row")
        for at, words in enumerate(
            ("another tenant's job (preemption)", "shares 50 %", "cuts 25 % (MIG), which uses none")
        ):
            await expect(rows.nth(at + 1)).to_contain_text(words)
        await expect(page.get_by_role("dialog")).to_contain_text("7 MIG instances 1g.10gb")


async def test_no_two_jobs_that_hold_gpus_look_alike_and_each_keeps_its_look(live: Live, browser: Browser) -> None:
    looks = """async (jobs) => {
        const { giveLooks, lookOf } = await import("/ui/looks.js");
        const drawn = (of) => { giveLooks(of); return of.map((job) => JSON.stringify(lookOf(job))); };
        return [drawn(jobs), drawn([...jobs.slice(0, 9), "another"])];
    }"""
    async with signed_in(browser, live, "ops") as page:
        many, fewer = await page.evaluate(looks, [f"job-{number:03}" for number in range(256)])
    assert len(set(many)) == 256
    assert all(look.count("var(--c") == 1 for look in many[:8]), "colours come first"
    assert fewer[:9] == many[:9]
    assert len(set(fewer)) == 10


async def test_now_draws_the_last_hours_with_an_average_for_each_use(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live, "ops") as page:
        drawn = page.get_by_role("img", name="GPUs over time")
        await expect(drawn).to_be_visible()
        told = await drawn.get_attribute("aria-label") or ""
        assert all(part in told for part in ("held by jobs", "reserved", "idle", "not available", "of 32."))
        await expect(page.get_by_role("list", name="Colours of the chart")).to_contain_text("held by jobs")


async def test_a_tenant_sees_nothing_of_another_by_name(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live, "ops") as page:
        await expect(page.locator(".mosaic .node")).to_have_count(4)
        for name in PAGES:
            await page.get_by_role("link", name=name).click()
            await page.wait_for_timeout(1500)
            assert "of-lab" not in await page.content()
        await page.get_by_role("link", name="Queue").click()
        await expect(page.get_by_role("row").filter(has_text="another tenant's")).to_have_count(1)


async def test_a_wrong_token_is_refused_in_words_and_none_stands_in_the_address(live: Live, browser: Browser) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{live.platform.gateway_url}/ui")
    await page.get_by_label("Token").fill("tessera_nobody_wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("Unauthorized")
    assert "tessera_" not in page.url
    await context.close()


async def test_keyboard_alone_reaches_every_page_and_a_nodes_details(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live) as page:
        await page.reload()
        await expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
        seen: list[str] = []
        while not await page.evaluate("document.activeElement.classList.contains('node')"):
            await page.keyboard.press("Tab")
            seen.append(await page.evaluate("document.activeElement.textContent"))
            assert len(seen) < 30, seen
        assert seen[: 1 + len(PAGES)] == ["Skip to the content", *PAGES]
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(360, 740), (1280, 800), (3840, 2160)])
async def test_no_page_breaks_a_rule_of_accessibility_or_scrolls_sideways(
    live: Live, browser: Browser, width: int, height: int, scheme: str
) -> None:
    async with signed_in(browser, live, width=width, height=height) as page:
        await page.emulate_media(color_scheme=scheme)
        for name in PAGES:
            await page.get_by_role("link", name=name).click()
            await page.wait_for_timeout(1500)
            await is_accessible(page, width)
        await show_job(page, "waits-of-lab")
        await expect(page.get_by_role("img", name="Attempts over")).to_be_visible()
        await is_accessible(page, width)
        for name in ("Priority…", "Cancel…"):
            await page.get_by_role("button", name=name).press("Enter")
            await expect(page.get_by_role("dialog")).to_be_visible()
            await is_accessible(page, width)
            await page.keyboard.press("Escape")
        await show_job(page, "runs-of-lab")
        await expect(page.locator("#log")).to_contain_text("simulated program")
        await is_accessible(page, width)
        await page.get_by_role("link", name="Now").click()
        await page.locator(".mosaic .node").first.press("Enter")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await is_accessible(page, width)
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Sign out").press("Enter")
        await expect(page.get_by_label("Token")).to_be_visible()
        await is_accessible(page, width)


async def is_accessible(page: Page, width: int) -> None:
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_a_new_tab_is_signed_in_by_one_that_is_and_all_sign_out_together(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live, "lab") as page:
        new = await page.context.new_page()
        await new.goto(f"{live.platform.gateway_url}/ui")
        await expect(new.get_by_role("navigation")).to_be_visible()
        await expect(new.get_by_role("heading", name="Nodes")).to_be_visible()
        token = await page.evaluate("sessionStorage.getItem('tessera-token')")
        stored = await new.evaluate("Object.values(localStorage).join() + document.cookie + location.href")
        assert token
        assert token not in stored
        await page.close()
        await new.reload()
        await expect(new.get_by_role("navigation")).to_be_visible()
        other = await new.context.new_page()
        await other.goto(f"{live.platform.gateway_url}/ui")
        await expect(other.get_by_role("navigation")).to_be_visible()
        await other.get_by_role("button", name="Sign out").click()
        await expect(new.get_by_text("You have signed out in another tab.")).to_be_visible()
        for tab in (new, other):
            assert await tab.evaluate("sessionStorage.length") == 0
        third = await new.context.new_page()
        await third.goto(f"{live.platform.gateway_url}/ui")
        await third.wait_for_timeout(500)
        await expect(third.get_by_label("Token")).to_be_visible()


async def test_a_reading_under_way_shows_nothing_to_who_has_signed_out(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live, "lab") as page:
        held: list[Route] = []

        async def hold(route: Route) -> None:
            held.append(route)

        await page.route(re.compile("/v1/status$"), hold)
        async with page.expect_request(re.compile("/v1/status$")):
            await page.get_by_role("link", name="Queue").click()
        await page.get_by_role("button", name="Sign out").click()
        async with page.expect_response(re.compile("/v1/status$")):
            for route in held:
                await route.continue_()
        await page.wait_for_timeout(300)
        assert await page.get_by_label("Token").is_visible()
        assert await page.get_by_role("heading", name="Queues").count() == 0


async def test_a_tab_with_another_token_neither_takes_one_nor_signs_out(live: Live, browser: Browser) -> None:
    async with signed_in(browser, live, "lab") as page:
        said = await live.command("token", "new", "--operator")
        mine = said.out.strip().splitlines()[0]
        other = await page.context.new_page()
        set_once = "sessionStorage.length || sessionStorage.setItem('tessera-token', '{}')"
        await other.add_init_script(set_once.format(mine))
        await until_taken(live, mine)
        await other.goto(f"{live.platform.gateway_url}/ui")
        await expect(other.get_by_role("navigation")).to_be_visible()
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("Token")).to_be_visible()
        await other.wait_for_timeout(300)
        assert await other.evaluate("sessionStorage.getItem('tessera-token')") == mine
