"""Reasons why a pod has no log to show, one wording for the gateway and for the command."""

from tessera.kernel.ports import ApiError
from tessera_schemas.reasons import Code, Reason

ADOPTED = "or it is a user's own: `kubectl get pods -n {namespace}`"
"""Said of an ended job without a pod of ours, since nobody remembers whether it was adopted."""


def users_own_pods(namespace: str, owner: str) -> Reason:
    """Reason for work that users made in Kubernetes, whose pods have names of their own."""
    how = f"kubectl logs -n {namespace} {owner.lower()}"
    return Reason(code=Code.NO_LOGS, field="job_id", detail=f"its pods are the user's own: {how}"[:200])


def no_run(phase: str, ended: bool, attempt: int, attempts: int) -> Reason | None:
    """Reason for a job that never ran, and for an attempt beyond its newest; None where there was such a run."""
    if attempts == 0:
        detail = f"it has ended without a run ({phase})" if ended else f"it has not started yet ({phase})"
        return Reason(code=Code.NOT_RUNNING, field="job_id", detail=detail)
    if attempt > attempts:
        numbers = {"attempts": attempts}
        return Reason(code=Code.NOT_RUNNING, field="attempt", detail="there was no such attempt", numbers=numbers)
    return None


def no_log(error: ApiError, rank: int, pods: int, namespace: str) -> Reason | None:
    """
    Reason behind an answer of the API server about the log of the pod of a rank; None where it says nothing of the pod.

    A rank beyond the `pods` of the gang may have been a surplus pod, so that only its absence makes it a wrong one.
    """
    if error.status == 404 and rank >= pods:
        detail = f"the job has no such pod; those of its gang are 0 to {pods - 1}"
        return Reason(code=Code.INVALID_FIELD, field="rank", detail=detail, numbers={"pods": pods})
    if error.status == 404:
        gone = "its pod is gone, and its log with it; pods stay for the job's `ttl_seconds_after_finished`"
        gone = f"{gone}; {ADOPTED.format(namespace=namespace)}"
        return Reason(code=Code.NO_LOGS, field="job_id", detail=gone)
    if error.status == 400:
        return Reason(code=Code.NOT_RUNNING, field="job_id", detail=error.message[:200])
    return None
