"""Claims, slices and classes as the API has them, and devices drawn for pods."""

from typing import Any

from tessera_schemas.base import Json
from tessera_schemas.cluster.device_claims import DeviceChoice, DeviceClaim, DeviceRequest
from tessera_schemas.cluster.labels import CLAIMS_API, DELETE_PROTECTION
from tessera_schemas.work.placement import DrawnDevice

DRIVER, CLASS = "gpu.example.com", "gpu.example.com"


def device_claim(name: str = "gpu", *choices: DeviceChoice, **more: Any) -> DeviceClaim:
    asked = choices or (DeviceChoice(device_class=CLASS),)
    return DeviceClaim(name=name, requests=(DeviceRequest(name="one", choices=asked),), **more)


def drawn(
    device: str = "gpu-0", claim: str = "gpu", request: str = "one", node: str = "node-a", **more: Any
) -> DrawnDevice:
    return DrawnDevice(claim, request, DRIVER, node, device, **more)


def claim(name: str = "claim", requests: list[Json] | None = None, **status: Any) -> Json:
    """One of a user, of one device, as it was stored."""
    asked = requests or [
        {"name": "one", "exactly": {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 1}}
    ]
    return {
        "apiVersion": CLAIMS_API,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "lab", "uid": f"uid-of-{name}", "resourceVersion": "7"},
        "spec": {"devices": {"requests": asked}},
        **({"status": status} if status else {}),
    }


def protected(found: Json, run_id: str = "") -> Json:
    """The claim with Kubernetes' finalizer, and marked for a run."""
    mark = {"annotations": {"tessera.io/run": run_id}} if run_id else {}
    return found | {"metadata": found["metadata"] | {"finalizers": [DELETE_PROTECTION]} | mark}


def device_class(name: str = CLASS, *config: Json) -> Json:
    meta = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1"}
    return {
        "apiVersion": CLAIMS_API,
        "kind": "DeviceClass",
        "metadata": meta,
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
        | ({"config": list(config)} if config else {}),
    }


def opaque(parameters: Json, *requests: str) -> Json:
    said: Json = {"opaque": {"driver": DRIVER, "parameters": parameters}}
    return said | ({"requests": list(requests)} if requests else {})


def resource_slice(node: str = "node-a", *devices: Json, generation: int = 1, pool: str = "", **spec: Any) -> Json:
    return {
        "apiVersion": CLAIMS_API,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-slice-{generation}"},
        "spec": {
            "driver": DRIVER,
            "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices) or [{"name": "gpu-0"}, {"name": "gpu-1"}],
        }
        | (spec or {"nodeName": node}),
    }
