"""Port of the launchers. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tessera.domain.entities import Run
from tessera_schemas.base import Json
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.work.measured_use import SessionIngress

RESTRICTED: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
# Security of every container that we make.


@dataclass(frozen=True, slots=True)
class Surroundings:
    """
    Parts of the installation for pods: the image of the step runner ("": none), the domain of names, and the form of
    the addresses of sessions.
    """

    steps_image: str = ""
    steps_pull_policy: str = "IfNotPresent"
    cluster_domain: str = "cluster.local"
    session_form: SessionIngress | None = None


NOTHING_AROUND = Surroundings()


def _as_it_is(body: Json, run: Run, spec: JobSpec, role: Role, around: Surroundings) -> Json:
    return body


@dataclass(frozen=True, slots=True)
class Launcher:
    """
    What a launcher adds to the pods of a run.

    `has_names`: the pods find one another by name, by a Service that is made before them. `variables` gives the
    launcher's part of the environment of the pod of a rank. `has_key`: the pods share a key of their run. `dressed`
    gives the spec of a pod, otherwise whole, with what else it has under the launcher.
    """

    has_names: bool
    variables: Callable[[Run, int, JobSpec, Role], Mapping[str, str]]
    has_key: bool = False
    dressed: Callable[[Json, Run, JobSpec, Role, Surroundings], Json] = _as_it_is
