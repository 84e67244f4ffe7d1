"""Facts about nodes: how they are now, and which an operator wants empty."""

from tessera.domain.devices.resources import is_as_seen
from tessera.domain.devices.slots import while_held
from tessera.scheduler.decide.draft import Draft, judges
from tessera.scheduler.decide.elastic import go_on_without
from tessera_schemas.facts import DrainRequested, NodeSeen
from tessera_schemas.ledger import EarmarkEnded, NodeChanged, NodeDrained, Revoked
from tessera_schemas.reasons import Code, Reason


@judges(NodeSeen)
def on_node_seen(draft: Draft, index: int, fact: NodeSeen) -> None:
    """Records how a node is now if anything changed, and ends earmarks on devices that it no longer has."""
    before = draft.state.nodes.get(fact.name)
    seen = while_held(fact, before)
    if is_as_seen(before, seen):
        return
    draft.add(NodeChanged(kind="node_changed", fact=index))
    usable = seen.ready and not seen.gone and seen.trouble is None
    end_earmarks_on(draft, seen.name, devices_from=seen.gpus if usable else None)


def end_earmarks_on(draft: Draft, node: str, devices_from: int | None = None) -> None:
    """End earmarks on a node that is no longer available, or only on its devices from number `devices_from` on."""
    for mark in sorted(draft.state.earmarks.values(), key=lambda mark: mark.owner):
        there = [p for p in mark.placements if p.node == node]
        if any(devices_from is None or any(d >= devices_from for d in p.devices) for p in there):
            draft.add(EarmarkEnded(kind="earmark_ended", owner=mark.owner, why="node_lost"))


@judges(DrainRequested)
def on_drain_requested(draft: Draft, index: int, fact: DrainRequested) -> None:
    """Start nothing new on the node; with `evict`, its runs restart elsewhere without a counted attempt."""
    state = draft.state
    drained = state.drains.get(fact.node) is not None
    if state.nodes.get(fact.node) is None and not drained:
        return
    if drained is fact.undo:
        draft.add(NodeDrained(kind="node_drained", node=fact.node, undo=fact.undo, why=fact.why))
    if fact.undo:
        return
    end_earmarks_on(draft, fact.node)
    if fact.evict:
        reason = Reason(code=Code.NODE_DRAINED, field=f"nodes.{fact.node}", detail=fact.why)
        for run in state.runs.found(sorted(state.index.runs_on.get(fact.node, ()))):
            if run.stopping:
                continue
            if any(placement.node == fact.node for placement in run.gang_places):
                draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=reason, then="requeue", by="operator"))
            else:
                there = [extra.placement.rank for extra in run.surplus if extra.placement.node == fact.node]
                go_on_without(draft, run, there, reason, "operator")
