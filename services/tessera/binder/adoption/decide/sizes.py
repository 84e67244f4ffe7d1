"""
How many pods the owner of a group keeps at once, as its object says it now. Pure.

Pods that have succeeded are not made again, so they are not counted; then what an evicted group comes back with is
what is waited for.
"""

from tessera.binder.adoption.decide.mark_table import LEAST_PODS
from tessera.binder.adoption.decide.marks import found_in
from tessera.binder.adoption.decide.reading import Json, at, items, mapping, no, number_in, text, whole
from tessera_schemas.job import REPLICAS_MAX
from tessera_schemas.reasons import Code, Reason

LAUNCHER = "Launcher"


def pods_said(kind: str, owner: Json) -> int | Reason:
    """The number, at most as many as a job may have; a Reason where the object does not say it, or wants none."""
    match kind:
        case "PodGroup":
            said = whole(owner, "spec", "minMember") or no(Code.MISSING_FIELD, "spec.minMember")
        case "RayCluster":
            said = _ray_pods(owner)
        case "Job":
            said = job_pods(owner)
        case "JobSet":
            said = _job_set_pods(owner)
        case _:
            said = _training_pods(owner)
    if isinstance(said, Reason):
        return said
    if said > REPLICAS_MAX:
        return no(Code.INVALID_FIELD, "metadata.ownerReferences", "too many pods", pods=said, pods_max=REPLICAS_MAX)
    return said or no(Code.GANG_INCOMPLETE, detail="its owner wants no further pods", pods_wanted=0)


def job_pods(job: Json) -> int:
    """What the Job controller keeps active: never more than what is left to complete, nor than `parallelism`."""
    parallelism, completions, done = _shape(mapping(job, "spec")), completions_of(job), _succeeded(job)
    if completions is None:  # a shared queue of work: once one pod has found it empty, no more are made
        return 0 if done else parallelism
    return min(parallelism, max(0, completions - done))


def comes_in_waves(job: Json) -> bool:
    """More completions than pods at once: its pods are independent of each other and start as each finds room."""
    completions = completions_of(job)
    return completions is not None and completions > _shape(mapping(job, "spec"))


def least_pods(job: Json) -> int | Reason:
    """With how many pods a batch Job may begin, by Kueue's mark; 0 where it says nothing."""
    words, field = found_in(job, LEAST_PODS)
    least = number_in(words)
    return no(Code.INVALID_FIELD, f"Job.{field}", f"{words!r} is no number of pods") if words and not least else least


def completions_of(job: Json) -> int | None:
    """Pods of a Job that must succeed (`spec.completions`); None where the Job does not say."""
    return whole(job, "spec", "completions")


def comes_in_stages(job_set: Json) -> bool:
    """Its Jobs are made one after the other."""
    in_order = text(job_set, "spec", "startupPolicy", "startupPolicyOrder") == "InOrder"
    return in_order or any(part.get("dependsOn") for part in items(job_set, "spec", "replicatedJobs"))


def leader_comes_first(workers: Json) -> Reason | None:
    """Its workers are made once their leader is ready: they cannot start with it."""
    if text(workers, "spec", "startupPolicy") != "LeaderReady":
        return None
    way_out = "workers that are made once their leader is ready cannot start together with it; use LeaderCreated"
    return no(Code.NOT_SUPPORTED_YET, "LeaderWorkerSet.spec.startupPolicy", way_out)


def is_apart(training_job: Json) -> bool:
    """Its launcher is made once its workers run."""
    return text(training_job, "spec", "launcherCreationPolicy") == "WaitForWorkersReady"


def _shape(job_spec: Json) -> int:
    """`parallelism` is 1 where nobody says it."""
    said = whole(job_spec, "parallelism")
    return 1 if said is None else said


def _succeeded(job: Json) -> int:
    """Those in `uncountedTerminatedPods` have succeeded and are added to the number in a later write."""
    uncounted = at(job, "status", "uncountedTerminatedPods", "succeeded")
    return (whole(job, "status", "succeeded") or 0) + (len(uncounted) if isinstance(uncounted, list) else 0)


def _job_set_pods(job_set: Json) -> int | Reason:
    done = {text(part, "name"): whole(part, "succeeded") or 0 for part in _statuses(job_set)}
    total = 0
    for index, part in enumerate(items(job_set, "spec", "replicatedJobs")):
        template = mapping(part, "template")
        if comes_in_waves(template):
            field = f"spec.replicatedJobs[{index}].template.spec.completions"
            return no(Code.NOT_SUPPORTED_YET, field, "more than parallelism: its pods would not start together")
        replicas = whole(part, "replicas")
        left = max(0, (1 if replicas is None else replicas) - done.get(text(part, "name"), 0))
        total += left * job_pods(template)
    return total


def _statuses(job_set: Json) -> list[Json]:
    return items(job_set, "status", "replicatedJobsStatus")


def _ray_pods(cluster: Json) -> int:
    """The head and all workers that are wanted; where an autoscaler adds workers, the head and the least of them."""
    least_alone = mapping(cluster, "spec").get("enableInTreeAutoscaling") is True
    return 1 + sum(_ray_workers(group, least_alone) for group in items(cluster, "spec", "workerGroupSpecs"))


def _ray_workers(group: Json, least_alone: bool) -> int:
    """Of one worker group, as its operator keeps them: never less than the least, never more than the most."""
    if group.get("suspend") is True:
        return 0
    least, most, hosts = whole(group, "minReplicas") or 0, whole(group, "maxReplicas"), whole(group, "numOfHosts") or 1
    wanted = least if least_alone else max(least, whole(group, "replicas") or 0)
    return (wanted if most is None else min(wanted, most)) * hosts


def _training_pods(owner: Json) -> int | Reason:
    """The sum over `spec.pytorchReplicaSpecs`, `spec.mpiReplicaSpecs` and the like; a replica type has 1 by default."""
    types = [found for name, found in sorted(mapping(owner, "spec").items()) if name.endswith("ReplicaSpecs")]
    replicas = {kind: part for found in types if isinstance(found, dict) for kind, part in found.items()}
    if not replicas:
        return no(Code.MISSING_FIELD, "spec.*ReplicaSpecs", f"{text(owner, 'kind')} names no replicas")
    total = 0
    for kind, part in sorted(replicas.items()):
        if kind == LAUNCHER and is_apart(owner):
            continue
        said, done = whole(part, "replicas"), whole(owner, "status", "replicaStatuses", kind, "succeeded") or 0
        total += max(0, (1 if said is None else said) - done)
    return total
