"""Whether a run uses the GPUs that it holds, and what there is to say about it. Pure; seconds are whole."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tessera.domain.entities import Run
from tessera.domain.quota.idle import IdlePolicy
from tessera_schemas.cluster.labels import pod_name
from tessera_schemas.facts import RunIdle


@dataclass(frozen=True, slots=True)
class GpuSample:
    """
    One GPU of a pod as a source measured it: use in percent, and memory in use in MiB, None where that is not told.

    `shared`: the source names another pod for the same GPU, so that nobody knows whose use it is.
    """

    gpu: str
    percent: int
    memory_mib: int | None = None
    shared: bool = False


GpuUsage = Mapping[tuple[str, str], tuple[GpuSample, ...]]
"""By namespace ("" where the source does not tell) and pod: each of its GPUs that has been measured."""


def samples_of(run: Run, rank: int, usage: GpuUsage) -> tuple[GpuSample, ...]:
    """The samples of a run's pod; none where it was not measured."""
    name = pod_name(run.run_id, rank)
    return usage.get((run.tenant, name), usage.get(("", name), ()))


class HeldGpus:
    """Thousandths of GPUs of started runs, by (pool, tenant, queue): those idle now, and those not known to be."""

    def __init__(self) -> None:
        self._idle: Counter[tuple[str, ...]] = Counter()
        self._unmeasured: Counter[tuple[str, ...]] = Counter()

    def add(self, labels: tuple[str, ...], gpu_milli: int, idle_seconds: int | None) -> None:
        """Counts a run that has been idle for so long; 0 for in use, None for unknown."""
        self._idle[labels] += gpu_milli if idle_seconds else 0
        self._unmeasured[labels] += gpu_milli if idle_seconds is None else 0

    def gauges(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Gauge, labels and GPUs; a 0 too, which is a reading."""
        for name, found in (("held_idle_gpus", self._idle), ("held_unmeasured_gpus", self._unmeasured)):
            yield from ((name, labels, gpu_milli / 1000) for labels, gpu_milli in found.items())


class Activity:
    """
    Time since which none of a run's GPUs has been seen in use, by run.

    What is not seen counts as used: a run is idle only while every pod of it that holds GPUs is measured, counted from
    the first such look, and a gap longer than `gap_seconds` begins the count anew.
    """

    def __init__(self, busy_percent: int, gap_seconds: int) -> None:
        self._busy, self._gap = busy_percent, gap_seconds
        self._seen: dict[str, _Seen] = {}

    def look(self, run: Run, usage: GpuUsage, now: int, busy_percent: int = 0) -> int | None:
        """
        Seconds of idleness as of `now`, 0 when it is in use; None when that is not known.

        From `busy_percent` on a GPU of this run counts as used; 0: as for all.
        """
        busy = busy_percent or self._busy
        of_pods = [samples_of(run, rank, usage) for rank in _ranks_with_gpus(run)]
        measured = [max((each.percent for each in samples), default=None) for samples in of_pods]
        if any(percent is not None and percent >= busy for percent in measured):
            self._seen.pop(run.run_id, None)
            return 0
        if not measured or None in measured:
            return None
        seen = self._seen.get(run.run_id)
        since = now if seen is None or now - seen.last > self._gap else seen.since
        self._seen[run.run_id] = _Seen(since, now)
        return max(1, now - since)

    def known(self, run_id: str, now: int) -> int:
        """Seconds of idleness of a run up to its last look; 0 when it is in use, or was not looked at for too long."""
        seen = self._seen.get(run_id)
        return 0 if seen is None or now - seen.last > self._gap else seen.last - seen.since

    def forget(self, run_id: str) -> None:
        """Forgets since when a run has been idle."""
        self._seen.pop(run_id, None)


@dataclass(frozen=True, slots=True)
class _Seen:
    since: int
    last: int


def _ranks_with_gpus(run: Run) -> list[int]:
    return [placement.rank for placement in run.places if placement.devices]


def find_idleness(run: Run, idle_seconds: int | None, policy: IdlePolicy) -> RunIdle | None:
    """
    The fact that would change something: idle for long enough to be warned about, in use again after a warning, or
    idle for long enough since then, as far as it was measured. The committer judges by the ledger's time, too.
    """
    if policy.action == "off" or not run.started or run.stopping or idle_seconds is None:
        return None
    warned = bool(run.idle_ts)
    long_enough = idle_seconds >= policy.warn_seconds
    due = policy.takes and idle_seconds >= policy.warn_seconds + policy.reclaim_seconds
    if (warned and idle_seconds == 0) or (long_enough and (not warned or due)):
        return RunIdle(kind="run_idle", run_id=run.run_id, idle_seconds=idle_seconds)
    return None
