"""Quotes that are corrected by the scores of earlier ones."""

import pickle
import sys
from random import Random
from types import FrameType

import pytest

from tessera.engine.quoting import LEVELS, Quote
from tessera.engine.quoting.chance import LOG_UNIT, log_of, wait_of
from tessera.engine.quoting.scores import QuoteBook

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
CLASS, OTHER = ("default", "research", "0", "1"), ("default", "research", "0", "to 8")
MIDDLE = LEVELS.index(500)


def drawn(name: str, ts: int, minutes: int) -> Quote:
    """A quote whose levels are a tenth, a fifth and so on around so many minutes."""
    return Quote(name, ts, tuple(minutes * MINUTE * level // 500 for level in LEVELS))


def scored(count: int, factor: float = 1, book: QuoteBook | None = None, ts: int = 0, name: str = "") -> QuoteBook:
    """A book of jobs that each waited so many times as long as quoted in the middle, spread over a factor of four."""
    made, draw = book or QuoteBook(), Random(7)
    for at in range(count):
        begin = ts + at * 60 * MINUTE
        made.give(drawn(f"{name}{at}", begin, 10), CLASS)
        made.started(f"{name}{at}", begin + int(10 * MINUTE * factor * 4 ** (draw.random() - 0.5)))
    return made


def test_logarithms_come_back_as_they_were_within_a_thousandth() -> None:
    for wait in (1000, 1500, 59_999, 3_600_000, 10**11):
        assert abs(wait_of(log_of(wait)) - wait) <= wait // 500
    assert log_of(2000) - log_of(1000) in range(LOG_UNIT * 9 // 10, LOG_UNIT * 11 // 10)


def test_without_scores_a_quote_is_told_wider_than_it_was_drawn_around_the_same_median() -> None:
    told, plain = QuoteBook().give(drawn("a", 0, 10), CLASS), drawn("a", 0, 10)
    assert abs(told.wait_at(500) - plain.wait_at(500)) <= plain.wait_at(500) // 500
    assert told.wait_at(25) < plain.wait_at(25) * 7 // 8 < plain.wait_at(975) * 8 // 7 < told.wait_at(975)


def test_quotes_that_were_too_short_by_a_factor_become_longer_by_it() -> None:
    told = scored(200, factor=4).give(drawn("new", 201 * 60 * MINUTE, 10), CLASS)
    assert 30 * MINUTE < told.wait_at(500) < 55 * MINUTE


def test_bounds_hold_as_often_as_they_say_once_there_are_scores() -> None:
    book, draw, held = scored(300, factor=3), Random(1), [0] * len(LEVELS)
    for at in range(400):
        begin = (400 + at) * 60 * MINUTE
        told = book.give(drawn(f"new-{at}", begin, 10), CLASS)
        wait = int(10 * MINUTE * 3 * 4 ** (draw.random() - 0.5))
        book.started(f"new-{at}", begin + wait)
        held = [count + (wait <= bound) for count, bound in zip(held, told.waits_ms, strict=True)]
    assert all(abs(count * 1000 // 400 - level) <= 45 for count, level in zip(held, LEVELS, strict=True))


def test_jobs_that_wait_yet_count_as_later_than_now() -> None:
    begin = 201 * 60 * MINUTE
    plain, beside = scored(200), scored(200)
    for at in range(200):
        beside.give(drawn(f"open-{at}", begin, 10), CLASS)
    later = begin + DAY
    assert beside.give(drawn("new", later, 10), CLASS).wait_at(800) > 2 * plain.give(
        drawn("new", later, 10), CLASS
    ).wait_at(800)


def test_a_class_of_few_scores_leans_on_all_and_one_of_many_on_its_own() -> None:
    book, ts = scored(200, factor=4), 201 * 60 * MINUTE
    assert book.give(drawn("other", ts, 10), OTHER).wait_at(500) > 25 * MINUTE
    for at in range(300):
        begin = ts + at * 60 * MINUTE
        book.give(drawn(f"other-{at}", begin, 10), OTHER)
        book.started(f"other-{at}", begin + 10 * MINUTE)
    last = ts + 301 * 60 * MINUTE
    assert book.give(drawn("one more", last, 10), OTHER).wait_at(500) < 16 * MINUTE


@pytest.mark.parametrize(("together", "off_permille"), [(1, 25), (10, 70)])
def test_bounds_hold_as_often_as_they_say_while_waits_drift(together: int, off_permille: int) -> None:
    """Waits that grow eightfold over 3,000 quotes, of which so many are given at once."""
    book, draw, held, many = QuoteBook(), Random(3), [0] * len(LEVELS), 3000
    for at in range(0, many, together):
        begin = at * 60 * MINUTE
        waits = [int(5 * MINUTE * 8 ** (at / many) * 4 ** (draw.random() - 0.5)) for _ in range(together)]
        told = [book.give(drawn(f"{at}-{one}", begin, 10), CLASS).waits_ms for one in range(together)]
        for one, wait in sorted(enumerate(waits), key=lambda each: each[1]):
            book.started(f"{at}-{one}", begin + wait)
        for wait, bounds in zip(waits, told, strict=True):
            held = [count + (wait <= bound) for count, bound in zip(held, bounds, strict=True)]
    assert all(abs(count * 1000 // many - level) <= off_permille for count, level in zip(held, LEVELS, strict=True))


def test_a_burst_that_was_told_wrong_moves_the_next_quotes_by_little_more_than_a_few_of_it() -> None:
    def told_after(burst: int) -> int:
        book = QuoteBook()
        for at in range(burst):
            book.give(drawn(f"{at}", 0, 10), CLASS)
        for at in range(burst):
            book.started(f"{at}", DAY)
        return book.give(drawn("new", 2 * DAY, 10), CLASS).wait_at(500)

    assert 12 * MINUTE < told_after(20) < told_after(2000) < 2**3 * told_after(20)


def test_a_bound_that_has_passed_counts_before_the_job_starts_and_once() -> None:
    waits, started = QuoteBook(), QuoteBook()
    for book in (waits, started):
        book.give(drawn("a", 0, 10), CLASS)
    started.started("a", DAY)
    later = [book.give(drawn("new", 2 * DAY, 10), CLASS) for book in (waits, started)]
    assert later[0] == later[1]
    assert later[0].wait_at(500) > 10 * MINUTE


def test_of_a_job_that_is_quoted_again_the_first_quote_is_scored() -> None:
    once, again = QuoteBook(), QuoteBook()
    for book in (once, again):
        book.give(drawn("a", 0, 10), CLASS)
    for at in range(1, 60):
        again.give(drawn("a", at * MINUTE, 60), CLASS)
    for book in (once, again):
        book.started("a", 60 * MINUTE)
    assert once.give(drawn("b", DAY, 10), CLASS) == again.give(drawn("b", DAY, 10), CLASS)


def test_bounds_of_a_second_come_back_as_soon_as_waits_are_longer() -> None:
    book = QuoteBook()
    for at in range(500):
        book.give(Quote(f"{at}", at * MINUTE, (1000,) * len(LEVELS)), CLASS)
        book.started(f"{at}", at * MINUTE + 500)
    assert min(book.give(drawn("new", DAY, 10), CLASS).waits_ms[MIDDLE:]) > 5 * MINUTE


def test_a_quote_costs_as_much_among_many_that_are_open_as_among_few() -> None:
    def calls(count: int) -> int:
        book, made = QuoteBook(), 0
        for at in range(count):
            book.give(drawn(f"{at}", at, 10), CLASS)

        def note(frame: FrameType, event: str, value: object) -> None:
            nonlocal made
            made += 1

        sys.setprofile(note)
        try:
            book.give(drawn("new", count, 10), CLASS)
            book.started("new", count)
        finally:
            sys.setprofile(None)
        return made

    assert calls(5000) <= calls(50) + 5


def test_quotes_that_are_over_leave_nothing_behind() -> None:
    def stored(count: int) -> int:
        book = QuoteBook()
        for at in range(count):
            book.give(drawn(f"{at}", at * MINUTE, 10**6), CLASS)
            book.started(f"{at}", at * MINUTE + 1000) if at % 2 else book.dropped(f"{at}")
        return len(pickle.dumps(book))

    assert stored(4000) < 2 * stored(200)


def test_a_job_that_was_cancelled_leaves_no_score() -> None:
    book = scored(100)
    book.give(drawn("gone", 101 * 60 * MINUTE, 10), CLASS)
    book.dropped("gone")
    book.started("gone", 400 * DAY)
    assert book.give(drawn("new", 102 * 60 * MINUTE, 10), CLASS).wait_at(975) < 60 * MINUTE
