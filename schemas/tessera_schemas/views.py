"""Views in Redis: one JSON value per entity, derived from the ledger by projection."""

from typing import Annotated

from pydantic import Field

from tessera_schemas.base import Lenient
from tessera_schemas.reasons import PublicReason
from tessera_schemas.work.arrays import Dependency
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.spec_changes import SpecChanges


class ArrayView(Lenient):
    """
    Progress of an array: `tasks` as written, how many there are, and what became of them.

    `left` names the tasks that are not queued yet; `waiting` ones are queued, `running` ones have their devices. The
    array itself asks for nothing.
    """

    tasks: str
    count: int
    limit: Annotated[int, Field(description="How many may be on their way at once; 0: no limit")] = 0
    left: str = ""
    waiting: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    task_cpu_milli: Annotated[int, Field(description="Thousandths of a CPU that one task asks for; 0: ended")] = 0
    task_memory_bytes: Annotated[int, Field(description="Memory that one task asks for; 0: ended")] = 0
    task_gpu_milli: Annotated[int, Field(description="Thousandths of a GPU that one task asks for; 0: ended")] = 0


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
    reason: PublicReason | None = None
    exit_code: int | None = None
    placements: tuple[Placement, ...] = ()
    priority_class: str = ""
    held: Annotated[bool, Field(description="It does not start until it is let go")] = False
    evictions: Annotated[int, Field(description="How often it was stopped for other jobs")] = 0
    flavor: Annotated[str, Field(description="Of its run's nodes, where quotas tell flavors apart; !a: any but a")] = ""
    earmarked_until: Annotated[int, Field(description="Until when room is kept for it; 0: none is")] = 0
    saved_ts: Annotated[int, Field(description="Up to when the run's work is saved; 0: not at all")] = 0
    saved_path: Annotated[str, Field(description="Where its last checkpoint is")] = ""
    idle_ts: Annotated[int, Field(description="When the run was warned for idleness; 0: it was not")] = 0
    avoid: Annotated[tuple[str, ...], Field(description="Nodes that failed it")] = ()
    owner: Annotated[str, Field(description="Of adopted work: what users made in Kubernetes, such as `Job/train`")] = ""
    held_pods: Annotated[
        int, Field(description="That its run has now: more than `pods` where it grew, fewer where some have ended")
    ] = 0
    held_gpu_milli: Annotated[int, Field(description="That these hold; `gpu_milli` is what its gang asks for")] = 0
    array: ArrayView | None = None
    task_of: Annotated[str, Field(description="Of a task: the id of its array")] = ""
    task: Annotated[int, Field(description="Of a task: its index")] = 0
    after: Annotated[tuple[Dependency, ...], Field(description="That it still waits for")] = ()
    number: Annotated[int, Field(description="Of the shard's jobs, counted from 1; 0: it has none")] = 0
    array_number: Annotated[int, Field(description="Of a task: the number of its array")] = 0
    user: Annotated[str, Field(description="Who submitted it, as the job says")] = ""
    cpu_milli: Annotated[int, Field(description="Thousandths of a CPU that its gang asks for")] = 0
    memory_bytes: Annotated[int, Field(description="Memory that its gang asks for")] = 0
    time_limit_seconds: Annotated[int, Field(description="Longest time of one run; 0: none")] = 0
    digest: Annotated[str, Field(description="Beginning of the digest of what was sent")] = ""
    operator_hold: Annotated[bool, Field(description="It is held, and only an operator lets it go")] = False
    earlier_ms: Annotated[
        int, Field(description="Time that its runs before the last took, each from its start until it was queued again")
    ] = 0
    gpu_milli_ms: Annotated[
        int, Field(description="That its runs held: thousandths of a GPU times milliseconds, up to `gpu_counted_ts`")
    ] = 0
    gpu_counted_ts: Annotated[
        int, Field(description="Since when its run's `held_gpu_milli` have to be added; 0: no run holds any")
    ] = 0
    nodes: Annotated[tuple[str, ...], Field(description="Of a job that has ended: those of its last run, by rank")] = ()
    changes: Annotated[SpecChanges | None, Field(description="Fields of its spec that changed after its submit")] = None

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
    quota is its nominal one and what those below it put in.
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
    time_limit_max_seconds: Annotated[
        int, Field(description="Longest time limit by the queue and those above it; 0: none")
    ] = 0


class RestartCost(Lenient):
    """
    Runs of a tenant that were stopped for one reason and begin again, and what that cost: thousandths of a GPU times
    milliseconds from the last checkpoint, or else the start, until their devices were free.
    """

    tenant: str
    reason: str
    restarts: int
    lost: int


class GpuUseView(Lenient):
    """
    A pool's GPUs over one step of ledger time, as far as it was counted: thousandths of a GPU times milliseconds.

    `held` is by tenant, `unused` the part of it that runs hold which were warned that they use none, `idle` by cause.
    """

    pool: str
    start_ts: int
    upto_ts: Annotated[int, Field(description="Up to which it is counted")]
    counted_ms: int
    n: Annotated[int, Field(description="The ledger record up to which it is counted")]
    held: tuple[tuple[str, int], ...] = ()
    unused: int = 0
    idle: tuple[tuple[str, int], ...] = ()
    restarts: tuple[RestartCost, ...] = ()


class OthersView(Lenient):
    """Use of a node by pods that Tessera does not manage, by what they ask for."""

    pods: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    devices: tuple[tuple[str, int], ...] = ()


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
    taints: Annotated[tuple[tuple[str, str, str], ...], Field(description="key, value, effect")] = ()
    gpu_memory_bytes: Annotated[int, Field(description="Of each GPU; 0: not known")] = 0
    mig_geometry: str = ""
    devices: Annotated[tuple[tuple[str, int], ...], Field(description="Further devices: name, number")] = ()
    devices_free: tuple[tuple[str, int], ...] = ()
    drained: Annotated[bool, Field(description="Nothing new starts on it: an operator said so")] = False
    drain_why: str = ""
    flavor: Annotated[str, Field(description="The first of the configuration that it matches")] = ""
    others: OthersView = OthersView()
    mig_instances: Annotated[tuple[tuple[str, int], ...], Field(description="As made: profile, number")] = ()
    gpu_uuids: tuple[str, ...] = ()
    trouble: Annotated[PublicReason | None, Field(description="Why it takes nothing new, whatever is free")] = None
    cordoned: Annotated[bool, Field(description="Well, but somebody cordoned it: nothing new starts on it")] = False
    away_since_ts: Annotated[int, Field(description="Since when it is silent or cordoned; 0: it is neither")] = 0
    missing_gpus: Annotated[int, Field(description="GPUs that runs hold there and that it does not offer now")] = 0
    waiting_runs: Annotated[
        int, Field(description="Stopped runs that wait until the silent node is back or is said to be off")
    ] = 0
    held_back_runs: Annotated[
        int, Field(description="Runs that seem lost on it, and go on until an operator says so: too many at once")
    ] = 0
    tolerated: Annotated[
        tuple[tuple[str, str, str], ...], Field(description="Standing tolerations of its pool: key, value, effect")
    ] = ()
    capacity: Annotated[
        tuple[tuple[str, int], ...], Field(description="Devices of which it has more than can be allocated")
    ] = ()
    lost_ts: Annotated[
        int, Field(description="Of a node as it was before it lost something, or was gone: when that was")
    ] = 0
