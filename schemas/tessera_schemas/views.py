"""Views in Redis: one JSON value per entity, derived from the ledger by projection."""

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field

from tessera_schemas.base import Lenient, Millis
from tessera_schemas.cluster.health import KnownAilment
from tessera_schemas.reasons import PublicReason
from tessera_schemas.work.arrays import Dependency
from tessera_schemas.work.measured_use import PublicMeasuredUse
from tessera_schemas.work.money import GPU_HOUR, CostRates, amount_text, held_cost
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.spec_changes import SpecChanges

ClassUses = Annotated[
    tuple[tuple[str, int, int, int], ...],
    Field(description="Devices that drivers publish: class, number, of which taken, and under a taint"),
]


class ArrayView(Lenient):
    """
    Progress of an array: `tasks` as written, how many there are, and what became of them.

    `left` names the tasks that are not queued yet; `waiting` ones are queued, `running` ones have their devices. The
    array itself asks for nothing.
    """

    tasks: str
    count: int
    limit: Annotated[int, Field(description="Limit of tasks at once, from start to end; 0: none")] = 0
    left: str = ""
    waiting: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    replicas: Annotated[int, Field(description="Replicas that a service is to have")] = 0
    min_replicas: Annotated[int, Field(description="Replicas that a service is guaranteed")] = 0
    max_replicas: Annotated[int, Field(description="Most replicas of a service; 0: no service")] = 0
    revision: Annotated[int, Field(description="Revision of a service, which counts its rollouts; 0: no service")] = 0
    rollout: Annotated[str, Field(description="`rolling` or `stopped`; empty: every replica has the revision")] = ""
    task_cpu_milli: Annotated[int, Field(description="CPU request of one task in thousandths of a core; 0: ended")] = 0
    task_memory_bytes: Annotated[int, Field(description="Memory request of one task in bytes; 0: ended")] = 0
    task_gpu_milli: Annotated[int, Field(description="GPU request of one task in thousandths; 0: ended")] = 0


class JobView(Lenient):
    """A job as of the cursor; ended jobs stay for as long as their key is remembered."""

    job_id: str
    tenant: str
    queue: str
    name: str
    key: str
    phase: str
    priority: int
    attempt: int
    pods: int
    gpu_milli: int
    submitted_ts: int
    started_ts: int = 0
    ended_ts: int = 0
    not_before: int = 0
    deadline_ts: Annotated[int, Field(description="Time by which the job is to have ended; 0: none")] = 0
    reservation: Annotated[str, Field(description="Reservation in whose windows it runs; empty: none")] = ""
    reason: PublicReason | None = None
    exit_code: int | None = None
    placements: tuple[Placement, ...] = ()
    priority_class: str = ""
    held: Annotated[bool, Field(description="Whether the job is held")] = False
    evictions: Annotated[int, Field(description="Number of times stopped for other jobs")] = 0
    flavor: Annotated[str, Field(description="Flavor of the run's nodes, where quotas use flavors; !a: any but a")] = ""
    earmarked_until: Annotated[int, Field(description="End of the reservation of room; 0: none")] = 0
    saved_ts: Annotated[int, Field(description="Time of the last saved work of the run; 0: none")] = 0
    saved_path: Annotated[str, Field(description="Path of the last checkpoint")] = ""
    idle_ts: Annotated[int, Field(description="Time of the idle warning; 0: none")] = 0
    avoid: Annotated[tuple[str, ...], Field(description="Nodes to avoid, on which runs failed")] = ()
    owner: Annotated[str, Field(description="Kubernetes owner of adopted work, such as `Job/train`")] = ""
    held_pods: Annotated[
        int, Field(description="Pods of the run now: more than `pods` after growth, fewer after some have ended")
    ] = 0
    held_gpu_milli: Annotated[
        int, Field(description="GPU held by the run now, in thousandths; `gpu_milli` is the request of the gang")
    ] = 0
    array: ArrayView | None = None
    task_of: Annotated[str, Field(description="Id of a task's array")] = ""
    task: Annotated[int, Field(description="Index of a task")] = 0
    after: Annotated[tuple[Dependency, ...], Field(description="Conditions on other jobs that are still open")] = ()
    attached_to: Annotated[str, Field(description="Id of the job beside whose run this one runs")] = ""
    number: Annotated[int, Field(description="Number of the job in the shard, from 1; 0: none")] = 0
    array_number: Annotated[int, Field(description="Number of a task's array")] = 0
    user: Annotated[str, Field(description="User who submitted the job, as its spec says")] = ""
    project: Annotated[str, Field(description="Project within the tenant, as its spec says; empty: none")] = ""
    session: Annotated[str, Field(description="notebook, workspace or terminal of a person; empty: none")] = ""
    address: Annotated[str, Field(description="Where browsers reach the session while it runs; empty: no Ingress")] = ""
    exclusive: Annotated[
        bool, Field(description="Whether each pod of a role has a node to itself; false of a job that has ended")
    ] = False
    cpu_milli: Annotated[int, Field(description="CPU request of the gang in thousandths of a core")] = 0
    memory_bytes: Annotated[int, Field(description="Memory request of the gang in bytes")] = 0
    time_limit_seconds: Annotated[int, Field(description="Time limit of one run in seconds; 0: none")] = 0
    digest: Annotated[str, Field(description="Beginning of the digest of what was sent")] = ""
    operator_hold: Annotated[bool, Field(description="Held by an operator, who alone releases the job")] = False
    earlier_ms: Annotated[
        int, Field(description="Total milliseconds of all runs before the last, each from start to requeue")
    ] = 0
    gpu_milli_ms: Annotated[
        int, Field(description="GPU time of all runs up to `gpu_counted_ts`: thousandths of a GPU times milliseconds")
    ] = 0
    gpu_counted_ts: Annotated[
        int, Field(description="Time from which `held_gpu_milli` has to be added to the GPU time; 0: no run holds GPUs")
    ] = 0
    nodes: Annotated[tuple[str, ...], Field(description="Nodes of the last run of an ended job, by rank")] = ()
    changes: Annotated[SpecChanges | None, Field(description="Spec fields changed after the submit")] = None
    currency: Annotated[str, Field(description="Word for the currency of its cost; empty: there are no prices")] = ""
    cost_micros: Annotated[
        int, Field(description="Cost of all runs up to `gpu_counted_ts`, in millionths of the currency's unit")
    ] = 0
    cost_rest: Annotated[int, Field(description="Rest of the cost that is no whole millionth, times 3.6e9")] = 0
    cost_rates: Annotated[
        CostRates,
        Field(description="From when on its run costs how much an hour, in millionths times thousandths of a GPU"),
    ] = ()
    gpu_use: Annotated[
        PublicMeasuredUse | None, Field(description="Use of the GPUs of all runs, as far as measured")
    ] = None

    device_classes: Annotated[
        tuple[tuple[str, int], ...],
        Field(description="Published devices that the gang asks for at most, by class; of an array those of one task"),
    ] = ()
    claimed: Annotated[
        tuple[tuple[str, str, str, str], ...],
        Field(description="Class of each request for devices: role, claim, request as in `placements`, class"),
    ] = ()
    gres: Annotated[
        tuple[tuple[str, str], ...], Field(description="Word of Slurm's for each class: class, generic resource")
    ] = ()

    @property
    def devices_now(self) -> dict[str, int]:
        """Devices that drivers publish by class: those that its run holds, without a run what its gang asks for."""
        if not self.placements:
            return dict(self.device_classes)
        classes = {tuple(names): name for *names, name in self.claimed}
        held = Counter(
            classes.get((place.role, device.claim, device.request), "")
            for place in self.placements
            for device in place.drawn
            if not device.admin
        )
        return {name: count for name, count in sorted(held.items()) if name}

    @property
    def restarts(self) -> int:
        """Number of runs that began after the first one, whatever ended the one before."""
        return max(0, self.attempt - 1)

    @property
    def as_task(self) -> "JobView":
        """The array with what one of its tasks asks for, as Slurm shows it; any other job as it is."""
        if self.array is None:
            return self
        names = ("cpu_milli", "memory_bytes", "gpu_milli")
        return self.model_copy(update={name: getattr(self.array, f"task_{name}") for name in names})

    def waited_ms(self, now_ms: int) -> int:
        """Time that it waited for its runs to start, all waits together; a wait ends when a run starts."""
        return max(0, (self.started_ts or self.ended_ts or now_ms) - self.submitted_ts - self.earlier_ms)

    def held_gpu_milli_ms(self, now_ms: int) -> int:
        """
        GPU time that all its runs held, in thousandths of a GPU times milliseconds.

        Of a job that ended before its shard counted it is what its gang asked for, over the last run.
        """
        if self.ended_ts and self.started_ts and not self.gpu_milli_ms:
            return self.gpu_milli * (self.ended_ts - self.started_ts)
        since = max(0, now_ms - self.gpu_counted_ts) if self.gpu_counted_ts else 0
        return self.gpu_milli_ms + self.held_gpu_milli * since

    def cost_at(self, now_ms: int) -> str:
        """Cost of all its runs, rounded down once to a millionth, with its currency; "" where there are no prices."""
        if not self.currency:
            return ""
        running = held_cost(self.cost_rates, self.gpu_counted_ts, now_ms) if self.gpu_counted_ts else 0
        return amount_text(self.cost_micros + (self.cost_rest + running) // GPU_HOUR, self.currency)

    @property
    def pods_now(self) -> int:
        """Number of pods of its run, while there is one; else of its gang."""
        return self.held_pods or self.pods

    @property
    def gpu_milli_now(self) -> int:
        return self.held_gpu_milli if self.held_pods else self.gpu_milli


class QuotaUse(Lenient):
    """
    One quota of a queue and what is used of it, in the resource's unit; flavor "" counts all nodes.

    A queue also uses what is kept for its jobs while room is made for them. `lent` is what it could not use now of its
    own quota, since others do; `available` is how much more it could use now, borrowing included. An inner queue's own
    quota is its nominal one and what those below it put in. `part_percent`: the part of the pool that `nominal` is now.
    """

    resource: str
    flavor: str = ""
    nominal: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None
    used: int = 0
    borrowed: int = 0
    lent: int = 0
    available: int = 0
    part_percent: int | None = None
    lending_until: Annotated[
        int, Field(description="Time at which another part of it may be lent, by the queue's hours; 0: always the same")
    ] = 0


class QueueView(Lenient):
    """
    Use of a queue, and jobs that wait in it. An inner queue takes no jobs; its quotas show the use of those below.
    """

    name: str
    pool: str
    queued: int = 0
    live: int = 0
    used_cpu_milli: int = 0
    used_memory_bytes: int = 0
    used_gpu_milli: int = 0
    parent: str = ""
    inner: bool = False
    weight: int = 1
    stop_policy: str = "none"
    quotas: tuple[QuotaUse, ...] = ()
    time_limit_max_seconds: Annotated[int, Field(description="Longest time limit, by queues above too; 0: none")] = 0
    removed: Annotated[
        bool,
        Field(description="Whether the configuration has it no more: what it holds is borrowed, and none of it starts"),
    ] = False


class ShareView(Lenient):
    """
    A queue, tenant in it or user of that tenant beside those with whom it shares: what it has for its weight.

    `others` are names in sum: those that a tenant may not see, or, without a pool, those that are told apart no more.
    """

    level: Literal["queue", "tenant", "user"]
    pool: str = ""
    queue: str = ""
    parent: str = ""
    tenant: str = ""
    user: Annotated[str, Field(description="User within the tenant; empty: jobs that name none")] = ""
    weight: int = 1
    share_ppm: Annotated[int, Field(description="Part of its weight in that of its level, in parts per million")] = 0
    held_gpu_milli: int = 0
    used_gpu_milli_ms: Annotated[int, Field(description="Used GPU time that counts yet, by the half-life")] = 0
    average_gpu_milli: Annotated[int, Field(description="The same as GPUs that were held on average")] = 0
    factor: Annotated[int, Field(description="Share now and on average over the weight, in parts per million")] = 0
    place: Annotated[int, Field(description="Place by the factor in its level, from 1")] = 0
    of: int = 0
    others: bool = False


class OthersView(Lenient):
    """Use of a node by pods that Tessera does not manage, by what they ask for."""

    pods: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    devices: tuple[tuple[str, int], ...] = ()


class NodeTestView(Lenient):
    """The last test job of a node."""

    job_id: str
    since_ts: Annotated[int, Field(description="When it was queued")]
    ended_ts: Annotated[int, Field(description="When it ended; 0: it has not")] = 0
    outcome: Annotated[
        str, Field(description="passed, failed, or nothing where its end says nothing of the node; empty: it lives")
    ] = ""
    passes: Annotated[int, Field(description="Tests that passed there, of the one that is configured")] = 0
    failures: Annotated[int, Field(description="Tests that failed there, of the one that is configured")] = 0


class NodeView(Lenient):
    """
    A node, its size and what is free; `gpu_free` per device slot in thousandths.

    What is kept for a job counts as taken, also while a run that is being stopped still holds it; so does what `others`
    take. Of the slots that no run holds the highest count as theirs.
    """

    name: str
    pool: str
    ready: bool
    gone: bool = False
    gpu_model: str = ""
    gpus: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    cpu_free_milli: int = 0
    memory_free_bytes: int = 0
    pods_free: int = 0
    gpu_free: tuple[int, ...] = ()
    device_profile: str = "whole"
    labels: dict[str, str] = Field(default_factory=dict)
    taints: Annotated[tuple[tuple[str, str, str], ...], Field(description="Taints: key, value, effect")] = ()
    gpu_memory_bytes: Annotated[int, Field(description="Memory of each GPU in bytes; 0: unknown")] = 0
    mig_geometry: str = ""
    devices: Annotated[tuple[tuple[str, int], ...], Field(description="Further devices: name, number")] = ()
    devices_free: tuple[tuple[str, int], ...] = ()
    device_classes: ClassUses = ()
    gres: Annotated[
        tuple[tuple[str, str], ...], Field(description="Word of Slurm's for each class: class, generic resource")
    ] = ()
    drained: Annotated[bool, Field(description="Drained: no new pods")] = False
    drain_why: str = ""
    drained_by: Annotated[str, Field(description="health: drained for its health; empty: by an operator")] = ""
    ailments: Annotated[tuple[KnownAilment, ...], Field(description="All that is known to be wrong with it")] = ()
    overruled: Annotated[
        bool, Field(description="An operator has said that it is good, until none of its ailments is left")
    ] = False
    health_held_back: Annotated[
        bool, Field(description="It would be drained for its health, but too many nodes of its pool are")
    ] = False
    test: Annotated[NodeTestView | None, Field(description="Its last test job; null: none")] = None
    spare: Annotated[bool, Field(description="Spare of its pool: only jobs that lost a node start there")] = False
    flavor: Annotated[str, Field(description="First flavor of the configuration that matches the node")] = ""
    others: OthersView = OthersView()
    mig_instances: Annotated[tuple[tuple[str, int], ...], Field(description="MIG instances made: profile, number")] = ()
    gpu_uuids: tuple[str, ...] = ()
    trouble: Annotated[PublicReason | None, Field(description="Why the node takes no new pods")] = None
    cordoned: Annotated[bool, Field(description="Cordoned while healthy: no new pods")] = False
    away_since_ts: Annotated[int, Field(description="Time since which the node is silent or cordoned; 0: neither")] = 0
    missing_gpus: Annotated[int, Field(description="GPUs held by runs but no longer offered by the node")] = 0
    waiting_runs: Annotated[
        int, Field(description="Stopped runs that wait until the silent node is back or is declared out of service")
    ] = 0
    fence: Annotated[str, Field(description="Progress of turning the node off by the fencing webhook; empty: none")] = (
        ""
    )
    held_back_runs: Annotated[
        int, Field(description="Runs that seem lost but go on until an operator decides: too many at once")
    ] = 0
    tolerated: Annotated[
        tuple[tuple[str, str, str], ...], Field(description="Standing tolerations of the pool: key, value, effect")
    ] = ()
    capacity: Annotated[
        tuple[tuple[str, int], ...], Field(description="Installed number of devices, where fewer are allocatable")
    ] = ()
    gpu_resource: Annotated[str, Field(description="Resource by which it offers its GPUs; empty: nvidia.com/gpu")] = ""
    gpu_default: Annotated[
        bool, Field(description="Whether jobs that name neither a GPU resource nor a model may use its GPUs")
    ] = True
    share_milli: Annotated[
        int, Field(description="Thousandths of a GPU that every share there is; 0: shares are of any size")
    ] = 0
    lost_ts: Annotated[
        int, Field(description="Time of loss, for a node shown as it was before it lost devices or vanished")
    ] = 0


class LineStart(Lenient):
    """Expected start of a job for which room is kept, and by what the runs before it are expected to end."""

    at_ts: Millis
    rests_on: Annotated[
        tuple[Literal["time_limits", "learnt_runtimes", "stopping_runs"], ...],
        Field(description="Grounds of the estimate: time limits, past run times of such jobs, stops under way"),
    ]
    nodes: Annotated[tuple[str, ...], Field(description="Nodes on which room is kept")] = ()
    words: Annotated[str, Field(description="Explanation in words, as of the answer")] = ""
