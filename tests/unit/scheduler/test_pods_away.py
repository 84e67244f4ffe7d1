"""
An adopted job whose pods are its owner's to make again is out of line until they are there: no devices wait for pods
that may take their owner minutes, and nobody is evicted for them.
"""

from typing import Any

import pytest

from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record
from tessera.domain.work.phases import Phase
from tessera.engine.queueing.readiness import startable
from tessera.scheduler.decide.draft import RECORD_BYTES, Draft
from tessera.scheduler.decide.starts import allocate
from tessera_schemas.facts import HoldRequested, PodsBack, PodsGone
from tessera_schemas.ledger import BackInLine, LedgerMessage, OutOfLine, Permitted
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.adopted import Adopted
from tests.builders import admitted, job_spec, placement, run_absent
from tests.unit.scheduler.committer_world import K1, RUN, World, ended, kinds, made, started

BACK = PodsBack(kind="pods_back", job_id=K1)
GONE = PodsGone(kind="pods_gone", job_id=K1)
OWNER = Adopted(api_version="batch/v1", owner_kind="Job", owner_name="train", owner_uid="u", group="batch/Job/lab/u")


def evicted() -> World:
    """An adopted job that was stopped and is queued again."""
    world = World()
    world.commit(admitted("k1", job_spec()).model_copy(update={"adopted": OWNER}))
    world.place()
    world.commit(made())
    world.commit(started())
    world.commit(ended(reason=Reason(code=Code.POD_REFUSED_BY_NODE)))
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


def test_the_budget_that_lets_none_of_its_pods_go_is_said_once_and_that_there_is_none_any_more() -> None:
    world = evicted()
    said = ["budget keep", "budget keep", ""]
    records = [["back_in_line", "waiting"], [], ["back_in_line"]]
    for budget, expected in zip(said, records, strict=True):
        assert world.say(BACK.model_copy(update={"budget": budget}), ms=0) == expected
        assert world.job.adopted is not None
        assert world.job.adopted.budget == budget
        assert world.state.tree.revocable(world.job) is (budget == "")


# -- pods that are there before there is room ------------------------------------------------------------------------


def adopted(*uids: str, **spec: Any) -> World:
    """A job in line whose pods are these."""
    world = World()
    known = OWNER.model_copy(update={"uids": uids})
    world.commit(admitted("k1", job_spec(**spec)).model_copy(update={"adopted": known}))
    return world


def permits(message: LedgerMessage) -> list[tuple[str, ...]]:
    return [record.uids for record in message.records if isinstance(record, Permitted)]


def test_they_are_permitted_by_the_message_that_allocates_their_run() -> None:
    world = adopted("uid-7")
    message = world.place()
    assert kinds(message) == ["allocated", "permitted"]
    assert permits(message) == [("uid-7",)]
    assert (world.job.phase, world.run.uids) == (Phase.BINDING, ("uid-7",))
    assert world.say(made()) == []  # one permit per run, ever


@pytest.mark.parametrize("uids", [(), ("uid-1", "uid-2")])
def test_a_job_whose_pods_are_not_known_one_by_one_is_permitted_once_they_are_found(uids: tuple[str, ...]) -> None:
    world = adopted(*uids)
    assert kinds(world.place()) == ["allocated"]
    assert world.say(made()) == ["permitted"]


def test_a_permit_that_finds_no_room_in_its_message_is_left_to_the_binder() -> None:
    world = adopted("uid-7")
    job = world.job
    draft = Draft(world.state, (), bytes_left=RECORD_BYTES // 64)
    allocate(draft, job, "", (placement(),))
    assert [record.kind for record in draft.records] == ["allocated"]


def test_other_pods_in_the_place_of_the_first_are_the_ones_that_are_permitted() -> None:
    world = adopted("uid-7")
    again = BACK.model_copy(update={"uids": ("uid-8",)})
    assert world.say(again, ms=0) == ["back_in_line"]
    assert world.say(again, ms=0) == []
    assert permits(world.place()) == [("uid-8",)]


def test_pods_that_come_back_after_a_run_are_permitted_with_the_next_one() -> None:
    world = evicted()
    world.commit(BACK.model_copy(update={"uids": ("uid-9",)}), ms=3_600_000)
    assert (world.job.attempt, world.run.uids) == (2, ("uid-9",))


def test_a_job_whose_pods_are_gone_is_out_of_line_and_says_so_once_and_keeps_its_place() -> None:
    world = adopted("uid-7")
    taken_n = world.job.taken_n
    assert world.say(GONE, ms=0) == ["out_of_line", "waiting"]
    assert world.say(GONE, ms=0) == []
    assert (reason(world), world.line().jobs) == (Code.GANG_INCOMPLETE, ())
    assert world.say(BACK.model_copy(update={"uids": ("uid-8",)})) == ["back_in_line", "waiting"]
    assert permits(world.place()) == [("uid-8",)]
    assert world.job.taken_n == taken_n


def test_pods_that_are_gone_say_nothing_of_jobs_that_are_held_or_at_work_or_ours() -> None:
    world = adopted("uid-7")
    world.commit(HoldRequested(kind="hold_requested", job_id=K1, tenant="lab"))
    assert world.say(GONE) == ["out_of_line"]
    assert reason(world) is Code.ON_HOLD

    world = adopted("uid-7")
    world.place()
    assert world.say(GONE) == []
    assert World().queued().say(GONE) == []
    assert World().say(GONE) == []


def test_a_record_that_takes_out_of_line_what_is_not_in_it_is_refused() -> None:
    world = evicted()
    with pytest.raises(Contradiction):
        apply_record(world.state, OutOfLine(kind="out_of_line", job_id=K1), ())
