"""The rule of owners: right and wrong waits of an owner within its nominal quota, from the ledger alone."""

from typing import Any

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera.testkit.rules_checker.owner_rules import DECIDING_SECONDS
from tessera_schemas.config import Queue
from tests.rounds import Rounds, share


def waits(plans: bool, seconds: int, **more: Any) -> Report:
    """A job of a lender's waits so long for what another queue borrows; with `plans` they are made all the while."""
    rounds = Rounds(Queue(name="all"), share("owner", 8), share("other", 0), min_runtime_seconds=30)
    rounds.submit("borrows", 8, queue="other", **more)
    rounds.settle()
    rounds.submit("owner", 8, queue="owner")
    until = rounds.ts + seconds * 1000
    while rounds.ts < until:
        rounds.commit(ms=1000)
        rounds.round(plans=plans)
    report = Report()
    check_rules(report, rounds.stored)
    return report


def broken(report: Report) -> set[str]:
    return {violation.invariant for violation in report.violations}


def test_an_owner_that_nobody_helps_is_a_violation_once_the_sum_is_over() -> None:
    bound = 30 + DECIDING_SECONDS
    assert broken(waits(plans=False, seconds=bound - 5)) == set()
    assert broken(waits(plans=False, seconds=bound + 5)) == {"owner"}


def test_an_owner_that_is_helped_in_time_is_none() -> None:
    report = waits(plans=True, seconds=200)
    assert report.violations == []
    assert report.examined["owner"] > 10


def test_who_may_not_be_evicted_and_borrows_is_not_the_rules_to_judge() -> None:
    assert "owner" not in broken(waits(plans=False, seconds=200, preemptible=False))
