"""Operations about who had the GPUs when: the account summed up, and in steps for a chart."""

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Literal

from aiohttp import web

from tessera.domain.state import State
from tessera.engine.accounts.account import HOUR_MS, Account
from tessera.engine.accounts.naming import GPU_SECOND, Naming, idle_by, name_by
from tessera.engine.accounts.owners import HELD, RUNNING, USE, GpuCause, GpuOwner, OwnedAmounts, Resource
from tessera.engine.accounts.periods import DAYS, HOURS, MINUTES, Period, PeriodLength
from tessera.gateway.entrance.bodies import read_query
from tessera.gateway.entrance.guard import CALLER
from tessera.gateway.entrance.problems import json_response, refused
from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.operations import account_models as models
from tessera.gateway.operations import queries
from tessera.gateway.reading.account import AccountReader, AccountSpan
from tessera.kernel.ports import Clock
from tessera_schemas.reasons import Code

JOB_HOURS_MAX = 7 * 24
# In one answer by job; of all names of an hour there may be thousands.
ITEMS_MAX = 20_000
OTHER_TENANTS = "(other tenants)"
STEPS_MAX = 168
FRESH_SECONDS = 1.0
HAD = (*RUNNING, *HELD)
BESIDE = (GpuCause.CAPACITY, *USE)
PROJECT_HOURS = 48
# From then on projects are told by days: an hour has all names of its jobs.
SECONDS: Mapping[Resource, tuple[Literal["gpu_seconds", "cpu_seconds", "gib_seconds"], int]] = {
    Resource.GPU: ("gpu_seconds", GPU_SECOND),
    Resource.CPU: ("cpu_seconds", GPU_SECOND),
    Resource.MEMORY: ("gib_seconds", 1000 << 30),
}
UNITS: Mapping[str, Literal["gpu_milli_ms", "cpu_milli_ms", "memory_byte_ms"]] = {
    Resource.GPU: "gpu_milli_ms",
    Resource.CPU: "cpu_milli_ms",
    Resource.MEMORY: "memory_byte_ms",
}


class AccountHandlers:
    """`pools_of` are the pools that a caller sees; of other tenants a tenant sees what they had together."""

    def __init__(
        self, state: State, stored: AccountReader, clock: Clock, pools_of: Callable[[Caller], set[str]]
    ) -> None:
        self._state, self._stored, self._clock, self._pools_of = state, stored, clock, pools_of
        self._now = _Present(state, clock)

    async def account(self, request: web.Request) -> web.Response:
        """Sums of the account by name and cause, as JSON or CSV."""
        query, caller = read_query(request, queries.AccountQuery), request[CALLER]
        if query.until and query.since >= query.until:
            raise refused(Code.INVALID_FIELD, "until", "before since, or the same")
        by_job = query.by == "job"
        finest = HOURS if by_job or query.step == HOURS.name else DAYS
        named = query.by in ("queue", "user", "project", "job")
        span = await self._stored.span(query.since, query.until, finest, named)
        if by_job and span.until_ts - span.since_ts > JOB_HOURS_MAX * HOUR_MS:
            raise refused(Code.INVALID_FIELD, "since", "by job, one answer has 7 days; ask for a part of the time")
        answer = _summed_up(span, query, caller, self._pools_of(caller))
        if query.format == "csv":
            return web.Response(text=_csv(answer), content_type="text/csv")
        return json_response(answer)

    async def usage(self, request: web.Request) -> web.Response:
        """Use over time of the pools that the caller sees, up to now."""
        query, caller, now = read_query(request, queries.UsageQuery), request[CALLER], self._clock.now_ms()
        by_project = query.by == "project"
        length, step_ms = _project_step_of(query.hours) if by_project else _step_of(query.hours)
        since = now - query.hours * HOUR_MS
        span = await self._stored.span(since, 0, length, named=by_project)
        periods = [*span.periods, *self._now.since(max(since, span.upto_ts or self._state.ts), now)]
        steps: defaultdict[int, list[Period]] = defaultdict(list)
        for period in periods:
            steps[period.start - period.start % step_ms].append(period)
        items = [
            item
            for start, parts in sorted(steps.items())
            for item in _steps(start, parts, query, caller, self._pools_of(caller))
        ]
        items.sort(key=lambda item: (item.pool, item.start_ts))
        found = models.UsageList(
            as_of=self._state.n,
            ts=now,
            step_seconds=step_ms // 1000,
            resource=query.resource,
            unit=SECONDS[Resource(query.resource)][0],
            items=tuple(items),
        )
        return json_response(found)


class _Present:
    # What the state says of the time since the stored account: nothing was written that changed it by much.

    def __init__(self, state: State, clock: Clock) -> None:
        self._state, self._clock = state, clock
        self._lines: Mapping[GpuOwner, OwnedAmounts] = {}
        self._n, self._until = -1, 0.0

    def since(self, since: int, now: int) -> list[Period]:
        """Periods of five minutes from then on."""
        found = list[Period]()
        while since < now:
            start = MINUTES.begin(since)
            end = min(now, start + MINUTES.ms)
            period = Period(start, since, end)
            lasted = end - since
            for owner, (gpu, cpu, memory) in self._present().items():
                period.put(_keep_project(owner), (gpu * lasted, cpu * lasted, memory * lasted))
            found.append(period)
            since = end
        return found[-MINUTES.kept :]

    def _present(self) -> Mapping[GpuOwner, OwnedAmounts]:
        now = self._clock.monotonic()
        if self._n != self._state.n and now >= self._until:
            account = Account(_NoBooks(), self._state)
            self._lines = {owner: amounts for owner, (amounts, _) in account.lines.items()}
            self._n, self._until = self._state.n, now + FRESH_SECONDS
        return self._lines


class _NoBooks:
    def add(self, owner: GpuOwner, amounts: OwnedAmounts, start_ts: int, end_ts: int) -> None:
        """Keeps nothing."""


def _summed_up(span: AccountSpan, query: queries.AccountQuery, caller: Caller, pools: set[str]) -> models.AccountSums:
    naming = _seen(idle_by("cause") if query.by == "cause" else name_by(query.by), query.by, caller)
    step_ms = {"": 0, HOURS.name: HOURS.ms, DAYS.name: DAYS.ms}[query.step]
    rows: defaultdict[tuple[int, str], Counter[GpuCause]] = defaultdict(Counter)
    capacity = 0
    no_row = USE if query.by == "cause" else ()
    for period in span.periods:
        start = period.start - period.start % step_ms if step_ms else 0
        for owner, amounts in period.rows.items():
            amount = owner.part(amounts, query.resource)
            if owner.pool not in pools or not amount:
                continue
            if owner.cause is GpuCause.CAPACITY:
                capacity += amount
            elif owner.cause in query.cause if query.cause else owner.cause not in no_row:
                rows[start, naming(owner)][owner.cause] += amount
    if len(rows) > ITEMS_MAX:
        raise refused(Code.INVALID_FIELD, "step", f"more than {ITEMS_MAX} rows; ask for less time, or without steps")
    items = [
        models.AccountItem(
            name=name,
            causes={cause.value: at[cause] for cause in GpuCause if at[cause] and cause not in USE},
            sum=at.total() - sum(at[cause] for cause in USE),
            start_ts=start,
            measured=at[GpuCause.MEASURED],
            worked=max(0, at[GpuCause.WORKED]),
        )
        for (start, name), at in rows.items()
    ]
    items.sort(key=lambda item: (item.start_ts, item.name.endswith(")"), -item.sum, item.name))
    return models.AccountSums(
        as_of=span.n,
        by=query.by,
        since_ts=span.since_ts,
        until_ts=span.until_ts,
        unit=UNITS.get(query.resource, "device_ms"),
        items=tuple(items),
        sum=sum(item.sum for item in items),
        capacity=capacity,
    )


def _seen(naming: Naming, by: str, caller: Caller) -> Naming:
    # By flavor and cause no name is told.
    def name(owner: GpuOwner) -> str:
        hidden = owner.tenant and by not in ("flavor", "cause") and not caller.may_see(owner.tenant)
        return OTHER_TENANTS if hidden else naming(owner)

    return name


def _csv(found: models.AccountSums) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("start_ts", found.by, "cause", found.unit))
    for item in found.items:
        lines.writerows((item.start_ts, item.name, cause, amount) for cause, amount in item.causes.items())
    lines.writerow((0, "(capacity)", "", found.capacity))
    return text.getvalue()


def _step_of(hours: int) -> tuple[PeriodLength, int]:
    # Periods to read, and milliseconds of a step.
    if hours <= MINUTES.kept * MINUTES.ms // HOUR_MS:
        return MINUTES, MINUTES.ms * max(1, -(-hours * HOUR_MS // (STEPS_MAX * MINUTES.ms)))
    return (HOURS, HOURS.ms) if hours <= STEPS_MAX else (DAYS, DAYS.ms)


def _project_step_of(hours: int) -> tuple[PeriodLength, int]:
    return (HOURS, HOURS.ms) if hours <= PROJECT_HOURS else (DAYS, DAYS.ms)


def _keep_project(owner: GpuOwner) -> GpuOwner:
    return owner._replace(queue="", user="", job="")


def _steps(
    start: int, parts: list[Period], query: queries.UsageQuery, caller: Caller, pools: set[str]
) -> list[models.UsageStep]:
    counted = sum(part.upto_ts - part.from_ts for part in parts)
    whole = Period(start, parts[0].from_ts, parts[-1].upto_ts)
    for part in parts:
        whole.add(part, _keep_project if query.by == "project" else MINUTES.named)
    seen = {owner.pool for owner in whole.rows} | {key[0] for key in whole.restarts}
    return [_usage_step(pool, counted, whole, query, caller) for pool in sorted(seen & pools)]


def _usage_step(pool: str, counted: int, whole: Period, query: queries.UsageQuery, caller: Caller) -> models.UsageStep:
    held, idle, unused, resource = Counter[str](), Counter[str](), 0, Resource(query.resource)
    _, second = SECONDS[resource]
    for owner, amounts in whole.rows.items():
        amount = owner.part(amounts, resource)
        if owner.pool != pool or owner.cause in BESIDE:
            continue
        if owner.cause in HAD:
            name = f"{owner.tenant}/{owner.project or '-'}" if query.by == "project" else owner.tenant
            held[name if caller.may_see(owner.tenant) else ""] += amount
            unused += amount if owner.cause is GpuCause.UNUSED else 0
        else:
            idle[owner.cause.value] += amount
    return models.UsageStep(
        pool=pool,
        start_ts=whole.start,
        counted_ms=counted,
        held=tuple((name, amount // second) for name, amount in sorted(held.items()) if amount),
        unused=unused // second,
        idle=tuple((cause, amount // second) for cause, amount in sorted(idle.items()) if amount),
        restarts=tuple(
            models.UsageRestarts(tenant=tenant, reason=reason, restarts=count, lost=lost // GPU_SECOND)
            for (where, tenant, reason), (count, lost) in sorted(whole.restarts.items())
            if where == pool and caller.may_see(tenant)
        ),
    )
