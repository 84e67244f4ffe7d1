"""One PNG per load: what runs, hour by hour, by policy, below the bound; and how many GPUs wait."""

from pathlib import Path
from typing import Any

import numpy as np

from tessera.domain.devices.resources import WHOLE_GPU
from tessera.kernel.errors import StartupError
from tessera_lab.churn.arrivals import HOUR_MS, RAN, WAITED
from tessera_lab.churn.campaign import Campaign
from tessera_lab.churn.figures import bound_percent
from tessera_lab.churn.replay import DAY_HOURS


def write_plots(directory: Path, campaign: Campaign) -> list[Path]:
    """The first seed's curves; the files. Raises: StartupError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise StartupError("a report needs matplotlib: install tessera with the extra `lab`") from error
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for load in campaign.pools:
        figure = Figure(figsize=(11, 4.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw(left, right, campaign, load)
        path = directory / f"{campaign.timed.trace.name}-churn-{load}.png"
        figure.savefig(path, dpi=110)
        written.append(path)
    return written


def _draw(left: Any, right: Any, campaign: Campaign, load: int) -> None:
    days = np.arange(campaign.span.hours) / DAY_HOURS
    gpu_milli = campaign.timed.trace.gpu_milli
    for key, runs in campaign.runs.items():
        if key.load == load:
            style: dict[str, Any] = {"linestyle": "--" if key.defragment else "-", "linewidth": 1}
            label = f"{key.policy}{', moving' if key.defragment else ''}"
            hours = runs[0].hours.astype(np.float64) / HOUR_MS
            left.plot(days, 100 * hours[:, RAN] / gpu_milli, label=label, **style)
            right.plot(days, hours[:, WAITED] / WHOLE_GPU, label=label, **style)
    left.axhline(bound_percent(campaign, load), color="black", linewidth=0.8, label="bound, mean")
    left.axvspan(0, campaign.span.warmup_days, alpha=0.1, color="grey")
    seed = campaign.seeds[0]
    left.set(title=f"{load} % offered: GPUs allocated, %", xlabel=f"days (seed {seed}; grey: warm-up)")
    right.set(title="GPUs that waiting pods ask for", xlabel="days")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
