"""Test jobs of suspected nodes: who gets one, what its end says of the node, and of the test itself."""

from typing import Any

import pytest
from pydantic import ValidationError

from tessera.client.ledger.replay import verify
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.domain.work.phases import Phase
from tessera.engine.defragmentation.node_tests import TESTS_MAX
from tessera.engine.explain.explanation import explain
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.cluster.health import HealthCause, HealthPolicy, HealthTest, ReputationPolicy
from tessera_schemas.config import Limits, Queue, Tenant
from tessera_schemas.facts import ConfigProposed, RunEnded
from tessera_schemas.ledger import Allocated
from tessera_schemas.reasons import Code, Reason
from tests.builders import SHARD, admitted, config_body, config_proposed, node_seen, run_absent
from tests.unit.scheduler.committer_world import World, cancel, ended, kinds, made
from tests.unit.scheduler.suspected_nodes import (
    DAY_MS,
    FAILED,
    TEMPLATE,
    body_with_test,
    causes,
    drain,
    due,
    end,
    fail_on,
    fail_test,
    job_of_test,
    pass_test,
    start_test,
    suspects,
    whole_node,
)

AGAIN_MS = 21_600_000


def test_a_suspect_whose_gpus_are_free_gets_a_test_job_there_at_once():
    here = suspects("node-03")
    (fact,) = due(here)
    message = here.commit(fact)
    (start,) = [record for record in message.records if isinstance(record, Allocated)]
    assert [place.node for place in start.placements] == ["node-03"]
    assert start.job_id == fact.job_id
    assert "tests node node-03" in fact.notes[0]
    job, (role,) = job_of_test(here, "node-03"), fact.spec.roles
    assert (job.tests, job.preemptible, job.priority_class, job.time_limit_seconds) == ("node-03", True, "low", 900)
    assert (role.resources.gpus, role.template) == (8, TEMPLATE)
    assert due(here) == []


def test_a_node_that_is_not_suspected_gets_none():
    here = suspects()
    fail_on(here, "a", "node-03")
    assert due(here) == []


def test_without_a_test_in_the_configuration_there_is_none():
    here = World(
        *(node_seen(f"node-{at:02}") for at in range(10)),
        body=config_body(health=HealthPolicy(reputation=ReputationPolicy())),
    )
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    assert (causes(here.state, "node-03"), due(here)) == ([HealthCause.SUSPECTED], [])


def test_a_suspect_whose_gpus_are_in_use_waits_for_its_test():
    here = suspects("node-03", nodes=10)
    for at in range(9):
        here.commit(admitted(f"fill-{at}", whole_node("filler", preemptible=False)))
    here.place()
    here.commit(admitted("trial", whole_node("filler", preemptible=True, time_limit_seconds=600)))
    assert len(due(here)) == 1
    here.place()
    assert due(here) == []


def test_a_proposal_that_comes_too_late_is_refused_with_a_reason():
    here = suspects("node-03")
    (fact,) = due(here)
    drain(here, ["node-03"])
    message = here.commit(fact)
    (refused,) = [record for record in message.records if record.kind == "plan_refused"]
    assert refused.reason.detail == "not tested: it is not suspected, or not open"
    assert here.state.jobs.get(fact.job_id) is None


@pytest.mark.parametrize(
    "changes", [{"tenant": "other"}, {"name": "mine"}, {"preemptible": False}, {"priority_class": "urgent"}]
)
def test_a_proposal_of_another_job_than_the_configured_one_is_refused(changes: dict[str, Any]):
    here = suspects("node-03")
    (fact,) = due(here)
    of_spec = {name: value for name, value in changes.items() if name != "tenant"}
    other = fact.model_copy(
        update={"spec": fact.spec.model_copy(update=of_spec), **{k: v for k, v in changes.items() if k == "tenant"}}
    )
    assert "plan_refused" in kinds(here.commit(other))


def test_a_proposal_that_is_said_twice_is_one_job():
    here = suspects("node-03")
    (fact,) = due(here)
    here.commit(fact)
    assert kinds(here.commit(fact)) == []


def test_a_test_that_fails_takes_its_node_out_with_the_job_as_the_reason():
    here = suspects("node-03")
    run = start_test(here, "node-03")
    job = job_of_test(here, "node-03").job_id
    end(here, run, FAILED)
    assert here.state.ended.get(job).phase is Phase.FAILED
    assert causes(here.state, "node-03") == [HealthCause.FAILURES]
    drained = here.state.drains.get("node-03")
    assert drained.by == "health"
    assert f"test job {job} failed there (PodFailed" in drained.why
    assert "rank 3: wrong sum" in drained.why
    assert "2 jobs failed there within" in drained.why
    assert due(here) == []


@pytest.mark.parametrize("code", [Code.TIME_LIMIT, Code.NODE_LOST, Code.POD_REFUSED_BY_NODE])
def test_a_test_that_its_node_breaks_or_that_does_not_end_has_failed(code: Code):
    here = suspects("node-03")
    fail_test(here, "node-03", Reason(code=code))
    assert here.state.node_tests.get("node-03").outcome == "failed"
    assert causes(here.state, "node-03") == [HealthCause.FAILURES]


def test_a_test_that_passes_forgives_half_of_what_spoke_against_the_node():
    here = suspects("node-03")
    before = here.state.reputations.get("node-03").score
    pass_test(here, "node-03")
    after = here.state.reputations.get("node-03")
    assert after.score <= before // 2
    assert [each.weight > 0 for each in after.failed] == [True, True]
    assert causes(here.state, "node-03") == []
    fail_on(here, "third", "node-03")
    assert causes(here.state, "node-03") != []


def test_a_test_whose_image_is_not_there_says_nothing_and_is_tried_again_later():
    here = suspects("node-03")
    (fact,) = due(here)
    here.commit(fact)
    run = job_of_test(here, "node-03").run_id
    here.commit(made(run))
    here.commit(RunEnded(kind="run_ended", run_id=run, reason=Reason(code=Code.IMAGE_NOT_FOUND)), run_absent(run))
    assert here.state.node_tests.get("node-03").outcome == "nothing"
    assert causes(here.state, "node-03") == [HealthCause.SUSPECTED]
    assert due(here) == []
    here.commit(ms=AGAIN_MS)
    assert len(due(here)) == 1


def test_a_test_that_is_cancelled_says_nothing():
    here = suspects("node-03")
    run = start_test(here, "node-03")
    here.commit(cancel(job_of_test(here, "node-03").job_id))
    here.commit(run_absent(run))
    assert here.state.node_tests.get("node-03").outcome == "nothing"
    assert causes(here.state, "node-03") == [HealthCause.SUSPECTED]


def test_a_test_that_is_stopped_for_others_waits_for_its_node_alone():
    here = suspects("node-03")
    run = start_test(here, "node-03")
    here.commit(ended(run, Reason(code=Code.POD_EVICTED)))
    here.commit(run_absent(run))
    job = job_of_test(here, "node-03")
    assert job.attempt == 2
    assert [place.node for place in here.state.runs.get(job.run_id).placements] == ["node-03"]


def test_a_waiting_test_ends_when_its_node_is_well_again():
    here = suspects("node-03")
    run = start_test(here, "node-03")
    job = job_of_test(here, "node-03").job_id
    drain(here, ["node-03"])
    here.commit(ended(run, Reason(code=Code.POD_EVICTED)))
    here.commit(run_absent(run))
    drain(here, ["node-03"], undo=True)
    here.commit(node_seen("node-05", gpus=4))
    assert here.state.ended.get(job).phase is Phase.CANCELLED
    assert here.state.node_tests.get("node-03").outcome == "nothing"


def test_explain_says_what_a_waiting_test_waits_for():
    here = suspects("node-03")
    run = start_test(here, "node-03")
    drain(here, ["node-03"])
    here.commit(ended(run, Reason(code=Code.POD_EVICTED)))
    here.commit(run_absent(run))
    told = explain(here.state, job_of_test(here, "node-03").job_id, here.ts)
    assert told is not None
    assert any("node-03" in sentence for sentence in told.sentences)


def test_an_operators_word_during_a_test_outlasts_its_end():
    here = suspects("node-03")
    run = start_test(here, "node-03")
    drain(here, ["node-03"], undo=True)
    end(here, run, FAILED)
    here.commit(node_seen("node-05", gpus=4))
    assert (causes(here.state, "node-03"), here.state.drains.get("node-03")) == ([], None)


def test_a_test_that_the_limits_of_its_tenant_refuse_is_not_proposed():
    here = suspects("node-03")
    few = Tenant(name="lab", limits=Limits(gpus=4))
    changed = config_proposed(body=body_with_test().model_copy(update={"tenants": (few,)}), expected_version=1)
    here.commit(changed)
    assert due(here) == []


def test_few_nodes_are_tested_at_a_time():
    names = [f"node-{at:02}" for at in range(TESTS_MAX + 1)]
    here = suspects(*names, nodes=60)
    here.commit(*due(here))
    alive = [row.node for row in here.state.node_tests.values() if row.is_alive]
    assert len(alive) == TESTS_MAX
    assert due(here) == []


def test_a_test_that_fails_on_two_nodes_and_passed_on_none_is_broken_and_is_run_no_more():
    here = suspects("node-01", "node-02", "node-03")
    fail_test(here, "node-01")
    fail_test(here, "node-02")
    assert causes(here.state, "node-02") == [HealthCause.SUSPECTED]
    assert due(here) == []


def test_another_test_in_the_configuration_is_believed_anew():
    here = suspects("node-01", "node-02", "node-03")
    fail_test(here, "node-01")
    fail_test(here, "node-02")
    changed = config_proposed(
        body=body_with_test(template=TEMPLATE.model_copy(update={"image": "registry.example/mended:2"}))
    )
    here.commit(ConfigProposed.model_validate({**changed.model_dump(), "expected_version": 1}))
    here.commit(ms=3_600_000)  # the back-off of a node on which three programs failed at once is over
    found = due(here)
    assert {fact.node for fact in found} == {"node-02", "node-03"}
    here.commit(*found)
    assert [here.state.node_tests.get(fact.node).job_id for fact in found] == [fact.job_id for fact in found]


def test_a_test_that_passed_somewhere_is_believed_wherever_it_fails():
    here = suspects("node-01", "node-02", "node-03")
    pass_test(here, "node-01")
    fail_test(here, "node-02")
    fail_test(here, "node-03")
    assert [causes(here.state, node) for node in ("node-01", "node-02", "node-03")] == [
        [],
        [HealthCause.FAILURES],
        [HealthCause.FAILURES],
    ]


def test_nodes_that_tests_take_out_stay_below_the_brake():
    here = suspects("node-01", "node-02", "node-03", nodes=20)
    pass_test(here, "node-01")
    drain(here, ["node-01"], undo=True)
    for node in ("node-02", "node-03"):
        fail_test(here, node)
    out = [name for name, each in here.state.drains.items() if each.by == "health"]
    assert len(out) <= 2


def test_a_cordon_by_a_test_passes_with_time():
    here = suspects("node-03")
    fail_test(here, "node-03")
    for _ in range(8):
        here.commit(ms=DAY_MS)
    here.commit(node_seen("node-05", gpus=4))
    assert causes(here.state, "node-03") == [HealthCause.FAILURES]
    for _ in range(4):
        here.commit(ms=DAY_MS)
    here.commit(node_seen("node-05", gpus=8))
    assert causes(here.state, "node-03") == []


def test_a_replay_finds_the_same_and_a_snapshot_holds_it():
    here = suspects("node-01", "node-02", "node-03")
    pass_test(here, "node-01")
    fail_test(here, "node-02")
    start_test(here, "node-03")
    assert verify(here.stored).findings == []
    again = load(dump(here.state))
    assert [again.node_tests.get(name) for name, _ in here.state.node_tests.items()] == [
        *here.state.node_tests.values()
    ]
    assert StateHash().of(again) == StateHash().of(here.state)


def test_the_checker_finds_no_fault_in_it():
    here = suspects("node-01", "node-02")
    pass_test(here, "node-01")
    fail_test(here, "node-02")
    report = Report()
    check_rules(report, here.stored)
    assert report.violations == []


def test_a_test_without_reputation_or_of_an_unknown_tenant_or_queue_is_refused():
    asked = HealthTest(tenant="lab", queue="research", template=TEMPLATE)
    with pytest.raises(ValidationError, match="needs reputation beside it"):
        HealthPolicy(test=asked)
    for wrong, told in ({"tenant": "nobody"}, "no such tenant"), ({"queue": "nothing"}, "no such queue"):
        with pytest.raises(ValidationError, match=told):
            body_with_test(**wrong)
    of_others = Queue(name="research", tenants=("other",))
    with pytest.raises(ValidationError, match="takes no jobs of lab"):
        config_body(of_others, health=HealthPolicy(reputation=ReputationPolicy(), test=asked))


def test_the_job_of_a_test_has_an_id_of_its_own():
    here = suspects("node-03")
    (fact,) = due(here)
    assert fact.job_id == job_id(SHARD, "lab", fact.key)
