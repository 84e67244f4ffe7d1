"""A shard on one screen: GPUs by queue and tenant, who holds GPUs and uses none, and why jobs wait."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tessera.client.views.explain import wrapped
from tessera.client.views.queues import QUEUES, queue_rows
from tessera.client.views.rendering import Column, table
from tessera.domain.devices.free_slots import Slots
from tessera.domain.devices.held_back import HoldsBack
from tessera.domain.devices.offers import ClassUse, sum_classes
from tessera_schemas.reasons import code_words
from tessera_schemas.text.units import format_age, format_milli
from tessera_schemas.views import NodeView, QueueView

if TYPE_CHECKING:
    from tessera.gateway.operations.models import IdleGroup, JobGroup, WorkGroups

TOP_QUEUES = tuple(column for column in QUEUES if column.title not in ("BORROWED", "LENT", "WEIGHT"))


def overview(
    work: "WorkGroups", nodes: Sequence[NodeView], queues: Sequence[QueueView], now_ms: int, pools: Sequence[Slots] = ()
) -> list[str]:
    """All lines but the first, which says where this is."""
    devices = class_lines(use for node in nodes if not node.gone for use in node.device_classes)
    lines = [node_line(nodes), *(line for told in devices for line in wrapped(told)), *idle_lines(pools)]
    lines += ["", *table(TOP_QUEUES, queue_rows(queues, nodes))]
    if work.tenants:
        lines += ["", *table(TENANTS, work.tenants)]
    if work.idle:
        lines += ["", *table(HELD_IDLE, work.idle)]
    if work.reasons:
        lines += ["", *table(waiting_columns(now_ms), work.reasons)]
    return lines


def idle_lines(pools: Iterable[Slots]) -> list[str]:
    """A line for each rule by which GPUs are idle that can be had while jobs wait, with the way out."""
    told = [
        f"GPUs idle in pool {pool.pool}: {format_milli(each.gpu_milli)}, {each.describe()}"
        for pool in pools
        for each in pool.held_back
        if each.rule is not HoldsBack.NOTHING_WAITS
    ]
    return [line for each in told for line in wrapped(each)]


def class_lines(uses: Iterable[ClassUse]) -> list[str]:
    """A line on the devices of each class that drivers publish, in all nodes together."""
    return [
        f"devices of {name}: {taken} of {count} taken" + (f", {tainted} tainted" if tainted else "")
        for name, count, taken, tainted in sum_classes(uses)
    ]


def node_line(nodes: Iterable[NodeView]) -> str:
    """One line on the nodes that are there: GPUs in use and wholly free, and how many nodes are ready or not."""
    there = [node for node in nodes if not node.gone]
    total = sum(node.gpus for node in there) * 1000
    free = sum(sum(left for left in node.gpu_free if left > 0) for node in there)
    whole = sum(node.gpu_free.count(1000) for node in there)
    states = {"ready": sum(node.ready and not node.drained for node in there)}
    states["drained"] = sum(node.drained for node in there)
    states["cordoned"] = sum(node.cordoned for node in there)
    states["not ready"] = sum(not node.ready and not node.cordoned for node in there)
    counts = ", ".join(f"{count} {name}" for name, count in states.items() if count or name == "ready")
    return f"GPUs {format_milli(total - free)} of {format_milli(total)} in use, {whole} wholly free; nodes {counts}"


TENANTS: "list[Column[JobGroup]]" = [
    Column("TENANT", lambda group: group.name, shrinks=True),
    Column("GPUS", lambda group: format_milli(group.gpu_milli), right=True),
    Column("RUNNING", lambda group: str(group.running), right=True),
    Column("WAITING", lambda group: str(group.waiting), right=True),
    Column("GPUS WANTED", lambda group: format_milli(group.wanted_milli), right=True),
]

HELD_IDLE: "list[Column[IdleGroup]]" = [
    Column("WARNED OF USING NONE", lambda group: group.tenant, shrinks=True),
    Column("QUEUE", lambda group: group.queue, shrinks=True),
    Column("JOBS", lambda group: str(group.jobs), right=True),
    Column("GPUS", lambda group: format_milli(group.gpu_milli), right=True),
]


def waiting_columns(now_ms: int) -> "list[Column[JobGroup]]":
    """Columns of the table of why jobs wait; the age of the oldest is counted up to `now_ms` milliseconds."""
    return [
        Column(
            "WAITING BECAUSE", lambda group: code_words(group.name) if group.name else "not looked at yet", shrinks=True
        ),
        Column("JOBS", lambda group: str(group.waiting), right=True),
        Column("GPUS WANTED", lambda group: format_milli(group.wanted_milli), right=True),
        Column("OLDEST", lambda group: format_age(now_ms - group.oldest_ts) if group.oldest_ts else "-", right=True),
    ]
