"""The ledger of a run as a fold of its own reads it, and the views as they would be rebuilt from it."""

from collections.abc import Callable, Mapping
from typing import Any

from tessera.domain.entities import EndedJob, Job
from tessera.domain.state import State
from tessera.engine.accounts.periods import HOURS
from tessera.kernel.ledger.accounts import read_open, read_over, read_sums
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ledger.stream import read_plain
from tessera.kernel.memory.store import MemoryViews
from tessera.kernel.ports import Bus, Message
from tessera.kernel.redis.views_digest import views_digest
from tessera.projection.views import all_views
from tessera.testkit.account_checker import AccountSaid
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


async def stored_account(bus: Bus, shard: str) -> AccountSaid | None:
    """The account as projection stored it last, hours with what is not over of them; None where nothing is stored."""
    at = await read_open(bus, shard)
    if at is None or not at.n:
        return None
    begins = range(HOURS.begin(at.since_ts), at.upto_ts + 1, HOURS.ms)
    over = await read_over(bus, shard, [(HOURS.name, HOURS.slot(begin)) for begin in begins])
    sums = await read_sums(bus, shard, at)
    hours: dict[int, list[Any]] = {}
    for period in (*over, sums.get(HOURS.name), at.newest):
        if period is not None:
            hours.setdefault(HOURS.begin(period["start"]), []).extend(period["rows"])
    return AccountSaid(at.n, at.since_ts, hours)


def digests(views: MemoryViews, state: State) -> tuple[str, str]:
    """The views as projection left them, and as a rebuild from the ledger makes them."""
    rebuilt: dict[str, dict[str, bytes]] = {name: {} for name in VIEWS}
    for change in all_views(state):
        if change.value is not None:
            rebuilt[change.view][change.key] = change.value
    now = views.current
    return ("" if now is None else views_digest(now.views)), views_digest(rebuilt)
