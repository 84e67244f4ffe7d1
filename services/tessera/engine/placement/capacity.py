"""Free capacity of nodes, now and in a what-if: by flavor, without runs, with what is leaving. Pure."""

from collections.abc import Collection, Iterable, Sequence

from tessera.domain.devices.networks import pools_drawn, reached
from tessera.domain.devices.resources import Node
from tessera.domain.entities import Earmark, Run
from tessera.domain.health.folding import find_suspects, is_suspect
from tessera.domain.health.spares import find_all_spares, find_spares
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang
from tessera.domain.work.stops import is_stuck
from tessera_schemas.work.placement import Placement

HeldPlaces = tuple[Gang, Collection[Placement]]
"""Pods by the gang whose roles say what each holds."""


def standing(run: Run) -> tuple[Placement, ...]:
    """Placements that an eviction of the run would free: those of its gang, and its surplus pods."""
    return (*run.gang_places, *(extra.placement for extra in run.surplus))


def extra_places(run: Run, ranks: Sequence[int]) -> tuple[Placement, ...]:
    """Placements of surplus pods."""
    return tuple(extra.placement for extra in run.extra if extra.placement.rank in ranks)


def leaving(state: State) -> list[tuple[Run, tuple[Placement, ...]]]:
    """
    Pods that are being stopped already, whoever wanted it: their room comes back without any plan.

    Those that are stuck are left out: a job would wait for ever for pods that never stop.
    """
    found = []
    for run in state.runs.values():
        if run.stopping:
            if not is_stuck(state, run):
                found.append((run, run.places))
        elif run.extra and not is_stuck(state, run):
            # What pods of other roles get of the same run comes back to nobody else.
            kept = run.shift_ranks if run.gains else ()
            going = tuple(e.placement for e in run.extra if e.leaving and e.placement.rank not in kept)
            found += [(run, going)] if going else []
    return found


def is_closed(state: State, node: str) -> bool:
    """Whether a node takes nothing new, however well it is: drained, suspected, or pods did not start or last on it."""
    return is_shut(state, node) or is_suspect(state, node)


def is_shut(state: State, node: str) -> bool:
    """Whether a node takes not even a trial."""
    backoff = state.backoffs.get(node)
    return state.drains.get(node) is not None or (backoff is not None and backoff.until_ts > state.ts)


ClosedNodes = dict[str, tuple[Node, Node]]
"""By name, a node and the same that takes nothing new."""


def closed_nodes(state: State) -> set[str]:
    """The names of the nodes that take nothing new."""
    backed_off = (name for name, backoff in state.backoffs.items() if backoff.until_ts > state.ts)
    return {*backed_off, *(name for name, _ in state.drains.items()), *find_suspects(state)}


def count_backed_off(state: State) -> dict[str, int]:
    """Number of nodes of each pool on which pods did not start or last, and none has since."""
    pools = dict.fromkeys((node.pool for node in state.nodes.values()), 0)
    for node in state.nodes.found(name for name, backoff in state.backoffs.items() if backoff.until_ts):
        pools[node.pool] += 1
    return pools


def is_avoided(node: Node, avoid: Sequence[str]) -> bool:
    """Whether the node, or a domain that it is in (`LABEL=VALUE`), is among those to be avoided."""
    # No name of a node has an equals sign, so that one list holds both, and stored ones read as they did.
    if node.name in avoid:
        return True
    domains = (each.partition("=") for each in avoid if "=" in each)
    return any(node.label(label) == value for label, _, value in domains)


def nodes_for(
    state: State,
    pool: str,
    flavor: str,
    avoid: Sequence[str] = (),
    with_spares: bool = False,
    shut: Collection[str] = frozenset(),
    closed: ClosedNodes | None = None,
) -> list[Node]:
    """
    The nodes of a pool and flavor ("" for all) as decisions see them: one that takes nothing new is not ready.

    Spares are not ready either, except for jobs that may start on them (`with_spares`); nor those that are `shut` to
    the job, as they are kept for others. `closed` remembers what such nodes were like when they were asked for last.
    """
    drained = closed_nodes(state)
    if not with_spares:
        drained |= find_spares(state, pool)
    drained |= frozenset(shut)
    nodes = [node for node in state.nodes.values() if node.pool == pool]
    if avoid:
        nodes = [node for node in nodes if not is_avoided(node, avoid)]
    if flavor:
        nodes = [node for node in nodes if state.tree.is_on(node, flavor)]
    if drained:
        known = {} if closed is None else closed
        nodes = [_closed(node, known) if node.name in drained else node for node in nodes]
    return nodes


def _closed(node: Node, known: ClosedNodes) -> Node:
    # The very object of before for a node that has not changed: who remembers findings by nodes looks at those alone
    # that are others, and reservations keep thousands of nodes from a job for as long as their windows are ahead.
    was = known.get(node.name)
    if was is None or was[0] is not node:
        was = known[node.name] = node, replace(node, ready=False)
    return was[1]


def nodes_without(state: State, *gone: Run | Earmark) -> dict[str, Node]:
    """The nodes that these are on, as they would be without them."""
    return nodes_less(state, ((each.gang, each.places if isinstance(each, Run) else each.placements) for each in gone))


def nodes_less(state: State, held: Iterable[HeldPlaces]) -> dict[str, Node]:
    """The nodes that these pods are on, as they would be without them."""
    found: dict[str, Node] = {}
    for gang, places in held:
        names = {placement.node for placement in places} - found.keys()
        found |= {node.name: node for node in state.nodes.found(names)}
        if pools := pools_drawn(places):
            found = {node.name: node for node in reached(state.nodes.values(), pools)} | found
        gang.take(found, places, -1)
    # A node that anything is held on is no spare, and nearly all of these are.
    empty = {row.pool for row in state.nodes.found(found) if not row.is_held} if state.tree.spares else ()
    spares = find_all_spares(state, empty)
    for name, node in found.items():
        if name in spares or is_closed(state, name):
            found[name] = replace(node, ready=False)
    return found
