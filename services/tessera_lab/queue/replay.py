"""Virtual time: jobs arrive, a policy starts them, they end; the result is how long each waited."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from tessera_lab.queue.policies import QueueingPolicy
from tessera_lab.traces.philly import TraceJob

PROGRESS_EVERY = 512


def replay(
    jobs: Sequence[TraceJob],
    queue: QueueingPolicy,
    progress: Callable[[int], None] = lambda done: None,
    wakes: Callable[[], int | None] = lambda: None,
) -> list[int]:
    """
    Seconds that each job waits, in the order of `jobs`, which is that of arrival. A job that is stopped runs for its
    whole duration again, and has waited until its last start: what it did before is lost.

    `progress` is told now and then how many have started; `wakes` says at which second to ask the policy besides.
    Raises ValueError when a policy leaves somebody waiting for ever in an empty room: it cannot be served.
    """
    at = {job.line: index for index, job in enumerate(jobs)}
    waits = [-1] * len(jobs)
    ends: dict[int, int] = {}  # of those that run; a job that was stopped leaves an entry in `running` behind
    running: list[tuple[int, int]] = []  # (end, line)
    arrived = started = 0
    while started < len(jobs):
        times = [running[0][0]] if running else []
        times += [jobs[arrived].submit_s] if arrived < len(jobs) else []
        times += [wake] if (wake := wakes()) is not None else []
        if not times:
            raise ValueError(
                f"{len(jobs) - started} jobs never start, the first is on line {jobs[waits.index(-1)].line}"
            )
        now = min(times)
        while running and running[0][0] == now:
            line = heappop(running)[1]
            if ends.get(line) == now:
                del ends[line]
                queue.ended(jobs[at[line]], now * 1000)
        while arrived < len(jobs) and jobs[arrived].submit_s == now:
            queue.arrived(jobs[arrived])
            arrived += 1
        begun = queue.started(now * 1000)
        for line in queue.stopped():
            del ends[line]
            started -= 1
        for line in begun:
            index = at[line]
            waits[index] = now - jobs[index].submit_s
            ends[line] = now + jobs[index].duration_s
            heappush(running, (ends[line], line))
            started += 1
            if started % PROGRESS_EVERY == 0:
                progress(started)
    progress(started)
    return waits
