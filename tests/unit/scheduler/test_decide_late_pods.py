"""A run holds the room of a late pod from the start, and permits it once, when it is there."""

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.work.starting import find_awaited
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.facts import PodsMade, RunAbsent
from tessera_schemas.work.adopted import Adopted
from tests.builders import admitted, job_spec, role
from tests.unit.scheduler.committer_world import RUN, World, made, started


def placed() -> World:
    """A gang of two pods of a GPU each, and the room of a third one without GPUs."""
    world = World()
    spec = job_spec(role(replicas=2), role("late", gpus=0))
    adopted = Adopted(api_version="ray.io/v1", owner_kind="RayJob", owner_name="train", group="g", late_pods=1)
    world.commit(admitted("k1", spec).model_copy(update={"adopted": adopted}))
    world.place()
    return world


def running() -> World:
    world = placed()
    world.commit(made(pods=2))
    world.commit(started())
    return world


def comes(uid: str = "late", rank: int = 2) -> PodsMade:
    return PodsMade(kind="pods_made", run_id=RUN, uids=(uid,), ranks=(rank,))


def leaves(*ranks: int) -> RunAbsent:
    return RunAbsent(kind="run_absent", run_id=RUN, ranks=ranks)


def assert_is_well(world: World) -> None:
    report = check(world.stored)
    check_rules(report, world.stored)
    assert [violation.text for violation in report.violations] == []
    assert verify(world.stored).findings == []


def test_the_first_permit_names_all_but_late_pods_whose_room_is_held() -> None:
    world = running()
    assert (world.run.uids, find_awaited(world.run), len(world.run.places)) == (("uid-0", "uid-1", ""), (2,), 3)
    assert world.run.permitted == ("uid-0", "uid-1")
    assert world.run.amount == world.job.amount
    assert_is_well(world)


def test_a_late_pod_is_permitted_once_and_released_by_itself_for_good() -> None:
    world = running()
    assert world.say(comes()) == ["permitted"]
    assert world.run.permitted == ("uid-0", "uid-1", "late")
    assert world.say(comes("another")) == []
    assert world.say(leaves(2)) == ["released"]
    assert len(world.run.places) == 2
    assert world.say(comes("another")) == []
    assert_is_well(world)


def test_room_that_nobody_has_come_for_is_not_released_before_the_run() -> None:
    world = running()
    assert world.say(leaves(2)) == []
    assert len(world.run.places) == 3


@pytest.mark.parametrize("pods", [1, 3])
def test_a_first_permit_of_too_few_or_too_many_pods_is_not_given(pods: int) -> None:
    assert placed().say(made(pods=pods)) == []
