"""Nodes on which pods do not start or last, and arrays whose tasks fail one after the other."""

import pytest

from tessera.engine.placement.capacity import is_closed
from tessera_schemas.base import job_id
from tessera_schemas.facts import HoldRequested, RunEnded
from tessera_schemas.ledger import Held, NodeBackedOff
from tessera_schemas.reasons import Code, Reason
from tests.builders import SHARD, admitted, job_spec, node_seen, role, run_absent
from tests.unit.scheduler.committer_world import World, ended, kinds, made, started

REFUSED = Reason(code=Code.POD_REFUSED_BY_NODE, detail="UnexpectedAdmissionError")
FAILED = Reason(code=Code.POD_FAILED, numbers={"exit_code": 1})
A, B = "node-a", "node-b"


def cluster(*names: str) -> World:
    return World(*(node_seen(name) for name in names))


def start(world: World, key: str, **spec: object) -> str:
    """A job of eight GPUs whose pods are made; returns its run."""
    world.commit(admitted(key, job_spec(role(gpus=8), **spec)))
    world.place()
    job = world.state.jobs.get(job_id(SHARD, "lab", key))
    assert job is not None
    world.commit(made(job.run_id))
    return job.run_id


def node_of(world: World, run_id: str) -> str:
    run = world.state.runs.get(run_id)
    assert run is not None
    return run.placements[0].node


def refused(world: World, run_id: str) -> list[NodeBackedOff]:
    message = world.commit(ended(run_id, REFUSED))
    return [record for record in message.records if isinstance(record, NodeBackedOff)]


def fail_at_once(world: World, key: str) -> str:
    """A job whose program fails a second after its start; returns the node."""
    run_id = start(world, key)
    node = node_of(world, run_id)
    world.commit(started(run_id))
    world.commit(ended(run_id, FAILED))
    world.commit(run_absent(run_id))
    return node


def test_a_node_that_refuses_a_pod_takes_nobody_of_any_job_for_a_while() -> None:
    world = cluster(A, B, "node-c")
    run_id = start(world, "k1")
    assert node_of(world, run_id) == A
    (record,) = refused(world, run_id)
    assert (record.node, record.until_ts - world.ts, record.times) == (A, 5_000, 1)
    world.commit(run_absent(run_id))
    other = start(world, "k2")
    assert node_of(world, other) != A, "a job that the node never failed goes past it"


def test_the_time_doubles_up_to_minutes_and_ends_with_the_first_run_that_starts() -> None:
    world, waits = cluster(A), []
    run_id = start(world, "k1")
    for _ in range(9):
        (record,) = refused(world, run_id)
        waits.append((record.until_ts - world.ts) // 1000)
        world.commit(run_absent(run_id))
        assert "allocated" not in kinds(world.place(ms=record.until_ts - world.ts - 1001))
        world.place(ms=61_000)
        run_id = world.job.run_id
        world.commit(made(run_id))
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    world.commit(started(run_id))
    assert world.state.backoffs.get(A) is None


def test_refusals_of_pods_that_were_on_their_way_count_once() -> None:
    world = cluster(A)
    for key in ("k1", "k2"):
        world.commit(admitted(key, job_spec(role(gpus=4))))
    world.place()
    first, second = (f"{job_id(SHARD, 'lab', key)}-1" for key in ("k1", "k2"))
    world.commit(made(first), made(second))
    assert len(refused(world, first)) == 1
    assert refused(world, second) == []


@pytest.mark.parametrize(
    ("code", "closed"),
    [
        (Code.POD_REFUSED_BY_NODE, True),
        (Code.NODE_SHUT_DOWN, True),
        (Code.NODE_PRESSURE, True),
        (Code.POD_FAILED, False),
        (Code.POD_EVICTED, False),
        (Code.POD_DELETED, False),
        (Code.NODE_RESTARTED, False),
    ],
)
def test_only_what_says_something_of_the_node_keeps_others_away(code: Code, closed: bool) -> None:
    world = cluster(A)
    run_id = start(world, "k1")
    world.commit(started(run_id))
    world.commit(ended(run_id, Reason(code=code)))
    assert is_closed(world.state, A) is closed


def test_programs_of_three_jobs_that_fail_within_seconds_make_a_node_suspect() -> None:
    world = cluster(A, *(f"node-{letter}" for letter in "bcdefghijkl"))
    assert [fail_at_once(world, f"k{number}") for number in range(3)] == [A, A, A]
    assert is_closed(world.state, A)
    assert fail_at_once(world, "k4") == B


def test_a_suspect_takes_work_again_once_a_run_lasted_there() -> None:
    world = cluster(A)
    for number in range(3):
        fail_at_once(world, f"k{number}")
    world.ts += 5_000
    run_id = start(world, "well")
    world.commit(started(run_id))
    backoff = world.state.backoffs.get(A)
    assert backoff is not None
    assert len(backoff.failed) == 3, "to start is not to last"
    world.commit(RunEnded(kind="run_ended", run_id=run_id))
    assert world.state.backoffs.get(A) is None


def test_a_program_that_fails_everywhere_keeps_few_nodes_from_use() -> None:
    names = [f"node-{number:02}" for number in range(12)]
    world = cluster(*names)
    for number in range(40):
        fail_at_once(world, f"k{number}")
    assert sum(is_closed(world.state, name) for name in names) <= 1


def test_a_program_that_fails_late_says_nothing_of_its_node() -> None:
    world = cluster(A)
    run_id = start(world, "k1")
    world.commit(started(run_id))
    world.commit(ended(run_id, FAILED), ms=31_000)
    assert world.state.backoffs.get(A) is None


def test_a_node_that_is_gone_is_forgotten() -> None:
    world = cluster(A, B)
    run_id = start(world, "k1")
    refused(world, run_id)
    world.commit(run_absent(run_id))
    world.commit(node_seen(A).model_copy(update={"gone": True, "ready": False}))
    assert world.state.backoffs.get(A) is None


# -- arrays -----------------------------------------------------------------------------------------------------------


def array(world: World, tasks: str = "0-99", limit: int = 1) -> str:
    spec = job_spec(role(gpus=1), array={"tasks": tasks, "limit": limit})
    world.commit(admitted("sweep", spec))
    world.commit()
    return job_id(SHARD, "lab", "sweep")


def end_next_task(world: World, array_id: str, ms: int = 1000, reason: Reason | None = FAILED) -> list[Held]:
    """The next task starts, and ends so long after; returns what was put on hold for it."""
    world.commit()
    world.place()
    (run,) = [run for run in world.state.runs.values() if not run.stopping]
    world.commit(made(run.run_id))
    world.commit(started(run.run_id))
    messages = [world.commit(ended(run.run_id, reason), ms=ms), world.commit(run_absent(run.run_id))]
    return [record for message in messages for record in message.records if isinstance(record, Held)]


def test_an_array_whose_tasks_fail_one_after_the_other_in_seconds_is_put_on_hold_and_told() -> None:
    world = cluster(A)
    sweep = array(world)
    held = [end_next_task(world, sweep) for _ in range(10)]
    assert [bool(each) for each in held] == [False] * 9 + [True]
    job = world.state.jobs.get(sweep)
    assert job is not None
    assert (job.held, job.reason and job.reason.code) == (True, Code.ARRAY_KEEPS_FAILING)
    assert "allocated" not in kinds(world.place(ms=60_000))
    world.commit(HoldRequested(kind="hold_requested", job_id=sweep, tenant="lab", undo=True))
    assert "allocated" in [*kinds(world.place(ms=60_000)), *kinds(world.place(ms=1000))]


def test_an_array_with_a_task_that_succeeds_or_fails_late_goes_on() -> None:
    world = cluster(A)
    sweep = array(world)
    for number in range(30):
        well, late = number % 9 == 8, number % 9 == 4
        assert end_next_task(world, sweep, 60_000 if late else 1000, None if well else FAILED) == []
