"""The checker's own arithmetic of quotas: who uses what, and whether that is within the limits of the queue tree."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.config import ConfigBody, Queue, Quota
from tessera_schemas.facts import NodeSeen
from tessera_schemas.shard.lending import WeekHours

RESOURCES = ("cpu_milli", "memory_bytes", "gpu_milli")
FlavorResource = tuple[str, str]
"""(flavor, resource); flavor "" counts all nodes."""
WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
OUT_MS = 3_600_000
"""How long a node that is gone counts where a quota is a part of its pool, by docs/queues.md."""


class Quotas:
    """
    `use` is what each queue holds of each cell: its runs until their release, and what is kept for its jobs. A queue
    that was `removed` while runs of it live stays without quotas, below the nearest it was below that is an inner one.

    How much a pool has is known between bounds: all that its nodes have had, and what is well now. A rule that forbids
    takes the upper one, and one that demands of a run that it holds what is lent takes the lower.
    """

    def __init__(self) -> None:
        self.body: ConfigBody | None = None
        self.queues: dict[str, Queue] = {}
        self.removed: dict[str, str | None] = {}
        self.use: Counter[tuple[str, FlavorResource]] = Counter()
        self.seen: dict[str, list[tuple[int, NodeSeen]]] = {}
        self.drained: set[str] = set()
        self.cut: dict[str, bool] = {}  # nodes whose MIG geometry is being changed; False: until it is seen again
        self.ts = 0
        self._least = False

    def configure(self, body: ConfigBody, pools: Mapping[str, str]) -> None:
        """Takes a configuration as the one in force; `pools` has those of the queues of which something runs."""
        inner, names = {queue.parent for queue in body.queues}, {queue.name for queue in body.queues}
        above = {name: (q.name for q in self.path(name) if q.name in inner) for name in pools.keys() - names}
        self.removed = {name: next(found, None) for name, found in above.items()}
        kept = [Queue(name=name, pool=pools[name], parent=parent) for name, parent in self.removed.items()]
        self.body, self.queues = body, {queue.name: queue for queue in (*body.queues, *kept)}

    def takes_jobs(self, name: str) -> bool:
        """Whether the queue is there, and neither inner nor removed."""
        return name in self.queues and name not in self.removed and not self.children(name)

    def is_loose(self, name: str) -> bool:
        """Whether the queue was removed and stands below none, so that it holds what everybody in its pool could."""
        return self.removed.get(name, name) is None

    def path(self, name: str) -> list[Queue]:
        """The queue and those above it; none of a queue that is not there."""
        queue = self.queues.get(name)
        return [] if queue is None else [queue, *self.path(queue.parent or "")]

    def add(self, queue: str, flavor: str, amount: Mapping[str, int], sign: int = 1) -> None:
        """Adds an amount to what the queue uses (sign 1), or takes the amount off (-1)."""
        for cell in self.cells(flavor, amount):
            self.use[queue, cell] += sign * amount[cell[1]]

    def cells(self, flavor: str, amount: Mapping[str, int]) -> list[FlavorResource]:
        """Cells (flavor, resource) that an amount counts in: on all nodes, and on those of its flavor."""
        return [(f, r) for f in dict.fromkeys(("", flavor)) for r in sorted(amount) if amount[r]]

    def over(self, name: str, flavor: str, amount: Mapping[str, int]) -> Iterator[str]:
        """Limits on the way up the tree that a queue's use, just raised by `amount`, exceeds."""
        for cell in self.cells(flavor, amount):
            if self.covers(name, cell):
                yield from self._over(self.path(name), cell)

    def _over(self, path: list[Queue], cell: FlavorResource) -> Iterator[str]:
        for queue in path:
            quota, total, used = self.quota(queue, cell), self._total(queue, cell), self.used(queue, cell)
            if queue.parent is not None and used <= self._kept(queue, cell):
                return  # it takes nothing from those above
            most = total if queue.parent is None else None
            if queue.parent is not None and quota is not None and quota.borrowing_limit is not None:
                most = total + quota.borrowing_limit
            if most is not None and used > most:
                yield f"queue {queue.name} uses {used} of {most} of {cell}"

    def lent(self, queue: Queue, flavor: str, amount: Mapping[str, int], least: bool = False) -> bool:
        """Whether the queue, with those below it, takes more than they have, or surely have, of what is asked for."""
        cells = [cell for cell in self.cells(flavor, amount) if self.covers(queue.name, cell)]
        self._least = least
        found = any(self.used(queue, cell) > self._total(queue, cell) for cell in cells)
        self._least = False
        return found

    def has_left(self, queue: Queue, flavor: str, amount: Mapping[str, int]) -> bool:
        """Whether the queue, with those below it, surely has so much more than it uses."""
        cells = [cell for cell in self.cells(flavor, amount) if self.covers(queue.name, cell)]
        self._least = True
        found = all(self.used(queue, cell) + amount[cell[1]] <= self._total(queue, cell) for cell in cells)
        self._least = False
        return found

    def firm_beyond(self, name: str, cell: FlavorResource, use: Mapping[tuple[str, FlavorResource], int]) -> bool:
        """Whether `use` of a leaf is more than its nominal quota and those above it hold, beside that of the others."""
        path = self.path(name)
        if len(path) < 2 or not self.covers(name, cell) or not self._beyond(path[0], cell, use):
            return False
        return self._beyond(path[-1], cell, use) > 0

    def _beyond(self, queue: Queue, cell: FlavorResource, use: Mapping[tuple[str, FlavorResource], int]) -> int:
        below = sum(self._beyond(child, cell, use) for child in self.children(queue.name))
        return max(0, use.get((queue.name, cell), 0) + below - self._nominal(queue, cell))

    def covers(self, name: str, cell: FlavorResource) -> bool:
        """Tells whether any queue of the tree has a quota for the cell."""
        return any(self.quota(queue, cell) for queue in self.tree(name))

    def root(self, name: str) -> str:
        """Name of the root above a queue; "" for a queue that is not configured."""
        return self.path(name)[-1].name if name in self.queues else ""

    def flavors(self, name: str, amount: Mapping[str, int]) -> set[str]:
        """
        Flavors that a job of the queue must choose from: those with quotas, without any whose quotas are narrower.
        """
        cells = {(q.flavor, q.resource) for queue in self.tree(name) for q in queue.quotas if amount.get(q.resource)}
        named = {flavor for flavor, _ in cells if flavor}
        rest = all(("", resource) in cells for flavor, resource in cells if flavor)
        return named | ({"!" + ",".join(sorted(named)) if named else ""} if rest else set())

    def is_on(self, node: NodeSeen, flavor: str) -> bool:
        """Tells whether a node is of the flavor; "" is every node, and `!a,b` every one of no flavor named."""
        of = self.flavor_of(node)
        return of not in flavor[1:].split(",") if flavor[:1] == "!" else flavor in ("", of)

    def flavor_of(self, node: NodeSeen) -> str:
        """Name of the first flavor that the node's labels and GPU model match; "" for none."""
        flavors = self.body.flavors if self.body else ()
        of_it = (each for each in flavors if each.node_labels.items() <= node.labels.items())
        return next((each.name for each in of_it if not each.gpu_models or node.gpu_model in each.gpu_models), "")

    def used(self, queue: Queue, cell: FlavorResource) -> int:
        """Use of the queue: its own, and use of queues below it beyond what they never lend."""
        spill = (max(0, self.used(child, cell) - self._kept(child, cell)) for child in self.children(queue.name))
        return self.use[queue.name, cell] + sum(spill)

    def _total(self, queue: Queue, cell: FlavorResource) -> int:
        lent = sum(self._total(child, cell) - self._kept(child, cell) for child in self.children(queue.name))
        return lent + self._nominal(queue, cell)

    def _nominal(self, queue: Queue, cell: FlavorResource) -> int:
        quota = self.quota(queue, cell)
        if quota is None or quota.part_percent is None:
            return quota.nominal if quota else 0
        part = self._size(queue.pool, cell) * quota.part_percent // 100
        return part // 1000 * 1000 if quota.resource == "gpu_milli" else part

    def _size(self, pool: str, cell: FlavorResource) -> int:
        flavor, resource = cell
        total = 0
        for name, states in self.seen.items():
            since, now = states[-1]
            of_it = [node.pool == pool and flavor in ("", self.flavor_of(node)) for _, node in states]
            had = [_amount(node, resource) for (_, node), fits in zip(states, of_it, strict=True) if fits]
            if self._least:
                is_out = not now.ready or now.gone or name in self.drained or name in self.cut
                total += had[-1] if all(of_it) and not is_out else 0
            elif had and (not now.gone or self.ts < since + OUT_MS):
                total += max(had)
        return total

    def _kept(self, queue: Queue, cell: FlavorResource) -> int:
        quota = self.quota(queue, cell)
        limit = None if quota is None else self._lent_at_most(queue, quota)
        return 0 if limit is None else max(0, self._total(queue, cell) - limit)

    def _lent_at_most(self, queue: Queue, quota: Quota) -> int | None:
        """Most that may be lent of the quota, by itself and by the hour, which of a part of the pool is not judged."""
        hours = [] if quota.part_percent else [hours for hours in queue.lending if is_within(hours, self.ts)][:1]
        parts = [quota.nominal * each.percent // 100 for each in hours]
        if quota.resource == "gpu_milli":
            parts = [part - part % 1000 for part in parts]
        return min([*parts, *([] if quota.lending_limit is None else [quota.lending_limit])], default=None)

    def children(self, name: str) -> list[Queue]:
        """Queues whose parent is the named one."""
        return [other for other in self.queues.values() if other.parent == name]

    def tree(self, name: str) -> list[Queue]:
        """Queues of the tree that a queue is in."""
        root = self.root(name)
        return [queue for queue in self.queues.values() if root and self.root(queue.name) == root]

    def quota(self, queue: Queue, cell: FlavorResource) -> Quota | None:
        """Quota of the queue for one cell, or None."""
        return next((quota for quota in queue.quotas if (quota.flavor, quota.resource) == cell), None)


def _amount(node: NodeSeen, resource: str) -> int:
    whole = max(node.gpus, node.capacity.get(node.gpu_resource or GPU_RESOURCE, 0)) * 1000
    return whole if resource == "gpu_milli" else int(getattr(node, resource))


def is_within(hours: WeekHours, ts: int) -> bool:
    """Whether the ledger's time is within the hours, by the clock and the calendar."""
    ahead = timedelta(hours=int(hours.utc_offset[1:3]), minutes=int(hours.utc_offset[4:]))
    moment = datetime.fromtimestamp(ts / 1000, UTC) + (-ahead if hours.utc_offset[0] == "-" else ahead)
    clock, (begin, end) = f"{moment:%H:%M}", hours.hours.split("-")
    is_next_day = begin > end and clock < end
    inside = begin <= clock < end if begin < end else is_next_day or clock >= begin
    first, last = WEEK.index(hours.days[:3]), WEEK.index(hours.days[-3:])
    return inside and (moment.weekday() - is_next_day - first) % 7 <= (last - first) % 7
