"""Runs that have not started: what moves their deadline, what their revoke names, and namespaces that refuse pods."""

from itertools import pairwise
from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.explain.explanation import explain
from tessera_schemas.config import Policy
from tessera_schemas.facts import BindFailed, RunEnded, StartDelayed
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, config_body, job_spec, node_seen, role, run_absent
from tests.unit.scheduler.committer_world import K1, RUN, World, kinds, made, started

STUCK = Reason(code=Code.START_TIMEOUT, numbers={"rank": 0}, detail="p on node-a: no container of it was created")
UNPULLED = Reason(
    code=Code.IMAGE_NOT_PULLED, numbers={"rank": 0}, detail="p on node-a: image train:2: ImagePullBackOff"
)
REFUSED = Reason(code=Code.BIND_REFUSED, numbers={"status": 403}, detail="Forbidden: exceeded quota")
SECONDS = 80


def delayed(run: str = RUN, **more: Any) -> StartDelayed:
    return StartDelayed(kind="start_delayed", run_id=run, **more)


@pytest.fixture
def binding() -> World:
    return World(body=config_body(policy=Policy(start_timeout_seconds=SECONDS))).binding()


def test_the_clock_of_a_run_stands_still_while_its_nodes_work_on_it(binding: World) -> None:
    before = binding.run.deadline
    assert binding.say(delayed(works=True), ms=20_000) == ["delayed"]
    assert binding.run.deadline == binding.ts + SECONDS * 1000 > before
    assert binding.say(ms=before - binding.ts + 1) == []
    assert binding.say(ms=binding.run.deadline - binding.ts) == ["revoked"]


def test_the_deadline_moves_no_more_often_than_once_in_an_eighth_of_the_time(binding: World) -> None:
    assert binding.say(delayed(works=True), ms=20_000) == ["delayed"]
    assert binding.say(delayed(works=True), ms=9_000) == []
    assert binding.say(delayed(works=True), ms=1_000) == ["delayed"]


def test_a_job_may_say_how_long_its_start_takes() -> None:
    world = World().binding(start_timeout_seconds=5)
    assert world.run.deadline == world.run.allocated_ts + 5_000
    world.say(delayed(works=True))
    assert world.run.deadline == world.ts + 5_000


def test_why_a_run_has_not_started_is_told_while_it_waits_and_once_it_is_revoked(binding: World) -> None:
    assert binding.say(delayed(reason=UNPULLED, nodes=("node-a",))) == ["delayed"]
    assert binding.say(delayed(reason=UNPULLED, nodes=("node-a",))) == []
    assert binding.job.reason == UNPULLED
    binding.say(ms=SECONDS * 1000)
    revoked = binding.run.revoked
    assert revoked is not None
    assert (revoked.code, revoked.detail, revoked.numbers["seconds"]) == (UNPULLED.code, UNPULLED.detail, SECONDS)
    assert binding.job.avoid == ("node-a",)


def test_nothing_is_left_of_a_delay_once_the_run_starts(binding: World) -> None:
    binding.say(delayed(reason=STUCK, nodes=("node-a",)))
    binding.say(started())
    assert (binding.job.reason, binding.run.delay, binding.run.slow_nodes) == (None, None, ())
    assert binding.say(delayed(reason=STUCK)) == []


def test_an_image_that_does_not_exist_blames_no_node(binding: World) -> None:
    gone = UNPULLED.model_copy(update={"code": Code.IMAGE_NOT_FOUND})
    binding.say(BindFailed(kind="bind_failed", run_id=RUN, rank=0, reason=gone, nodes=("node-a",)))
    assert (binding.job.avoid, binding.run.then) == ((), "requeue")


def test_what_keeps_runs_on_several_nodes_from_starting_blames_none() -> None:
    body = config_body(policy=Policy(start_timeout_seconds=SECONDS))
    world = World(node_seen("node-a"), node_seen("node-b"), body=body).queued(role(gpus=8))
    other = admitted("k2", job_spec(role(gpus=8)))
    world.say(other)
    world.place()
    world.say(made())
    run = world.state.jobs.get(other.job_id).run_id
    world.say(made(run), delayed(reason=STUCK, nodes=("node-a",)), delayed(run, reason=STUCK, nodes=("node-b",)))
    world.say(ms=SECONDS * 1000)
    assert world.run.revoked is not None
    assert (world.run.revoked.code, world.job.avoid) == (Code.STARTS_STALL, ())


def test_all_nodes_of_suspects_are_avoided() -> None:
    world = World(node_seen("node-a"), node_seen("node-b")).queued(role(replicas=2, gpus=8), retry={"on_failure": True})
    world.place()
    world.say(made(pods=2), started())
    why = Reason(code=Code.POD_FAILED, numbers={"rank": 0, "suspects": 2})
    world.say(RunEnded(kind="run_ended", run_id=RUN, reason=why, own=True, nodes=("node-a", "node-b", "not-of-it")))
    assert world.job.avoid == ("node-a", "node-b")


# -- namespaces that refuse pods


class Refusing(World):
    """Jobs of one GPU; every run is refused."""

    def jobs(self, count: int) -> "Refusing":
        self.commit(*(admitted(f"k{index}", job_spec(role(gpus=1))) for index in range(count)))
        return self

    @property
    def held(self) -> list[str]:
        return sorted(run.run_id for run in self.state.runs.values())

    def refuse_all(self) -> None:
        held = self.held
        self.commit(*(BindFailed(kind="bind_failed", run_id=run, rank=0, reason=REFUSED) for run in held), ms=0)
        self.commit(*(run_absent(run) for run in held), ms=0)


def test_after_a_second_job_that_was_refused_one_is_tried_at_a_time_less_and_less_often() -> None:
    world = Refusing().jobs(30)
    world.place()
    assert len(world.held) == 8
    world.refuse_all()
    tries = [world.ts]
    while len(tries) < 10:
        assert len(world.held) <= 1
        if world.held:
            tries.append(world.ts)
            world.refuse_all()
        world.place(1000)
    gaps = [(after - before) // 1000 for before, after in pairwise(tries)]
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_jobs_that_wait_for_their_namespace_say_so_and_start_once_it_takes_one() -> None:
    world = Refusing().jobs(12)
    world.place()
    world.refuse_all()
    assert world.state.jobs.get(admitted("k11").job_id).reason.code is Code.NAMESPACE_REFUSES
    told_to = explain(world.state, admitted("k11").job_id, world.ts)
    assert told_to is not None
    assert told_to.reason is not None
    assert told_to.reason.code is Code.NAMESPACE_REFUSES
    assert "exceeded quota" in told_to.reason.detail
    while not world.held:
        world.place(1000)
    (run,) = world.held
    world.commit(made(run))
    world.place(60_000)
    assert len(world.held) == 8
    assert not list(world.state.closed.values())


def test_a_tried_run_that_ends_otherwise_lets_another_be_tried() -> None:
    world = Refusing().jobs(12)
    world.place()
    world.refuse_all()
    while not world.held:
        world.place(1000)
    (run,) = world.held
    world.say(ms=10_000_000)  # its deadline
    world.commit(run_absent(run))
    while not world.held:
        world.place(1000)
    assert world.held != [run]


def test_a_job_that_is_refused_alone_closes_nothing() -> None:
    world = World().allocated()
    for attempt in range(1, 6):
        run = f"{K1}-{attempt}"
        world.say(BindFailed(kind="bind_failed", run_id=run, rank=0, reason=REFUSED))
        assert "requeued" in kinds(world.commit(run_absent(run)))
        world.place(60_000)
    assert world.job.attempt == 6
    other = admitted("k2")
    world.say(other)
    world.place()
    assert world.state.jobs.get(other.job_id).attempt == 1


@pytest.mark.parametrize("status", [422, 400, 500])
def test_what_is_wrong_with_one_pod_says_nothing_of_its_namespace(status: int) -> None:
    world = Refusing().jobs(4)
    world.place()
    for run in world.held:
        no = REFUSED.model_copy(update={"numbers": {"status": status}})
        world.commit(BindFailed(kind="bind_failed", run_id=run, rank=0, reason=no))
    assert not list(world.state.closed.values())


def test_what_is_remembered_of_starts_and_namespaces_is_restored_and_recomputed() -> None:
    world = Refusing().jobs(12)
    world.place()
    world.refuse_all()
    while not world.held:
        world.place(1000)
    world.commit(admitted("of-another", tenant="other"), orders=(world.line(),))
    run = admitted("of-another", tenant="other").job_id + "-1"
    world.commit(made(run), delayed(run, reason=STUCK, nodes=("node-a",)))
    restored = load(dump(world.state))
    assert StateHash().of(restored) == world.shard.hasher.of(world.state)
    assert dict(restored.closed.items()) == dict(world.state.closed.items()) != {}
    assert restored.runs.get(run) == world.state.runs.get(run)
    report = verify(world.stored)
    assert (report.findings, report.orders_not_recomputed) == ([], 0)
