"""
Configuration of a shard: tenants, the queue tree with its quotas, priority classes, limits and policy.

The words are Kueue's where Kueue has them. The whole configuration is one versioned value: `tessera apply` sends the
next one with the version it was made from, and a stale one is `ConfigConflict`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from tessera_schemas.base import Count, Name, Positive, Strict, later, printable
from tessera_schemas.cluster.device_claims import OF_CLASS, DevicesOfClass, GresClass
from tessera_schemas.cluster.device_vendors import GpuResource
from tessera_schemas.cluster.fencing import FencingWebhook
from tessera_schemas.cluster.health import HealthPolicy, HealthTest, find_fence_faults, find_test_faults
from tessera_schemas.cluster.pools import DataCaches
from tessera_schemas.cluster.pools import Pool as Pool
from tessera_schemas.job import LEVELS_MAX, GpuModel, LabelKey, LabelValue, Toleration
from tessera_schemas.shard.lending import Lending
from tessera_schemas.shard.moves import Moves
from tessera_schemas.shard.receivers import Subscriber, Webhook
from tessera_schemas.work.budgets import Budget, find_budget_faults
from tessera_schemas.work.measured_use import SessionDefaults
from tessera_schemas.work.money import Money
from tessera_schemas.work.pod_template import Mount, PodGrants
from tessera_schemas.work.templates import JobTemplate
from tessera_schemas.work.tenant_shares import YEAR_SECONDS, FairShare
from tessera_schemas.work.tenant_shares import Limits as Limits

FLAVORS_MAX = 64


class Tenant(Strict):
    name: Annotated[Name, Field(description="Name of the tenant, part of its subjects and credentials")]
    limits: Annotated[Limits, Field(description="Upper limits on submitted work")] = Limits()
    priority_classes: Annotated[tuple[Name, ...], Field(description="Priority classes granted; empty: all")] = ()
    subscribers: Annotated[
        tuple[Subscriber, ...], Field(max_length=32, description="Durable readers of the tenant's events")
    ] = ()
    pod_grants: Annotated[PodGrants, Field(description="Grants for pods beyond the usual fields")] = later(PodGrants())
    weight: Annotated[
        Count,
        Field(le=1_000_000, description="Weight in a shared queue; 0: only capacity that no weighted tenant asks for"),
    ] = later(1)
    promises: Annotated[
        bool, Field(description="Whether its jobs may have their start promised, for the policy's price")
    ] = later(False)
    webhooks: Annotated[
        tuple[Webhook, ...], Field(max_length=16, description="HTTP receivers of its events, made by `apply`")
    ] = later(())
    tolerations: Annotated[
        tuple[Toleration, ...],
        Field(max_length=32, description="Standing tolerations: node taints that the pods of its jobs always tolerate"),
    ] = later(())


class Flavor(Strict):
    """
    A kind of nodes that quotas tell apart: those with all of these labels and any of these GPU models.

    A node is of the first flavor that it matches, in the order of the configuration.
    """

    name: Annotated[Name, Field(description="Name of the flavor, as quotas give it")]
    node_labels: Annotated[
        dict[LabelKey, LabelValue], Field(max_length=16, description="Labels that all nodes of the flavor have")
    ] = Field(default_factory=dict)
    gpu_models: Annotated[
        tuple[GpuModel, ...], Field(max_length=32, description="Accepted GPU models; empty: any")
    ] = ()


class Quota(Strict):
    """
    Quota of one resource for a queue, on nodes of one flavor or ("") on all together.

    Queues below one parent share what they do not use. A queue without a parent has nobody to borrow from, so that
    its nominal quota is a hard limit. Limits of None: all may be borrowed, all may be lent.

    The nominal quota is an amount, or a part of what the queue's pool has (of the flavor), which follows its nodes.
    """

    resource: Annotated[
        Literal["cpu_milli", "memory_bytes", "gpu_milli"] | DevicesOfClass,
        Field(description="Resource counted (in files gpus, cpu, memory too); `class:NAME`: devices of a class"),
    ]
    nominal: Annotated[Count, Field(description="Nominal quota: amount promised to the queue; 0 beside a part")]
    flavor: Annotated[
        str, StringConstraints(max_length=63), Field(description="Node flavor; empty: all nodes together")
    ] = ""
    borrowing_limit: Annotated[Count | None, Field(description="Borrowing allowed above the nominal quota")] = None
    lending_limit: Annotated[Count | None, Field(description="Lending allowed out of the nominal quota")] = None
    part_percent: Annotated[
        Positive | None,
        Field(
            le=100,
            description="Nominal quota as a percentage of what the pool's nodes have, of the flavor if one is named; "
            "GPUs are rounded down to whole ones. Configuration files say it as the quantity: `all`, `50%`",
        ),
    ] = later(None)

    @model_validator(mode="after")
    def _amount_or_part(self) -> Self:
        if self.part_percent is not None and self.nominal:
            raise ValueError("nominal: an amount and a part are two quotas; say one of them")
        if self.part_percent is not None and self.resource.startswith(OF_CLASS):
            raise ValueError("nominal: devices of a class are counted as an amount, and not as a part of the pool")
        return self


OrderName = Literal["age", "expected", "deadline"]
"""Who of equals in a queue goes first; `tessera.engine.queueing.orders` has each of them."""
OVERTAKING: frozenset[OrderName] = frozenset({"expected", "deadline"})
"""Orders in which a younger job may stand before an older one, until that has waited `order_patience_seconds`."""

PlacementName = Literal["tessera", "fgd", "bestfit", "gpu-packing", "dotprod", "random"]
"""Which node a pod takes of those it fits; `tessera.engine.scoring.policies` has each of them."""

IdleAction = Literal["off", "warn", "requeue", "fail"]


class IdleRule(Strict):
    """
    Treatment of a queue's runs, and of those below it, that hold GPUs and use none.

    A value left out is that of the queue above it, at last the policy's (`idle`, `idle_warn_seconds`, …).
    """

    action: Annotated[IdleAction | None, Field(description="Action on a run that stays idle after its warning")] = None
    busy_percent: Annotated[
        int | None,
        Field(ge=1, le=100, strict=True, description="GPU use that counts as busy; left out: reclamation's setting"),
    ] = None
    warn_seconds: Annotated[Positive | None, Field(le=YEAR_SECONDS, description="Idle seconds until a warning")] = None
    reclaim_seconds: Annotated[Positive | None, Field(le=YEAR_SECONDS, description="Seconds more until action")] = None
    jobs_choose: Annotated[bool, Field(description="Whether jobs may set `idle`; false binds queues below, too")] = True


class Queue(Strict):
    """One leaf or inner node of the queue tree; jobs name leaves."""

    name: Annotated[Name, Field(description="Name of the queue, as jobs give it")]
    tenants: Annotated[tuple[Name, ...], Field(description="Tenants that may submit here; empty: all")] = ()
    pool: Annotated[Name, Field(description="Pool of nodes that the queue uses")] = "default"
    parent: Annotated[Name | None, Field(description="Parent queue; null: none")] = None
    weight: Annotated[
        Count,
        Field(le=1_000_000, description="Weight among queues; 0: only capacity that no weighted queue asks for"),
    ] = 1
    quotas: Annotated[
        tuple[Quota, ...], Field(max_length=64, description="Nominal quota, per resource and flavor")
    ] = ()
    lending: Lending = later(())
    queueing_strategy: Annotated[
        Literal["best_effort_fifo", "strict_fifo"],
        Field(description="strict_fifo: no job passes the first of the queue"),
    ] = "best_effort_fifo"
    stop_policy: Annotated[
        Literal["none", "hold", "hold_and_drain"],
        Field(description="hold: no job of the queue starts. hold_and_drain: running jobs are requeued as well"),
    ] = "none"
    reclaim: Annotated[
        Literal["any", "lower_priority", "never"],
        Field(
            description="Runs that may be stopped when a job within the queue's nominal quota waits for what other "
            "queues borrowed. any: of every priority class. lower_priority: of lower classes than that job's. never: "
            "none; the job waits until they end. Applies under every preset"
        ),
    ] = later("any")
    idle: Annotated[IdleRule | None, Field(description="Rule for idle GPUs; left out: the parent's")] = later(None)
    suspend_waiting: Annotated[
        bool | None,
        Field(
            description="Whether Jobs, JobSets, RayClusters and training jobs made by users are suspended while they "
            "wait, so that they have no pods meanwhile; left out: the parent's value, or false at the top"
        ),
    ] = later(None)
    order: Annotated[
        OrderName,
        Field(
            description="Order of jobs of one priority class and one user, or of one tenant whose jobs name no user. "
            "age: oldest first. expected: least expected GPU time divided by the slowdown of the wait so far, from "
            "time limits and the past run times of such jobs; jobs that have waited for the policy's "
            "`order_patience_seconds` go before, oldest first. deadline: the earliest first, then jobs without one, "
            "with that patience, too. A strict_fifo queue goes by age"
        ),
    ] = later("age")
    was: Annotated[
        Name | None, Field(description="Former name of the queue; live jobs of that queue move to this one")
    ] = later(None)
    time_limit_max_seconds: Annotated[
        Positive | None,
        Field(le=YEAR_SECONDS, description="Longest time limit of jobs of this queue and the queues below; null: none"),
    ] = later(None)

    @model_validator(mode="after")
    def _one_order(self) -> Self:
        if self.queueing_strategy == "strict_fifo" and self.order != "age":
            raise ValueError(f"order: a strict_fifo queue goes by age; leave out `order: {self.order}` or the strategy")
        return self


class Level(Strict):
    """A topology level: jobs say its name in place of the node label whose values are its domains."""

    name: Annotated[Name, Field(description="Short name of the level, as jobs give it")]
    label: Annotated[LabelKey, Field(description="Node label whose values are the domains")]


class PriorityClass(Strict):
    name: Annotated[Name, Field(description="Name of the class, as jobs give it")]
    value: Annotated[int, Field(ge=-1_000_000, le=1_000_000, strict=True, description="Priority; higher goes first")]
    was: Annotated[Name | None, Field(description="Former name of the class; live jobs of that class get this one")] = (
        later(None)
    )


class Policy(Strict):
    """Scheduling policy of the shard. Every value is part of what a replay needs."""

    preset: Annotated[
        Literal["off", "priority", "fair"],
        Field(
            description="Jobs of the same queue that may be evicted for a waiting job. off: none. priority, fair: "
            "those of lower classes, and in any queue preemptible ones of a spent budget. Borrowed quota is taken back "
            "under each preset, by the queue's `reclaim`"
        ),
    ] = "off"
    placement: Annotated[
        PlacementName,
        Field(
            description="Choice among the nodes that a pod fits. tessera: node whose leftover capacity loses least "
            "worth to the jobs seen so far. fgd: node where fragmentation rises least, for the same mix of jobs. The "
            "other policies ignore the mix"
        ),
    ] = "tessera"
    min_runtime_seconds: Annotated[
        Count, Field(le=YEAR_SECONDS, description="Age in seconds below which a run is not preempted")
    ] = 60
    evictions_max: Annotated[
        Count, Field(le=1000, description="Number of times that one job may be preempted in its life")
    ] = 5
    earmark_seconds: Annotated[
        Positive, Field(le=86_400, description="Seconds for which room made for a job is reserved for it")
    ] = 600
    defragment: Annotated[
        bool,
        Field(
            description="Whether runs may be stopped and restarted elsewhere so that a waiting job finds its room in "
            "one piece. Applies under every preset; a run of a higher class than that job's never moves"
        ),
    ] = False
    defragment_moves_max: Annotated[Positive, Field(le=64, description="Number of runs moved for one job")] = 8
    defragment_min_gain_gpu_seconds: Annotated[
        Count,
        Field(le=10**12, description="Least GPU time that the waiting job must gain beyond what the moved runs lose"),
    ] = 0
    fragmentation_event_seconds: Annotated[
        Count,
        Field(le=86_400, description="Least seconds between two events of noticeable fragmentation in a pool; 0: none"),
    ] = 60
    grow_after_seconds: Annotated[
        Count, Field(le=86_400, description="Seconds for which an elastic run keeps its size before it grows again")
    ] = 30
    backfill: Annotated[
        Literal["off", "reserve"],
        Field(
            description="off: any job that fits starts. reserve: room is kept for the first job of a pool's line that "
            "does not fit; others start only if they do not delay it, by time limits and past run times of such jobs"
        ),
    ] = "off"
    backfill_patience_seconds: Annotated[
        Count, Field(le=YEAR_SECONDS, description="Seconds from submit until room is kept for a blocked job")
    ] = 0
    backfill_closing_seconds: Annotated[
        Count,
        Field(
            le=YEAR_SECONDS,
            description="Seconds from submit until no job, however short, passes a blocked job; bounds its wait where "
            "runs take longer than they ever did",
        ),
    ] = 1_209_600
    backfill_depth: Annotated[
        Positive, Field(le=16, description="Number of jobs per pool for which room is kept at the same time")
    ] = 1
    node_lost_seconds: Annotated[
        Count, Field(le=86_400, description="Seconds that a node may be not ready before its runs restart elsewhere")
    ] = 60
    cordoned: Annotated[
        Literal["restart", "keep"],
        Field(
            description="Treatment of preemptible runs on a node cordoned for `cordoned_seconds`. restart: a run "
            "restarts elsewhere after its checkpoint notice, if there is room and it loses less time than the node "
            "has been cordoned. keep: all go on. Runs that are not preemptible always go on"
        ),
    ] = "restart"
    idle: Annotated[
        Literal["off", "warn", "requeue", "fail"], Field(description="Action on runs that hold GPUs and use none")
    ] = "off"
    idle_warn_seconds: Annotated[Positive, Field(le=YEAR_SECONDS, description="Idle seconds until a warning")] = 1800
    idle_reclaim_seconds: Annotated[Positive, Field(le=YEAR_SECONDS, description="Seconds from warning to action")] = (
        1800
    )
    start_timeout_seconds: Annotated[
        Positive, Field(le=YEAR_SECONDS, description="Seconds from allocation until every pod has to run")
    ] = 600
    key_memory_seconds: Annotated[
        Positive, Field(le=YEAR_SECONDS, description="Seconds for which an ended job's idempotency key is remembered")
    ] = 604_800
    requeues_max: Annotated[
        Positive,
        Field(le=1000, description="Starts in a row that nodes or images prevented, after which the job is held"),
    ] = later(10)
    steady_seconds: Annotated[
        Count,
        Field(
            le=YEAR_SECONDS, description="Length of a run that restores all its job's attempts, as a checkpoint does"
        ),
    ] = later(3600)
    stop_patience_seconds: Annotated[
        Positive,
        Field(
            le=86_400,
            description="Seconds beyond notice and grace after which a run that is being stopped counts as stuck, and "
            "the job that waits for its room gets another plan",
        ),
    ] = later(60)
    cordoned_seconds: Annotated[
        Count,
        Field(le=YEAR_SECONDS, description="Seconds that a node has to be cordoned before `cordoned: restart` acts"),
    ] = later(3600)
    mass_stop_percent: Annotated[
        Positive,
        Field(
            le=100,
            description="Percentage of a pool's running GPUs that may be stopped within `mass_stop_seconds` because "
            "nodes or devices seem lost; more needs an operator's word. A single node's runs are exempt; 100: no limit",
        ),
    ] = later(25)
    mass_stop_seconds: Annotated[
        Positive, Field(le=86_400, description="Seconds for which such stops count against `mass_stop_percent`")
    ] = later(600)
    order_patience_seconds: Annotated[
        Count,
        Field(
            le=YEAR_SECONDS,
            description="Seconds from submit until a job of a queue with `order: expected` goes by age, before all "
            "that have waited less; bounds how long shorter jobs pass it",
        ),
    ] = later(172_800)
    promise_price_percent: Annotated[
        Count, Field(le=1_000, description="Price of a promised start: percent of its nodes for the job's time limit")
    ] = later(25)
    restart_place_seconds: Annotated[
        Count,
        Field(
            le=86_400,
            description="Seconds for which a gang that restarts keeps what is well of its place, through its back-off "
            "and until missing nodes are found; costs at most so many idle seconds of its GPUs each time; 0: none",
        ),
    ] = later(300)
    restart_place_failures: Annotated[
        Count,
        Field(
            le=1000,
            description="Number of failures in a row, of its program or of its starts, after which a gang still keeps "
            "its place; what nodes and surroundings did to a run that went well does not count",
        ),
    ] = later(3)
    kept_beside_gpus_percent: Annotated[
        Count, Field(le=100, description="Percentage of free GPUs' CPU, memory and places kept for jobs with GPUs")
    ] = later(0)
    lent_kept_seconds: Annotated[
        Count,
        Field(
            le=YEAR_SECONDS,
            description="Seconds for which a disruption budget keeps lent quota, from the first plan on; 0: no bound",
        ),
    ] = later(0)
    fair_share: Annotated[FairShare, Field(description="History in the order of the line")] = later(FairShare())
    gang_topology: Annotated[
        Literal["unconstrained", "preferred"],
        Field(
            description="Domains of gangs of several pods that say no topology. unconstrained: any. preferred: as few "
            "as there can be of the configuration's levels, the narrowest level first"
        ),
    ] = later("unconstrained")
    data_caches: Annotated[DataCaches, Field(description="Caches of nodes for data sets")] = later(DataCaches())
    move_answer_seconds: Annotated[
        Count, Field(le=86_400, description="Seconds for which a run may answer whether it moves; 0: nobody is asked")
    ] = later(0)
    moves: Annotated[Moves, Field(description="Rules of moves, where `defragment` is on")] = later(Moves())


class Defaults(Strict):
    """Values for submitted jobs that say nothing themselves; the answer to the submit names them."""

    time_limit_seconds: Annotated[
        Positive | None,
        Field(
            le=YEAR_SECONDS,
            description="Time limit of jobs that set none; the longest that their queue and tenant allow where that "
            "is shorter, or where this is null",
        ),
    ] = None
    sessions: Annotated[
        SessionDefaults, Field(description="Idleness of notebooks that do not say it, and sessions that are resumed")
    ] = later(SessionDefaults())


ForeignQueue = Annotated[str, StringConstraints(min_length=1, max_length=253), AfterValidator(printable)]
"""Name of a queue in another system's words, as objects in the cluster give it."""


class ConfigBody(Strict):
    """Configuration as an operator writes it: the whole of it, each time."""

    tenants: Annotated[tuple[Tenant, ...], Field(min_length=1, max_length=10_000, description="Tenants of the shard")]
    queues: Annotated[tuple[Queue, ...], Field(min_length=1, max_length=10_000, description="Tree of queues")]
    flavors: Annotated[
        tuple[Flavor, ...], Field(max_length=FLAVORS_MAX, description="Kinds of nodes with quotas of their own")
    ] = ()
    pools: Annotated[tuple[Pool, ...], Field(max_length=1000, description="Sets of nodes")] = ()
    topology: Annotated[tuple[Level, ...], Field(max_length=LEVELS_MAX, description="Levels, widest first")] = ()
    gpu_resources: Annotated[
        tuple[GpuResource, ...],
        Field(max_length=64, description="Further resources of nodes that are GPUs, or other labels of known ones"),
    ] = later(())
    priority_classes: Annotated[
        tuple[PriorityClass, ...], Field(min_length=1, max_length=64, description="Priority classes that jobs may name")
    ] = (
        PriorityClass(name="low", value=-100),
        PriorityClass(name="normal", value=0),
        PriorityClass(name="high", value=100),
        PriorityClass(name="urgent", value=1000),
    )
    templates: Annotated[tuple[JobTemplate, ...], Field(max_length=1000, description="Job templates by name")] = ()
    policy: Annotated[Policy, Field(description="Scheduling policy of the shard")] = Policy()
    defaults: Annotated[Defaults, Field(description="Values for jobs that leave fields out")] = later(Defaults())
    mounts: Annotated[tuple[Mount, ...], Field(max_length=256, description="Paths that jobs may mount")] = later(())
    queue_names: Annotated[
        dict[ForeignQueue, Name],
        Field(max_length=10_000, description="Queue of each other name, as `root.sandbox`, in users' objects' marks"),
    ] = later({})
    money: Annotated[Money | None, Field(description="Prices of GPU-hours; null: nothing is counted")] = later(None)
    budgets: Annotated[
        tuple[Budget, ...], Field(max_length=2_000, description="Monthly budgets of tenants, queues and projects")
    ] = later(())
    health: Annotated[HealthPolicy | None, Field(description="Action on sick machines; null: none is taken in")] = (
        later(None)
    )
    gres: Annotated[tuple[GresClass, ...], Field(max_length=256, description="Devices that GRES stand for")] = later(())
    fencing: FencingWebhook = later(None)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        wrong = [*_repeated(self), *_dangling(self), *_levels(self), *_renamed(self)]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


def _repeated(body: ConfigBody) -> Iterator[str]:
    for kind in ("tenants", "queues", "priority_classes", "flavors", "pools", "topology", "templates", "gres"):
        counts = Counter(entry.name for entry in getattr(body, kind))
        yield from (f"{kind}.{name}: is there twice" for name, count in counts.items() if count > 1)
    paths = Counter(mount.path for mount in body.mounts)
    yield from (f"mounts.{path}: is there twice" for path, count in paths.items() if count > 1)
    kinds = Counter(each.resource for each in body.gpu_resources)
    yield from (f"gpu_resources.{name}: is there twice" for name, count in kinds.items() if count > 1)
    owners = Counter(budget.name for budget in body.budgets)
    yield from (f"budgets: {name} has two; say one" for name, count in owners.items() if count > 1)
    for queue in body.queues:
        cells = Counter((quota.resource, quota.flavor) for quota in queue.quotas)
        yield from (
            f"queues.{queue.name}.quotas: {resource} of flavor {flavor or 'any'} is there twice"
            for (resource, flavor), count in cells.items()
            if count > 1
        )


def _renamed(body: ConfigBody) -> Iterator[str]:
    """Former names that are still in use, or that two entries claim."""
    inner = {queue.parent for queue in body.queues}
    there = {
        "queues": {queue.name for queue in body.queues} - inner,
        "priority_classes": {entry.name for entry in body.priority_classes},
    }
    for kind, names in there.items():
        renamed = [entry for entry in getattr(body, kind) if entry.was is not None]
        counts = Counter(entry.was for entry in renamed)
        for entry in renamed:
            if entry.was in names:
                yield f"{kind}.{entry.name}.was: {entry.was} is there itself; leave `was` out, or {entry.was}"
            elif counts[entry.was] > 1:
                yield f"{kind}.{entry.name}.was: {entry.was} is said twice; its jobs go to one of them"
            elif kind == "queues" and entry.name in inner:
                yield f"{kind}.{entry.name}.was: {entry.name} has queues below it and takes no jobs"


def _levels(body: ConfigBody) -> Iterator[str]:
    """Topology levels with the names of node and pool, which `tessera slots` uses itself; and one that is not there."""
    labels = Counter(level.label for level in body.topology)
    for level in body.topology:
        if level.name in ("node", "pool"):
            yield f"topology.{level.name}: every node and every pool is one already; take another name"
        if labels[level.label] > 1:
            yield f"topology.{level.name}.label: {level.label} is another level's, too"
    if (shared := body.policy.data_caches.level) and shared not in {level.name for level in body.topology}:
        yield f"policy.data_caches.level: no such level: {shared}"


def _dangling(body: ConfigBody) -> Iterator[str]:
    tenants, queues = {t.name for t in body.tenants}, {q.name: q for q in body.queues}
    classes, flavors = {p.name for p in body.priority_classes}, {f.name for f in body.flavors}
    for mount in body.mounts:
        yield from (f"mounts.{mount.path}.tenants: no tenant {name}" for name in mount.tenants if name not in tenants)
    priced = {price.flavor for price in body.money.prices} if body.money else set()
    yield from (f"money.prices: no such flavor: {name}" for name in sorted(priced - flavors))
    yield from find_budget_faults(body.budgets, tenants, queues, bool(priced))
    inner = {queue.parent for queue in body.queues}
    leaves = {queue.name: queue.tenants for queue in body.queues if queue.name not in inner}
    if body.health is not None:
        yield from find_test_faults(body.health.test, tenants, leaves)
        yield from find_fence_faults(body.health.actions, body.fencing is not None)
    if body.policy.fair_share.by_price and not (priced and body.policy.fair_share.half_life_seconds):
        yield "policy.fair_share.by_price: needs half_life_seconds beside it, and prices in money.prices"
    for queue in body.queues:
        yield from (f"queues.{queue.name}.tenants: no such tenant: {n}" for n in queue.tenants if n not in tenants)
        yield from (
            f"queues.{queue.name}.quotas: no such flavor: {quota.flavor}"
            for quota in queue.quotas
            if quota.flavor and quota.flavor not in flavors
        )
        yield from _misplaced(queue, queues)
    for tenant in body.tenants:
        missing = [name for name in tenant.priority_classes if name not in classes]
        yield from (f"tenants.{tenant.name}.priority_classes: no such class: {name}" for name in missing)
    for name, queue_name in body.queue_names.items():
        if queue_name not in queues:
            yield f"queue_names.{name}: no such queue: {queue_name}"
        if name in queues:
            yield f"queue_names.{name}: this is a queue itself"


def _misplaced(queue: Queue, queues: dict[str, Queue]) -> Iterator[str]:
    """Faults of the queue's place in the tree."""
    at = f"queues.{queue.name}"
    if queue.parent is None:
        limited = [q.resource for q in queue.quotas if q.borrowing_limit is not None or q.lending_limit is not None]
        yield from (f"{at}.quotas.{name}: a borrowing or lending limit needs a parent" for name in limited)
        yield from (f"{at}.lending: needs a parent, to whose queues it is lent" for _ in queue.lending[:1])
        return
    if queue.parent not in queues:
        yield f"{at}.parent: no such queue: {queue.parent}"
        return
    if queues[queue.parent].pool != queue.pool:
        yield f"{at}.pool: {queue.pool}, but its parent {queue.parent} uses {queues[queue.parent].pool}"
    seen: set[str] = {queue.name}
    above: str | None = queue.parent
    while above is not None and above in queues:
        if above in seen:
            yield f"{at}.parent: the queue is above itself"
            return
        seen.add(above)
        above = queues[above].parent


class Config(Strict):
    """The configuration in force; version 0 means that nothing was ever applied."""

    version: Count = 0
    body: ConfigBody | None = None

    @property
    def health_test(self) -> HealthTest | None:
        """Test job of suspected nodes; None: none is run."""
        health = None if self.body is None else self.body.health
        return None if health is None else health.test
