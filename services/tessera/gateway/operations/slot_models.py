"""Answers about free slots, idle GPUs and reservations of nodes, beside those in `models`."""

from typing import Annotated, Literal

from pydantic import Field

from tessera.gateway.operations.models import AsOf
from tessera_schemas.base import Lenient, Sentence, Strict
from tessera_schemas.job import Role
from tessera_schemas.shard.bookings import BookedWindow, BookingWish
from tessera_schemas.views import ClassUses


class PodSlotsBody(Strict):
    """A role of a job, in the form of the contract, of whose pods somebody wants to know how many could start now."""

    role: Role


class SlotSize(Lenient):
    """Pods of so many GPUs that could start now: in the pool, and the most in one domain of each level."""

    gpus: int
    slots: int
    largest: tuple[tuple[str, int], ...] = ()


class PodSlots(Lenient):
    """Pods of one role that could start now in a pool, and the most in one domain of each level."""

    pool: str
    slots: int
    largest: tuple[tuple[str, int], ...] = ()


class PodSlotList(Lenient):
    as_of: AsOf
    items: tuple[PodSlots, ...]


class UnusedGpus(Lenient):
    """GPUs that runs hold which were warned that they use none."""

    runs: int = 0
    gpu_milli: int = 0


class HeldBackGpus(Lenient):
    """GPUs that can be had and a rule keeps idle; `text` has the way out. What the caller does not see is ""."""

    rule: str
    gpu_milli: int
    queue: str = ""
    job_id: str = ""
    name: str = ""
    text: str = ""


class PoolSlots(Lenient):
    """Free slots of one pool; `stranded` says what keeps idle thousandths of GPUs, `held_back` what keeps free ones."""

    pool: str
    gpus: int
    idle_gpu_milli: int
    stranded: tuple[tuple[str, int], ...] = ()
    sizes: tuple[SlotSize, ...] = ()
    unused: UnusedGpus = UnusedGpus()
    unclaimed: Annotated[
        str,
        Field(
            description="Why free GPUs are unclaimed: nothing_waits, abandoned (all waiting jobs have lost their queue "
            "or tenant), quota (all waiting jobs lack it), jobs_wait"
        ),
    ] = "nothing_waits"
    held_back: tuple[HeldBackGpus, ...] = ()
    device_classes: ClassUses = ()


class SlotList(Lenient):
    as_of: AsOf
    items: tuple[PoolSlots, ...]


class KeptDevices(Lenient):
    """
    Devices of a node kept for a job until `until_ts`: `gpu_milli` of each. Runs that are being stopped may still hold
    them. Of another tenant's job id and name are "".
    """

    devices: tuple[int, ...]
    gpu_milli: int
    cause: str
    until_ts: int
    job_id: str = ""
    name: str = ""


class NodeIdle(Lenient):
    """A node's idle thousandths of GPUs by cause, as in `PoolSlots.stranded`, and the jobs some are kept for."""

    node: str
    pool: str
    stranded: tuple[tuple[str, int], ...] = ()
    reserved: tuple[KeptDevices, ...] = ()


class IdleList(Lenient):
    """Nodes with idle or reserved GPUs; nodes whose GPUs are all held are left out."""

    as_of: AsOf
    items: tuple[NodeIdle, ...]


class ReplacedNodes(Lenient):
    """Nodes of a reservation that were lost before a window, and those in their place."""

    at_ts: int
    lost: tuple[str, ...]
    found: tuple[str, ...] = ()


class ReservationRow(Lenient):
    """One reservation: nodes that are kept in windows of time, for jobs that name it or for nobody."""

    name: str
    pool: str
    nodes: Annotated[tuple[str, ...], Field(description="All of the pool, if the reservation is of the whole pool")]
    gpus: Annotated[int, Field(description="GPUs of the nodes that are there")]
    windows: Annotated[tuple[BookedWindow, ...], Field(description="Windows that are not over")]
    is_now: Annotated[bool, Field(description="A window is now")]
    is_maintenance: Annotated[bool, Field(description="No job may name it")] = False
    who: Annotated[tuple[str, ...], Field(description="Tenants and users; to a tenant itself and its users")] = ()
    why: str = ""
    by: Annotated[str, Field(description="Who asked, as the sender said; for operators")] = ""
    booked_ts: int
    missing: Annotated[
        tuple[str, ...], Field(description="Nodes that could not be used if the window began now: lost, out or drained")
    ] = ()
    replaced: Annotated[
        tuple[ReplacedNodes, ...], Field(description="The last replacements of lost nodes, the oldest first")
    ] = ()
    runs: Annotated[int, Field(description="Runs of others on the nodes now: they have left when a window begins")] = 0
    jobs: Annotated[int, Field(description="Live jobs that name it")] = 0
    job: Annotated[str, Field(description="Job whose start is promised so; empty: none, or another tenant's")] = ""


class ReservationList(Lenient):
    as_of: AsOf
    items: tuple[ReservationRow, ...]


class ReservationBody(BookingWish):
    """Nodes to keep in windows of time: by name, so many, or the whole pool; recurring windows are listed each."""

    why: Sentence = ""


class OrderedReservation(Lenient):
    """kept, ended: the ledger has it. stored: admission took it, and the ledger's word is not known yet."""

    name: str
    state: Literal["kept", "ended", "stored"]
    reservation: ReservationRow | None = None
    as_of: AsOf
