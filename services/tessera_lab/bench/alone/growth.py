"""Cost of a decision as the state grows: ten times the queued jobs, ten times the nodes, on a full pool."""

from itertools import count, islice

from tessera.kernel.clock import SystemClock
from tessera.queueing.decide import order
from tessera.scheduler.decide import decide
from tessera_lab.bench.alone.ledgers import POOL, BareCommitter, absent, admitted, ended, started
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.platform import GPUS_PER_NODE, job

TOGETHER = 16  # jobs that end and that start in one message
MESSAGES = 10


async def growth(queued: int, rounds: int, nodes: int) -> list[ReportRow]:
    """The small case is the floor; per job started, deciding alone."""
    small = FullPool(nodes, queued)
    cases = {
        f"{10 * queued:,} queued jobs on {nodes} nodes": FullPool(nodes, 10 * queued),
        f"{queued:,} queued jobs on {10 * nodes} nodes": FullPool(10 * nodes, queued),
    }
    floors: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        floors.append(small.decision_us())
        for name, full in cases.items():
            found[name].append(full.decision_us())
    return [
        ReportRow(
            f"decision per job started, {name}",
            "us",
            "no target; how it grows",
            tuple(found[name]),
            f"{queued:,} queued jobs on {nodes} nodes",
            tuple(floors),
            {"order of the line, us": cases[name].order_us()},
        )
        for name in cases
    ]


class FullPool:
    """A pool without a free GPU and a line behind it; jobs end and others start in their place."""

    def __init__(self, nodes: int, queued: int) -> None:
        self._clock = SystemClock()
        self._books = BareCommitter(nodes)
        running = nodes * GPUS_PER_NODE
        spec = job(1.0)
        self._jobs = (admitted(f"g{i}", spec) for i in count())
        self._submit(running + queued)
        self._runs: list[str] = []
        while len(self._runs) < running:
            self._runs += started(self._books, self._books.commit(line=True))

    def decision_us(self) -> float:
        """`decide` alone, per job that it starts, for messages in which as many runs turn out to be absent."""
        seconds, jobs = 0.0, 0
        for _ in range(MESSAGES):
            leaving, self._runs = self._runs[:TOGETHER], self._runs[TOGETHER:]
            self._books.commit(ended(leaving))
            facts = absent(leaving)
            self._books.commit(line=True)
            inputs = self._books.inputs(facts)
            began = self._clock.monotonic()
            decide(self._books.shard.state, inputs, self._books.capacity)
            seconds += self._clock.monotonic() - began
            self._runs += (begun := started(self._books, self._books.commit(facts)))
            self._submit(len(begun))  # so that the line stays as long as it was
            jobs += len(begun)
        return seconds * 1e6 / jobs

    def order_us(self) -> float:
        state = self._books.shard.state
        began = self._clock.monotonic()
        for _ in range(MESSAGES):
            order(state, POOL, state.ts)
        return (self._clock.monotonic() - began) * 1e6 / MESSAGES

    def _submit(self, jobs: int) -> None:
        for first in range(0, jobs, 256):
            self._books.commit(list(islice(self._jobs, min(256, jobs - first))))
