"""A silent or sick node is turned off by a webhook: asked by one key, confirmed, and its gang restarts elsewhere."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.engine.explain.explanation import explain
from tessera.kernel.errors import Transient
from tessera.reclamation.fencing.webhook import PowerAnswer
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.cluster.fencing import Fencing
from tessera_schemas.cluster.health import Ailment, HealthAction, HealthCause, HealthPolicy
from tessera_schemas.cluster.labels import FENCE_ANNOTATION, OUT_OF_SERVICE_TAINT
from tessera_schemas.config import Policy
from tessera_schemas.facts import DrainRequested, HealthReported
from tests.builders import config_proposed
from tests.unit.binder.cluster_world import World, train

GANG = train(replicas=2, gpus=4)
AFTER, TIMEOUT = 20, 60
LOST_SECONDS = 30  # of the world's policy
SAVING, STOP_SECONDS = train(replicas=2, gpus=4, notice=30), 36  # by its notice, its grace and the policy's patience
HEALTH = HealthPolicy(actions={HealthCause.GPU_LOST: HealthAction.FENCE}, out_percent=50)
POLICY = Policy(node_lost_seconds=LOST_SECONDS, stop_patience_seconds=1)


class Switch:
    """What it answers is set by each test; calls are remembered, with the machines that it really turned off."""

    def __init__(self) -> None:
        self.answers: list[PowerAnswer | Exception] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.world: World | None = None

    async def turn_off(self, url: str, key: str, body: dict[str, Any]) -> PowerAnswer:
        self.calls.append((key, body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if answer.state == "off":
            assert self.world is not None
            self.world.core.power_off(body["node"])
        return answer

    @property
    def keys(self) -> set[str]:
        return {key for key, _ in self.calls}


OFF, ASKED, FAILED = PowerAnswer("off", "power: Off"), PowerAnswer("asked"), PowerAnswer("failed", "no such machine")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    switch = Switch()
    async with World(("node-a", "node-b", "node-c"), policy=POLICY, switch=switch) as world:
        switch.world, switch.answers = world, [OFF]
        fencing = Fencing(url="https://power.example", after_seconds=AFTER, timeout_seconds=TIMEOUT, at_most_percent=34)
        body = world.state.config.body.model_copy(update={"fencing": fencing, "health": HEALTH})
        await world.commit(config_proposed(body, world.state.config.version))
        yield world
        report = Report()
        check_rules(report, world.books.stored)
        assert not report.violations
        assert verify(world.books.stored).findings == []


def switch_of(world: World) -> Switch:
    switch = world._switch
    assert isinstance(switch, Switch)
    return switch


async def lose(world: World, seconds: float = 0) -> tuple[str, str]:
    """A job, and the node of it that is silent from here on."""
    job = await world.submit(spec=GANG)
    (node,) = world.nodes_of(job)
    world.core.set_reachable(node, False)
    await world.run(seconds)
    return job, node


def not_fenced(world: World, why: str) -> float | None:
    return world.metrics["reclamation"].registry.get_sample_value("tessera_nodes_not_fenced", {"why": why})


def taints(world: World, node: str) -> list[str]:
    return [taint["key"] for taint in world.core.get("nodes", "", node).object["spec"].get("taints", ())]


def mark(world: World, node: str) -> str | None:
    found: str | None = (
        world.core.get("nodes", "", node).object["metadata"].get("annotations", {}).get(FENCE_ANNOTATION)
    )
    return found


async def test_the_gang_restarts_elsewhere_without_a_person_soon_after_the_configured_time(world: World) -> None:
    job, node = await lose(world, LOST_SECONDS + AFTER - 2)
    assert switch_of(world).calls == []
    assert world.job(job).phase == "evicting"
    await world.run(20)
    assert world.job(job).phase == "running"
    assert node not in world.nodes_of(job)
    ((key, body),) = switch_of(world).calls
    assert body == {"node": node, "provider_id": "", "request": key, "why": world.state.fences.get(node).why}
    assert OUT_OF_SERVICE_TAINT in taints(world, node)


async def test_our_taint_goes_once_the_machine_is_back_from_another_boot(world: World) -> None:
    _, node = await lose(world, LOST_SECONDS + AFTER + 20)
    assert mark(world, node)
    world.core.set_reachable(node, True)
    await world.run(10)
    assert OUT_OF_SERVICE_TAINT not in taints(world, node)
    assert mark(world, node) is None
    assert world.state.fences.get(node).back_ts


async def test_a_machine_that_answers_from_the_boot_that_was_said_to_be_over_keeps_the_taint(world: World) -> None:
    _, node = await lose(world)
    world.core.power_off = lambda _: None  # the webhook says off, and is wrong
    await world.run(LOST_SECONDS + AFTER + 20)
    world.core.set_reachable(node, True)
    await world.run(10)
    assert OUT_OF_SERVICE_TAINT in taints(world, node)


async def test_a_taint_that_a_person_set_is_left_alone(world: World) -> None:
    job, node = await lose(world, LOST_SECONDS + 2)
    world.core.set_out_of_service(node, True)
    await world.run(AFTER + 20)
    assert world.job(job).phase == "running"
    assert (switch_of(world).calls, mark(world, node)) == ([], None)
    world.core.set_reachable(node, True)
    await world.run(10)
    assert OUT_OF_SERVICE_TAINT in taints(world, node)


async def test_a_webhook_that_only_accepts_is_called_again_with_the_same_key_until_it_confirms(world: World) -> None:
    switch_of(world).answers = [ASKED, Transient("HTTP 500"), ASKED, OFF]
    job, _ = await lose(world, LOST_SECONDS + AFTER + 40)
    assert len(switch_of(world).calls) == 4
    assert len(switch_of(world).keys) == 1
    assert world.job(job).phase == "running"


@pytest.mark.parametrize("answer", [ASKED, Transient("TimeoutError")])
async def test_a_fence_that_is_never_confirmed_frees_nothing_and_is_told(world: World, answer: Any) -> None:
    switch_of(world).answers = [answer]
    job, node = await lose(world, LOST_SECONDS + AFTER + TIMEOUT + 10)
    fence = world.state.fences.get(node)
    assert (fence.outcome, world.job(job).phase) == ("failed", "evicting")
    assert "not confirmed within 60 s" in fence.detail
    told = explain(world.state, job, world.books.ts)
    assert told is not None
    assert told.reason is not None
    assert "failed: not confirmed within 60 s" in told.reason.detail
    assert not_fenced(world, "failed") == 1
    calls = len(switch_of(world).calls)
    await world.run(120, turn=1)
    assert len(switch_of(world).calls) == calls
    world.core.set_out_of_service(node, True)  # the person's way stays
    await world.run(20)
    assert world.job(job).phase == "running"
    assert not_fenced(world, "failed") == 0


async def test_a_webhook_that_refuses_ends_the_request_at_once(world: World) -> None:
    switch_of(world).answers = [FAILED]
    _, node = await lose(world, LOST_SECONDS + AFTER + 10)
    assert (world.state.fences.get(node).outcome, len(switch_of(world).calls)) == ("failed", 1)


async def test_a_node_that_answers_again_is_not_turned_off(world: World) -> None:
    switch_of(world).answers = [Transient("HTTP 503")]
    _, node = await lose(world, LOST_SECONDS + AFTER + 6)
    world.core.set_reachable(node, True)
    calls = len(switch_of(world).calls)
    assert calls
    await world.run(60)
    assert len(switch_of(world).calls) == calls
    assert world.state.fences.get(node).outcome == "back"


async def test_nothing_is_turned_off_while_most_nodes_are_silent(world: World) -> None:
    _, node = await lose(world, LOST_SECONDS + 2)
    for other in {"node-a", "node-b", "node-c"} - {node}:
        world.core.set_reachable(other, False)
    await world.run(300, turn=1)
    assert switch_of(world).calls == []


async def test_a_caller_that_begins_anew_goes_on_with_the_key_of_the_ledger(world: World) -> None:
    switch_of(world).answers = [ASKED]
    job, _ = await lose(world, LOST_SECONDS + AFTER + 6)
    await world.stop("reclamation")
    switch_of(world).answers = [OFF]
    world.start_reclamation()
    await world.run(20)
    assert len(switch_of(world).keys) == 1
    assert world.job(job).phase == "running"
    assert len([record for record in world.records if record.kind == "fence_asked"]) == 1


async def test_a_binder_that_begins_anew_sets_the_taint_that_is_still_to_be_set(world: World) -> None:
    job, node = await lose(world, LOST_SECONDS + 2)
    await world.stop("binder")
    await world.run(AFTER + 10)
    assert world.state.fences.get(node).outcome == "off"
    assert OUT_OF_SERVICE_TAINT not in taints(world, node)
    world.start_binder()
    await world.run(20)
    assert world.job(job).phase == "running"


async def test_a_taint_of_ours_that_a_person_took_off_is_not_set_again(world: World) -> None:
    _, node = await lose(world, LOST_SECONDS + AFTER + 20)
    assert OUT_OF_SERVICE_TAINT in taints(world, node)
    world.core.set_out_of_service(node, False)
    await world.run(20)
    assert OUT_OF_SERVICE_TAINT not in taints(world, node)


async def test_an_open_request_ends_when_the_configuration_names_no_webhook_any_more(world: World) -> None:
    switch_of(world).answers = [ASKED]
    _, node = await lose(world, LOST_SECONDS + AFTER + 6)
    body = world.state.config.body.model_copy(update={"fencing": None, "health": None})
    await world.commit(config_proposed(body, world.state.config.version))
    await world.run(10)
    assert world.state.fences.get(node).outcome == "failed"


async def sicken(world: World, seconds: float = 0) -> tuple[str, str]:
    """A job, and the node of it whose driver hangs from here on: its kubelet answers, and no pod there ever stops."""
    job = await world.submit(spec=SAVING)
    (node,) = world.nodes_of(job)
    world.core.set_stuck(node, True)
    lost = Ailment(cause=HealthCause.GPU_LOST, evidence="XID 79")
    await world.commit(HealthReported(kind="health_reported", node=node, source="agent", ailments=(lost,)))
    await world.run(seconds)
    return job, node


async def test_the_gang_of_a_sick_node_that_answers_restarts_elsewhere_once_its_machine_is_off(world: World) -> None:
    job, node = await sicken(world, STOP_SECONDS - 2)
    assert switch_of(world).calls == []
    await world.run(6)
    ((key, body),) = switch_of(world).calls
    assert body == {"node": node, "provider_id": "", "request": key, "why": world.state.fences.get(node).why}
    assert "gpu_lost (agent): XID 79" in body["why"]
    await world.run(10)
    assert (world.job(job).phase, taints(world, node)) == ("evicting", []), "its kubelet has not fallen silent yet"
    world.core.set_reachable(node, False)
    await world.run(20)
    assert world.job(job).phase == "running"
    assert node not in world.nodes_of(job)
    assert len(switch_of(world).keys) == 1
    assert OUT_OF_SERVICE_TAINT in taints(world, node)
    assert not_fenced(world, "failed") == 0


async def test_a_sick_node_that_is_said_to_be_off_and_answers_frees_nothing_and_is_told(world: World) -> None:
    job, node = await sicken(world)
    world.core.power_off = lambda _: None  # the webhook says off, and is wrong
    await world.run(STOP_SECONDS + TIMEOUT + 10)
    fence = world.state.fences.get(node)
    assert (fence.outcome, world.job(job).phase, taints(world, node)) == ("failed", "evicting", [])
    assert "the last call: off" in fence.detail
    assert not_fenced(world, "failed") == 1
    told = explain(world.state, job, world.books.ts)
    assert told is not None
    assert any("The fencing webhook is to turn" in line and "failed" in line for line in told.sentences)


async def test_no_call_is_made_for_a_sick_node_that_an_operator_opens_again(world: World) -> None:
    switch_of(world).answers = [ASKED]
    _, node = await sicken(world, STOP_SECONDS + 3)
    assert switch_of(world).calls
    await world.commit(DrainRequested(kind="drain_requested", node=node, undo=True, why="it is well"))
    calls = len(switch_of(world).calls)
    await world.run(60)
    assert (len(switch_of(world).calls), world.state.fences.get(node).outcome) == (calls, "undone")


async def test_no_call_is_made_for_a_sick_node_while_the_ledger_is_not_read(world: World) -> None:
    await sicken(world, STOP_SECONDS - 8)
    world._ledger_of["reclamation"].is_away = True
    await world.run(60)
    assert switch_of(world).calls == []
