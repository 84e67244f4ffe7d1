"""Runtimes are learnt from runs that ended, in few integers, and forgotten again."""

from tessera.domain import runtimes
from tessera.domain.table import Table
from tessera.engine.ahead.durations import (
    BUCKETS,
    RUNS_MAX,
    UNKNOWN,
    JobKind,
    Sketch,
    bucket,
    expected,
    learn,
    quantile,
    upper,
)

HOUR = 3_600_000
TRAIN = JobKind("vision", "research", "train", 8)


def learnt(*runs: tuple[JobKind, int]) -> Table[Sketch]:
    rows: Table[Sketch] = Table()
    for ts, (kind, runtime_ms) in enumerate(runs):
        learn(rows, kind, runtime_ms, ts)
    return rows


def test_every_runtime_lies_in_its_bucket_and_an_answer_is_at_most_half_above_it() -> None:
    for runtime_ms in [*range(1, 5000), 10**6, 2**31 + 7, 2**40 - 1]:
        above = upper(bucket(runtime_ms))
        assert runtime_ms < above <= max(2, runtime_ms * 3 // 2 + 1)


def test_buckets_are_few_and_a_runtime_beyond_all_bounds_counts_as_the_longest() -> None:
    assert bucket(10**30) == bucket(2**40 - 1) == BUCKETS - 1
    assert bucket(0) == bucket(-5) == bucket(1) == 0


def test_a_job_of_which_nothing_is_known_gets_the_default() -> None:
    rows: Table[Sketch] = Table()
    assert expected(rows, TRAIN) == quantile(rows, TRAIN, 900) == UNKNOWN
    assert quantile(rows, TRAIN, 900, elapsed_ms=5 * UNKNOWN) == 10 * UNKNOWN


def test_an_unknown_name_is_judged_by_its_queue_and_an_unknown_queue_by_its_size() -> None:
    rows = learnt(*[(TRAIN, 10 * HOUR)] * 40)
    for kin in (TRAIN._replace(name="other"), JobKind("audio", "night", "x", 8)):
        assert 9 * HOUR < quantile(rows, kin, 500) <= 15 * HOUR
        assert 7 * HOUR < expected(rows, kin) < 13 * HOUR
    assert quantile(rows, TRAIN._replace(gpus=1), 500) == UNKNOWN


def test_a_quantile_given_what_has_elapsed_looks_only_at_the_runs_that_lasted_as_long() -> None:
    rows = learnt(*[(TRAIN, HOUR)] * 18, *[(TRAIN, 20 * HOUR)] * 2)
    assert quantile(rows, TRAIN, 900) < 2 * HOUR
    assert 20 * HOUR < quantile(rows, TRAIN, 900, elapsed_ms=2 * HOUR) <= 30 * HOUR


def test_a_job_that_outlives_all_others_is_expected_to_run_twice_as_long() -> None:
    assert quantile(learnt((TRAIN, HOUR)), TRAIN, 900, elapsed_ms=30 * HOUR) == 60 * HOUR


def test_what_was_learnt_is_forgotten_when_the_jobs_change() -> None:
    rows = learnt(*[(TRAIN, 20 * HOUR)] * 1000, *[(TRAIN, HOUR)] * (4 * RUNS_MAX))
    assert quantile(rows, TRAIN, 900) < 2 * HOUR


def test_equal_sequences_of_ends_give_equal_rows() -> None:
    runs = [(TRAIN._replace(name=f"n{i % 7}", gpus=1 + i % 3), 977 * (i * i % 1013 + 1)) for i in range(300)]
    assert dict(learnt(*runs).items()) == dict(learnt(*runs).items())


def test_a_sketch_holds_one_positive_count_per_bucket_in_ascending_order() -> None:
    rows = learnt(*[(TRAIN, 3**i % 10**13) for i in range(500)])
    for _, row in rows.items():
        assert len(row.counts) <= BUCKETS
        assert list(row.counts) == sorted(row.counts)
        assert all(count > 0 for _, count in row.counts)
        assert row.weight <= RUNS_MAX * runtimes.WEIGHT


def test_when_the_rows_are_full_the_one_untouched_for_longest_makes_way(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(runtimes, "ROWS_MAX", 6)
    rows = learnt(*[(TRAIN._replace(name=f"n{i}"), HOUR) for i in range(50)])
    assert len(rows) == 6
    assert {key for key, _ in rows.items()} >= {"vision/research/n49/8", "vision/research//8", "///8"}
