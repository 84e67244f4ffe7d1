"""Verification of a finished run besides the checker: the replay, and the views rebuilt from the ledger."""

from collections.abc import Mapping

from tessera.client.replay import verify
from tessera.domain.fold import apply_record, take_in
from tessera.domain.state import State
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.memory.store import MemoryViews
from tessera.kernel.ports import Message
from tessera.kernel.redis.views_digest import views_digest
from tessera.projection.views import all_views
from tessera.testkit.sim.coverage import Coverage
from tessera_schemas.keys import VIEWS


def fold_stored(messages: Mapping[int, Message], upto: Shard) -> State:
    """Bring `upto` to the head of the ledger as it is stored, by number, with a fold of its own."""
    for seq in range(upto.state.n + 1, len(messages) + 1):
        upto.fold(decode_entry(messages[seq]))
    return upto.state


def digests(views: MemoryViews, state: State) -> tuple[str, str]:
    """The views as projection left them, and as a rebuild from the ledger makes them."""
    rebuilt: dict[str, dict[str, bytes]] = {name: {} for name in VIEWS}
    for change in all_views(state):
        if change.value is not None:
            rebuilt[change.view][change.key] = change.value
    now = views.current
    return ("" if now is None else views_digest(now.views)), views_digest(rebuilt)


def replayed(stored: list[bytes], coverage: Coverage) -> list[str]:
    """Findings of a replay of the ledger; counts the phase edges and records that the run reached on the way."""
    entries = [decode_entry(Message("", n, data)) for n, data in enumerate(stored, start=1)]
    state = State()
    for entry in entries:
        message = entry.message
        for taken in message.facts:
            coverage.fact(taken.fact)
        take_in(state, message.n, message.ts, message.facts_upto, message.orders)
        for record in message.records:
            job_id = getattr(record, "job_id", "") or getattr(record, "run_id", "").rpartition("-")[0]
            before = _phase(state, job_id)
            apply_record(state, record, message.facts)
            after = _phase(state, job_id)
            if before and after and before != after:
                coverage.edge(before, after)
            coverage.record(record)
    return [f"replay: {finding}" for finding in verify(stored).findings]


def _phase(state: State, job_id: str) -> str:
    job = state.jobs.get(job_id) or state.ended.get(job_id)
    return "" if job is None else job.phase.value
