"""From a request's method and path to what is asked of which object."""

from dataclasses import dataclass

from tessera.kernel.ports import ApiError

_ON_COLLECTION = {"GET": "list", "POST": "create"}
_ON_OBJECT = {"GET": "get", "PATCH": "patch", "DELETE": "delete"}
_ON_SUBRESOURCE = {
    ("POST", "pods", "binding"): "bind",
    ("POST", "pods", "eviction"): "evict",
    ("PATCH", "pods", "status"): "patch",
    ("PATCH", "nodes", "status"): "patch",
}


@dataclass(frozen=True, slots=True)
class Call:
    """`verb` as in `faults.VERBS`; a list may yet become a watch."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def call_of(method: str, path: str) -> Call:
    """Raises ApiError 404 for a path and 405 for a method that the simulated cluster does not serve."""
    parts = path.removeprefix("/api/v1/").rstrip("/").split("/")
    if not path.startswith("/api/v1/") or len(parts) > 5:
        raise _no_such_path()
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource, name, subresource = (*parts, "", "")[:3]
    if resource not in ("pods", "nodes") or len(parts) > 3 or (resource == "nodes" and namespace):
        raise _no_such_path()
    if subresource:
        verb = _ON_SUBRESOURCE.get((method, resource, subresource))
    else:
        verb = (_ON_OBJECT if name else _ON_COLLECTION).get(method)
    if verb is None:
        raise ApiError(405, "MethodNotAllowed", f"{method} is not supported on {path}")
    if resource == "pods" and not namespace and verb != "list":
        raise _no_such_path()
    return Call(verb, resource, namespace, name, subresource)


def _no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def watched(call: Call) -> Call:
    return Call("watch", call.resource, call.namespace)
