"""
Who of a waiting line may start now: earmarks for the blocked jobs that are due, and backfill around them.

In: the line in its order and the room with what runs in it. Out: who starts, and from when on room is kept for whom.
A job may overtake an earmarked one only where it does not delay the earmark by the runtimes known (time limits) or
learnt (quantiles). Guarantees, with L the longest that any job runs:

- Under true limits the earmark of the first due job never moves to a later time from one pass to the next, as long as
  it stays the first: it starts no later than it was first told.
- Nobody waits for ever while smaller ones pass, even where every learnt runtime is wrong. From `closing_ms` on nobody
  overtakes a job, so that with m older jobs before it, it has started after closing_ms + (m + 1) · L at the latest.

Free capacity is asked through `BackfillRoom`, so that one pool of equal GPUs, nodes, and a whole cluster's placement
are served alike. Integer milliseconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    A job in line, as far as backfill looks at it.

    `until_ms` is when it will have ended if it starts now, by its time limit or as learnt. `due`: room is kept for it
    when it does not fit. `closes`: nobody overtakes it any more.
    """

    job_id: str
    gpus: int
    until_ms: int
    due: bool = False
    closes: bool = False

    @property
    def alike(self) -> tuple[int, int]:
        """Jobs that are alike get the same answer while room only shrinks."""
        return self.gpus, self.until_ms


class BackfillRoom(Protocol):
    """Free capacity during one pass; both calls only take from it."""

    def start(self, job: Candidate) -> bool:
        """Place the job now if that delays no earmark; False and nothing taken otherwise."""

    def earmark(self, job: Candidate) -> int | None:
        """Keep the soonest room for the job and say from when on; None when no end that is known makes room."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a line: who starts, in that order, and until when whom the kept room makes wait."""

    started: tuple[str, ...]
    earmarked: tuple[tuple[str, int], ...]


def backfill(
    line: Iterable[Candidate], room: BackfillRoom, depth: int, closed: set[tuple[int, int]] | None = None
) -> Pass:
    """
    Start what may start, in the order of the line; keep room for at most `depth` jobs that are due.

    `closed` holds the kinds (`Candidate.alike`) that are refused for the rest of this pass: a line that shares the set
    may leave their jobs out, except those that are due while fewer than `depth` are earmarked.
    """
    refused = set() if closed is None else closed
    started: list[str] = []
    earmarked: list[tuple[str, int]] = []
    for job in line:
        if job.alike not in refused:
            if room.start(job):
                started.append(job.job_id)
                continue
            refused.add(job.alike)
        if job.due and len(earmarked) < depth:
            at = room.earmark(job)
            if at is None:  # no end would make room: it holds up nobody
                continue
            earmarked.append((job.job_id, at))
            if job.closes:
                break
    return Pass(tuple(started), tuple(earmarked))
