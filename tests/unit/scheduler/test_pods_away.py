"""
An adopted job whose pods are its owner's to make again is out of line until they are there: no devices wait for pods
that may take their owner minutes, and nobody is evicted for them.
"""

import pytest

from tessera.domain.errors import Contradiction
from tessera.domain.fold import apply_record
from tessera.domain.phases import Phase
from tessera.engine.plans import startable
from tessera_schemas.adopted import Adopted
from tessera_schemas.facts import HoldRequested, PodsBack
from tessera_schemas.ledger import BackInLine
from tessera_schemas.reasons import Code
from tests.builders import admitted, job_spec, run_absent
from tests.unit.scheduler.test_decide import K1, RUN, World, ended, made, started

BACK = PodsBack(kind="pods_back", job_id=K1)
OWNER = Adopted(api_version="batch/v1", owner_kind="Job", owner_name="train", owner_uid="u", group="batch/Job/lab/u")


def evicted() -> World:
    """An adopted job that was stopped and is queued again."""
    world = World()
    world.commit(admitted("k1", job_spec()).model_copy(update={"adopted": OWNER}))
    world.place()
    world.commit(made())
    world.commit(started())
    world.commit(ended(own=False))
    world.commit(run_absent(RUN))
    assert world.job.phase is Phase.QUEUED
    return world


def reason(world: World) -> Code | None:
    return world.job.reason.code if world.job.reason is not None else None


def test_it_is_in_no_line_and_says_that_its_pods_are_missing() -> None:
    world = evicted()
    world.ts += 3_600_000  # whatever back-off there was is over
    assert reason(world) is Code.GANG_INCOMPLETE
    assert not startable(world.state, world.job)
    assert world.line().jobs == ()
    assert "allocated" not in [record.kind for record in world.place().records]


def test_it_takes_its_old_place_once_its_pods_are_there() -> None:
    world = evicted()
    assert world.say(BACK, ms=3_600_000) == ["back_in_line", "waiting", "allocated"]
    assert world.job.attempt == 2


def test_the_news_counts_once_and_only_for_a_job_that_is_out_of_line() -> None:
    world = evicted()
    world.say(BACK)
    assert world.say(BACK) == []
    assert World().queued().say(BACK) == []
    assert World().say(BACK) == []


def test_a_job_that_its_user_holds_stays_held_when_its_pods_are_there() -> None:
    world = evicted()
    world.commit(HoldRequested(kind="hold_requested", job_id=K1, tenant="lab"))
    assert world.say(BACK) == ["back_in_line"]
    assert (world.job.held, reason(world)) == (True, Code.ON_HOLD)
    assert world.line().jobs == ()


def test_a_job_that_is_not_adopted_is_in_line_as_before() -> None:
    world = World().evicting()
    world.commit(run_absent(RUN))
    assert not world.job.away


def test_a_record_that_brings_back_what_was_not_away_is_refused() -> None:
    world = World().queued()
    with pytest.raises(Contradiction):
        apply_record(world.state, BackInLine(kind="back_in_line", job_id=K1), ())


def test_what_its_owner_survives_by_then_is_said_with_it_and_alone_and_once() -> None:
    world = evicted()
    for preemptible, records in ((False, ["back_in_line", "waiting"]), (False, []), (True, ["back_in_line"])):
        assert world.say(BACK.model_copy(update={"preemptible": preemptible}), ms=0) == records
        assert world.job.preemptible is preemptible
    assert (world.job.away, reason(world)) == (False, Code.WAITING_FOR_TURN)
