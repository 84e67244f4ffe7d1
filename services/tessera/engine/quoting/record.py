"""
Ground that quotes rest on, kept along the fold of a ledger: run lengths, arrivals, open quotes and their scores.

In: each ledger message once it is folded, with the state after it, and the quotes that were drawn. Out: corrected
quotes of the jobs that wait, what a quote of a job that is not submitted yet would be, and how well quotes held. Equal
ledgers and equal quotes give an equal record. Pure; times are ledger milliseconds.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from tessera.domain.runtimes import Sketch, kind_of
from tessera.domain.state import State
from tessera.domain.table import Table
from tessera.engine.quoting import LEVELS, Quote
from tessera.engine.quoting.arrivals import PastArrivals
from tessera.engine.quoting.lengths import LearntLengths
from tessera.engine.quoting.naive import LastWaits, NaiveWaits, naive_waits
from tessera.engine.quoting.outlook import Outlook
from tessera.engine.quoting.pool_now import JobClass, JobShape, PoolNow, class_of, shape_of
from tessera.engine.quoting.scores import QuoteBook
from tessera_schemas.ledger import Allocated, Finished, JobQueued, LedgerMessage, Requeued, TaskQueued
from tessera_schemas.work.run_ends import EVICTIONS

SCORED_MAX = 4096
WINDOW_MS = 21 * 24 * 3_600_000
"""Scores are told of the last three weeks."""


class GivenQuote(NamedTuple):
    """A quote as it was told when it was given, and the naive waits beside it."""

    job_class: JobClass
    ts: int
    told: tuple[int, ...]
    naive: NaiveWaits


class ScoredQuote(NamedTuple):
    """A given quote whose job has started after `wait_ms`, known at `known_ts`."""

    known_ts: int
    wait_ms: int
    given: GivenQuote


class QuoteRecord:
    """The record as of the fold; begins with what a state remembers."""

    def __init__(self) -> None:
        self.lengths, self.book, self._last = LearntLengths(), QuoteBook(), LastWaits()
        self._arrivals: dict[str, PastArrivals] = defaultdict(PastArrivals)
        self._given: dict[str, GivenQuote] = {}
        self._scored: deque[ScoredQuote] = deque(maxlen=SCORED_MAX)

    @classmethod
    def begin(cls, state: State) -> Self:
        """A record that has seen nothing itself: runs of before count, and those that run go on."""
        made = cls()
        made.lengths.begin(state.runtimes.values())
        made.catch_up(state)
        return made

    def catch_up(self, state: State) -> None:
        """Go on behind messages that were not seen: what they started or ended counts as of now."""
        running = {run.job_id: run for run in state.runs.values()}
        for job_id in self.lengths.running:
            if job_id not in running:
                self.lengths.end(job_id, state.ts, cut=True)
        known = set(self.lengths.running)
        # By age, so that equal states are taken in alike, in whatever order their tables have the runs.
        for job_id, run in sorted(running.items(), key=lambda found: (found[1].allocated_ts, found[0])):
            job = state.jobs.get(job_id)
            if job_id not in known and job is not None:
                self.lengths.start(job_id, kind_of(job), run.allocated_ts)
        for job_id in self.book.open_jobs:
            if job_id in running:
                self._start(job_id, running[job_id].allocated_ts)
            elif state.jobs.get(job_id) is None:
                self._drop(job_id)
        self.lengths.advance(state.ts)

    def follow(self, message: LedgerMessage, state: State) -> None:
        """Take in a message that was folded into `state`."""
        ts = message.ts
        for record in message.records:
            if isinstance(record, JobQueued | TaskQueued):
                self._arrive(record.job_id, ts, state)
            elif isinstance(record, Allocated):
                job = state.jobs.get(record.job_id)
                if job is not None:
                    self.lengths.start(record.job_id, kind_of(job), ts)
                    self._start(record.job_id, ts)
            elif isinstance(record, Requeued):
                # How long it would have run nobody knows: of its length only that it was at least so long is learnt.
                evicted = record.reason.code in EVICTIONS
                self.lengths.end(record.job_id, ts, evicted=evicted, cut=True)
            elif isinstance(record, Finished):
                self.lengths.end(record.job_id, ts)
                self._drop(record.job_id)

    def _arrive(self, job_id: str, ts: int, state: State) -> None:
        job = state.jobs.get(job_id)
        pool = None if job is None else state.tree.pool(job.queue)
        if job is not None and pool is not None and (shape := shape_of(state.tree, job)) is not None:
            self._arrivals[pool].note(ts, shape)

    def _start(self, job_id: str, ts: int) -> None:
        self.book.started(job_id, ts)
        given = self._given.pop(job_id, None)
        if given is not None:
            wait = max(0, ts - given.ts)
            self._last.note(given.job_class, wait)
            self._scored.append(ScoredQuote(ts, wait, given))

    def _drop(self, job_id: str) -> None:
        self.book.dropped(job_id)
        self._given.pop(job_id, None)

    def outlook(self, now: PoolNow, pool: str, sketches: Table[Sketch]) -> Outlook:
        """Outlook that all futures of the pool have in common; the sketches must rest, as those of `resting` do."""
        return Outlook(now, sketches, self.lengths, self._arrivals[pool].as_now())

    def give(self, drawn: Iterable[Quote], now: PoolNow, pool: str, sketches: Table[Sketch]) -> list[Quote]:
        """The quotes as they are told. A job that has none yet is given it: that one is scored when the job starts."""
        shapes = {job.job_id: job.shape for job in now.waiting}
        naive: Mapping[str, tuple[int, int]] | None = None
        told = []
        for quote in drawn:
            job_class = class_of(pool, shapes[quote.job_id])
            # Of a wait that goes on the first quote is scored: who looks again and again chooses none.
            known = self.book.is_open(quote.job_id)
            told.append(given := self.book.give(quote, job_class))
            if known:
                continue
            naive = naive_waits(now, sketches) if naive is None else naive
            waits = NaiveWaits(*naive[quote.job_id], self._last.median_of(job_class))
            self._given[quote.job_id] = GivenQuote(job_class, quote.ts, given.waits_ms, waits)
        return told

    def correct(self, drawn: Quote, pool: str, shape: JobShape) -> Quote:
        """A quote of a job that is not in line, which nobody scores."""
        return self.book.correct(drawn, class_of(pool, shape))

    def scored(self, ts: int) -> list[ScoredQuote]:
        """Quotes of the last weeks whose jobs have started, the oldest first."""
        return [scored for scored in self._scored if scored.known_ts > ts - WINDOW_MS]

    def stored(self) -> dict[str, Any]:
        """Values of all of it, as JSON holds them."""
        return {
            "lengths": self.lengths.stored(),
            "arrivals": {pool: past.stored() for pool, past in self._arrivals.items()},
            "book": self.book.stored(),
            "last": self._last.stored(),
            "given": [[job, *given] for job, given in self._given.items()],
            "scored": list(self._scored),
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Read stored values back. Raises AttributeError, LookupError, TypeError or ValueError for anything else."""
        made = cls()
        made.lengths = LearntLengths.read(stored["lengths"])
        made._arrivals |= {pool: PastArrivals.read(past) for pool, past in stored["arrivals"].items()}
        made.book, made._last = QuoteBook.read(stored["book"]), LastWaits.read(stored["last"])
        made._given = {job: _given(given) for job, *given in stored["given"]}
        made._scored.extend(ScoredQuote(known, wait, _given(given)) for known, wait, given in stored["scored"])
        return made


def resting(sketches: Table[Sketch]) -> Table[Sketch]:
    """A copy that stays as it is. An overlay will not do: the fold goes on below it while futures are drawn."""
    kept: Table[Sketch] = Table()
    kept.put_all(tuple(sketches.values()), "key")
    return kept


def _given(stored: Sequence[Any]) -> GivenQuote:
    name, ts, told, naive = stored
    if len(told) != len(LEVELS):
        raise ValueError(f"{len(told)} levels, not {len(LEVELS)}")
    return GivenQuote(tuple(name), ts, tuple(told), NaiveWaits(*naive))
