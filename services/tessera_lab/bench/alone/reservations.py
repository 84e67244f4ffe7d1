"""Cost of a decision beside reservations: none, 100 and 1,000 of them on 10,000 idle nodes."""

from collections.abc import Sequence
from itertools import count
from statistics import median
from time import process_time

from tessera.scheduler.decide import decide
from tessera_lab.bench.alone.ledgers import POOL, BareCommitter, admitted, started
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.platform import TENANT, job
from tessera_schemas.facts import AnyFact, BookingAsked
from tessera_schemas.shard.bookings import BookedWindow, BookingWish

NODES, SIZES = 10_000, (100, 1_000)
DECISIONS = 20
TOGETHER = 25  # orders for reservations in one message
HOUR_MS, AT_ONCE = 3_600_000, 100
LIMITS = {"that may be preempted": None, "of two hours": 7200}
"""By the words for a job: its time limit; with one it outlasts the first windows, and is kept from their nodes."""


async def reservations(rounds: int, nodes: int = NODES, sizes: Sequence[int] = SIZES) -> list[ReportRow]:
    """CPU time of one decision about one job that comes; without reservations it is the floor."""
    plain, cases = ReservedPool(nodes, 0), {size: ReservedPool(nodes, size) for size in sizes}
    rows = []
    for words, limit in LIMITS.items():
        floors = [plain.decision_us(limit) for _ in range(rounds)]
        for size, reserved in cases.items():
            found = tuple(reserved.decision_us(limit) for _ in range(rounds))
            what = f"decision about a job {words}, {size:,} reservations on {nodes:,} nodes"
            reach = "with 1,000 less than ten times as with 100"
            rows.append(ReportRow(what, "us", reach, found, "without any", tuple(floors)))
    return rows


class ReservedPool:
    """An idle pool whose nodes are kept in windows of an hour, of so many reservations of a hundredth of it at most."""

    def __init__(self, nodes: int, reservations: int) -> None:
        self._books, self._keys = BareCommitter(nodes), count()
        asked = [_asked(self._books.shard.state.ts, number, nodes) for number in range(reservations)]
        for first in range(0, reservations, TOGETHER):
            self._books.commit(asked[first : first + TOGETHER])
        if len(self._books.shard.state.bookings) != reservations:
            raise RuntimeError(f"{len(self._books.shard.state.bookings)} of {reservations} reservations are made")
        self.decision_us(None)

    def decision_us(self, limit: int | None) -> float:
        """Median of `decide` alone, for messages with one job that comes and is looked at."""
        found = []
        for _ in range(DECISIONS):
            spec = job(1.0).model_copy(update={"time_limit_seconds": limit, "preemptible": limit is None})
            self._books.commit([admitted(f"r{next(self._keys)}", spec)])
            inputs = self._books.inputs(line=True)
            began = process_time()
            decide(self._books.shard.state, inputs, self._books.capacity)
            found.append(process_time() - began)
            started(self._books, self._books.commit(line=True))
        return median(found) * 1e6


def _asked(ts: int, number: int, nodes: int) -> AnyFact:
    # A hundred beside each other, each of a part of the nodes; then a hundred more, two hours later.
    part, turn = max(1, nodes // AT_ONCE), number // AT_ONCE
    first = number % AT_ONCE * part
    begin = ts + HOUR_MS + turn * 2 * HOUR_MS
    wish = BookingWish(
        name=f"booked-{number}",
        pool=POOL,
        windows=(BookedWindow(start_ts=begin, end_ts=begin + HOUR_MS),),
        nodes=tuple(f"gpu-{at}" for at in range(first, first + part)),
        who=(TENANT,),
    )
    return BookingAsked(kind="booking_asked", wish=wish)
