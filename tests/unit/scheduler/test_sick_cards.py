"""A job that starts again on a node takes another GPU than the one that is known to be sick, for as long as it is."""

from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera_schemas.cluster.health import Ailment, HealthCause, HealthPolicy
from tessera_schemas.config import Queue
from tessera_schemas.facts import DrainRequested, HealthSeen, NodeSeen, RunEnded
from tessera_schemas.job import Retry, RetryLadder
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role, run_absent
from tests.published_devices import DRIVER, claim, claiming, class_seen, layout_seen, offering, whole_gpus
from tests.rounds import Rounds

CARDS = tuple(f"GPU-{at}" for at in range(4))
FAILED = Reason(code=Code.POD_FAILED, numbers={"exit_code": 1})
RETRY = Retry(on_failure=True, max_attempts=50, backoff_seconds=0, ladder=RetryLadder(in_place=9))


def node(profile: str = "visible-devices", name: str = "node-0") -> NodeSeen:
    return node_seen(name, 4, device_profile=profile, gpu_uuids=CARDS if profile != "whole" else ())


def park(*nodes: NodeSeen) -> Rounds:
    world = Rounds(nodes=nodes or [node()])
    body = config_body(Queue(name="research"), health=HealthPolicy())
    world.commit(config_proposed(body, world.state.config.version))
    return world


def seen(*cards: int, cause: HealthCause = HealthCause.GPU_THROTTLED) -> HealthSeen:
    ailments = tuple(Ailment(cause=cause, device=CARDS[at]) for at in cards)
    return HealthSeen(kind="health_seen", node="node-0", source="dcgm", ailments=ailments)


def start(world: Rounds, pods: int = 1, pause: int = 0, **amount: Any) -> None:
    retry = RETRY.model_copy(update={"backoff_seconds": pause})
    spec = job_spec(role(replicas=pods, **({"gpus": 1} | amount)), name="one")
    world.commit(admitted("one", spec.model_copy(update={"retry": retry})))
    world.settle()


def cards(world: Rounds) -> list[int]:
    return [device for place in world.run("one").placements for device in place.devices]


def fail(world: Rounds, *between: Any) -> None:
    """The program fails; `between` is said before the run is absent, and the job runs again."""
    run = world.run("one")
    world.commit(RunEnded(kind="run_ended", run_id=run.run_id, rank=0, reason=FAILED))
    world.commit(*between)
    world.commit(run_absent(run.run_id))
    world.commit(ms=60_000)
    world.settle()


def is_sound(world: Rounds) -> bool:
    state = world.state
    again = load(dump(state))
    same = StateHash().of(again) == StateHash().of(state)
    return same and verify(world.stored).findings == []


@pytest.mark.parametrize("amount", [{"gpus": 1}, {"gpus": 0, "gpu_milli": 500}], ids=["whole", "a share"])
def test_a_restart_in_place_takes_another_card_while_its_own_is_sick(amount: dict[str, int]) -> None:
    world = park(node("hami").model_copy(update={"gpu_memory_bytes": 80 << 30}))
    start(world, **amount)
    (first,) = cards(world)
    fail(world)
    assert cards(world) == [first], "nothing is known of it"
    fail(world, seen(first))
    assert first not in cards(world)
    fail(world, seen(0, 1, 2))
    assert cards(world) == [3]
    fail(world, seen(cause=HealthCause.GPU_THROTTLED))
    assert cards(world) == [first], "it is well again"
    assert is_sound(world)


def test_a_gang_gives_up_a_kept_place_on_a_sick_card_and_keeps_the_others() -> None:
    world = park()
    start(world, pods=2)
    assert cards(world) == [0, 1]
    fail(world, seen(0))
    assert 0 not in cards(world)
    assert 1 in cards(world)
    assert is_sound(world)


def test_a_card_that_falls_sick_while_the_place_is_kept_is_not_used() -> None:
    world = park()
    start(world, pods=2, pause=20)
    run = world.run("one")
    world.commit(RunEnded(kind="run_ended", run_id=run.run_id, rank=0, reason=FAILED))
    world.commit(run_absent(run.run_id))
    assert len(world.state.earmarks.get(run.job_id).placements) == 2
    world.commit(seen(1))
    world.commit(ms=60_000)
    world.settle()
    assert 1 not in cards(world)
    assert is_sound(world)


def test_sick_cards_are_used_where_no_others_are_free_and_the_node_is_open() -> None:
    world = park()
    world.commit(seen(0, 1))
    start(world, gpus=3)
    assert cards(world) == [0, 2, 3]


def test_an_operators_word_that_a_node_is_good_holds_for_its_cards() -> None:
    world = park()
    world.commit(seen(0, cause=HealthCause.GPU_FAULT))
    world.commit(DrainRequested(kind="drain_requested", node="node-0", undo=True))
    start(world)
    assert cards(world) == [0]


def test_a_node_that_changes_still_knows_its_sick_cards() -> None:
    world = park()
    world.commit(seen(0))
    world.commit(node().model_copy(update={"labels": {"room": "2"}}))
    start(world)
    assert cards(world) == [1]


def test_where_the_kubelet_picks_the_card_its_slots_say_nothing() -> None:
    world = park(node("whole"))
    world.commit(seen(0))
    start(world)
    assert cards(world) == [0]


def test_a_card_under_which_jobs_failed_is_tried_all_the_same() -> None:
    world = park()
    world.commit(seen(0, cause=HealthCause.SUSPECTED))
    assert world.state.nodes.get("node-0").sick_slots == ()


def test_a_claim_is_never_given_a_device_under_a_taint_when_it_starts_again() -> None:
    """Of published devices (DRA) the driver's taint says it: nobody who does not bear it gets such a device."""
    four = whole_gpus(4)
    world = Rounds(nodes=[layout_seen(four), class_seen(), offering("node-0", four, 4)])
    world.commit(admitted("one", job_spec(claiming(claim()), name="one", retry=RETRY)))
    world.settle()
    run = world.run("one")
    assert [each.device for each in run.placements[0].drawn] == ["gpu-0"]
    world.commit(RunEnded(kind="run_ended", run_id=run.run_id, rank=0, reason=FAILED))
    taint = {"device": f"{DRIVER}/node-0/gpu-0", "key": "xid", "value": "79", "effect": "NoSchedule"}
    world.commit(offering("node-0", four, 4, tainted=(taint,)))
    world.commit(run_absent(run.run_id))
    world.commit(ms=600_000)
    world.settle()
    assert [each.device for each in world.run("one").placements[0].drawn] == ["gpu-1"]
