"""Books of an account of which nothing is dropped, for tests: every period by its length and begin."""

from tessera.engine.accounts.owners import GpuOwner, Resource
from tessera.engine.accounts.periods import HOURS, LENGTHS, MINUTES, AccountPeriods, Period, PeriodLength, PeriodRows


class AllPeriods(AccountPeriods):
    """Periods that are over stay beside those that are open."""

    def __init__(self, rows_max: int = 4096) -> None:
        super().__init__(rows_max)
        self._over_ones: dict[str, dict[int, Period]] = {length.name: {} for length in LENGTHS}

    def over(self, length: PeriodLength) -> dict[int, Period]:
        """Those that are over, by when they begin."""
        for each, period in self.take_over():
            assert period.start not in self._over_ones[each.name], "a period ends once"
            self._over_ones[each.name][period.start] = period
        return self._over_ones[length.name]

    def whole_rows(self, length: PeriodLength) -> dict[int, PeriodRows]:
        """Amounts of all periods of this length, with what is not over."""
        found = {start: dict(period.rows) for start, period in self.over(length).items()}
        for name in {length.name, MINUTES.name}:
            period = self.open.get(name)
            if period is not None:
                begin = length.begin(period.start)
                whole = Period(begin, begin, begin, found.setdefault(begin, {}))
                whole.add(period, length.named)
        return found

    def rows(self, length: PeriodLength, resource: Resource = Resource.GPU) -> dict[int, dict[GpuOwner, int]]:
        """Amounts of one resource."""
        return {
            start: {owner: owner.part(amounts, resource) for owner, amounts in rows.items()}
            for start, rows in self.whole_rows(length).items()
        }

    @property
    def hours(self) -> dict[int, dict[GpuOwner, int]]:
        """GPUs by hour."""
        return self.rows(HOURS)
