"""Measures of a replay: waiting and completion times, for all jobs and by size. No decision is made here."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from tessera_lab.traces.philly import TraceJob

Seconds = NDArray[np.int64]
WEEK_S = 7 * 86_400

SIZES: tuple[tuple[str, int, int], ...] = (
    ("all", 1, 2**31),
    ("1", 1, 1),
    ("2-4", 2, 4),
    ("5-8", 5, 8),
    ("over 8", 9, 2**31),
    ("8 or more", 8, 2**31),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Jobs of one size; all times in seconds. Percentiles interpolate linearly between the two nearest jobs."""

    size: str
    jobs: int
    wait_mean: float
    wait_p99: float
    wait_max: int
    completion_mean: float
    completion_p99: float


def measure(jobs: Sequence[TraceJob], waits: Sequence[int]) -> list[Measured]:
    """One line per size that occurs."""
    wait = np.array(waits, dtype=np.int64)
    done = wait + np.array([job.duration_s for job in jobs], dtype=np.int64)
    gpus = np.array([job.gpus for job in jobs], dtype=np.int64)
    chosen = [(size, (gpus >= low) & (gpus <= high)) for size, low, high in SIZES]
    return [_of(size, wait[which], done[which]) for size, which in chosen if which.any()]


def _of(size: str, wait: Seconds, done: Seconds) -> Measured:
    return Measured(
        size,
        len(wait),
        round(float(wait.mean()), 3),
        round(float(np.quantile(wait, 0.99)), 1),
        int(wait.max()),
        round(float(done.mean()), 3),
        round(float(np.quantile(done, 0.99)), 1),
    )


def offered_load(jobs: Sequence[TraceJob], gpus: int, seconds: int) -> float:
    """GPU time asked for over GPU time there is."""
    return sum(job.gpus * job.duration_s for job in jobs) / (gpus * seconds)


def jain_by_week(jobs: Sequence[TraceJob], waits: Sequence[int]) -> list[float]:
    """
    Jain's index of the GPU time that virtual clusters had in each week, of those that had or wanted any: 1 where all
    had the same, 1/n where one of n had all. Weeks count from the first job; one in which the last job
    comes, and those after it, are left out.
    """
    begin = min(job.submit_s for job in jobs)
    whole = (max(job.submit_s for job in jobs) - begin) // WEEK_S
    had: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for job, wait in zip(jobs, waits, strict=True):
        start = job.submit_s - begin + wait
        for week in range((job.submit_s - begin) // WEEK_S, (start + job.duration_s - 1) // WEEK_S + 1):
            within = min(start + job.duration_s, (week + 1) * WEEK_S) - max(start, week * WEEK_S)
            had[week][job.vc] += job.gpus * max(0, within)
    weeks = [list(had[week].values()) for week in range(whole)]
    return [round(sum(each) ** 2 / (len(each) * sum(one * one for one in each)), 3) for each in weeks if any(each)]


def as_json(measured: Sequence[Measured]) -> list[dict[str, object]]:
    return [asdict(one) for one in measured]
