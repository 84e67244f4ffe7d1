"""The account of GPUs against a book that shares no code with it: what is said otherwise is caught."""

from collections.abc import Callable
from typing import Any

import pytest

from tessera.engine.accounts.account import Account
from tessera.engine.accounts.periods import HOURS, STEP_MS
from tessera.testkit.account_checker import AccountSaid, check_account
from tessera.testkit.checker.report import Report
from tessera_schemas.cluster.device_layouts import TakenDevice
from tessera_schemas.facts import AnyFact, RunAbsent, RunEnded
from tests.account_oracle import messages
from tests.account_periods import AllPeriods
from tests.builders import admitted, job_spec
from tests.contract.golden_files import FOLDER
from tests.ledgers import Committed
from tests.published_devices import (
    DRIVER,
    claim,
    claiming,
    class_seen,
    gpus_with_nics,
    layout_seen,
    offering,
    selected,
)
from tests.random_ledger import random_ledger

RELEASES = ("0.3-demo", "0.3-faults", "0.4-faults")
Rows = list[list[Any]]
GPU_OF_OTHERS = f"{DRIVER}/node-0/gpu-1"


def said_of(stored: list[bytes], spoilt: Callable[[Rows], None] = lambda rows: None) -> AccountSaid:
    periods = AllPeriods()
    account, since, n = Account(periods, step_ms=STEP_MS, note_use=periods.note_use), 0, 0
    for message, shard in messages(stored):
        account.take(message, shard.state)
        since, n = since or message.ts, message.n
    account.settle()
    whole = periods.whole_rows(HOURS).items()
    hours = {start: [[*owner, list(amounts)] for owner, amounts in rows.items()] for start, rows in whole}
    for rows in hours.values():
        spoilt(rows)
    return AccountSaid(n, since, hours)


def found(stored: list[bytes], said: AccountSaid) -> list[str]:
    report = Report()
    check_account(report, stored, said)
    assert report.examined["account"] > 0
    return [violation.text for violation in report.violations]


@pytest.mark.parametrize("name", RELEASES)
def test_the_account_of_a_release_s_ledger_is_what_the_checker_counts(name: str) -> None:
    stored = (FOLDER / "ledgers" / f"{name}.jsonl").read_bytes().splitlines()
    assert not found(stored, said_of(stored))


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_account_of_a_ledger_by_chance_is_what_the_checker_counts(seed: int) -> None:
    stored = random_ledger(seed, 120).stored
    assert not found(stored, said_of(stored))


def _take_a_digit(rows: Rows, place: int = 0) -> None:
    next(row for row in rows if row[3] and row[-1][place])[-1][place] -= 1


def _take_a_digit_of_cpu(rows: Rows) -> None:
    _take_a_digit(rows, 1)


def _take_a_digit_of_memory(rows: Rows) -> None:
    _take_a_digit(rows, 2)


def _say_gpus_alone(rows: Rows) -> None:
    for row in rows:
        row[-1] = row[-1][0]


def _name_another_tenant(rows: Rows) -> None:
    for row in rows:
        row[3] = "nobody" if row[3] else ""


def _call_what_is_out_free(rows: Rows) -> None:
    for row in rows:
        row[2] = "work_waits" if row[2] == "out" else row[2]


def _hide_capacity(rows: Rows) -> None:
    for row in rows:
        row[-1][0] -= 1000 if row[2] == "capacity" else 0


SPOILT = (
    _take_a_digit,
    _take_a_digit_of_cpu,
    _take_a_digit_of_memory,
    _say_gpus_alone,
    _name_another_tenant,
    _call_what_is_out_free,
    _hide_capacity,
)


@pytest.mark.parametrize("spoilt", SPOILT)
def test_an_account_that_says_otherwise_is_caught(spoilt: Callable[[Rows], None]) -> None:
    stored = random_ledger(7, 120).stored
    assert found(stored, said_of(stored, spoilt))


def test_an_hour_that_is_missing_is_caught() -> None:
    stored = random_ledger(7, 120).stored
    said = said_of(stored)
    assert found(stored, AccountSaid(said.n, said.since_ts, {}))


def test_what_the_account_does_not_have_is_not_missed_in_it() -> None:
    stored = random_ledger(7, 120).stored
    half = said_of(stored[:60])
    assert half.n == 60
    assert not found(stored, half)


def claimed(*more: AnyFact) -> list[bytes]:
    """A job has two of four GPUs of a driver and a card for an hour each, by claims; then facts that come later."""
    layout = gpus_with_nics(4)
    ledger = Committed(ts=3_600_000).begin(layout_seen(layout), class_seen(), class_seen("net", "nic"))
    ledger.commit(selected(layout, 0xF0, "nic"), offering("node-0", layout, 4))
    gpu, nic = claim("gpu", 2), claim("nic", 1, "net")
    job = admitted("k1", job_spec(claiming(gpu, nic)))
    ledger.commit(job, ms=3_600_000)
    run = ledger.start(job.job_id, "k1")
    ledger.commit(*more, ms=3_600_000)
    ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=1)
    ledger.commit(RunAbsent(kind="run_absent", run_id=run))
    return ledger.stored


def test_devices_of_a_class_are_counted_as_the_checker_counts_them() -> None:
    stored = claimed()
    said = said_of(stored)
    assert not found(stored, said)
    rows = [row for hours in said.hours.values() for row in hours if row[2] == "used"]
    held = {row[8]: sum(other[-1][0] for other in rows if other[8] == row[8]) for row in rows}
    assert held == {"": 2000 * held["net"], DRIVER: 2 * held["net"], "net": held["net"]}
    assert held["net"] >= 3_600_000
    of_class = next(row for row in rows if row[8] == "net")
    of_class[-1][0] -= 1
    assert any(text.startswith("class:net default used lab") for text in found(stored, said))


def test_what_a_layout_says_of_gpus_counts_from_when_the_ledger_has_it() -> None:
    layout = gpus_with_nics(4)
    stored = Committed(ts=3_600_000).begin(offering("node-0", layout, 4, taken=(TakenDevice(device=GPU_OF_OTHERS),)))
    stored.commit(ms=1000)
    stored.commit(layout_seen(layout), ms=1000)
    stored.commit(ms=1000)
    said = said_of(stored.stored)
    assert not found(stored.stored, said)
    assert [row[-1][0] for rows in said.hours.values() for row in rows if row[2] == "others"] == [1000 * 1000]
