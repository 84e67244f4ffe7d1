"""
The nodes and the windows of a booking that is asked for, or why there are none. Pure.

Named nodes are taken as they are: whatever runs there leaves in time. Chosen ones are free by then: what runs there has
ended by its time limit or by when nearly all such runs have, or may be preempted.
"""

from collections.abc import Collection, Sequence

from tessera.domain.devices.resources import Node
from tessera.domain.entities import Run
from tessera.domain.quota.bookings import Booking, WindowTimes
from tessera.domain.state import State
from tessera.engine.ahead.booked_nodes import is_well, leave_ms, stay_ms
from tessera_schemas.ledger import Booked
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.bookings import (
    AHEAD_MAX_MS,
    BOOKINGS_MAX,
    NODES_MAX,
    PROMISE_PREFIX,
    BookedWindow,
    BookingWish,
)

LATE_MS = 60_000
"""A window may begin so long before its order arrives: the way from people to the ledger takes time."""
TRIES_MAX = 256

ByNode = dict[str, list[WindowTimes]]


def choose_booking(
    state: State, wish: BookingWish, why: str = "", by: str = "", is_promise: bool = False
) -> Booked | Reason:
    """The record of the booking, with its nodes; or the first reason against it, by field."""
    against = _wish_fault(state, wish, is_promise)
    if against is not None:
        return against
    windows, kept = tuple((window.start_ts, window.end_ts) for window in wish.windows), _kept(state, wish.pool)
    find = _choose if wish.node_count or wish.gpus else _named
    chosen = find(state, wish, windows, kept)
    if isinstance(chosen, Reason):
        return chosen
    nodes, times = chosen
    at = tuple(BookedWindow(start_ts=start, end_ts=end) for start, end in times)
    who = tuple(sorted(set(wish.who)))
    return Booked(
        kind="booked",
        name=wish.name,
        pool=wish.pool,
        windows=at,
        nodes=nodes,
        who=who,
        why=why,
        by=by,
        # A lost node is replaced by the same choice.
        node_count=wish.node_count,
        gpus=wish.gpus,
        gpu_model=wish.gpu_model,
    )


def _wish_fault(state: State, wish: BookingWish, is_promise: bool) -> Reason | None:
    if wish.name.startswith(PROMISE_PREFIX) and not is_promise:
        return _fault("name", f"names that begin with {PROMISE_PREFIX} are those of promised starts")
    if state.bookings.get(wish.name) is not None:
        return _fault("name", f"there is a reservation {wish.name} already")
    if len(state.bookings) >= BOOKINGS_MAX:
        numbers = {"reservations": len(state.bookings), "limit": BOOKINGS_MAX}
        return Reason(code=Code.LIMIT_EXCEEDED, field="name", numbers=numbers)
    if not any(node.pool == wish.pool and not node.gone for node in state.nodes.values()):
        return _fault("pool", f"pool {wish.pool} has no nodes")
    unknown = next((who for who in wish.who if who.partition("/")[0] not in state.tree.tenants), None)
    # Without configured tenants there is no list to hold it against.
    if unknown is not None and state.tree.tenants:
        return _fault("who", f"there is no tenant {unknown.partition('/')[0]}")
    past = next((at for at, each in enumerate(wish.windows) if each.start_ts < state.ts - LATE_MS), None)
    if past is not None and not wish.first:
        seconds = (state.ts - wish.windows[past].start_ts) // 1000
        return _fault(f"windows[{past}].start_ts", f"it is {seconds} s ago")
    if wish.windows[-1].end_ts > state.ts + AHEAD_MAX_MS:
        return _fault(f"windows[{len(wish.windows) - 1}].end_ts", "it is more than a year from now")
    return None


def _fault(field: str, detail: str) -> Reason:
    return Reason(code=Code.INVALID_FIELD, field=field, detail=detail)


def _kept(state: State, pool: str) -> list[Booking]:
    return sorted((each for each in state.bookings.values() if each.pool == pool), key=lambda each: each.name)


def _meets(windows: Sequence[WindowTimes], other: Booking) -> bool:
    return any(start < end_of and start_of < end for start, end in windows for start_of, end_of in other.windows)


def _named(
    state: State, wish: BookingWish, windows: tuple[WindowTimes, ...], kept: Sequence[Booking]
) -> tuple[tuple[str, ...], tuple[WindowTimes, ...]] | Reason:
    for at, name in enumerate(wish.nodes):
        node = state.nodes.get(name)
        if node is None or node.gone or node.pool != wish.pool:
            return _fault(f"nodes[{at}]", f"pool {wish.pool} has no node {name}")
    for other in kept:
        # Without nodes it is the whole pool, on either side.
        both = set(wish.nodes).intersection(other.nodes) if wish.nodes and other.nodes else {"*"}
        if both and _meets(windows, other):
            where = "nodes" if "*" in both else f"nodes[{wish.nodes.index(min(both))}]"
            return Reason(code=Code.NOT_FREE_THEN, field=where, detail=f"reservation {other.name} has them then")
    return tuple(sorted(wish.nodes)), windows


def _choose(
    state: State, wish: BookingWish, windows: tuple[WindowTimes, ...], kept: Sequence[Booking]
) -> tuple[tuple[str, ...], tuple[WindowTimes, ...]] | Reason:
    able = [node for node in state.nodes.values() if node.pool == wish.pool and _is_able(state, node, wish)]
    # Found once for each node: the windows that are tried in turn differ in their time alone.
    taken = _windows_by_node(able, kept)
    free = {node.name: free_by(state, node.name) for node in able}
    at, length = max(windows[0][0], state.ts), windows[0][1] - windows[0][0]
    # Only where a node becomes free, or its window with another ends, can there be more nodes than before: these times
    # are tried in turn.
    for _ in range(TRIES_MAX):
        times = windows if not wish.first else ((at, at + length),)
        if (nodes := _enough(wish, _open(able, times, free, taken))) is not None:
            if len(nodes) > NODES_MAX:
                return _fault("gpus", f"these are {len(nodes)} nodes; one reservation has {NODES_MAX} at most")
            return nodes, times
        later = [free[node.name] for node in able if free[node.name] > at]
        later += [end for node in able for _, end in taken.get(node.name, ()) if end > at]
        if not wish.first or not later:
            break
        at = min(later)
    return _too_few(wish, able, free, taken, windows)


def _is_able(state: State, node: Node, wish: BookingWish) -> bool:
    return is_well(state, node) and wish.gpu_model in ("", node.gpu_model) and bool(node.gpus or not wish.gpus)


def _windows_by_node(able: Collection[Node], kept: Sequence[Booking]) -> ByNode:
    found: ByNode = {}
    for booking in kept:
        for name in booking.nodes or [node.name for node in able]:
            found.setdefault(name, []).extend(booking.windows)
    return found


def free_by(state: State, node: str) -> int:
    """Time by which all that runs on the node has left it."""
    return max((_leaves(state, run) for run in state.runs_on(node)), default=state.ts)


def _leaves(state: State, run: Run) -> int:
    job = state.jobs.get(run.job_id)
    if job is None or run.stopping:
        return state.ts + leave_ms(state, run)
    # It need not go yet: that it could by then is enough, and it is told when the window is near.
    if job.preemptible:
        return state.ts + leave_ms(state, job)
    return max(state.ts + leave_ms(state, job), (run.started_ts or run.allocated_ts) + stay_ms(state, job))


def _open(able: Collection[Node], windows: Sequence[WindowTimes], free: dict[str, int], taken: ByNode) -> list[Node]:
    # In all windows of a series, free as of the first: what runs there later is told to leave for each.
    # Those first that are free first: the fewest runs have to hurry.
    there = (node for node in able if is_open(node.name, windows, free, taken))
    return sorted(there, key=lambda node: (free[node.name], node.name))


def is_open(node: str, windows: Sequence[WindowTimes], free: dict[str, int], taken: ByNode) -> bool:
    # An asked time is compared with each other's: they are few on one node.
    meets = any(s < end and start < e for start, end in windows for s, e in taken.get(node, ()))
    return free[node] <= windows[0][0] and not meets


def _enough(wish: BookingWish, nodes: Sequence[Node]) -> tuple[str, ...] | None:
    """As many of the nodes as are wished for, by name; None where these are too few."""
    if wish.node_count:
        names = tuple(sorted(node.name for node in nodes[: wish.node_count]))
        return names if len(names) == wish.node_count else None
    # Whole nodes, in their order, until there are as many GPUs: the last one may bring more than are wished for.
    gpus, names = 0, ()
    for node in nodes:
        gpus, names = gpus + node.gpus, (*names, node.name)
        if gpus >= (wish.gpus or 0):
            return tuple(sorted(names))
    return None


def _too_few(
    wish: BookingWish, able: Collection[Node], free: dict[str, int], taken: ByNode, windows: Sequence[WindowTimes]
) -> Reason:
    # As of the window that was asked for, also where others were tried: it is the one that its sender knows.
    there = _open(able, windows, free, taken)
    field = "node_count" if wish.node_count else "gpus"
    numbers = {"nodes_free": len(there), "gpus_free": sum(node.gpus for node in there), "nodes": len(able)}
    detail = "`first` finds the first time at which there are enough" if not wish.first else ""
    return Reason(code=Code.NOT_FREE_THEN, field=field, numbers=numbers, detail=detail)
