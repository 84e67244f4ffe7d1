"""Since when a process has looked without a gap, by its own monotonic clock."""

import asyncio

import pytest

from tessera.kernel.errors import Transient
from tessera.kernel.tasks.freshness import GAP_SECONDS, Freshness, keep_looking
from tests.virtual_time import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def look_for(fresh: Freshness, clock: VirtualClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1
        fresh.looked()


def test_before_the_first_look_nothing_is_known_for_any_time(clock: VirtualClock) -> None:
    fresh, first = Freshness(clock), clock.monotonic()
    clock.now += 3
    assert not fresh.is_fresh
    assert fresh.seconds(first) == 0
    assert "no deadline runs" in str(fresh.problem())


def test_seconds_count_from_when_something_was_seen_first(clock: VirtualClock) -> None:
    fresh = Freshness(clock)
    look_for(fresh, clock, 10)
    first = clock.monotonic()
    look_for(fresh, clock, 7)
    assert fresh.seconds(first) == 7
    assert fresh.problem() is None


@pytest.mark.parametrize(("gap", "seconds"), [(GAP_SECONDS, 7 + GAP_SECONDS), (GAP_SECONDS + 1, 0)])
def test_a_gap_begins_every_count_anew(clock: VirtualClock, gap: float, seconds: float) -> None:
    fresh = Freshness(clock)
    look_for(fresh, clock, 1)
    first = clock.monotonic()
    look_for(fresh, clock, 7)
    clock.now += gap
    fresh.looked()
    assert fresh.seconds(first) == seconds


def test_what_was_seen_during_a_gap_counts_from_its_end(clock: VirtualClock) -> None:
    fresh = Freshness(clock)
    look_for(fresh, clock, 1)
    clock.now += 100
    assert fresh.seconds(clock.monotonic() - 50) == 0
    fresh.looked()
    look_for(fresh, clock, 4)
    assert fresh.seconds(clock.monotonic() - 50) == 4


async def test_a_look_that_fails_or_finds_something_behind_is_none(clock: VirtualClock) -> None:
    fresh, answers = Freshness(clock), [True, True]

    async def look() -> bool:
        if not answers:
            raise Transient("no servers are available")
        return answers.pop(0)

    looking = asyncio.create_task(keep_looking(fresh, clock, look))
    await clock.run(3)
    assert fresh.is_fresh
    answers += [False] * 4
    await clock.run(20)
    assert not fresh.is_fresh
    answers += [True]
    await clock.run(1)
    assert fresh.is_fresh
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


async def test_the_trouble_says_since_when_and_why_no_look_was_good(clock: VirtualClock) -> None:
    fresh = Freshness(clock)
    look_for(fresh, clock, 1)
    fresh.failed("GET /nodes: no answer")
    clock.now += 35
    assert "for 35 s (GET /nodes: no answer)" in str(fresh.problem())
