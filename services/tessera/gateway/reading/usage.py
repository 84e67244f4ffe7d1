"""
GPUs over time for whoever asks: projection's rows in steps of the width that the time calls for, and the time since.

What a row does not count yet is the state's own, since then nothing was written that changed it by much. Of other
tenants a tenant sees how much they held together, and none of their restarts.
"""

from collections.abc import Iterable, Sequence

from tessera.domain.devices.gpu_use import GPU_SECOND, STEP_MS, PoolUse, UseSum, steps_between
from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.operations.models import UsageRestarts, UsageStep
from tessera_schemas.views import GpuUseView

HOUR_MS = 3_600_000
STEPS_MAX = 168
# In one answer, of one pool.

Sums = dict[tuple[str, int], UseSum]


def step_of(hours: int) -> int:
    """Milliseconds of a step: the least multiple of the rows' own that gives no more than `STEPS_MAX`."""
    return STEP_MS * max(1, -(-hours * HOUR_MS // (STEPS_MAX * STEP_MS)))


def sums_by_step(
    rows: Sequence[GpuUseView], uses: Iterable[PoolUse], quiet_ts: int, time: tuple[int, int], step_ms: int
) -> list[tuple[tuple[str, int], UseSum]]:
    """
    Sums by pool and start of the step, in this order; `time` is from when until when.

    `uses` are the present ones, as they have been since the rows end; where there is no row yet, since `quiet_ts`, the
    ledger's last record.
    """
    since, now = time
    sums: Sums = {}
    counted = max(since, max((row.upto_ts for row in rows), default=quiet_ts))
    for row in rows:
        if row.upto_ts > since:
            _add(sums.setdefault((row.pool, row.start_ts - row.start_ts % step_ms), UseSum()), row)
    for use in uses:
        for start, _, ms in steps_between(counted, now):
            sums.setdefault((use.pool, start - start % step_ms), UseSum()).add(use, ms)
    return sorted(sums.items())


def _add(found: UseSum, row: GpuUseView) -> None:
    found.counted_ms += row.counted_ms
    found.unused += row.unused
    found.held.update(dict(row.held))
    found.idle.update(dict(row.idle))
    for each in row.restarts:
        found.restarts[each.tenant, each.reason] += each.restarts
        found.lost[each.tenant, each.reason] += each.lost


def shown(pool: str, start: int, found: UseSum, caller: Caller) -> UsageStep:
    """One step as the caller may see it, in GPU-seconds."""
    others = sum(amount for tenant, amount in found.held.items() if not caller.may_see(tenant))
    own = [(tenant, amount) for tenant, amount in sorted(found.held.items()) if caller.may_see(tenant)]
    return UsageStep(
        pool=pool,
        start_ts=start,
        counted_ms=found.counted_ms,
        held=tuple((tenant, amount // GPU_SECOND) for tenant, amount in [*own, ("", others)] if amount),
        unused=found.unused // GPU_SECOND,
        idle=tuple((cause, amount // GPU_SECOND) for cause, amount in sorted(found.idle.items())),
        restarts=tuple(
            UsageRestarts(tenant=tenant, reason=reason, restarts=count, lost=found.lost[tenant, reason] // GPU_SECOND)
            for (tenant, reason), count in sorted(found.restarts.items())
            if caller.may_see(tenant)
        ),
    )
