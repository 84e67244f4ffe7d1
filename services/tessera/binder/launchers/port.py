"""Port of the launchers. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tessera.domain.entities import Run
from tessera_schemas.job import JobSpec, Role


@dataclass(frozen=True, slots=True)
class Launcher:
    """
    What a launcher adds to the pods of a run.

    `has_names`: the pods find one another by name, by a Service that is made before them. `variables` gives the
    launcher's part of the environment of the pod of a rank.
    """

    has_names: bool
    variables: Callable[[Run, int, JobSpec, Role], Mapping[str, str]]
