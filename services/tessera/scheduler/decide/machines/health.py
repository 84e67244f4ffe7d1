"""
Nodes that are kept out: as an operator wants, or for their health.

What sources say of health is noted first, whoever said it, and acted on after all facts of a message: then it is known
which nodes are well again, and the brake on how many of a pool are out at once counts each of them once. First out are
those that have been sick for the longest. A node that is kept out is drained as by an operator, whose `undrain`
overrules all sources until the node was well once: one word opens any node that is closed.
"""

from collections.abc import Sequence
from functools import cache, partial
from operator import attrgetter

from tessera.domain.health.known import NodeHealth, describe, with_word
from tessera.domain.state import State
from tessera.domain.work.stops import ailment_to_fence
from tessera.scheduler.decide.draft import Draft, judges
from tessera.scheduler.decide.elastic import go_on_without
from tessera.scheduler.decide.machines.nodes import end_earmarks_on, end_fence, pool_told
from tessera_schemas.cluster.health import Ailment, HealthPolicy, KnownAilment
from tessera_schemas.facts import DrainRequested, HealthReported, HealthSeen
from tessera_schemas.ledger import HealthNoted, NodeDrained, Revoked
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.run_ends import end_of

BY = "health"


@judges(HealthSeen)
@judges(HealthReported)
def on_health_said(draft: Draft, index: int, fact: HealthSeen | HealthReported) -> None:
    """Notes what one source says of a node, if it is news and the configuration asks for health."""
    note_word(draft, fact.node, fact.source, fact.ailments)


def note_word(draft: Draft, node: str, source: str, said: Sequence[Ailment]) -> None:
    """Notes what a source says of a node, in place of what it said before."""
    state, policy = draft.state, policy_of(draft.state)
    if policy is None or state.nodes.get(node) is None:
        return
    before = state.health.get(node)
    ailments = with_word(before, source, said, policy, state.ts)
    if ailments != (() if before is None else before.ailments):
        _note(draft, node, before, ailments)


@judges(DrainRequested)
def on_drain_requested(draft: Draft, index: int, fact: DrainRequested) -> None:
    """
    Start nothing new on the node; with `evict`, its runs restart elsewhere without a counted attempt.

    An operator's drain takes the place of one for the node's health, and outlasts it; `undo` ends both.
    """
    state, drain = draft.state, draft.state.drains.get(fact.node)
    if state.nodes.get(fact.node) is None and drain is None:
        return
    # Also of a node that is only held back: the operator's word is about the node, not about its drain.
    if fact.undo:
        _overrule(draft, fact.node)
    if (drain is None) is not fact.undo or (drain is not None and drain.by and not fact.undo):
        pool = pool_told(state, fact.node)
        draft.add(NodeDrained(kind="node_drained", node=fact.node, undo=fact.undo, why=fact.why, pool=pool))
    if fact.undo:
        return
    end_earmarks_on(draft, fact.node)
    if fact.evict:
        reason = Reason(code=Code.NODE_DRAINED, field=f"nodes.{fact.node}", detail=fact.why)
        _stop_runs(draft, fact.node, reason, "operator")


def policy_of(state: State) -> HealthPolicy | None:
    """Care for sick machines, as the configuration says; None: nothing."""
    return None if state.config.body is None else state.config.body.health


def _overrule(draft: Draft, node: str) -> None:
    """An operator has said that a node is good: what is known of it keeps it out no more until it was well once."""
    known = draft.state.health.get(node)
    if known is not None and not known.overruled:
        _note(draft, node, known, known.ailments, overruled=True)


def _note(
    draft: Draft,
    node: str,
    before: NodeHealth | None,
    ailments: tuple[KnownAilment, ...],
    overruled: bool = False,
    held_back: bool | None = None,
) -> None:
    if before is not None:
        overruled = overruled or before.overruled
        held_back = before.held_back if held_back is None else held_back
    noted = HealthNoted(
        kind="health_noted",
        node=node,
        ailments=ailments,
        overruled=overruled and bool(ailments),
        held_back=bool(held_back and ailments),
        pool=pool_told(draft.state, node),
    )
    draft.add(noted)


def settle_health(draft: Draft) -> None:
    """Opens nodes that are well enough again, then keeps out those that are not, up to the brake of their pool."""
    # Who is well gives its place to who is sick in this very message: the other way round a full brake would hold
    # somebody back for a node that is open a moment later.
    _open_nodes(draft)
    _end_fences(draft)
    state, policy = draft.state, policy_of(draft.state)
    if policy is None:
        return
    out, most = _count_out(state), cache(partial(_most, state, policy))
    for known in sorted(state.health.values(), key=attrgetter("since_ts", "node")):
        action, node = known.wanted(policy), state.nodes.get(known.node)
        if not action.takes_out or node is None:
            _hold_back(draft, known, False)
            continue
        # A node that an operator drains is out already, by no choice of ours: it takes no place of the brake.
        is_out = state.drains.get(known.node) is not None
        if not is_out and out.get(node.pool, 0) >= most(node.pool):
            _hold_back(draft, known, True)
            continue
        _hold_back(draft, known, False)
        gravest = known.gravest(policy)
        if not is_out:
            out[node.pool] = out.get(node.pool, 0) + 1
            why, pool = describe(gravest), pool_told(state, known.node)
            draft.add(NodeDrained(kind="node_drained", node=known.node, why=why, by=BY, pool=pool))
            end_earmarks_on(draft, known.node)
        # At each message, not only at the first: what was taken over from an older ledger may stand there since.
        if action.stops_runs:
            reason = Reason(code=Code.NODE_SICK, field=f"nodes.{known.node}", detail=describe(gravest))
            _stop_runs(draft, known.node, reason, BY)


def _open_nodes(draft: Draft) -> None:
    """Ends the drains of nodes that nothing keeps out any more, and forgets nodes that are no more."""
    state, policy = draft.state, policy_of(draft.state)
    for known in sorted(state.health.values(), key=attrgetter("node")):
        if policy is None or state.nodes.get(known.node) is None:
            _note(draft, known.node, None, ())
    mine = sorted((drain for _, drain in state.drains.items() if drain.by == BY), key=attrgetter("node"))
    for drain in mine:
        known_now = state.health.get(drain.node)
        if known_now is None or policy is None or not known_now.wanted(policy).takes_out:
            pool = pool_told(state, drain.node)
            draft.add(NodeDrained(kind="node_drained", node=drain.node, undo=True, why=drain.why, by=BY, pool=pool))


def _end_fences(draft: Draft) -> None:
    """Takes back open requests for nodes that are well again, or that an operator opens or takes over."""
    state = draft.state
    there = [fence for _, fence in state.fences.items() if fence.cause and not fence.outcome]
    for fence in sorted(there, key=attrgetter("node")):
        known, drain = state.health.get(fence.node), state.drains.get(fence.node)
        if ailment_to_fence(state, fence.node) is None:
            is_undone = (known is not None and known.overruled) or (drain is not None and not drain.by)
            end_fence(draft, fence, "undone" if is_undone else "back", "" if is_undone else "its health is better")


def _hold_back(draft: Draft, known: NodeHealth, held_back: bool) -> None:
    if known.held_back is not held_back:
        _note(draft, known.node, known, known.ailments, held_back=held_back)


def _count_out(state: State) -> dict[str, int]:
    """Nodes of each pool that are kept out for their health."""
    out: dict[str, int] = {}
    for node in state.nodes.found(name for name, drain in state.drains.items() if drain.by == BY):
        out[node.pool] = out.get(node.pool, 0) + 1
    return out


def _most(state: State, policy: HealthPolicy, pool: str) -> int:
    """So many nodes of a pool may be out for their health at once."""
    there = sum(1 for node in state.nodes.values() if node.pool == pool and not node.gone)
    return max(1, there * policy.out_percent // 100)


def _stop_runs(draft: Draft, node: str, reason: Reason, by: str) -> None:
    """Restarts elsewhere what runs on the node, after its notice; pods beyond a gang go without it."""
    avoids = end_of(reason.code).avoids
    for run in sorted(draft.state.runs_on(node), key=attrgetter("run_id")):
        if run.stopping:
            continue
        if any(place.node == node for place in run.gang_places):
            revoked = Revoked(kind="revoked", run_id=run.run_id, reason=reason, then="requeue", by=by)
            draft.add(revoked.model_copy(update={"avoid": (node,)}) if avoids else revoked)
        else:
            there = [extra.placement.rank for extra in run.surplus if extra.placement.node == node]
            go_on_without(draft, run, there, reason, by)
