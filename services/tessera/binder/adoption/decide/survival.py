"""
Whether the owner of a group's pods brings them back after an eviction, so that the job may be preempted. Pure.

An evicted pod counts as a failed one for most owners. So a Job is preempted only while what its owner allows of
failures is enough for all its pods to be evicted once, unless its own rules say that evictions do not count.
"""

from collections.abc import Sequence

from tessera.binder.adoption.decide.groups import Group, GroupKind, controller_of
from tessera.binder.adoption.decide.reading import Json, at, items, mapping, text, whole
from tessera.binder.adoption.decide.sizes import job_pods
from tessera_schemas.labels import PREEMPTIBLE_ANNOTATION

BACKOFF_LIMIT = 6
"""Of a batch Job that says none, as the API's own default."""
FAILURE_COUNT_ANNOTATION = "batch.kubernetes.io/job-index-failure-count"


def survives_eviction(group: Group, pods: Sequence[Json], owner: Json | None) -> bool:
    """
    What the pods' annotation says; if it says nothing, whether each pod has an owner that makes it again.

    All pods must say the same to be heard: the group is evicted as one.
    """
    said = {text(pod, "metadata", "annotations", PREEMPTIBLE_ANNOTATION) for pod in pods}
    if said in ({"true"}, {"false"}):
        return said == {"true"}
    if group.kind is GroupKind.JOB_SET:
        return owner is not None and _job_set_survives(owner)
    if group.kind is GroupKind.TRAINING_JOB:
        return owner is not None and _training_job_survives(owner)
    return _all_come_back(pods, owner)


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
    """How many pods of a batch Job have failed, with those that the number does not have yet."""
    uncounted = at(job, "status", "uncountedTerminatedPods", "failed")
    return (whole(job, "status", "failed") or 0) + (len(uncounted) if isinstance(uncounted, list) else 0)


def _all_come_back(pods: Sequence[Json], owner: Json | None) -> bool:
    """
    What keeps a number of pods alive always brings them back; a batch Job while it survives.

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
    said = text(pod, "metadata", "annotations", FAILURE_COUNT_ANNOTATION)
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 10 else 0


def _job_set_survives(job_set: Json) -> bool:
    """One restart of the whole set is left, or none of its Jobs fails by the eviction of all its pods."""
    allowed = whole(job_set, "spec", "failurePolicy", "maxRestarts") or 0
    if allowed > (whole(job_set, "status", "restarts") or 0):
        return True
    templates = [mapping(part, "template") for part in items(job_set, "spec", "replicatedJobs")]
    return all(job_survives(template, (), job_pods(template)) for template in templates)


def _training_job_survives(training_job: Json) -> bool:
    """No replica is one of which the operator says that its end ends the job."""
    types = [found for name, found in mapping(training_job, "spec").items() if name.endswith("ReplicaSpecs")]
    parts = [part for found in types if isinstance(found, dict) for part in found.values()]
    return all(text(part, "restartPolicy") in ("Always", "OnFailure", "ExitCode") for part in parts)
