"""Fold of records about changes of MIG geometry: the node is closed from the first one to the last. Pure."""

from collections.abc import Sequence

from tessera.domain.devices.resources import Node
from tessera.domain.entities import MigChange
from tessera.domain.errors import Contradiction
from tessera.domain.folding.steps import applies
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera_schemas.cluster.labels import MIG_CONFIG_LABEL
from tessera_schemas.ledger import MigChangeBegun, MigChangeEnded, TakenFact
from tessera_schemas.reasons import Code, Reason


@applies(MigChangeBegun)
def apply_mig_change_begun(state: State, record: MigChangeBegun, facts: Sequence[TakenFact]) -> None:
    """Closes the node; raises Contradiction for one that is not known, is in use or is being changed already."""
    node, last = state.nodes.get(record.node), state.mig_changes.get(record.node)
    if node is None or node.is_held or node.is_cut:
        raise Contradiction(f"record {state.n}: the GPUs of node {record.node} cannot be cut now")
    change = MigChange(record.node, record.job_id, record.config, record.before, record.gpus, state.ts)
    if last is not None:
        change = replace(change, times=last.times, took_ms=last.took_ms)
    state.mig_changes.put(record.node, change)
    _close(state, node, change)


@applies(MigChangeEnded)
def apply_mig_change_ended(state: State, record: MigChangeEnded, facts: Sequence[TakenFact]) -> None:
    """Ends the change, or begins to take it back; the node opens with the next that is seen of it."""
    node, change = state.nodes.get(record.node), state.mig_changes.get(record.node)
    if node is None or change is None or change.ended_ts:
        raise Contradiction(f"record {state.n}: the GPUs of node {record.node} are not being cut")
    change = replace(change, until_ts=record.until_ts, times=record.times)
    if record.undo:
        change = replace(change, config=change.before, before=change.config, since_ts=state.ts, undo=True)
        state.mig_changes.put(record.node, change)
        _close(state, node, change)
        return
    took = state.ts - change.since_ts if record.outcome == "done" else change.took_ms
    state.mig_changes.put(record.node, replace(change, ended_ts=state.ts, took_ms=took))
    state.put_node(replace(node, is_cut=False))


def _close(state: State, node: Node, change: MigChange) -> None:
    detail = f"{MIG_CONFIG_LABEL} from {change.before} {'back ' if change.undo else ''}to {change.config}"
    trouble = Reason(code=Code.GPUS_BEING_CUT, field=f"nodes.{node.name}.devices", detail=detail)
    short_ts = node.short_ts or state.ts
    state.put_node(replace(node, ready=False, trouble=trouble, is_cut=True, short_ts=short_ts))
    state.count_node(node.name)
