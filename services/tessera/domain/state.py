"""
The state of one shard after n ledger messages, and overlays of it on which decisions are tried.

Only `fold` writes here. The sorted indexes are derived from the tables and belong to the base alone: an overlay
reads the base's and sees its own writes in the tables.
"""

from collections.abc import Iterable, Iterator, Set

from tessera.domain.devices.offers import DeviceClass, KnownLayout, KnownSelection, Offer
from tessera.domain.devices.resources import NOTHING, Amount, Node
from tessera.domain.entities import (
    ClosedNamespace,
    Drain,
    Earmark,
    EndedJob,
    Job,
    MigChange,
    NodeBackoff,
    PoolStops,
    PublishedSlots,
    QueueOrder,
    RefusedWork,
    RemovedQueue,
    Run,
    Use,
)
from tessera.domain.errors import Contradiction
from tessera.domain.folding.decayed_usage import Decay, Usages, decay_of
from tessera.domain.folding.index import Index
from tessera.domain.folding.spending import BudgetUse, Holdings, held_of
from tessera.domain.folding.standing import NeighbourBook
from tessera.domain.health.known import Fence, NodeHealth
from tessera.domain.health.node_tests import NodeTests, forget_ended
from tessera.domain.health.reputation import FailureRates, Reckoning, Reputations, reckon_by
from tessera.domain.mix import Mix, Seen
from tessera.domain.moves.offers import MovedRuns, OfferedMoves
from tessera.domain.moves.scores import MovePlans
from tessera.domain.queues import Holding, QueueTree, QuotaBook, queue_tree
from tessera.domain.quota.bookings import Booking
from tessera.domain.quota.parts import PoolSizes, Share, add_share, at_hour, in_numbers, next_hour, share_of
from tessera.domain.runtimes import Sketch
from tessera.domain.storing.fast import replace
from tessera.domain.table import Table
from tessera.domain.work.ended_jobs import EndedJobs
from tessera.domain.work.evidence import REMEMBERED_MAX, REMEMBERED_MS, RememberedNode
from tessera.domain.work.job_relations import JobRelations
from tessera.domain.work.phases import Phase
from tessera_schemas.config import Config
from tessera_schemas.ledger import GENESIS
from tessera_schemas.shard.ledger_form import HISTORY_FROM, SPENDING_FROM
from tessera_schemas.work.budgets import Budget
from tessera_schemas.work.measured_use import MeasuredUse, added

TABLES = (
    "jobs",
    "ended",
    "runs",
    "nodes",
    "queue_use",
    "tenant_use",
    "earmarks",
    "lines",
    "drains",
    "runtimes",
    "seen",
    "mixes",
    "lefts",
    "refused",
    "backoffs",
    "stops",
    "closed",
    "remembered_nodes",
    "removed_queues",
    "decayed",
    "spending",
    "layouts",
    "device_classes",
    "selections",
    "mig_changes",
    "health",
    "fences",
    "reputations",
    "failure_rates",
    "node_tests",
    "bookings",
    "moves",
    "moved",
    "move_plans",
)
LATER_TABLES = frozenset(
    {
        *("refused", "backoffs", "stops", "closed", "remembered_nodes", "removed_queues", "decayed", "spending"),
        *("layouts", "device_classes", "selections", "mig_changes", "health", "fences", "reputations", "failure_rates"),
        *("node_tests", "bookings", "moves", "moved", "move_plans"),
    }
)
"""Of them, those that came after 0.3: an empty one is no part of the state's hash. They stand last, as they came."""


NEVER = 2**63
FORMAT_OF_STRAYS = 4
"""Before, a job whose tenant was taken out started all the same, and one whose class was taken out counted as 0."""


def _is_unmade(run: Run | None) -> bool:
    return run is not None and not run.uids and not run.stopping


def _counts(run: Run) -> tuple[str, int]:
    # Whether something is charged anew follows from these; tenant and user of a run never change.
    return run.queue, run.used_milli


class State:
    """State of a shard: all that its decisions may look at."""

    def __init__(self) -> None:
        self.n, self.chain = 0, GENESIS
        self.is_whole = True
        """False while a message is folded, and for good once one failed halfway: such a state is stored nowhere."""
        self.epoch = self.ts = self.format = 0
        self.ledger_id = ""
        """Identity of the ledger, on each pod that it made: "" until a message raised the format to 4 or later."""
        self.facts_upto = 0
        self.last_number = 0
        """Number of the job that was taken in last, 0 while none has one; no number is ever given twice."""
        self.config = Config()
        self.configured: QueueTree = queue_tree(self.config)
        """The configuration's look-ups, with parts of pools as they are configured: what the fold of nodes asks."""
        self.shares: Table[Share] = Table()
        self.sizes: PoolSizes = {}
        self.recount_ts = self.hour_ends = NEVER
        self.data_due = 0
        """When what nodes keep of data sets is looked through next."""
        self._tree: QueueTree | None = None
        self.jobs: Table[Job] = Table()
        self.remembered = EndedJobs()
        self.ended: Table[EndedJob] = self.remembered
        self.runs: Table[Run] = Table()
        self.unmade: Table[int] = Table()
        """Number of each tenant's runs whose pods are still to be made, by what `runs` has."""
        self.services: Table[dict[str, None]] = Table()
        """Live jobs that are replicas of each service, by its UID; made of `jobs`."""
        self.neighbours = NeighbourBook()
        """Pods that terms of other jobs mean, and the jobs that wait with terms; made of `runs` and `jobs`."""
        self.changed_services: dict[str, None] = {}
        """Services whose replicas came, went, started or stop since it was last seen which of them are kept."""
        self.nodes: Table[Node] = Table()
        self.queue_use, self.tenant_use = Table[Use](), Table[Use]()
        self.earmarks, self.lines = Table[Earmark](), Table[QueueOrder]()
        self.drains, self.runtimes = Table[Drain](), Table[Sketch]()
        self.seen, self.mixes = Table[Seen](), Table[Mix]()
        self.lefts, self.refused = Table[PublishedSlots](), Table[RefusedWork]()
        self.backoffs, self.stops = Table[NodeBackoff](), Table[PoolStops]()
        self.closed: Table[ClosedNamespace] = Table()
        self.mig_changes: Table[MigChange] = Table()
        self.health: Table[NodeHealth] = Table()
        """Nodes that are not well."""
        self.fences: Table[Fence] = Table()
        self.reputations: Reputations = Table()
        self.failure_rates: FailureRates = Table()
        self.node_tests: NodeTests = Table()
        self.bookings: Table[Booking] = Table()
        self.moves: OfferedMoves = Table()
        """Runs that were asked to move for a job that waits."""
        self.moved: Table[MovedRuns] = Table()
        """What moves cost each tenant this week, where the policy bounds it."""
        self.move_plans: MovePlans = Table()
        """Moves that are not scored yet, by the job that waits for them."""
        self.reckoning: Reckoning | None = None
        """By what is configured of the reputation of nodes; None where the ends of runs say nothing of them."""
        self.remembered_nodes, self.removed_queues = Table[RememberedNode](), Table[RemovedQueue]()
        self.decayed: Usages = Table()
        self.decay: Decay | None = None
        """By the half-life in force; None where what was used does not count."""
        self.spending: Table[BudgetUse] = Table()
        self.budgets: dict[str, Budget] = {}
        """Those in force, by name."""
        self.holdings = Holdings()
        self.layouts: Table[KnownLayout] = Table()
        self.device_classes, self.selections = Table[DeviceClass](), Table[KnownSelection]()
        self.offers: Table[Offer] = Table()
        """What nodes of each layout offer, by its digest: made of these three."""
        self.index, self.relations = Index(), JobRelations()
        self.given_back: frozenset[str] = frozenset()
        """Nodes of a kept place that an overlay is without, for its owner's sake: none of them is a spare."""
        self.is_base = True
        self._base: tuple[State, int] | None = None

    def overlay(self) -> "State":
        """A copy-on-write view: writes stay in it, the base must rest while it is used (`check_base`)."""
        top = State.__new__(State)
        top.__dict__.update(self.__dict__)
        for name in TABLES:
            setattr(top, name, getattr(self, name).overlay())
        top.shares, top.unmade, top.offers = self.shares.overlay(), self.unmade.overlay(), self.offers.overlay()
        top.services, top.changed_services = self.services.overlay(), {}
        top.neighbours = self.neighbours.overlay()
        top.is_base, top._base = False, self._base or (self, self.n)
        return top

    def check_base(self) -> None:
        """Raise Contradiction where this is an overlay of a state that has moved: it shows something of each."""
        if (base := self._base) is not None and base[0].n != base[1]:
            raise Contradiction(f"an overlay of state {base[1]} was used when that stood at {base[0].n}: make it anew")

    @property
    def tree(self) -> QueueTree:
        """The configuration as decisions ask for it, with amounts for parts of a pool and the hour's lending limits."""
        if self._tree is None:
            self._tree = at_hour(in_numbers(self.configured, self.sizes), self.ts)
        return self._tree

    def set_config(self, config: Config) -> None:
        """Puts a configuration in force: makes its queue tree and, in the base, the waiting lines anew."""
        if self.config.health_test != config.health_test:
            forget_ended(self.node_tests)
        self.config, self.data_due = config, 0
        self.make_tree()
        for table in (self.reputations, self.failure_rates) if self.reckoning is None else ():
            for name in [name for name, _ in table.items()]:
                table.drop(name)
        self.count_nodes()
        if self.is_base:
            self.index.rebuild_waiting(self)

    def make_tree(self) -> None:
        """Makes the queue tree anew, of the configuration and of the removed queues that still hold something."""
        removed = tuple(sorted(self.removed_queues.values(), key=lambda queue: queue.name))
        self.configured, self._tree = queue_tree(self.config, self.format >= FORMAT_OF_STRAYS, removed), None
        self.turn_hour()
        half_life = self.configured.policy.fair_share.half_life_seconds if self.format >= HISTORY_FROM else 0
        self.decay = decay_of(half_life)
        health = None if self.config.body is None else self.config.body.health
        self.reckoning = reckon_by(None if health is None else health.reputation)
        body = self.config.body if self.format >= SPENDING_FROM else None
        self.budgets = {budget.name: budget for budget in body.budgets} if body else {}

    @property
    def tree_of_any_hour(self) -> QueueTree:
        """The tree with what is lent where no hours say less: what is beyond that never starts."""
        return in_numbers(self.configured, self.sizes)

    def turn_hour(self) -> None:
        """Follows the hours by which queues lend."""
        self._tree, self.hour_ends = None, next_hour(self.configured, self.ts) or NEVER

    def count_nodes(self) -> None:
        """Counts anew how much each pool has, if any quota is a part of one."""
        self.shares, self.sizes, self.recount_ts, self._tree = Table(), {}, NEVER, None
        if self.configured.has_parts:
            for name in dict.fromkeys(key for table in (self.nodes, self.remembered_nodes) for key, _ in table.items()):
                self.count_node(name)

    def count_due(self) -> None:
        """Follows nodes that have been out for so long that they count no more."""
        for name in [name for name, share in self.shares.items() if share.until is not None and self.ts >= share.until]:
            self.count_node(name)
        ends = (share.until for share in self.shares.values() if share.until is not None)
        self.recount_ts = min(ends, default=NEVER)

    def count_node(self, name: str) -> None:
        """Follows what the node counts for where a quota is a part of its pool."""
        if not self.configured.has_parts:
            return
        old, remembered = self.shares.get(name), self.remembered_nodes.get(name)
        new = share_of(self.configured, self.nodes.get(name), remembered, self.drains.get(name), self.ts)
        if new == old:
            return
        sizes = dict(self.sizes)
        add_share(sizes, old, -1)
        add_share(sizes, new)
        if new is None:
            self.shares.drop(name)
        else:
            self.shares.put(name, new)
            self.recount_ts = min(self.recount_ts, NEVER if new.until is None else new.until)
        self.sizes, self._tree = sizes, None

    def put_job(self, job: Job) -> None:
        """Stores a live job; in the base the sorted indexes follow."""
        if (job.adopted is not None or job.is_replica) and job.service:
            self._follow_replica(job, job.service)
        if job.gang.has_neighbours:
            self.neighbours.follow(self.jobs.get(job.job_id), job)
        if self.is_base:
            old = self.jobs.get(job.job_id)
            self.index.job_changes(self, old, job)
            self.jobs.put(job.job_id, job)
            self.relations.job_changes(self.jobs, old, job)
        else:
            self.jobs.put(job.job_id, job)

    def drop_job(self, job: Job) -> None:
        """Removes a job that is no longer live; in the base the sorted indexes follow."""
        if job.service:
            self._drop_replica(job, job.service)
        if job.gang.has_neighbours:
            self.neighbours.follow(job, None)
        if self.is_base:
            self.index.job_changes(self, job, None)
        self.jobs.drop(job.job_id)
        if self.is_base:
            self.relations.job_changes(self.jobs, job, None)

    def put_run(self, run: Run) -> None:
        """Stores a run that holds devices; in the base the sorted indexes follow, and what was used."""
        old = self.runs.get(run.run_id)
        # Nearly every change is of a run whose pods are made, before and after.
        if (old is None or not (old.uids and run.uids)) and _is_unmade(old) is not _is_unmade(run):
            self._count_unmade(run.tenant, 1 if _is_unmade(run) else -1)
        if self.services:
            self._note_replica(run)
        if self.is_base:
            if self.budgets:
                self.holdings.follow(self, old, run)
            changes = self.index.run_changes(old, run)
            self._store_run(old, run, self._weighed(run) if old is None or changes else old.weighed_milli)
        else:
            self.runs.put(run.run_id, run)

    def drop_run(self, run: Run) -> None:
        """Removes a run whose devices are free again; in the base the sorted indexes follow, and what was used."""
        stored = self.runs.get(run.run_id) or run
        if self.moves.get(run.run_id) is not None:
            self.moves.drop(run.run_id)
        if _is_unmade(stored):
            self._count_unmade(stored.tenant, -1)
        if self.services:
            self._note_replica(run)
        if self.is_base:
            if self.budgets:
                self.holdings.follow(self, stored, None)
            self.index.run_changes(stored, None)
            if self.decay is not None:
                self.decay.charge(self.decayed, self.ts, stored, -1)
        self.runs.drop(run.run_id)

    def weigh_runs(self, runs: Iterable[object]) -> None:
        """Counts the runs among these by the prices, and the flavors of their nodes, that are in force now."""
        for run in runs:
            if isinstance(run, Run) and (now := self.runs.get(run.run_id)) is not None:
                self._store_run(now, now, self._weighed(now))

    def _store_run(self, old: Run | None, run: Run, weighed: int | None) -> None:
        # Charged off is what was charged on, whatever nodes and prices are by now.
        if run.weighed_milli != weighed:
            run = replace(run, weighed_milli=weighed)
        self.runs.put(run.run_id, run)
        if self.decay is not None and (old is None or _counts(old) != _counts(run)):
            self.decay.charge(self.decayed, self.ts, old, -1)
            self.decay.charge(self.decayed, self.ts, run, 1)

    def _weighed(self, run: Run) -> int | None:
        if self.decay is None or self.tree.money is None or not self.tree.policy.fair_share.by_price:
            return None
        return self.tree.money.weighed(held_of(self, run), self.ts)

    def _count_unmade(self, tenant: str, sign: int) -> None:
        self.unmade.put(tenant, (self.unmade.get(tenant) or 0) + sign)

    def _follow_replica(self, job: Job, service: str) -> None:
        replicas = self.services.get(service) or {}
        if job.job_id not in replicas:
            self.services.put(service, {**replicas, job.job_id: None})
        self.changed_services[service] = None

    def _drop_replica(self, job: Job, service: str) -> None:
        left = {name: None for name in self.services.get(service) or {} if name != job.job_id}
        if left:
            self.services.put(service, left)
        else:
            self.services.drop(service)
        self.changed_services[service] = None

    def _note_replica(self, run: Run) -> None:
        job = self.jobs.get(run.job_id)
        if job is not None and job.service:
            self.changed_services[job.service] = None

    def is_replica(self, job_id: str) -> bool:
        """Whether the job is live, and a replica of a service that was submitted."""
        job = self.jobs.get(job_id)
        return job is not None and job.is_replica

    def runs_on(self, node: str) -> list[Run]:
        """Runs that hold something on the node, in no order; in an overlay also those that began, or grew, in it."""
        new = (run for run in self.runs.found(self.runs.tried) if run.allocated_ts == self.ts or run.extra)
        begun = {run.run_id: None for run in new if any(place.node == node for place in run.places)}
        return self.runs.found(self.index.runs_on.get(node, {}) | begun)

    def runs_among(self, nodes: Set[str]) -> list[Run]:
        """Runs that hold something on any of the nodes, in no order: as `runs_on`, of many nodes at once."""
        new = (run for run in self.runs.found(self.runs.tried) if run.allocated_ts == self.ts or run.extra)
        begun = {run.run_id: None for run in new if any(place.node in nodes for place in run.places)}
        known = self.index.runs_on
        return self.runs.found({run_id: None for name in known.keys() & nodes for run_id in known[name]} | begun)

    def claiming_jobs(self) -> list[Job]:
        """Live jobs with claims on published devices, in no order; in an overlay also all that were written in it."""
        return self.jobs.found(self.index.claiming | dict.fromkeys(self.jobs.tried))

    def holding_jobs(self) -> list[Job]:
        """Live jobs that name a booking, in no order."""
        found = self.jobs.found(self.index.holders | dict.fromkeys(self.jobs.tried))
        return [job for job in found if job.booking]

    def displaced_jobs(self) -> list[Job]:
        """Live jobs of whose last run a node broke, in no order."""
        found = self.jobs.found(self.index.displaced | dict.fromkeys(self.jobs.tried))
        return [job for job in found if job.displaced]

    def put_ended(self, ended: EndedJob) -> None:
        """Remembers an ended job; the base's `remembered` also knows when to forget it."""
        self.ended.put(ended.job_id, ended)

    def gpu_use_of(self, job: Job | EndedJob) -> MeasuredUse | None:
        """Measured use of the GPUs of all its runs, the one that is not released included; None: nothing measured."""
        run = self.runs.get(f"{job.job_id}-{job.attempt}")
        return added(job.gpu_use, None if run is None else run.gpu_use)

    def tenant_of_run(self, run_id: str) -> str:
        """Tenant of a run's job, live or ended; "" for one that is not known."""
        job = self.jobs.get(job_id := run_id.rpartition("-")[0]) or self.ended.get(job_id)
        return "" if job is None else job.tenant

    def drop_ended(self, ended: EndedJob) -> None:
        """Forgets an ended job, whose key may then be used again."""
        self.ended.drop(ended.job_id)

    def held_by_queue(self, queue: str) -> Amount:
        """Amount that the queue's own runs hold; nothing where no run of the queue was ever counted."""
        use = self.queue_use.get(queue)
        return NOTHING if use is None else use.amount

    def quota_book(self, besides: str = "") -> QuotaBook:
        """
        Use and lending of quota as of now; the book does not follow the state.

        What is earmarked for a job counts as used, except for job `besides`: otherwise others would take the quota
        while the runs that it waits for are being stopped.
        """
        held = {name: use.amount for name, use in self.queue_use.items()}
        book = QuotaBook(self.tree, held, lambda: self._firm(besides))
        for owner, mark in self.earmarks.items():
            job = self.jobs.get(owner)
            if job is not None and owner != besides and job.queue in self.tree.queues:
                book.add(job.queue, mark.flavor, job.amount)
        return book

    def _firm(self, besides: str) -> Iterator[Holding]:
        """Holdings, and earmarks, of jobs that may not be evicted; surplus pods may always go."""
        revocable = self.tree.revocable
        for run in self.runs.values():
            job = None if run.stopping else self.jobs.get(run.job_id)
            if job is not None and not revocable(job):
                gang = run.gang.amount_of(run.gang_places) if run.extra else run.amount
                yield run.queue, run.flavor, gang
        for owner, mark in self.earmarks.items():
            job = self.jobs.get(owner)
            if job is not None and owner != besides and not revocable(job):
                yield job.queue, mark.flavor, job.amount

    def put_node(self, node: Node) -> None:
        """A node as the cluster describes it now: it may have grown, shrunk, come or gone."""
        before = self.nodes.get(node.name)
        if before is not None and before.labels != node.labels:
            self.neighbours.note_relabelled(node.name)
        if self.is_base:
            self.index.node_changes(before, node)
        self.nodes.put(node.name, node)

    def drop_node(self, node: Node) -> None:
        """Removes a node; in the base the capacity of its pool follows."""
        if self.is_base:
            self.index.node_changes(node, None)
        self.nodes.drop(node.name)

    def remember_node(self, name: str, now: RememberedNode | None) -> None:
        """Puts what is remembered of a node, or nothing any more; of too many the oldest memory goes."""
        old = self.remembered_nodes.get(name)
        if now is old:
            return
        if now is None:
            self.remembered_nodes.drop(name)
        else:
            self.remembered_nodes.put(name, now)
        self.count_node(name)
        if self.is_base:
            self.index.memory_changes(old, now)
        if old is None and len(self.remembered_nodes) > REMEMBERED_MAX:
            oldest = next((key for ts, key in self.index.lost if self._lost_at(key) == ts), name)
            self.remember_node(oldest, None)

    def lost_due(self, ts: int) -> list[str]:
        """Nodes that are to be forgotten at `ts`, those first that lost something first."""
        until = ts - REMEMBERED_MS
        lost = self.index.lost
        if not lost or lost[0][0] > until:  # as at nearly every message
            return []
        return [name for lost_ts, name in lost.irange(maximum=(until + 1,)) if self._lost_at(name) == lost_ts]

    def _lost_at(self, name: str) -> int | None:
        row = self.remembered_nodes.get(name)
        return None if row is None else row.lost_ts

    def rebuild_index(self) -> None:
        """After a restore: the indexes again from the tables."""
        self.index = index = Index()
        index.rebuild_waiting(self)
        for job in self.jobs.values():
            if job.phase is Phase.QUEUED and job.not_before:
                index.retry_at.add((job.not_before, job.job_id))
            if job.phase is Phase.QUEUED and job.deadline_ts and job.array is None:
                index.latest_starts.add((job.latest_start_ts, job.job_id))
        self.unmade, self.services = Table(), Table()
        for job in self.jobs.values():
            if job.service:
                self._follow_replica(job, job.service)
        self.changed_services.clear()  # which of them are kept stands in the jobs
        self.neighbours = NeighbourBook()
        self.neighbours.restore(self.jobs.values(), self.runs.values())
        for run in self.runs.values():
            index.run_changes(None, run)
            if _is_unmade(run):
                self._count_unmade(run.tenant, 1)
        for node in self.nodes.values():
            index.node_changes(None, node)
        for remembered in self.remembered_nodes.values():
            index.memory_changes(None, remembered)
        self.count_nodes()
        self.holdings.rebuild(self)
        self.relations = JobRelations()
        self.relations.rebuild(self.jobs)
