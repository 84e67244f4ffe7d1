"""
The judge of the line: who waited, who was passed and what stood idle, by what a subscriber of the public events sees.

Written from docs/queues.md and ADR 0048 alone: it imports the contract, and none of what decides. `schedule` reads the
events, `easy` makes the schedule of EASY backfill that knows when each run will truly end, in the same order of jobs,
and `judging` holds one against the other.
"""

from tessera.testkit.line_judge.easy import easy_starts
from tessera.testkit.line_judge.judging import LineFigures, LineVerdict, judge, sum_up
from tessera.testkit.line_judge.schedule import AskedJob, Schedule, SeenRun, WholeGpus, read_schedule

__all__ = [
    "AskedJob",
    "LineFigures",
    "LineVerdict",
    "Schedule",
    "SeenRun",
    "WholeGpus",
    "easy_starts",
    "judge",
    "read_schedule",
    "sum_up",
]
