"""The informer's copy is right again after whatever happens to its watch."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.ports import ApiError, WatchEvent
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.in_memory import MemoryCluster
from tessera_local.cluster.objects.store import Options
from tests.virtual_time import ImpatientClock

NS = "default"


class World:
    def __init__(self, selector: str = "", history: int = 1000) -> None:
        self.clock = ImpatientClock()
        self.core = SimCluster(self.clock, options=Options(history=history))
        self.cluster = MemoryCluster(self.core, self.clock, "binder")
        self.informer = Informer(self.cluster, "pods", self.clock, selector)

    def pod(self, name: str, **labels: str) -> None:
        meta = {"name": name, "labels": labels}
        self.core.create("pods", NS, {"metadata": meta, "spec": {"containers": [{"name": "main"}]}})

    def delete(self, name: str) -> None:
        self.core.delete("pods", NS, name)

    def label(self, name: str, value: str) -> None:
        self.core.patch("pods", NS, name, {"metadata": {"labels": {"app": value}}})

    async def until(self, **counts: int) -> list[tuple[str, str]]:
        """Take deltas until each type came as often as said."""
        seen: list[Delta] = []
        async with asyncio.timeout(60):
            while any(sum(one.type == change for one in seen) < number for change, number in counts.items()):
                seen += await self.informer.next()
        return [(one.type, one.object["metadata"]["name"]) for one in seen]

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    def copy(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.informer.objects.values()}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.informer.close()


async def test_the_first_list_comes_as_added_and_then_it_is_synced(world: World):
    world.pod("a")
    world.pod("b")
    assert await world.informer.next(limit=1) != []
    assert not world.informer.synced
    assert [delta.type for delta in await world.informer.next()] == ["ADDED"]
    assert world.informer.synced
    assert world.copy() == {"a", "b"}


async def test_an_empty_cluster_is_synced_by_an_empty_batch(world: World):
    assert await world.informer.next() == []
    assert world.informer.synced


async def test_changes_come_with_what_the_copy_held_before(world: World):
    world.pod("a", app="x")
    await world.until(ADDED=1)
    world.label("a", "y")
    [delta] = await world.informer.next()
    assert delta.type == "MODIFIED"
    assert delta.old is not None
    assert (delta.old["metadata"]["labels"], delta.object["metadata"]["labels"]) == ({"app": "x"}, {"app": "y"})
    world.delete("a")
    [delta] = await world.informer.next()
    assert delta.type == "DELETED"
    assert world.informer.objects == {}
    assert world.informer.named("a", NS) is None


async def test_an_object_that_cannot_be_read_as_a_whole_is_held_and_told_once(world: World):
    """As a kubelet leaves a container that it cannot find any more; and of another type than anybody would write."""
    world.pod("a", app="x")
    world.pod("well")
    terminated = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
    statuses = [{"name": "main", "state": {"terminated": terminated}}]
    status = {"phase": "Failed", "conditions": None, "containerStatuses": statuses, "reason": ["odd"]}
    world.core.patch("pods", NS, "a", {"status": status}, "status")
    with capture_logs() as logs:
        await world.until(ADDED=2)
        world.label("a", "y")
        [delta] = await world.informer.next()
    told = {"exitCode": 137, "reason": "ContainerStatusUnknown"}
    assert delta.object["status"]["containerStatuses"] == [{"name": "main", "state": {"terminated": told}}]
    assert "conditions" not in delta.object["status"]
    [line] = [one for one in logs if one["event"] == "object_not_readable"]
    assert (line["kind"], line["namespace"], line["name"], line["fields"]) == ("pods", NS, "a", ["status.reason"])
    assert world.copy() == {"a", "well"}


async def test_the_copy_holds_only_what_was_handed_out(world: World):
    world.pod("a")
    await world.until(ADDED=1)
    world.pod("b")
    await world.settle()
    assert world.copy() == {"a"}
    await world.informer.next()
    assert world.copy() == {"a", "b"}


async def test_a_closed_watch_goes_on_where_it_stopped_without_a_list(world: World):
    await world.informer.next()
    world.core.faults.answer("list", 500, count=100)
    for name in ("a", "b"):
        world.core.close_watches()
        world.pod(name)
        assert await world.until(ADDED=1) == [("ADDED", name)]


async def test_after_410_the_differences_come_out_deletions_first(world: World):
    for name in ("gone", "kept", "changed"):
        world.pod(name, app="x")
    await world.until(ADDED=3)
    world.core.close_watches()
    world.delete("gone")
    world.label("changed", "y")
    world.pod("new")
    world.core.expire_history()
    assert await world.until(DELETED=1, ADDED=1, MODIFIED=1) == [
        ("DELETED", "gone"),
        ("MODIFIED", "changed"),
        ("ADDED", "new"),
    ]
    assert world.copy() == {"kept", "changed", "new"}


async def test_a_name_that_changed_hands_unseen_is_a_deletion_and_an_addition(world: World):
    world.pod("a")
    await world.until(ADDED=1)
    first = world.informer.named("a", NS)
    world.core.close_watches()
    world.delete("a")
    world.pod("a")
    world.core.expire_history()
    assert await world.until(DELETED=1, ADDED=1) == [("DELETED", "a"), ("ADDED", "a")]
    second = world.informer.named("a", NS)
    assert first is not None
    assert second is not None
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


async def test_a_watch_that_is_too_slow_is_listed_again():
    world = World(history=4)
    await world.informer.next()
    for number in range(20):  # at one go: the watch has no chance to keep up
        world.pod(f"p{number}")
    await world.until(ADDED=20)
    await world.informer.close()


async def test_an_api_that_is_away_is_asked_again_with_growing_waits(world: World):
    world.core.faults.lose_answers("list", count=3)
    world.pod("a")
    await world.until(ADDED=1)
    assert world.clock.waits == [0.1, 0.2, 0.4]


async def test_the_wait_that_the_server_asks_for_is_kept(world: World):
    world.core.faults.answer("list", 429, retry_after_seconds=7)
    world.pod("a")
    await world.until(ADDED=1)
    assert world.clock.waits == [7]


async def test_replicas_that_lose_the_server_together_do_not_come_back_together(world: World):
    waits = []
    for who in ("binder-1", "binder-2", "binder-1"):
        world.clock.waits.clear()
        world.core.faults.answer("list", 429, count=3, retry_after_seconds=8)
        informer = Informer(world.cluster, "pods", world.clock, who=who)
        await informer.next()
        await informer.close()
        waits.append(list(world.clock.waits))
    assert waits[0] == waits[2] != waits[1]
    assert all(8 <= wait <= 8 * 1.5 for each in waits for wait in each)


async def test_only_what_is_made_of_an_object_is_kept_of_it(world: World):
    def reduced(found: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": found["metadata"], "app": found["metadata"].get("labels", {}).get("app")}

    world.informer = Informer(world.cluster, "pods", world.clock, reduce=reduced)
    world.pod("listed", app="x")
    await world.until(ADDED=1)
    world.pod("watched", app="y")
    await world.until(ADDED=1)
    assert [set(one) for one in world.informer.objects.values()] == [{"metadata", "app"}] * 2
    assert {one["app"] for one in world.informer.objects.values()} == {"x", "y"}


async def test_a_lost_connection_goes_on_where_it_stopped():
    world = World()

    class Breaking(MemoryCluster):
        async def watch(
            self, kind: str, resource_version: str, label_selector: str = "", field_selector: str = ""
        ) -> AsyncIterator[WatchEvent]:
            async for event in super().watch(kind, resource_version, label_selector, field_selector):
                yield event
                raise Transient("the connection broke")

    world.informer = Informer(Breaking(world.core, world.clock, "binder"), "pods", world.clock)
    await world.informer.next()
    world.core.faults.answer("list", 500, count=100)
    for name in ("a", "b", "c"):
        world.pod(name)
    assert await world.until(ADDED=3) == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]
    await world.informer.close()


async def test_only_what_is_selected_is_held():
    world = World(selector="app=x")
    world.pod("mine", app="x")
    world.pod("theirs", app="y")
    await world.until(ADDED=1)
    world.label("mine", "y")
    assert await world.until(DELETED=1) == [("DELETED", "mine")]
    assert world.copy() == set()
    await world.informer.close()


async def test_a_timeout_gives_an_empty_batch(world: World):
    await world.informer.next()
    assert await world.informer.next(timeout=5.0) == []
    assert world.clock.waits == [5.0]


async def test_a_reader_that_breaks_for_good_is_not_silent():
    world = World()

    async def broken(_verb: str) -> None:
        raise RuntimeError("a bug")

    world.cluster.before = broken
    with pytest.raises(RuntimeError, match="a bug"):
        await world.informer.next()


async def test_closing_ends_the_watch(world: World):
    await world.informer.next()
    await world.settle()
    assert world.core.sizes()["readers"] == 1
    with suppress(asyncio.CancelledError):
        await world.informer.close()
    await world.settle()
    assert world.core.sizes()["readers"] == 0


class Growing(MemoryCluster):
    """A cluster that gets the kind later."""

    has_kind = False

    async def list(self, *asked: Any, **more: Any) -> Any:
        if not self.has_kind:
            raise ApiError(404, "NotFound", "the server has no such kind")
        return await super().list(*asked, **more)


async def test_a_kind_that_the_server_does_not_have_is_absent_until_it_has_it(world: World) -> None:
    cluster = Growing(world.core, world.clock, "binder")
    informer = Informer(cluster, "pods", world.clock)
    assert await informer.next(timeout=1) == []
    assert informer.is_absent
    assert not informer.synced
    cluster.has_kind = True
    assert await informer.next() == []
    assert informer.synced
    assert not informer.is_absent
    await informer.close()
