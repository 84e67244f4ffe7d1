"""
The patches that the API's users send: JSON merge patch (RFC 7386), the core of JSON patch (RFC 6902), and strategic
merge patch as far as it needs no directives.
"""

from typing import Any

from tessera.kernel.ports import ApiError
from tessera_schemas.base import Json

JsonPatch = list[dict[str, Any]]
LISTS_BY_KEY = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets"), "name"),
    **dict.fromkeys(("conditions", "addresses"), "type"),
    "ownerReferences": "uid",
    "volumeMounts": "mountPath",
}
"""Lists of pods, nodes and Jobs whose items a strategic patch merges by a field, as the API declares them."""
SETS = ("finalizers",)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386; neither argument is changed, and untouched parts are shared with `target`."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def strategic(target: Any, patch: Any) -> Any:
    """
    A strategic merge: as `merged`, but lists of `LISTS_BY_KEY` are merged item by item, and `SETS` are joined.

    Raises ApiError 422 for a directive (`$patch` and others), which is not known here and must not be stored.
    """
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$"):
            raise ApiError(422, "Invalid", f"the directive {key} of a strategic merge patch is not supported")
        if value is None:
            result.pop(key, None)
        elif isinstance(value, list) and isinstance(result.get(key), list):
            result[key] = _joined(key, result[key], value)
        else:
            result[key] = strategic(result.get(key), value)
    return result


def _joined(name: str, old: list[Any], new: list[Any]) -> list[Any]:
    if name in SETS:
        return [*old, *(value for value in new if value not in old)]
    key = LISTS_BY_KEY.get(name)
    if key is None or not all(isinstance(item, dict) and key in item for item in old):
        return new
    items = {item[key]: item for item in old}
    for item in new:
        if not isinstance(item, dict) or key not in item:
            raise ApiError(422, "Invalid", f"{name}: an item of a strategic merge patch needs its {key}")
        items[item[key]] = strategic(items.get(item[key]), item)
    return list(items.values())


def patched(target: Json, operations: JsonPatch) -> Json:
    """RFC 6902 with test, add, replace and remove. Raises ApiError 422, as the API does, when one fails."""
    result: Any = target
    for operation in operations:
        try:
            path = [_unescaped(part) for part in operation["path"].split("/")[1:]]
            result = _applied(result, path, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise ApiError(422, "Invalid", f"json patch {operation!r} does not apply: {error!r}") from error
    changed: Json = result
    return changed


def _applied(target: Any, path: list[str], operation: dict[str, Any]) -> Any:
    if len(path) > 1:
        where = path[0] if isinstance(target, dict) else int(path[0])
        copy = target.copy()
        copy[where] = _applied(target[where], path[1:], operation)
        return copy
    op, last = operation["op"], path[0]
    if op == "test":
        actual = target[last if isinstance(target, dict) else int(last)]
        if actual != operation["value"]:
            raise ValueError(f"the value is {actual!r}")
        return target
    copy = target.copy()
    if op == "remove":
        del copy[last if isinstance(copy, dict) else int(last)]
    elif op == "add" and isinstance(copy, list):
        copy.insert(len(copy) if last == "-" else int(last), operation["value"])
    elif op in ("add", "replace"):
        copy[last if isinstance(copy, dict) else int(last)] = operation["value"]
    else:
        raise ValueError(f"operation {op!r} is not supported")
    return copy


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
