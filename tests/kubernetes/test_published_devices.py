"""What drivers publish on a real API server is what nodes of the ledger offer: changes, gaps and drivers that go."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.domain.devices.offers import Offer
from tests.e2e.live import configuration, eventually
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users_objects import Json
from tests.published_devices import DRIVER

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODES = ("dra-0", "dra-1")
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"


def published(node: str, *devices: str, generation: int = 1, part: int = 0, count: int = 1) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{generation}-{part}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": count},
            "devices": [
                {
                    "name": name,
                    "attributes": {"uuid": {"string": f"{node}-{name}"}, "driverVersion": {"version": "1.2.3"}},
                    "capacity": {"memory": {"value": "80Gi"}},
                }
                for name in devices
            ],
        },
    }


def device_class(name: str, *expressions: str) -> Json:
    spec = {"selectors": [{"cel": {"expression": each}} for each in expressions]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(2, "dra", gpus=0, cpu="16")
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


def offer(live: KubernetesLive, node: str) -> Offer | None:
    found = live.state.nodes.get(node)
    return None if found is None else found.offer


def names(live: KubernetesLive, node: str) -> list[str]:
    found = offer(live, node)
    return [] if found is None else [each.name for each in found.devices]


def selected(live: KubernetesLive, name: str) -> Any:
    found = offer(live, NODES[0])
    taken = None if found is None else found.selected(name, ())
    return taken if taken is None else taken.error or taken.devices


async def test_a_story_of_a_driver(live: KubernetesLive) -> None:
    api = live.plane.api()
    for node in NODES:
        api.create(published(node, "gpu-0", "gpu-1"))
    await eventually(lambda: all(names(live, node) == ["gpu-0", "gpu-1"] for node in NODES), "both offer their devices")
    assert offer(live, NODES[0]) == offer(live, NODES[1])
    node = live.state.nodes.get(NODES[0])
    assert node is not None
    assert (node.device_profile, node.gpus, node.gpu_memory_bytes) == ("dra", 2, 80 * 2**30)

    version = f'device.attributes["{DRIVER}"].driverVersion.compareTo(semver("1.2.0")) > 0'
    memory = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
    api.create(device_class("large", version, memory))
    api.create(device_class("one", f'device.attributes["{DRIVER}"].uuid == "dra-0-gpu-0"'))
    await eventually(lambda: selected(live, "large") == 0b11, "the class takes both")
    await eventually(lambda: "uuid is another" in str(selected(live, "one")), "the error of the class is told")

    # A generation of two slices, of which the second comes late.
    api.create(published(NODES[0], "gpu-0", generation=2, count=2))
    await eventually(lambda: names(live, NODES[0]) == [], "half of a pool is not offered")
    missing = live.state.nodes.get(NODES[0])
    assert missing is not None
    assert missing.missing == (f"{DRIVER}/{NODES[0]}",)
    assert names(live, NODES[1]) == ["gpu-0", "gpu-1"]
    api.create(published(NODES[0], "gpu-1", "gpu-2", generation=2, part=1, count=2))
    await eventually(lambda: names(live, NODES[0]) == ["gpu-0", "gpu-1", "gpu-2"], "the whole pool is offered")
    await eventually(lambda: selected(live, "large") == 0b111, "the class takes all three")

    api.delete(f"{CLASSES}/large")
    await eventually(lambda: "no DeviceClass" in str(selected(live, "large")), "the class is gone")
    for one in api.items(SLICES):
        api.delete(f"{SLICES}/{one['metadata']['name']}")
    await eventually(lambda: all(offer(live, node) is None for node in NODES), "the driver is gone")
    await eventually(lambda: live.state.nodes.get(NODES[0]).device_profile != "dra", "and its GPUs")  # type: ignore[union-attr]
