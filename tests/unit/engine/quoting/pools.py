"""Pools of a few nodes and jobs, as futures are drawn from them."""

from typing import Any

from tessera.domain.queues import UNLIMITED
from tessera.domain.runtimes import JobKind, Sketch
from tessera.domain.table import Table
from tessera.engine.quoting.arrivals import PastArrivals
from tessera.engine.quoting.lengths import LearntLengths
from tessera.engine.quoting.outlook import Outlook
from tessera.engine.quoting.pool_now import JobShape, NodeNow, PoolNow, QueueNow, RunNow, WaitingNow

NOW = 100 * 3_600_000
MINUTE = 60_000
FREE = UNLIMITED // 1000


def shape(gpus: int = 1, limit_ms: int = 10 * MINUTE, name: str = "train", **more: Any) -> JobShape:
    """A job of one pod, or of whole nodes of 8 GPUs; with a limit so that its end is known within bounds."""
    pieces = ((gpus, 1),) if gpus <= 8 else ((8, gpus // 8),)
    given = {"models": (), "path": ("research",), "user": "", "priority": 0, **more}
    kind = JobKind(given.pop("tenant", "lab"), given["path"][0], name, gpus)
    return JobShape(kind=kind, pieces=pieces, limit_ms=limit_ms, **given)


def running(of: JobShape, *nodes: int, since_ms: int = MINUTE) -> RunNow:
    pods = [gpus for gpus, many in of.pieces for _ in range(many)]
    return RunNow(of, tuple(zip(nodes, pods, strict=True)), NOW - since_ms)


def waiting(of: JobShape, name: str = "mine", waited_ms: int = 0) -> WaitingNow:
    return WaitingNow(name, of, NOW - waited_ms)


def pool(nodes: int, runs: tuple[RunNow, ...], jobs: tuple[WaitingNow, ...], **more: Any) -> PoolNow:
    """Nodes of 8 GPUs without what the runs hold."""
    free = [8] * nodes
    for run in runs:
        for node, gpus in run.places:
            free[node] -= gpus
    given = {
        "queues": {"research": QueueNow("age", False, 1, FREE, FREE)},
        "tenant_weights": {},
        "patience_ms": 5 * 24 * 3_600_000,
        "depth": 0,
        "backfill_patience_ms": 0,
        **more,
    }
    return PoolNow(NOW, tuple(NodeNow("h100", 8, each) for each in free), runs, jobs, **given)


def outlook(now: PoolNow, lengths: LearntLengths | None = None, arrivals: PastArrivals | None = None) -> Outlook:
    sketches: Table[Sketch] = Table()
    return Outlook(now, sketches, lengths or LearntLengths(), arrivals or PastArrivals())
