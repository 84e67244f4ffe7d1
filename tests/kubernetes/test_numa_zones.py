"""NodeResourceTopology on a real API server: GPUs and NICs of a pod are aligned, or the job hears what hinders."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.domain.work.phases import Phase
from tessera.kernel.ports import ApiError
from tessera_schemas.job import JobSpec
from tests.e2e.lasting import LONG
from tests.e2e.live import configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users
from tests.kubernetes.users_objects import Json

pytestmark = pytest.mark.asyncio(loop_scope="module")

GPU, NIC = "nvidia.com/gpu", "rdma/hca"
NODES = ("numa-0", "numa-1")
NAME = "noderesourcetopologies.topology.node.k8s.io"
OBJECTS = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
AMOUNT: Json = {"x-kubernetes-int-or-string": True}
NAMED: Json = {"name": {"type": "string"}}


def listed(required: list[str], **properties: Json) -> Json:
    fields = {"type": "object", "required": ["name", *required], "properties": NAMED | properties}
    return {"type": "array", "items": fields}


ATTRIBUTES = listed(["value"], value={"type": "string"})
RESOURCES = listed(["capacity", "allocatable", "available"], capacity=AMOUNT, allocatable=AMOUNT, available=AMOUNT)
COSTS = listed(["value"], value={"type": "integer"})
TEXT: Json = {"type": "string"}
ZONES = listed(["type"], type=TEXT, parent=TEXT, costs=COSTS, attributes=ATTRIBUTES, resources=RESOURCES)
KIND: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": NAME, "annotations": {"api-approved.kubernetes.io": "unapproved"}},
    "spec": {
        "group": "topology.node.k8s.io",
        "scope": "Cluster",
        "names": {
            "plural": "noderesourcetopologies",
            "singular": "noderesourcetopology",
            "kind": "NodeResourceTopology",
        },
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["zones"],
                        "properties": {"zones": ZONES, "attributes": ATTRIBUTES},
                    }
                },
            }
        ],
    },
}


def topology(node: str, *zones: dict[str, Any], policy: str = "single-numa-node") -> Json:
    """An object as the topology updater writes it: what is available says nothing of what can be allocated."""
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": policy},
            {"name": "topologyManagerScope", "value": "container"},
        ],
        "zones": [
            {
                "name": f"node-{at}",
                "type": "Node",
                "costs": [{"name": f"node-{to}", "value": 10 if at == to else 21} for to in range(len(zones))],
                "resources": [
                    {"name": name, "capacity": str(count), "allocatable": str(count), "available": "0"}
                    for name, count in zone.items()
                ],
            }
            for at, zone in enumerate(zones)
        ],
    }


EVEN = ({GPU: 4, NIC: 4}, {GPU: 4, NIC: 4})
UNEVEN = ({GPU: 4}, {GPU: 4, NIC: 8})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(2, "numa", gpus=8, cpu="64", more={NIC: "8"})
    own_plane.api().create(KIND)
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:
        await eventually(lambda: _is_created(live, topology(NODES[0], *EVEN)), "the kind is served")
        live.plane.api().create(topology(NODES[1], *UNEVEN))
        await eventually(lambda: all(zones_of(live, node) for node in NODES), "both nodes have zones")
        yield live


def _is_created(live: KubernetesLive, thing: Json) -> bool:
    """Whether the object could be made: the server takes a moment to serve a new kind."""
    try:
        live.plane.api().create(thing)
    except ApiError:
        return False
    return True


def zones_of(live: KubernetesLive, node: str) -> list[dict[str, int]]:
    found = live.state.nodes.get(node)
    return [] if found is None else [dict(zone) for zone in found.zones]


def detail(live: KubernetesLive, job_id: str) -> str:
    found = live.state.jobs.get(job_id)
    return "" if found is None or found.reason is None else found.reason.detail


def aligned(name: str, gpus: int, nics: int, replicas: int = 1, **more: Any) -> JobSpec:
    """A job whose pods have so many GPUs and NICs each."""
    spec = job(name, gpus=gpus, replicas=replicas, **more)
    asked = spec.roles[0].resources.model_copy(update={"devices": {NIC: nics}})
    return spec.model_copy(update={"roles": (spec.roles[0].model_copy(update={"resources": asked}),)})


async def test_zones_are_what_the_objects_say(live: KubernetesLive) -> None:
    assert zones_of(live, NODES[0]) == list(EVEN)
    assert zones_of(live, NODES[1]) == list(UNEVEN)


async def test_four_gpus_and_four_nics_are_aligned_or_the_job_hears_what_hinders(live: KubernetesLive) -> None:
    four = await live.submit(aligned("four", 4, 4, replicas=3, seconds=LONG))
    await live.until_phase(four.job_id, Phase.RUNNING)
    (run,) = live.state.runs.values()
    assert sorted(place.node for place in run.placements) == [NODES[0], NODES[0], NODES[1]]
    two = await live.submit(aligned("two", 2, 2))
    said = f"no NUMA zone of 1 node has 2 of {GPU} and 2 of {NIC}; at most 2 and 0"
    await eventually(lambda: said in detail(live, two.job_id), "the free GPUs have no NIC beside them")
    Users(live).finish(four.job_id)
    await live.until_ended(four.job_id, two.job_id)
    wide = await live.submit(aligned("wide", 6, 6))
    said = f"no NUMA zone of 2 nodes has 6 of {GPU} and 6 of {NIC}; at most 4 and 6, on 2 of them not even when empty"
    await eventually(lambda: said in detail(live, wide.job_id), "no zone has six of each")
    other = {"attributes": [{"name": "topologyManagerPolicy", "value": "best-effort"}]}
    live.plane.api().patch(f"{OBJECTS}/{NODES[1]}", other)
    await live.until_ended(wide.job_id)


async def test_nodes_have_no_zones_once_the_kind_is_gone(live: KubernetesLive) -> None:
    live.plane.api().delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}")
    await eventually(lambda: not any(zones_of(live, node) for node in NODES), "no node has zones")
    await assert_all_is_well(live)
