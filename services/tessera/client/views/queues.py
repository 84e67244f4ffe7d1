"""Queues and quotas as tables: what each uses, borrows and lends, and how much waits in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.client.views.rendering import Column, local_time
from tessera_schemas.cluster.device_claims import OF_CLASS
from tessera_schemas.text.units import format_memory, format_milli, format_part
from tessera_schemas.views import NodeView, QueueView, QuotaUse

RESOURCES = {"gpu_milli": "gpus", "cpu_milli": "cpu", "memory_bytes": "memory"}
STATES = {"none": "open", "hold": "held", "hold_and_drain": "draining"}


@dataclass(frozen=True, slots=True)
class QueueRow:
    """
    A queue with its GPU quota, all flavors together, and its share of the pool's GPUs in tenths of a percent.

    The share is None for a pool without GPUs.
    """

    queue: QueueView
    gpus: QuotaUse | None
    share_permille: int | None

    @property
    def share(self) -> str:
        """The share in percent, `-` where there is nothing to have a share of."""
        return "-" if self.share_permille is None else f"{self.share_permille // 10}.{self.share_permille % 10}%"

    @property
    def used(self) -> int:
        """Thousandths of GPUs in use by the GPU quota, or by the queue itself where there is none."""
        return self.gpus.used if self.gpus is not None else self.queue.used_gpu_milli


@dataclass(frozen=True, slots=True)
class QuotaRow:
    queue: str
    quota: QuotaUse


def queue_rows(queues: Sequence[QueueView], nodes: Sequence[NodeView]) -> list[QueueRow]:
    """Rows in the order of the tree: a queue comes before those below it, siblings are sorted by name."""
    capacity: dict[str, int] = {}
    for node in nodes:
        if not node.gone:
            capacity[node.pool] = capacity.get(node.pool, 0) + node.gpus * 1000
    rows = []
    for queue in in_tree(queues):
        gpus = _gpus(queue)
        used = gpus.used if gpus is not None else queue.used_gpu_milli
        there = capacity.get(queue.pool, 0)
        rows.append(QueueRow(queue, gpus, used * 1000 // there if there else None))
    return rows


def in_tree(queues: Sequence[QueueView]) -> list[QueueView]:
    """Orders queues from the roots down, siblings by name; a queue whose parent is not given is left out."""
    below: dict[str, list[QueueView]] = {}
    for queue in sorted(queues, key=lambda queue: queue.name):
        below.setdefault(queue.parent, []).append(queue)

    def walk(parent: str) -> list[QueueView]:
        return [found for queue in below.get(parent, []) for found in (queue, *walk(queue.name))]

    return walk("")


def quota_rows(queues: Sequence[QueueView], only: str | None = None) -> list[QuotaRow]:
    """One row per quota, in the order of the tree; with `only` those of one queue."""
    return [
        QuotaRow(queue.name, quota) for queue in in_tree(queues) if only in (None, queue.name) for quota in queue.quotas
    ]


def _gpus(queue: QueueView) -> QuotaUse | None:
    """The queue's GPU quota: the one over all flavors, else the sum of those by flavor."""
    found = [quota for quota in queue.quotas if quota.resource == "gpu_milli"]
    whole = next((quota for quota in found if not quota.flavor), None)
    if whole is not None or not found:
        return whole
    sums = {name: sum(getattr(q, name) for q in found) for name in ("nominal", "used", "borrowed", "lent", "available")}
    return QuotaUse(resource="gpu_milli", **sums)


def state_of(queue: QueueView) -> str:
    """Word for whether the queue is stopped or taken out; a policy without a word of its own is shown as named."""
    return "removed" if queue.removed else STATES.get(queue.stop_policy, queue.stop_policy)


def resource_of(quota: QuotaUse) -> str:
    """Word for what a quota counts; devices by their class: `dra.net`."""
    return RESOURCES.get(quota.resource, quota.resource.removeprefix(OF_CLASS))


def format_quantity(resource: str, value: int | None) -> str:
    """A quantity of the resource; "-" where there is no limit."""
    if value is None:
        return "-"
    if resource.startswith(OF_CLASS):
        return str(value)
    return format_memory(value) if resource == "memory_bytes" else format_milli(value)


def format_nominal(quota: QuotaUse) -> str:
    """The nominal quota; of a part of the pool which part, and how much that is now: `all (32)`, `50% (16)`."""
    amount = format_quantity(quota.resource, quota.nominal)
    if quota.part_percent is None:
        return amount
    return f"{format_part(quota.part_percent)} ({amount})"


def _may_lend(quota: QuotaUse) -> str:
    """Lending limit of now, and until when it holds, where that goes by hours."""
    limit = format_quantity(quota.resource, quota.lending_limit)
    return f"{limit} until {local_time(quota.lending_until):%a %H:%M}" if quota.lending_until else limit


def _of(name: str) -> "Column[QueueRow]":
    title = {"borrowed": "BORROWED", "lent": "LENT"}[name]
    return Column(
        title,
        lambda row: "-" if row.gpus is None else format_quantity("gpu_milli", getattr(row.gpus, name)),
        right=True,
    )


QUEUES: list[Column[QueueRow]] = [
    Column("QUEUE", lambda row: row.queue.name, shrinks=True),
    Column("PARENT", lambda row: row.queue.parent or "-", shrinks=True, wide=True),
    Column("POOL", lambda row: row.queue.pool, shrinks=True, wide=True),
    Column("STATE", lambda row: state_of(row.queue)),
    Column("WEIGHT", lambda row: str(row.queue.weight), right=True),
    Column("SHARE", lambda row: row.share, right=True),
    Column("GPUS", lambda row: format_quantity("gpu_milli", row.used), right=True),
    Column("QUOTA", lambda row: "-" if row.gpus is None else format_nominal(row.gpus), right=True),
    _of("borrowed"),
    _of("lent"),
    Column("WAITING", lambda row: str(row.queue.queued), right=True),
    Column("LIVE", lambda row: str(row.queue.live), right=True),
]

QUOTAS: list[Column[QuotaRow]] = [
    Column("QUEUE", lambda row: row.queue, shrinks=True),
    Column("RESOURCE", lambda row: resource_of(row.quota), shrinks=True),
    Column("FLAVOR", lambda row: row.quota.flavor or "any", shrinks=True),
    Column("QUOTA", lambda row: format_nominal(row.quota), right=True),
    Column("USED", lambda row: format_quantity(row.quota.resource, row.quota.used), right=True),
    Column("BORROWED", lambda row: format_quantity(row.quota.resource, row.quota.borrowed), right=True),
    Column("LENT", lambda row: format_quantity(row.quota.resource, row.quota.lent), right=True),
    Column("LEFT", lambda row: format_quantity(row.quota.resource, row.quota.available), right=True),
    Column(
        "MAY BORROW", lambda row: format_quantity(row.quota.resource, row.quota.borrowing_limit), right=True, wide=True
    ),
    Column("MAY LEND", lambda row: _may_lend(row.quota), right=True, wide=True),
]
