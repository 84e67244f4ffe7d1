"""Measures of a demo, taken from the ledger: times, phases and placements, whatever was shown."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera_schemas.ledger import Allocated, Checkpoint, EpochOpened, FormatRaised, LedgerMessage

WHOLE_GPU = 1000


@dataclass(slots=True)
class RunMeasures:
    """
    Measures of a demo, from the ledger. Times are milliseconds since the Unix epoch.

    `waiting_ms` is how long jobs that want GPUs were queued, `held_ms` and `there_ms` the GPUs allocated and present
    during it, in thousandths times milliseconds.
    """

    allocated_ts: list[int] = field(default_factory=list)
    first_ts: dict[str, int] = field(default_factory=dict)
    waiting_ms: int = 0
    held_ms: int = 0
    there_ms: int = 0
    decided: list[tuple[int, int]] = field(default_factory=list)

    @property
    def ratio_percent(self) -> float:
        """Percent of the GPUs that were allocated while jobs waited; 0 when none did."""
        return 100 * self.held_ms / self.there_ms if self.there_ms else 0.0

    def best_second(self) -> int:
        """The most allocations within any second."""
        times, first, best = sorted(self.allocated_ts), 0, 0
        for last, ts in enumerate(times):
            while times[first] <= ts - 1000:
                first += 1
            best = max(best, last - first + 1)
        return best

    def decision_after(self, n: int) -> int | None:
        """Time of the first message after `n` that decided anything about work."""
        return next((ts for at, ts in self.decided if at > n), None)

    def take(self, state: State, message: LedgerMessage) -> None:
        """The next message, and the state before it."""
        if state.ts and any(job.amount.gpu_milli for job in _queued(state)):
            passed = message.ts - state.ts
            self.waiting_ms += passed
            self.held_ms += passed * sum(use.amount.gpu_milli for use in state.queue_use.values())
            self.there_ms += passed * sum(node.gpus * WHOLE_GPU for node in state.nodes.values() if not node.gone)
        if any(not isinstance(record, EpochOpened | FormatRaised | Checkpoint) for record in message.records):
            self.decided.append((message.n, message.ts))
        for record in message.records:
            if isinstance(record, Allocated):
                self.allocated_ts.append(message.ts)
                self.first_ts.setdefault(record.job_id, message.ts)


def _queued(state: State) -> Iterator[Job]:
    return (job for job in state.jobs.values() if job.phase is Phase.QUEUED)
