"""The policy for runs that hold GPUs and use none: the job's, else its queue's, else the shard's. Pure."""

from dataclasses import dataclass

from tessera.domain.entities import Job
from tessera.domain.queues import QueueTree
from tessera_schemas.config import IdleAction, IdleRule
from tessera_schemas.job import JobIdle

UNSAID_JOB = JobIdle()


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """`busy_percent` 0: as reclamation is set. `reclaim_seconds` count from the warning on."""

    action: IdleAction
    warn_seconds: int
    reclaim_seconds: int
    busy_percent: int = 0
    allowed: bool = False

    @property
    def takes(self) -> bool:
        """Whether its GPUs are taken away in the end."""
        return self.action in ("requeue", "fail")


def idle_policy(tree: QueueTree, queue: str, job: Job | None) -> IdlePolicy:
    """
    The policy for runs of the job in the queue: field by field from the lowest queue that sets it, else from the shard.

    A job may set its own unless a queue above it forbids that; a job never turns on what its queue leaves off.
    """
    policy, rules = tree.policy, _rules(tree, queue)
    own = UNSAID_JOB if job is None or job.idle is None or not jobs_choose(tree, queue) else job.idle
    action = next((rule.action for rule in rules if rule.action is not None), policy.idle)
    warn = next((rule.warn_seconds for rule in rules if rule.warn_seconds), policy.idle_warn_seconds)
    reclaim = next((rule.reclaim_seconds for rule in rules if rule.reclaim_seconds), policy.idle_reclaim_seconds)
    busy = next((rule.busy_percent for rule in rules if rule.busy_percent), 0)
    return IdlePolicy(
        "off" if own.allow_idle else action, own.warn_seconds or warn, reclaim, own.busy_percent or busy, own.allow_idle
    )


def jobs_choose(tree: QueueTree, queue: str) -> bool:
    """Whether jobs of the queue may say for themselves what counts as idle."""
    return all(rule.jobs_choose for rule in _rules(tree, queue))


def _rules(tree: QueueTree, queue: str) -> list[IdleRule]:
    """
    Idle rules of the queue and its ancestors, the lowest first; none for a queue that the configuration has dropped.
    """
    names = tree.path(queue) if queue in tree.queues else ()
    return [rule for name in names if (rule := tree.queues[name].idle) is not None]
