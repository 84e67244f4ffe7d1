"""Reasons why a pod has no log to show, one wording for the gateway and for the command."""

from tessera.kernel.ports import ApiError
from tessera_schemas.reasons import Code, Reason

ADOPTED = "the logs of a user's own pods: `kubectl logs`"
"""Said of an ended job without a pod of ours, since nobody remembers whether it was adopted."""


def users_own_pods(namespace: str, owner: str) -> Reason:
    """Reason for work that users made in Kubernetes, whose pods have names of their own."""
    how = f"kubectl logs -n {namespace} {owner.lower()}"
    return Reason(code=Code.NO_LOGS, field="job_id", detail=f"its pods are the user's own: {how}"[:200])


def no_log(error: ApiError) -> Reason | None:
    """Reason behind an answer of the API server about the log of a pod; None where it says nothing of the pod."""
    if error.status == 404:
        gone = f"its pod is gone, and its log with it; pods stay for the job's `ttl_seconds_after_finished`; {ADOPTED}"
        return Reason(code=Code.NO_LOGS, field="job_id", detail=gone)
    if error.status == 400:
        return Reason(code=Code.NO_LOGS, field="job_id", detail=error.message[:200])
    return None
