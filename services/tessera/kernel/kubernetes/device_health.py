"""Health of devices as a pod's own status says: those that its containers were given (KEP-4680)."""

from tessera_schemas.base import Json

UNHEALTHY = "Unhealthy"
"""What a kubelet says of a device that its plugin reported broken; of a plugin that is away it says `Unknown`."""


def unhealthy_devices(pod: Json) -> tuple[str, ...]:
    """Names of resources, such as `nvidia.com/gpu`, of which the pod has a device that is unhealthy; in order."""
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return tuple(
        sorted(
            {
                str(found.get("name", ""))
                for container in containers
                for found in container.get("allocatedResourcesStatus") or ()
                for device in found.get("resources") or ()
                if device.get("health") == UNHEALTHY
            }
        )
    )
