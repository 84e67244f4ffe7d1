"""EASY backfill with true ends, in the documented order: the first that finds no room keeps it, nothing is evicted."""

from collections.abc import Mapping

from tessera.testkit.line_judge.profile import FreeAhead
from tessera.testkit.line_judge.schedule import AskedJob, Schedule

RunsUntil = dict[str, tuple[AskedJob, tuple[str, ...], int]]
"""By name: the job, its nodes and its end."""


def easy_starts(schedule: Schedule, lengths_ms: Mapping[str, int]) -> dict[str, int]:
    """Start of each job whose run holds its GPUs for so long; jobs without a length are left out."""
    coming = sorted((job for job in schedule.jobs.values() if job.name in lengths_ms), key=lambda job: job.at_ms)
    waiting, running, starts = list[AskedJob](), RunsUntil(), dict[str, int]()
    while coming or running:
        now = min([end for _, _, end in running.values()] + ([coming[0].at_ms] if coming else []))
        running = {name: run for name, run in running.items() if run[2] > now}
        while coming and coming[0].at_ms <= now:
            waiting.append(coming.pop(0))
        waiting.sort(key=lambda job: job.place)
        for job, nodes in _started(schedule, waiting, running, lengths_ms, now):
            running[job.name] = job, nodes, now + lengths_ms[job.name]
            starts[job.name] = now
            waiting.remove(job)
    return starts


def _started(
    schedule: Schedule, waiting: list[AskedJob], running: RunsUntil, lengths_ms: Mapping[str, int], now: int
) -> list[tuple[AskedJob, tuple[str, ...]]]:
    """The jobs that start now; once one is blocked, those that leave its soonest room to it."""
    profile = FreeAhead(schedule.nodes, now)
    for job, held, end in running.values():
        profile.take(job.gpus, held, now, end)
    begun, blocked = list[tuple[AskedJob, tuple[str, ...]]](), False
    for job in waiting:
        length = lengths_ms[job.name]
        nodes = profile.place(job, now, now + length)
        if nodes is not None:
            profile.take(job.gpus, nodes, now, now + length)
            begun.append((job, nodes))
        elif not blocked and (found := profile.earliest(job, length)) is not None:
            # Its room is taken from when it begins: who finds room beside it for all its own time delays nobody.
            profile.take(job.gpus, found[1], found[0], found[0] + length)
            blocked = True
    return begun
