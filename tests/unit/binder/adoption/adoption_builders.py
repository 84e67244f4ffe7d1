"""Users' objects as the API gives them; only what matters is said."""

from typing import Any

from tessera.binder.workloads.port import Group
from tessera.binder.workloads.references import OwnerRef
from tessera.binder.workloads.registry import group_of

Json = dict[str, Any]
NAMESPACE = "lab"


def pod(name: str = "train-0", **more: Any) -> Json:
    """A waiting pod that asks for one CPU; `owner` is the object that controls it, `asks` its only container's."""
    meta: Json = {
        "name": name,
        "namespace": more.pop("namespace", NAMESPACE),
        "uid": more.pop("uid", f"uid-{name}"),
        "creationTimestamp": more.pop("created", "2026-01-01T00:00:00Z"),
        "labels": more.pop("labels", {}),
        "annotations": more.pop("annotations", {}),
    }
    if (owner := more.pop("owner", None)) is not None:
        meta["ownerReferences"] = [owned_by(owner)]
        meta["labels"] = {**owner.get("spec", {}).get("selector", {}).get("matchLabels", {}), **meta["labels"]}
    asks = dict(more.pop("asks", {"cpu": "1"}))
    spec = {"schedulerName": "tessera", "containers": [{"name": "main", "resources": {"requests": asks}}]}
    return {"metadata": meta, "spec": {**spec, **more}, "status": {"phase": "Pending"}}


def owned_by(owner: Json) -> Json:
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }


def an_object(api_version: str, kind: str, name: str = "train", owner: Json | None = None, **more: Any) -> Json:
    meta: Json = {"name": name, "namespace": NAMESPACE, "uid": more.pop("uid", f"uid-of-{kind.lower()}-{name}")}
    if owner is not None:
        meta["ownerReferences"] = [owned_by(owner)]
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": more, "status": {}}


def batch_job(name: str = "train", owner: Json | None = None, **spec: Any) -> Json:
    job = an_object("batch/v1", "Job", name, owner, **spec)
    selector = {"matchLabels": {"batch.kubernetes.io/controller-uid": job["metadata"]["uid"]}}
    return job | {"spec": {"selector": selector, **job["spec"]}}


def ref(thing: Json) -> OwnerRef:
    meta = thing["metadata"]
    return OwnerRef(thing["apiVersion"], thing["kind"], meta["namespace"], meta["name"], meta["uid"])


def known(*objects: Json) -> dict[OwnerRef, Json | None]:
    return {ref(thing): thing for thing in objects}


def group(of: Json, *objects: Json) -> Group:
    """The pod's group, which there must be."""
    found = group_of(of, known(*objects))
    assert isinstance(found, Group), found
    return found
