"""Place of a waiting job in the indexes of the state: its place, its bucket and its kind. Pure."""

from sortedcontainers import SortedList

from tessera.domain.entities import Job
from tessera.domain.queues import QueueTree
from tessera.domain.runtimes import JobKind, kind_of
from tessera.domain.work.gang import Gang

QueuedJob = tuple[int, int, int, str]
"""-priority, then age (ledger n, index), then the id."""

UserLine = tuple[str, str, str]
"""Queue, tenant and user."""

Bucket = tuple[int, JobKind, int, int]
"""-priority, kind, time limit and deadline (ms, 0 for none) of jobs that run as long and are to end by one time."""

WaitingKind = tuple[Gang, bool]
"""Of equal gangs, revocable or not, in one queue all may start or none."""

KindLines = dict[Bucket, dict[UserLine, SortedList[QueuedJob]]]
WaitingByKind = dict[str, dict[WaitingKind, dict[str, KindLines]]]
"""
The waiting jobs of each pool by kind and queue, apart for each bucket and user: one answer is one for them all.

Kinds stand before queues: room is the same for all queues of a pool.
"""


def sharers(queue: str, tenant: str, user: str) -> tuple[tuple[str, ...], ...]:
    """Tenant and user that fair share charges for a job of the queue; "" is the one user of jobs that name none."""
    return (queue, tenant), (queue, tenant, user)


def job_stands(job: Job) -> tuple[str, str, bool, int, str, int]:
    """The fields that decide a queued job's place, or its bucket, and that may change while it waits."""
    # What claims count for is known only once drivers have published devices for them.
    gpu_milli = job.amount.gpu_milli
    return job.queue, job.priority_class, job.kept_out, job.time_limit_seconds, job.name, gpu_milli


def place_in_line(tree: QueueTree, job: Job) -> QueuedJob:
    return (-tree.priority_of(job), job.taken_n, job.fact_index, job.job_id)


def bucket_of(tree: QueueTree, job: Job) -> Bucket:
    return (-tree.priority_of(job), kind_of(job), job.time_limit_seconds * 1000, job.deadline_ts)


def kind_keys(tree: QueueTree, job: Job) -> tuple[str, WaitingKind, str, Bucket, UserLine]:
    """Place of the job among the waiting kinds; its queue takes jobs."""
    kind, whose = (job.gang, tree.revocable(job)), (job.queue, job.tenant, job.user)
    return tree.queues[job.queue].pool, kind, job.queue, bucket_of(tree, job), whose
