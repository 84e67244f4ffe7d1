"""
Batch Jobs, and templates of them: how many pods one keeps at once, and what it makes of evicted pods. Pure.

Pods that have succeeded are not made again, so they are not counted. An evicted pod counts as a failed one: a Job goes
on while what it allows of failures is enough for all its pods to be evicted once, unless its own rules do not count
evictions.
"""

from collections.abc import Sequence

from tessera.binder.workloads.mark_table import LEAST_PODS
from tessera.binder.workloads.marks import found_in
from tessera.binder.workloads.reading import at, items, no, number_in, text, whole
from tessera.binder.workloads.references import controller_of
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason

BACKOFF_LIMIT = 6
"""Of a batch Job that says none, as the API's own default."""
FAILURE_COUNT_ANNOTATION = "batch.kubernetes.io/job-index-failure-count"


# -- how many pods ----------------------------------------------------------------------------------------------------


def job_pods(job: Json) -> int:
    """
    Number of pods that the Job controller keeps active: never more than are left to complete, nor than `parallelism`.
    """
    parallelism, completions, done = _parallelism(job), completions_of(job), _succeeded(job)
    if completions is None:  # a shared queue of work: once one pod has found it empty, no more are made
        return 0 if done else parallelism
    return min(parallelism, max(0, completions - done))


def comes_in_waves(job: Json) -> bool:
    """More completions than pods at once: its pods are independent of each other and start as each finds room."""
    completions = completions_of(job)
    return completions is not None and completions > _parallelism(job)


def least_pods(job: Json) -> int | Reason:
    """Number of pods with which a batch Job may begin, by Kueue's mark; 0 without one."""
    words, field = found_in(job, LEAST_PODS)
    least = number_in(words)
    return no(Code.INVALID_FIELD, f"Job.{field}", f"{words!r} is no number of pods") if words and not least else least


def completions_of(job: Json) -> int | None:
    """Pods of a Job that must succeed (`spec.completions`); None where the Job does not say."""
    return whole(job, "spec", "completions")


def _parallelism(job: Json) -> int:
    """`parallelism` is 1 where nobody says it."""
    value = whole(job, "spec", "parallelism")
    return 1 if value is None else value


def _succeeded(job: Json) -> int:
    """
    Number of succeeded pods, with those in `uncountedTerminatedPods`, which are added to the number in a later write.
    """
    uncounted = at(job, "status", "uncountedTerminatedPods", "succeeded")
    return (whole(job, "status", "succeeded") or 0) + (len(uncounted) if isinstance(uncounted, list) else 0)


# -- evicted pods -----------------------------------------------------------------------------------------------------


def job_survives(job: Json, pods: Sequence[Json], evicted: int) -> bool:
    """Whether a batch Job goes on after so many of its pods were evicted at once."""
    rules = items(job, "spec", "podFailurePolicy", "rules")
    if rules and _ignores_evictions(rules[0]):
        return True
    if any(rule.get("action") != "Ignore" for rule in rules):
        return False  # which of them an eviction meets depends on how the program takes its SIGTERM
    per_index = whole(job, "spec", "backoffLimitPerIndex")
    if per_index is not None:
        return per_index > 0 and all(_failures_of(pod) < per_index for pod in pods)
    limit = whole(job, "spec", "backoffLimit")
    return (BACKOFF_LIMIT if limit is None else limit) - failed_of(job) >= evicted


def failed_of(job: Json) -> int:
    """Number of failed pods of a batch Job, with those that its status does not count yet."""
    uncounted = at(job, "status", "uncountedTerminatedPods", "failed")
    return (whole(job, "status", "failed") or 0) + (len(uncounted) if isinstance(uncounted, list) else 0)


def all_come_back(pods: Sequence[Json], owner: Json | None) -> bool:
    """
    Whether all pods come back after an eviction: a controller always brings them back, a batch Job while it survives.

    A gang of several Jobs is not trusted to: only one of them is looked at.
    """
    controllers = {controller_of(pod) for pod in pods}
    if None in controllers:
        return False
    jobs = [each for each in controllers if each is not None and (each.group, each.kind) == ("batch", "Job")]
    if not jobs:
        return True
    seen = owner is not None and text(owner, "metadata", "uid") == jobs[0].uid
    return owner is not None and seen and len(controllers) == 1 and job_survives(owner, pods, len(pods))


def _ignores_evictions(rule: Json) -> bool:
    """The first rule that fits decides, so only the first can be relied on."""
    met = any(
        text(condition, "type") == "DisruptionTarget" and (text(condition, "status") or "True") == "True"
        for condition in items(rule, "onPodConditions")
    )
    return met and rule.get("action") == "Ignore"


def _failures_of(pod: Json) -> int:
    value = text(pod, "metadata", "annotations", FAILURE_COUNT_ANNOTATION)
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else 0
