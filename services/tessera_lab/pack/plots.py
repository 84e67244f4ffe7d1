"""Plots of the runs as PNG, and one HTML page that holds them and the table and needs nothing else."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.kernel.errors import StartupError
from tessera_lab.pack.protocol import LOAD_PERCENT
from tessera_lab.pack.replay import FillingRun
from tessera_lab.pack.stranding import Cause
from tessera_lab.pack.summary import Figure, as_csv, lines

RunsByPolicy = Mapping[str, Sequence[FillingRun]]

FIRST_PERCENT = 60  # below, all policies allocate what arrives
CAUSE_NAMES = {
    Cause.MODEL: "other model",
    Cause.SHAPE: "GPU shape",
    Cause.CPU: "no CPU left",
    Cause.MEMORY: "no memory left",
    Cause.PODS: "full of pods",
    Cause.USABLE: "usable",
}


def write_report(directory: Path, by_trace: Mapping[str, RunsByPolicy], rows: Sequence[Figure]) -> list[Path]:
    """Write all plots, the CSV and the page; the files, the page first."""
    pyplot = _pyplot()
    directory.mkdir(parents=True, exist_ok=True)
    images: dict[str, bytes] = {}
    for trace, runs in by_trace.items():
        images[f"{trace}-allocation.png"] = _curves(pyplot, runs, "allocated", f"{trace}: GPUs allocated, %")
        images[f"{trace}-fragmentation.png"] = _curves(
            pyplot, runs, "fragmented_of_all", f"{trace}: GPUs fragmented, % of all", first=0
        )
        for policy, of_policy in runs.items():
            if of_policy[0].causes is not None:
                images[f"{trace}-{policy}-idle.png"] = _causes(pyplot, of_policy[0], f"{trace}, {policy}: idle GPUs")
    page = directory / "report.html"
    page.write_text(_page(images, rows), encoding="utf-8")
    table = directory / "figures.csv"
    table.write_text(as_csv(rows), encoding="utf-8")
    for name, image in images.items():
        (directory / name).write_bytes(image)
    return [page, table, *(directory / name for name in images)]


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise StartupError("a report needs matplotlib: install tessera with the extra `lab`") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _curves(pyplot: Any, runs: RunsByPolicy, field: str, title: str, first: int = FIRST_PERCENT) -> bytes:
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    x = np.arange(first, LOAD_PERCENT + 1)
    for policy, of_policy in runs.items():
        values = np.array([getattr(run, field) for run in of_policy])[:, first:]
        middle, spread = values.mean(axis=0), values.std(axis=0)
        (line,) = axes.plot(x, middle, label=policy)
        axes.fill_between(x, middle - spread, middle + spread, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel("GPUs asked for so far, % of all")
    axes.legend()
    return _png(pyplot, figure, axes, title)


def _causes(pyplot: Any, run: FillingRun, title: str) -> bytes:
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    assert run.causes is not None
    seen = np.flatnonzero(run.causes.sum(axis=1) > 0)
    seen = seen[seen >= FIRST_PERCENT]
    used = [cause for cause in Cause if run.causes[seen, cause].any()]
    axes.stackplot(seen, *(run.causes[seen, cause] for cause in used), labels=[CAUSE_NAMES[cause] for cause in used])
    axes.set_xlabel(f"GPUs asked for so far, % of all (seed {run.seed})")
    axes.set_ylabel("GPUs")
    axes.legend()
    return _png(pyplot, figure, axes, title)


def _png(pyplot: Any, figure: Any, axes: Any, title: str) -> bytes:
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    pyplot.close(figure)
    return data.getvalue()


def _page(images: Mapping[str, bytes], rows: Sequence[Figure]) -> str:
    pictures = "\n".join(
        f'<img alt="{html.escape(name)}" src="data:image/png;base64,{base64.b64encode(image).decode()}">'
        for name, image in images.items()
    )
    table = html.escape("\n".join(lines(rows)))
    return (
        '<!doctype html>\n<meta charset="utf-8">\n<title>Tessera: packing</title>\n'
        "<style>body{font-family:sans-serif;margin:2em}img{max-width:48%;margin:.5%}</style>\n"
        f"<h1>Filling a cluster</h1>\n<pre>{table}</pre>\n{pictures}\n"
    )
