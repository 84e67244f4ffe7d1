"""The warning of a session's pod becomes a public event once, and is taken back once; nothing else looks like it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.binder.decide.ends import warns_of_idleness
from tessera.client.commands.sessions.idle_watch import WARNING_FILE
from tessera.engine.explain.explanation import explain
from tessera_local.cluster.machines.pod_statuses import with_condition
from tessera_schemas.base import Json
from tessera_schemas.job import Session
from tessera_schemas.work.pod_template import IDLE_WARNING_FILE
from tests.unit.binder.cluster_world import World, train

NOTEBOOK = Session(kind="notebook", idle_seconds=7200, warning_seconds=600)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as world:
        yield world


def show(world: World, job: str, ready: bool) -> None:
    """As its kubelet does once the pod's probe says another thing than before."""
    (pod,) = world.pods(world.job(job).run_id)
    status = with_condition(pod["status"], "Ready", str(ready), world.clock.now_ms())
    status["containerStatuses"] = [{**one, "ready": ready} for one in status["containerStatuses"]]
    world.core.patch("pods", "lab", pod["metadata"]["name"], {"status": status}, "status")


def said(world: World) -> list[bool]:
    return [fact.again for fact in world.said("session_unused")]


async def test_a_warning_is_told_once_and_so_is_its_end_also_by_a_binder_that_remembers_nothing(world: World) -> None:
    job = await world.submit(spec=train(session=NOTEBOOK))
    for ready, expected in ((True, []), (False, [False]), (True, [False, True]), (False, [False, True, False])):
        show(world, job, ready)
        await world.run(5)
        assert said(world) == expected
        await world.stop("binder")
        world.start_binder()
        await world.run(5)
        assert said(world) == expected
    assert world.kinds().count("session_warned") == 3
    left = world.current(job).unused_until - world.state.ts
    assert 0 < left <= 600_000
    found = explain(world.state, job, world.state.ts)
    assert any("it is paused in about" in sentence for sentence in found.sentences), found


@pytest.mark.parametrize("kind", [None, Session(kind="notebook", idle_seconds=0), Session(kind="workspace")])
async def test_work_that_is_not_watched_warns_of_nothing(world: World, kind: Session | None) -> None:
    job = await world.submit(spec=train(session=kind))
    for ready in (True, False):
        show(world, job, ready)
        await world.run(5)
    assert said(world) == []


def pod(ready_since: str, ready: str = "False", container: bool = False, **more: Any) -> Json:
    running = {"ready": container, "state": {"running": {"startedAt": "2026-11-30T10:00:00Z"}}}
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": ready_since}]
    status: Json = {"phase": "Running", "conditions": conditions, "containerStatuses": [running]}
    return {"metadata": {"labels": {"tessera.io/session": "notebook"}}, "status": status | more}


def test_a_pod_that_begins_and_one_whose_node_is_silent_warn_of_nothing() -> None:
    assert warns_of_idleness(pod("2026-11-30T12:00:00Z"))
    assert not warns_of_idleness(pod("2026-11-30T09:59:58Z")), "its first probe has not run"
    assert not warns_of_idleness(pod("2026-11-30T12:00:00Z", container=True)), "its node is not ready"
    assert not warns_of_idleness(pod("2026-11-30T12:00:00Z", ready="True"))
    assert not warns_of_idleness(pod("2026-11-30T12:00:00Z", phase="Succeeded"))
    assert not warns_of_idleness({"metadata": {}, "status": pod("2026-11-30T12:00:00Z")["status"]})


def test_the_probe_reads_what_the_watch_writes() -> None:
    assert IDLE_WARNING_FILE == WARNING_FILE
