"""Binder and books at nodes of each device profile: pods run on their own devices, and what changes waits."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tessera.binder.decide import hami
from tessera.client.ledger.replay import verify
from tessera.engine.explain.explanation import explain
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas.config import Pool
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.reasons import Code
from tests.builders import admitted, config_body, config_proposed
from tests.unit.binder.cluster_world import World, train

PROFILE = "tessera.io/device-profile"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(nodes=()) as world:
        yield world
    report = check(world.books.stored)
    check_rules(report, world.books.stored)
    assert report.violations == []
    assert verify(world.books.stored).findings == []


def has(world: World, name: str = "node-a", **row: Any) -> None:
    size = {"cpu": "64", "memory": "512Gi", **row}
    world.core.create("nodes", "", node_object(NodeRow(name=name, **size), name))


def note(world: World, **notes: str | None) -> None:
    """Annotations of node-a; `profile`, `uuids` and `lock` are their short names."""
    names = {"profile": PROFILE, "uuids": "tessera.io/gpu-uuids", "lock": hami.LOCK_ANNOTATION}
    said = {names.get(key, key): value for key, value in notes.items()}
    world.core.patch("nodes", "", "node-a", {"metadata": {"annotations": said}})


def say_by_annotation(world: World, **notes: str) -> None:
    """What the label said, so that it can be changed."""
    world.core.patch("nodes", "", "node-a", {"metadata": {"labels": {PROFILE: None}}})
    note(world, **notes)


def requester(seconds: float = 600, replicas: int = 1, **asked: Any) -> JobSpec:
    spec = train(seconds=seconds, replicas=replicas)
    role = spec.roles[0].model_dump()
    role["resources"] |= {"gpus": 0, **asked}
    return spec.model_copy(update={"roles": (Role.model_validate(role),)})


def cards(world: World) -> list[str]:
    """Which each running pod sees."""
    running = [pod for pod in world.pods() if pod["status"]["phase"] == "Running"]
    env = [e for pod in running for e in pod["spec"]["containers"][0]["env"]]
    return sorted(e["value"] for e in env if e["name"] == "NVIDIA_VISIBLE_DEVICES")


def trouble(world: World) -> Code | None:
    node = world.state.nodes.get("node-a")
    return node.trouble.code if node.trouble else None


async def test_shares_and_whole_cards_lie_on_one_node_whose_cards_are_named(world: World) -> None:
    has(world, gpus=3, device_profile="visible-devices")
    await world.run(2)
    for key, asked in {"a": {"gpu_milli": 600}, "b": {"gpu_milli": 400}, "c": {"gpus": 2}}.items():
        await world.submit(key, requester(**asked))
    first, second, third = world.state.nodes.get("node-a").gpu_uuids
    assert cards(world) == [first, first, f"{second},{third}"]


@pytest.mark.parametrize(("asked", "said"), [({"gpu_milli": 600}, True), ({"gpus": 1}, False)], ids=["share", "whole"])
async def test_explain_says_the_isolation_of_shares(world: World, asked: dict[str, int], said: bool) -> None:
    has(world, gpus=1, device_profile="visible-devices")
    await world.run(2)
    job_id = await world.submit("a", requester(**asked))
    found = explain(world.state, job_id, world.state.ts)
    assert found is not None
    assert ("Isolation of its shares (visible-devices): none." in found.sentences) == said


async def test_a_replica_is_a_share_of_its_size_and_nobody_gets_it_as_a_whole_gpu(world: World) -> None:
    has(world, gpus=2, replicas=4, device_profile="mps")
    await world.run(2)
    shares = [await world.submit(str(number), requester(gpu_milli=250)) for number in range(8)]
    assert [world.job(job_id).phase for job_id in shares] == ["running"] * 8
    (container,) = world.pods(world.current(shares[0]).run_id)[0]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    found = explain(world.state, shares[0], world.state.ts)
    assert found is not None
    assert "Isolation of its shares (mps): compute." in found.sentences
    asked = {
        "nodes_short_of_gpu": {"gpu_milli": 250},
        "nodes_of_other_share_size": {"gpu_milli": 200},
        "nodes_of_other_device_profile": {"gpus": 1},
    }
    for number, asks in asked.items():
        waits = admitted(number, requester(**asks))
        await world.commit(waits)
        await world.run(5)
        reason = world.job(waits.job_id).reason
        assert reason is not None
        assert (reason.code, reason.numbers.get(number)) == (Code.NO_FIT, 1)


async def test_a_job_gets_no_less_isolation_than_it_asks_for_and_hears_what_there_is(world: World) -> None:
    has(world, "node-a", gpus=1, replicas=4, device_profile="time-slicing")
    has(world, "node-b", gpus=1, device_profile="plugin")
    await world.run(2)
    waits = admitted("waits", requester(gpu_milli=250, isolation="memory"))
    await world.commit(waits)
    await world.run(5)
    reason = world.job(waits.job_id).reason
    assert reason is not None
    assert (reason.code, reason.numbers["nodes_of_less_isolation"]) == (Code.NO_FIT, 2)
    assert "isolation of shares: none (2 nodes)" in reason.detail
    has(world, "node-c", gpus=1, replicas=4, device_profile="mps")
    await world.run(15)
    assert world.job(waits.job_id).phase == "running"
    whole = await world.submit("whole", requester(gpus=1, isolation="hardware"))
    assert [place.node for place in world.current(whole).places] == ["node-b"]


async def test_instances_are_given_as_long_as_there_are_any_and_come_back(world: World) -> None:
    has(world, device_profile="mig", mig={"1g.10gb": 2}, gpu_memory="80Gi")
    await world.run(2)
    for key in "ab":
        await world.submit(key, requester(mig_profile="1g.10gb", seconds=20))
    waits = admitted("c", requester(mig_profile="1g.10gb"))
    await world.commit(waits)
    await world.run(5)
    reason = world.job(waits.job_id).reason
    assert reason is not None
    assert (reason.code, reason.numbers["instances_made"]) == (Code.NO_FIT, 2)
    await world.run(30)
    assert world.job(waits.job_id).phase == "running"
    (container,) = world.pods(world.current(waits.job_id).run_id)[0]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"


async def test_a_node_whose_cards_are_not_named_is_not_guessed_at(world: World) -> None:
    has(world, gpus=1, device_profile="visible-devices")
    note(world, uuids=None)
    await world.run(2)
    waits = admitted("a", requester(gpus=1))
    await world.commit(waits)
    await world.run(5)
    assert (world.job(waits.job_id).phase, trouble(world)) == ("queued", Code.DEVICE_UNKNOWN)
    note(world, uuids="GPU-1")
    await world.run(15)
    assert (world.job(waits.job_id).phase, cards(world)) == ("running", ["GPU-1"])


async def test_a_pool_that_contradicts_its_node_gets_nothing_from_it_until_it_does_not(world: World) -> None:
    has(world, gpus=1)
    await world.run(2)
    body = config_body(pools=(Pool(name="default", device_profile="whole"),))
    await world.commit(config_proposed(body, 1))
    await world.run(15)
    waits = admitted("a", train())
    await world.commit(waits)
    await world.run(5)
    assert (world.job(waits.job_id).phase, trouble(world)) == ("queued", Code.DEVICE_CONFLICT)
    await world.commit(config_proposed(config_body(), 2))
    await world.run(15)
    assert world.job(waits.job_id).phase == "running"


@pytest.mark.parametrize(
    "change",
    [{"profile": "shares"}, {"uuids": "GPU-1,GPU-2"}, {"uuids": "GPU-2"}],
    ids=["another profile", "other cards", "fewer cards"],
)
async def test_devices_that_change_under_a_run_serve_nobody_new_until_it_has_left(
    world: World, change: dict[str, str]
) -> None:
    has(world, gpus=3, device_profile="visible-devices")
    say_by_annotation(world, uuids="GPU-2,GPU-1,GPU-3", profile="visible-devices")
    await world.run(2)
    held = await world.submit("a", requester(gpu_milli=500, seconds=60))
    note(world, **change)
    await world.run(15)
    waits = admitted("b", requester(gpu_milli=500))
    await world.commit(waits)
    await world.run(15)
    assert (world.job(held).phase, world.job(waits.job_id).phase) == ("running", "queued")
    assert trouble(world) is Code.DEVICES_CHANGED
    changes = len([kind for kind in world.kinds() if kind == "node_changed"])
    await world.run(15)
    assert len([kind for kind in world.kinds() if kind == "node_changed"]) == changes
    await world.run(30)
    assert world.job(held).phase == "succeeded"
    assert trouble(world) is not Code.DEVICES_CHANGED


class Plugin:
    """HAMi's device plugin: it serves the pod that the lock names once that is bound, then gives the lock back."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.served: list[str] = []
        self.bound_at_once = 0

    async def work(self) -> None:
        while True:
            await self._world.clock.sleep(1)
            found = self._world.core.get("nodes", "", "node-a")
            lock = (found.meta.get("annotations") or {}).get(hami.LOCK_ANNOTATION, "")
            waiting = [p for p in self._world.pods() if self._phase(p) == "allocating"]
            self.bound_at_once = max(self.bound_at_once, len(waiting))
            for pod in waiting:
                if lock.endswith(f",lab,{pod['metadata']['name']}"):
                    self.served.append(pod["metadata"]["annotations"]["hami.io/vgpu-devices-to-allocate"])
                    done = {"metadata": {"annotations": {"hami.io/bind-phase": "success"}}}
                    self._world.core.patch("pods", "lab", pod["metadata"]["name"], done)
                    note(self._world, lock=None)

    def _phase(self, pod: Any) -> str:
        return str((pod["metadata"].get("annotations") or {}).get("hami.io/bind-phase", ""))


async def test_hamis_plugin_gets_one_pod_at_a_time_and_each_gets_its_card(world: World) -> None:
    has(world, gpus=20, pods=64)
    register = '[{"id":"GPU-b","devmem":1000,"health":true},{"id":"GPU-a","devmem":1000,"health":true}]'
    say_by_annotation(world, profile="hami", **{hami.NODE_ANNOTATION: register})
    plugin = Plugin(world)
    task = asyncio.create_task(plugin.work())
    await world.run(2)
    fact = admitted("a", requester(replicas=4, gpu_milli=500))
    await world.commit(fact)
    await world.run(60)
    task.cancel()
    assert world.job(fact.job_id).phase == "running"
    share = "NVIDIA,500,50:;"
    assert sorted(plugin.served) == [f"GPU-a,{share}", f"GPU-a,{share}", f"GPU-b,{share}", f"GPU-b,{share}"]
    assert plugin.bound_at_once == 1


async def test_a_lock_that_another_pod_left_behind_is_waited_for_until_it_expires(world: World) -> None:
    has(world, gpus=1)
    register = '[{"id":"GPU-a","devmem":1000,"health":true}]'
    now = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC)
    say_by_annotation(world, profile="hami", lock=hami.lock_for("lab", "y", now), **{hami.NODE_ANNOTATION: register})
    world.core.create("pods", "lab", {"metadata": {"name": "y"}, "spec": {"containers": [{"name": "main"}]}})
    await world.run(2)
    fact = admitted("a", requester(gpu_milli=500))
    await world.commit(fact)
    await world.run(120)
    assert world.job(fact.job_id).phase == "binding"
    await world.run(240)
    assert world.job(fact.job_id).phase == "running"


async def test_an_old_lock_of_a_pod_that_is_gone_is_taken_over(world: World) -> None:
    has(world, gpus=1)
    register = '[{"id":"GPU-a","devmem":1000,"health":true}]'
    old = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC) - timedelta(minutes=1)
    say_by_annotation(
        world,
        profile="hami",
        lock=hami.lock_for("lab", "y", old),
        **{hami.NODE_ANNOTATION: register},
    )
    await world.run(2)
    await world.submit("a", requester(gpu_milli=500))
