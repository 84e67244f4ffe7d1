"""Rules of a job by kind of failure: the first that matches decides, and what others did is nobody's fault unasked."""

from typing import Any

import pytest

from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.domain.work.phases import Phase
from tessera.testkit.checker import check
from tessera.testkit.pays_checker import check_pays
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.config import Policy
from tessera_schemas.facts import BindFailed, RunEnded, RunLost
from tessera_schemas.job import Retry
from tessera_schemas.ledger import Finished, Requeued, Revoked
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.run_ends import RULED, RUN_ENDS
from tests.builders import config_body, node_seen, role, run_absent
from tests.unit.scheduler.committer_world import K1, World, made, started

NODES = ("node-a", "node-b")


def rules(*given: dict[str, Any], **retry: Any) -> Retry:
    return Retry.model_validate_json(Retry.model_validate({"rules": given, "backoff_seconds": 10} | retry).to_bytes())


def world_with(
    *given: dict[str, Any], policy: Policy | None = None, roles: tuple[Any, ...] = (), **retry: Any
) -> World:
    body = {} if policy is None else {"body": config_body(policy=policy)}
    world = World(*(node_seen(name) for name in NODES), **body)
    world.queued(*roles, retry=rules(*given, **retry)).place()
    return world


def end(world: World, exit_code: int = 1, oom: bool = False, rank: int = 0, code: Code = Code.POD_FAILED) -> Revoked:
    """The present run starts, and a pod of it ends so; the record that stops it."""
    run = world.run
    world.commit(made(run.run_id, len(run.placements)))
    world.commit(started(run.run_id))
    reason = Reason(code=code, numbers={"rank": rank, "exit_code": exit_code}, detail="train-0 on node-a")
    fact: Any = RunEnded(kind="run_ended", run_id=run.run_id, reason=reason, rank=rank, oom=oom)
    if code in (Code.NODE_LOST, Code.NODE_SHRUNK):
        fact = RunLost(kind="run_lost", run_id=run.run_id, reason=Reason(code=code), nodes=(run.placements[0].node,))
    (revoked,) = [r for r in world.commit(fact).records if isinstance(r, Revoked)]
    return revoked


def gone(world: World) -> Requeued | Finished:
    """The record by which the job goes on once its run is absent."""
    records = world.commit(run_absent(world.run.run_id)).records
    (record,) = [r for r in records if isinstance(r, Requeued | Finished)]
    return record


def test_an_exit_code_retries_elsewhere_uncounted_and_another_fails_at_once() -> None:
    world = world_with(
        {"exit_codes": [42], "action": "fail"},
        {"exit_codes": [137], "signals": ["SIGABRT"], "action": "retry_elsewhere", "count": False},
    )
    for exit_code in (137, 134):
        node = world.run.placements[0].node
        assert end(world, exit_code).rule == 2
        back = gone(world)
        assert isinstance(back, Requeued)
        assert (back.rule, back.strike, back.trouble, node in world.job.avoid) == (2, False, True, True)
        said = "rule 2 (exit code 137, SIGABRT) says: retry elsewhere, not counted"
        assert back.reason.detail == f"train-0 on node-a; {said}"
        world.place(ms=60_000)
    end(world, 42)
    last = gone(world)
    assert isinstance(last, Finished)
    assert last.reason is not None
    assert (last.phase, last.rule, last.reason.code, last.exit_code) == ("failed", 1, Code.POD_FAILED, 42)
    assert last.reason.detail.endswith("; rule 1 (exit code 42) says: fail")


def test_where_no_rule_matches_the_table_decides_as_ever() -> None:
    world = world_with({"exit_codes": [42], "action": "fail"}, on_failure=True, max_attempts=2)
    assert end(world, 1).rule == 0
    back = gone(world)
    assert isinstance(back, Requeued)
    assert (back.rule, back.strike, back.reason.detail) == (0, True, "train-0 on node-a")
    world.place(ms=60_000)
    end(world, 1)
    last = gone(world)
    assert isinstance(last, Finished)
    assert last.reason is not None
    assert (last.rule, last.reason.code) == (0, Code.ATTEMPTS_EXHAUSTED)


def test_out_of_memory_is_a_cause_of_its_own_and_the_first_rule_that_matches_decides() -> None:
    given = ({"causes": ["OOMKilled"], "action": "fail"}, {"signals": ["SIGKILL"], "action": "retry"})
    assert end(world_with(*given), 137, oom=True).then == "failed"
    killed = end(world_with(*given), 137)
    assert (killed.rule, killed.then, killed.avoid) == (2, "requeue", ())


def test_a_rule_is_about_the_role_whose_pod_failed() -> None:
    roles = (role(name="learner", replicas=1, gpus=1), role(name="actor", replicas=2, gpus=1))
    given = {"roles": ["actor"], "action": "retry", "count": False}
    assert [end(world_with(given, roles=roles), rank=rank).rule for rank in (0, 1, 2)] == [0, 1, 1]


@pytest.mark.parametrize("code", sorted(RULED))
def test_a_rule_without_causes_is_about_the_programs_own_failures_alone(code: str) -> None:
    retry = rules({"action": "fail"})
    own = RUN_ENDS[Code(code)].spends
    assert retry.find_rule(Reason(code=Code(code)), "", oom=False) == int(own)


@pytest.mark.parametrize("code", sorted(RUN_ENDS))
def test_no_rule_is_about_what_somebody_asked_for(code: Code) -> None:
    retry = rules({"causes": ["program", "node", "surroundings", "others"], "action": "fail"})
    asked = code not in RULED and code is not Code.REPLICA_ENDED
    assert (retry.find_rule(Reason(code=code), "", oom=False) == 0) is asked


def test_a_lost_node_fails_the_job_where_its_owner_says_so() -> None:
    world = world_with({"causes": ["node"], "action": "fail"}, max_attempts=9, on_failure=True)
    assert end(world, code=Code.NODE_LOST).then == "failed"
    last = gone(world)
    assert isinstance(last, Finished)
    assert last.reason is not None
    assert (last.phase, last.reason.code, last.rule) == ("failed", Code.NODE_LOST, 1)


def test_a_nodes_failure_that_counts_spends_the_attempts() -> None:
    world = world_with({"causes": ["NodeRestarted"], "action": "retry_elsewhere", "count": True}, max_attempts=2)
    node = world.run.placements[0].node
    end(world, code=Code.NODE_RESTARTED)
    back = gone(world)
    assert isinstance(back, Requeued)
    assert (back.strike, back.trouble, back.not_before - world.ts) == (True, False, 10_000)
    assert (world.job.strikes, node in world.job.avoid) == (1, True)
    world.place(ms=60_000)
    end(world, code=Code.NODE_RESTARTED)
    last = gone(world)
    assert isinstance(last, Finished)
    assert last.reason is not None
    assert last.reason.code is Code.ATTEMPTS_EXHAUSTED


def test_failures_that_are_not_counted_put_the_job_on_hold_after_so_many_in_a_row() -> None:
    world, pauses = world_with({"action": "retry", "count": False}, policy=Policy(requeues_max=4)), []
    for attempt in range(1, 5):
        assert world.job.attempt == attempt
        end(world)
        back = gone(world)
        assert isinstance(back, Requeued)
        pauses.append((back.not_before - world.ts) // 1000)
        assert (world.job.held, world.job.strikes, world.job.avoid) == (attempt == 4, 0, ())
        if not world.job.held:
            world.place(ms=600_000)
    assert pauses == [10, 20, 40, 80]
    assert world.job.reason is not None
    assert world.job.reason.code is Code.HELD_AFTER_REQUEUES
    assert "rule 1 (any failure of the program) says: retry, not counted" in world.job.reason.detail


def test_failures_that_are_not_counted_end_with_the_time_for_trying() -> None:
    world = world_with({"action": "retry", "count": False}, give_up_seconds=30)
    end(world)
    gone(world)
    world.place(ms=60_000)
    assert end(world).then == "failed"
    last = gone(world)
    assert isinstance(last, Finished)
    assert last.reason is not None
    assert last.reason.code is Code.RETRY_TIME_EXHAUSTED


def test_an_image_that_is_not_there_fails_the_job_before_its_program_began() -> None:
    world = world_with({"causes": ["ImageNotFound"], "action": "fail"})
    run = world.run.run_id
    world.commit(made(run))
    reason = Reason(code=Code.IMAGE_NOT_FOUND, detail="train:2")
    world.commit(BindFailed(kind="bind_failed", run_id=run, rank=0, reason=reason))
    assert isinstance(gone(world), Finished)
    ended = world.state.ended.get(K1)
    assert ended is not None
    assert ended.phase is Phase.FAILED


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"causes": ["NodeGone"], "action": "fail"}, "there is no cause NodeGone; known are BindRefused, "),
        ({"signals": ["SIGSTOP"], "action": "fail"}, "there is no signal SIGSTOP; known are SIGHUP, "),
        ({"exit_codes": [0], "action": "fail"}, "greater than or equal to 1"),
        (
            {"exit_codes": [1], "causes": ["NodeLost"], "action": "retry"},
            "exit codes and signals are those of OOMKilled",
        ),
        ({"action": "fail", "count": True}, "count: a job that fails has no attempts to spend"),
        ({"action": "ignore"}, "'retry', 'retry_elsewhere' or 'fail'"),
        ({"exit_codes": list(range(1, 34)), "action": "fail"}, "at most 32"),
    ],
)
def test_what_no_rule_can_say_is_refused_by_name(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="rules") as refused:
        rules(rule)
    assert said in str(refused.value)


def test_more_rules_than_anybody_reads_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 20"):
        rules(*({"exit_codes": [code], "action": "fail"} for code in range(1, 22)))


OF_SIMULATED_JOBS = (
    ({"exit_codes": [1], "action": "fail"}, {"causes": ["PodFailed"], "action": "retry", "count": False}),
    ({"exit_codes": [2], "action": "fail"}, {"causes": ["program"], "action": "retry_elsewhere"}),
    ({"causes": ["node"], "action": "fail"},),
    ({"causes": ["PodDeleted", "PodEvicted", "NodeRestarted"], "action": "retry_elsewhere", "count": True},),
)
ENDS = (
    (Code.POD_FAILED, 1),
    (Code.POD_FAILED, 137),
    (Code.TIME_LIMIT, 137),
    (Code.NODE_LOST, 0),
    (Code.POD_EVICTED, 0),
)


@pytest.mark.parametrize("given", OF_SIMULATED_JOBS)
@pytest.mark.parametrize(("code", "exit_code"), ENDS)
def test_the_checkers_agree_with_every_end_by_a_rule(given: Any, code: Code, exit_code: int) -> None:
    world = world_with(*given, policy=Policy(requeues_max=3), max_attempts=2)
    for _ in range(4):
        end(world, exit_code, code=code)
        gone(world)
        if world.state.ended.get(K1) is not None or world.job.held:
            break
        if world.job.phase is Phase.QUEUED:
            world.place(ms=60_000)
    report = check(world.stored)
    check_rules(report, world.stored)
    check_pays(report, world.stored)
    assert report.violations == []
    assert StateHash().of(load(dump(world.state))) == world.shard.hasher.of(world.state)
