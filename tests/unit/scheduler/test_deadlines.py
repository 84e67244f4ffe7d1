"""A job with a deadline starts early enough to meet it, or is cancelled by name; a queue may go by deadlines."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tessera.domain.storing.snapshot import dump, load
from tessera.engine.queueing.orders import deadline
from tessera.scheduler.decide.runs import is_start_due
from tessera_schemas.base import job_id
from tessera_schemas.config import Policy, Queue
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import Finished
from tessera_schemas.reasons import Code, Reason
from tests.builders import SHARD, admitted, config_body, job_spec, role, run_absent
from tests.unit.scheduler.committer_world import K1, World, ended, kinds, made, started

HOUR = 3_600_000


def due(world: World, hours: float, limit_seconds: int = 3600, **more: Any) -> JobSpec:
    at = world.ts + int(hours * HOUR)
    return job_spec(role(gpus=8), deadline_ts=at, time_limit_seconds=limit_seconds, **more)


def in_line(world: World) -> list[str]:
    names = {job.job_id: job.key for job in world.state.jobs.values()}
    return [names[each] for each in world.line().jobs]


def world_by_deadline(**policy: Any) -> World:
    rules = Policy.model_validate(policy)
    return World(body=config_body(Queue(name="research", order="deadline"), policy=rules))


def busy(world: World) -> World:
    """A job without an end has all GPUs."""
    world.queued(role(gpus=8)).place()
    world.commit(made())
    world.commit(started())
    return world


def test_a_job_that_can_no_longer_end_in_time_is_cancelled_and_is_woken_for() -> None:
    world = busy(World())
    world.commit(admitted("k2", due(world, 3)))
    second = job_id(SHARD, "lab", "k2")
    latest = world.state.jobs.get(second).latest_start_ts
    assert not is_start_due(world.state, latest)
    assert is_start_due(world.state, latest + 1)
    assert world.say(ms=latest - world.ts) == []
    (finished,) = world.commit(ms=1).records
    assert isinstance(finished, Finished)
    assert (finished.job_id, finished.phase) == (second, "cancelled")
    assert finished.reason == Reason(
        code=Code.DEADLINE_MISSED, field="deadline_ts", numbers={"latest_start_ts": latest, "late_seconds": 1}
    )
    assert not world.state.index.latest_starts


def test_it_starts_at_the_last_moment_and_runs_on_beyond_it() -> None:
    world = World()
    world.commit(admitted("k1", due(world, 1.001)))
    job = world.job
    world.place(ms=job.latest_start_ts - world.ts)
    world.commit(made())
    world.commit(started())
    assert (world.job.phase.value, world.say(ms=HOUR)) == ("running", [])


def test_a_run_that_fails_is_tried_again_as_long_as_the_next_one_ends_in_time() -> None:
    world = World()
    retry = {"on_failure": True, "max_attempts": 3, "backoff_seconds": 1}
    world.commit(admitted("k1", due(world, 2, retry=retry)))
    world.place()
    world.commit(made())
    world.commit(started())
    world.commit(ended())
    world.commit(run_absent(f"{K1}-1"), ms=HOUR + 1)
    assert kinds(world.place()) == ["finished"]
    assert world.state.ended.get(K1).reason.code is Code.DEADLINE_MISSED


def test_one_that_is_too_late_at_its_submit_never_starts() -> None:
    world = World()
    assert world.say(admitted("k1", due(world, 0.5))) == ["job_queued"]
    assert is_start_due(world.state, world.ts)
    assert kinds(world.place()) == ["finished"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"deadline_ts": 5 * HOUR}, "say time_limit_seconds"),
        ({"deadline_ts": 5 * HOUR, "begin_ts": 5 * HOUR - 1, "time_limit_seconds": 3600}, "lower the limit"),
    ],
)
def test_a_deadline_needs_a_time_limit_that_it_holds(more: dict[str, Any], words: str) -> None:
    plain = job_spec().model_dump(mode="json")
    with pytest.raises(ValidationError, match=f"deadline_ts: .*{words}"):
        JobSpec.model_validate_json(json.dumps(plain | more))


def test_a_queue_by_deadline_takes_the_earliest_first_then_those_without_one() -> None:
    world = world_by_deadline()
    world.queued(role(gpus=8)).place()
    plain = job_spec(role(gpus=8))
    facts = [admitted("late", due(world, 9)), admitted("none", plain), admitted("soon", due(world, 4))]
    world.commit(*facts, admitted("as-late", due(world, 9)))
    assert in_line(world) == ["soon", "late", "as-late", "none"]
    jobs = {job.key: job for job in world.state.jobs.values()}
    why = deadline.why_before
    assert why(world.state, jobs["late"], jobs["soon"]) == deadline.EARLIER
    assert why(world.state, jobs["none"], jobs["late"]) == deadline.EARLIER
    assert why(world.state, jobs["as-late"], jobs["late"]) == "older"
    assert "earlier deadline" in " ".join(deadline.describe(world.state, jobs["late"]))


def test_who_has_waited_for_the_patience_goes_first_however_late_its_deadline() -> None:
    world = world_by_deadline(order_patience_seconds=600)
    busy(world)
    world.commit(admitted("old", job_spec(role(gpus=8))))
    world.commit(admitted("soon", due(world, 4)), ms=300_000)
    assert in_line(world) == ["soon", "old"]
    world.commit(ms=301_000)
    assert in_line(world) == ["old", "soon"]


def test_a_snapshot_keeps_deadlines() -> None:
    world = world_by_deadline()
    busy(world)
    world.commit(admitted("soon", due(world, 4)))
    restored = load(dump(world.state))
    assert list(restored.index.latest_starts) == list(world.state.index.latest_starts)
    assert restored.index.buckets == world.state.index.buckets
