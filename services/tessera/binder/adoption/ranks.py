"""
Which of a group's waiting pods are taken, and what rank and role each has. Pure.

Roles are made of what the pods ask for and of what their owner calls them, ranks of indices and names: the same pods
give the same answer in whatever order they come.
"""

import json
import re
from collections.abc import Sequence
from itertools import groupby

from tessera.binder.adoption.groups import controller_of
from tessera.binder.adoption.reading import Json, mapping, no, text
from tessera.binder.adoption.roles import role_of
from tessera_schemas.job import Role
from tessera_schemas.reasons import Reason

ROLE_LABELS = (
    "training.kubeflow.org/replica-type",
    "training.kubeflow.org/job-role",
    "jobset.sigs.k8s.io/replicatedjob-name",
)
INDEX_LABELS = (
    "jobset.sigs.k8s.io/job-index",
    "training.kubeflow.org/replica-index",
    "batch.kubernetes.io/job-completion-index",
)
OTHER_LETTERS = re.compile(r"[^a-z0-9]")


def chosen(pods: Sequence[Json], size: int) -> list[Json]:
    """The oldest, and of those with one index only the oldest: while a pod is replaced, two may be there."""
    if len(pods) == 1:
        return list(pods)[:size]
    by_place: dict[tuple[object, ...], Json] = {}
    for pod in sorted(pods, key=_age):
        indices = _indices(pod)
        named = any(index >= 0 for index in indices)
        by_place.setdefault((controller_of(pod), _hint(pod), *indices) if named else _age(pod), pod)
    return list(by_place.values())[:size]


def _age(pod: Json) -> tuple[str, str, str]:
    meta = mapping(pod, "metadata")
    return text(meta, "creationTimestamp"), text(meta, "name"), text(meta, "uid")


def _hint(pod: Json) -> str:
    """What the owner calls this part of the group, as far as it can be a role's name."""
    labels = mapping(pod, "metadata", "labels")
    said = next((name for label in ROLE_LABELS if (name := text(labels, label))), "")
    return as_name(said) or "pods"


def _indices(pod: Json) -> tuple[int, ...]:
    labels = mapping(pod, "metadata", "labels")
    said = [text(labels, label) for label in INDEX_LABELS]
    return tuple(int(n) if n.isascii() and n.isdecimal() and len(n) < 10 else -1 for n in said)


def ranked(pods: Sequence[Json]) -> list[tuple[Role, Json]] | Reason:
    """Each pod with its role, in rank order: by role, then by index, then by name."""
    found: list[tuple[str, str, Json, Role]] = []
    for pod in pods:
        role = role_of(pod)
        if isinstance(role, Reason):
            return role if len(pods) == 1 else _of_pod(role, pod)
        asked = json.dumps(role.model_dump(mode="json"), sort_keys=True) if len(pods) > 1 else ""
        found.append((_hint(pod), asked, pod, role))
    if len(found) > 1:
        found.sort(key=lambda each: (each[0], each[1], *_indices(each[2]), *_age(each[2])[1:]))
    found_ranks: list[tuple[Role, Json]] = []
    names: dict[str, None] = {}
    for (hint, _), same in groupby(found, key=lambda each: each[:2]):
        members = list(same)
        name = _free_name(hint, names)
        role = members[0][3].model_copy(update={"name": name, "replicas": len(members)})
        found_ranks += [(role, pod) for _, _, pod, _ in members]
    return found_ranks


def _of_pod(reason: Reason, pod: Json) -> Reason:
    """The same, said of one pod of several."""
    detail = "; ".join(part for part in (reason.detail, f"pod {text(pod, 'metadata', 'name')}") if part)
    return no(reason.code, reason.field, detail, **reason.numbers)


def _free_name(hint: str, names: dict[str, None]) -> str:
    """Pods that are called the same and ask for different things are two roles."""
    name, number = hint, 2
    while name in names:
        name, number = f"{hint[:58]}-{number}", number + 1
    names[name] = None
    return name


def as_name(said: str) -> str:
    """A DNS label as like it as can be; "" when nothing of it is left."""
    return OTHER_LETTERS.sub("-", said.lower())[:63].strip("-")
