"""Fold of what is known of the health of nodes; how many are not well, and which are suspected. Pure."""

from collections import Counter
from collections.abc import Collection, Sequence
from operator import attrgetter

from tessera.domain.folding.steps import applies
from tessera.domain.health.known import NodeHealth, with_sick_slots
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera_schemas.ledger import HealthNoted, TakenFact

NOBODY: frozenset[str] = frozenset()


@applies(HealthNoted)
def apply_health_noted(state: State, record: HealthNoted, facts: Sequence[TakenFact]) -> None:
    """Notes what is wrong with a node from here on; of one that is well nothing is kept."""
    if not record.ailments:
        state.health.drop(record.node)
        _mark_cards(state, record.node)
        return
    before = state.health.get(record.node)
    if record.overruled and state.reputations.get(record.node) is not None:
        state.reputations.drop(record.node)  # an operator's word that a node is good ends what spoke against it
        test = state.node_tests.get(record.node)
        if test is not None and test.is_alive:
            state.node_tests.put(record.node, replace(test, void=True))
    since = state.ts if before is None else before.since_ts
    fenced = before is not None and before.fenced
    known = NodeHealth(record.node, since, record.ailments, record.overruled, record.held_back, fenced)
    state.health.put(record.node, known)
    _mark_cards(state, record.node)


def _mark_cards(state: State, name: str) -> None:
    """The node knows from here on which of its cards are sick."""
    node = state.nodes.get(name)
    if node is not None and (marked := with_sick_slots(node, state.health.get(name))) is not node:
        state.put_node(marked)


def count_sick(state: State) -> Counter[tuple[str, str]]:
    """Number of nodes that are not well, by pool and by what is done: `out`, `held_back`, `overruled` or `noted`."""
    found = Counter[tuple[str, str]]()
    for known in state.health.values():
        node, drain = state.nodes.get(known.node), state.drains.get(known.node)
        done = "held_back" if known.held_back else "overruled" if known.overruled else "noted"
        if node is not None:
            found[node.pool, "out" if drain is not None else done] += 1
    return found


def find_suspects(state: State) -> Collection[str]:
    """
    Names of the nodes that take nothing but trials, up to a part of their pool; those first that were suspected first.

    A pool of few nodes has nothing to compare them with, and cannot spare one for a guess: of fewer than ten, by the
    usual part of a tenth, none is kept from use.
    """
    # Asked at each decision, and nearly always there are none.
    found = [known for known in state.health.values() if known.is_suspected] if len(state.health) else []
    body = state.config.body
    if not found or body is None or body.health is None:
        return NOBODY
    there, kept = Counter(node.pool for node in state.nodes.values() if not node.gone), Counter[str]()
    suspects = list[str]()
    for known in sorted(found, key=attrgetter("since_ts", "node")):
        node = state.nodes.get(known.node)
        if node is not None and kept[node.pool] < there[node.pool] * body.health.out_percent // 100:
            kept[node.pool] += 1
            suspects.append(known.node)
    return suspects


def is_suspect(state: State, node: str) -> bool:
    """Whether the node takes nothing but trials."""
    known = state.health.get(node)
    return known is not None and known.is_suspected and node in find_suspects(state)
