"""Evidence against nodes: who is blamed for failures, who is not, and how it passes."""

from fractions import Fraction
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.health.reputation import (
    BIT,
    FAILED_MAX,
    MOST,
    Ended,
    FailureRates,
    NodeStanding,
    Reckoning,
    Reputations,
    bits,
    common_devices,
)

DAY = 86_400
RECKONING = Reckoning(7 * DAY * 1000)


class Book:
    """Rows of nodes and pools, and the ends of runs as people say them."""

    def __init__(self) -> None:
        self.rows, self.rates, self.ts = Reputations(), FailureRates(), 0

    def fails(self, job: str, *nodes: str, user: str = "", devices: tuple[int, ...] = ()) -> None:
        """A run of the job fails on these nodes, a minute later."""
        self.ts += 60_000
        end = Ended(self.ts, "default", user or f"user-of-{job}", job, nodes, dict.fromkeys(nodes, devices))
        RECKONING.failed(self.rows, self.rates, end)

    def lasts(self, job: str, *nodes: str) -> None:
        """A run of the job ends well on these nodes, a minute later."""
        self.ts += 60_000
        RECKONING.lasted(self.rows, self.rates, Ended(self.ts, "default", f"user-of-{job}", job, nodes))

    def standing(self, node: str, days: int = 0) -> NodeStanding:
        return RECKONING.standing(self.rows.get(node), self.ts + days * DAY * 1000)


def test_two_jobs_that_fail_on_a_node_make_it_suspect_and_three_make_it_bad():
    book, found = Book(), list[NodeStanding]()
    for job in ("a", "b", "c"):
        book.fails(job, "n1")
        found.append(book.standing("n1"))
    assert found == [NodeStanding.GOOD, NodeStanding.SUSPECT, NodeStanding.BAD]


def test_a_broken_program_counts_once_on_a_node_however_often_it_fails_there():
    book = Book()
    for _ in range(100):
        book.fails("array", "n1")
    assert book.standing("n1") is NodeStanding.GOOD
    assert len(book.rows.get("n1").failed) == 1


def test_a_program_that_fails_everywhere_blames_no_node():
    book = Book()
    for number in range(1, 30):
        book.fails("array", f"n{number}")
    assert {book.standing(f"n{number}") for number in range(1, 30)} == {NodeStanding.GOOD}
    assert all(row.score == 0 for row in book.rows.values())


def test_the_second_place_where_a_job_fails_halves_what_it_says_of_both():
    book = Book()
    book.fails("a", "n1")
    alone = book.rows.get("n1").score
    book.fails("a", "n2")
    assert book.rows.get("n1").score == pytest.approx(alone / 2, abs=2)
    assert book.rows.get("n2").score == pytest.approx(alone / 2, abs=50)


def test_a_failure_where_others_failed_as_well_speaks_for_no_program():
    book = Book()
    book.fails("a", "n1")
    book.fails("b", "n1")
    before = book.rows.get("n1").score
    book.fails("b", "n2")
    book.fails("b", "n3")
    assert book.rows.get("n1").score == pytest.approx(before, abs=5)
    assert book.standing("n1") is NodeStanding.SUSPECT


def test_jobs_of_one_user_have_to_be_more():
    book = Book()
    for job in ("a", "b", "c", "d"):
        book.fails(job, "n1", user="who writes a program")
    assert book.standing("n1") is NodeStanding.SUSPECT
    book.fails("e", "n1", user="who writes a program")
    assert book.standing("n1") is NodeStanding.BAD


def test_runs_that_end_well_speak_for_a_node_but_make_up_for_no_later_fault():
    book = Book()
    for number in range(50):
        book.lasts(f"well-{number}", "n1")
    book.fails("a", "n1")
    book.fails("b", "n1")
    assert book.standing("n1") is NodeStanding.SUSPECT
    for number in range(10):
        book.lasts(f"later-{number}", "n1")
    assert book.standing("n1") is NodeStanding.GOOD


def test_tasks_that_end_well_do_not_hide_those_of_their_array_that_fail():
    book = Book()
    book.fails("array", "n1")
    before = book.rows.get("n1").score
    for _ in range(10):
        book.lasts("array", "n1")
    assert book.rows.get("n1").score == before


def test_a_gang_whose_failed_pods_nobody_tells_apart_says_less_of_each_node():
    told, untold = Book(), Book()
    told.fails("a", "n1")
    untold.fails("a", *(f"n{number}" for number in range(1, 17)))
    assert 0 < untold.rows.get("n1").score < told.rows.get("n1").score


def test_the_node_that_was_suspect_before_is_blamed_for_the_gang():
    book = Book()
    book.fails("a", "n1")
    book.fails("b", "n1")
    book.fails("gang", "n1", "n2")
    assert book.rows.get("n2").score < BIT
    assert book.standing("n1") is NodeStanding.BAD


def test_where_many_programs_fail_a_failure_says_little():
    quiet, loud = Book(), Book()
    for number in range(2_000):
        quiet.lasts(f"job-{number}", f"n{number}")
        (loud.lasts if number % 5 else loud.fails)(f"job-{number}", f"n{number}")
    quiet.fails("a", "node")
    loud.fails("a", "node")
    assert quiet.rows.get("node").score > 5 * BIT
    assert loud.rows.get("node").score < 3 * BIT


def test_half_of_what_is_known_is_left_after_each_half_life():
    book = Book()
    book.fails("a", "n1")
    row = book.rows.get("n1")
    at = [RECKONING.score_at(row, row.ts + weeks * 7 * DAY * 1000) for weeks in range(4)]
    assert at == [row.score, row.score // 2, row.score // 4, row.score // 8]


def test_a_bad_node_passes_for_good_after_a_while_and_one_failure_more_takes_it_out_again():
    book = Book()
    for job in ("a", "b", "c"):
        book.fails(job, "n1")
    days = next(days for days in range(60) if book.standing("n1", days) is NodeStanding.GOOD)
    assert 3 <= days <= 14
    book.ts += days * DAY * 1000
    book.fails("d", "n1")
    assert book.standing("n1") is NodeStanding.BAD


def test_a_node_keeps_no_more_than_its_last_failures():
    book = Book()
    for number in range(40):
        book.fails(f"job-{number}", "n1")
    row = book.rows.get("n1")
    assert (len(row.failed), row.score) == (FAILED_MAX, MOST)
    assert row.since_ts == row.failed[0].ts


def test_the_gpus_that_all_failed_jobs_had_are_named():
    book = Book()
    book.fails("a", "n1", devices=(0, 3))
    assert common_devices(book.rows.get("n1")) == ()
    book.fails("b", "n1", devices=(3, 4))
    assert common_devices(book.rows.get("n1")) == (3,)


@given(one=st.integers(1, 10**6), other=st.integers(1, 10**6))
def test_bits_are_a_logarithm_to_three_digits(one: int, other: int):
    assert bits(one, other) == pytest.approx(BIT * log2(Fraction(one, other)), abs=3)
