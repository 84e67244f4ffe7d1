"""
Runs that the ledger lost, as after a restore to an older end, and whose pods still work for a job that it has. Pure.
"""

from collections.abc import Collection

from tessera.binder.decide.pods import spec_label
from tessera.binder.decide.steps import Pod
from tessera.domain.entities import Job
from tessera.domain.work.phases import Phase
from tessera_schemas.facts import PodsFound


def find_whole_gang(job: Job, pods: Collection[Pod], ledger_id: str) -> PodsFound | None:
    """
    The fact about pods of a run that the ledger does not know, if they can go on as the job's next run; else None.

    They are all at work, one for each pod of the gang, of the same tenant, spec and ledger, while the job waits. Of
    the spec's label only the content counts: the job was taken in a second time since.
    """
    if job.phase is not Phase.QUEUED or job.adopted is not None or len(pods) != job.pods:
        return None
    content = spec_label(job).partition("-")[0]
    there = sorted(pods, key=lambda pod: -1 if pod.rank is None else pod.rank)
    for rank, pod in enumerate(there):
        at_work = pod.node and not (pod.over or pod.deleting)
        ours = pod.is_ours and not pod.adopted and pod.ledger == ledger_id and pod.namespace == job.tenant
        if not (at_work and ours and pod.rank == rank and pod.spec.partition("-")[0] == content):
            return None
    nodes, uids = tuple(pod.node for pod in there), tuple(pod.uid for pod in there)
    return PodsFound(kind="pods_found", job_id=job.job_id, nodes=nodes, uids=uids)
