"""The ledger of a run as a fold of its own reads it, and the views as they would be rebuilt from it."""

from collections.abc import Callable, Mapping

from tessera.domain.entities import EndedJob, Job
from tessera.domain.state import State
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ledger.stream import read_plain
from tessera.kernel.memory.store import MemoryViews
from tessera.kernel.ports import Message
from tessera.kernel.redis.views_digest import views_digest
from tessera.projection.views import all_views
from tessera.testkit.sim.coverage import Coverage
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.shard.keys import VIEWS


class CountedState(State):
    """A state that counts the moves of its jobs between phases."""

    def __init__(self, coverage: Coverage) -> None:
        super().__init__()
        self._coverage = coverage
        self._phases: dict[str, str] = {}

    def put_job(self, job: Job) -> None:
        """Stores a live job, and counts its move to another phase."""
        super().put_job(job)
        self._stands(job.job_id, job.phase.value)

    def put_ended(self, ended: EndedJob) -> None:
        """Remembers an ended job, and counts its move to its last phase."""
        super().put_ended(ended)
        self._stands(ended.job_id, ended.phase.value)

    def drop_ended(self, ended: EndedJob) -> None:
        """Forgets an ended job: the next one of its key is another."""
        super().drop_ended(ended)
        self._phases.pop(ended.job_id, None)

    def _stands(self, job_id: str, phase: str) -> None:
        before, self._phases[job_id] = self._phases.get(job_id, phase), phase
        if before != phase:
            self._coverage.edge(before, phase)


def fold_stored(
    messages: Mapping[int, Message], upto: Shard, notice: Callable[[LedgerMessage], object] = lambda message: None
) -> State:
    """
    Bring `upto` to the head of the ledger as it is stored, by number, with a fold of its own; `notice` what is new.
    """
    for seq in range(upto.state.n + 1, len(messages) + 1):
        entry = decode_entry(read_plain(messages[seq]))
        upto.fold(entry)
        notice(entry.message)
    return upto.state


def digests(views: MemoryViews, state: State) -> tuple[str, str]:
    """The views as projection left them, and as a rebuild from the ledger makes them."""
    rebuilt: dict[str, dict[str, bytes]] = {name: {} for name in VIEWS}
    for change in all_views(state):
        if change.value is not None:
            rebuilt[change.view][change.key] = change.value
    now = views.current
    return ("" if now is None else views_digest(now.views)), views_digest(rebuilt)
