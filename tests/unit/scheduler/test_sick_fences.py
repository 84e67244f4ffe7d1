"""The committer and sick nodes: which is turned off though it answers, when, how often, and how that ends."""

from typing import Any

import pytest

from tessera.domain.work.stops import against_fence_of_sick, stops_by, tell_fence
from tessera_schemas.cluster.fencing import FENCED_WITHIN_MS, Fencing
from tessera_schemas.cluster.health import HealthAction, HealthCause, HealthPolicy
from tessera_schemas.config import ConfigBody
from tessera_schemas.facts import DrainRequested
from tests.builders import config_body, node_seen, run_absent
from tests.unit.scheduler.fenced_park import NODES, WEBHOOK, Park

FENCES = {HealthCause.GPU_LOST: HealthAction.FENCE}
AFTER_MS = WEBHOOK.after_seconds * 1000


def sick_park(**more: Any) -> Park:
    """A park with a sick node, whose run is told to stop."""
    park = Park(health=HealthPolicy(actions=FENCES, out_percent=100), **more)
    park.sicken("node-3")
    return park


def wait(park: Park, node: str = "node-3") -> int:
    """Milliseconds until what runs on the node has had its time to stop."""
    (run,) = park.state.runs_on(node)
    return int(stops_by(park.state, run) - park.ts)


def drain(undo: bool) -> DrainRequested:
    return DrainRequested(kind="drain_requested", node="node-3", undo=undo, why="fans")


def asked_park() -> Park:
    park = sick_park()
    assert park.fence("node-3", sick=True, ms=wait(park)) == ["node-3"]
    return park


def test_a_sick_node_that_answers_is_fenced_once_its_runs_have_had_their_time_to_stop() -> None:
    park = sick_park()
    left = wait(park)
    assert left > AFTER_MS
    assert park.fence("node-3", sick=True, ms=left - 1) == []
    assert "may need 1 s more" in against_fence_of_sick(park.state, "node-3", park.ts)
    assert tell_fence(park.state, "node-3") == "due: its runs have their time to stop"
    assert park.fence("node-3", sick=True, ms=1) == ["node-3"]
    fence = park.state.fences.get("node-3")
    assert (fence.cause, fence.outcome, fence.why) == ("gpu_lost", "", "gpu_lost (dcgm); out for it for 90 s")
    assert tell_fence(park.state, "node-3") == "asked"
    park.check()


def test_a_node_on_which_nothing_runs_any_more_waits_only_for_operators() -> None:
    park = sick_park()
    (run,) = park.state.runs_on("node-3")
    park.commit(run_absent(run.run_id))
    assert park.fence("node-3", sick=True, ms=AFTER_MS - 1001) == []
    assert park.fence("node-3", sick=True, ms=1) == ["node-3"]
    park.check()


def test_that_a_sick_node_is_off_is_believed_once_it_is_silent() -> None:
    park = asked_park()
    (run,) = park.state.runs_on("node-3")
    assert park.answer("node-3") == []
    assert park.state.fences.get("node-3").outcome == ""
    park.commit(node_seen("node-3", ready=False))
    assert park.answer("node-3") == ["off"]
    assert park.state.runs.get(run.run_id) is not None, "nothing is free before its absence is seen"
    park.commit(node_seen("node-3"))
    assert park.state.fences.get("node-3").back_ts
    park.check()


def test_a_node_that_is_back_and_still_sick_is_not_turned_off_again_before_it_was_well() -> None:
    park = asked_park()
    park.commit(node_seen("node-3", ready=False))
    park.answer("node-3")
    park.commit(node_seen("node-3"), ms=2 * FENCED_WITHIN_MS)
    assert park.fence("node-3", sick=True) == []
    assert "was not well since" in against_fence_of_sick(park.state, "node-3", park.ts)
    park.mend("node-3")
    park.sicken("node-3")
    assert park.fence("node-3", sick=True, ms=FENCED_WITHIN_MS) == ["node-3"]
    park.check()


def test_a_fault_that_comes_and_goes_turns_its_node_off_once_an_hour_at_most() -> None:
    park = asked_park()
    park.answer("node-3", "failed")
    park.mend("node-3")
    park.sicken("node-3")
    assert park.fence("node-3", sick=True, ms=FENCED_WITHIN_MS // 2) == []
    assert "within the hour" in against_fence_of_sick(park.state, "node-3", park.ts)
    park.check()


def test_a_fence_that_failed_is_told_until_the_node_is_well_and_bars_no_fence_for_silence() -> None:
    park = asked_park()
    assert park.answer("node-3", "failed") == ["failed"]
    assert tell_fence(park.state, "node-3") == "failed: power: Off"
    park.lose("node-3")
    assert park.fence("node-3") == ["node-3"]
    assert park.state.fences.get("node-3").cause == ""
    park.check()


@pytest.mark.parametrize("undo", [True, False])
def test_an_operator_who_opens_the_node_or_takes_it_over_ends_the_request(undo: bool) -> None:
    park = asked_park()
    assert park.ends(drain(undo)) == ["undone"]
    assert park.fence("node-3", sick=True, ms=FENCED_WITHIN_MS) == []
    park.check()


def test_a_node_that_is_well_again_before_the_call_is_not_turned_off() -> None:
    park = asked_park()
    assert park.mend("node-3") == ["back"]
    assert park.answer("node-3", request="a" * 20) == []
    park.check()


def test_an_open_request_for_a_sick_node_goes_on_while_it_answers_and_ends_when_it_is_gone() -> None:
    park = asked_park()
    assert park.ends(node_seen("node-3", gpus=7)) == []
    assert park.ends(node_seen("node-3", ready=False, gone=True)) == ["gone"]
    park.check()


def test_an_operators_drain_of_a_sick_node_turns_nothing_off() -> None:
    park = Park(health=HealthPolicy(actions=FENCES))
    park.commit(drain(False))
    park.sicken("node-3")
    assert park.fence("node-3", sick=True, ms=FENCED_WITHIN_MS) == []
    park.check()


def test_a_cause_of_another_action_turns_nothing_off() -> None:
    park = Park(health=HealthPolicy(actions=FENCES))
    park.sicken("node-3", cause=HealthCause.DRAIN_ASKED)
    assert park.fence("node-3", sick=True, ms=FENCED_WITHIN_MS) == []
    park.check()


def test_the_parts_of_a_pool_bound_what_is_out_and_what_is_fenced() -> None:
    webhook = Fencing(url="https://power.example/fence", at_most_percent=20)
    park = Park(webhook, HealthPolicy(actions=FENCES, out_percent=30))
    park.sicken(*NODES)
    assert park.fence(*NODES, sick=True, ms=wait(park, "node-0")) == list(NODES[:2])
    assert "held back" in tell_fence(park.state, "node-2")
    assert tell_fence(park.state, "node-3") == "", "it is not even out"
    park.check()


def test_a_fence_without_a_webhook_is_refused_by_field() -> None:
    health = HealthPolicy(actions=FENCES)
    with pytest.raises(ValueError, match=r"health\.actions\.gpu_lost: fence needs `fencing`"):
        config_body(health=health)
    assert isinstance(config_body(health=health, fencing=WEBHOOK), ConfigBody)
