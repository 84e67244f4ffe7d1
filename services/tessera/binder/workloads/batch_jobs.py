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
INDEX = "batch.kubernetes.io/job-completion-index"
FAILURE_COUNT_ANNOTATION = "batch.kubernetes.io/job-index-failure-count"


# -- how many pods ----------------------------------------------------------------------------------------------------


def job_pods(job: Json) -> int:
    """
    Number of pods that the Job controller keeps active: never more than are left to complete, nor than `parallelism`.
    """
    parallelism, completions, done = _parallelism(job), completions_of(job), _counted(job, "succeeded")
    if completions is None:  # a shared queue of work: once one pod has found it empty, no more are made
        return 0 if done else parallelism
    return min(parallelism, max(0, completions - done - sum(len(each) for each in _failed_indexes(job))))


def comes_in_waves(job: Json) -> bool:
    """More completions than pods at once: its pods are independent of each other and start as each finds room."""
    completions = completions_of(job)
    return completions is not None and completions > _parallelism(job)


def runs_one_pod_at_a_time(owner: Json) -> bool:
    """Whether this is a Job in waves of one pod: who stops that one has stopped all that it has at work."""
    return text(owner, "kind") == "Job" and comes_in_waves(owner) and _parallelism(owner) == 1


def works_off_a_queue(job: Json) -> bool:
    """Several pods, and neither a number of completions nor a least one of pods: none of them needs another."""
    return completions_of(job) is None and _parallelism(job) > 1 and not least_pods(job)


def is_winding_up(job: Json) -> bool:
    """Whether a pod has found its queue of work empty: whoever is stopped from now on comes back no more."""
    return completions_of(job) is None and _counted(job, "succeeded") > 0


def least_pods(job: Json) -> int | Reason:
    """Number of pods with which a batch Job may begin, by Kueue's mark; 0 without one."""
    words, field = found_in(job, LEAST_PODS)
    least = number_in(words)
    return no(Code.INVALID_FIELD, f"Job.{field}", f"{words!r} is no number of pods") if words and not least else least


def completions_of(job: Json) -> int | None:
    """Pods of a Job that must succeed (`spec.completions`); None where the Job does not say."""
    return whole(job, "spec", "completions")


def may_give_up(job: Json) -> bool:
    """Whether an index of the Job may fail while the others go on."""
    return whole(job, "spec", "backoffLimitPerIndex") is not None


def has_given_up(job: Json, index: str) -> bool:
    """Whether the Job says that this index has failed for good."""
    return any(number_in(index) in each for each in _failed_indexes(job))


def _failed_indexes(job: Json) -> list[range]:
    """`status.failedIndexes`, such as `1,3-5`."""
    spans = [span.partition("-") for span in text(job, "status", "failedIndexes").split(",") if span]
    return [range(number_in(first), number_in(last or first) + 1) for first, _, last in spans]


def _parallelism(job: Json) -> int:
    """`parallelism` is 1 where nobody says it."""
    value = whole(job, "spec", "parallelism")
    return 1 if value is None else value


def _counted(job: Json, end: str) -> int:
    """Pods with that end, with those in `uncountedTerminatedPods`, which are added to the number in a later write."""
    uncounted = at(job, "status", "uncountedTerminatedPods", end)
    return (whole(job, "status", end) or 0) + (len(uncounted) if isinstance(uncounted, list) else 0)


# -- evicted pods -----------------------------------------------------------------------------------------------------


def job_survives(job: Json, pods: Sequence[Json], evicted: int) -> bool:
    """Whether a batch Job goes on after so many of its pods were evicted at once."""
    if is_winding_up(job):
        return False
    rules = items(job, "spec", "podFailurePolicy", "rules")
    if rules and _ignores_evictions(rules[0]):
        return True
    if any(rule.get("action") != "Ignore" for rule in rules):
        return False  # which of them an eviction meets depends on how the program takes its SIGTERM
    per_index = whole(job, "spec", "backoffLimitPerIndex")
    if per_index is not None:
        return per_index > 0 and all(_failures_of(pod) < per_index for pod in pods)
    limit = whole(job, "spec", "backoffLimit")
    return (BACKOFF_LIMIT if limit is None else limit) - _counted(job, "failed") >= evicted


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
    return number_in(text(pod, "metadata", "annotations", FAILURE_COUNT_ANNOTATION))
