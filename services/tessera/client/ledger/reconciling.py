"""
Pods that the ledger does not explain, and runs without pods, after a ledger was restored to an older end.

Pure: nothing is done to either. What could be done is proposed, for an operator to decide.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tessera.domain.state import State
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import NAME_ANNOTATION, RUN_LABEL, SHARD_LABEL, TENANT_LABEL

OVER = ("Succeeded", "Failed")


class Unexplained(StrEnum):
    """Kinds of work on which cluster and ledger disagree."""

    LOST_JOB = "the ledger does not know the job: it was submitted after the copy"
    LOST_RUN = "the ledger does not know this attempt, and the job waits in it"
    ENDED_RUN = "the run has ended in the ledger"
    NO_PODS = "the ledger knows a started run that has no pods"


PROPOSALS: Mapping[Unexplained, str] = {
    Unexplained.LOST_JOB: "let the pods end, or delete them; the sender submits the job again under the same key",
    Unexplained.LOST_RUN: "wait some seconds: a whole gang is taken over; else delete its pods, and the job runs again",
    Unexplained.ENDED_RUN: "delete its pods",
    Unexplained.NO_PODS: "nothing: reclamation reports it absent, and the job runs again",
}


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One run on which cluster and ledger disagree; `pods` are as namespace/name, `running` counts those not over."""

    run_id: str
    kind: Unexplained
    name: str
    tenant: str
    pods: tuple[str, ...] = ()
    running: int = 0

    @property
    def proposal(self) -> str:
        """Advice for an operator."""
        if self.pods and not self.running:
            return "delete its pods, which have ended"
        return PROPOSALS[self.kind]

    def commands(self) -> Iterator[str]:
        """Commands that delete its pods, one for each namespace."""
        by_namespace = defaultdict[str, list[str]](list)
        for pod in self.pods:
            namespace, _, name = pod.partition("/")
            by_namespace[namespace].append(name)
        for namespace, names in sorted(by_namespace.items()):
            yield f"kubectl delete pod -n {namespace} {' '.join(sorted(names))}"


def disagreements(state: State, pods: Iterable[Json], shard: str) -> list[Disagreement]:
    """
    All runs of the shard on which the ledger's state and the cluster's pods disagree, by run.

    Pods of a run that has ended stand for a while, for their logs: only one that has not ended with it is named.
    """
    by_run = defaultdict[str, list[Json]](list)
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        run_id = labels.get(RUN_LABEL) or (pod["metadata"].get("annotations") or {}).get(RUN_LABEL)
        if run_id and labels.get(SHARD_LABEL, shard) == shard:
            by_run[run_id].append(pod)
    compared = (_compare_pods(state, run_id, its) for run_id, its in by_run.items() if state.runs.get(run_id) is None)
    found = [one for one in compared if one.running or one.kind is not Unexplained.ENDED_RUN]
    for run in state.runs.values():
        job = state.jobs.get(run.job_id)
        if job is not None and run.started_ts and not run.stopping and run.run_id not in by_run:
            found.append(Disagreement(run.run_id, Unexplained.NO_PODS, job.name, job.tenant))
    return sorted(found, key=lambda one: one.run_id)


def _compare_pods(state: State, run_id: str, pods: list[Json]) -> Disagreement:
    job_id, _, attempt = run_id.rpartition("-")
    job = state.jobs.get(job_id) or state.ended.get(job_id)
    if job is None:
        kind = Unexplained.LOST_JOB
    elif attempt.isdecimal() and int(attempt) <= job.attempt:
        kind = Unexplained.ENDED_RUN
    else:
        kind = Unexplained.LOST_RUN if state.jobs.get(job_id) is not None else Unexplained.ENDED_RUN
    meta = pods[0]["metadata"]
    return Disagreement(
        run_id,
        kind,
        (meta.get("annotations") or {}).get(NAME_ANNOTATION, meta["name"]),
        (meta.get("labels") or {}).get(TENANT_LABEL, meta["namespace"]),
        tuple(sorted(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods)),
        sum((pod.get("status") or {}).get("phase") not in OVER for pod in pods),
    )
