"""
Variables of JAX in a run's pods: one process per pod, with all of its GPUs. Pure.

`jax.distributed.initialize()` of JAX 0.10 reads address and devices by itself; number and count are handed over by its
program, from where Kubeflow has them. With devices said it looks for no cluster, by a token that the pod does not have.
"""

from tessera.binder.launchers.naming import PORT, first_pod
from tessera.binder.launchers.port import Launcher
from tessera.domain.entities import Run
from tessera_schemas.job import JobSpec, Role


def variables(run: Run, rank: int, spec: JobSpec, role: Role) -> dict[str, str]:
    """Environment of the pod of a rank: where rank 0 listens, its own number, and how many there are."""
    devices = ",".join(map(str, range(role.resources.gpus)))
    place = {"JAX_NUM_PROCESSES": str(spec.pods()), "JAX_PROCESS_ID": str(rank)}
    place |= {"JAX_COORDINATOR_ADDRESS": f"{first_pod(run)}:{PORT}"}
    return place | ({"JAX_LOCAL_DEVICE_IDS": devices} if devices else {})


launcher = Launcher(has_names=True, variables=variables)
