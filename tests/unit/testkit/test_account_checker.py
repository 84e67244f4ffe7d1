"""The account of GPUs against a book that shares no code with it: what is said otherwise is caught."""

from collections.abc import Callable
from typing import Any

import pytest

from tessera.engine.accounts.account import Account
from tessera.engine.accounts.periods import HOURS, STEP_MS
from tessera.testkit.account_checker import AccountSaid, check_account
from tessera.testkit.checker.report import Report
from tests.account_oracle import messages
from tests.account_periods import AllPeriods
from tests.contract.golden_files import FOLDER
from tests.random_ledger import random_ledger

RELEASES = ("0.3-demo", "0.3-faults", "0.4-faults")
Rows = list[list[Any]]


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
