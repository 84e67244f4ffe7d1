"""
GPUs over time as rows of five minutes, a pure fold of the ledger: what was held by whom, idle by what cause, and what
stopped runs cost.

The amounts are looked at once in a while of ledger time, longer where there are more nodes, and count for all the time
since they were looked at before; stopped runs are counted one by one. A row says up to which record it counts, so that
a fold that begins before it goes on where the row ends.
"""

from collections.abc import Iterable, Iterator, Mapping

from tessera.domain.devices.gpu_use import KEPT_MS, STEP_MS, UseSum, steps_between
from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.domain.work.stops import pool_of
from tessera.engine.placement.free_slots import pool_use, slots
from tessera_schemas.ledger import Allocated, EarmarkEnded, EarmarkSet, Grown, LedgerMessage, Released, Requeued
from tessera_schemas.views import GpuUseView, RestartCost
from tessera_schemas.work.placement import Placement

LOOK_MS = 1_000
LOOK_MS_PER_NODE = 20
"""Between two looks. One takes some 0.03 ms a node, so that this is a thousandth of the time."""


class UsageHistory:
    """Rows by key, those of the last week; `stored` are those that Redis had, as of some record."""

    def __init__(self, stored: Mapping[str, bytes] | None = None) -> None:
        self.rows = dict(stored or {})
        found = [GpuUseView.from_bytes(row) for row in self.rows.values()]
        self._n = max((row.n for row in found), default=0)
        self._upto = max((row.upto_ts for row in found), default=0)
        self._step = self._upto - self._upto % STEP_MS
        self._sums = {row.pool: _sum_of(row) for row in found if row.start_ts == self._step}

    def count(self, message: LedgerMessage, state: State) -> Iterable[str]:
        """Take in a message that is about to be folded into `state`; returns the keys of rows that changed or went."""
        if message.n <= self._n:
            return ()
        if not self._upto:
            self._upto = state.ts or message.ts
            self._step = self._upto - self._upto % STEP_MS
        restarts = list(_restarts(message, state))
        if not restarts and message.ts - self._upto < LOOK_MS + LOOK_MS_PER_NODE * len(state.nodes):
            return ()
        return {*self._credit(message, state), *self._note(restarts, message.n), *self._drop_old(message.ts)}

    def _credit(self, message: LedgerMessage, state: State) -> Iterator[str]:
        uses = [pool_use(state, slots(state, pool)) for pool in sorted(state.tree.queues_of)]
        for start, end, ms in steps_between(self._upto, message.ts):
            if start != self._step:
                self._step, self._sums = start, {}
            self._upto = end
            for use in uses:
                self._sums.setdefault(use.pool, UseSum()).add(use, ms)
            yield from self._write(message.n)

    def _note(self, restarts: list[tuple[str, str, str, int]], n: int) -> Iterator[str]:
        for pool, tenant, reason, lost in restarts:
            known = self._sums.setdefault(pool, UseSum())
            known.restarts[tenant, reason] += 1
            known.lost[tenant, reason] += lost
        if restarts:
            yield from self._write(n)

    def _write(self, n: int) -> Iterator[str]:
        for pool, found in self._sums.items():
            key = f"{pool}/{self._step}"
            self.rows[key] = _row(pool, self._step, self._upto, n, found).to_bytes()
            yield key

    def _drop_old(self, ts: int) -> Iterator[str]:
        """Rows are added in the order of their times, so that the first are the oldest."""
        for key in list(self.rows):
            if int(key.rpartition("/")[2]) >= ts - KEPT_MS:
                break
            del self.rows[key]
            yield key


def _restarts(message: LedgerMessage, state: State) -> Iterator[tuple[str, str, str, int]]:
    """Pool, tenant, reason and cost of each run that begins again by this message."""
    for record in message.records:
        if type(record) is Requeued and (job := state.jobs.get(record.job_id)) is not None:
            run = state.runs.get(job.run_id)
            lost = 0 if run is None else _lost(run, message.ts)
            yield pool_of(state, job.queue), job.tenant, record.reason.code.value, lost


def _lost(run: Run, ts: int) -> int:
    return run.amount.gpu_milli * max(0, ts - max(run.saved_ts, run.started_ts or run.allocated_ts))


def _row(pool: str, start: int, upto: int, n: int, found: UseSum) -> GpuUseView:
    restarts = tuple(
        RestartCost(tenant=who[0], reason=who[1], restarts=count, lost=found.lost[who])
        for who, count in sorted(found.restarts.items())
    )
    return GpuUseView(
        pool=pool,
        start_ts=start,
        upto_ts=upto,
        counted_ms=found.counted_ms,
        n=n,
        held=tuple(sorted(found.held.items())),
        unused=found.unused,
        idle=tuple(sorted(found.idle.items())),
        restarts=restarts,
    )


def _sum_of(row: GpuUseView) -> UseSum:
    found = UseSum(row.counted_ms, unused=row.unused)
    found.held.update(dict(row.held))
    found.idle.update(dict(row.idle))
    for each in row.restarts:
        found.restarts[each.tenant, each.reason] = each.restarts
        found.lost[each.tenant, each.reason] = each.lost
    return found


def placements_of(state: State, record: object) -> tuple[Placement, ...]:
    """Placements at which the record takes or gives back capacity."""
    if isinstance(record, Allocated | Grown | EarmarkSet):
        return record.placements
    if isinstance(record, Released):
        run = state.runs.get(record.run_id)
        return () if run is None else run.places
    if isinstance(record, EarmarkEnded):
        mark = state.earmarks.get(record.owner)
        return () if mark is None else mark.placements
    return ()
