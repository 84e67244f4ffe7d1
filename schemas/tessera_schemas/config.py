"""
Configuration of a shard: tenants, the queue tree with its quotas, priority classes, limits and policy.

The words are Kueue's where Kueue has them. The whole configuration is one versioned value: `tessera apply` sends the
next one with the version it was made from, and a stale one is `ConfigConflict`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tessera_schemas.base import Count, Name, Positive, Strict, later
from tessera_schemas.cluster.devices import DeviceProfile
from tessera_schemas.job import LEVELS_MAX, GpuModel, LabelKey, LabelValue, Toleration
from tessera_schemas.work.mounts import Mount
from tessera_schemas.work.pod_template import ObjectName
from tessera_schemas.work.templates import JobTemplate

YEAR_SECONDS = 31_536_000
FLAVORS_MAX = 64


class Subscriber(Strict):
    """A durable subscriber of a tenant's events, made by `apply`; `types` such as `job.allocated.v1`, empty: all."""

    name: Annotated[Name, Field(description="Under which it subscribes")]
    types: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=r"^[a-z.]+\.v[0-9]+$")], ...],
        Field(max_length=32, description="Event types that it gets; empty: all"),
    ] = ()
    begin: Annotated[
        Literal["oldest", "new"],
        Field(description="First event when it is made: `oldest` that is kept, or `new` ones; later no more changed"),
    ] = later("oldest")


class Webhook(Strict):
    """
    Delivery of a tenant's events by HTTP: a signed POST of each event. A webhook that is made begins with new events.

    The secret itself is known to the notifier alone. The URL is not secret: it stands in the ledger.
    """

    name: Annotated[Name, Field(description="What the webhook is called, once in a tenant")]
    url: Annotated[
        str, StringConstraints(pattern=r"^https?://[^\s@#]{1,1000}$"), Field(description="Where events are sent")
    ]
    secret: Annotated[Name, Field(description="Name of the secret that signs, among the tenant's own")]
    types: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=r"^[a-z.]+\.v[0-9]+$")], ...],
        Field(max_length=32, description="Types such as `job.failed.v1`; empty: all"),
    ] = ()
    queues: Annotated[tuple[Name, ...], Field(max_length=32, description="Queues of the jobs; empty: all")] = ()


class Limits(Strict):
    """Limits of one tenant. None: no limit."""

    jobs: Annotated[Positive | None, Field(description="Jobs that have not ended")] = 10_000
    gpus: Annotated[Positive | None, Field(description="GPUs asked for by jobs that have not ended")] = None
    gpus_per_job: Annotated[Positive | None, Field(description="GPUs that one job may ask for")] = None
    pods_per_job: Annotated[Positive | None, Field(description="Pods that one job may ask for")] = None
    submits_per_second: Annotated[
        Positive | None, Field(le=1_000_000, description="Jobs handed in, lastingly; orders about jobs as many again")
    ] = later(100)
    submits_burst: Annotated[Positive, Field(le=10_000_000, description="And so many at once after a pause")] = later(
        2_000
    )
    bytes_per_second: Annotated[
        Positive | None, Field(description="Of what is handed in, lastingly: the ledger keeps it for good")
    ] = later(256 * 1024)
    bytes_burst: Annotated[Positive, Field(description="And so many at once after a pause")] = later(64 * 1024**2)
    time_limit_max_seconds: Annotated[
        Positive | None, Field(le=YEAR_SECONDS, description="Longest time limit that one job may have")
    ] = later(None)


class PodGrants(Strict):
    """
    Grants for the pods of a tenant's own jobs; a job that asks for more is refused by the name of the field.

    Default grants give no right beyond the tenant's namespace. Users' own pods are Kubernetes' to judge.
    """

    memory_volumes: Annotated[bool, Field(description="Volumes in memory, such as /dev/shm")] = True
    env_from: Annotated[bool, Field(description="Variables from secrets and config maps of its namespace")] = True
    init_containers: Annotated[bool, Field(description="And sidecars")] = True
    ports: Annotated[bool, Field(description="Ports that containers declare")] = True
    higher_limits: Annotated[bool, Field(description="Limits above what is asked for: nodes may be overcommitted")] = (
        False
    )
    ipc_lock: Annotated[bool, Field(description="The capability IPC_LOCK, as RDMA needs it")] = False
    host_network: Annotated[bool, Field(description="The node's network instead of the pod's own")] = False
    runtime_classes: Annotated[
        tuple[ObjectName, ...], Field(max_length=32, description="RuntimeClasses that its pods may name")
    ] = ()


class Tenant(Strict):
    name: Annotated[Name, Field(description="Part of its subjects and its credentials")]
    limits: Annotated[Limits, Field(description="The most it may hand in")] = Limits()
    priority_classes: Annotated[tuple[Name, ...], Field(description="Granted; empty: all")] = ()
    subscribers: Annotated[
        tuple[Subscriber, ...], Field(max_length=32, description="Durable readers of its events")
    ] = ()
    pod_grants: Annotated[PodGrants, Field(description="What its pods may have beyond the usual")] = later(PodGrants())
    weight: Annotated[
        Count,
        Field(le=1_000_000, description="Its part of a queue that others use too; 0: only what nobody else asks for"),
    ] = later(1)
    webhooks: Annotated[
        tuple[Webhook, ...], Field(max_length=16, description="Receivers of its events by HTTP, made by `apply`")
    ] = later(())
    tolerations: Annotated[
        tuple[Toleration, ...],
        Field(max_length=32, description="Standing tolerations: taints that its jobs' pods bear on every node"),
    ] = later(())


class Flavor(Strict):
    """
    A kind of nodes that quotas tell apart: those with all of these labels and any of these GPU models.

    A node is of the first flavor that it matches, in the order of the configuration.
    """

    name: Annotated[Name, Field(description="What quotas say")]
    node_labels: Annotated[
        dict[LabelKey, LabelValue], Field(max_length=16, description="Labels that its nodes have")
    ] = Field(default_factory=dict)
    gpu_models: Annotated[tuple[GpuModel, ...], Field(max_length=32, description="Any of these; empty: any")] = ()


class Quota(Strict):
    """
    Quota of one resource for a queue, on nodes of one flavor or ("") on all together.

    Queues below one parent share what they do not use. A queue without a parent has nobody to borrow from, so that
    its nominal quota is a hard limit. Limits of None: all may be borrowed, all may be lent.
    """

    resource: Annotated[
        Literal["cpu_milli", "memory_bytes", "gpu_milli"],
        Field(description="What is counted; in files also gpus, cpu and memory"),
    ]
    nominal: Annotated[Count, Field(description="What the queue is promised")]
    flavor: Annotated[
        str, StringConstraints(max_length=63), Field(description="Kind of nodes; empty: all together")
    ] = ""
    borrowing_limit: Annotated[Count | None, Field(description="Most above the nominal quota")] = None
    lending_limit: Annotated[Count | None, Field(description="Most of the nominal quota that others may use")] = None


OrderName = Literal["age", "expected"]
"""Who of equals in a queue goes first; `tessera.engine.queueing.orders` has each of them."""
OVERTAKING: frozenset[OrderName] = frozenset({"expected"})
"""Orders in which a younger job may stand before an older one, until that has waited `order_patience_seconds`."""

PlacementName = Literal["tessera", "fgd", "bestfit", "gpu-packing", "dotprod", "random"]
"""Which node a pod takes of those it fits; `tessera.engine.scoring.named` has each of them."""

IdleAction = Literal["off", "warn", "requeue", "fail"]


class IdleRule(Strict):
    """
    Treatment of a queue's runs, and of those below it, that hold GPUs and use none.

    A value left out is that of the queue above it, at last the policy's (`idle`, `idle_warn_seconds`, …).
    """

    action: Annotated[IdleAction | None, Field(description="What becomes of such a run")] = None
    busy_percent: Annotated[
        int | None,
        Field(
            ge=1, le=100, strict=True, description="From this use on a GPU counts as used; else as reclamation is set"
        ),
    ] = None
    warn_seconds: Annotated[Positive | None, Field(le=YEAR_SECONDS, description="Unused for so long: a warning")] = None
    reclaim_seconds: Annotated[Positive | None, Field(le=YEAR_SECONDS, description="From the warning on")] = None
    jobs_choose: Annotated[bool, Field(description="Whether jobs may say `idle` themselves; false holds below it")] = (
        True
    )


class Queue(Strict):
    """One leaf or inner node of the queue tree; jobs name leaves."""

    name: Annotated[Name, Field(description="What jobs say")]
    tenants: Annotated[tuple[Name, ...], Field(description="Who may submit here; empty: everybody")] = ()
    pool: Annotated[Name, Field(description="Nodes that it uses")] = "default"
    parent: Annotated[Name | None, Field(description="Queue above it; null: none")] = None
    weight: Annotated[
        Count,
        Field(le=1_000_000, description="Its part of what is shared; 0: only what no queue with a weight asks for"),
    ] = 1
    quotas: Annotated[
        tuple[Quota, ...], Field(max_length=64, description="What is promised to it, per resource and flavor")
    ] = ()
    queueing_strategy: Annotated[
        Literal["best_effort_fifo", "strict_fifo"], Field(description="strict: nobody passes the queue's first job")
    ] = "best_effort_fifo"
    stop_policy: Annotated[
        Literal["none", "hold", "hold_and_drain"],
        Field(description="hold: nothing of it starts; hold_and_drain: what runs goes back to it, too"),
    ] = "none"
    reclaim: Annotated[
        Literal["any", "lower_priority", "never"],
        Field(
            description="Whose runs are stopped when a job within the queue's nominal quota waits for what others "
            "borrowed. any: of every priority class. lower_priority: of lower classes than that job's. never: it waits "
            "until they end. Under every preset"
        ),
    ] = later("any")
    idle: Annotated[IdleRule | None, Field(description="Held but idle GPUs; left out: as above it")] = later(None)
    suspend_waiting: Annotated[
        bool | None,
        Field(
            description="Whether Jobs, JobSets, RayClusters and training jobs that users made are suspended for as "
            "long as they wait, so that they have no pods meanwhile; left out: as above it, at last false"
        ),
    ] = later(None)
    order: Annotated[
        OrderName,
        Field(
            description="Who goes first among jobs of one priority class that share nothing: of one user, or of a "
            "tenant whose jobs name none. age: the oldest. expected: whoever is expected to take the least GPU time "
            "over the slowdown that its wait has made, by time limits and by how long such jobs ran before; the oldest "
            "first of those that have waited for the policy's `order_patience_seconds`. A strict_fifo queue goes by age"
        ),
    ] = later("age")
    was: Annotated[
        Name | None,
        Field(description="Former name: live jobs of the queue that had it move to this one"),
    ] = later(None)
    time_limit_max_seconds: Annotated[
        Positive | None,
        Field(le=YEAR_SECONDS, description="Longest time limit of jobs of the queue and of those below it; null: none"),
    ] = later(None)

    @model_validator(mode="after")
    def _one_order(self) -> Self:
        if self.queueing_strategy == "strict_fifo" and self.order != "age":
            raise ValueError(
                f"order: a strict_fifo queue goes by age; leave `order: {self.order}` out, or the strategy"
            )
        return self


class Pool(Strict):
    """Nodes that say the pool's name. A node that itself says another device profile takes nothing new."""

    name: Annotated[Name, Field(description="What queues and nodes say")]
    device_profile: Annotated[
        DeviceProfile | None, Field(description="Who hands out the GPUs of its nodes; None: each node says it itself")
    ] = None
    tolerations: Annotated[
        tuple[Toleration, ...],
        Field(max_length=32, description="Standing tolerations: taints of its nodes that every job's pods there bear"),
    ] = later(())


class Level(Strict):
    """A topology level: jobs say its name in place of the node label whose values are its domains."""

    name: Annotated[Name, Field(description="What jobs say")]
    label: Annotated[LabelKey, Field(description="The node label")]


class PriorityClass(Strict):
    name: Annotated[Name, Field(description="What jobs say")]
    value: Annotated[int, Field(ge=-1_000_000, le=1_000_000, strict=True, description="Higher goes first")]
    was: Annotated[
        Name | None,
        Field(description="Former name: live jobs of the class that had it get this one"),
    ] = later(None)


class Policy(Strict):
    """Scheduling policy of the shard. Every value is part of what a replay needs."""

    preset: Annotated[
        Literal["off", "priority", "fair"],
        Field(
            description="Who of its own queue may be evicted for a waiting job. off: nobody. priority, fair: lower "
            "classes. What other queues borrowed is taken back under each of them, as the queue's `reclaim` says"
        ),
    ] = "off"
    placement: Annotated[
        PlacementName,
        Field(
            description="Which of the nodes that a pod fits it takes. tessera: where the worth of what stays free "
            "falls least, by the mix of jobs seen so far. fgd: where fragmentation rises least, by the same mix. The "
            "others know nothing of the mix"
        ),
    ] = "tessera"
    min_runtime_seconds: Annotated[
        Count, Field(le=YEAR_SECONDS, description="A run younger than this is not preempted")
    ] = 60
    evictions_max: Annotated[
        Count, Field(le=1000, description="How often one job may be preempted in its life; after that never again")
    ] = 5
    earmark_seconds: Annotated[
        Positive, Field(le=86_400, description="How long room made for a job is kept for it")
    ] = 600
    defragment: Annotated[
        bool,
        Field(
            description="Whether runs may be stopped and started again elsewhere so that a waiting job finds its room "
            "in one piece. Whatever the preset; never a run of a higher class than that job's"
        ),
    ] = False
    defragment_moves_max: Annotated[Positive, Field(le=64, description="How many runs one job may make move")] = 8
    defragment_min_gain_gpu_seconds: Annotated[
        Count,
        Field(
            le=10**12,
            description="How much more GPU time the waiting job must gain than the moved runs lose",
        ),
    ] = 0
    fragmentation_event_seconds: Annotated[
        Count,
        Field(
            le=86_400,
            description="What is left of a pool is said at most once in so many seconds, when it has changed "
            "noticeably; 0: never",
        ),
    ] = 60
    grow_after_seconds: Annotated[
        Count, Field(le=86_400, description="How long an elastic run keeps its size before it grows (again)")
    ] = 30
    backfill: Annotated[
        Literal["off", "reserve"],
        Field(
            description="off: what fits starts. reserve: room is kept for the first job of a pool's line that finds "
            "none; others start only where that does not delay it, by time limits and by how long such jobs ran before"
        ),
    ] = "off"
    backfill_patience_seconds: Annotated[
        Count, Field(le=YEAR_SECONDS, description="From submit until room is kept for a job that finds none")
    ] = 0
    backfill_closing_seconds: Annotated[
        Count,
        Field(
            le=YEAR_SECONDS,
            description="From submit until nobody passes such a job any more, however short: it bounds its wait where "
            "runs take longer than they ever did",
        ),
    ] = 1_209_600
    backfill_depth: Annotated[
        Positive, Field(le=16, description="For how many jobs of a pool room is kept at the same time")
    ] = 1
    node_lost_seconds: Annotated[
        Count, Field(le=86_400, description="How long a node may be not ready before its runs restart elsewhere")
    ] = 60
    cordoned: Annotated[
        Literal["restart", "keep"],
        Field(
            description="What becomes of preemptible runs on a node that is cordoned for `cordoned_seconds`. restart: "
            "those for which there is room elsewhere, and which lose less than the node has been cordoned, start again "
            "there after their checkpoint notice. keep: they go on. Others go on in any case"
        ),
    ] = "restart"
    idle: Annotated[
        Literal["off", "warn", "requeue", "fail"], Field(description="What becomes of runs that hold GPUs and use none")
    ] = "off"
    idle_warn_seconds: Annotated[Positive, Field(le=YEAR_SECONDS, description="Unused for so long: a warning")] = 1800
    idle_reclaim_seconds: Annotated[Positive, Field(le=YEAR_SECONDS, description="From the warning on")] = 1800
    start_timeout_seconds: Annotated[
        Positive, Field(le=YEAR_SECONDS, description="From allocation until every pod runs")
    ] = 600
    key_memory_seconds: Annotated[
        Positive, Field(le=YEAR_SECONDS, description="How long an ended job's key is remembered")
    ] = 604_800
    requeues_max: Annotated[
        Positive,
        Field(
            le=1000,
            description="Runs in a row that nodes or images kept from starting, after which their job is put on hold",
        ),
    ] = later(10)
    steady_seconds: Annotated[
        Count,
        Field(
            le=YEAR_SECONDS,
            description="A run that lasted so long, or saved a checkpoint, gives its job all its attempts back",
        ),
    ] = later(3600)
    stop_patience_seconds: Annotated[
        Positive,
        Field(
            le=86_400,
            description="Beyond notice and grace of a run that is being stopped: then it counts as stuck, and another "
            "plan is made for the job that waits for its room",
        ),
    ] = later(60)
    cordoned_seconds: Annotated[
        Count,
        Field(
            le=YEAR_SECONDS, description="How long a node has to be cordoned before `cordoned: restart` does anything"
        ),
    ] = later(3600)
    mass_stop_percent: Annotated[
        Positive,
        Field(
            le=100,
            description="How much of a pool's running GPUs may be stopped within `mass_stop_seconds` because their "
            "nodes or devices seem lost; beyond that an operator has to say so. Those of one node always may; 100: all",
        ),
    ] = later(25)
    mass_stop_seconds: Annotated[
        Positive, Field(le=86_400, description="For how long such stops count against `mass_stop_percent`")
    ] = later(600)
    order_patience_seconds: Annotated[
        Count,
        Field(
            le=YEAR_SECONDS,
            description="From submit until a job of a queue with `order: expected` goes by age, before all that have "
            "waited less: it bounds how long shorter jobs pass it",
        ),
    ] = later(172_800)


class Defaults(Strict):
    """Values for submitted jobs that say nothing themselves; the answer to the submit names them."""

    time_limit_seconds: Annotated[
        Positive | None,
        Field(
            le=YEAR_SECONDS,
            description="Time limit of a job without one; null, or above the longest that its queue and its tenant "
            "allow: that one, if there is one",
        ),
    ] = None


class ConfigBody(Strict):
    """Configuration as an operator writes it: the whole of it, each time."""

    tenants: Annotated[tuple[Tenant, ...], Field(min_length=1, max_length=10_000, description="Who may hand in jobs")]
    queues: Annotated[tuple[Queue, ...], Field(min_length=1, max_length=10_000, description="Where jobs wait, a tree")]
    flavors: Annotated[
        tuple[Flavor, ...], Field(max_length=FLAVORS_MAX, description="Kinds of nodes that quotas tell apart")
    ] = ()
    pools: Annotated[tuple[Pool, ...], Field(max_length=1000, description="Sets of nodes")] = ()
    topology: Annotated[tuple[Level, ...], Field(max_length=LEVELS_MAX, description="Widest first")] = ()
    priority_classes: Annotated[
        tuple[PriorityClass, ...], Field(min_length=1, max_length=64, description="From which jobs choose")
    ] = (
        PriorityClass(name="low", value=-100),
        PriorityClass(name="normal", value=0),
        PriorityClass(name="high", value=100),
        PriorityClass(name="urgent", value=1000),
    )
    templates: Annotated[tuple[JobTemplate, ...], Field(max_length=1000, description="Jobs by name")] = ()
    policy: Annotated[Policy, Field(description="How the shard decides")] = Policy()
    defaults: Annotated[Defaults, Field(description="What jobs get that say nothing themselves")] = later(Defaults())
    mounts: Annotated[tuple[Mount, ...], Field(max_length=256, description="Paths that jobs may mount")] = later(())

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        wrong = [*_repeated(self), *_dangling(self), *_levels(self), *_renamed(self)]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


def _repeated(body: ConfigBody) -> Iterator[str]:
    for kind in ("tenants", "queues", "priority_classes", "flavors", "pools", "topology", "templates"):
        counts = Counter(entry.name for entry in getattr(body, kind))
        yield from (f"{kind}.{name}: is there twice" for name, count in counts.items() if count > 1)
    paths = Counter(mount.path for mount in body.mounts)
    yield from (f"mounts.{path}: is there twice" for path, count in paths.items() if count > 1)
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
    """Topology levels with the names of node and pool, which `tessera slots` uses itself."""
    labels = Counter(level.label for level in body.topology)
    for level in body.topology:
        if level.name in ("node", "pool"):
            yield f"topology.{level.name}: every node and every pool is one already; take another name"
        if labels[level.label] > 1:
            yield f"topology.{level.name}.label: {level.label} is another level's, too"


def _dangling(body: ConfigBody) -> Iterator[str]:
    tenants, queues = {t.name for t in body.tenants}, {q.name: q for q in body.queues}
    classes, flavors = {p.name for p in body.priority_classes}, {f.name for f in body.flavors}
    for mount in body.mounts:
        yield from (f"mounts.{mount.path}.tenants: no tenant {name}" for name in mount.tenants if name not in tenants)
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


def _misplaced(queue: Queue, queues: dict[str, Queue]) -> Iterator[str]:
    """Faults of the queue's place in the tree."""
    at = f"queues.{queue.name}"
    if queue.parent is None:
        limited = [q.resource for q in queue.quotas if q.borrowing_limit is not None or q.lending_limit is not None]
        yield from (f"{at}.quotas.{name}: a borrowing or lending limit needs a parent" for name in limited)
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
