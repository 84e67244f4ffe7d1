"""A bucket lets a burst through, then so many per second, whatever the clock does."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.kernel.messaging.rates import Buckets, TokenBucket


def test_a_burst_passes_and_the_next_one_is_told_when_to_come_again() -> None:
    bucket = TokenBucket(per_second=2, burst=3)
    assert [bucket.take(0) for _ in range(4)] == [0, 0, 0, 500_000]
    assert bucket.take(499_999) == 1
    assert bucket.take(500_000) == 0


def test_seconds_to_wait_are_rounded_up_so_that_who_waits_is_let_in() -> None:
    buckets = Buckets(per_second=1, burst=1)
    assert [buckets.wait_seconds("a", at) for at in (10.0, 10.5, 11.5)] == [0, 1, 0]


def test_one_name_does_not_use_up_anothers() -> None:
    buckets = Buckets(per_second=1, burst=1)
    assert [buckets.wait_seconds(name, 1.0) for name in "aab"] == [0, 1, 0]


def test_more_than_one_is_taken_at_once_or_nothing() -> None:
    bucket = TokenBucket(per_second=10, burst=100)
    assert bucket.take(0, 70) == 0
    assert bucket.take(0, 40) == 1_000_000
    assert bucket.wait_us(999_999, 40) == 1
    assert bucket.take(1_000_000, 40) == 0
    assert bucket.take(1_000_000, 0) == 0


def test_what_is_larger_than_the_bucket_waits_for_a_full_one_and_leaves_a_debt() -> None:
    bucket = TokenBucket(per_second=10, burst=100)
    assert bucket.take(0, 1) == 0
    assert bucket.take(0, 300) == 100_000
    assert bucket.take(100_000, 300) == 0
    assert bucket.take(100_000, 1) == 20_100_000


@given(st.integers(1, 1000), st.integers(1, 100), st.lists(st.integers(0, 3_000_000), max_size=200))
def test_no_more_pass_than_the_burst_and_what_came_since(per_second: int, burst: int, steps: list[int]) -> None:
    bucket, now, passed = TokenBucket(per_second, burst), 0, 0
    for step in steps:
        now += step
        passed += bucket.take(now) == 0
        assert passed <= burst + now * per_second // 1_000_000


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=50))
def test_a_clock_that_jumps_back_lets_nobody_in_twice(times: list[int]) -> None:
    bucket = TokenBucket(per_second=1, burst=1)
    passed = sum(bucket.take(at) == 0 for at in times)
    assert passed <= 1 + max(times) // 1_000_000
