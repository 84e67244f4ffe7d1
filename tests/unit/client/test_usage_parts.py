"""The runs behind a decayed usage: they sum to the number in the state, to the digit, whatever has happened."""

import os
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tessera.client.ledger.accounts.usage_parts import EARLIER, UsageParts, UsageReport
from tessera.client.outcomes import Failure
from tessera.domain.devices.resources import Amount
from tessera.domain.entities import Run
from tessera.domain.folding.books import put_in_force
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.config import Config, Queue, Tenant
from tessera_schemas.facts import RunEnded
from tessera_schemas.ledger import FORMAT
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

HOUR_MS = 3_600_000
ROLLED_OVER_AGO = 6000
"""Starts and ends since the roll-over: some three weeks, within which nothing is forgotten."""
NAMES = ("research",), ("research", "t0"), ("research", "t0", "ann")


def body(half_life: int = 24 * 3600, *queues: Queue) -> Any:
    made = config_body(*queues, policy={"fair_share": {"half_life_seconds": half_life}})
    return made.model_copy(update={"tenants": (Tenant(name="t0"), Tenant(name="t1"))})


def submitted(number: int, draw: Random) -> Any:
    spec = job_spec(role(gpus=draw.choice((1, 2, 4))), user=draw.choice(("ann", "bob", "")))
    return admitted(f"k{number}", spec, tenant=draw.choice(("t0", "t1")))


def lived(draw: Random, steps: int, *changes: Any) -> Committed:
    """A ledger of jobs that come and go, with these configurations applied in between."""
    ledger = Committed().begin(node_seen("node-a", 8), node_seen("node-b", 8), body=body())
    at = {steps * (place + 1) // (len(changes) + 1): change for place, change in enumerate(changes)}
    for number in range(steps):
        ledger.commit(submitted(number, draw), ms=draw.randrange(1, HOUR_MS))
        ledger.commit(orders=(ledger.line(),), ms=1)
        ends = draw.sample(sorted(run.run_id for run in ledger.state.runs.values()), len(ledger.state.runs) // 3)
        ledger.commit(*(RunEnded(kind="run_ended", run_id=run) for run in ends), ms=draw.randrange(1, HOUR_MS))
        ledger.commit(*map(run_absent, ends), ms=draw.randrange(1, 9999))
        if number in at:
            ledger.commit(config_proposed(at[number], ledger.state.config.version))
    return ledger


def parts_of(ledger: Committed, names: tuple[str, ...], opening: int = 0) -> UsageReport:
    """From message `opening` on, as from a generation that opens there."""
    shard, parts = Shard(), None
    for seq, data in enumerate(ledger.stored, start=1):
        shard.fold(decode_entry(Message("", seq, data)))
        if seq >= opening:
            parts = parts or UsageParts(names, shard.state)
            parts.take(shard.state)
    assert parts is not None
    return parts.report(shard.state)


def checked(ledger: Committed, names: tuple[str, ...], opening: int = 0) -> UsageReport:
    """The report, whose parts sum to what the state has."""
    report, state = parts_of(ledger, names, opening), ledger.state
    assert report.used == state.decay.used(state.decayed.get("/".join(names)), state.ts)
    assert sum(part.used for part in report.parts) == report.used > 0
    return report


@pytest.mark.parametrize("names", NAMES, ids="/".join)
def test_the_runs_sum_to_the_number_in_the_state_to_the_digit(names: tuple[str, ...]) -> None:
    report = checked(lived(Random(1), 120), names)
    assert EARLIER not in {part.run for part in report.parts}
    assert len(report.parts) > 20
    assert all(part.used >= 0 and part.gpu_milli in (1000, 2000, 4000) for part in report.parts)


def test_what_a_run_holds_counts_from_its_start_and_is_marked_as_held() -> None:
    ledger = Committed().begin(node_seen("node-a", 8), body=body())
    job = admitted("k", job_spec(role(gpus=2), user="ann"), tenant="t0")
    ledger.commit(job)
    run = ledger.start(job.job_id, "k")
    began = ledger.state.runs.get(run).allocated_ts
    ledger.commit(ms=HOUR_MS)
    (part,) = checked(ledger, ("research", "t0", "ann")).parts
    assert (part.run, part.from_ts, part.to_ts, part.gpu_milli) == (run, began, 0, 2000)


def test_after_a_roll_over_what_came_before_is_one_part() -> None:
    ledger = lived(Random(2), 60)
    report = checked(ledger, ("research",), opening=len(ledger.stored) // 2)
    (earlier,) = [part for part in report.parts if part.run == EARLIER]
    assert 0 < earlier.used < report.used
    whole = {part.run: part.used for part in checked(ledger, ("research",)).parts}
    later = {part.run for part in report.parts} - {EARLIER}
    assert later < whole.keys()
    gone = sum(used for run, used in whole.items() if run not in later)
    assert gone <= earlier.used  # and what live runs had held before it


def test_another_half_life_a_new_name_and_none_for_a_while_leave_the_sum_exact() -> None:
    was = Queue(name="science", was="research")
    ledger = lived(Random(3), 60, body(7 * 24 * 3600), body(0), body(24 * 3600))
    checked(ledger, ("research", "t0"))
    for change in (body(24 * 3600, was), body(36 * 3600, was)):
        ledger.commit(config_proposed(change, ledger.state.config.version))
        ledger.commit(ms=HOUR_MS)
        report = checked(ledger, ("science", "t0"))
    assert EARLIER in {part.run for part in report.parts}


def test_twenty_thousand_starts_and_ends_fifty_restarts_and_a_roll_over_change_no_digit() -> None:
    check_many(int(os.environ.get("TESSERA_SHARE_EVENTS", "20000")))


def starts_and_ends(events: int) -> Iterator[tuple[int, Run, bool]]:
    """Milliseconds, then a run that starts, or ends, at random."""
    draw, live = Random(4), list[Run]()
    ledger = Committed().begin(node_seen("node-a", 8), body=body(0))
    ledger.commit(admitted("k", job_spec(role(gpus=1)), tenant="t0"))
    ledger.commit(orders=(ledger.line(),))
    (template,) = ledger.state.runs.values()
    for number in range(events):
        ms = draw.randrange(1, 600_000)
        if len(live) > draw.randrange(1, 40):
            yield ms, live.pop(draw.randrange(len(live))), True
            continue
        whose = {"tenant": draw.choice(("t0", "t1")), "user": draw.choice(("ann", "bob", ""))}
        amount = Amount(0, 0, draw.choice((250, 1000, 8000)))
        live.append(replace(template, run_id=f"r{number}-1", amount=amount, **whose))
        yield ms, live[-1], False


def pass_on(state: State, ms: int, run: Run, ends: bool) -> None:
    if state.decay is not None:
        state.decay.forget(state.decayed, state.ts, state.ts + ms)
    state.ts += ms
    (state.drop_run if ends else state.put_run)(run)


def restored(state: State) -> State:
    return load(iter(list(dump(state))))


def check_many(events: int) -> None:
    """One state is restored fifty times, and the last parts begin anew at a roll-over."""
    whole = State()
    whole.format, whole.ts = FORMAT, 1_760_000_000_000
    put_in_force(whole, Config(version=1, body=body(7 * 24 * 3600)))
    again, parts = restored(whole), [UsageParts(names, whole) for names in NAMES]
    for number, event in enumerate(starts_and_ends(events)):
        pass_on(whole, *event)
        pass_on(again, *event)
        for each in parts:
            each.take(whole)
        if number % (events // 50) == 0:
            again = restored(again)
        if number == events - ROLLED_OVER_AGO:
            parts.append(UsageParts(NAMES[1], restored(whole)))
    assert dict(whole.decayed.items()) == dict(again.decayed.items())
    for names, each in zip((*NAMES, NAMES[1]), parts, strict=True):
        report = each.report(whole)
        assert report.used == whole.decay.used(whole.decayed.get("/".join(names)), whole.ts)
        assert sum(part.used for part in report.parts) == report.used > 0
        assert (EARLIER in {part.run for part in report.parts}) == (each is parts[-1])


def test_a_name_of_which_nothing_counts_is_said_to_be_none() -> None:
    ledger = Committed().begin(node_seen("node-a", 8), body=body())
    with pytest.raises(Failure, match="research/nobody: nothing counts under it"):
        parts_of(ledger, ("research", "nobody"))
    with pytest.raises(Failure, match="no half-life is configured"):
        parts_of(Committed().begin(node_seen("node-a", 8), body=body(0)), ("research",))
