"""What was measured of a run's GPUs: the greater sum counts, until the release; a job has that of all its runs."""

import orjson
import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.projection.events import events_of
from tessera.projection.views import all_views
from tessera.scheduler.decide.draft import Draft
from tessera.scheduler.decide.updates import on_run_used
from tessera_schemas.facts import RunUsed
from tessera_schemas.ledger import TakenFact, UseNoted
from tessera_schemas.shard.ledger_form import GPU_USE_FROM
from tessera_schemas.views import JobView
from tessera_schemas.work.measured_use import MeasuredUse
from tests.builders import SHARD, run_absent
from tests.unit.scheduler.committer_world import K1, RUN, World, bound, ended, made, started


def use(seconds: int, memory_mib: int = 0, busy: int = 1) -> MeasuredUse:
    """One GPU, measured for so many seconds, of which it worked half."""
    ms = 1000 * 1000 * seconds
    return MeasuredUse(
        measured_gpu_milli_ms=ms, worked_gpu_milli_ms=ms // 2, gpus=1, busy_gpus=busy, memory_mib=memory_mib
    )


def used(seconds: int, run: str = RUN, **more: int) -> RunUsed:
    return RunUsed(kind="run_used", run_id=run, use=use(seconds, **more))


def test_only_a_measurement_that_covers_more_is_taken() -> None:
    world = World().running()
    assert world.say(used(50), ms=60_000) == ["use_noted"]
    assert world.say(used(50), used(49), ms=60_000) == []
    assert world.say(used(51)) == ["use_noted"]
    assert world.run.gpu_use == use(51)


def test_the_most_of_all_measurements_stays() -> None:
    world = World().running()
    world.say(used(50, memory_mib=900), ms=60_000)
    world.say(used(51, memory_mib=10, busy=0))
    assert world.run.gpu_use == use(51, memory_mib=900)


def test_more_than_the_run_has_held_is_no_measurement() -> None:
    world = World().running()
    held = world.state.ts - world.run.allocated_ts
    assert world.say(used(held // 1000 + 60 + 1), ms=60_000) == []
    assert world.say(used(held // 1000 + 60 + 1), ms=1000) == ["use_noted"]


def test_a_run_that_has_not_started_has_used_nothing() -> None:
    assert World().binding().say(used(1), ms=60_000) == []


def test_a_ledger_of_an_older_format_notes_nothing() -> None:
    world = World().running()
    world.ts += 60_000
    world.commit()
    taken = (TakenFact(seq=99, service="reclamation", fact=used(50)),)
    for format_, kinds in ((GPU_USE_FROM, ["use_noted"]), (GPU_USE_FROM - 1, [])):
        world.state.format = format_
        draft = Draft(world.state.overlay(), taken)
        on_run_used(draft, 0, used(50))
        assert [record.kind for record in draft.records] == kinds
    with pytest.raises(Contradiction, match="says nothing new"):
        apply_record(world.state.overlay(), UseNoted(kind="use_noted", fact=0, run_id=RUN), taken)


def test_what_is_said_after_a_success_counts_until_the_release() -> None:
    world = World().running()
    world.say(used(50), ms=60_000)
    world.say(ended(reason=None))
    assert world.say(used(60)) == ["use_noted"]
    assert shown(world.state) == use(60)
    world.say(run_absent(RUN))
    assert world.state.ended.get(K1).gpu_use == use(60)
    assert world.say(used(61)) == []
    assert shown(world.state) == use(60)


def test_a_job_has_the_use_of_all_its_runs() -> None:
    world = World().evicting()
    world.say(used(2, memory_mib=700), ms=60_000)
    world.say(run_absent(RUN))
    assert world.job.gpu_use == use(2, memory_mib=700)
    second = f"{K1}-2"
    for fact in (made(second), bound(second), started(second)):
        world.say(fact)
    world.say(used(30, run=second), ms=60_000)
    assert shown(world.state) == use(32, memory_mib=700)
    world.say(ended(second, reason=None))
    world.say(run_absent(second))
    assert world.state.ended.get(K1).gpu_use == use(32, memory_mib=700)
    assert verify(world.stored).findings == []
    restored = load(dump(world.state))
    assert restored.ended.get(K1) == world.state.ended.get(K1)


@pytest.mark.parametrize("fact", [used(10), used(50, run=f"{K1}-2")], ids=["less", "another run"])
def test_a_record_of_what_is_known_is_a_contradiction(fact: RunUsed) -> None:
    world = World().running()
    world.say(used(50), ms=60_000)
    taken = TakenFact(seq=99, service="reclamation", fact=fact)
    with pytest.raises(Contradiction, match="says nothing new"):
        apply_record(world.state, UseNoted(kind="use_noted", fact=0, run_id=RUN), (taken,))


def test_the_event_of_a_release_has_the_last_of_it_also_from_its_own_message() -> None:
    world = World().evicting()
    world.say(used(50), used(55), run_absent(RUN), ms=60_000)
    released = next(event for event in events(world) if event["type"].endswith("job.released.v1"))
    assert released["data"]["gpu_use"] == orjson.loads(use(55).to_bytes())


def test_parts_are_not_more_than_the_whole() -> None:
    for wrong in ({"worked_gpu_milli_ms": 1}, {"gpus": 1, "busy_gpus": 2}):
        with pytest.raises(ValueError, match="are parts of"):
            MeasuredUse.model_validate(wrong)


def shown(state: State) -> MeasuredUse:
    view = next(JobView.from_bytes(made.value or b"") for made in all_views(state) if made.key == K1)
    return MeasuredUse.model_validate(view.model_dump()["gpu_use"])


def events(world: World) -> list[dict[str, dict[str, object]]]:
    """Events of the last message."""
    shard, found = Shard(), ()
    for n, data in enumerate(world.stored, start=1):
        entry = decode_entry(Message("", n, data))
        found = events_of(SHARD, entry.message, shard.state)
        shard.fold(entry)
    return [orjson.loads(event.data) for event in found]
