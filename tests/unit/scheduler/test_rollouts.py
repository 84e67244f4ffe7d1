"""Rollouts of services: replicas get another program one after the other, and no step breaks the minimum."""

from typing import Any

import pytest

from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.domain.work.current_spec import with_programs
from tessera.engine.explain.explanation import explain
from tessera.kernel.ledger.generations import needed_by
from tessera.scheduler.decide import arrays
from tessera.testkit.checker import check
from tessera.testkit.pays_checker import check_pays
from tessera.testkit.relations_checker import check_relations
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.facts import HoldRequested, PriorityRequested, RunEnded
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import RolloutRequested
from tessera_schemas.work.spec_changes import Program
from tests.builders import job_spec, role, run_absent
from tests.rounds import Rounds
from tests.unit.scheduler.service_rounds import let_go, records, replica, replicas, scale, submit

READY_MS = 10_000
FAILED = Reason(code=Code.POD_FAILED, numbers={"exit_code": 3})


@pytest.fixture
def rounds() -> Any:
    made = Rounds(nodes={"node-a": 8})
    yield made
    report = check(made.stored)
    check_rules(report, made.stored)
    check_relations(report, made.stored)
    check_pays(report, made.stored)
    assert report.violations == []
    restored = load(dump(made.state))
    assert StateHash().of(restored) == made.shard.hasher.of(made.state)
    assert restored.relations.open == made.state.relations.open


def ask(rounds: Rounds, service: str, image: str = "chat:2", undo: bool = False, **more: Any) -> None:
    """Asks for another image of the replicas, or for the one before."""
    programs = {} if undo else {"worker": Program(image=image)}
    array = rounds.state.jobs.get(service).array
    wish = {"job_id": service, "tenant": "lab", "revision": array.revision, "programs": programs, "undo": undo, **more}
    rounds.commit(RolloutRequested.model_validate({"kind": "rollout_requested", **wish}))


def step(rounds: Rounds, ms: int = 0) -> None:
    """The cluster does what is asked of it, with a pause before."""
    rounds.ts += ms
    for _ in range(3):
        rounds.settle()
        let_go(rounds)
    rounds.settle()


def roll_on(rounds: Rounds, steps: int = 12) -> None:
    for _ in range(steps):
        step(rounds, READY_MS)


def revisions(rounds: Rounds, service: str) -> dict[str, int]:
    """Number of replicas that work, of the service's revision and of others."""
    new = rounds.state.jobs.get(service).spec_at
    found = {"new": 0, "old": 0}
    for job in rounds.state.jobs.values():
        run = rounds.state.runs.get(job.run_id)
        if job.task_of == service and run is not None and run.started and not run.stopping:
            found["new" if job.spec_at == new else "old"] += 1
    return found


def outcomes(rounds: Rounds) -> list[tuple[str, int]]:
    return [(record.state, record.revision) for record in records(rounds, "service_rollout")]


def test_a_new_replica_runs_before_an_old_one_is_stopped_until_all_are_new(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=2, max_replicas=3, replicas=3)
    ask(rounds, service)
    step(rounds)
    assert revisions(rounds, service) == {"new": 1, "old": 3}
    step(rounds, READY_MS)
    assert revisions(rounds, service) == {"new": 1, "old": 2} or revisions(rounds, service) == {"new": 2, "old": 2}
    roll_on(rounds)
    assert revisions(rounds, service) == {"new": 3, "old": 0}
    assert outcomes(rounds) == [("begun", 2), ("done", 2)]
    assert sum(phase != "parked" for phase in replicas(rounds, service).values()) == 3
    stops = records(rounds, "revoked")
    assert [stop.reason.code for stop in stops] == [Code.NEW_REVISION] * 3


def test_no_old_replica_is_stopped_before_the_new_one_has_run_for_its_time(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=1)
    ask(rounds, service, min_ready_seconds=60)
    step(rounds, READY_MS)
    assert revisions(rounds, service) == {"new": 1, "old": 1}
    step(rounds, 49_000)
    assert revisions(rounds, service) == {"new": 1, "old": 1}
    step(rounds, READY_MS)
    assert revisions(rounds, service) == {"new": 1, "old": 0}


def test_without_room_for_one_more_it_waits_and_the_replica_says_why(rounds: Rounds) -> None:
    service = submit(rounds, gpus=4, min_replicas=1, max_replicas=2, replicas=2)
    ask(rounds, service)
    roll_on(rounds, 3)
    assert revisions(rounds, service) == {"new": 0, "old": 2}
    waits = replica(rounds, service, 2)
    assert waits.reason.code is Code.NO_FIT
    assert outcomes(rounds) == [("begun", 2)]


def test_one_that_may_be_missing_makes_the_room_itself(rounds: Rounds) -> None:
    service = submit(rounds, gpus=4, min_replicas=1, max_replicas=2, replicas=2)
    ask(rounds, service, max_surge=0, max_unavailable=1)
    roll_on(rounds)
    assert revisions(rounds, service) == {"new": 2, "old": 0}
    assert len(replicas(rounds, service)) == 2
    assert outcomes(rounds)[-1] == ("done", 2)


def test_the_minimum_holds_whatever_may_be_missing(rounds: Rounds) -> None:
    service = submit(rounds, gpus=4, min_replicas=2, max_replicas=2)
    ask(rounds, service, max_surge=1, max_unavailable=2)
    roll_on(rounds, 3)
    assert revisions(rounds, service) == {"new": 0, "old": 2}


def fail_new(rounds: Rounds, service: str, times: int) -> None:
    """The replica of the new revision that runs fails so often."""
    for _ in range(times):
        new = rounds.state.jobs.get(service).spec_at
        job = next(job for job in rounds.state.jobs.values() if job.task_of and job.spec_at == new and not job.held)
        rounds.commit(RunEnded(kind="run_ended", run_id=job.run_id, reason=FAILED, own=True))
        rounds.commit(run_absent(job.run_id))
        rounds.ts = max(rounds.ts, rounds.state.jobs.get(job.job_id).not_before)
        rounds.settle()


def test_three_failures_in_a_row_stop_it_and_the_old_replicas_go_on(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=3, replicas=2)
    ask(rounds, service)
    step(rounds)
    fail_new(rounds, service, 3)
    roll_on(rounds, 2)
    assert revisions(rounds, service) == {"new": 0, "old": 2}
    assert replicas(rounds, service) == {0: "running", 1: "running", 2: "parked"}
    stopped = records(rounds, "service_rollout")[-1]
    assert (stopped.state, stopped.reason.code) == ("stopped", Code.ROLLOUT_STOPPED)
    assert stopped.reason.numbers == {"revision": 2, "failures_in_a_row": 3}
    assert "PodFailed" in stopped.reason.detail
    scale(rounds, service, 3)
    assert revisions(rounds, service) == {"new": 0, "old": 3}


def test_what_was_stopped_for_a_revision_that_fails_comes_back_with_the_programs_before(rounds: Rounds) -> None:
    service = submit(rounds, gpus=4, min_replicas=1, max_replicas=2, replicas=2)
    ask(rounds, service, max_surge=0, max_unavailable=1)
    step(rounds)
    fail_new(rounds, service, 3)
    roll_on(rounds, 2)
    assert revisions(rounds, service) == {"new": 0, "old": 2}


def test_another_update_follows_one_that_stopped(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=2, replicas=2)
    ask(rounds, service)
    step(rounds)
    fail_new(rounds, service, 3)
    ask(rounds, service, image="chat:3")
    roll_on(rounds)
    assert revisions(rounds, service) == {"new": 2, "old": 0}
    assert outcomes(rounds) == [("begun", 2), ("stopped", 2), ("begun", 3), ("done", 3)]


def test_the_service_says_that_its_rollout_goes_on_and_why_it_stopped(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=2)
    ask(rounds, service)
    step(rounds)
    rolls = explain(rounds.state, service, rounds.ts)
    assert rolls is not None
    assert rolls.reason is not None
    assert (rolls.reason.code, rolls.reason.numbers["revision"]) == (Code.SERVICE_REPLICAS, 2)
    assert "one after the other" in rolls.reason.detail
    fail_new(rounds, service, 3)
    stopped = explain(rounds.state, service, rounds.ts)
    assert stopped is not None
    assert stopped.reason is not None
    assert stopped.reason.code is Code.ROLLOUT_STOPPED


@pytest.mark.parametrize(
    ("code", "counts"),
    [(Code.IMAGE_NOT_FOUND, True), (Code.POD_FAILED, True), (Code.NODE_RESTARTED, False), (Code.POD_EVICTED, False)],
)
def test_only_ends_that_speak_against_the_program_or_its_image_count(rounds: Rounds, code: Code, counts: bool) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=2)
    ask(rounds, service)
    step(rounds)
    run = replica(rounds, service, 1).run_id
    rounds.commit(RunEnded(kind="run_ended", run_id=run, reason=Reason(code=code), own=code is Code.POD_FAILED))
    rounds.commit(run_absent(run))
    assert rounds.state.jobs.get(service).array.rollout.failures == counts


def test_the_surge_takes_its_room_from_training_of_a_lower_class_which_comes_back(rounds: Rounds) -> None:
    rounds.submit("train", gpus=4)
    service = submit(rounds, gpus=4, min_replicas=1, max_replicas=1)
    assert rounds.running("train")
    rounds.commit(PriorityRequested(kind="priority_requested", job_id=service, tenant="lab", priority_class="high"))
    ask(rounds, service)
    step(rounds)
    assert rounds.evicted() == [["train"]]
    assert revisions(rounds, service) == {"new": 1, "old": 1}
    roll_on(rounds)
    assert revisions(rounds, service) == {"new": 1, "old": 0}
    assert rounds.running("train")


def test_a_service_at_no_replicas_has_its_next_one_with_the_new_programs(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=0, max_replicas=1, replicas=1)
    scale(rounds, service, 0)
    ask(rounds, service)
    step(rounds)
    assert outcomes(rounds) == [("begun", 2), ("done", 2)]
    scale(rounds, service, 1)
    assert revisions(rounds, service) == {"new": 1, "old": 0}


def test_an_undo_gives_the_programs_before_and_leaves_those_that_have_them_alone(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=3, replicas=3)
    old = {at: replica(rounds, service, at).run_id for at in range(3)}
    ask(rounds, service)
    step(rounds)
    step(rounds, READY_MS)
    ask(rounds, service, undo=True)
    roll_on(rounds)
    assert rounds.state.jobs.get(service).spec_at == ()
    assert revisions(rounds, service) == {"new": 3, "old": 0}
    kept = [at for at in old if replica(rounds, service, at).run_id == old[at]]
    assert len(kept) == 2
    ask(rounds, service, undo=True)
    roll_on(rounds)
    assert outcomes(rounds)[-1] == ("done", 4)
    n, _ = rounds.state.jobs.get(service).spec_at
    assert n in needed_by(rounds.state)


def test_a_replica_that_waits_gets_the_new_programs_without_a_surge(rounds: Rounds) -> None:
    service = submit(rounds, gpus=4, min_replicas=0, max_replicas=3, replicas=3)
    assert replica(rounds, service, 2).phase.value == "queued"
    ask(rounds, service)
    step(rounds)
    scale(rounds, service, 1)
    roll_on(rounds)
    assert revisions(rounds, service) == {"new": 1, "old": 0}


def test_a_service_that_is_scaled_meanwhile_ends_with_what_it_wants(rounds: Rounds) -> None:
    service = submit(rounds, gpus=1, min_replicas=1, max_replicas=5, replicas=4)
    ask(rounds, service, max_surge=2)
    step(rounds)
    scale(rounds, service, 2)
    roll_on(rounds, 2)
    scale(rounds, service, 5)
    roll_on(rounds)
    assert revisions(rounds, service) == {"new": 5, "old": 0}


def test_a_held_service_does_not_roll_until_it_is_released(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=2)
    rounds.commit(HoldRequested(kind="hold_requested", job_id=service, tenant="lab"))
    ask(rounds, service)
    roll_on(rounds, 2)
    assert revisions(rounds, service) == {"new": 0, "old": 1}
    rounds.commit(HoldRequested(kind="hold_requested", job_id=service, tenant="lab", undo=True))
    roll_on(rounds)
    assert revisions(rounds, service) == {"new": 1, "old": 0}


@pytest.mark.parametrize(
    "wrong",
    [{"tenant": "other"}, {"revision": 7}, {"programs": {"head": Program(image="chat:2")}}],
    ids=["another tenant", "another revision came between", "a role that is not there"],
)
def test_what_is_asked_wrongly_begins_none(rounds: Rounds, wrong: dict[str, Any]) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=2)
    ask(rounds, service, **wrong)
    assert not outcomes(rounds)


def test_a_service_without_a_rollout_has_nothing_to_undo(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=2)
    ask(rounds, service, undo=True)
    assert not outcomes(rounds)


def test_programs_take_the_place_of_those_of_the_spec() -> None:
    spec = job_spec(role(gpus=1))
    template = with_programs(spec, {"worker": Program(image="chat:2", env={"A": "b"})}).roles[0].template
    assert (template.image, template.env) == ("chat:2", {"A": "b"})
    assert template.volumes == spec.roles[0].template.volumes


def test_the_checker_counts_what_a_rollout_leaves_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(nodes={"node-a": 8})
    service = submit(rounds, min_replicas=1, max_replicas=2, replicas=2)
    monkeypatch.setattr(arrays, "_works", lambda *_: True)  # as if each new replica worked at once
    ask(rounds, service)
    step(rounds)
    report = check(rounds.stored)
    check_rules(report, rounds.stored)
    assert {violation.invariant for violation in report.violations} == {"rollout"}
