"""GPUs over time as the API has them: steps of a width that fits the time, up to now, and a tenant's own by name."""

from tessera.domain.devices.gpu_use import GPU_SECOND, STEP_MS, PoolUse
from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.reading.usage import HOUR_MS, shown, step_of, sums_by_step
from tessera_schemas.views import GpuUseView, RestartCost

START = 1_700_000_100_000 - 1_700_000_100_000 % HOUR_MS
OPERATOR = Caller(tenant=None, token_id="t0")
MINUTE = 60_000


def row(start: int, minutes: int = 5) -> GpuUseView:
    """Two tenants held three and two GPUs, and three were free; a run of each was preempted."""
    ms = minutes * MINUTE
    return GpuUseView(
        pool="default",
        start_ts=start,
        upto_ts=start + ms,
        counted_ms=ms,
        n=1,
        held=(("lab", 3000 * ms), ("ops", 2000 * ms)),
        idle=(("nothing_waits", 3000 * ms),),
        restarts=tuple(
            RestartCost(tenant=tenant, reason="Preempted", restarts=1, lost=60 * GPU_SECOND)
            for tenant in ("lab", "ops")
        ),
    )


def test_an_answer_has_steps_of_five_minutes_or_as_many_of_them_as_keep_it_short() -> None:
    assert [step_of(hours) // STEP_MS for hours in (1, 6, 14, 15, 168)] == [1, 1, 1, 2, 12]


def test_the_time_since_the_last_row_is_that_of_the_present_state() -> None:
    rows = [row(START), row(START + STEP_MS, minutes=2)]
    now = PoolUse("default", (("lab", 8000),), 0, ())
    found = sums_by_step(rows, [now], 0, (START, START + STEP_MS + 4 * MINUTE), STEP_MS)
    assert [start for (_, start), _ in found] == [START, START + STEP_MS]
    last = shown("default", START, found[1][1], OPERATOR)
    assert last.counted_ms == 4 * MINUTE
    assert dict(last.held) == {"lab": 3 * 120 + 8 * 120, "ops": 2 * 120}


def test_before_the_first_row_the_time_since_the_ledgers_last_record_is_counted() -> None:
    now = PoolUse("default", (("lab", 8000),), 0, ())
    ((_, found),) = sums_by_step([], [now], START + MINUTE, (START, START + 3 * MINUTE), STEP_MS)
    assert found.held["lab"] == 8000 * 2 * MINUTE


def test_wide_steps_sum_what_the_rows_have_and_older_rows_are_left_out() -> None:
    rows = [row(START + at * STEP_MS) for at in range(-12, 12)]
    ((_, first),) = sums_by_step(rows, [], 0, (START, START + HOUR_MS), HOUR_MS)
    assert (first.counted_ms, first.restarts["lab", "Preempted"]) == (HOUR_MS, 12)


def test_a_tenant_sees_how_much_others_held_and_neither_who_nor_what_was_stopped() -> None:
    ((_, found),) = sums_by_step([row(START)], [], 0, (START, START + STEP_MS), STEP_MS)
    own = shown("default", START, found, Caller(tenant="ops", token_id="t1"))
    assert dict(own.held) == {"ops": 600, "": 900}
    assert [each.tenant for each in own.restarts] == ["ops"]
    assert "lab" not in repr(own)
    assert dict(shown("default", START, found, OPERATOR).held) == {"lab": 900, "ops": 600}
