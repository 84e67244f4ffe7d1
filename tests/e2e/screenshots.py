"""
Pictures of the page, from a platform that runs: `make screenshots`, or `python -m tests.e2e.screenshots FOLDER`.

Each page is taken in light and dark at the width of a desktop, and the first one at that of a telephone.
"""

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from tests.e2e.live import Live, configuration, job

PAGES = ("now", "queue", "jobs", "services", "data", "history", "events")
SETTLE_MS = 2500


async def work(live: Live) -> str:
    """Some jobs of two tenants that run, wait and end; returns one that runs."""
    await live.until_nodes_are_known()
    sizes = (("train-llm", 8, 2, 600.0, "lab"), ("evaluate", 1, 3, 600.0, "ops"), ("sweep", 2, 2, 4.0, "lab"))
    sent = [await live.submit(job(name, gpus=g, replicas=n, seconds=s), who) for name, g, n, s, who in sizes]
    await live.until_phase(sent[0].job_id, "running")
    await live.until_phase(sent[2].job_id, "succeeded")
    await live.submit(job("pretrain", gpus=8, replicas=4, seconds=600), "ops")
    return sent[0].job_id


async def take(browser: Browser, live: Live, token: str, shown: str, folder: Path) -> None:
    """One page after another, each once it has settled."""
    wanted = [(name, scheme, 1280) for name in (*PAGES, f"jobs/{shown}") for scheme in ("light", "dark")]
    for name, scheme, width in (*wanted, ("now", "light", 360), ("now", "dark", 3840)):
        context = await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = await context.new_page()
        await page.goto(f"{live.platform.gateway_url}/ui")
        await page.evaluate("token => sessionStorage.setItem('tessera-token', token)", token)
        await page.goto(f"{live.platform.gateway_url}/ui#/{name}")
        await page.reload()
        await page.wait_for_timeout(SETTLE_MS)
        file = folder / f"{name.partition('/')[0] if name in PAGES else 'job'}-{scheme}-{width}.png"
        height = await page.evaluate("document.documentElement.scrollHeight")
        await page.set_viewport_size({"width": width, "height": height})  # what is out of sight is not painted
        await page.wait_for_timeout(300)
        await page.screenshot(path=file)
        print(file)
        await context.close()


async def main(folder: Path) -> None:
    """Raises RuntimeError where there is no browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise RuntimeError("chromium: not found; `make chromium` installs it")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        async with Live.at(Path(home), configuration()) as live, async_playwright() as playwright:
            shown = await work(live)
            token = (await live.command("token", "new", "--operator")).out.strip().splitlines()[0]
            await asyncio.sleep(3)  # a new token counts within two seconds
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            await take(browser, live, token, shown, folder)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots")))
