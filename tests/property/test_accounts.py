"""The account of GPUs: it sums to the capacity, to the digit, and says of each GPU what a walk over all says."""

import json
import logging
from collections import Counter
from functools import cache

import pytest
import structlog

from tessera.domain.storing.snapshot import dump, load
from tessera.engine.accounts.account import Account
from tessera.engine.accounts.dividing import NodeDivider, by_decision, by_rack
from tessera.engine.accounts.owners import KEPT, USE, GpuCause, GpuOwner, Resource
from tessera.engine.accounts.periods import DAYS, LENGTHS, MINUTES, STEP_MS, Period, PeriodLength
from tessera.testkit.sim import world
from tests.account_oracle import DAY, HOUR, Told, by_period, fits_nothing, in_line, messages, seen
from tests.account_periods import AllPeriods
from tests.contract.golden_files import FOLDER
from tests.random_ledger import random_ledger

RELEASES = ("0.3-demo", "0.3-faults", "0.4-faults")
BEFORE_MIDNIGHT = 20_400 * DAY - 150_000
PROVED = {GpuCause.MODEL, GpuCause.PODS, GpuCause.GPU, GpuCause.CPU, GpuCause.MEMORY}
FREE = {*PROVED, GpuCause.NOTHING_WAITS, GpuCause.QUOTA, GpuCause.STOPPED, GpuCause.BUDGET, GpuCause.WORK_WAITS}

NOBODYS = {GpuCause.FREE, GpuCause.BOOKED, GpuCause.OUT}


@pytest.fixture(params=[*RELEASES, *(f"by chance {seed}" for seed in (1, 2, 5, 7, 10)), "simulated 3", "simulated 42"])
def ledger(request: pytest.FixtureRequest) -> list[bytes]:
    """The ledger of a release, one by chance that crosses midnight, or one of all services with their faults."""
    return stored(request.param)


@cache
def stored(name: str) -> list[bytes]:
    seed = int(name.rpartition(" ")[2]) if " " in name else 0
    if name.startswith("simulated"):
        return simulated(seed)
    if seed:
        return random_ledger(seed, ts=BEFORE_MIDNIGHT).stored
    return (FOLDER / "ledgers" / f"{name}.jsonl").read_bytes().splitlines()


def simulated(seed: int) -> list[bytes]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    ledgers = list[list[bytes]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "check_relations", lambda report, stored: ledgers.append(stored))
        assert not world.judge_seed(seed).violations
    return ledgers[0]


def account_of(stored: list[bytes], **bounds: int) -> AllPeriods:
    periods = AllPeriods(**bounds)
    account = Account(periods, step_ms=STEP_MS)
    for message, shard in messages(stored):
        account.take(message, shard.state)
    account.settle()
    return periods


AmountsByOwner = dict[GpuOwner, int]
"""Of one resource."""


def told(rows: AmountsByOwner) -> Told:
    """The rows in the words of the oracle."""
    found: Told = Counter()
    for owner, amount in rows.items():
        named = owner.cause not in KEPT
        # Windows of reservations begin and end between messages; unit tests have them to the millisecond.
        cause = "free" if owner.cause in {*FREE, GpuCause.BOOKED} else str(owner.cause) if named else "kept"
        found[cause, owner.job if named else ""] += amount
    return +found


def without_jobs(names: Told) -> Told:
    found: Told = Counter()
    for (cause, _), amount in names.items():
        found[cause, ""] += amount
    return found


def now(account: Account, resource: Resource = Resource.GPU) -> AmountsByOwner:
    found = {owner: owner.part(amounts, resource) for owner, (amounts, _) in account.lines.items()}
    return {owner: amount for owner, amount in found.items() if amount}


def test_hours_are_what_a_walk_over_the_whole_state_counts(ledger: list[bytes]) -> None:
    hours = account_of(ledger).hours
    assert {hour: told(rows) for hour, rows in hours.items() if told(rows)} == by_period(ledger, HOUR)


def test_days_are_what_a_walk_over_the_whole_state_counts(ledger: list[bytes]) -> None:
    days = {day: without_jobs(told(rows)) for day, rows in account_of(ledger).rows(DAYS).items()}
    expected = {day: without_jobs(names) for day, names in by_period(ledger, DAY).items()}
    assert {day: names for day, names in days.items() if names} == expected


def test_five_minutes_sum_to_their_hours(ledger: list[bytes]) -> None:
    periods, sums = account_of(ledger), dict[int, Counter[GpuOwner]]()
    for start, rows in periods.rows(MINUTES).items():
        sums.setdefault(start - start % HOUR, Counter()).update(rows)
    hours = dict[int, Counter[GpuOwner]]()
    for hour, rows in periods.hours.items():
        for owner, amount in rows.items():
            hours.setdefault(hour, Counter())[MINUTES.named(owner)] += amount
    assert sums == hours


@pytest.mark.parametrize("length", LENGTHS, ids=lambda length: length.name)
@pytest.mark.parametrize("resource", Resource)
def test_causes_sum_to_the_capacity_in_every_pool_and_flavor_of_every_period(
    ledger: list[bytes], resource: Resource, length: PeriodLength
) -> None:
    found = account_of(ledger).rows(length, resource)
    assert sum(amount for rows in found.values() for amount in rows.values())
    for rows in found.values():
        sums = Counter[tuple[str, str]]()
        for owner, amount in rows.items():
            assert amount >= 0
            sums[owner.pool, owner.flavor] += amount * (-1 if owner.cause is GpuCause.CAPACITY else 1)
        assert set(sums.values()) <= {0}


def test_what_a_message_changed_is_what_a_look_at_everything_finds(ledger: list[bytes]) -> None:
    account = Account(AllPeriods())
    for message, shard in messages(ledger):
        account.take(message, shard.state)
        anew = Account(AllPeriods(), shard.state)
        assert all(now(account, resource) == now(anew, resource) for resource in Resource)
        assert told(now(account)) == seen(shard.state, message.ts)


@pytest.mark.parametrize(
    ("resource", "size", "asked"),
    [(Resource.CPU, "cpu_milli", "cpu_free"), (Resource.MEMORY, "memory_bytes", "memory_free")],
    ids=["CPU", "memory"],
)
def test_cpu_and_memory_are_divided_as_a_look_at_everything_does(
    ledger: list[bytes], resource: Resource, size: str, asked: str
) -> None:
    account, seen_held = Account(AllPeriods()), 0
    for message, shard in messages(ledger):
        account.take(message, shard.state)
        lines, state = now(account, resource), shard.state
        nodes = [node for node in state.nodes.values() if not node.gone]
        sums = Counter[bool]()
        for owner, amount in lines.items():
            sums[owner.cause is GpuCause.CAPACITY] += amount
        assert sums[True] == sums[False] == sum(getattr(node, size) for node in nodes)
        if len(state.earmarks) or any(getattr(node, asked) < 0 for node in nodes):
            continue  # an earmark may lie on what a stopping run holds; a node may have shrunk under its pods
        nobodys = sum(amount for owner, amount in lines.items() if owner.cause in NOBODYS)
        assert nobodys == sum(getattr(node, asked) for node in nodes)
        theirs = sum(amount for owner, amount in lines.items() if owner.cause is GpuCause.OTHERS)
        assert theirs == sum(getattr(node.others, size) for node in nodes)
        by_job = Counter[str]()
        for run in state.runs.values():
            needs = {role.name: role.need for role in run.roles}
            here = [place for place in run.places if (node := state.nodes.get(place.node)) and not node.gone]
            by_job[run.job_id] += sum(getattr(needs[place.role], size) for place in here)
        assert +by_job == _held_by_job(lines)
        seen_held += len(by_job)
    assert seen_held


def _held_by_job(lines: AmountsByOwner) -> Counter[str]:
    found = Counter[str]()
    for owner, amount in lines.items():
        if owner.job:
            found[owner.job] += amount
    return +found


@pytest.mark.parametrize("divide", [by_rack, by_decision], ids=["racks", "decisions"])
def test_racks_and_decisions_only_tell_the_lines_of_flavors_apart(ledger: list[bytes], divide: NodeDivider) -> None:
    account, other = Account(AllPeriods()), Account(AllPeriods(), divide=divide)
    for message, shard in messages(ledger):
        account.take(message, shard.state)
        other.take(message, shard.state)
        assert _without_flavor(now(other)) == _without_flavor(now(account))
        assert now(other) == now(Account(AllPeriods(), shard.state, divide=divide))


def _without_flavor(lines: AmountsByOwner) -> Counter[GpuOwner]:
    found = Counter[GpuOwner]()
    for owner, amount in lines.items():
        found[owner._replace(flavor="")] += amount
    return +found


def test_what_is_said_to_fit_nothing_that_waits_does_not(ledger: list[bytes]) -> None:
    account = Account(AllPeriods())
    for message, shard in messages(ledger):
        account.take(message, shard.state)
        for pool in {owner.pool for owner in account.lines}:
            causes = Counter[GpuCause]()
            for owner, milli in now(account).items():
                causes[owner.cause] += milli if owner.pool == pool else 0
            assert sum(causes[cause] for cause in PROVED) <= fits_nothing(shard.state, pool)
            is_quiet = not in_line(shard.state, pool)
            assert not causes[GpuCause.NOTHING_WAITS] or is_quiet
            assert not is_quiet or not sum(causes[cause] for cause in FREE - {GpuCause.NOTHING_WAITS})


def test_what_worked_is_what_the_newest_facts_of_runs_say_and_of_no_sum(ledger: list[bytes]) -> None:
    periods = AllPeriods()
    account = Account(periods, step_ms=STEP_MS, note_use=periods.note_use)
    last = dict[str, tuple[str, int, int]]()
    for message, shard in messages(ledger):
        account.take(message, shard.state)
        for record in message.records:
            run = shard.state.runs.get(record.run_id) if record.kind == "use_noted" else None
            if run is not None and run.gpu_use is not None:
                last[run.run_id] = run.job_id, run.gpu_use.measured_gpu_milli_ms, run.gpu_use.worked_gpu_milli_ms
    account.settle()
    told, noted = Counter[tuple[GpuCause, str]](), Counter[tuple[GpuCause, str]]()
    for job, measured, worked in last.values():
        told[GpuCause.MEASURED, job] += measured
        told[GpuCause.WORKED, job] += worked
    for rows in periods.hours.values():
        for owner, amount in rows.items():
            if owner.cause in USE:
                noted[owner.cause, owner.job] += amount
    assert +noted == +told
    without = {hour: {o: a for o, a in rows.items() if o.cause not in USE} for hour, rows in periods.hours.items()}
    assert without == account_of(ledger).hours


@pytest.mark.parametrize("rows_max", [4096, 3], ids=["all names are kept", "names are folded"])
def test_a_ledger_read_in_two_halves_gives_the_same_bytes(ledger: list[bytes], rows_max: int) -> None:
    def digits(periods: AllPeriods) -> str:
        over = [period.stored() for length in LENGTHS for period in periods.over(length).values()]
        return json.dumps([over, {name: period.stored() for name, period in sorted(periods.open.items())}])

    periods = AllPeriods(rows_max)
    again = AllPeriods(rows_max)
    account = Account(periods, step_ms=STEP_MS, note_use=periods.note_use)
    goes_on = Account(again, step_ms=STEP_MS, note_use=again.note_use)
    for message, shard in messages(ledger):
        account.take(message, shard.state)
        periods.go_to(account.upto)
        goes_on.take(message, shard.state)
        again.go_to(goes_on.upto)
        if message.n == len(ledger) // 2:
            goes_on.settle()
            kept = json.loads(json.dumps({name: period.stored() for name, period in again.open.items()}))
            again.open = {name: Period.read(period) for name, period in kept.items()}
            half = load(iter(list(dump(shard.state))))
            goes_on = Account(again, half, STEP_MS, note_use=again.note_use)
    account.settle()
    goes_on.settle()
    assert digits(again) == digits(periods)


def test_names_beyond_the_bound_go_to_others_and_their_amounts_stay(ledger: list[bytes]) -> None:
    def by_cause(rows: AmountsByOwner) -> Counter[GpuOwner]:
        found = Counter[GpuOwner]()
        for owner, amount in rows.items():
            found[GpuOwner(owner.pool, owner.flavor, owner.cause)] += amount
        return +found

    full, bounded = account_of(ledger).hours, account_of(ledger, rows_max=1).hours
    assert {hour: by_cause(rows) for hour, rows in full.items()} == {h: by_cause(rows) for h, rows in bounded.items()}
    named = [{owner.job for owner in rows if owner.job} for rows in bounded.values()]
    assert all(len(names) <= 1 + len({"(others)"}) for names in named)
