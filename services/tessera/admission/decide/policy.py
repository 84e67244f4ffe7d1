"""The policy that admission judges by: the configuration in force and the shapes of the nodes, read from views."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tessera.domain.devices.empty_nodes import no_slices_taken
from tessera.domain.devices.resources import WHOLE_GPU, Amount, Node, RoleNeed
from tessera.domain.queues import UNLIMITED, QueueTree, queue_tree
from tessera.domain.quota.parts import in_numbers, sizes_at_best
from tessera.domain.work.evidence import RememberedNode, at_their_best
from tessera.engine.placement.inadmissible import EmptyNodes, unreachable
from tessera_schemas.config import Config
from tessera_schemas.reasons import Reason
from tessera_schemas.views import NodeView
from tessera_schemas.work.templates import JobTemplate

VERDICTS_MAX = 4096
T = TypeVar("T")


class Pools:
    """
    The nodes of every pool by shape alone, each at its best: what runs on them does not matter to whether a gang could
    ever fit.

    A verdict is remembered per pool and gang shape for as long as the nodes keep theirs.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes = tuple(sorted(nodes, key=lambda node: (node.name, node.pool)))
        self._by_pool: dict[str, list[Node]] = {}
        for node in self.nodes:
            self._by_pool.setdefault(node.pool, []).append(node)
        self._empty: dict[tuple[str, int], dict[str, EmptyNodes]] = {}
        self._numbered: tuple[QueueTree, QueueTree] | None = None
        self._verdicts: dict[tuple[str, str, tuple[str, ...], int, tuple[RoleNeed, ...]], Reason | None] = {}

    def in_numbers(self, tree: QueueTree | None) -> QueueTree | None:
        """
        The tree with parts of pools as amounts of these nodes: what a refusal for good rests on.

        Nothing is refused for the quota of a pool that has no nodes yet.
        """
        if tree is None or not tree.has_parts:
            return tree
        if self._numbered is None or self._numbered[0] is not tree:
            unknown = Amount(UNLIMITED, UNLIMITED, UNLIMITED)
            self._numbered = tree, in_numbers(tree, sizes_at_best(tree, self.nodes), unknown)
        return self._numbered[1]

    def inadmissible(
        self, tree: QueueTree, queue: str, flavors: tuple[str, ...], roles: tuple[RoleNeed, ...]
    ) -> Reason | None:
        """
        Why no state of the queue's pool could ever hold the gang on one of these flavors; None when one could.

        Nothing is refused for a pool that has no nodes yet.
        """
        pool = tree.queues[queue].pool
        key = (pool, queue if flavors != ("",) else "", flavors, tree.version, roles)
        if key not in self._verdicts:
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            known = self._empty.get((pool, tree.version))
            if known is None:
                self._empty = {of: known for of, known in self._empty.items() if of[1] == tree.version}
                known = self._empty[pool, tree.version] = {}
            self._verdicts[key] = unreachable(roles, self._by_pool.get(pool, ()), tree, queue, flavors, known)
        return self._verdicts[key]


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """
    Admission's view of the configuration as of ledger record `n`; `tree` is None before the first configuration.

    `has_steps`: the installation has an image for `launcher: steps`.
    """

    n: int = 0
    tree: QueueTree | None = None
    pools: Pools = field(default_factory=Pools)
    templates: Mapping[str, JobTemplate] = field(default_factory=dict)
    has_steps: bool = False


def tree_of(config: Config | None) -> QueueTree | None:
    """Queue tree of a configuration; None while none is in force."""
    return None if config is None or config.body is None else queue_tree(config)


def templates_of(config: Config | None) -> dict[str, JobTemplate]:
    """Job templates of a configuration by name; none while no configuration is in force."""
    return {} if config is None or config.body is None else {found.name: found for found in config.body.templates}


def shape(view: NodeView) -> Node:
    """The node with nothing on it."""
    return Node(
        view.name,
        view.pool,
        True,
        view.cpu_milli,
        view.memory_bytes,
        view.pods,
        view.gpus,
        view.gpu_model,
        view.device_profile,
        tuple(sorted(view.labels.items())),
        tuple(sorted(view.taints)),
        view.cpu_milli,
        view.memory_bytes,
        view.pods,
        (WHOLE_GPU,) * view.gpus,
        view.gone,
        view.gpu_memory_bytes,
        view.mig_geometry,
        view.devices,
        view.devices,
        no_slices_taken(view.gpus, view.mig_geometry),
        gpu_uuids=view.gpu_uuids,
        mig_instances=view.mig_instances,
        tolerated=tuple(sorted(view.tolerated)),
        capacity=tuple(sorted(view.capacity)),
        gpu_resource=view.gpu_resource,
        gpu_default=view.gpu_default,
        share_milli=view.share_milli,
    )


class NodeShapes:
    """Decodes only what changed, since views change with every allocation and shapes almost never."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[bytes, Node]] = {}
        self._remembered: dict[str, tuple[bytes, RememberedNode]] = {}
        self._judged: tuple[list[Node], list[RememberedNode]] = [], []
        self.pools = Pools()

    def update(self, views: Mapping[str, bytes], remembered: Mapping[str, bytes] | None = None) -> Pools:
        """
        The pools as of these views of nodes, and of nodes as they were at their best.

        The same object, with its verdicts, as long as no shape differs.
        """
        self._seen = _decoded(views, self._seen, shape)
        self._remembered = _decoded(remembered or {}, self._remembered, _remembered)
        judged = [node for _, node in self._seen.values()], [row for _, row in self._remembered.values()]
        if judged != self._judged:
            self._judged = judged
            fresh = at_their_best(*judged)
            if tuple(fresh) != self.pools.nodes:
                self.pools = Pools(fresh)
        return self.pools


def _remembered(view: NodeView) -> RememberedNode:
    return RememberedNode(view.name, view.lost_ts, shape(view))


def _decoded(
    views: Mapping[str, bytes], known: Mapping[str, tuple[bytes, T]], read: Callable[[NodeView], T]
) -> dict[str, tuple[bytes, T]]:
    """What each view says, decoded again only where its bytes differ."""
    found: dict[str, tuple[bytes, T]] = {}
    for name, stored in views.items():
        old = known.get(name)
        found[name] = old if old is not None and old[0] == stored else (stored, read(NodeView.from_bytes(stored)))
    return found
