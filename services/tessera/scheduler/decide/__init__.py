"""
The committer's decisions: state(n-1) and one batch of inputs give the records of message n. Pure. Pure.

Each decision sees the ones before it: a record is applied to an overlay of the state as soon as it is made, by the
same fold that everybody uses. A replay calls `decide` with the inputs that the ledger recorded.
"""

from collections.abc import Callable
from typing import Any

from tessera.domain.fold import take_in
from tessera.domain.state import State
from tessera.scheduler.decide.configuration import drain_queues, on_config_proposed
from tessera.scheduler.decide.draft import ROOM_BYTES, Draft, Inputs
from tessera.scheduler.decide.elastic import grow
from tessera.scheduler.decide.free_slots import say_left
from tessera.scheduler.decide.jobs import (
    on_cancel_requested,
    on_hold_requested,
    on_job_admitted,
    on_job_refused,
    on_priority_requested,
    say_stranded,
)
from tessera.scheduler.decide.nodes import on_drain_requested, on_node_seen
from tessera.scheduler.decide.plans import on_plan_proposed
from tessera.scheduler.decide.prices import on_prices_learnt
from tessera.scheduler.decide.refused import on_work_refused
from tessera.scheduler.decide.runs import (
    end_overdue,
    on_bind_failed,
    on_checkpoint_reported,
    on_checkpoint_saved,
    on_eviction_blocked,
    on_pods_back,
    on_pods_bound,
    on_pods_gone,
    on_pods_lost,
    on_pods_made,
    on_run_absent,
    on_run_ended,
    on_run_idle,
    on_run_lost,
    on_run_started,
    on_run_untouched,
)
from tessera.scheduler.decide.scheduling_pass import CapacityCache
from tessera.scheduler.decide.starts import place_line, start_marked
from tessera_schemas.facts import (
    BindFailed,
    CancelRequested,
    CheckpointReported,
    CheckpointSaved,
    ConfigProposed,
    DrainRequested,
    EvictionBlocked,
    HoldRequested,
    JobAdmitted,
    JobRefused,
    NodeSeen,
    PlanProposed,
    PodsBack,
    PodsBound,
    PodsGone,
    PodsLost,
    PodsMade,
    PricesLearnt,
    PriorityRequested,
    RunAbsent,
    RunEnded,
    RunIdle,
    RunLost,
    RunStarted,
    RunUntouched,
    WorkRefused,
)
from tessera_schemas.ledger import FORMAT, AnyRecord, Checkpoint, EpochOpened, FormatRaised

__all__ = ["CapacityCache", "Inputs", "decide"]


def decide(state: State, inputs: Inputs, known: CapacityCache | None = None) -> tuple[AnyRecord, ...]:
    """
    The records that follow from `inputs` at `state`, which is not changed.

    `known` carries from one message to the next what is known of the nodes; the records are the same with and without.
    """
    known = {} if known is None else known
    taken_bytes = sum(len(part.to_bytes()) + 1 for part in (*inputs.facts, *inputs.orders))
    draft = Draft(state.overlay(), inputs.facts, ROOM_BYTES - taken_bytes)
    take_in(draft.state, inputs.n, inputs.ts, inputs.facts_upto, inputs.orders)
    open_message(draft, inputs)
    for index, taken in enumerate(inputs.facts):
        JUDGE[type(taken.fact)](draft, index, taken.fact)
    end_overdue(draft)
    drain_queues(draft)
    say_stranded(draft)
    start_marked(draft)
    for pool in sorted(pool for pool, _ in draft.state.lines.items()):
        place_line(draft, pool, known)
    if state.index.elastic:
        grow(draft)
    say_left(draft, state.ts)
    return tuple(draft.records)


def open_message(draft: Draft, inputs: Inputs) -> None:
    """Format, epoch and checkpoint records, when this message carries them."""
    if draft.state.format < FORMAT:
        draft.add(FormatRaised(kind="format_raised", format=FORMAT))
    if inputs.holder:
        draft.add(EpochOpened(kind="epoch_opened", epoch=inputs.epoch, holder=inputs.holder))
    if inputs.state_hash:
        draft.add(Checkpoint(kind="checkpoint", state_hash=inputs.state_hash))


JUDGE: dict[type[Any], Callable[[Draft, int, Any], None]] = {
    JobAdmitted: on_job_admitted,
    JobRefused: on_job_refused,
    CancelRequested: on_cancel_requested,
    HoldRequested: on_hold_requested,
    PriorityRequested: on_priority_requested,
    CheckpointReported: on_checkpoint_reported,
    DrainRequested: on_drain_requested,
    ConfigProposed: on_config_proposed,
    NodeSeen: on_node_seen,
    PodsMade: on_pods_made,
    PodsBound: on_pods_bound,
    BindFailed: on_bind_failed,
    RunStarted: on_run_started,
    RunEnded: on_run_ended,
    EvictionBlocked: on_eviction_blocked,
    RunUntouched: on_run_untouched,
    WorkRefused: on_work_refused,
    PodsBack: on_pods_back,
    PodsGone: on_pods_gone,
    PodsLost: on_pods_lost,
    RunAbsent: on_run_absent,
    RunLost: on_run_lost,
    RunIdle: on_run_idle,
    CheckpointSaved: on_checkpoint_saved,
    PlanProposed: on_plan_proposed,
    PricesLearnt: on_prices_learnt,
}
