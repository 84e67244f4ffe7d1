"""Spare nodes of a pool: kept empty, used by jobs under whose run a node broke, and made up for."""

from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.folding.fold import apply_record
from tessera.domain.health.spares import find_spares
from tessera.domain.storing.fast import replace
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.work.phases import Phase
from tessera.engine.explain.explanation import explain
from tessera.engine.placement.free_slots import slots
from tessera.engine.preemption.plans import Plan, proposal
from tessera.testkit.checker import check
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera.testkit.rules_checker.backoff_rules import SpareRules
from tessera_schemas.cluster.health import Ailment, HealthCause, HealthPolicy
from tessera_schemas.cluster.pools import Pool
from tessera_schemas.facts import ConfigProposed, DrainRequested, HealthSeen, RunEnded, RunLost
from tessera_schemas.ledger import LEDGER_MESSAGE, PlanRefused, Requeued, TakenFact
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import SPARES_FROM
from tessera_schemas.work.run_ends import DISPLACING, Whose, end_of
from tests.builders import config_proposed, node_seen, run_absent
from tests.rounds import Rounds, share

LOST = Reason(code=Code.NODE_LOST)


def park(spare_nodes: int = 1, nodes: int = 4, **more: Any) -> Rounds:
    """Nodes of 8 GPUs, of which so many are spares."""
    rounds = Rounds(share("research", 8 * nodes, parent=None), nodes={f"node-{name}": 8 for name in "abcdef"[:nodes]})
    keep_spares(rounds, spare_nodes, **more)
    return rounds


def keep_spares(rounds: Rounds, spare_nodes: int, **more: Any) -> None:
    pools = (Pool(name="default", spare_nodes=spare_nodes),)
    body = rounds.state.config.body.model_copy(update={"pools": pools, **more})
    rounds.commit(config_proposed(body, rounds.state.config.version))


def spares(rounds: Rounds) -> set[str]:
    return set(find_spares(rounds.state, "default"))


def nodes_of(rounds: Rounds, key: str) -> list[str]:
    return [place.node for place in rounds.run(key).placements]


def lose(rounds: Rounds, key: str, reason: Reason = LOST, node: str = "") -> str:
    """A node of the job's run is lost, and nothing of the run is left; its name."""
    run = rounds.run(key)
    name = node or run.placements[0].node
    rounds.commit(node_seen(name, 8, ready=False))
    rounds.commit(RunLost(kind="run_lost", run_id=run.run_id, reason=reason, nodes=(name,)))
    rounds.commit(run_absent(run.run_id))
    return name


def judge(rounds: Rounds) -> None:
    report = check(rounds.stored)
    check_rules(report, rounds.stored)
    assert report.violations == []
    assert verify(rounds.stored).findings == []


def fill(rounds: Rounds, jobs: int, **more: Any) -> None:
    for at in range(jobs):
        rounds.submit(f"fill-{at}", gpus=8, **more)
    rounds.settle()


# -- which nodes are spares


def test_of_empty_nodes_those_with_the_most_gpus_are_spares_then_by_name():
    rounds = park(2)
    rounds.commit(node_seen("node-z", 16), node_seen("cpu-a", 0))
    assert spares(rounds) == {"node-z", "node-a"}


def test_without_spare_nodes_in_the_configuration_there_are_none():
    rounds = park(0)
    fill(rounds, 4)
    assert spares(rounds) == set()
    assert len(rounds.state.runs) == 4


@pytest.mark.parametrize("what", ["cordoned", "drained", "sick", "others", "gone", "in use"])
def test_a_node_that_is_not_empty_healthy_and_open_is_no_spare(what: str):
    rounds = park(1, health=HealthPolicy())
    assert spares(rounds) == {"node-a"}
    if what == "drained":
        rounds.commit(DrainRequested(kind="drain_requested", node="node-a"))
    elif what == "sick":
        seen = (Ailment(cause=HealthCause.GPU_THROTTLED),)
        rounds.commit(HealthSeen(kind="health_seen", node="node-a", source="dcgm", ailments=seen))
    elif what == "in use":
        keep_spares(rounds, 0)
        for at in range(4):
            rounds.submit(f"one-{at}", exclusive=True, gpus=8)
        rounds.settle()
        keep_spares(rounds, 1)
        assert spares(rounds) == set()
        return
    else:
        more = {"cordoned": {"ready": False, "cordoned": True}, "gone": {"gone": True}}.get(what, {})
        others = {"others": {"gpus": 1, "pods": 1}} if what == "others" else {}
        rounds.commit(node_seen("node-a", 8, **more, **others))
    assert spares(rounds) == {"node-b"}


def test_pods_of_others_without_gpus_as_of_daemon_sets_keep_no_node_from_being_a_spare():
    rounds = park(1)
    rounds.commit(node_seen("node-a", 8, others={"cpu_milli": 500, "pods": 4}))
    assert spares(rounds) == {"node-a"}


# -- nothing new starts there


def test_nothing_new_starts_on_a_spare():
    rounds = park(1)
    fill(rounds, 4)
    assert spares(rounds) == {"node-a"}
    assert {run.placements[0].node for run in rounds.state.runs.values()} == {"node-b", "node-c", "node-d"}
    waits = next(
        job for job in rounds.state.jobs.values() if job.job_id not in {r.job_id for r in rounds.state.runs.values()}
    )
    assert waits.reason.code is Code.NO_FIT
    judge(rounds)


def test_a_preemptor_evicts_rather_than_take_a_spare():
    rounds = park(1)
    fill(rounds, 3, priority="low")
    rounds.submit("urgent", gpus=8, priority="high")
    rounds.settle()
    assert rounds.evicted() != []
    assert nodes_of(rounds, "urgent") != ["node-a"]
    judge(rounds)


def test_an_elastic_run_does_not_grow_onto_a_spare():
    rounds = park(1, nodes=2)
    rounds.submit("wide", gpus=8, max_replicas=2)
    rounds.settle()
    assert nodes_of(rounds, "wide") == ["node-b"]
    assert rounds.run("wide").extra == ()
    judge(rounds)


def test_slots_count_no_spare_and_call_it_reserved():
    rounds = park(1, nodes=2)
    found = slots(rounds.state, "default")
    assert {size.gpus: size.slots for size in found.sizes}[8] == 1
    assert {cause.value: milli for cause, milli in found.stranded if milli} == {"reserved": 8000, "none": 8000}


@pytest.mark.parametrize(("pods", "said"), [(1, "It would find room with"), (8, "No room for it is on")])
def test_explain_names_the_spares(pods: int, said: str):
    rounds = park(1)
    fill(rounds, 3)
    rounds.submit("one", gpus=8, pods=pods)
    rounds.settle()
    found = explain(rounds.state, rounds.job("one").job_id, rounds.ts)
    told = next(sentence for sentence in found.sentences if "kept as a spare of pool default" in sentence)
    assert told.startswith(f"{said} node-a, ")
    assert "pools.spare_nodes" in told


def test_explain_tells_a_job_that_lost_a_node_of_spares_that_are_too_few():
    rounds = park(1)
    rounds.submit("gang", gpus=8, pods=3)
    rounds.settle()
    run = rounds.run("gang")
    lost = [place.node for place in run.placements]
    rounds.commit(*(node_seen(name, 8, ready=False) for name in lost))
    rounds.commit(RunLost(kind="run_lost", run_id=run.run_id, reason=LOST, nodes=tuple(lost)))
    rounds.commit(run_absent(run.run_id))
    rounds.settle()
    found = explain(rounds.state, rounds.job("gang").job_id, rounds.ts)
    assert any(sentence.startswith("It may start on node-a, kept as a spare") for sentence in found.sentences)


# -- who uses them


def test_a_gang_that_lost_a_node_starts_at_once_on_a_spare_beside_its_kept_place():
    rounds = park(1)
    rounds.submit("gang", gpus=8, pods=2)
    rounds.settle()
    fill(rounds, 3)
    lost, kept = nodes_of(rounds, "gang")
    lose(rounds, "gang")
    rounds.round(plans=False)
    assert set(nodes_of(rounds, "gang")) == {kept, "node-a"}
    assert rounds.plans == []
    assert lost not in nodes_of(rounds, "gang")
    judge(rounds)


@pytest.mark.parametrize("code", [Code.NODE_LOST, Code.NODE_SHRUNK])
def test_a_single_pod_whose_node_was_lost_starts_on_a_spare_before_all_who_wait(code: Code):
    rounds = park(1)
    rounds.submit("late", gpus=8)
    fill(rounds, 4, priority="high")
    rounds.settle()
    lose(rounds, "late" if rounds.run("late") else "fill-0", Reason(code=code))
    rounds.settle()
    assert {run.placements[0].node for run in rounds.state.runs.values()} >= {"node-a"}
    judge(rounds)


def test_a_gang_takes_spares_and_other_free_nodes_together():
    rounds = park(1, nodes=5)
    rounds.submit("gang", gpus=8, pods=2)
    rounds.settle()
    rounds.submit("busy", gpus=8)
    rounds.settle()
    a, b = nodes_of(rounds, "gang")
    run = rounds.run("gang")
    rounds.commit(node_seen(a, 8, ready=False), node_seen(b, 8, ready=False))
    rounds.commit(RunLost(kind="run_lost", run_id=run.run_id, reason=LOST, nodes=(a, b)))
    rounds.commit(run_absent(run.run_id))
    rounds.settle()
    assert set(nodes_of(rounds, "gang")) == {f"node-{name}" for name in "abcde"} - {a, b} - set(
        nodes_of(rounds, "busy")
    )
    judge(rounds)


def test_who_finds_room_elsewhere_leaves_the_spares_alone():
    rounds = park(1)
    rounds.submit("one", gpus=8)
    rounds.settle()
    lose(rounds, "one")
    rounds.settle()
    assert nodes_of(rounds, "one") != ["node-a"]
    assert spares(rounds) == {"node-a"}


def test_a_job_whose_program_failed_gets_no_spare():
    rounds = park(1)
    rounds.submit("one", gpus=8, retry={"on_failure": True, "max_attempts": 9, "backoff_seconds": 0})
    rounds.settle()
    fill(rounds, 3)
    (node,) = nodes_of(rounds, "one")
    run = rounds.run("one").run_id
    rounds.commit(node_seen(node, 8, ready=False, cordoned=True))
    failed = Reason(code=Code.POD_FAILED, numbers={"exit_code": 1})
    rounds.commit(RunEnded(kind="run_ended", run_id=run, reason=failed, own=True))
    rounds.commit(run_absent(run))
    rounds.settle()
    assert rounds.run("one") is None
    assert spares(rounds) == {"node-a"}
    judge(rounds)


def test_after_a_spare_is_used_the_next_empty_node_becomes_one():
    rounds = park(1)
    fill(rounds, 4)
    waits = next(key for key in (f"fill-{at}" for at in range(4)) if rounds.run(key) is None)
    lost = next(key for key in (f"fill-{at}" for at in range(4)) if rounds.run(key) is not None)
    lose(rounds, lost)
    rounds.settle()
    assert (nodes_of(rounds, lost), spares(rounds)) == (["node-a"], set())
    done = next(key for key in (f"fill-{at}" for at in range(4)) if rounds.run(key) is not None and key != lost)
    (freed,) = nodes_of(rounds, done)
    rounds.finish(done)
    rounds.settle()
    assert spares(rounds) == {freed}
    assert rounds.run(waits) is None
    judge(rounds)


def test_the_right_to_a_spare_goes_with_the_next_allocation():
    rounds = park(1)
    fill(rounds, 3)
    lose(rounds, "fill-0")
    rounds.settle()
    assert nodes_of(rounds, "fill-0") == ["node-a"]
    assert not rounds.job("fill-0").displaced


def test_a_restored_state_has_the_same_spares_and_knows_who_may_use_them():
    rounds = park(1)
    rounds.submit("gang", gpus=8, pods=2)
    rounds.settle()
    keep_spares(rounds, 0)
    fill(rounds, 2)
    lose(rounds, "gang")
    restored = load(dump(rounds.state))
    assert [job.name for job in restored.displaced_jobs()] == ["gang"]
    assert restored.index.displaced == rounds.state.index.displaced
    keep_spares(rounds, 1)
    assert find_spares(load(dump(rounds.state)), "default") == find_spares(rounds.state, "default")


def test_in_a_ledger_of_an_earlier_format_no_job_is_displaced():
    rounds = park(1)
    fill(rounds, 3)
    rounds.state.format = SPARES_FROM - 1
    run = rounds.run("fill-0").run_id
    rounds.state.put_job(replace(rounds.job("fill-0"), phase=Phase.EVICTING))
    rounds.state.drop_run(rounds.run("fill-0"))
    record = Requeued(kind="requeued", job_id=rounds.job("fill-0").job_id, not_before=0, reason=LOST)
    apply_record(rounds.state, record, ())
    assert run
    assert not rounds.job("fill-0").displaced


@pytest.mark.parametrize("code", sorted(DISPLACING))
def test_jobs_are_displaced_by_ends_that_are_a_nodes(code: Code):
    assert end_of(code).whose is Whose.NODE


def test_a_plan_that_names_a_node_which_is_a_spare_by_now_is_refused():
    rounds = park(0)
    fill(rounds, 4, priority="low")
    rounds.submit("urgent", gpus=8, priority="high")
    found = rounds.plan("urgent")
    assert isinstance(found, Plan)
    (node,) = [place.node for place in found.placements]
    keep_spares(rounds, 1)
    freed = next(run for run in rounds.state.runs.values() if run.placements[0].node == node)
    rounds.commit(RunEnded(kind="run_ended", run_id=freed.run_id))
    rounds.commit(run_absent(freed.run_id))
    assert spares(rounds) == {node}
    message = rounds.commit(proposal(rounds.state, replace(found, victims=()), rounds.ts))
    (refused,) = [record for record in message.records if isinstance(record, PlanRefused)]
    assert refused.reason.code is Code.PLAN_DOES_NOT_FIT
    assert "kept as a spare" in refused.reason.detail


def test_the_checker_finds_a_start_on_a_spare():
    rounds = park(0)
    fill(rounds, 1)
    report = Report()
    rules = SpareRules(report)
    for stored in rounds.stored:
        message = LEDGER_MESSAGE.validate_json(stored)
        facts = tuple(_with_spares(taken) for taken in message.facts)
        rules.take(message.model_copy(update={"facts": facts}))
    (found,) = report.violations
    assert "is a spare of default" in str(found)


def _with_spares(taken: TakenFact) -> TakenFact:
    if not isinstance(taken.fact, ConfigProposed):
        return taken
    body = taken.fact.body.model_copy(update={"pools": (Pool(name="default", spare_nodes=4),)})
    return taken.model_copy(update={"fact": taken.fact.model_copy(update={"body": body})})
