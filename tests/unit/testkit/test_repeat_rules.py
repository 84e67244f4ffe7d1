"""The checker's rule of reasons: what a committer decides passes, and a reason that comes again and again is found."""

import pytest

from tessera.scheduler.decide.reservations import ReservingPass
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tests.unit.scheduler.reserving_world import passed_within_a_strict_queue


def repeated() -> list[str]:
    ledger = passed_within_a_strict_queue()
    for _ in range(3):
        ledger.commit(ms=0)
    report = Report()
    check_rules(report, ledger.stored)
    return [each.text for each in report.violations if each.invariant == "repeat"]


def test_what_a_committer_tells_breaks_no_rule() -> None:
    assert repeated() == []


def test_two_reasons_that_take_turns_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReservingPass, "let_go", lambda *_: None)
    assert len(repeated()) >= 2
