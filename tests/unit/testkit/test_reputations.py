"""Evidence reckoned again by the checker: a committer's story passes, and one that blames otherwise is found."""

from collections.abc import Callable
from fractions import Fraction
from math import log2 as logarithm

import pytest

from tessera.domain.health.reputation import Reckoning
from tessera.testkit.checker.report import Report
from tessera.testkit.pays_checker import check_pays
from tessera.testkit.pays_checker.reputations import log2
from tests.builders import run_absent
from tests.unit.scheduler.committer_world import World, ended
from tests.unit.scheduler.suspected_nodes import DAY_MS, drain, fail_on, fail_test, pass_test, run_on, suspects

Story = Callable[[], World]


def found(here: World) -> list[str]:
    report = Report()
    check_pays(report, here.stored)
    assert report.examined["blame"]
    return [violation.text for violation in report.violations if violation.invariant == "blame"]


def forgiven_by_time() -> World:
    here = suspects("node-03", "node-07")
    here.commit(ms=30 * DAY_MS)
    return here


def forgiven_by_runs_that_end_well() -> World:
    here = suspects()
    fail_on(here, "a", "node-03")
    for key in ("b", "c", "d", "e", "f", "g"):
        run = run_on(here, key, "node-03")
        here.commit(ended(run, reason=None))
        here.commit(run_absent(run))
    fail_on(here, "h", "node-03")
    return here


def forgiven_by_an_operator() -> World:
    here = suspects("node-03")
    drain(here, ["node-03"], undo=True)
    fail_on(here, "after", "node-03")
    return here


def judged_by_tests() -> World:
    here = suspects("node-03", "node-07")
    pass_test(here, "node-03")
    fail_test(here, "node-07")
    here.commit()
    return here


@pytest.mark.parametrize(
    "story",
    [forgiven_by_time, forgiven_by_runs_that_end_well, forgiven_by_an_operator, judged_by_tests],
    ids=lambda s: s.__name__,
)
def test_a_committers_story_breaks_no_rule(story: Story) -> None:
    assert found(story()) == []


@pytest.mark.parametrize("number", [Fraction(2), Fraction(99, 98), Fraction(505, 20), Fraction(123457, 1000)])
def test_logarithms_are_right_to_a_thousandth(number: Fraction) -> None:
    assert 0 <= logarithm(number) - log2(number) < 0.001


@pytest.mark.parametrize(
    ("story", "name", "fault"),
    [
        (forgiven_by_time, "score_at", lambda _, row, ts: row.score),
        (forgiven_by_runs_that_end_well, "lasted", lambda _, rows, rates, end: None),
        (judged_by_tests, "failed_test", lambda _, rows, node, job, ts: None),
        (judged_by_tests, "passed_test", lambda _, rows, node, ts: None),
    ],
)
def test_a_committer_that_reckons_otherwise_is_found(
    story: Story, name: str, fault: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reckoning, name, fault)
    assert any("and the ends of its runs say" in text for text in found(story()))
