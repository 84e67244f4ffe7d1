"""Nodes on which jobs fail: suspected, tried, kept out with the evidence, and good again by an operator's word."""

from typing import Any

import pytest
from pydantic import ValidationError

from tessera.client.ledger.replay import verify
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.domain.work.phases import Phase
from tessera.engine.explain.explanation import explain
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.cluster.health import HealthCause, HealthPolicy, ReputationPolicy
from tessera_schemas.facts import ConfigProposed, HealthSeen
from tessera_schemas.ledger import Allocated
from tests.builders import SHARD, admitted, config_body, config_proposed, node_seen, run_absent
from tests.unit.scheduler.committer_world import World, ended, made, started
from tests.unit.scheduler.suspected_nodes import DAY_MS, causes, drain, fail_on, whole_node

NODES = 10


def world(nodes: int = NODES, **reputation: Any) -> World:
    health = HealthPolicy(reputation=ReputationPolicy(**reputation))
    return World(*(node_seen(f"node-{at:02}") for at in range(nodes)), body=config_body(health=health))


def test_a_node_is_suspected_after_two_jobs_failed_there_and_kept_out_after_the_third():
    here = world()
    fail_on(here, "a", "node-03")
    assert causes(here.state, "node-03") == []
    fail_on(here, "b", "node-03")
    assert causes(here.state, "node-03") == [HealthCause.SUSPECTED]
    assert here.state.drains.get("node-03") is None
    here.ts += DAY_MS // 4
    third = run_on_suspect(here)
    here.commit(ended(third))
    assert causes(here.state, "node-03") == [HealthCause.FAILURES]
    drained = here.state.drains.get("node-03")
    assert (drained.by, "3 jobs failed there within 6 h" in drained.why) == ("health", True)


def run_on_suspect(here: World) -> str:
    """Fills all other nodes and starts a trial on the suspect; its run's id."""
    for at in range(NODES - 1):
        here.commit(admitted(f"fill-{at}", whole_node("filler", preemptible=False)))
    here.place()
    here.commit(admitted("trial", whole_node("tester", preemptible=True, time_limit_seconds=600)))
    here.place()
    run = f"{job_id(SHARD, 'lab', 'trial')}-1"
    here.commit(made(run), started(run))
    return run


def test_a_suspect_takes_only_what_is_short_and_preemptible_and_finds_no_room_elsewhere():
    here = world()
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    for at in range(NODES):
        here.commit(admitted(f"long-{at}", whole_node("filler", preemptible=True, time_limit_seconds=7200)))
    here.place()
    assert {run.placements[0].node for run in here.state.runs.values()} == {
        name for name, _ in here.state.nodes.items()
    } - {"node-03"}
    here.commit(admitted("firm", whole_node("filler", preemptible=False, time_limit_seconds=600)))
    here.place()
    assert len(here.state.runs) == NODES - 1
    here.commit(admitted("trial", whole_node("filler", preemptible=True, time_limit_seconds=600)))
    message = here.place()
    (start,) = [record for record in message.records if isinstance(record, Allocated)]
    assert start.placements[0].node == "node-03"
    assert {passed.why for passed in start.passed} == {"beside"}


def test_explain_names_the_nodes_on_which_jobs_failed():
    here = world()
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    for at in range(NODES):
        here.commit(admitted(f"long-{at}", whole_node("filler")))
    here.place()
    waiting = next(job for job in here.state.jobs.values() if job.phase is Phase.QUEUED)
    told = explain(here.state, waiting.job_id, here.ts)
    assert told is not None
    assert any("Jobs failed on node-03" in sentence for sentence in told.sentences)


def test_trials_may_be_switched_off():
    here = world(trial_seconds=0)
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    for at in range(NODES):
        here.commit(admitted(f"short-{at}", whole_node("filler", preemptible=True, time_limit_seconds=60)))
    here.place()
    assert len(here.state.runs) == NODES - 1


def test_a_small_pool_keeps_no_suspect_from_use():
    here = world(4)
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    assert causes(here.state, "node-03") == [HealthCause.SUSPECTED]
    for at in range(4):
        here.commit(admitted(f"long-{at}", whole_node("filler")))
    here.place()
    assert len(here.state.runs) == 4


def test_a_suspect_on_which_runs_end_well_is_good_again():
    here = world()
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    run = run_on_suspect(here)
    here.commit(ended(run, reason=None))
    here.commit(run_absent(run))
    for at in range(5):
        key = f"trial-{at}"
        here.commit(admitted(key, whole_node("tester", preemptible=True, time_limit_seconds=600)))
        here.place()
        run = f"{job_id(SHARD, 'lab', key)}-1"
        here.commit(made(run), started(run))
        here.commit(ended(run, reason=None))
        here.commit(run_absent(run))
    assert causes(here.state, "node-03") == []


def test_a_suspicion_passes_with_time():
    here = world()
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    for _ in range(14):
        here.commit(ms=DAY_MS)
    here.commit(node_seen("node-05", gpus=4))
    assert causes(here.state, "node-03") == []


def test_an_operators_word_ends_what_was_counted():
    here = world()
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    run = run_on_suspect(here)
    here.commit(ended(run))
    drain(here, ["node-03"], undo=True)
    here.commit(node_seen("node-05", gpus=4))
    assert causes(here.state, "node-03") == []
    assert here.state.reputations.get("node-03") is None
    assert here.state.drains.get("node-03") is None


def test_without_reputation_in_the_configuration_nothing_is_counted():
    here = World(*(node_seen(f"node-{at:02}") for at in range(NODES)), body=config_body(health=HealthPolicy()))
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    assert (len(here.state.reputations), len(here.state.failure_rates)) == (0, 0)
    assert causes(here.state, "node-03") == []


def test_who_takes_it_out_of_the_configuration_ends_it():
    here = world()
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    assert len(here.state.reputations) == 1
    without = config_body(health=HealthPolicy())
    here.commit(ConfigProposed.model_validate({**config_proposed(body=without).model_dump(), "expected_version": 1}))
    assert len(here.state.reputations) == 0
    assert causes(here.state, "node-03") == []


def test_a_replay_finds_the_same_and_a_snapshot_holds_it():
    here = world()
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    assert verify(here.stored).findings == []
    again = load(dump(here.state))
    assert again.reputations.get("node-03") == here.state.reputations.get("node-03")
    assert again.reckoning == here.state.reckoning is not None
    assert StateHash().of(again) == StateHash().of(here.state)


def test_the_record_says_what_was_counted():
    here = world()
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    (known,) = here.state.health.get("node-03").ailments
    assert known.source == "reputation"
    assert known.ailment.evidence == "2 jobs failed there within 1 h, of 2 runs that ended since"


def test_nobody_else_speaks_in_the_name_of_the_reputation():
    with pytest.raises(ValidationError, match="take another name"):
        HealthSeen(kind="health_seen", node="node-03", source="reputation", ailments=())


def test_the_checker_finds_no_fault_in_it():
    here = world()
    for key in ("a", "b"):
        fail_on(here, key, "node-03")
    report = Report()
    check_rules(report, here.stored)
    assert report.violations == []
