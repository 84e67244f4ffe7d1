"""From a request's method and path to what is asked of which object."""

from dataclasses import dataclass

from tessera.kernel.ports import ApiError
from tessera_local.cluster.objects.store import WITHOUT_NAMESPACE, resource_in

_ON_COLLECTION = {"GET": "list", "POST": "create"}
_ON_OBJECT = {"GET": "get", "PATCH": "patch", "DELETE": "delete"}
_ON_SUBRESOURCE = {
    ("GET", "pods", "log"): "log",
    ("GET", "pods", "resize"): "get",
    ("PATCH", "pods", "resize"): "patch",
    ("POST", "pods", "binding"): "bind",
    ("POST", "pods", "eviction"): "evict",
    **{
        (method, resource, "status"): verb
        for resource in ("pods", "nodes", "jobs", "podgroups.scheduling.k8s.io", "compositepodgroups", "resourceclaims")
        for method, verb in (("GET", "get"), ("PATCH", "patch"))  # kubectl reads what it is about to patch
    },
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
    version, parts = _parts(path)
    if len(parts) > 5:
        raise _no_such_path()
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource, name, subresource = (*parts, "", "")[:3]
    resource = resource_in(version, resource)
    if not resource or len(parts) > 3 or (resource in WITHOUT_NAMESPACE and namespace):
        raise _no_such_path()
    if subresource:
        verb = _ON_SUBRESOURCE.get((method, resource, subresource))
    else:
        verb = (_ON_OBJECT if name else _ON_COLLECTION).get(method)
    if verb is None:
        raise ApiError(405, "MethodNotAllowed", f"{method} is not supported on {path}")
    if resource not in WITHOUT_NAMESPACE and not namespace and verb != "list":
        raise _no_such_path()
    return Call(verb, resource, namespace, name, subresource)


def _parts(path: str) -> tuple[str, list[str]]:
    """The apiVersion, and what comes after it."""
    root, *parts = path.strip("/").split("/")
    if root == "api" and len(parts) > 1:
        return parts[0], parts[1:]
    if root == "apis" and len(parts) > 2:
        return "/".join(parts[:2]), parts[2:]
    raise _no_such_path()


def _no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def watched(call: Call) -> Call:
    """Turn a list with `?watch=1` into a watch, which needs a right of its own."""
    return Call("watch", call.resource, call.namespace)
