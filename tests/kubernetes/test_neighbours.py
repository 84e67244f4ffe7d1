"""Users' pods that are to be near or away from pods of others, on a real API server: where they go, what is said."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tessera_schemas.cluster.node_terms import Neighbours, PodTerm
from tests.e2e.live import configuration, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users, scheduled
from tests.kubernetes.users_objects import Json, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

ZONE, REQUIRED = "topology.kubernetes.io/zone", "requiredDuringSchedulingIgnoredDuringExecution"
ZONES = {"near-0": "north", "near-1": "north", "near-2": "south"}
FAR = "near-2"


def about(kind: str, app: str, topology: str) -> Json:
    """Fields of a pod that has one condition about pods of this app."""
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": topology}
    return {"affinity": {kind: {REQUIRED: [term]}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(len(ZONES), "near", gpus=4, cpu="16")
    for node, zone in ZONES.items():
        own_plane.api().patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {ZONE: zone}}})
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


async def test_pods_go_near_to_and_stay_away_from_pods_of_others(live: KubernetesLive) -> None:
    users = Users(live)

    def place(name: str) -> str:
        found = users.pod(name)
        return "" if found is None else found["spec"].get("nodeName", "")

    def told(name: str, words: str) -> bool:
        found = users.pod(name)
        return found is not None and words in str(scheduled(found))

    # Nothing with the label stands yet, so that no node is near to it.
    users.create(pod("reader", gpus=1, seconds=600, labels={"app": "reader"}, **about("podAffinity", "cache", ZONE)))
    await users.until(lambda: told("reader", "far from pods to be near"), "the reader says what it waits for")
    found_by = {"tessera.io/found-by": "app"}
    users.create(
        pod("cache", gpus=1, seconds=600, labels={"app": "cache"}, notes=found_by, nodeSelector={ZONE: "south"})
    )
    await users.until(lambda: place("cache") == FAR, "the cache is in its zone")
    await users.until(lambda: place("reader") == FAR, "the reader goes to the zone of the cache")
    # A job of the same tenant means them, too; that it was near is for the checker to say.
    native = job("native", gpus=1)
    near = Neighbours(near=(PodTerm(labels={"app": "cache"}, topology=ZONE),))
    worker = native.roles[0].model_copy(update={"neighbours": near})
    submitted = await live.submit(native.model_copy(update={"roles": (worker,)}))
    await live.until_ended(submitted.job_id)

    users.create(pod("alone", gpus=1, seconds=600, labels={"app": "alone"}, **about("podAntiAffinity", "cache", ZONE)))
    await users.until(lambda: ZONES.get(place("alone")) == "north", "the one that stays away is in the other zone")
    # Both ways: the next pod with that label stays out of the zone of whoever stays away from it, and finds no other.
    users.create(
        pod("cache-2", gpus=1, seconds=600, labels={"app": "cache"}, notes=found_by, nodeSelector={ZONE: "north"})
    )
    await users.until(lambda: told("cache-2", "with pods to keep apart from"), "the second cache says why")
    users.delete_pods("alone")
    await users.until(lambda: ZONES.get(place("cache-2")) == "north", "it starts once that pod has gone")
    users.delete_pods("reader", "cache", "cache-2")
    await assert_all_is_well(live)
