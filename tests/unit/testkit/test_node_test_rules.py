"""The checker's rules for test jobs of nodes: each ledger that breaks one is found."""

from typing import Any

import pytest

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker.stop_rules import TESTS_MAX, SickNodes
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.base import job_id
from tessera_schemas.cluster.health import REPUTATION, Ailment, HealthCause, KnownAilment
from tests.builders import SHARD, job_spec, placement, role
from tests.unit.scheduler.suspected_nodes import TEMPLATE, body_with_test


def noted(node: str, *causes: HealthCause, evidence: str = "") -> m.HealthNoted:
    known = tuple(
        KnownAilment(source=REPUTATION, ailment=Ailment(cause=c, evidence=evidence), since_ts=1) for c in causes
    )
    return m.HealthNoted(kind="health_noted", node=node, ailments=known)


def proposed(node: str, key: str = "", **changes: Any) -> f.NodeTestProposed:
    spec = job_spec(role().model_copy(update={"template": TEMPLATE}), **{"time_limit_seconds": 900, **changes})
    key = key or f"test-{node}"
    job = job_id(SHARD, "lab", key)
    return f.NodeTestProposed(kind="node_test_proposed", job_id=job, tenant="lab", key=key, spec=spec, node=node)


def allocated(fact: f.NodeTestProposed, node: str) -> m.Allocated:
    placements = (placement(node=node),)
    return m.Allocated(kind="allocated", job_id=fact.job_id, attempt=1, deadline=9, placements=placements)


class World:
    """The nodes of a checker that has folded a configuration with a test."""

    def __init__(self, *suspects: str) -> None:
        self.report = Report()
        self.nodes = SickNodes(self.report)
        self.nodes.policy = body_with_test().health
        for node in suspects:
            self.nodes.noted(noted(node, HealthCause.SUSPECTED))

    @property
    def found(self) -> list[str]:
        return [each.text for each in self.report.violations]


def test_a_test_of_a_suspect_on_its_node_breaks_no_rule():
    here, fact = World("a"), proposed("a")
    here.nodes.test_queued(fact)
    here.nodes.test_placed(allocated(fact, "a"))
    here.nodes.test_ended(m.Finished(kind="finished", job_id=fact.job_id, phase="failed"))
    here.nodes.noted(noted("a", HealthCause.FAILURES, evidence=f"test job {fact.job_id} failed there"))
    assert here.found == []


def test_a_test_of_a_node_that_is_not_suspected_is_found():
    here = World()
    here.nodes.test_queued(proposed("a"))
    assert here.found == ["a is tested, and no suspect"]


@pytest.mark.parametrize("changes", [{"time_limit_seconds": 60}, {"queue": "other"}])
def test_a_test_that_is_not_the_configured_one_is_found(changes: dict[str, Any]):
    here = World("a")
    here.nodes.test_queued(proposed("a", **changes))
    assert here.found == ["a: a test that is not configured"]


def test_a_second_test_of_a_node_at_a_time_is_found():
    here = World("a")
    here.nodes.test_queued(proposed("a", "one"))
    here.nodes.test_queued(proposed("a", "two"))
    assert here.found == ["a is tested beside ['a']"]


def test_more_tests_than_may_be_at_a_time_are_found():
    names = [f"node-{at}" for at in range(TESTS_MAX + 1)]
    here = World(*names)
    for name in names:
        here.nodes.test_queued(proposed(name))
    assert here.found == [f"node-{TESTS_MAX} is tested beside {names[:-1]}"]


def test_a_test_that_stands_on_another_node_is_found():
    here, fact = World("a"), proposed("a")
    here.nodes.test_queued(fact)
    here.nodes.test_placed(allocated(fact, "b"))
    assert here.found == [f"{fact.job_id} tests a, and stands elsewhere"]


def test_a_test_that_starts_once_its_node_is_well_is_found():
    here, fact = World("a"), proposed("a")
    here.nodes.test_queued(fact)
    here.nodes.noted(noted("a"))
    here.nodes.test_placed(allocated(fact, "a"))
    assert here.found == [f"{fact.job_id} starts on a, which is no suspect"]


@pytest.mark.parametrize("phase", ["succeeded", "cancelled", ""])
def test_a_node_that_is_out_for_a_test_which_has_not_failed_is_found(phase: Any):
    here, fact = World("a"), proposed("a")
    here.nodes.test_queued(fact)
    if phase:
        here.nodes.test_ended(m.Finished(kind="finished", job_id=fact.job_id, phase=phase))
    here.nodes.noted(noted("a", HealthCause.FAILURES, evidence=f"test job {fact.job_id} failed there"))
    assert here.found == [f"a: no test ['{fact.job_id}'] of it has failed"]
