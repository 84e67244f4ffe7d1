"""Ledger time follows the wall clock, and goes on when the wall clock is set back."""

from tessera.kernel.ledger.timestamps import LedgerTime


class Clock:
    wall, steady = 1_000_000, 0.0

    def now_ms(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    async def sleep(self, seconds: float) -> None: ...

    def passes(self, seconds: float) -> None:
        self.wall, self.steady = self.wall + int(seconds * 1000), self.steady + seconds


def test_it_is_the_wall_clock_when_nothing_is_odd():
    clock = Clock()
    time = LedgerTime(clock, 0)
    clock.passes(2.5)
    assert time.now(0) == 1_002_500


def test_it_goes_on_at_the_pace_of_real_time_when_the_wall_clock_is_set_back():
    clock = Clock()
    time = LedgerTime(clock, 0)
    before = time.now(0)
    clock.wall -= 3_600_000
    for _ in range(3000):
        clock.passes(0.0015)
        time.now(before)
    assert 4_490 <= time.now(before) - before <= 4_500


def test_it_never_falls_behind_what_the_ledger_says():
    assert LedgerTime(Clock(), 0).now(9_999_999) == 9_999_999
