"""Advance reservations, called bookings: nodes that are kept for somebody, or for nobody, in windows of time."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tessera_schemas import events
from tessera_schemas.base import Count, JobId, Millis, Name, NodeName, Positive, Strict, Text
from tessera_schemas.reasons import Reason
from tessera_schemas.shard.records import AnyFact, AnyRecord, PoolTold

NODES_MAX = 256
"""Nodes that one booking names; a whole pool is named without any of them."""
WINDOWS_MAX = 64
LENGTH_MIN_MS, LENGTH_MAX_MS = 60_000, 31 * 86_400_000
AHEAD_MAX_MS = 366 * 86_400_000
BOOKINGS_MAX = 1_000
PROMISE_PREFIX = "promise-"
"""Beginning of the names of promises, and of no other booking."""
PROMISE_ENDS = ("kept", "broken", "dropped")
"""What becomes of a promise."""

Whom = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(/[\x21-\x7e]{1,128})?$")]
"""A tenant, or one user of it (`lab/ana`)."""


AudienceTold = Annotated[tuple[Whom, ...], Field(max_length=64, description="Who may name it, to whom this is told")]


class BookedWindow(Strict):
    """A time from `start_ts` until just before `end_ts`."""

    start_ts: Millis
    end_ts: Millis

    @model_validator(mode="after")
    def _length(self) -> Self:
        if not LENGTH_MIN_MS <= self.end_ts - self.start_ts <= LENGTH_MAX_MS:
            raise ValueError("end_ts: a window is a minute long at least, and 31 days at most")
        return self


class BookingWish(Strict):
    """
    Nodes and windows as somebody asks for them: `nodes` by name, or so many nodes or GPUs that the ledger chooses; the
    whole pool without either.

    With `first`, one window begins as soon after its start as nodes are free. Nobody in `who` is maintenance.
    """

    name: Name
    pool: Name
    windows: Annotated[
        tuple[BookedWindow, ...],
        Field(min_length=1, max_length=WINDOWS_MAX, description="In order, none before the end of the one before it"),
    ]
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=NODES_MAX, description="Nodes by name")] = ()
    node_count: Annotated[
        Annotated[Positive, Field(le=NODES_MAX)] | None, Field(description="Number of nodes, to be chosen")
    ] = None
    gpus: Annotated[Positive | None, Field(description="Number of GPUs on whole nodes, to be chosen")] = None
    gpu_model: Annotated[str, StringConstraints(max_length=63), Field(description="Model of chosen nodes")] = ""
    first: Annotated[bool, Field(description="The window begins once nodes are free, not before its start")] = False
    who: Annotated[
        tuple[Whom, ...],
        Field(max_length=64, description="Tenants, or users as TENANT/USER, whose jobs may name it; none: maintenance"),
    ] = ()

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        wishes = [name for name in ("nodes", "node_count", "gpus") if getattr(self, name)]
        if len(wishes) > 1:
            raise ValueError(f"{wishes[1]}: say nodes, node_count or gpus, not {wishes[0]} besides")
        if self.gpu_model and wishes not in (["node_count"], ["gpus"]):
            raise ValueError("gpu_model: goes with node_count or gpus")
        if len(set(self.nodes)) < len(self.nodes):
            raise ValueError("nodes: one of them is named twice")
        if self.first and (len(self.windows) > 1 or not (self.node_count or self.gpus)):
            raise ValueError("first: goes with one window, and with node_count or gpus")
        if any(later.start_ts < former.end_ts for former, later in zip(self.windows, self.windows[1:], strict=False)):
            raise ValueError("windows: each begins at or after the end of the one before")
        return self


class BookingAsked(AnyFact, sender="admission"):
    """An operator wants nodes kept in windows of time; `by` is who, as the sender says."""

    kind: Literal["booking_asked"]
    wish: BookingWish
    why: Text = ""
    by: Text = ""


class BookingEndAsked(AnyFact, sender="admission"):
    """An operator wants a booking ended."""

    kind: Literal["booking_end_asked"]
    name: Name


class Booked(AnyRecord, event=events.ReservationMadeV1):
    """
    Nodes of a pool are kept in windows of time, for the jobs of `who` that name the booking; all of the pool without
    `nodes`. `by` is who asked.

    With `node_count` or `gpus`, as they were asked for, the nodes were chosen, and each that is lost is replaced.
    """

    kind: Literal["booked"]
    name: Name
    pool: Name
    windows: Annotated[tuple[BookedWindow, ...], Field(min_length=1, max_length=WINDOWS_MAX)]
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=NODES_MAX)] = ()
    who: Annotated[tuple[Whom, ...], Field(max_length=64)] = ()
    why: Text = ""
    by: Text = ""
    node_count: Annotated[Positive, Field(le=NODES_MAX)] | None = None
    gpus: Positive | None = None
    gpu_model: Annotated[str, StringConstraints(max_length=63)] = ""
    job: Annotated[
        JobId | Literal[""], Field(description="Job whose start in time is promised so, alone to have the nodes")
    ] = ""
    price_gpu_ms: Annotated[
        Count,
        Field(description="Price of a promise in thousandths of a GPU times milliseconds"),
    ] = 0
    price_micros: Annotated[Count, Field(description="Price of a promise in millionths, for budgets in money")] = 0


class Rebooked(AnyRecord, event=events.ReservationChangedV1):
    """Nodes of a booking that were chosen and are `lost` are replaced before its next window begins."""

    kind: Literal["rebooked"]
    name: Name
    pool: PoolTold = ""
    who: AudienceTold = ()
    lost: Annotated[tuple[NodeName, ...], Field(min_length=1, max_length=NODES_MAX)]
    found: Annotated[
        tuple[NodeName, ...],
        Field(max_length=NODES_MAX, description="In their place; none where the others have GPUs enough"),
    ] = ()


class BookingShort(AnyRecord, event=events.ReservationUnservedV1):
    """
    A booking for somebody lacks these nodes, and none is there in their place: a window cannot be served as things are.

    Without any, it is whole again.
    """

    kind: Literal["booking_short"]
    name: Name
    pool: PoolTold = ""
    who: AudienceTold = ()
    missing: Annotated[tuple[NodeName, ...], Field(max_length=NODES_MAX, description="The first of them, by name")] = ()


class BookingRefused(AnyRecord, event=events.ReservationRefusedV1):
    """A booking that was asked for is not made."""

    kind: Literal["booking_refused"]
    name: Name
    pool: PoolTold = ""
    reason: Reason


class BookingEnded(AnyRecord, event=events.ReservationEndedV1):
    """
    A booking is no more: its last window is `over`, or it was `asked` for.

    A promise is `kept` once its job has its devices in time, and `broken` when the time has come and it has not, for
    the `reason`: then its price is given back. It is `dropped` when the job is gone, or is itself not ready to start.
    """

    kind: Literal["booking_ended"]
    name: Name
    pool: PoolTold = ""
    who: AudienceTold = ()
    why: Literal["over", "asked", "kept", "broken", "dropped"]
    job: JobId | Literal[""] = ""
    reason: Reason | None = None
