"""
Names by which a run's pods find one another, for launchers whose pods do. Pure.

A pod's name is `<pod>.run-<run id>`, which a headless Service of the run makes known before any pod is ready; both
parts are labels of DNS, at most 32 characters.
"""

from tessera.domain.entities import Job, Run
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import (
    ALLOCATED_N_ANNOTATION,
    JOB_LABEL,
    MANAGED_BY_LABEL,
    RUN_LABEL,
    SCHEDULER_NAME,
    TENANT_LABEL,
    pod_name,
)

PORT = 29500
"""Where rank 0 listens: torchrun's own default. Every pod has an address of its own, so all runs may use it."""


def service_name(run_id: str) -> str:
    """A job's id may begin with a digit, which older API servers do not let the name of a Service do."""
    return f"run-{run_id}"


def run_labels(job: Job, run_id: str) -> dict[str, str]:
    """Labels of all that is made for a run."""
    ours = {MANAGED_BY_LABEL: SCHEDULER_NAME, TENANT_LABEL: job.tenant}
    return ours | {JOB_LABEL: job.job_id, RUN_LABEL: run_id}


def service_of(job: Job, run_id: str, allocated_n: int) -> Json:
    """The headless Service that gives the run's pods their names; the same for every attempt to make it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(run_id),
            "namespace": job.tenant,
            "labels": run_labels(job, run_id),
            "annotations": {ALLOCATED_N_ANNOTATION: str(allocated_n)},
        },
        "spec": {
            "clusterIP": "None",
            # They look for one another before they can be ready.
            "publishNotReadyAddresses": True,
            "selector": {RUN_LABEL: run_id},
            "ports": [{"name": "rendezvous", "port": PORT, "protocol": "TCP"}],
        },
    }


def first_pod(run: Run) -> str:
    """Name of the pod of rank 0 for the others."""
    return f"{pod_name(run.run_id, 0)}.{service_name(run.run_id)}"


def name_in_dns(run: Run, rank: int) -> dict[str, str]:
    """Hostname and subdomain in the pod's spec."""
    return {"hostname": pod_name(run.run_id, rank), "subdomain": service_name(run.run_id)}
