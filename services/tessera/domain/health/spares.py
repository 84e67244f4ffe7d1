"""
Spare nodes: the empty nodes of a pool that are kept for jobs under whose last run a node broke. Pure.

Nothing is stored of them. Which nodes are spares follows from the state and from an order that never changes, so that a
start on any other node leaves the spares as they are, and the next empty node takes the place of one that is used.
"""

from collections.abc import Iterable
from heapq import nsmallest

from tessera.domain.devices.resources import WHOLE_GPU, Node
from tessera.domain.entities import Job
from tessera.domain.health.folding import NOBODY
from tessera.domain.state import State


def find_spares(state: State, pool: str) -> frozenset[str]:
    """
    Names of the spares of a pool: of its nodes that are empty, healthy and open those with the most GPUs, then by name.

    There are fewer than are configured while fewer nodes are empty. One pass over the nodes, none without spares.
    """
    count = state.tree.spares.get(pool, 0)
    if not count:
        return NOBODY
    able = (node for node in state.nodes.values() if node.pool == pool and _may_be_spare(state, node))
    kept = nsmallest(count, able, key=lambda node: (-node.gpus, node.name))
    return frozenset(node.name for node in kept)


def find_all_spares(state: State, pools: Iterable[str] | None = None) -> frozenset[str]:
    """Names of the spares of these pools, or of all."""
    asked = state.tree.spares if pools is None else state.tree.spares.keys() & set(pools)
    return NOBODY.union(*(find_spares(state, pool) for pool in asked)) if asked else NOBODY


def may_use_spares(state: State, job: Job) -> bool:
    """Whether the job may start on spares of its pool."""
    return job.displaced and (state.tree.pool(job.queue) or "") in state.tree.spares


def _may_be_spare(state: State, node: Node) -> bool:
    if not node.ready or node.gone or node.is_held or node.is_cut or node.name in state.given_back:
        return False
    if any(left != WHOLE_GPU for left in node.gpu_free):  # pods of others have some
        return False
    # Neither sick nor suspected, nor only noted as such: what is kept for an emergency is to be sound.
    backoff, known = state.backoffs.get(node.name), state.health.get(node.name)
    is_shut = state.drains.get(node.name) is not None or (backoff is not None and backoff.until_ts > state.ts)
    return not is_shut and (known is None or known.overruled)
