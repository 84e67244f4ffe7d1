"""The launchers by the names that a job gives them. Pure."""

from collections.abc import Mapping

from tessera.binder.launchers import jax, torchrun
from tessera.binder.launchers.port import Launcher
from tessera.binder.launchers.steps import by_steps
from tessera_schemas.job import JobSpec
from tessera_schemas.work.pod_template import DEEPSPEED_LIST

LAUNCHERS: Mapping[str, Launcher] = {
    "plain": Launcher(has_names=False, variables=lambda run, rank, spec, role: {}),
    "torchrun": torchrun.launcher,
    "accelerate": torchrun.launcher,  # `accelerate launch` starts processes by torchrun, which reads the same
    "jax": jax.launcher,
    "steps": by_steps(),
    "mpi": by_steps(),
    "deepspeed": by_steps(hostfile=DEEPSPEED_LIST),
    "ray": by_steps("ray"),
}
"""Those that are honoured; the contract refuses a job that names another."""


def launcher_of(spec: JobSpec) -> Launcher:
    """The launcher that a job names; plain where it names none."""
    return LAUNCHERS[spec.launcher or "plain"]
