"""
Jobs of a cluster for deep learning, September and October 2017: when submitted, how long run, on how many GPUs, whose.

A row is `submit_s, duration_s, num_gpus, vc`; `vc` is the virtual cluster, which is all that is known of the owner.
Second 0 is the start of 4 September: the last submit lies just before 58 days, the end of October. A trace of one's own
has the same columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tessera_lab.traces import TableRow, find_data, read_table

FILE = Path("philly", "philly_jobs_sep_oct.csv")
SOURCE = "github.com/msr-fiddle/philly-traces, as a table with the columns submit_s, duration_s, num_gpus, vc"
COLUMNS = "submit_s", "duration_s", "num_gpus", "vc"
DAY_S = 86_400
OCTOBER_S = 27 * DAY_S
MOVED_S = 1800
MOST_GPUS = 65_536


@dataclass(frozen=True, slots=True)
class TraceJob:
    """`line` is the row's line in its file, the unique last key of every order."""

    line: int
    submit_s: int
    duration_s: int
    gpus: int
    vc: str


def read_jobs(environment: Mapping[str, str], directory: Path, path: Path | None = None) -> tuple[TraceJob, ...]:
    """All jobs by submit time, then line. Raises MissingTrace, or MalformedRow naming file, line and field."""
    path = path or find_data(FILE, SOURCE, environment, directory)
    return tuple(sorted(read_table(path, COLUMNS, _job), key=lambda job: (job.submit_s, job.line)))


def generated_month(jobs: Sequence[TraceJob], seed: int) -> tuple[TraceJob, ...]:
    """
    Another month, fuller than September: each day of a virtual cluster is two of its days there, drawn with
    replacement, each job moved by up to half an hour.
    """
    draw, days = Random(seed), OCTOBER_S // DAY_S
    by_day: dict[str, list[list[TraceJob]]] = {}
    for job in jobs:
        if job.submit_s < OCTOBER_S:
            by_day.setdefault(job.vc, [[] for _ in range(days)])[job.submit_s // DAY_S].append(job)
    made = [
        (day * DAY_S + max(0, job.submit_s % DAY_S + draw.randint(-MOVED_S, MOVED_S)), job)
        for vc in sorted(by_day)
        for day in range(days)
        for _ in range(2)
        for job in draw.choice(by_day[vc])
    ]
    made.sort(key=lambda each: (each[0], each[1].line))
    return tuple(replace(job, line=line, submit_s=at) for line, (at, job) in enumerate(made, start=2))


def _job(row: TableRow) -> TraceJob:
    vc = row.text("vc")
    if not vc:
        raise row.malformed("vc", "a job belongs to a virtual cluster")
    gpus = row.whole("num_gpus", 1, MOST_GPUS)
    return TraceJob(row.line, row.whole("submit_s"), row.whole("duration_s", 1), gpus, vc)
