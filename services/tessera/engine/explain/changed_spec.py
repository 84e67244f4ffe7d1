"""A job's spec with one of the changes that `suggest_changes` tried, and how it differs from the one before. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from tessera_schemas.job import JobSpec, Role

RoleChange = Callable[[Role, str], dict[str, Any]]


def _fewer_pods(role: Role, value: str) -> dict[str, Any]:
    """An elastic role starts with fewer pods, and may grow as before."""
    return {"replicas" if role.min_replicas is None else "min_replicas": int(value)}


OF_THE_JOB = {"queue": "queue", "class": "priority_class"}
OF_ROLES: Mapping[str, RoleChange] = {
    "cpu": lambda role, value: {"resources": role.resources.model_copy(update={"cpu_milli": int(value)})},
    "memory": lambda role, value: {"resources": role.resources.model_copy(update={"memory_bytes": int(value)})},
    "gpus": lambda role, value: {"resources": role.resources.model_copy(update={"gpus": int(value)})},
    "share": lambda role, value: {"resources": role.resources.model_copy(update={"gpu_milli": int(value)})},
    "pods": _fewer_pods,
    "model": lambda role, value: {"gpu_models": ()},
    "mixed": lambda role, value: {"mixed_models": True},
    "topology": lambda role, value: {"topology": None},
    "spread": lambda role, value: {"spread": None, "max_skew": 1},
    "together": lambda role, value: {"same_node_as": None},
    "selector": lambda role, value: {"node_selector": {}},
    "affinity": lambda role, value: {"affinity": (), "affinity_any": ()},
    "apart": lambda role, value: {"anti_affinity": ()},
    "neighbours": lambda role, value: {"neighbours": None},
}
GROUPS = "groups"
KINDS = frozenset({*OF_THE_JOB, *OF_ROLES, GROUPS})
"""Kinds of changes that are ones of the spec; the others are what somebody else would have to do."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A field by its path, with its values in the one spec and in the other."""

    field: str
    before: JsonValue
    after: JsonValue


def changed_spec(spec: JobSpec, kind: str, role: str, value: str) -> JobSpec:
    """
    The spec with one change: its kind, the role that it is about ("" for all), and the new value.

    Raises ValueError for a kind or role that is none, and for a value that no job may have.
    """
    if kind in OF_THE_JOB:
        return _valid(spec, {OF_THE_JOB[kind]: value})
    if kind == GROUPS:
        return _valid(spec, {"groups": tuple(each.model_copy(update={"topology": None}) for each in spec.groups)})
    if kind not in OF_ROLES:
        raise ValueError(f"no change of a spec is called {kind}")
    if role and role not in {each.name for each in spec.roles}:
        raise ValueError(f"the job has no role {role}")
    change = OF_ROLES[kind]
    roles = (each.model_copy(update=change(each, value)) if role in ("", each.name) else each for each in spec.roles)
    return _valid(spec, {"roles": tuple(roles)})


def _valid(spec: JobSpec, update: dict[str, Any]) -> JobSpec:
    # By way of its stored form: a copy is not validated, and a spec that no submit would accept must not be suggested.
    return JobSpec.model_validate_json(spec.model_copy(update=update).model_dump_json())


def differences(before: JobSpec, after: JobSpec) -> tuple[Difference, ...]:
    """The fields in which two specs of the same roles differ, in the order of the specs."""
    return tuple(_differences("", before.model_dump(mode="json"), after.model_dump(mode="json")))


def _differences(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if before == after:
        return
    if path == "roles":
        for one, other in zip(before, after, strict=True):
            yield from _differences(f"roles.{one['name']}", one, other)
    elif isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for name, value in before.items():
            yield from _differences(f"{path}.{name}" if path else name, value, after[name])
    else:
        yield Difference(path, before, after)
