"""Paths of the Kubernetes API: of a kind's list, and of one object by its apiVersion and kind."""

_LISTS = {
    "pods": "/api/v1/pods",
    "nodes": "/api/v1/nodes",
    "services": "/api/v1/services",
    "jobs": "/apis/batch/v1/jobs",
    "poddisruptionbudgets": "/apis/policy/v1/poddisruptionbudgets",
    "priorityclasses": "/apis/scheduling.k8s.io/v1/priorityclasses",
}


def list_path(resource: str) -> str:
    """
    Path of a list over all namespaces; `resource` is a name, or apiVersion and kind (`batch/v1/Job`). Raises KeyError.
    """
    api_version, _, kind = resource.rpartition("/")
    return f"/apis/{api_version}/{resource_of(kind)}" if api_version else _LISTS[resource]


def resource_of(kind: str) -> str:
    """The name in paths of a kind such as `PyTorchJob`; all kinds that are read form their plural like this."""
    name = kind.lower()
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith("s") else f"{name}s"


def object_path(api_version: str, kind: str, namespace: str, name: str) -> str:
    """Path of one object, in a namespace or ("") in none; `v1` is the group without a name."""
    root = "/apis/" if "/" in api_version else "/api/"
    within = f"namespaces/{namespace}/" if namespace else ""
    return f"{root}{api_version}/{within}{resource_of(kind)}/{name}"
