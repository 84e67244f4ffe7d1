"""A booking as the ledger has it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from tessera.domain.storing.fast import fast_init

WindowTimes = tuple[int, int]
"""Ledger times from when on, and before when, nodes are kept."""


@fast_init
@dataclass(frozen=True, slots=True)
class Booking:
    """
    Nodes of a pool that are kept in `windows`, in order, for jobs of `who` that name it; all of the pool without any.

    `who` are tenants, or users as TENANT/USER; none for maintenance. Windows that are over stay until the last one is.
    """

    name: str
    pool: str
    nodes: tuple[str, ...]
    windows: tuple[WindowTimes, ...]
    who: tuple[str, ...]
    why: str
    by: str
    booked_ts: int

    @property
    def ends_ts(self) -> int:
        """Time from which on nothing is kept any more."""
        return self.windows[-1][1]

    def ahead(self, ts: int) -> Iterator[WindowTimes]:
        """The windows that are not over at `ts`."""
        return (window for window in self.windows if window[1] > ts)

    def window_at(self, ts: int) -> WindowTimes | None:
        """The window that `ts` is in."""
        return next((window for window in self.windows if window[0] <= ts < window[1]), None)

    def is_for(self, tenant: str, user: str) -> bool:
        """Whether jobs of the tenant's user may name it."""
        return tenant in self.who or f"{tenant}/{user}" in self.who
