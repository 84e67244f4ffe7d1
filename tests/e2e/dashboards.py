"""
Pictures of the dashboards, from a platform that runs: `make dashboard-pictures`.

A real Prometheus reads real services under load. Each panel of deploy/dashboards is then asked for by its own queries,
and drawn where the dashboard has it: by matplotlib, since a picture must not need a Grafana server.
"""

import asyncio
import json
import random
import re
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter

from tessera_schemas.commands import DrainNode
from tessera_schemas.config import ConfigBody, Policy, Queue, Quota
from tests.e2e.live import TENANTS, Live, configuration, job
from tests.e2e.node_faults import operate
from tests.e2e.prometheus import Json, Prometheus, watching

DASHBOARDS = Path(__file__).parents[2] / "deploy" / "dashboards"
VARIABLES = {"$shard": ".+", "$__rate_interval": "15s"}
FULL_SECONDS, CALM_SECONDS = 90.0, 70.0
SIZES = ((1, 4), (1, 8), (2, 8), (2, 14), (4, 12), (8, 20))
COLUMNS, INCHES_A_COLUMN, INCHES_A_ROW = 24, 0.5, 0.32
LEGEND_MAX = 12
NOT_SEEN = re.compile(
    r"(?<=\d\.\d)\d+(?=[^<]*>)|^ +|<!--.*?-->\n?|, 'Bitstream Vera Sans'.*?(?=, sans-serif)", re.MULTILINE | re.DOTALL
)
"""Of an SVG: decimals far below what a screen shows, blanks, comments, fonts that are like the first."""
Line = tuple[str, list[float], list[float]]
"""Name, minutes and values."""
CAPTION = (
    "Drawn by matplotlib from the dashboard's own queries, not by Grafana: a local platform under load, "
    "minutes from left to right."
)


def two_queues() -> ConfigBody:
    """Half of the cluster each, lent to the other."""
    queues = tuple(Queue(name=name, quotas=(Quota(resource="gpu_milli", nominal=16_000),)) for name in TENANTS)
    return configuration(queues=queues, policy=Policy(preset="fair", backfill="reserve", min_runtime_seconds=2))


async def load(live: Live, seconds: float, pause: float, dice: random.Random) -> None:
    """Jobs of both tenants, one after each pause."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        gpus, lasts = dice.choice(SIZES)
        tenant = dice.choice(TENANTS)
        await live.submit(job(f"train-{gpus}", gpus=gpus, seconds=lasts, queue=tenant), tenant, answer_seconds=0.05)
        await asyncio.sleep(pause)


async def read_by_http(live: Live) -> None:
    """Somebody who looks at jobs and nodes, and sometimes for one that is not there."""
    token = (await live.command("token", "new", "lab")).out.strip().splitlines()[0]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
        for number in range(1_000_000):
            path = ("jobs", "slots", "jobs", "jobs/aaaaaaaaaaaaaaaaaaaa")[number % 4]
            async with http.get(f"{live.platform.gateway_url}/v1/{path}") as answer:
                await answer.read()
            await asyncio.sleep(0.2)


async def series_of(prometheus: Prometheus, panel: Json, begin: float, end: float) -> list[Line]:
    """Name, minutes and values of each line of a panel."""
    found = []
    for target in panel["targets"]:
        expr = target["expr"]
        for name, value in VARIABLES.items():
            expr = expr.replace(name, value)
        for one in await prometheus.query_range(expr, begin, end):
            legend = target["legendFormat"]
            for label, value in one["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            at = [(float(moment) - begin) / 60 for moment, _ in one["values"]]
            found.append((legend, at, [float(value) for _, value in one["values"]]))
    return found


def seconds_text(value: float, _at: int | None = None) -> str:
    """Seconds, and below one milliseconds."""
    return f"{value * 1000:g} ms" if 0 < value < 1 else f"{value:g} s"


UNITS = {
    "percentunit": FuncFormatter(lambda value, _: f"{100 * value:g} %"),
    "bytes": EngFormatter("B", sep=" "),
    "s": FuncFormatter(seconds_text),
    "ops": FuncFormatter(lambda value, _: f"{value:g} /s"),
    "reqps": FuncFormatter(lambda value, _: f"{value:g} req/s"),
    "short": FuncFormatter(lambda value, _: f"{value:g}"),
}


def draw(axes: Axes, panel: Json, lines: list[Line]) -> None:
    """One panel, as its unit, its stacking and its bounds say."""
    axes.set_title(panel["title"], loc="left", fontsize=9, fontweight="bold")
    stacked = panel["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode") == "normal"
    if not lines:
        axes.text(0.5, 0.5, "nothing in this run", ha="center", va="center", transform=axes.transAxes, color="#888")
    elif stacked:
        moments = sorted({moment for _, at, _ in lines for moment in at})
        rows = [[dict(zip(at, values, strict=True)).get(moment, 0.0) for moment in moments] for _, at, values in lines]
        axes.stackplot(moments, rows, labels=[name for name, _, _ in lines], alpha=0.6, linewidth=0)
    else:
        for name, at, values in lines:
            axes.plot(at, values, label=name, linewidth=1)
    # A quantile of nothing is no number.
    highest = max((value for _, _, values in lines for value in values if value == value), default=0)
    axes.set_ylim(bottom=0, top=None if highest > 0 else 1)
    axes.yaxis.set_major_formatter(UNITS[panel["fieldConfig"]["defaults"]["unit"]])
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25, linewidth=0.5)
    if lines:
        handles, names = axes.get_legend_handles_labels()
        if len(names) > LEGEND_MAX:
            names[LEGEND_MAX - 1] = f"and {len(names) - LEGEND_MAX + 1} more"
        shown = handles[:LEGEND_MAX], names[:LEGEND_MAX]
        axes.legend(
            *shown, fontsize=6, ncols=4, loc="upper left", bbox_to_anchor=(0, -0.13), frameon=False, borderaxespad=0
        )


async def picture(prometheus: Prometheus, dashboard: Json, begin: float, end: float) -> Figure:
    """The dashboard, its panels in its own grid."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    figure = Figure(figsize=(COLUMNS * INCHES_A_COLUMN, rows * INCHES_A_ROW + 0.7))
    grid = figure.add_gridspec(rows, COLUMNS, left=0.05, right=0.985, top=1 - 0.8 / figure.get_figheight(), bottom=0.02)
    figure.suptitle(dashboard["title"], x=0.05, ha="left", fontsize=13, fontweight="bold")
    figure.text(0.985, 1 - 0.3 / figure.get_figheight(), CAPTION, ha="right", fontsize=6)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        x, y = place["x"], place["y"]
        axes = figure.add_subplot(grid[y : y + place["h"] - 3, x + (x > 0) : x + place["w"] - 1])
        draw(axes, panel, await series_of(prometheus, panel, begin, end))
        axes.set_xlim(0, (end - begin) / 60)
    return figure


async def main(folder: Path) -> None:
    """Write one SVG for each dashboard."""
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "tessera", "path.simplify_threshold": 1.0}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        async with Live.at(Path(home) / "up", two_queues()) as live, watching(live, Path(home)) as prometheus:
            dice, begin = random.Random(1), time.time()
            reading = asyncio.create_task(read_by_http(live))
            await load(live, FULL_SECONDS, 1.1, dice)
            await operate(live, DrainNode(kind="drain_node", v=1, node="gpu-3", why="maintenance"))
            await load(live, CALM_SECONDS, 2.2, dice)
            reading.cancel()
            end = time.time()
            for file in sorted(DASHBOARDS.glob("*.json")):
                made = await picture(prometheus, json.loads(file.read_text()), begin, end)
                target = folder / f"{file.stem}.svg"
                made.savefig(target, metadata={"Date": None, "Creator": None})
                target.write_text(NOT_SEEN.sub("", target.read_text()))
                print(f"{target}: {target.stat().st_size // 1000} kB")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/dashboards")))
