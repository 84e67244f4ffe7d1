"""A disruption budget that keeps a run from going is said on its job, once, and changes nothing else."""

from tessera.domain.work.phases import Phase
from tessera_schemas.facts import EvictionBlocked
from tessera_schemas.reasons import Code, Reason
from tests.builders import run_absent
from tests.unit.scheduler.committer_world import RUN, World
from tests.unit.scheduler.contested_world import drain

BLOCKED = EvictionBlocked(
    kind="eviction_blocked", run_id=RUN, reason=Reason(code=Code.BLOCKED_BY_DISRUPTION_BUDGET, detail="pod a")
)


def test_a_run_that_is_not_to_stop_is_blocked_by_nothing() -> None:
    assert World().running().say(BLOCKED) == []


def test_a_run_that_is_to_stop_says_what_keeps_it_and_is_released_all_the_same() -> None:
    world = World().running()
    world.commit(drain(evict=True))
    assert world.say(BLOCKED) == ["waiting"]
    assert world.say(BLOCKED) == []
    assert world.job.reason is not None
    assert (world.job.phase, world.job.reason.code) == (Phase.EVICTING, Code.BLOCKED_BY_DISRUPTION_BUDGET)
    assert "released" in world.say(run_absent(RUN))
    assert (world.job.phase, world.job.reason.code) != (Phase.EVICTING, Code.BLOCKED_BY_DISRUPTION_BUDGET)
