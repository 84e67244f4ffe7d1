"""
Variables of `torchrun` in a run's pods, so that they find one another. Pure.

All roles of the job form one group, in the order of their ranks. A program may be started in two ways, and both work
without a word from its owner:
- one process per pod, as Kubeflow's PyTorchJob has it: RANK is the number of the pod, WORLD_SIZE how many there are;
- by `torchrun`, one process per GPU of its pod, whole or shared: it reads PET_<OPTION> where an option is not on its
  command line, and gives each of its processes a RANK and WORLD_SIZE of its own. Names and forms are those of
  torch/distributed/run.py and argparse_util.py in PyTorch 2.9; the oldest of them came with 1.9.

A gang of one size meets at rank 0 under fixed node ranks (`static`). An elastic one meets at rank 0 by `c10d`, between
its smallest and largest number of pods: there nobody's rank is known before they have met, so no RANK is set.
"""

from tessera.binder.launchers.naming import PORT, first_pod
from tessera.binder.launchers.port import Launcher
from tessera.domain.entities import Run
from tessera_schemas.job import JobSpec, Role


def variables(run: Run, rank: int, spec: JobSpec, role: Role) -> dict[str, str]:
    """Environment of the pod of a rank: where rank 0 listens, and how many pods and processes meet there."""
    address, least, most = first_pod(run), spec.pods(), sum(each.most for each in spec.roles)
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(PORT),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(PORT),
        "PET_RDZV_ENDPOINT": f"{address}:{PORT}",
        "PET_RDZV_ID": run.run_id,
        "PET_NPROC_PER_NODE": str(max(1, role.resources.gpus_seen)),
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


launcher = Launcher(has_names=True, variables=variables)
