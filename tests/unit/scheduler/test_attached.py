"""Jobs attached to another one's run, by the real committer, and judged by the checkers."""

from typing import Any

import pytest

from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.explain.explanation import explain
from tessera.testkit.checker import check
from tessera.testkit.relations_checker import check_relations
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.config import Level, Queue
from tessera_schemas.facts import CancelRequested, HoldRequested, RequeueRequested, RunEnded
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.reasons import Code
from tessera_schemas.work.arrays import Attachment
from tests.builders import SHARD, config_body, config_proposed, node_seen, run_absent
from tests.rounds import Rounds

RACK, ZONE = "example.com/rack", "example.com/zone"


def on_racks(racks: dict[str, str], gpus: int = 4) -> Rounds:
    """Nodes by rack, in a zone each with the letter before the rack's number; levels zone and rack."""
    nodes = [node_seen(node, gpus, labels={RACK: rack, ZONE: rack[0]}) for node, rack in racks.items()]
    made = Rounds(nodes=nodes)
    levels = (Level(name="zone", label=ZONE), Level(name="rack", label=RACK))
    body = config_body(Queue(name="research"), policy=made.state.config.body.policy, topology=levels)
    made.commit(config_proposed(body, made.state.config.version))
    return made


def attach(rounds: Rounds, key: str, to: str = "learner", gpus: int = 1, pods: int = 1, **said: Any) -> str:
    target = Attachment.model_validate({"job": job_id(SHARD, "lab", to), **said})
    return rounds.submit(key, gpus=gpus, pods=pods, attach_to=target)


def phase(rounds: Rounds, job: str) -> str:
    return (rounds.state.jobs.get(job) or rounds.state.ended.get(job)).phase.value


def nodes_of(rounds: Rounds, key: str) -> list[str]:
    return sorted({place.node for place in rounds.run(key).places})


def records(rounds: Rounds, kind: str) -> list[Any]:
    read = [LEDGER_MESSAGE.validate_json(stored) for stored in rounds.stored]
    return [record for message in read for record in message.records if record.kind == kind]


@pytest.fixture
def judged() -> Any:
    made: list[Rounds] = []
    yield made.append
    for rounds in made:
        report = check(rounds.stored)
        check_rules(report, rounds.stored)
        check_relations(report, rounds.stored)
        assert report.violations == []
        assert report.examined["attach"]
        assert StateHash().of(load(dump(rounds.state))) == rounds.shard.hasher.of(rounds.state)
        assert load(dump(rounds.state)).relations.due.keys() >= rounds.state.relations.due.keys()


def test_it_waits_by_name_until_the_other_job_runs_and_then_starts(judged: Any) -> None:
    rounds = Rounds(nodes={"node-a": 8})
    judged(rounds)
    learner = rounds.submit("learner", gpus=4)
    rollout = attach(rounds, "rollout")
    rounds.commit()
    job = rounds.job("rollout")
    assert (job.reason.code, job.reason.detail) == (Code.TARGET_NOT_RUNNING, learner)
    said = explain(rounds.state, rollout, rounds.ts)
    assert said is not None
    assert said.reason is not None
    assert (said.reason.code, said.reason.field) == (Code.TARGET_NOT_RUNNING, "attach_to")
    rounds.settle()
    assert rounds.running("learner", "rollout")
    assert rounds.state.runs.get(f"{rollout}-1").allocated_ts >= rounds.job("learner").started_ts


@pytest.mark.parametrize("well", [True, False])
def test_it_is_cancelled_with_the_name_of_the_job_that_has_ended(judged: Any, well: bool) -> None:
    rounds = Rounds(nodes={"node-a": 8})
    judged(rounds)
    learner = rounds.submit("learner", gpus=4)
    running, waiting = attach(rounds, "running"), attach(rounds, "waiting", gpus=8)
    rounds.settle()
    assert rounds.running("running")
    assert phase(rounds, waiting) == "queued"
    if well:
        rounds.finish("learner")
    else:
        rounds.commit(CancelRequested(kind="cancel_requested", job_id=learner, tenant="lab"))
    rounds.settle()
    for job in (running, waiting):
        ended = rounds.state.ended.get(job)
        assert (ended.phase.value, ended.reason.code) == ("cancelled", Code.TARGET_ENDED)
        assert learner in ended.reason.detail
        assert "learner" in ended.reason.detail
    assert [r.then for r in records(rounds, "revoked") if r.run_id == f"{running}-1"][-1] == "cancelled"


def test_it_stops_with_the_other_run_and_starts_beside_the_next_one(judged: Any) -> None:
    rounds = Rounds(nodes={"node-a": 8})
    judged(rounds)
    learner = rounds.submit("learner", gpus=4)
    rollout = attach(rounds, "rollout")
    rounds.settle()
    rounds.commit(RequeueRequested(kind="requeue_requested", job_id=learner, tenant="lab"))
    rounds.commit(HoldRequested(kind="hold_requested", job_id=learner, tenant="lab"))
    rounds.settle()
    assert (phase(rounds, learner), phase(rounds, rollout)) == ("queued", "queued")
    assert rounds.job("rollout").reason.code is Code.TARGET_NOT_RUNNING
    assert rounds.job("rollout").strikes == 0
    rounds.commit(HoldRequested(kind="hold_requested", job_id=learner, tenant="lab", undo=True))
    rounds.settle()
    assert rounds.running("learner", "rollout")
    assert rounds.job("rollout").attempt == 2


def test_on_detach_cancel_ends_it_with_the_other_run(judged: Any) -> None:
    rounds = Rounds(nodes={"node-a": 8})
    judged(rounds)
    learner = rounds.submit("learner", gpus=4)
    rollout = attach(rounds, "rollout", on_detach="cancel")
    rounds.settle()
    rounds.commit(RequeueRequested(kind="requeue_requested", job_id=learner, tenant="lab"))
    rounds.settle()
    assert rounds.running("learner")
    ended = rounds.state.ended.get(rollout)
    assert (ended.phase.value, ended.reason.code) == ("cancelled", Code.TARGET_NOT_RUNNING)


def test_it_stands_near_the_other_run_where_there_is_room_and_elsewhere_where_there_is_none(judged: Any) -> None:
    rounds = on_racks({"node-a": "x1", "node-b": "x1", "node-c": "x2", "node-d": "y1"})
    judged(rounds)
    rounds.submit("fill", gpus=3, pods=4)
    rounds.settle()
    rounds.finish("fill")
    rounds.submit("learner", gpus=4)
    rounds.settle()
    (there,) = nodes_of(rounds, "learner")
    near = {"node-a": "node-b", "node-b": "node-a", "node-c": "node-c", "node-d": "node-d"}[there]
    for key in ("one", "two", "three"):
        attach(rounds, key, gpus=4)
        rounds.settle()
    if near != there:
        assert nodes_of(rounds, "one") == [near]
        assert nodes_of(rounds, "two") == ["node-c"]
    assert rounds.running("one", "two", "three")


def test_required_keeps_it_in_the_narrowest_domain_of_each_run_in_turn(judged: Any) -> None:
    rounds = on_racks({"node-a": "x1", "node-b": "x2", "node-c": "y1", "node-d": "y1"})
    judged(rounds)
    learner = rounds.submit("learner", gpus=4)
    rounds.settle()
    (first,) = nodes_of(rounds, "learner")
    rollouts = attach(rounds, "rollout", near="required", gpus=4)
    rounds.settle()
    racks = {"node-a": "x1", "node-b": "x2", "node-c": "y1", "node-d": "y1"}
    alone = racks[first] != "y1"
    assert rounds.running("rollout") is not alone
    terms = rounds.job("rollout").near[0].terms
    assert [(term.key, term.values) for term in terms] == [(RACK, (racks[first],))]
    said = explain(rounds.state, rollouts, rounds.ts)
    assert said is not None
    # In its next run the learner stands on another node, and the rollouts follow it there.
    rounds.commit(node_seen(first, 4, ready=False, labels={RACK: racks[first], ZONE: racks[first][0]}))
    rounds.commit(RequeueRequested(kind="requeue_requested", job_id=learner, tenant="lab"))
    rounds.settle()
    (then,) = nodes_of(rounds, "learner")
    assert then != first
    assert rounds.job("rollout").near[0].terms[0].values == (racks[then],)
    affinity = rounds.job("rollout").roles[0].need.affinity
    assert affinity == ((RACK, "In", (racks[then],)),)


def test_what_it_is_attached_to_is_a_live_job_of_the_tenant() -> None:
    rounds = Rounds(nodes={"node-a": 8})
    ended = rounds.submit("ended")
    rounds.settle()
    rounds.finish("ended")
    refused = []
    for said in ({"job": job_id(SHARD, "lab", "nobody")}, {"job": ended}):
        attach(rounds, "rollout", **said)
        refused.append(records(rounds, "job_turned_away")[-1].reasons[0])
    assert [(why.code, why.field) for why in refused] == [
        (Code.NO_SUCH_JOB, "attach_to.job"),
        (Code.ALREADY_ENDED, "attach_to.job"),
    ]
    rounds.submit("learner", gpus=4)
    attach(rounds, "near", near="required")
    assert records(rounds, "job_turned_away")[-1].reasons[0].code is Code.NO_SUCH_TOPOLOGY_LEVEL


def test_the_last_end_of_its_run_is_its_own_where_that_came_first(judged: Any) -> None:
    rounds = Rounds(nodes={"node-a": 8})
    judged(rounds)
    rounds.submit("learner", gpus=4)
    rollout = attach(rounds, "rollout")
    rounds.settle()
    run = rounds.run("rollout").run_id
    rounds.commit(RunEnded(kind="run_ended", run_id=run))
    rounds.finish("learner")
    rounds.commit(run_absent(run))
    assert phase(rounds, rollout) == "succeeded"
