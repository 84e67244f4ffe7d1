"""Events on pods: on the first ones of each run, a few a second, and never in the way of a bind."""

import pytest

from tessera.kernel.ports import ApiError
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.in_memory import MemoryCluster
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import pod_name
from tests.unit.binder.cluster_world import World, train


def scheduled(core: SimCluster) -> dict[str, str]:
    """The message by the pod's name."""
    events = [found.object for found in core.list("events")[0]]
    return {e["involvedObject"]["name"]: e["message"] for e in events if e["reason"] == "Scheduled"}


async def test_a_bound_pod_says_where_it_was_placed_and_as_what_of_its_gang() -> None:
    async with World() as world:
        job = await world.submit(spec=train(replicas=2, gpus=2))
        await world.run(2)
        said = scheduled(world.core)
        node, nodes = world.current(job).placements[1].node, len(world.nodes_of(job))
        assert set(said) == {pod_name(f"{job}-1", 0), pod_name(f"{job}-1", 1)}
        assert said[pod_name(f"{job}-1", 1)] == (
            f"placed on {node} with 2 GPUs for job {job}, attempt 1, rank 1 of 2 pods on {nodes} node"
        )


async def test_the_first_eight_pods_of_a_gang_speak_for_all() -> None:
    async with World() as world:
        job = await world.submit(spec=train(replicas=12))
        await world.run(5)
        assert len(scheduled(world.core)) == 8
        assert "of 12 pods on 2 nodes" in scheduled(world.core)[pod_name(f"{job}-1", 0)]


async def test_events_are_made_one_after_the_other_and_binds_do_not_wait_for_them() -> None:
    async with World(scheduled_events_per_second=0.5) as world:
        await world.submit(spec=train(replicas=8))  # it runs after three seconds
        assert 1 <= len(scheduled(world.core)) <= 3
        await world.run(20)
        assert len(scheduled(world.core)) == 8


async def test_an_event_that_is_refused_is_not_tried_again_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    make, refused = MemoryCluster.create_event, list[str]()

    async def refusing(self: MemoryCluster, namespace: str, event: Json) -> None:
        if not refused:
            refused.append(event["involvedObject"]["name"])
            raise ApiError(403, "Forbidden", "no events here")
        await make(self, namespace, event)

    monkeypatch.setattr(MemoryCluster, "create_event", refusing)
    async with World() as world:
        first, second = await world.submit("k1"), await world.submit("k2")
        await world.run(3)
        assert refused == [pod_name(f"{first}-1", 0)]
        assert set(scheduled(world.core)) == {pod_name(f"{second}-1", 0)}


async def test_who_wants_none_gets_none() -> None:
    async with World(scheduled_events_per_second=0) as world:
        await world.submit(spec=train())
        await world.run(3)
        assert scheduled(world.core) == {}
