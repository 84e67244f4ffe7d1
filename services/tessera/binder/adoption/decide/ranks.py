"""
Selection of a group's waiting pods, with rank and role of each. Pure.

Roles follow from the pods' requests and from their owner's names for them, ranks from indices and names: the same pods
give the same answer in whatever order they come.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from tessera.binder.adoption.decide.roles import role_of
from tessera.binder.workloads.mark_table import SLICE_SIZE
from tessera.binder.workloads.marks import slice_size
from tessera.binder.workloads.reading import as_part, mapping, no, text
from tessera.binder.workloads.references import controller_of
from tessera.binder.workloads.registry import INDEX_LABELS, OWNER_INDEX_LABELS, part_of
from tessera_schemas.base import Json
from tessera_schemas.job import Role
from tessera_schemas.reasons import Code, Reason

Found = tuple[str, str, Json, Role]
"""What the owner calls the pod's part, what it asks for, the pod, its role."""
SLICES = f"metadata.annotations[{SLICE_SIZE}]"
NUMBERS_OF_PODS = tuple(at for at, label in enumerate(INDEX_LABELS) if label not in OWNER_INDEX_LABELS)


def chosen(pods: Sequence[Json], size: int, parts: Mapping[str, int] | None = None) -> list[Json]:
    """
    The oldest, and of those with one index only the oldest: while a pod is replaced, two may be there.

    `parts` are least numbers by what the owner calls the parts of the group: the oldest of each come before others.
    """
    if len(pods) == 1 and not parts:
        return list(pods)[:size]
    by_place: dict[tuple[object, ...], Json] = {}
    # Oldest first, and the first of each place stays: the one that is being replaced goes on to count until it is gone,
    # or the gang would change under a job that is about to start.
    for pod in sorted(pods, key=_age):
        indices = _indices(pod)
        named = any(indices[at] >= 0 for at in NUMBERS_OF_PODS)
        # Without an index a pod is its own place. The controller and the part belong to the place, since each of them
        # numbers its pods from 0.
        by_place.setdefault((controller_of(pod), part_of(pod), *indices) if named else _age(pod), pod)
    return _by_parts(list(by_place.values()), parts)[:size] if parts else list(by_place.values())[:size]


def missing_part(pods: Sequence[Json], parts: Mapping[str, int]) -> tuple[str, int] | None:
    """The first part of which there are not enough among these, and how many there are."""
    there = Counter(map(part_of, pods))
    return next(((name, there[as_part(name)]) for name, least in parts.items() if there[as_part(name)] < least), None)


def _by_parts(oldest: list[Json], parts: Mapping[str, int]) -> list[Json]:
    left = Counter({as_part(name): least for name, least in parts.items()})
    first: list[Json] = []
    rest: list[Json] = []
    for pod in oldest:
        hint = part_of(pod)
        (first if left[hint] > 0 else rest).append(pod)
        left[hint] -= 1
    return first + rest


def _age(pod: Json) -> tuple[str, str, str]:
    meta = mapping(pod, "metadata")
    return text(meta, "creationTimestamp"), text(meta, "name"), text(meta, "uid")


def _indices(pod: Json) -> tuple[int, ...]:
    labels, notes = mapping(pod, "metadata", "labels"), mapping(pod, "metadata", "annotations")
    given = [text(labels, key) or text(notes, key) for key in INDEX_LABELS]
    return tuple(int(n) if n.isascii() and n.isdecimal() and len(n) < 10 else -1 for n in given)


def _by_number(pod: Json) -> tuple[str, int, str, str]:
    # Neighbours in rank stand near each other, and programs count such pods as people do: worker-10 is after worker-2.
    _, name, uid = _age(pod)
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits) if 0 < len(digits) < 10 else -1, name, uid


def ranked(pods: Sequence[Json]) -> list[tuple[Role, Json]] | Reason:
    """Pods with their roles in rank order: by role, then by index, then by the number that the name ends in, if any."""
    found: list[Found] = []
    for pod in pods:
        role = role_of(pod)
        if isinstance(role, Reason):
            return role if len(pods) == 1 else _name_pod(role, pod)
        # What pods ask for is part of the order, so that equal ones stand together and make one role, whatever order
        # the API server lists them in.
        asked = json.dumps(role.model_dump(mode="json"), sort_keys=True) if len(pods) > 1 else ""
        found.append((part_of(pod), asked, pod, role))
    if len(found) > 1:
        found.sort(key=lambda each: (each[0], each[1], *_indices(each[2]), *_by_number(each[2])))
    found_ranks: list[tuple[Role, Json]] = []
    names: dict[str, None] = {}
    for (hint, _), same in groupby(found, key=lambda each: each[:2]):
        slices = _slices(hint, list(same))
        if isinstance(slices, Reason):
            return slices
        for hint_of_slice, members in slices:
            name = _free_name(hint_of_slice, names)
            role = members[0][3].model_copy(update={"name": name, "replicas": len(members)})
            found_ranks += [(role, pod) for _, _, pod, _ in members]
    return found_ranks


def _slices(hint: str, members: list[Found]) -> list[tuple[str, list[Found]]] | Reason:
    """A role for each slice by Kueue's marks, of pods that follow on each other by index; else one for all of them."""
    size = slice_size(members[0][2])
    if isinstance(size, Reason):
        return size
    if not size:
        return [(hint, members)]
    numbers = [index for each in members if (index := _only_index(each[2])) is not None]
    # Without an index of every pod their order stands in for it. That is right only for a whole number of slices: with
    # one pod missing all later ones would slip into the slice before.
    if len(numbers) < len(members):
        if len(members) % size:
            return no(Code.INVALID_FIELD, SLICES, f"{len(members)} pods are no whole number of slices of {size}")
        numbers = list(range(len(members)))
    by_slice: dict[int, list[Found]] = {}
    for number, each in zip(numbers, members, strict=True):
        by_slice.setdefault(number // size, []).append(each)
    return [(f"{hint[:57]}-{number}", pods) for number, pods in sorted(by_slice.items())]


def _only_index(pod: Json) -> int | None:
    """Index of a pod that has a single one: it keeps its slice when others of it have succeeded."""
    given = [index for index in _indices(pod) if index >= 0]
    return given[0] if len(given) == 1 and any(_indices(pod)[at] >= 0 for at in NUMBERS_OF_PODS) else None


def _name_pod(reason: Reason, pod: Json) -> Reason:
    """The reason, with the name of the one pod that it is about."""
    detail = "; ".join(part for part in (reason.detail, f"pod {text(pod, 'metadata', 'name')}") if part)
    return no(reason.code, reason.field, detail, **reason.numbers)


def _free_name(hint: str, names: dict[str, None]) -> str:
    """Pods that are called the same and ask for different things are two roles."""
    name, number = hint, 2
    while name in names:
        name, number = f"{hint[:58]}-{number}", number + 1
    names[name] = None
    return name
