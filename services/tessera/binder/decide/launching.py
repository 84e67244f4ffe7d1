"""
Names and torchrun's variables that a launcher adds to a run's pods, so that they find one another. Pure.

All roles of the job form one group, in the order of their ranks. A pod's name in it is `<pod>.run-<run id>`, which a
headless Service of the run makes known before any pod is ready; both parts are labels of DNS, at most 32 characters.

A program may be started in two ways, and both work without a word from its owner:
- one process per pod, as Kubeflow's PyTorchJob has it: RANK is the number of the pod, WORLD_SIZE how many there are;
- by `torchrun`, one process per whole GPU of its pod: it reads PET_<OPTION> where an option is not on its command
  line, and gives each of its processes a RANK and WORLD_SIZE of its own. Names and forms are those of
  torch/distributed/run.py and argparse_util.py in PyTorch 2.9; the oldest of them came with 1.9.

A gang of one size meets at rank 0 under fixed node ranks (`static`). An elastic one meets at rank 0 by `c10d`, between
its smallest and largest number of pods: there nobody's rank is known before they have met, so no RANK is set.
"""

from typing import Any

from tessera.domain.entities import Job, Run
from tessera_schemas.cluster.labels import (
    ALLOCATED_N_ANNOTATION,
    JOB_LABEL,
    MANAGED_BY_LABEL,
    RUN_LABEL,
    SCHEDULER_NAME,
    TENANT_LABEL,
    pod_name,
)
from tessera_schemas.job import JobSpec, Role

Json = dict[str, Any]
NAMING = frozenset({"torchrun"})
"""The launchers whose pods call one another by name."""
PORT = 29500
"""Where rank 0 listens: torchrun's own default. Every pod has an address of its own, so all runs may use it."""


def is_named(spec: JobSpec) -> bool:
    """Tells whether the job's launcher needs pods that find one another by name."""
    return spec.launcher in NAMING


def service_name(run_id: str) -> str:
    """A job's id may begin with a digit, which older API servers do not let the name of a Service do."""
    return f"run-{run_id}"


def service_of(job: Job, run_id: str, allocated_n: int) -> Json:
    """The headless Service that gives the run's pods their names; the same for every attempt to make it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(run_id),
            "namespace": job.tenant,
            "labels": {
                MANAGED_BY_LABEL: SCHEDULER_NAME,
                JOB_LABEL: job.job_id,
                RUN_LABEL: run_id,
                TENANT_LABEL: job.tenant,
            },
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


def name_in_dns(run: Run, rank: int, spec: JobSpec) -> Json:
    """Hostname and subdomain in the pod's spec."""
    return {"hostname": pod_name(run.run_id, rank), "subdomain": service_name(run.run_id)} if is_named(spec) else {}


def variables(run: Run, rank: int, spec: JobSpec, role: Role) -> dict[str, str]:
    """The launcher's part of the environment of one pod; {} for a launcher that has none."""
    if spec.launcher != "torchrun":
        return {}
    address = f"{pod_name(run.run_id, 0)}.{service_name(run.run_id)}"
    least, most = spec.pods(), sum(each.most for each in spec.roles)
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(PORT),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(PORT),
        "PET_RDZV_ENDPOINT": f"{address}:{PORT}",
        "PET_RDZV_ID": run.run_id,
        "PET_NPROC_PER_NODE": str(max(1, role.resources.gpus)),
        **(_describe_equal_pods(rank, least) if least == most else _elastic(rank, least, most)),
    }


def _describe_equal_pods(rank: int, pods: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(pods),
        "NODE_RANK": str(rank),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "PET_NNODES": str(pods),
        "PET_NODE_RANK": str(rank),
        "PET_RDZV_BACKEND": "static",
    }


def _elastic(rank: int, least: int, most: int) -> dict[str, str]:
    # Who listens is said outright: torchrun would compare the endpoint's address with its own, and in a pod's first
    # moments the name may have none yet.
    return {
        "PET_NNODES": f"{least}:{most}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_CONF": f"is_host={1 if rank == 0 else 0}",
    }
