"""The launchers by the names that a job gives them. Pure."""

from collections.abc import Mapping

from tessera.binder.launchers import plain, steps, torchrun
from tessera.binder.launchers.port import Launcher
from tessera_schemas.job import JobSpec

LAUNCHERS: Mapping[str, Launcher] = {
    "plain": plain.launcher,
    "torchrun": torchrun.launcher,
    "steps": steps.launcher,
    "mpi": steps.launcher,
}
"""Those that are honoured; the contract refuses a job that names another."""


def launcher_of(spec: JobSpec) -> Launcher:
    """The launcher that a job names; plain where it names none."""
    return LAUNCHERS[spec.launcher or "plain"]
