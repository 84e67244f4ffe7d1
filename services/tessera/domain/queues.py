"""The configuration as decisions ask for it: the queue tree, its quotas, priority classes, flavors of nodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import groupby

from tessera.domain.devices.amounts import Over
from tessera.domain.devices.levels import in_groups, with_levels
from tessera.domain.devices.resources import RESOURCES, Amount, Node, role_need, tolerated_taints
from tessera.domain.entities import Job, RemovedQueue
from tessera.domain.work.gang import Gang, bearing
from tessera.domain.work.one_model import on_one_model
from tessera_schemas.cluster.device_claims import GresClass
from tessera_schemas.config import (
    Config,
    ConfigBody,
    Defaults,
    Flavor,
    Level,
    Limits,
    Policy,
    Pool,
    Queue,
    Quota,
    Tenant,
)
from tessera_schemas.job import JobSpec
from tessera_schemas.work.money import Money
from tessera_schemas.work.pod_template import Mount

UNLIMITED = 2**63 - 1
BUT = "!"
"""Begins what stands in place of a flavor for all nodes but those of some: `!a100,l4`."""
Cell = tuple[str, str]
"""What one quota is about: (flavor, resource); flavor "" counts all nodes, those of every flavor with them."""


@dataclass(frozen=True)
class QueueTree:
    """
    Look-ups over one configuration; made once per version, and when a removed queue holds nothing any more.

    A queue that was taken out stays among `queues` while runs of it hold something: without quotas of its own, so that
    all of it is borrowed, and without jobs that could start.
    """

    version: int
    queues: dict[str, Queue]
    tenants: dict[str, Tenant]
    priorities: dict[str, int]
    flavors: tuple[Flavor, ...]
    policy: Policy
    topology: tuple[Level, ...] = ()
    new_classes: Mapping[str, str] = field(default_factory=dict)
    """The class that took the place of another, by the former name."""
    knows_all: bool = True
    """False in ledgers before format 4: there a job of a missing tenant started, and a missing class counted as 0."""
    pools: tuple[Pool, ...] = ()
    defaults: Defaults = field(default_factory=Defaults)
    mounts: tuple[Mount, ...] = ()
    removed: frozenset[str] = frozenset()
    money: Money | None = None
    gres: tuple[GresClass, ...] = ()
    made: dict[object, "QueueTree"] = field(default_factory=dict, compare=False, repr=False)
    # Trees made of this one lately, with numbers for parts of pools (`tessera.domain.quota.parts`).

    @cached_property
    def has_parts(self) -> bool:
        """Whether any quota is a part of its pool."""
        return any(quota.part_percent is not None for queue in self.queues.values() for quota in queue.quotas)

    @cached_property
    def tolerated(self) -> dict[str, tuple[tuple[str, str, str], ...]]:
        """Standing tolerations by pool, in the form of `Node.tolerated`; pools without any are left out."""
        return {pool.name: tolerated_taints(pool.tolerations) for pool in self.pools if pool.tolerations}

    @cached_property
    def spares(self) -> dict[str, int]:
        """Number of spare nodes by pool; pools without any are left out."""
        return {pool.name: pool.spare_nodes for pool in self.pools if pool.spare_nodes}

    def tolerated_by(self, tenant: str) -> tuple[tuple[str, str, str], ...]:
        """Standing tolerations of a tenant, in the form of `Need.tolerated`."""
        return tolerated_taints(self.tenants[tenant].tolerations) if tenant in self.tenants else ()

    def gang_of(self, spec: JobSpec, tenant: str, as_made: bool, one_model: bool = True, job_id: str = "") -> Gang:
        """
        The gang that a job of the tenant asks for, levels by their labels; its pods bear what its tenant's do.

        Without `one_model`, as before `ONE_MODEL_FROM`, GPUs of any models do for it, and CPUs of any NUMA zones.
        """
        roles = [role_need(role, as_made, one_model, tenant, job_id) for role in spec.roles]
        needs = with_levels(in_groups(roles, spec.groups), self.levels, self.policy.gang_topology)
        return bearing(on_one_model(needs, spec, as_made) if one_model else needs, self.tolerated_by(tenant))

    def limits_of(self, tenant: str) -> Limits:
        """The tenant's limits; the default ones of a tenant that the configuration does not know."""
        return self.tenants[tenant].limits if tenant in self.tenants else Limits()

    @cached_property
    def levels(self) -> dict[str, str]:
        """The label of each topology level by its short name, widest first."""
        return {level.name: level.label for level in self.topology}

    @cached_property
    def children(self) -> dict[str, tuple[str, ...]]:
        """The queues right below each inner queue, by name."""
        below: dict[str, list[str]] = {}
        for name in sorted(self.queues):
            if (parent := self.queues[name].parent) is not None:
                below.setdefault(parent, []).append(name)
        return {name: tuple(names) for name, names in below.items()}

    @cached_property
    def _pools(self) -> dict[str, str]:
        taking = self.queues.keys() - self.children.keys() - self.removed
        return {name: queue.pool for name, queue in self.queues.items() if name in taking}

    @cached_property
    def queues_of(self) -> dict[str, frozenset[str]]:
        """The names of the leaves that use each pool; only they take jobs."""
        names = sorted(self._pools, key=self._pools.__getitem__)
        return {pool: frozenset(of) for pool, of in groupby(names, self._pools.__getitem__)}

    @cached_property
    def quotas(self) -> dict[str, dict[Cell, Quota]]:
        """Each queue's quotas by what they are about."""
        return {name: {(q.flavor, q.resource): q for q in queue.quotas} for name, queue in self.queues.items()}

    @cached_property
    def own(self) -> dict[str, tuple[int, int, int]]:
        """
        Amount of each of RESOURCES that a queue and all below it may use without borrowing; UNLIMITED without quotas.

        Of all flavors together: by the quotas of any flavor, else by the sum of those of each.
        """
        return {name: self._own(name) for name in self.queues}

    def _own(self, queue: str) -> tuple[int, int, int]:
        cells = self.covered[self.roots[queue]]
        quotas = [quota for name in self._below(queue) for quota in self.queues[name].quotas]
        cpu, memory, gpu = (
            sum(q.nominal for q in quotas if q.resource == r and bool(q.flavor) is (("", r) not in cells))
            if any(resource == r for _, resource in cells)
            else UNLIMITED
            for r in RESOURCES
        )
        return cpu, memory, gpu

    def _below(self, queue: str) -> list[str]:
        """The queue and all below it."""
        return [queue, *(name for child in self.children.get(queue, ()) for name in self._below(child))]

    @cached_property
    def roots(self) -> dict[str, str]:
        """The top of the tree that each queue is in; itself when it has no parent."""
        return {name: self.path(name)[-1] for name in self.queues}

    @cached_property
    def covered(self) -> dict[str, frozenset[Cell]]:
        """
        Resources and flavors for which any queue of a tree has a quota, by the tree's root; all others are unlimited.
        """
        cells: dict[str, set[Cell]] = {}
        for name in self.queues:
            cells.setdefault(self.roots[name], set()).update(self.quotas[name])
        return {root: frozenset(found) for root, found in cells.items()}

    @cached_property
    def has_flavor_quotas(self) -> bool:
        """Whether any quota is of one flavor; without, every queue may use every node of its pool."""
        return any(flavor for cells in self.covered.values() for flavor, _ in cells)

    def path(self, queue: str) -> tuple[str, ...]:
        """The queue and everything above it, the root last."""
        names = [queue]
        while (parent := self.queues[names[-1]].parent) is not None:
            names.append(parent)
        return tuple(names)

    def pool(self, queue: str) -> str | None:
        """The node pool that the queue uses; None when there is no such queue, or it is not one that takes jobs."""
        return self._pools.get(queue)

    @cached_property
    def loose(self) -> tuple[str, ...]:
        """Removed queues that stand in no tree any more: what they hold, everybody in their pool could have."""
        return tuple(name for name in sorted(self.removed) if self.queues[name].parent is None)

    def is_beside(self, queue: str, owner: str) -> bool:
        """Whether what `queue` holds may be the other's: both are in one tree, or it is loose in the other's pool."""
        if queue in self.loose:
            return self.queues[queue].pool == self.queues[owner].pool
        return self.roots.get(queue) == self.roots[owner]

    def takes(self, job: Job) -> bool:
        """Whether the job stands in a line: its queue is there and takes jobs, and its tenant is there."""
        return job.queue in self._pools and not self.lacks_tenant(job)

    def lacks_tenant(self, job: Job) -> bool:
        """Whether the job waits because its tenant was taken out of the configuration."""
        return self.knows_all and job.tenant not in self.tenants

    def is_stray(self, job: Job) -> bool:
        """Whether the job names a queue, a tenant or a class that the configuration does not have."""
        return not self.takes(job) or (job.adopted is None and job.priority_class not in self.priorities)

    @cached_property
    def new_queues(self) -> dict[str, str]:
        """The queue that took the place of another, by the former name."""
        return {queue.was: queue.name for queue in self.queues.values() if queue.was is not None}

    @cached_property
    def lowest_priority(self) -> int:
        """Priority of jobs whose class is not configured any more."""
        return min(self.priorities.values(), default=0) if self.knows_all else 0

    def priority(self, priority_class: str) -> int:
        """Number of a priority class, the higher the sooner; the lowest there is for one that is not configured."""
        return self.priorities.get(priority_class, self.lowest_priority)

    def priority_of(self, job: Job | None) -> int:
        """Priority of the job in order and preemption; that of adopted work comes from Kubernetes."""
        if job is not None and job.adopted is not None:
            return job.adopted.priority
        return self.priority(job.priority_class if job is not None else "")

    def revocable(self, job: Job) -> bool:
        """
        Whether what a run of the job holds may be taken back, without which nothing may be borrowed for it.

        How often it was evicted does not matter: lent quota goes back all the same (ADR 0020), and a job that may not
        be evicted any more would else never run again on an idle cluster.
        """
        return job.preemptible and not job.in_minimum and not (job.adopted and job.adopted.budget)

    def stopped(self, queue: str) -> str | None:
        """The queue, or the one above it, that an operator stopped; None when jobs of it may start."""
        return self._stopped[queue]

    @cached_property
    def _stopped(self) -> dict[str, str | None]:
        stops = {name for name, queue in self.queues.items() if queue.stop_policy != "none"}
        return {name: next(filter(stops.__contains__, self.path(name)), None) for name in self.queues}

    @cached_property
    def drained(self) -> frozenset[str]:
        """Queues of which what runs is to go back to them."""
        drain = {name for name, queue in self.queues.items() if queue.stop_policy == "hold_and_drain"}
        return frozenset(name for name in self.queues if not drain.isdisjoint(self.path(name)))

    def flavor_of(self, node: Node) -> str:
        """The first flavor that the node matches, "" when none."""
        labels = dict(node.labels)
        for flavor in self.flavors:
            if flavor.gpu_models and node.gpu_model not in flavor.gpu_models:
                continue
            if all(labels.get(key) == value for key, value in flavor.node_labels.items()):
                return flavor.name
        return ""

    def is_on(self, node: Node, flavor: str) -> bool:
        """Whether the node is one of a flavor as `flavors_for` names it."""
        if not flavor:
            return True
        found = self.flavor_of(node)
        return found not in flavor[1:].split(",") if flavor.startswith(BUT) else found == flavor

    def flavors_for(self, queue: str, amount: Amount) -> tuple[str, ...]:
        """
        The flavors on which a job that holds `amount` may start, in the order to try them; "" is any node.

        Quotas of a flavor make a job choose, as far as they are of what it asks for; a job is on nodes of one choice.
        All other nodes together are a choice, too (`!a100,l4`: neither of these), where a quota of any flavor counts
        each resource for which there are quotas of some. A queue's own quotas give the order; what it may only borrow
        comes in the order of the configuration, all other nodes last.
        """
        if not self.has_flavor_quotas:
            return ("",)
        covered = self.covered[self.roots[queue]]
        if not (cells := {(f, r) for f, r in covered if f and amount.of(r)}):
            return ("",)
        named = {flavor for flavor, _ in cells}
        rest = BUT + ",".join(sorted(named)) if all(("", r) in covered for _, r in cells) else ""
        quotas = self.queues[queue].quotas
        own = [q.flavor or rest for q in quotas if amount.of(q.resource) and (q.flavor in named or not q.flavor)]
        lent = [flavor.name for flavor in self.flavors if flavor.name in named]
        return tuple(flavor for flavor in dict.fromkeys((*own, *lent, rest)) if flavor)


@lru_cache(maxsize=8)
def _tree(version: int, body_json: str, knows_all: bool, removed: tuple[RemovedQueue, ...]) -> QueueTree:
    body = Config.model_validate_json(body_json).body
    if body is None:
        return QueueTree(version, {}, {}, {}, (), Policy(), knows_all=knows_all)
    return QueueTree(
        version,
        {queue.name: queue for queue in (*body.queues, *_kept(body, removed))},
        {tenant.name: tenant for tenant in body.tenants},
        {entry.name: entry.value for entry in body.priority_classes},
        body.flavors,
        body.policy,
        body.topology,
        {entry.was: entry.name for entry in body.priority_classes if entry.was is not None},
        knows_all,
        body.pools,
        body.defaults,
        body.mounts,
        frozenset(queue.name for queue in removed),
        body.money,
        body.gres,
    )


def _kept(body: ConfigBody, removed: tuple[RemovedQueue, ...]) -> Iterator[Queue]:
    # Below the nearest queue that it was below and that is inner yet: a leaf would take no jobs any more.
    inner = {queue.parent for queue in body.queues}
    for queue in removed:
        parent = next((name for name in queue.above if name in inner), None)
        yield Queue(name=queue.name, pool=queue.pool, parent=parent)


def queue_tree(config: Config, knows_all: bool = True, removed: tuple[RemovedQueue, ...] = ()) -> QueueTree:
    """The look-ups of `config`; equal configurations share one. `knows_all` is False before format 4."""
    return _tree(config.version, config.model_dump_json(), knows_all, removed)


Holding = tuple[str, str, Amount]
"""Of which queue, on which flavor, how much."""


class QuotaBook:
    """
    Use and lending of quota at one moment: the arithmetic of nominal quota, borrowing and lending limits.

    A queue keeps to itself what its lending limit does not let go; the rest of its nominal quota is its parent's, and
    is there for everybody below that parent, within their borrowing limits. The formulas are Kueue's for hierarchical
    cohorts. Sums of one tree are made when first asked for, in one pass over it.

    Work that may not be evicted is *firm*: it does not borrow, so that what is lent can always be taken back. Its sum
    in each queue stays within the nominal quotas of the queue and of those above it.
    """

    def __init__(
        self, tree: QueueTree, held: Mapping[str, Amount], firm: Callable[[], Iterable[Holding]] = tuple
    ) -> None:
        """
        `held` is what each leaf holds by name (all nodes), and by "name/flavor" of each flavor.

        `firm` lists what firm work holds; it is asked once, by the first firm job that its queue alone may not hold.
        """
        self._tree, self._held = tree, dict(held)
        self._list_firm = firm
        self._firm: dict[str, Amount] | None = None
        self._quota: dict[tuple[str, Cell], int] = {}
        self._use: dict[tuple[str, Cell], int] = {}
        self._summed: set[tuple[str, Cell]] = set()

    @property
    def held(self) -> dict[str, Amount]:
        """Copy of what counts as used now: by leaf, and by "name/flavor"."""
        return dict(self._held)

    def copy(self) -> "QuotaBook":
        """A book that changes apart from this one."""
        made = QuotaBook(self._tree, self._held, self._list_firm)
        made._firm = None if self._firm is None else dict(self._firm)
        return made

    def lacks(self, job: Job, flavor: str) -> Over | None:
        """The first quota that keeps the job from starting on nodes of `flavor`; None when there is room."""
        over = self.over(job.queue, flavor, job.amount, firm=not self._tree.revocable(job))
        until = job.kept_until if job.preemptible else ""
        return replace(over, until=until) if over is not None and over.firm else over

    def over(self, queue: str, flavor: str, amount: Amount, firm: bool = False) -> Over | None:
        """The first quota that `amount` more on nodes of `flavor` would exceed; None when there is room."""
        tree = self._tree
        for cell in _cells(tree, queue, flavor, amount):
            wanted, left = amount.of(cell[1]), self.available(queue, cell)
            if wanted > left:
                quota = tree.quotas[queue].get(cell)
                used, nominal = self.used(queue, cell), quota.nominal if quota else 0
                return Over(queue, cell, wanted, left, used, nominal, percent=quota.part_percent if quota else None)
        return self._over_own(queue, flavor, amount) if firm else None

    def _over_own(self, queue: str, flavor: str, amount: Amount) -> Over | None:
        """The first quota for which `amount` more of firm work would have to be borrowed."""
        tree = self._tree
        if tree.queues[queue].parent is None:
            return None  # it has nobody to borrow from
        for cell in _cells(tree, queue, flavor, amount):
            wanted, quota = amount.of(cell[1]), tree.quotas[queue].get(cell)
            used, nominal = self.used(queue, cell), quota.nominal if quota else 0
            if used + wanted <= nominal:
                continue
            used = self._firm_of_leaf(queue, cell)
            if used + wanted > nominal and self._firm_beyond(tree.roots[queue], cell, (queue, wanted)):
                percent = quota.part_percent if quota else None
                return Over(queue, cell, wanted, max(0, nominal - used), used, nominal, True, percent)
        return None

    def _firm_beyond(self, queue: str, cell: Cell, more: tuple[str, int]) -> int:
        """Firm use in and below the queue, `more` included, beyond the nominal quotas of it and its descendants."""
        tree = self._tree
        use = self._firm_of_leaf(queue, cell) + (more[1] if more[0] == queue else 0)
        use += sum(self._firm_beyond(child, cell, more) for child in tree.children.get(queue, ()))
        quota = tree.quotas[queue].get(cell)
        return max(0, use - (quota.nominal if quota else 0))

    def _firm_of_leaf(self, queue: str, cell: Cell) -> int:
        return self._read_leaf(self._firm_listed(), queue, cell)

    def _firm_listed(self) -> dict[str, Amount]:
        """Holdings of firm work, listed when first asked for."""
        if self._firm is None:
            self._firm = {}
            for name, flavor, amount in self._list_firm():
                self._count_firm(name, flavor, amount, 1)
        return self._firm

    def _count_firm(self, queue: str, flavor: str, amount: Amount, sign: int) -> None:
        if self._firm is not None:
            for name in (queue, f"{queue}/{flavor}") if flavor else (queue,):
                self._firm[name] = self._firm.get(name, Amount()).plus(amount, sign)

    def borrows(self, queue: str, flavor: str, amount: Amount) -> bool:
        """Whether the queue would hold more than its own nominal quota with `amount` more, of anything asked for."""
        for cell in _cells(self._tree, queue, flavor, amount):
            quota = self._tree.quotas[queue].get(cell)
            if self.used(queue, cell) + amount.of(cell[1]) > (quota.nominal if quota else 0):
                return True
        return False

    def keepers(self, queue: str, flavor: str, amount: Amount) -> tuple[str, ...]:
        """
        The queues from this one up that hold no more than their own with `amount` more, of everything asked for.

        What is lent of theirs goes back to it from whoever is not below them. Nobody is beside a root, so it is none,
        unless a removed queue stands in no tree, or the job is in it: what lies beside its GPUs comes back from other
        trees, too.
        """
        cells, above = _cells(self._tree, queue, flavor, amount), self._tree.path(queue)
        over = {name for cell in cells for name in self._over_with(above, cell, amount.of(cell[1]))}
        top = "" if any(self._tree.is_beside(name, queue) for name in self._tree.loose) else above[-1]
        return tuple(name for name in above if name not in over and (name == queue or name != top))

    def _over_with(self, path: tuple[str, ...], cell: Cell, more: int) -> Iterator[str]:
        """Queues of the path that hold above their own with `more` of the first; what one keeps is none of the next."""
        for name in path:
            used, kept = self.used(name, cell), self._kept(name, cell)
            if used + more > self._quota[name, cell]:
                yield name
            more = max(0, used + more - kept) - max(0, used - kept)

    def holds_lent(self, queue: str, flavor: str, amount: Amount) -> bool:
        """
        Whether the queue uses more than is its own of anything that `amount` counts.

        A leaf's own is its nominal quota; an inner queue's, with that, what those below it have to lend each other.
        """
        cells = _cells(self._tree, queue, flavor, amount)
        return any(self.used(queue, cell) > self._quota[queue, cell] for cell in cells)

    def lent_to(self, queue: str, flavor: str, amount: Amount) -> Amount:
        """Use of the queue beyond its own, of what `amount` counts."""
        beyond: dict[str, int] = {}
        for cell in _cells(self._tree, queue, flavor, amount):
            more = self.used(queue, cell) - self.total(queue, cell)
            beyond[cell[1]] = max(beyond.get(cell[1], 0), more)
        return Amount.by(beyond)

    def is_firm_lent(self, queue: str, flavor: str, amount: Amount) -> bool:
        """Whether firm work of the queue alone uses more than is its own of anything that `amount` counts."""
        cells = _cells(self._tree, queue, flavor, amount)
        return any(self._firm_of_leaf(queue, cell) > self.total(queue, cell) for cell in cells)

    def start(self, job: Job, flavor: str) -> None:
        """The job takes what it asks for; until firm work was listed, the list has it."""
        self.add(job.queue, flavor, job.amount)
        if not self._tree.revocable(job):
            self._count_firm(job.queue, flavor, job.amount, 1)

    def end(self, job: Job | None, queue: str, flavor: str, amount: Amount) -> None:
        """A run of the job gives back `amount` of what its queue held; None: of work that does not count as firm."""
        self.add(queue, flavor, amount, -1)
        if job is not None and not self._tree.revocable(job):
            self._firm_listed()
            self._count_firm(queue, flavor, amount, -1)

    def add(self, queue: str, flavor: str, amount: Amount, sign: int = 1) -> None:
        """A run of the queue takes (1) or gives back (-1) `amount`."""
        for name in (queue, f"{queue}/{flavor}") if flavor else (queue,):
            self._held[name] = self._held.get(name, Amount()).plus(amount, sign)
        root = self._tree.roots.get(queue)
        self._summed = {entry for entry in self._summed if entry[0] != root}

    def used(self, queue: str, cell: Cell) -> int:
        """Use of the queue: its own if it is a leaf, else what queues below it take from it."""
        self._sum(self._tree.roots[queue], cell)
        return self._use[queue, cell]

    def total(self, queue: str, cell: Cell) -> int:
        """Nominal quota of the queue, and what queues below it lend to it."""
        self._sum(self._tree.roots[queue], cell)
        return self._quota[queue, cell]

    def available(self, queue: str, cell: Cell) -> int:
        """Amount that the queue may still use, its own and borrowed. Negative when it is over already."""
        self._sum(self._tree.roots[queue], cell)
        return self._available(queue, cell)

    def most(self, queue: str, cell: Cell) -> int:
        """Amount that the queue could use if nobody else used any."""
        self._sum(self._tree.roots[queue], cell)
        return self._most(queue, cell)

    def _available(self, queue: str, cell: Cell) -> int:
        total, used = self._quota[queue, cell], self._use[queue, cell]
        parent, quota = self._tree.queues[queue].parent, self._tree.quotas[queue].get(cell)
        if parent is None:
            return total - used
        own = self._kept(queue, cell)
        above = self._available(parent, cell)
        if quota is not None and quota.borrowing_limit is not None:
            above = min(above, total - own - max(0, used - own) + quota.borrowing_limit)
        return own - used + max(0, above) if used < own else above

    def _most(self, queue: str, cell: Cell) -> int:
        parent, quota = self._tree.queues[queue].parent, self._tree.quotas[queue].get(cell)
        total = self._quota[queue, cell]
        if parent is None:
            return total
        own = self._kept(queue, cell)
        above = self._most(parent, cell)
        if quota is not None and quota.borrowing_limit is not None:
            above = min(above, total - own + quota.borrowing_limit)
        return own + above

    def _kept(self, queue: str, cell: Cell) -> int:
        """Part of its quota that the queue never lends."""
        quota = self._tree.quotas[queue].get(cell)
        limit = None if quota is None else quota.lending_limit
        return 0 if limit is None else max(0, self._quota[queue, cell] - limit)

    def _sum(self, root: str, cell: Cell) -> None:
        if (root, cell) not in self._summed:
            self._sum_below(root, cell)
            self._summed.add((root, cell))

    def _sum_below(self, queue: str, cell: Cell) -> None:
        """Quota and use of the queue and everything below it."""
        tree = self._tree
        quota = tree.quotas[queue].get(cell)
        total, used = quota.nominal if quota else 0, self._read_leaf(self._held, queue, cell)
        for child in tree.children.get(queue, ()):
            self._sum_below(child, cell)
            own = self._kept(child, cell)
            total += self._quota[child, cell] - own
            used += max(0, self._use[child, cell] - own)
        self._quota[queue, cell], self._use[queue, cell] = total, used

    def _read_leaf(self, held: Mapping[str, Amount], queue: str, cell: Cell) -> int:
        found = held.get(f"{queue}/{cell[0]}" if cell[0] else queue)
        return 0 if found is None else found.of(cell[1])


def _cells(tree: QueueTree, queue: str, flavor: str, amount: Amount) -> list[Cell]:
    """The quotas that count a job of `queue` on nodes of `flavor`, in a fixed order."""
    covered = tree.covered[tree.roots[queue]]
    flavors = ("", flavor) if flavor else ("",)
    return [(f, r) for f in flavors for r in amount.resources if (f, r) in covered and amount.of(r)]
