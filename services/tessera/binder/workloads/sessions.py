"""
Users' pods that are sessions, as their hubs and controllers mark them: of which kind, and of which user. Pure.

JupyterHub's KubeSpawner makes a pod by itself, Kubeflow's notebook controller one by a StatefulSet; others say it by
our own label. A name that is no label's value, such as an address, is passed over for the hub's own short form of it.
"""

from collections.abc import Sequence
from typing import Literal, cast, get_args

from pydantic import TypeAdapter, ValidationError

from tessera.binder.workloads.marks import found_in
from tessera.binder.workloads.reading import mapping, text
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import SESSION_LABEL
from tessera_schemas.job import LabelValue, Session

HUB_USER, HUB_COMPONENT = "hub.jupyter.org/username", "singleuser-server"
COMPONENTS = ("component", "app.kubernetes.io/component")
KUBEFLOW_NAME, SET_NAME = "notebook-name", "statefulset"
OPEN_DATA_HUB_USER = "opendatahub.io/user"
SessionKind = Literal["notebook", "workspace", "terminal"]
_USER = TypeAdapter[str](LabelValue)


def session_of_pods(pods: Sequence[Json]) -> tuple[Session, str] | None:
    """The session that a lone pod is, and its user, "" where nobody says one; None for any other work."""
    if len(pods) != 1:
        return None
    (pod,) = pods
    labels = mapping(pod, "metadata", "labels")
    said, _ = found_in(pod, SESSION_LABEL)
    by_hub = any(text(labels, key) == HUB_COMPONENT for key in COMPONENTS) and found_in(pod, HUB_USER)[0]
    by_kubeflow = text(labels, KUBEFLOW_NAME) and text(labels, KUBEFLOW_NAME) == text(labels, SET_NAME)
    if said not in get_args(SessionKind) and not by_hub and not by_kubeflow:
        return None
    kind = cast(SessionKind, said) if said in get_args(SessionKind) else "notebook"
    return Session(kind=kind), _user_of(pod)


def _user_of(pod: Json) -> str:
    """The annotation, which has the name as people write it, before the label, which has it in short."""
    for key in (HUB_USER, OPEN_DATA_HUB_USER):
        for where in ("annotations", "labels"):
            name = text(pod, "metadata", where, key)
            try:
                if name:
                    return _USER.validate_python(name)
            except ValidationError:
                continue
    return ""
