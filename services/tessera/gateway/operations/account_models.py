"""Answers about who had the GPUs when, beside those in `models`."""

from typing import Annotated, Literal

from pydantic import Field

from tessera.gateway.operations.models import AsOf
from tessera_schemas.base import Lenient


class UsageRestarts(Lenient):
    """Runs that were stopped for one reason and begin again; `lost` are GPU-seconds since their last checkpoints."""

    tenant: str
    reason: str
    restarts: int
    lost: int


class UsageStep(Lenient):
    """
    Use of a pool over `counted_ms` of a step, in the list's unit. `held` is by tenant, or TENANT/PROJECT; all other
    tenants' are together under "". `unused` is the part of it that runs hold which were warned that they use none
    of their GPUs; `idle` is by cause, as in the account.
    """

    pool: str
    start_ts: int
    counted_ms: int
    held: tuple[tuple[str, int], ...] = ()
    unused: int = 0
    idle: tuple[tuple[str, int], ...] = ()
    restarts: Annotated[
        tuple[UsageRestarts, ...], Field(description="Restarts, of tenants that the caller may see")
    ] = ()


class UsageList(Lenient):
    """Steps of `step_seconds` by pool and time; what nobody counted, as before the account began, has none."""

    as_of: AsOf
    ts: int
    step_seconds: int
    resource: Literal["gpu", "cpu", "memory"] = "gpu"
    unit: Literal["gpu_seconds", "cpu_seconds", "gib_seconds"] = "gpu_seconds"
    items: tuple[UsageStep, ...]


class AccountItem(Lenient):
    """
    Amounts of one row, of the step that begins at `start_ts`, 0 without steps; `sum` is that of the causes.

    `measured` is time whose use was told within, `worked` of that what worked: a part of what is used, beside the sum.
    """

    name: str
    causes: dict[str, int]
    sum: int
    start_ts: int = 0
    measured: int = 0
    worked: int = 0


class AccountSums(Lenient):
    """
    Account from `since_ts` until `until_ts`, full hours or, beyond 35 days, days, and its end: thousandths of a GPU
    or CPU, bytes of memory, or devices of a class, times milliseconds, by row and cause. Without a filter `sum` is
    `capacity`, in the pools that the caller sees; devices of a class, which may overlap, have no capacity, 0.
    """

    as_of: AsOf
    by: str
    since_ts: int
    until_ts: int
    unit: Literal["gpu_milli_ms", "cpu_milli_ms", "memory_byte_ms", "device_ms"] = "gpu_milli_ms"
    items: tuple[AccountItem, ...]
    sum: int
    capacity: int
