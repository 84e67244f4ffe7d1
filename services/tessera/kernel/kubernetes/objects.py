"""
Objects of the API as its watches bring them, made readable in this one place.

The API's own objects say null where nothing is: for times that no kubelet saw, for lists that are empty. Custom
resources hold whatever their makers wrote. So each object passes here before anybody reads it: null is the same as not
there, and a field that is of another type than `SHAPES` says is left out and told of. Who reads behind this line finds
each of those fields with its type, or not at all. Text is taken as it is: a phase or a time may be any word. Pure.
"""

from typing import Any

import orjson
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from tessera_schemas.base import Json

INT32_MAX = 2**31 - 1
_INT32 = core_schema.int_schema(strict=True, ge=-INT32_MAX, le=INT32_MAX)
ODD_MAX = 8
"""So many fields of an object that cannot be read are named."""

_UNREAD: Any = object
"""Of no interest to anybody, and long."""
_AMOUNTS: Any = {"*": (str, int, float)}
_TEXTS: Any = {"*": str}
_STATE: Any = {
    "running": {"startedAt": str},
    "waiting": {"reason": str, "message": str},
    "terminated": {"exitCode": int, "reason": str, "message": str, "startedAt": str, "finishedAt": str},
}
_DEVICES: Any = [{"name": str, "resources": [{"resourceID": str, "health": str}]}]
_CONTAINERS: Any = [
    {
        "name": str,
        "image": str,
        "restartCount": int,
        "state": _STATE,
        "lastState": _STATE,
        "allocatedResourcesStatus": _DEVICES,
    }
]
SHAPES: Any = {
    "apiVersion": str,
    "kind": str,
    "metadata": {
        "name": str,
        "namespace": str,
        "uid": str,
        "resourceVersion": str,
        "deletionTimestamp": str,
        "deletionGracePeriodSeconds": int,
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "finalizers": [str],
        "ownerReferences": [{"apiVersion": str, "kind": str, "name": str, "uid": str, "controller": bool}],
        "managedFields": _UNREAD,
    },
    "spec": {
        "nodeName": str,
        "schedulerName": str,
        "subdomain": str,
        "activeDeadlineSeconds": int,
        "unschedulable": bool,
        "taints": [{"key": str, "value": str, "effect": str}],
    },
    "status": {
        "phase": str,
        "reason": str,
        "message": str,
        "conditions": [{"type": str, "status": str, "reason": str, "message": str, "lastTransitionTime": str}],
        "containerStatuses": _CONTAINERS,
        "initContainerStatuses": _CONTAINERS,
        "capacity": _AMOUNTS,
        "allocatable": _AMOUNTS,
        "nodeInfo": {"bootID": str},
    },
}
"""
Types of the fields that are read without a question, of pods, nodes, Services and owners alike. A list's one shape is
that of its items, `*` that of each value of a map; fields that are not named may be anything but null.
"""


def readable(thing: object) -> tuple[Json, list[str]]:
    """
    The object without what is null or cannot be read, and the paths of what cannot, in order.

    Nothing of it is changed in place, and one of which nothing is left out is handed back itself. {} for what has no
    name, UID and version: nobody could tell it from others.
    """
    odd: list[str] = []
    # Pods are many, have long specs and come in many versions: nearly all of them fit as they are.
    usual = not _may_hold_null(thing) and _USUAL.isinstance_python(thing)
    found: Any = thing if usual else _fitted(thing, SHAPES, None, odd)
    meta = found.get("metadata", {}) if type(found) is dict else {}
    if type(meta) is not dict or not (meta.get("name") and meta.get("uid") and meta.get("resourceVersion")):
        return {}, ["metadata", *odd][:ODD_MAX]
    return found, odd[:ODD_MAX]


def _schema(shape: Any) -> CoreSchema:
    """The shape as the library checks it, of what holds no null; where it says no, it is looked at part by part."""
    if type(shape) is dict and "*" not in shape:
        fields = {name: core_schema.typed_dict_field(_schema(wanted), required=False) for name, wanted in shape.items()}
        return core_schema.typed_dict_schema(fields, extra_behavior="allow", strict=True)
    if type(shape) is dict:
        return core_schema.dict_schema(values_schema=_schema(shape["*"]), strict=True)
    if type(shape) is list:
        return core_schema.list_schema(_schema(shape[0]), strict=True)
    if shape in (int, bool):
        return _INT32 if shape is int else core_schema.bool_schema(strict=True)
    return core_schema.any_schema() if shape in (Any, _UNREAD) else core_schema.str_schema(strict=True)


_USUAL = SchemaValidator(_schema(SHAPES))


def _fitted(value: Any, shape: Any, path: Any, odd: list[str]) -> Any:
    """The value in this shape, itself where it has it; None for one that is of another type."""
    if shape is Any:
        return value if type(value) is str or not _may_hold_null(value) else _without_nulls(value)
    if shape is _UNREAD:
        return value
    kind = type(value)
    if kind is dict and type(shape) is dict:
        return _fitted_map(value, shape, path, odd)
    if kind is list and type(shape) is list:
        fitted = [_fitted(one, shape[0], (path, at), odd) for at, one in enumerate(value) if one is not None]
        return [one for one in fitted if one is not None]
    if (kind is shape or (type(shape) is tuple and kind in shape)) and not (kind is int and abs(value) > INT32_MAX):
        return value
    odd.append(_named(path))
    return None


def _fitted_map(value: Json, shape: Any, path: Any, odd: list[str]) -> Json:
    others, found = shape.get("*", Any), value
    for name, one in value.items():
        fitted = None if one is None else _fitted(one, shape.get(name, others), (path, name), odd)
        if fitted is not one or one is None:
            found = dict(value) if found is value else found
            if fitted is None:
                del found[name]
            else:
                found[name] = fitted
    return found


def _named(path: Any) -> str:
    """`status.conditions[0].type`, from pairs of what is around and what is in it."""
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
    return "".join(reversed(parts)).removeprefix(".")


def _may_hold_null(value: Any) -> bool:
    """Whether its text holds the word, which tells at once: pods are many, and their specs long."""
    try:
        return b"null" in orjson.dumps(value)
    except TypeError:  # a number that no field of the API has
        return True


def _without_nulls(value: Any) -> Any:
    if type(value) is dict:
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    if type(value) is list:
        return [_without_nulls(one) for one in value if one is not None]
    return value
