"""Ended jobs that the views show: those that ended last, bounded by count and age. Pure."""

import heapq
from collections.abc import Iterable, Iterator

from tessera.domain.entities import EndedJob
from tessera.domain.work.ended_jobs import EndedJobs

ENDED_MAX, ENDED_SECONDS = 100_000, 7 * 86_400
"""What is shown where no setting says otherwise."""


class RecentlyEnded:
    """Keys of the ended jobs with the latest ends, ties by key; equal states give equal sets."""

    def __init__(self, ended: EndedJobs, ts: int, count_max: int, seconds_max: int) -> None:
        self._ended, self._count_max, self._age_max_ms = ended, count_max, seconds_max * 1000
        self._fill(ts)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._ended_ts

    def __iter__(self) -> Iterator[str]:
        return iter(self._ended_ts)

    def update(self, jobs: Iterable[str], ts: int) -> Iterable[str]:
        """Take in which of these jobs have ended or are forgotten; returns those besides that come or go."""
        gap = False
        for job_id in jobs:
            job = self._ended.get(job_id)
            if job is not None:
                self._add(job)
            elif self._ended_ts.pop(job_id, None) is not None:
                gap = self._crowded_out_ts >= ts - self._age_max_ms
        if not gap:
            return self._trim(ts)
        before = {*self._ended_ts}  # jobs are seldom forgotten in another order than that of their ends
        self._fill(ts)
        return before ^ self._ended_ts.keys()

    def _fill(self, ts: int) -> None:
        self._ended_ts: dict[str, int] = {}
        self._oldest: list[tuple[int, str]] = []  # a heap; entries that `_ended_ts` does not have are over
        self._crowded_out_ts = -1  # the latest end of those that had to go for the count
        for job in self._ended.newest_first():
            if len(self._ended_ts) >= self._count_max and self._oldest and job.ended_ts < self._oldest[0][0]:
                self._crowded_out_ts = max(self._crowded_out_ts, job.ended_ts)
                break  # all others ended even earlier
            self._add(job)
            self._trim(ts)

    def _add(self, job: EndedJob) -> None:
        if self._ended_ts.get(job.job_id) != job.ended_ts:
            self._ended_ts[job.job_id] = job.ended_ts
            heapq.heappush(self._oldest, (job.ended_ts, job.job_id))

    def _trim(self, ts: int) -> list[str]:
        """Take out what is beyond the bounds."""
        out = []
        while self._oldest:
            ended_ts, job_id = self._oldest[0]
            current = self._ended_ts.get(job_id) == ended_ts
            crowded = len(self._ended_ts) > self._count_max
            if current and not crowded and ended_ts >= ts - self._age_max_ms:
                break
            heapq.heappop(self._oldest)
            if current:
                del self._ended_ts[job_id]
                out.append(job_id)
                self._crowded_out_ts = max(self._crowded_out_ts, ended_ts)
        return out
