"""`tessera health` as it is printed: what is wrong with nodes, and what their test jobs came to."""

import pytest

from tessera.client.commands.shard.health import HEALTH, HealthRow, explain_broken_test
from tessera.client.views.rendering import local_time
from tessera_schemas.cluster.health import Ailment, HealthCause, KnownAilment
from tessera_schemas.views import NodeTestView, NodeView

ENDED = 1_700_000_000_000
JOB = "a" * 20


def node(name: str = "gpu-7", **test: object) -> NodeView:
    shown = NodeTestView.model_validate({"job_id": JOB, "since_ts": ENDED - 60_000, **test}) if test else None
    return NodeView(name=name, pool="default", ready=True, test=shown)


def cell(shown: NodeView) -> str:
    (column,) = (column for column in HEALTH if column.title == "TESTED")
    return column.value(HealthRow(shown, None))


def test_a_node_that_was_never_tested_shows_nothing() -> None:
    assert cell(node()) == ""


@pytest.mark.parametrize("outcome", ["passed", "failed", "nothing"])
def test_the_last_test_is_shown_with_its_outcome_its_end_and_its_job(outcome: str) -> None:
    shown = cell(node(ended_ts=ENDED, outcome=outcome))
    assert shown == f"{outcome} {local_time(ENDED):%Y-%m-%d %H:%M}, job {JOB}"


def test_a_test_that_runs_is_shown_since_it_was_queued() -> None:
    assert cell(node(outcome="")) == f"under test {local_time(ENDED - 60_000):%Y-%m-%d %H:%M}, job {JOB}"


def test_a_test_that_runs_is_shown_with_how_those_before_it_ended() -> None:
    assert cell(node(outcome="", passes=1, failures=2)).endswith(f"job {JOB}, before: 1 passed, 2 failed")
    assert "before" not in cell(node(ended_ts=ENDED, outcome="passed", passes=1))


@pytest.mark.parametrize(
    ("fence", "state"),
    [("", "drained"), ("asked", "drained, fence asked"), ("failed: no such machine", "drained, fence failed")],
)
def test_the_state_of_a_node_that_is_to_be_turned_off_says_how_far_that_is(fence: str, state: str) -> None:
    known = KnownAilment(source="dcgm", ailment=Ailment(cause=HealthCause.GPU_LOST), since_ts=ENDED)
    sick = node().model_copy(update={"ailments": (known,), "drained": True, "fence": fence})
    assert HealthRow(sick, known).state() == state


def test_a_test_that_failed_wherever_it_was_tried_is_told_to_be_broken() -> None:
    failed = {"ended_ts": ENDED, "outcome": "failed", "failures": 1}
    two = [node("a", **failed), node("b", **failed)]
    assert explain_broken_test(two) == (
        "The test of suspected nodes failed on a, b and passed on none, so that it is run no more: mend `health.test`."
    )
    assert explain_broken_test(two[:1]) is None
    assert explain_broken_test([*two, node("c", ended_ts=ENDED, outcome="nothing", passes=1)]) is None
