"""
The fold: state(n-1) and a ledger message give state(n). Pure, integers only.

A record that contradicts the state raises Contradiction and leaves the caller to halt: nothing is skipped or guessed.
The committer tries its decisions with the same `apply_record` on an overlay, so what it writes is what others fold.
"""

from collections.abc import Sequence

from tessera.domain.devices.datasets import forget_data
from tessera.domain.entities import QueueOrder
from tessera.domain.errors import Contradiction
from tessera.domain.folding import arrays as fold_arrays
from tessera.domain.folding import device_offers as fold_device_offers
from tessera.domain.folding import jobs as fold_jobs
from tessera.domain.folding import mig_changes as fold_mig_changes
from tessera.domain.folding import runs as fold_runs
from tessera.domain.folding import shard as fold_shard
from tessera.domain.folding.services import mark_minimums
from tessera.domain.folding.standing.conditions import keep_neighbours
from tessera.domain.folding.steps import APPLY, FORMAT_OF_IDENTITY
from tessera.domain.health import folding as fold_health
from tessera.domain.moves import folding as fold_moves
from tessera.domain.state import State
from tessera.domain.work.dependencies import is_decided
from tessera_schemas.base import run_id
from tessera_schemas.ledger import AnyRecord, LedgerMessage, TakenFact
from tessera_schemas.shard.ledger_form import chain_hash
from tessera_schemas.shard.orders import Order

PARTS = (
    *(fold_arrays, fold_device_offers, fold_health, fold_jobs, fold_mig_changes, fold_moves),
    *(fold_runs, fold_shard),
)
"""Where the functions stand that apply records, each registered by its record's class."""


def fold_message(state: State, message: LedgerMessage, stored: bytes) -> None:
    """Move `state` in place from n-1 to `message.n`; `stored` are the message's bytes as the ledger keeps them."""
    if message.n != state.n + 1:
        raise Contradiction(f"ledger gap: record {message.n} after {state.n}")
    if message.prev != state.chain:
        raise Contradiction(f"ledger fork at {message.n}: it does not continue the chain")
    if message.epoch < state.epoch:
        raise Contradiction(f"record {message.n}: epoch {message.epoch} after {state.epoch}")
    if state.relations.due:
        state.relations.look_past(lambda job_id: is_decided(state, job_id))
    state.is_whole = False
    take_in(state, message.n, message.ts, message.facts_upto, message.orders)
    for record in message.records:
        apply_record(state, record, message.facts)
    if message.epoch != state.epoch:
        raise Contradiction(f"record {message.n}: epoch {message.epoch} was never opened")
    if not state.ledger_id and state.format >= FORMAT_OF_IDENTITY:
        state.ledger_id = message.tx  # made by chance, once, and in every copy and continuation of this ledger
    state.chain, state.is_whole = chain_hash(message.prev, stored), True


def take_in(state: State, n: int, ts: int, facts_upto: int, orders: Sequence[Order]) -> None:
    """The first part of a message: the new now, the newest orders, and what time makes forgotten."""
    if ts < state.ts or facts_upto < state.facts_upto:
        raise Contradiction(f"record {n}: ts or facts_upto goes back")
    if state.decay is not None:
        state.decay.forget(state.decayed, state.ts, ts)
    state.n, state.ts, state.facts_upto = n, ts, facts_upto
    for name in state.lost_due(ts):
        state.remember_node(name, None)
    if ts >= state.recount_ts:
        state.count_due()
    if ts >= state.hour_ends:
        state.turn_hour()
    if ts >= state.data_due:
        forget_data(state)
    for order in orders:
        state.lines.put(order.pool, QueueOrder(order.pool, order.basis_n, order.ts, order.jobs))
    _forget(state)


def apply_record(state: State, record: AnyRecord, facts: Sequence[TakenFact]) -> None:
    """Apply one decision. Raises Contradiction where an overlay's state has moved, too."""
    if not state.is_base:
        state.check_base()
    APPLY[type(record)](state, record, facts)
    if state.changed_services:
        mark_minimums(state)
    if state.neighbours.is_due:
        keep_neighbours(state)


def _forget(state: State) -> None:
    """Drop ended jobs whose key need not be known any more, as the base lists them: oldest first."""
    for job_id in state.remembered.due(state.ts):
        ended = state.ended.get(job_id)
        # A run that is still held keeps its key: the next job of that key would have a run of the same id.
        if ended is not None and state.runs.get(run_id(job_id, ended.attempt)) is None:
            state.drop_ended(ended)
