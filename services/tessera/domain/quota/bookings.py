"""A booking as the ledger has it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from tessera.domain.storing.fast import fast_init
from tessera.domain.storing.later import later

PROMISE_LEAD_MS = 10_000
"""So long before the promised time its nodes are empty: who leaves may be a second late, and starts take one."""
WindowTimes = tuple[int, int]
"""Ledger times from when on, and before when, nodes are kept."""
Replacement = tuple[int, tuple[str, ...], tuple[str, ...]]
"""Ledger time, nodes that were lost, and those in their place."""
REPLACED_MAX = 16
"""So many of the last replacements are remembered."""


@fast_init
@dataclass(frozen=True, slots=True)
class Booking:
    """
    Nodes of a pool that are kept in `windows`, in order, for jobs of `who` that name it; all of the pool without any.

    `who` are tenants, or users as TENANT/USER; none for maintenance. Windows that are over stay until the last one is.
    With `node_count` or `gpus` the nodes were chosen, of `gpu_model`; `missing` are those last told as such.
    With `job` that job's start by `promised_ts` is promised, for a price, and no other job may have the nodes.
    """

    name: str
    pool: str
    nodes: tuple[str, ...]
    windows: tuple[WindowTimes, ...]
    who: tuple[str, ...]
    why: str
    by: str
    booked_ts: int
    node_count: int = later(0)
    gpus: int = later(0)
    gpu_model: str = later("")
    replaced: tuple[Replacement, ...] = later(())
    missing: tuple[str, ...] = later(())
    job: str = later("")
    price_gpu_ms: int = later(0)
    price_micros: int = later(0)

    @property
    def is_chosen(self) -> bool:
        """Whether its nodes were chosen, and a lost one may be replaced."""
        return bool(self.node_count or self.gpus)

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

    @property
    def promised_ts(self) -> int:
        """Time by which the start of its job is promised."""
        return self.windows[0][0] + PROMISE_LEAD_MS

    def is_for(self, tenant: str, user: str) -> bool:
        """Whether jobs of the tenant's user may name it; a promise is no window that others could use."""
        if self.job:
            return False
        return tenant in self.who or f"{tenant}/{user}" in self.who
