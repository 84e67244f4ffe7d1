"""
Settings of a queue that those above it, or its tenant, have a say in, and the classes granted to a tenant; and where
its session is reached. Pure.

Whether work that waits is suspended, the longest time limit, and the fault of a job that goes beyond that.
"""

from tessera.domain.entities import Job
from tessera.domain.queues import QueueTree
from tessera_schemas.reasons import Code, Reason

WITHOUT = (
    "it has no time limit; users' own pods say it as activeDeadlineSeconds, those of a Deployment, StatefulSet or "
    "DaemonSet, where Kubernetes forbids that, as label kueue.x-k8s.io/max-exec-time-seconds of the pod template; what "
    "is to run for good belongs in a queue without a longest time limit"
)
"""Of a job without a time limit where one has to be: how each kind of work says it, and what is left to the others."""


def longest_time_limit(tree: QueueTree, queue: str, tenant: str) -> tuple[int, str]:
    """Seconds, and the field of the configuration that says so: the least of all that hold; 0 where none does."""
    bounds = [
        (tree.queues[name].time_limit_max_seconds, f"queues.{name}.time_limit_max_seconds")
        for name in (tree.path(queue) if queue in tree.queues else ())
    ]
    bounds.append((tree.limits_of(tenant).time_limit_max_seconds, "limits.time_limit_max_seconds"))
    return min(((seconds, field) for seconds, field in bounds if seconds is not None), default=(0, ""))


def time_limit_fault(tree: QueueTree, queue: str, tenant: str, seconds: int) -> Reason | None:
    """Why a job with this time limit (0: none) may not be in the queue; None when it may."""
    longest, field = longest_time_limit(tree, queue, tenant)
    if not longest or 0 < seconds <= longest:
        return None
    numbers = {"time_limit_max_seconds": longest} | ({"time_limit_seconds": seconds} if seconds else {})
    detail = "" if seconds else WITHOUT
    return Reason(code=Code.EXCEEDS_JOB_LIMIT, field=field, detail=detail, numbers=numbers)


def session_address(tree: QueueTree, job: Job) -> str:
    """Address of a session behind an Ingress; "" for every other job."""
    form = tree.defaults.sessions.ingress
    wanted = form is not None and job.session is not None and job.session.ingress
    return form.url(job.job_id, job.tenant) if form is not None and wanted else ""


def suspends_waiting(tree: QueueTree, queue: str) -> bool | None:
    """The setting of the lowest queue that has one; None if none has, or if the configuration has dropped the queue."""
    names = tree.path(queue) if queue in tree.queues else ()
    return next((suspended for name in names if (suspended := tree.queues[name].suspend_waiting) is not None), None)


def granted_classes(tree: QueueTree, tenant: str) -> tuple[str, ...]:
    """Priority classes that jobs of the tenant may have; all where nothing is said of it."""
    known = tree.tenants.get(tenant)
    return (known.priority_classes if known else ()) or tuple(tree.priorities)
