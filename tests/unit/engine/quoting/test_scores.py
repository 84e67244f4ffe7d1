"""Quotes that are corrected by the scores of earlier ones."""

from random import Random

from tessera.engine.quoting import LEVELS, Quote
from tessera.engine.quoting.chance import LOG_UNIT, log_of, wait_of
from tessera.engine.quoting.scores import QuoteBook, Score, quantile_of_scores

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


def test_without_scores_a_quote_is_told_as_it_was_drawn() -> None:
    told = QuoteBook().give(drawn("a", 0, 10), CLASS)
    assert all(
        abs(mine - its) <= its // 500 for mine, its in zip(told.waits_ms, drawn("a", 0, 10).waits_ms, strict=True)
    )


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


def test_scores_of_months_ago_say_nothing() -> None:
    late = 200 * 60 * MINUTE + 60 * DAY
    assert scored(100, factor=8).give(drawn("new", late, 10), CLASS).wait_at(500) < 16 * MINUTE


def test_a_job_that_was_cancelled_leaves_no_score() -> None:
    book = scored(100)
    book.give(drawn("gone", 101 * 60 * MINUTE, 10), CLASS)
    book.dropped("gone")
    book.started("gone", 400 * DAY)
    assert book.give(drawn("new", 102 * 60 * MINUTE, 10), CLASS).wait_at(975) < 60 * MINUTE


def test_scores_known_in_part_move_the_quantile_up() -> None:
    known = [(Score(0, 100 + at, (0,) * len(LEVELS)), True) for at in range(10)]
    half = [(Score(0, 100 + at, (0,) * len(LEVELS)), at % 2 == 0) for at in range(10)]
    assert quantile_of_scores(known, MIDDLE) == 104
    assert quantile_of_scores(half, MIDDLE) == 106
