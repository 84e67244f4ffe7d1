"""
The committer's decisions: state(n-1) and one batch of inputs give the records of message n. Pure.

Each decision sees the ones before it: a record is applied to an overlay of the state as soon as it is made, by the
same fold that everybody uses. A replay calls `decide` with the inputs that the ledger recorded.
"""

from collections.abc import Sequence

from tessera.domain.folding.fold import take_in
from tessera.domain.state import State
from tessera.engine import ENGINE_ID
from tessera.engine.queueing.scheduling_pass import CapacityCache
from tessera.engine.queueing.search_limit import LOOKS_MAX
from tessera.scheduler.decide import (
    configuration,
    elastic,
    jobs,
    moves,
    plans,
    pools,
    restarts,
    runs,
    taken_over,
    updates,
)
from tessera.scheduler.decide.arrays import settle_arrays, settle_dependencies
from tessera.scheduler.decide.configuration import drain_queues, note_levels, rename_strays
from tessera.scheduler.decide.draft import JUDGE, ROOM_BYTES, Draft, Inputs
from tessera.scheduler.decide.elastic import grow
from tessera.scheduler.decide.jobs import end_missed, record_stranded
from tessera.scheduler.decide.machines import bookings, health, losses, nodes, reputation
from tessera.scheduler.decide.machines.bookings import settle_bookings
from tessera.scheduler.decide.machines.health import settle_health
from tessera.scheduler.decide.machines.promises import start_promised
from tessera.scheduler.decide.machines.reputation import end_tests, judge_nodes, try_suspects
from tessera.scheduler.decide.pools import record_free_slots
from tessera.scheduler.decide.restarts import restart_gangs, start_on_spares
from tessera.scheduler.decide.runs import end_overdue
from tessera.scheduler.decide.starts import place_in_order, start_marked
from tessera_schemas.facts import RunAbsent, RunEnded
from tessera_schemas.ledger import FORMAT, Checkpoint, EpochOpened, FormatRaised, TakenFact

__all__ = ["LOOKS_OF", "CapacityCache", "Inputs", "decide"]
PARTS = (
    *(bookings, configuration, elastic, health, jobs, losses, moves, nodes, plans, pools, reputation, restarts, runs),
    *(taken_over, updates),
)
"""Where the functions stand that judge facts, each registered by its fact's class."""

LOOKS_OF: dict[str, int | None] = {ENGINE_ID: LOOKS_MAX}
"""The engines whose decisions this build computes, and how many looks in vain one message takes by each."""


def decide(state: State, inputs: Inputs, known: CapacityCache | None = None, engine: str = ENGINE_ID) -> Draft:
    """
    The records that follow from `inputs` at `state`, which is not changed.

    `known` carries from one message to the next what is known of the nodes; the records are the same with and without.
    """
    known = CapacityCache() if known is None else known
    # The inputs stand in the same message as the records: what they take of its bound is gone before anything is
    # decided.
    facts, orders = ([part.to_bytes() for part in parts] for parts in (inputs.facts, inputs.orders))
    left = ROOM_BYTES - sum(len(part) + 1 for part in (*facts, *orders))
    draft = Draft(state.overlay(), inputs.facts, left, stored={"facts": facts, "orders": orders, "records": []})
    # Number, time and orders first: every judgement below asks the state for them, and none may see those of the
    # message before.
    take_in(draft.state, inputs.n, inputs.ts, inputs.facts_upto, inputs.orders)
    open_message(draft, inputs)
    # A month's end and what was spent meanwhile come before whatever starts by them.
    note_levels(draft)
    # Facts before deadlines: a run whose start is told in this very message has started, whatever its deadline says.
    # And whatever gives room back comes before whatever takes it, so that room is used in the message that learns of
    # it.
    for index in _order_of(inputs.facts):
        fact = inputs.facts[index].fact
        JUDGE[type(fact)](draft, index, fact)
    # A promise of this message may have spent a budget, by which nothing starts in it either.
    note_levels(draft)
    end_overdue(draft, inputs.facts_wait, inputs.starts_since)
    end_missed(draft)
    if len(draft.state.mig_changes):
        nodes.give_up_changes(draft)
    judge_nodes(draft)
    if len(draft.state.health) or len(draft.state.drains):
        settle_health(draft)
    if len(draft.state.node_tests):
        end_tests(draft)
    if len(draft.state.bookings) or draft.state.index.holders:
        settle_bookings(draft)
    if len(draft.state.moves):
        moves.settle_moves(draft, inputs.starts_since)
    if len(draft.state.move_plans):
        moves.score_moves(draft)
    drain_queues(draft)
    rename_strays(draft)
    record_stranded(draft)
    settle_dependencies(draft)
    settle_arrays(draft)
    # Room that was made for somebody is given before any line is walked, or the first of the line would take what
    # others were evicted for.
    start_promised(draft, known)
    restart_gangs(draft, known)
    start_marked(draft, known)
    start_on_spares(draft, known)
    # Pools share the looks of the message: its time is bounded as a whole, however many pools there are (ADR 0039).
    pools, looks = sorted(pool for pool, line in draft.state.lines.items() if line.jobs), LOOKS_OF[engine]
    for pool in pools:
        place_in_order(draft, pool, known, looks and looks // len(pools))
    try_suspects(draft)
    # Runs grow last, into what nobody in line could use.
    if state.index.elastic:
        grow(draft, known, inputs.starts_since)
    bookings.mend_bookings(draft, state.ts)
    record_free_slots(draft, state.ts)
    draft.state.check_base()
    return draft


def _order_of(facts: Sequence[TakenFact]) -> Sequence[int]:
    """The facts as they arrived, but that how a run ended comes before that nothing of it is left."""
    # Two services say these, and the one that tells how the run ended may have been away for a while.
    ended = {taken.fact.run_id: index for index, taken in enumerate(facts) if type(taken.fact) is RunEnded}
    if not ended:
        return range(len(facts))
    gone = {index: taken.fact.run_id for index, taken in enumerate(facts) if type(taken.fact) is RunAbsent}
    # An absence gets the place of the end that it belongs to, and stands behind it by the second key; all others keep
    # their own. Judged the other way round, a job whose run had succeeded would be released as one that was stopped.
    after = {index: ended.get(run_id, index) for index, run_id in gone.items()}
    return sorted(range(len(facts)), key=lambda index: (after.get(index, index), index in gone))


def open_message(draft: Draft, inputs: Inputs) -> None:
    """Format, epoch and checkpoint records, when this message carries them."""
    if draft.state.format < FORMAT:
        draft.add(FormatRaised(kind="format_raised", format=FORMAT))
    if inputs.holder:
        draft.add(EpochOpened(kind="epoch_opened", epoch=inputs.epoch, holder=inputs.holder))
    if inputs.state_hash:
        draft.add(Checkpoint(kind="checkpoint", state_hash=inputs.state_hash))
