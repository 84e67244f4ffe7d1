"""
Free GPUs of one pool beside the jobs in line there: what of them fits nothing that waits, and for lack of what. Pure.

Told is only what the state proves. Of each resource the least that any pod in line asks for is known; a node that has
less of it free takes none of them. All other reasons why a job waits (its other pods, labels, taints, racks) are not
looked at, so that such GPUs are free while work waits. When the least changes, only nodes between the old one and the
new one are looked at again.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from sortedcontainers import SortedList

from tessera.domain.devices.resources import WHOLE_GPU, Need
from tessera.domain.entities import Job
from tessera.engine.accounts.owners import FreeGpus, GpuCause, GpuOwner, OwnedAmounts
from tessera_schemas.reasons import Code

Least = tuple[int, int, int]
"""Thousandths of GPUs for one pod, whole ones together or a part of one; CPU in thousandths; memory in bytes."""
SHORT = (GpuCause.GPU, GpuCause.CPU, GpuCause.MEMORY)
"""Causes by the place of their resource in `Least`."""
BY_DECISION = {
    Code.WAITING_FOR_QUOTA: GpuCause.QUOTA,
    Code.QUEUE_STOPPED: GpuCause.STOPPED,
    Code.BUDGET_SPENT: GpuCause.BUDGET,
    Code.WAITING_FOR_WINDOW: GpuCause.BOOKED,
    Code.NODES_BOOKED: GpuCause.BOOKED,
}
ANY_MODEL = ""
CountedKey = TypeVar("CountedKey")


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """Request of a job in line per pod, apart for each of its roles that asks for GPUs, and why the job waits."""

    least: tuple[Least, ...]
    models: tuple[str, ...]
    code: Code | None


def request_of(job: Job) -> GpuRequest | None:
    """None for a job that asks for no GPU."""
    needs = [role.need for role in job.roles if role.need.total_gpu_milli]
    if not needs:
        return None
    models = {model for need in needs for model in need.gpu_models or (ANY_MODEL,)}
    code = None if job.reason is None else job.reason.code
    return GpuRequest(tuple(map(_least, needs)), tuple(sorted(models)), code)


def _least(need: Need) -> Least:
    # How much of a GPU an instance of MIG takes depends on the GPU: any part may do. So with claims.
    gpus = 1 if need.mig_profile or need.claims else need.gpus * WHOLE_GPU or need.gpu_milli
    return gpus, need.cpu_milli, need.memory_bytes


class AskedAmounts:
    """Amounts of one resource that pods in line ask for, of which many are equal; `least` is 0 where there is none."""

    def __init__(self) -> None:
        self._pods: dict[int, int] = {}
        self._sorted: SortedList[int] = SortedList()
        self.least = 0

    def count(self, amount: int, sign: int) -> None:
        """One pod more asks for this (1), or one less (-1)."""
        before = self._pods.get(amount, 0)
        self._pods[amount] = before + sign
        if before and before + sign:
            return
        # Most jobs ask for what others ask for, too: only the first and the last of an amount change the order.
        if before:
            del self._pods[amount]
            self._sorted.remove(amount)
        else:
            self._sorted.add(amount)
        self.least = self._sorted[0] if self._sorted else 0


class PoolInLine:
    """Free GPUs of one pool's nodes, and the jobs in line there."""

    def __init__(self) -> None:
        self._requests: dict[str, GpuRequest] = {}
        self._asked = AskedAmounts(), AskedAmounts(), AskedAmounts()
        self._models, self._codes = Counter[str](), Counter[Code | None]()
        self._free: dict[str, FreeGpus] = {}
        self._by_room: tuple[SortedList[tuple[int, str]], ...] = (SortedList(), SortedList(), SortedList())
        self._sums: Counter[tuple[str, str, str, GpuCause]] = Counter()
        self._least: Least = (0, 0, 0)

    def wait(self, job_id: str, now: GpuRequest | None) -> None:
        """The job waits with this request, or does not wait any more."""
        for request, sign in ((self._requests.pop(job_id, None), -1), (now, 1)):
            if request is None:
                continue
            _tally(self._codes, request.code, sign)
            for model in request.models:
                _tally(self._models, model, sign)
            for least in request.least:
                for asked, amount in zip(self._asked, least, strict=True):
                    asked.count(amount, sign)
        if now is not None:
            self._requests[job_id] = now
        if self._requests:
            self._follow_least()

    def _follow_least(self) -> None:
        # While nobody waits, verdicts are asked of nobody and stay as they were: the next job is often like the last.
        gpus, cpu, memory = self._asked
        before, self._least = self._least, (gpus.least, cpu.least, memory.least)
        if before == self._least:
            return
        changed = set[str]()
        for old, new, nodes in zip(before, self._least, self._by_room, strict=True):
            if old != new:
                low, high = sorted((old, new))
                changed.update(name for _, name in nodes.irange((low,), (high,)))
        for name in changed:
            self._count(self._free[name], before, -1)
            self._count(self._free[name], self._least, 1)

    def put_free(self, node: str, now: FreeGpus | None) -> None:
        """The node has this free now, or nothing."""
        for free, sign in ((self._free.pop(node, None), -1), (now, 1)):
            if free is None:
                continue
            self._count(free, self._least, sign)
            for kept, amount in zip(self._by_room, _room(free), strict=True):
                if sign > 0:
                    kept.add((amount, node))
                else:
                    kept.remove((amount, node))
        if now is not None:
            self._free[node] = now

    def _count(self, free: FreeGpus, least: Least, sign: int) -> None:
        key = free.pool, free.flavor, free.model, _verdict(free, least)
        _tally(self._sums, key, sign * free.milli)

    def causes(self) -> Mapping[GpuOwner, OwnedAmounts]:
        """Owners of the free GPUs."""
        found = dict[GpuOwner, OwnedAmounts]()
        decided = self._decided()
        for (pool, flavor, model, verdict), milli in self._sums.items():
            if not self._requests:
                cause = GpuCause.NOTHING_WAITS
            elif decided is not None:
                cause = decided
            elif not (self._models[ANY_MODEL] or self._models[model]):
                cause = GpuCause.MODEL
            else:
                cause = verdict
            owner = GpuOwner(pool, flavor, cause)
            found[owner] = (found[owner][0] if owner in found else 0) + milli, 0, 0
        return found

    def _decided(self) -> GpuCause | None:
        """The cause that the last decision about each job in line names, if it is one."""
        # Jobs that wait for a window and jobs that would outlast one are kept by one thing: causes count.
        causes = {BY_DECISION.get(code) if code is not None else None for code in self._codes}
        return causes.pop() if len(causes) == 1 else None


def _tally(counts: Counter[CountedKey], key: CountedKey, by: int) -> None:
    """Counts, and keeps nothing of what is down to 0: users name models as they like."""
    counts[key] += by
    if not counts[key]:
        del counts[key]


def _room(free: FreeGpus) -> Least:
    return free.largest, free.cpu_milli, free.memory_bytes


def _verdict(free: FreeGpus, least: Least) -> GpuCause:
    """The first resource of which no pod in line asks for as little as is there."""
    if free.pods < 1:
        return GpuCause.PODS
    short = (cause for cause, asked, there in zip(SHORT, least, _room(free), strict=True) if asked > there)
    return next(short, GpuCause.WORK_WAITS)
