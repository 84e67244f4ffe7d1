"""Checks of the API server before a write: names, required fields, preconditions, fields that a patch may change."""

import re
from typing import Any

from tessera_local.cluster.api import answers
from tessera_local.cluster.objects.shelf import Version
from tessera_schemas.base import Json
from tessera_schemas.text.quantities import quantity

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_CHANGEABLE_SPEC = ("schedulingGates", "activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")
_KEPT_META = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def check_new(resource: str, namespace: str, obj: Any) -> Json:
    """The object, if it may be created here. Raises ApiError 400 or 422."""
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
        raise answers.bad_request("the object needs metadata")
    created: Json = obj
    meta = created["metadata"]
    name = meta.get("name") or ""
    if not _NAME.fullmatch(name):
        raise answers.invalid(resource, name, "metadata.name: must be a lower case RFC 1123 subdomain")
    if meta.get("namespace", namespace) != namespace:
        raise answers.bad_request("the namespace of the object does not match the namespace on the request")
    if resource == "pods":
        containers = (created.get("spec") or {}).get("containers")
        if not containers or not all(isinstance(one, dict) and one.get("name") for one in containers):
            raise answers.invalid(resource, name, "spec.containers: at least one is required, each with a name")
    return created


def check_preconditions(resource: str, found: Version, uid: Any, resource_version: Any) -> None:
    """Raises ApiError 409. An absent precondition (None or "") always holds."""
    if uid and uid != found.uid:
        raise answers.wrong_uid(resource, found.meta["name"], uid, found.uid)
    if resource_version and resource_version != found.meta["resourceVersion"]:
        raise answers.stale(resource, found.meta["name"])


def check_bindable(pod: Version) -> None:
    """Raises ApiError 409 for a pod that is bound, on its way out, or gated."""
    name = pod.meta["name"]
    if pod.node:
        raise answers.conflict("pods/binding", name, f'pod {name} is already assigned to node "{pod.node}"')
    if pod.deleting:
        raise answers.conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if pod.object["spec"].get("schedulingGates"):
        raise answers.conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")


def result_of_patch(resource: str, subresource: str, old: Version, new: Json) -> Json:
    """
    The object that a patch may leave: identity and deletion stay, status moves only through its subresource.

    Raises ApiError 409 when the patch names another UID or an outdated resourceVersion, 422 for a change that the
    API forbids.
    """
    meta = new.get("metadata")
    if not isinstance(meta, dict):
        raise answers.bad_request("the object needs metadata")
    check_preconditions(resource, old, meta.get("uid"), meta.get("resourceVersion"))
    if subresource == "status":
        return {**old.object, "metadata": dict(old.meta), "status": new.get("status", {})}
    if subresource == "resize":
        return {**old.object, "metadata": dict(old.meta), "spec": _resized(old, new.get("spec") or {})}
    kept = {key: old.meta[key] for key in _KEPT_META if key in old.meta}
    result = {**new, "metadata": {**meta, **kept}}
    if "status" in old.object:
        result["status"] = old.object["status"]
    if resource == "pods":
        _check_pod_change(old, result)
    return result


def _resized(old: Version, wanted: Json) -> Json:
    """
    The pod's spec with requests and limits of CPU and memory as they are wanted; all else is dropped, as the API does.

    Raises ApiError 422 for other containers, a request above its limit, and what gives the pod another QoS class.
    """
    before, after = old.object["spec"]["containers"], wanted.get("containers") or []
    if [one["name"] for one in before] != [one.get("name") for one in after]:
        raise answers.invalid("pods", old.meta["name"], "spec.containers: Forbidden: containers may not be changed")
    containers = [{**one, "resources": _changed(one, other)} for one, other in zip(before, after, strict=True)]
    if _is_guaranteed(before) != _is_guaranteed(containers):
        why = 'metadata.Pod QOS Class: Invalid value: "Burstable": Pod QOS Class may not change as a result of resizing'
        raise answers.invalid("pods", old.meta["name"], why)
    for one in containers:
        for name, most in one["resources"].get("limits", {}).items():
            if name in _RESIZED and quantity(one["resources"].get("requests", {}).get(name, most)) > quantity(most):
                why = f"spec.containers[0].resources.requests: must be less than or equal to {name} limit of {most}"
                raise answers.invalid("pods", old.meta["name"], why)
    return {**old.object["spec"], "containers": containers}


_RESIZED = ("cpu", "memory")


def _changed(container: Json, wanted: Json) -> Json:
    """The resources of a container, of which CPU and memory are as they are wanted."""
    had, asked = container.get("resources") or {}, wanted.get("resources") or {}
    parts = {
        part: {**had.get(part, {}), **{name: amount for name, amount in asked[part].items() if name in _RESIZED}}
        for part in ("requests", "limits")
        if part in asked
    }
    return {**had, **parts}


def _is_guaranteed(containers: list[Json]) -> bool:
    """Whether each container may have of CPU and memory exactly what it asks for."""
    asked = [one.get("resources") or {} for one in containers]
    return all(
        name in (of.get("limits") or {})
        and quantity((of.get("requests") or of["limits"]).get(name, of["limits"][name])) == quantity(of["limits"][name])
        for of in asked
        for name in _RESIZED
    )


def _check_pod_change(old: Version, new: Json) -> None:
    before, after = old.object["spec"], new.get("spec") or {}
    if before is not after:
        fixed = [key for key in {**before, **after} if key not in _CHANGEABLE_SPEC]
        if any(before.get(key) != after.get(key) for key in fixed):
            raise answers.invalid("pods", old.meta["name"], "spec: Forbidden: pod updates may not change these fields")
        _check_deadline(old.meta["name"], before.get("activeDeadlineSeconds"), after.get("activeDeadlineSeconds"))
    added = set(new["metadata"].get("finalizers") or ()) - set(old.meta.get("finalizers") or ())
    if old.deleting and added:
        raise answers.invalid("pods", old.meta["name"], "metadata.finalizers: Forbidden: no new ones while deleting")


def _check_deadline(name: str, before: Any, after: Any) -> None:
    """A deadline may be set, and come earlier; it is never put off or taken off."""
    if before == after:
        return
    if after is None:
        why = "must not update from a positive integer to nil value"
        raise answers.invalid("pods", name, f"spec.activeDeadlineSeconds: Invalid value: null: {why}")
    if type(after) is not int or not 0 < after < 2**31:
        why = "must be between 1 and 2147483647, inclusive"
        raise answers.invalid("pods", name, f"spec.activeDeadlineSeconds: Invalid value: {after}: {why}")
    if before is not None and after > before:
        why = "must be less than or equal to previous value"
        raise answers.invalid("pods", name, f"spec.activeDeadlineSeconds: Invalid value: {after}: {why}")
