"""The committer's cycle: one append at a time, and nothing lost, doubled or resent whatever becomes of it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tessera.engine.queueing import readiness
from tessera.kernel.errors import InvariantViolation, Transient, UnknownOutcome
from tessera.kernel.ledger.stream import read_plain
from tessera.kernel.ports import Outgoing
from tessera.scheduler import cycle
from tessera.scheduler.cycle import Deposed
from tessera.scheduler.decide import decide
from tessera.scheduler.decide.draft import Draft
from tessera_schemas.base import Strict
from tessera_schemas.config import Policy
from tessera_schemas.facts import AnyFact, CancelRequested, FactMessage, HoldRequested, PodsMade
from tessera_schemas.ledger import Allocated, LedgerMessage
from tessera_schemas.subjects import MESSAGE_BYTES_MAX, SUBMIT_BYTES_MAX
from tessera_schemas.work.pod_template import Template
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, node_seen, role, run_absent
from tests.ledgers import rechain
from tests.unit.scheduler.committer_world import bound, made, started
from tests.unit.scheduler.committers import ActingBinder, Leader, Served, World, line_of, outgoing

LEDGER = "ledger."


async def test_a_committer_opens_its_epoch_before_anything_else() -> None:
    world = World()
    async with Leader(world):
        first = world.ledger[0]
    assert [record.kind for record in first.records] == ["format_raised", "epoch_opened"]
    assert (first.epoch, first.holder) == (1, "scheduler-1")


async def test_an_idle_committer_appends_at_once_and_then_nothing() -> None:
    world = World()
    async with Leader(world):
        await world.fact(config_proposed())
        await world.clock.run(0.01)
        assert world.kinds == [[], ["config_set"]]
        await world.clock.run(60)
        assert len(world.ledger) == 2


async def test_what_comes_while_an_append_is_in_flight_shares_the_next_message() -> None:
    world = World()
    async with Leader(world) as leader:
        leader.faults.held = asyncio.Event()
        await world.fact(config_proposed())
        await world.clock.run(0.1)
        for number in range(5):
            await world.fact(admitted(f"k{number}"))
            await world.clock.run(0.1)
        leader.faults.held.set()
        await world.clock.run(0.1)
        assert world.kinds == [[], ["config_set"], ["job_queued"] * 5]


@pytest.mark.parametrize(
    ("settings", "checkpoints"),
    [
        ({}, [False] * 6),
        ({"checkpoint_records": 4}, [False, True, False, True, False, True]),
        ({"checkpoint_bytes": 2700}, [False, False, False, True, False, False]),
        ({"checkpoint_every": 4}, [False, True, False, False, False, True]),
    ],
    ids=["none is due", "by records", "by bytes", "by messages"],
)
async def test_checkpoints_come_by_messages_records_and_bytes(
    settings: dict[str, int], checkpoints: list[bool]
) -> None:
    world = World()
    async with Leader(world, **settings):
        await world.fact(config_proposed())
        await world.clock.run(0.1)
        for number in range(6):
            world.at_once(*[outgoing(admitted(f"k{number}-{i}")) for i in range(2)])
            await world.clock.run(1)
        kinds = [[record.kind for record in message.records] for message in world.ledger[2:]]
        assert ["checkpoint" in each for each in kinds] == checkpoints


@pytest.mark.parametrize(
    ("settings", "messages"),
    [({}, [4, 2]), ({"share_seconds": 0}, [4, 1, 1]), ({"busy_facts": 5}, [4, 1, 1])],
    ids=["a busy committer waits for company", "unless told never to", "one that is not busy does not wait"],
)
async def test_facts_that_come_soon_after_a_busy_message_share_the_next(
    settings: dict[str, float], messages: list[int]
) -> None:
    world = World()
    async with Leader(world, **settings):
        before = len(world.ledger)
        world.at_once(*[outgoing(admitted(f"k{number}")) for number in range(4)])
        await world.clock.run(0.003)
        for number in (4, 5):
            await world.fact(admitted(f"k{number}"))
            await world.clock.run(0.003)
        await world.clock.run(0.1)
        assert [len(message.facts) for message in world.ledger[before:]] == messages


def deciding_takes(world: World, seconds: float) -> Callable[..., Draft]:
    """The decision, during which the clock goes on."""

    def working(*args: Any) -> Draft:
        world.clock.pause(seconds)
        return decide(*args)

    return working


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [(0.0, 9, 11), (0.002, 11, 13), (0.005, 24, 26), (0.02, 68, 72)],
    ids=["in no time", "quickly", "slowly", "very slowly"],
)
async def test_a_busy_committer_collects_facts_for_longer_where_deciding_takes_long(
    seconds: float, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    async with Leader(world):
        before = len(world.ledger)
        monkeypatch.setattr(cycle, "decide", deciding_takes(world, seconds))
        world.at_once(*[outgoing(admitted(f"k{number}")) for number in range(5)])
        for number in range(5, 205):
            await world.clock.run(0.001)
            await world.fact(admitted(f"k{number}"))
        await world.clock.run(1)
        sizes = [len(message.facts) for message in world.ledger[before:]]
    assert sum(sizes) == 205
    assert {least <= size <= most for size in sizes[1:-1]} == {True}, sizes


async def test_a_fact_that_comes_alone_waits_for_nobody_however_long_deciding_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    async with Leader(world):
        monkeypatch.setattr(cycle, "decide", deciding_takes(world, 0.02))
        for number in range(5):
            came_ms = world.clock.now_ms()
            await world.fact(admitted(f"k{number}"))
            await world.clock.run(0.1)
            assert world.ledger[-1].ts == came_ms


async def test_each_part_of_a_message_is_encoded_once_and_stored_as_the_whole_message_would_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, encoded, encode = World(), list[Strict](), Strict.to_bytes

    def noting(model: Strict) -> bytes:
        encoded.append(model)
        return encode(model)

    monkeypatch.setattr(Strict, "to_bytes", noting)
    async with Leader(world):
        await ready(world)
        await world.order(line_of(world, "k1"))
        await world.fact(admitted("k2"))
        await world.clock.run(0.1)
    monkeypatch.undo()
    stored = world.broker.stream(f"LEDGER_{SHARD}").messages.values()
    assert [read_plain(each).data for each in stored] == [message.to_bytes() for message in world.ledger]
    assert {"config_set", "node_changed", "job_queued", "allocated"} <= {
        kind for kinds in world.kinds for kind in kinds
    }
    for part in [part for message in world.ledger for part in (*message.facts, *message.records)]:
        assert encoded.count(part) == 1, part
    assert not any(type(model) is LedgerMessage for model in encoded)


async def test_an_append_that_got_in_although_nobody_answered_is_found_and_not_repeated() -> None:
    world = World()
    async with Leader(world) as leader:
        leader.faults.after_publish[LEDGER] = [UnknownOutcome("no answer")]
        await world.fact(config_proposed())
        await world.clock.run(1)
        await world.fact(admitted("k1"))
        await world.clock.run(1)
        assert world.kinds == [[], ["config_set"], ["job_queued"]]


async def test_an_append_that_did_not_get_in_is_decided_anew_and_never_resent() -> None:
    world = World()
    async with Leader(world) as leader:
        leader.faults.before_publish[LEDGER] = [UnknownOutcome("no answer")]
        await world.fact(config_proposed())
        await world.clock.run(1)
        assert world.kinds == [[], ["config_set"]]
        lost = world.broker.limbo[0]
        assert world.ledger[-1].tx.encode() not in lost.data
        assert isinstance(world.broker.land(lost), Exception)  # too late: its place is taken


async def test_an_own_append_that_lands_late_is_taken_for_what_it_is() -> None:
    """The zombie wins the swap against the new decision; its facts must not be decided twice."""
    world = World()
    async with Leader(world) as leader:
        leader.faults.before_publish[LEDGER] = [UnknownOutcome("no answer"), Transient("away")]
        await world.fact(config_proposed())
        await world.fact(admitted("k1"))
        await world.clock.run(0.05)
        world.broker.land(world.broker.limbo[0])
        await world.clock.run(1)
        assert world.kinds == [[], ["config_set", "job_queued"]]
        await world.fact(admitted("k2"))
        await world.clock.run(1)
        assert world.kinds[2:] == [["job_queued"]]


async def test_an_append_that_certainly_failed_is_tried_again_after_a_while() -> None:
    world = World()
    async with Leader(world) as leader:
        leader.faults.before_publish[LEDGER] = [Transient("away")] * 3
        await world.fact(config_proposed())
        await world.clock.run(0.1)
        assert len(world.ledger) == 1
        await world.clock.run(2)
        assert world.kinds == [[], ["config_set"]]


async def test_a_committer_whose_epoch_was_overtaken_is_deposed_at_its_next_append() -> None:
    world = World()
    async with Leader(world, "scheduler-1") as old, Leader(world, "scheduler-2") as new:
        assert [message.holder for message in world.ledger] == ["scheduler-1", "scheduler-2"]
        await world.fact(config_proposed())
        await world.clock.run(1)
        assert isinstance(old.task.exception(), Deposed)
        assert not new.task.done()
        assert world.kinds == [[], [], ["config_set"]]
        assert world.ledger[-1].epoch == 2


async def test_two_committers_that_open_the_same_epoch_end_with_two_epochs() -> None:
    world = World()
    one, two = Leader(world, "scheduler-1"), Leader(world, "scheduler-2")
    async with one, two:
        await world.clock.run(1)
        assert sorted(message.epoch for message in world.ledger) == [1, 2]


async def test_an_opening_of_unknown_outcome_that_lands_late_is_followed_by_another_epoch() -> None:
    world = World()
    leader = Leader(world)
    leader.faults.before_publish[LEDGER] = [UnknownOutcome("no answer"), Transient("away")]
    async with leader:
        world.broker.land(world.broker.limbo[0])
        await world.clock.run(1)
        await world.fact(config_proposed())
        await world.clock.run(1)
        assert [message.epoch for message in world.ledger] == [1, 2, 2]
        assert not leader.task.done()


async def test_a_standby_takes_over_when_the_leader_dies() -> None:
    world = World()
    first = Served(world, "scheduler-1")
    await world.clock.run(1)
    second = Served(world, "scheduler-2")
    await world.fact(config_proposed())
    await world.clock.run(1)
    assert {message.holder for message in world.ledger} == {"scheduler-1", ""}
    await first.dies()
    await world.fact(admitted("k1"))
    await world.clock.run(60)
    assert world.ledger[2].holder == "scheduler-2"
    assert world.said == ["config_set", "job_queued"]
    await second.dies()


# -- what cannot be taken in ----------------------------------------------------------------------------------------


async def test_a_fact_that_cannot_be_read_is_dead_lettered_and_passed_over() -> None:
    world = World()
    async with Leader(world):
        await world.bus.publish(Outgoing("fact.main.admission.job-admitted", b"{"))
        await world.fact(config_proposed())
        await world.clock.run(1)
        assert world.kinds == [[], ["config_set"]]
        assert world.ledger[-1].facts_upto == 2
        assert len(world.dead_letters) == 1
        assert "cannot be read" in world.dead_letters[0]


async def test_a_fact_that_is_not_its_services_to_say_is_refused() -> None:
    world = World()
    async with Leader(world):
        await world.fact(config_proposed(), service="binder")
        await world.fact(run_absent("a" * 20 + "-1"), service="binder")
        await world.clock.run(1)
        assert world.said == []
        assert world.dead_letters == ["config_proposed is not binder's to say", "run_absent is not binder's to say"]


async def test_a_fact_that_is_larger_than_any_of_ours_is_dead_lettered() -> None:
    world = World()
    async with Leader(world):
        huge = PodsMade(kind="pods_made", run_id="a" * 20 + "-1", uids=("x" * 64,) * 6500)
        await world.fact(huge)
        await world.fact(config_proposed())
        await world.clock.run(1)
        assert world.said == ["config_set"]
        assert "larger than" in world.dead_letters[0]


async def test_the_largest_job_is_taken_in_by_a_message_of_its_own() -> None:
    world, words = World(), ("x" * 32_768,) * 11 + ("x" * 31_000,)
    worker = role(gpus=0).model_copy(update={"template": Template(image="train:1", command=words)})
    largest = [admitted(f"k{number}", job_spec(worker)) for number in range(3)]
    assert SUBMIT_BYTES_MAX - 3000 < len(largest[0].to_bytes()) < SUBMIT_BYTES_MAX
    async with Leader(world):
        await world.fact(config_proposed())
        world.at_once(*map(outgoing, largest))
        await world.clock.run(1)
        assert world.kinds[-3:] == [["job_queued"]] * 3
        stored = [read_plain(each).data for each in world.broker.stream("LEDGER_main").messages.values()]
        assert max(map(len, stored)) <= MESSAGE_BYTES_MAX
        assert world.dead_letters == []


async def test_facts_are_taken_in_once_although_storing_a_dead_letter_failed_at_first() -> None:
    world = World()
    async with Leader(world, facts_per_message=3) as leader:
        leader.faults.before_publish["dlq."] = [Transient("away")] * 3
        unreadable = Outgoing("fact.main.admission.job-admitted", b"{")
        facts = [outgoing(admitted(f"k{number}")) for number in range(4)]
        world.at_once(outgoing(config_proposed()), *facts[:3], unreadable, facts[3])
        await world.clock.run(5)
        taken = [fact.seq for message in world.ledger for fact in message.facts]
        assert taken == [1, 2, 3, 4, 6]
        assert world.ledger[-1].facts_upto == 6
        assert len(world.dead_letters) == 1


# -- what is said twice ----------------------------------------------------------------------------------------------


def caused(fact: AnyFact, cause: str) -> Outgoing:
    return Outgoing(outgoing(fact).subject, FactMessage(v=1, fact=fact, cause=cause).to_bytes())


async def test_a_hold_that_was_delivered_twice_does_not_undo_the_release_between() -> None:
    """Also for a committer that was not there when it was said first."""
    world, job = World(), admitted("k1")
    hold = HoldRequested(kind="hold_requested", job_id=job.job_id, tenant=job.tenant)
    release = hold.model_copy(update={"undo": True})
    for instance in ("scheduler-1", "scheduler-2"):
        async with Leader(world, instance):
            if instance == "scheduler-1":
                world.at_once(outgoing(config_proposed()), outgoing(job), caused(hold, "SUBMIT_main.7"))
                world.at_once(caused(release, "SUBMIT_main.8"))
            world.at_once(caused(hold, "SUBMIT_main.7"))
            await world.clock.run(1)
            assert world.said.count("held") == 2
    assert world.ledger[-1].epoch == 2


async def test_the_same_cause_with_another_content_is_another_fact() -> None:
    """A stream that was made anew counts from one again."""
    world = World()
    async with Leader(world):
        await world.fact(config_proposed())
        world.at_once(caused(admitted("k1"), "SUBMIT_main.1"), caused(admitted("k2"), "SUBMIT_main.1"))
        await world.clock.run(1)
        assert world.said.count("job_queued") == 2


async def test_an_order_that_cannot_be_read_is_ignored() -> None:
    world = World()
    async with Leader(world) as leader:
        await world.bus.publish(Outgoing("order.main.default", b"[]"))
        await world.fact(config_proposed())
        await world.clock.run(1)
        assert world.said == ["config_set"]
        assert not leader.task.done()


# -- orders and time ------------------------------------------------------------------------------------------------


async def ready(world: World, **policy: int) -> None:
    await world.fact(config_proposed(config_body(policy=Policy(**policy))))
    await world.fact(node_seen())
    await world.fact(admitted("k1"))
    await world.clock.run(0.1)


async def test_a_job_starts_when_its_order_comes() -> None:
    world = World()
    async with Leader(world):
        await ready(world)
        await world.order(line_of(world, "k1"))
        await world.clock.run(0.1)
        assert world.kinds[-1] == ["allocated"]


async def test_an_order_alone_that_starts_nothing_makes_no_message() -> None:
    world = World()
    async with Leader(world):
        await ready(world)
        before = len(world.ledger)
        await world.order(line_of(world))
        await world.clock.run(5)
        assert len(world.ledger) == before


async def test_an_order_made_from_a_state_that_was_not_reached_yet_waits() -> None:
    world = World()
    async with Leader(world):
        await ready(world)
        await world.order(line_of(world, "k1", basis_n=len(world.ledger) + 1))
        await world.clock.run(5)
        assert "allocated" not in world.said
        await world.fact(admitted("k2"))
        await world.clock.run(5)
        assert world.kinds[-2:] == [["job_queued"], ["allocated"]]


async def test_a_deadline_is_noticed_although_nothing_comes() -> None:
    world = World()
    async with Leader(world), ActingBinder(world):
        await ready(world, start_timeout_seconds=60)
        await world.order(line_of(world, "k1"))
        await world.clock.run(59)
        assert world.kinds[-1] == ["allocated"]
        allocated = world.ledger[-1].records[0]
        assert isinstance(allocated, Allocated)
        await world.clock.run(2)
        assert world.kinds[-1] == ["revoked"]
        assert world.ledger[-1].ts == allocated.deadline


async def away(world: World) -> None:
    """The only committer allocates, and is away for longer than a start may take."""
    async with Leader(world):
        await ready(world, start_timeout_seconds=60)
        await world.order(line_of(world, "k1"))
        await world.clock.run(0.1)
        assert world.kinds[-1] == ["allocated"]
    await world.clock.run(600)


@pytest.mark.parametrize("facts_per_message", [256, 1])
async def test_a_run_that_started_while_nobody_committed_goes_on(facts_per_message: int) -> None:
    world = World()
    await away(world)
    for fact in (admitted("k2"), made(), bound(), started()):
        await world.fact(fact)
    async with Leader(world, "scheduler-2", facts_per_message=facts_per_message):
        await world.clock.run(60)
    assert "revoked" not in world.said
    assert "started" in world.said


@pytest.mark.parametrize("facts", [(made(),), ()], ids=["a fact waits", "no fact waits"])
async def test_a_run_that_did_not_start_while_nobody_committed_has_its_whole_time_again(
    facts: tuple[AnyFact, ...],
) -> None:
    world = World()
    await away(world)
    for fact in facts:
        await world.fact(fact)
    async with Leader(world, "scheduler-2"), ActingBinder(world):
        await world.clock.run(54)
        assert "revoked" not in world.said
        await world.clock.run(12)
        assert world.kinds[-1] == ["revoked"]


async def test_time_in_the_ledger_never_goes_back_when_the_clock_does() -> None:
    world = World()
    async with Leader(world):
        await ready(world)
        world.clock.now -= 500
        await world.fact(admitted("k2"))
        await world.clock.run(0.1)
        stamps = [message.ts for message in world.ledger]
        assert stamps == sorted(stamps)
        assert world.kinds[-1] == ["job_queued"]


# -- size -----------------------------------------------------------------------------------------------------------


async def test_facts_whose_consequences_are_too_large_for_one_message_are_taken_in_by_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few bytes say that a run is absent; the reason why it was stopped may be long, and comes again."""
    monkeypatch.setattr(readiness, "UNMADE_MAX", 256)
    world, jobs = World(), [f"k{number}" for number in range(256)]
    async with Leader(world):
        await world.fact(config_proposed())
        await world.fact(node_seen(pods=1000))
        for key in jobs:
            await world.fact(admitted(key, job_spec(role(gpus=0, cpu_milli=1))))
        await world.clock.run(1)
        await world.order(line_of(world, *jobs))
        await world.clock.run(1)
        for key in jobs:
            why = "\U0001f525" * 1024
            await world.fact(CancelRequested(kind="cancel_requested", job_id=admitted(key).job_id, why=why))
        await world.clock.run(1)
        for key in jobs:
            await world.fact(run_absent(f"{admitted(key).job_id}-1"))
        await world.clock.run(1)
        sizes = [len(read_plain(stored).data) for stored in world.broker.stream("LEDGER_main").messages.values()]
        assert max(sizes) <= MESSAGE_BYTES_MAX
        assert sum(kinds.count("finished") for kinds in world.kinds) == len(jobs)


async def test_a_ledger_that_lost_its_tail_halts_the_committer() -> None:
    world = World()
    async with Leader(world) as leader:
        await ready(world)
        ledger = world.broker.stream("LEDGER_main")
        ledger.remove(ledger.last_seq)
        ledger.last_seq -= 1
        await world.fact(admitted("k2"))
        await world.clock.run(1)
        assert isinstance(leader.task.exception(), InvariantViolation)


async def test_a_ledger_changed_while_the_connection_was_lost_is_halted_at_and_not_continued() -> None:
    """
    It ends where ours did, so that the swap of the append alone would let us write to it.

    Others of the process, as the clock of starts, read its tail meanwhile, and compare it with nothing.
    """
    world = World()
    async with Leader(world) as leader:
        await world.fact(config_proposed())
        await world.clock.run(0.1)
        stream = world.broker.stream(f"LEDGER_{SHARD}")
        ours = [read_plain(message).data for message in stream.messages.values()]
        for seq, data in enumerate(rechain(ours, 2, lambda message: message.update(tx="another-tx")), start=1):
            stream.messages[seq] = replace(stream.messages[seq], data=data)
        leader.ports.bus.links += 1
        await leader.ports.ledger.tail()
        await world.fact(admitted("k1"))
        await world.clock.run(0.1)
        with pytest.raises(InvariantViolation, match="the ledger was written again"):
            await leader.task
        assert len(stream.messages) == len(ours)


async def test_a_committer_goes_on_after_a_reconnect_to_its_own_ledger() -> None:
    world = World()
    async with Leader(world) as leader:
        leader.ports.bus.links += 1
        await world.fact(config_proposed())
        await world.clock.run(0.1)
        assert world.kinds == [[], ["config_set"]]


async def test_a_reason_to_wait_is_counted_when_it_is_committed() -> None:
    world = World()
    async with Leader(world) as leader:
        await world.fact(config_proposed())
        await world.fact(node_seen(gpus=0))
        await world.fact(admitted("k1"))
        await world.clock.run(0.1)
        await world.order(line_of(world, "k1"))
        await world.clock.run(0.1)
        registry = leader.ports.metrics.registry
        assert registry.get_sample_value("tessera_reasons_total", {"reason": "NoFit"}) == 1
