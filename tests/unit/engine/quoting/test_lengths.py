"""Lengths of runs as chances: of those that ended, and of those that run yet."""

import pickle

import pytest

from tessera.domain.runtimes import JobKind
from tessera.engine.quoting.chance import ONE, Draws
from tessera.engine.quoting.lengths import LearntLengths

HOUR = 3_600_000
KIND, OTHER = JobKind("lab", "research", "train", 1), JobKind("other", "batch", "serve", 1)


def learnt(*lengths: int, kind: JobKind = KIND) -> LearntLengths:
    """Runs that followed each other."""
    made, ts = LearntLengths(), 0
    for at, length in enumerate(lengths):
        made.start(str(at), kind, ts)
        ts += length
        made.end(str(at), ts)
    return made


def test_a_seed_gives_the_same_draws_for_ever() -> None:
    chance = Draws(1)
    assert [chance.below(1000) for _ in range(6)] == [566, 745, 971, 444, 444, 762]


def test_draws_follow_what_runs_of_the_kind_took() -> None:
    chances = learnt(*[HOUR] * 200).chances()
    drawn = [chances.draw(KIND, 0, ONE * at // 100) for at in range(10, 100, 10)]
    assert all(HOUR // 2 < length < 2 * HOUR for length in drawn)


def test_a_run_is_drawn_longer_than_it_has_run_and_among_those_that_ran_as_long() -> None:
    chances = learnt(*[HOUR] * 90, *[100 * HOUR] * 10).chances()
    assert chances.draw(KIND, 10 * HOUR, 0) > 10 * HOUR
    assert 60 * HOUR < chances.draw(KIND, 10 * HOUR, ONE // 2) < 150 * HOUR
    assert chances.draw(KIND, 10_000 * HOUR, ONE - 1) > 10_000 * HOUR


def test_runs_that_still_run_make_lengths_longer() -> None:
    alone, beside = learnt(*[HOUR] * 20), learnt(*[HOUR] * 20)
    for at in range(20):
        beside.start(f"long-{at}", KIND, 20 * HOUR)
    beside.advance(120 * HOUR)
    assert beside.chances().quantile(KIND, 800) > 10 * alone.chances().quantile(KIND, 800)


def test_the_newest_runs_say_most_and_those_that_began_long_ago_nothing_of_young_ones() -> None:
    lengths = LearntLengths()
    for at in range(100):
        lengths.start(f"long-{at}", KIND, 0)
    lengths.advance(1000 * HOUR)
    for at in range(60):
        lengths.start(f"short-{at}", KIND, 1000 * HOUR)
        lengths.end(f"short-{at}", 1000 * HOUR + 60_000)
    assert lengths.chances().quantile(KIND, 500) < 180_000


def test_a_kind_without_runs_leans_on_all_others() -> None:
    chances = learnt(*[HOUR] * 400).chances()
    assert HOUR // 2 < chances.quantile(OTHER, 500) < 2 * HOUR
    assert HOUR // 2 < chances.mean(OTHER) < 4 * HOUR


def test_many_runs_of_its_own_count_more_than_those_of_others() -> None:
    lengths = learnt(*[10 * HOUR] * 400, kind=OTHER)
    for at in range(60):
        lengths.start(f"mine-{at}", KIND, 4000 * HOUR + at * 60_000)
        lengths.end(f"mine-{at}", 4001 * HOUR + at * 60_000)
    assert HOUR // 2 < lengths.chances().quantile(KIND, 500) < 2 * HOUR


def test_the_chance_of_eviction_is_the_share_of_runs_that_were_stopped_for_others() -> None:
    lengths = LearntLengths()
    assert lengths.chances().evicted_permille(KIND) == 0
    for at in range(100):
        lengths.start(str(at), KIND, at)
        lengths.end(str(at), at, evicted=at % 4 == 0)
    assert 200 <= lengths.chances().evicted_permille(KIND) <= 260


def test_of_names_without_end_those_that_were_counted_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.engine.quoting.lengths.NAMES_MAX", 50)

    def stored(names: int) -> tuple[int, LearntLengths]:
        lengths, ts = LearntLengths(), 0
        for at in range(names):
            for kind, length in ((KIND._replace(name=f"once-{at}"), HOUR), (KIND, 60_000)):
                lengths.start(f"{kind.name}-{at}", kind, ts)
                lengths.end(f"{kind.name}-{at}", ts + length)
                ts += length
        return len(pickle.dumps(lengths)), lengths

    (all_of_them, _), (newest, lengths) = stored(50), stored(500)
    assert newest < all_of_them * 11 // 10
    # Who is seen again and again is remembered among them.
    assert lengths.chances().quantile(KIND, 500) < 180_000
