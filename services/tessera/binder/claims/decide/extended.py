"""
The claim of a pod for counted resources that a class answers (`nvidia.com/gpu`): its object, and who gets what. Pure.

A container's count of a resource is one request. Init containers that end before the others start use the devices of
the containers after them, and what they need beyond is one request of the pod, for the largest of them. The kubelet
finds the devices by `status.extendedResourceClaimStatus` of the pod.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tessera.binder.devices.decide.selectors import class_that_answers
from tessera.binder.workloads.reading import items, mapping, no, text
from tessera.domain.storing.fast import replace
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import CLAIMS_API
from tessera_schemas.cluster.resource_kinds import CLASS_PREFIX
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import EXTENDED_CLAIM, DrawnDevice

ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
STATUS = "extendedResourceClaimStatus"
NAME_MAX = 200


@dataclass(frozen=True, slots=True)
class ExtendedClaim:
    """The object, what the pod's status says of it, and the devices by the requests of the object."""

    object: Json
    status: Json
    drawn: tuple[DrawnDevice, ...]


def named_extended_claim(pod: Json) -> str:
    """The claim that the pod's status names, "" for none."""
    return text(pod, "status", STATUS, "resourceClaimName")


def is_extended(drawn: DrawnDevice) -> bool:
    """Tells whether a device answers what its pod counts on, and no claim that the pod names."""
    return drawn.claim == EXTENDED_CLAIM


def extended_claim(pod: Json, drawn: Iterable[DrawnDevice], classes: Mapping[str, Json]) -> ExtendedClaim | Reason:
    """The claim for these devices of a pod, or why they are not what its containers ask for."""
    of_resource: dict[str, list[DrawnDevice]] = {}
    for one in drawn:
        of_resource.setdefault(one.request, []).append(one)
    requests, mappings, named = list[Json](), list[Json](), list[DrawnDevice]()
    for at, (resource, devices) in enumerate(sorted(of_resource.items())):
        device_class = class_for(resource, classes)
        counts, uses = _requests(pod, resource, at)
        if not device_class or sum(counts.values()) != len(devices):
            what = f"{len(devices)} devices were chosen for {sum(counts.values())} of {resource}"
            return no(Code.CLAIM_CONFLICT, "", what if device_class else f"no DeviceClass answers {resource}")
        for name, count in counts.items():
            exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
            requests.append({"name": name, "exactly": exactly})
            named += [replace(one, request=name) for one in devices[:count]]
            devices = devices[count:]
        mappings += [
            {"containerName": container, "resourceName": resource, "requestName": name} for container, name in uses
        ]
    made = _object(pod, requests)
    status = {"resourceClaimName": made["metadata"]["name"], "requestMappings": mappings}
    return ExtendedClaim(made, status, tuple(named))


def class_for(resource: str, classes: Mapping[str, Json]) -> str:
    """The class that answers a counted resource, as decisions choose it; "" for none."""
    implicit = resource.removeprefix(CLASS_PREFIX)
    said = class_that_answers(resource, classes.values())
    return said or (implicit if implicit != resource and implicit in classes else "")


def _requests(pod: Json, resource: str, at: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Number of devices of each request for the resource, and the requests that each container uses."""
    first = items(pod, "spec", "initContainers")
    containers = [(text(one, "name"), _count(one, resource)) for one in (*first, *items(pod, "spec", "containers"))]
    short = {index for index, one in enumerate(first) if text(one, "restartPolicy") != "Always"}
    counts = {
        f"container-{index}-{at}": count for index, (_, count) in enumerate(containers) if count and index not in short
    }
    uses = [(containers[int(name.split("-")[1])][0], name) for name in counts]
    beyond = f"init-{at}"
    more = 0
    for index in sorted(short):
        container, left = containers[index]
        # Containers before it that go on have their devices for themselves; those after it have not begun.
        for name in [name for name in counts if int(name.split("-")[1]) > index]:
            if left > 0:
                uses.append((container, name))
                left -= counts[name]
        if left > 0:
            uses.append((container, beyond))
            more = max(more, left)
    return counts | ({beyond: more} if more else {}), uses


def _count(container: Json, resource: str) -> int:
    asked = mapping(container, "resources", "requests") or mapping(container, "resources", "limits")
    count = asked.get(resource, 0)
    return int(count) if str(count).isdecimal() else 0


def _object(pod: Json, requests: list[Json]) -> Json:
    meta = pod["metadata"]
    # The same pod may be tried again on a node that answers other resources: no claim can be changed into another.
    content = json.dumps([meta["uid"], requests], sort_keys=True).encode()
    name = f"{meta['name'][:NAME_MAX].rstrip('-.')}-{hashlib.sha256(content).hexdigest()[:10]}"
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    return {
        "apiVersion": CLAIMS_API,
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": meta.get("labels") or {},
            "annotations": {ANNOTATION: "true"},
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": requests}},
    }
