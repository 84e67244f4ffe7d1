"""
Quotes: the times by which waiting jobs start with given chances, from futures that are drawn of a pool as it is now.

In: a pool at one ledger time (`pool_now`), run lengths and arrivals that were seen (`lengths`, `arrivals`), and the
scores of earlier quotes (`scores.QuoteBook`). Out: quantiles of each job's wait. One set of futures (`future`) serves
all jobs. Their number is fixed, and so is the work in all: who has not started when that is spent waits longer than the
future was played, by a factor with a heavy tail.

Capacity is coarse, nodes with so many free GPUs, in and out of windows: CPU, memory, topology and earmarks are left
out, and so are evictions, whose chance is told from their record. Nothing is decided by a quote. Pure and in integers:
equal inputs give equal quotes. Chances are thousandths, times ledger milliseconds.
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple

from tessera.engine.quoting.chance import ONE, Draws, quantile_of
from tessera.engine.quoting.future import play
from tessera.engine.quoting.outlook import Outlook

FUTURES = 32
STEPS_MAX = 40_000
"""Steps of all futures of one set: about half a second."""
PART_MOST = 4
"""Steps of one future, as a multiple of the average that is left: a future is played in one go, and others wait."""
LATE_BITS = 6
"""A wait that was not seen to end is at most so many times doubled."""
LEVELS = (25, 100, 200, 500, 800, 900, 950, 975)
"""Chances that are told: the ends of intervals of 80 % and 95 % among them."""


class Quote(NamedTuple):
    """
    Waits from `ts` by which the job starts with the chance of each of `LEVELS`; never falling.

    `evicted_permille` is the chance that its run is stopped for others before its end, by how many of such were.
    """

    job_id: str
    ts: int
    waits_ms: tuple[int, ...]
    evicted_permille: int = 0

    def wait_at(self, permille: int) -> int:
        """Wait that is not exceeded with that chance."""
        return self.waits_ms[LEVELS.index(permille)]


def quote(outlook: Outlook, seed: int, job_ids: Sequence[str] = (), futures: int = FUTURES) -> list[Quote]:
    """Quotes of these waiting jobs, in the order of the pool's waiting jobs; of all of them where none is named."""
    drawing = draw_quotes(outlook, seed, job_ids, futures)
    while True:
        try:
            next(drawing)
        except StopIteration as done:
            found: list[Quote] = done.value
            return found


def draw_quotes(
    outlook: Outlook, seed: int, job_ids: Sequence[str] = (), futures: int = FUTURES, steps: int = STEPS_MAX
) -> Generator[None, None, list[Quote]]:
    """
    Draw such quotes in slices of one future each, between which others may work; the outlook must not change.

    All futures together are of so many steps at most.
    """
    # A future goes on until all who are asked about have started, so that a quote of one job alone costs the least.
    now, wanted = outlook.now, set(job_ids)
    asked = [at for at, job in enumerate(now.waiting) if not wanted or job.job_id in wanted]
    chance, waits, left = Draws(seed), {at: list[int]() for at in asked}, steps
    # What one future leaves of its part is for the rest: most end early, and a few are long.
    for drawn in range(futures):
        # A slice must end soon, so that one long future does not get what all the short ones left.
        part = left // (futures - drawn)
        played = play(outlook, chance.split(), asked, min(part, PART_MOST * steps // futures))
        left -= played.steps
        for at, found in waits.items():
            late = max(1, played.until - now.ts) * ONE // max(ONE >> LATE_BITS, chance.part())
            found.append(played.starts[at] - now.ts if at in played.starts else late)
        yield
    quotes = []
    for at, found in waits.items():
        found.sort()
        job, told = now.waiting[at], tuple(quantile_of(found, level) for level in LEVELS)
        quotes.append(Quote(job.job_id, now.ts, told, outlook.chances.evicted_permille(job.shape.kind)))
    return quotes
