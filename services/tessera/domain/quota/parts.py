"""
Quota that follows its pool, or the hour: how much the pool has, and a queue tree in which each part is that amount, and
each lending limit the one of now. Pure.

A pool has what its nodes have had: a node or a device plugin that restarts changes no quota. What is out counts until
it has been out for `OUT_MS`. So what a node counts for follows from the tables and the ledger's time alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tessera.domain.devices.resources import NOTHING, WHOLE_GPU, Amount, Node
from tessera.domain.entities import Drain
from tessera.domain.queues import QueueTree
from tessera.domain.work.evidence import RememberedNode, best_of
from tessera_schemas.config import Quota
from tessera_schemas.shard.lending import lent_percent, lent_until

OUT_MS = 3600 * 1000
"""How long a node counts for quotas that is gone, silent, cordoned, drained or in trouble, and what it lost."""
TREES_MAX = 16
PoolSizes = Mapping[tuple[str, str], Amount]
"""How much each pool has, by (pool, flavor); flavor "" is all nodes of the pool."""


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a node in its pool: its amount in its pool and flavor; from `until` on (ms) it may count otherwise."""

    pool: str
    flavor: str
    amount: Amount
    until: int | None


def share_of(
    tree: QueueTree, node: Node | None, was: RememberedNode | None, drain: Drain | None, ts: int
) -> Share | None:
    """Amount for which the node counts at `ts`; None: nothing."""
    ends = [] if was is None else [was.lost_ts + OUT_MS]
    had = None if was is None or ts >= ends[0] else was.node
    if node is not None and not node.gone:
        out = [since + OUT_MS for since in (node.away_ts, 0 if drain is None else drain.since_ts) if since]
        if out and ts >= min(out):
            return None
        ends += out
        if node.short_ts and ts >= node.short_ts + OUT_MS:
            if node.trouble is not None:
                return None
            node = replace(node, capacity=())
        elif node.short_ts:
            ends.append(node.short_ts + OUT_MS)
        had = best_of(node, had if had is not None and had.pool == node.pool else None)
    if had is None:
        return None
    return Share(had.pool, tree.flavor_of(had), _amount_of(had), min((end for end in ends if end > ts), default=None))


def _amount_of(node: Node) -> Amount:
    return Amount(node.cpu_milli, node.memory_bytes, node.gpus * WHOLE_GPU)


def add_share(sizes: dict[tuple[str, str], Amount], share: Share | None, sign: int = 1) -> None:
    """Adds to the sizes of pools what a node counts for (sign 1), or takes it off (-1)."""
    if share is None:
        return
    for flavor in dict.fromkeys(("", share.flavor)):
        at = (share.pool, flavor)
        sizes[at] = sizes.get(at, NOTHING).plus(share.amount, sign)


def sizes_at_best(tree: QueueTree, nodes: Iterable[Node]) -> PoolSizes:
    """Sizes of pools of nodes that are each at their best."""
    sizes = dict[tuple[str, str], Amount]()
    for node in nodes:
        add_share(sizes, share_of(tree, node, None, None, 0))
    return sizes


def in_numbers(tree: QueueTree, sizes: PoolSizes, unknown: Amount = NOTHING) -> QueueTree:
    """
    The tree with the nominal quota of each part; the tree itself if it has none. Equal sizes give the same tree.

    `unknown` is what a pool has of which nothing is known. What halves leave over is nobody's: 15 GPUs are 7 and 7.
    """
    if not tree.has_parts:
        return tree
    key = (unknown, frozenset(sizes.items()))
    if key not in tree.made:
        if len(tree.made) >= TREES_MAX:
            tree.made.clear()
        queues = {
            name: queue.model_copy(
                update={"quotas": tuple(_numbered(queue.pool, q, sizes, unknown) for q in queue.quotas)}
            )
            for name, queue in tree.queues.items()
        }
        tree.made[key] = replace(tree, queues=queues, made={})
    return tree.made[key]


def at_hour(tree: QueueTree, ts: int) -> QueueTree:
    """The tree with the lending limits of an hour; the tree itself if no queue has any. Equal limits: the same tree."""
    percents = {name: lent_percent(queue.lending, ts) for name, queue in tree.queues.items() if queue.lending}
    lent = {name: percent for name, percent in percents.items() if percent is not None}
    if not lent:
        return tree
    key = ("hour", frozenset(lent.items()))
    if key not in tree.made:
        if len(tree.made) >= TREES_MAX:
            tree.made.clear()
        queues = dict(tree.queues)
        for name, percent in lent.items():
            quotas = tuple(_limited(quota, percent) for quota in queues[name].quotas)
            queues[name] = queues[name].model_copy(update={"quotas": quotas})
        tree.made[key] = replace(tree, queues=queues, made={})
    return tree.made[key]


def _limited(quota: Quota, percent: int) -> Quota:
    """The quota with what may be lent of it at most, GPUs as whole ones; a limit that is lower anyway stays."""
    part, whole = quota.nominal * percent // 100, WHOLE_GPU if quota.resource == "gpu_milli" else 1
    most = part // whole * whole
    limit = quota.lending_limit
    return quota.model_copy(update={"lending_limit": most if limit is None else min(most, limit)})


def next_hour(tree: QueueTree, ts: int) -> int:
    """Time at which a lending limit is another one; 0: never."""
    turns = (lent_until(queue.lending, ts) for queue in tree.queues.values() if queue.lending)
    return min((turn for turn in turns if turn), default=0)


def _numbered(pool: str, quota: Quota, sizes: PoolSizes, unknown: Amount) -> Quota:
    if quota.part_percent is None:
        return quota
    size = sizes.get((pool, quota.flavor), NOTHING) if (pool, "") in sizes else unknown
    part = size.of(quota.resource) * quota.part_percent // 100
    whole = WHOLE_GPU if quota.resource == "gpu_milli" else 1
    return quota.model_copy(update={"nominal": part // whole * whole})
