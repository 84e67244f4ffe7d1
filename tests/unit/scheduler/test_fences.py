"""The committer and lost nodes: which is turned off, how often, and how that ends."""

from typing import Any

import pytest

from tessera.domain.work.stops import against_fence, waiting_on
from tessera_schemas.cluster.fencing import FENCED_WITHIN_MS, Fencing
from tests.builders import node_seen
from tests.unit.scheduler.fenced_park import NODES, Park, lost_park


def test_a_lost_node_on_which_a_stopped_run_waits_is_fenced_once() -> None:
    park = lost_park()
    assert park.fence("node-3") == ["node-3"]
    assert park.fence("node-3") == []
    fence = park.state.fences.get("node-3")
    assert (fence.outcome, fence.pool, fence.by) == ("", "default", "")
    assert "silent for 90 s" in fence.why
    park.check()


def test_a_confirmed_fence_stands_until_the_node_is_back_and_then_the_next_loss_has_a_key_of_its_own() -> None:
    park = lost_park()
    park.fence("node-3")
    first = park.state.fences.get("node-3").request
    assert park.answer("node-3") == ["off"]
    assert park.answer("node-3") == [], "a second answer to the same request"
    assert park.fence("node-3") == []
    park.commit(node_seen("node-3"))
    park.lose("node-3")
    assert park.answer("node-3", request=first) == []
    assert waiting_on(park.state, "node-3")
    assert park.fence("node-3") == ["node-3"]
    assert park.state.fences.get("node-3").request != first
    assert park.answer("node-3", request=first) == [], "an answer to the request before"
    park.check()


def test_a_fence_that_failed_is_not_asked_again_by_itself() -> None:
    park = lost_park()
    park.fence("node-3")
    assert park.answer("node-3", "failed") == ["failed"]
    assert park.fence("node-3") == []
    assert "failed" in against_fence(park.state, "node-3")
    park.check()


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        (node_seen("node-3"), "back"),
        (node_seen("node-3", ready=False, cordoned=True), "back"),
        (node_seen("node-3", ready=False, gone=True), "gone"),
    ],
)
def test_an_open_fence_ends_when_the_node_answers_or_is_gone(seen: Any, outcome: str) -> None:
    park = lost_park()
    park.fence("node-3")
    assert park.ends(seen) == [outcome]
    assert park.answer("node-3") == []
    park.check()


def test_what_answers_or_is_in_nobodys_way_is_not_fenced() -> None:
    park = Park()
    assert park.fence("node-3", "nowhere") == []
    park.commit(node_seen("node-3", ready=False))
    assert park.fence("node-3") == [], "its run is not told to stop"
    park.check()


def test_without_a_webhook_nothing_is_fenced() -> None:
    park = lost_park(fencing=None)
    assert park.fence("node-3") == []
    assert len(park.state.fences) == 0


@pytest.mark.parametrize(("percent", "most"), [(1, 1), (10, 1), (30, 3), (100, 10)])
def test_no_more_of_a_pool_is_fenced_within_an_hour_than_is_configured(percent: int, most: int) -> None:
    park = Park(Fencing(url="https://power.example/fence", at_most_percent=percent))
    park.lose(*NODES)
    assert park.fence(*NODES) == list(NODES[:most])
    for name in NODES[:most]:
        park.answer(name)
    assert park.fence(*NODES) == []
    if most < len(NODES):
        assert "within the hour" in against_fence(park.state, "node-9")
        park.commit(*(node_seen(name) for name in NODES[:most]), ms=FENCED_WITHIN_MS)
        assert park.fence(*NODES) == list(NODES[most : 2 * most])
        assert len(park.state.fences) == most, "those of the hour before are forgotten"
    park.check()
