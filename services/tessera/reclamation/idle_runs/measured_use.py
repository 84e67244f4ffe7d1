"""
Use of the GPUs of runs, summed up from look to look. Pure; times are milliseconds of one clock.

A pod counts as measured only where the source names each of its GPUs once, and no other pod for one of them: of
shares of a GPU, of MIG instances and of GPUs that several pods see, a percentage is nobody's. What is not measured is
not idle.

Sums begin with what the ledger knows of a run, and are sums since the run began: of two replicas that measure the same
run, each may say its own at any time, and the greater one counts.
"""

from dataclasses import dataclass, field

from tessera.domain.devices.resources import WHOLE_GPU, Node
from tessera.domain.entities import Run
from tessera.domain.table import Table
from tessera.reclamation.idle_runs.decide import GpuSample, GpuUsage, samples_of
from tessera_schemas.facts import RunUsed
from tessera_schemas.work.measured_use import MeasuredUse
from tessera_schemas.work.placement import Placement

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
MIB = 1024 * 1024
NOTHING = MeasuredUse()
PodSamples = list[tuple[Placement, tuple[GpuSample, ...]]]


@dataclass(slots=True)
class _Meter:
    """Sums of one run: what was said of it, when it was last looked at, and which of its GPUs were ever busy."""

    use: MeasuredUse
    said: int = 0
    looked_ms: int | None = None
    busy: set[tuple[int, str]] = field(default_factory=set)


class UseMeters:
    """
    Sums by run. A sample stands for the time since the look before; a gap longer than `gap_ms` is not measured.

    A GPU counts as busy from `busy_percent` on.
    """

    def __init__(self, busy_percent: int, gap_ms: int) -> None:
        self._busy_percent, self._gap_ms = busy_percent, gap_ms
        self._meters: dict[str, _Meter] = {}

    def look(self, run: Run, usage: GpuUsage, nodes: Table[Node], now_ms: int, busy_percent: int = 0) -> None:
        """Counts the time since the last look at the run by what its GPUs do now."""
        meter = self._follow(run)
        since_ms, meter.looked_ms = meter.looked_ms, now_ms
        pods = measured_pods(run, usage)
        if not pods:
            return
        ms = now_ms - since_ms if since_ms is not None and now_ms - since_ms <= self._gap_ms else 0
        samples = [sample for _, found in pods for sample in found]
        meter.busy = self._busy_of(run, pods, meter.busy, busy_percent or self._busy_percent)
        gpus = max(meter.use.gpus, len(samples))
        memory, gpu_memory = _memory_of(pods, nodes)
        meter.use = MeasuredUse(
            measured_gpu_milli_ms=meter.use.measured_gpu_milli_ms + WHOLE_GPU * len(samples) * ms,
            worked_gpu_milli_ms=meter.use.worked_gpu_milli_ms
            + WHOLE_GPU * sum(min(100, sample.percent) for sample in samples) * ms // 100,
            gpus=gpus,
            busy_gpus=min(gpus, max(meter.use.busy_gpus, len(meter.busy))),
            memory_mib=max(meter.use.memory_mib, memory),
            gpu_memory_mib=gpu_memory or meter.use.gpu_memory_mib,
        )

    def _follow(self, run: Run) -> _Meter:
        """The run's meter: from what the ledger knows on where that is more, as after a restart or another's turn."""
        known = run.gpu_use or NOTHING
        meter = self._meters.get(run.run_id)
        if meter is None:
            meter = self._meters[run.run_id] = _Meter(known)
        elif known.measured_gpu_milli_ms > meter.use.measured_gpu_milli_ms:
            # Another has counted up to some moment since our last look. Not to count it twice, ours begins anew.
            meter.use, meter.looked_ms = known.with_most_of(meter.use), None
        return meter

    def _busy_of(self, run: Run, pods: PodSamples, before: set[tuple[int, str]], percent: int) -> set[tuple[int, str]]:
        """GPUs of the pods that the run has now and that were ever busy."""
        now = {(place.rank, sample.gpu) for place, found in pods for sample in found if sample.percent >= percent}
        ranks = {place.rank for place in run.places}
        return now | {(rank, gpu) for rank, gpu in before if rank in ranks}

    def due(self, run: Run) -> RunUsed | None:
        """
        The fact to say of a run: after its first minute, then whenever that has doubled, then every hour.

        All in measured time of what it holds, so that the number of facts is bounded for each run and each hour.
        """
        meter = self._meters.get(run.run_id)
        if meter is None:
            return None
        known, held = self._known(meter, run), run.amount.gpu_milli
        step = min(max(known, MINUTE_MS * held), HOUR_MS * held)
        return self._report(meter, run) if meter.use.measured_gpu_milli_ms - known >= max(1, step) else None

    def last(self, run: Run) -> RunUsed | None:
        """The fact to say of a run that stops; None for nothing that was not said."""
        meter = self._meters.get(run.run_id)
        if meter is None or meter.use.measured_gpu_milli_ms <= self._known(meter, run):
            return None
        return self._report(meter, run)

    def _known(self, meter: _Meter, run: Run) -> int:
        return max(meter.said, (run.gpu_use or NOTHING).measured_gpu_milli_ms)

    def _report(self, meter: _Meter, run: Run) -> RunUsed:
        meter.said = meter.use.measured_gpu_milli_ms
        return RunUsed(kind="run_used", run_id=run.run_id, use=meter.use)

    def forget(self, run_id: str) -> None:
        """Forgets the sums of a run."""
        self._meters.pop(run_id, None)


def measured_pods(run: Run, usage: GpuUsage) -> PodSamples:
    """The pods with whole GPUs of which the source names each GPU once, and none that another pod has, too."""
    found = []
    for place in run.places:
        samples = samples_of(run, place.rank, usage) if place.gpu_milli == WHOLE_GPU and place.mig is None else ()
        if samples and len(samples) == len(place.devices) and not any(sample.shared for sample in samples):
            found.append((place, samples))
    return found


def _memory_of(pods: PodSamples, nodes: Table[Node]) -> tuple[int, int]:
    """Most memory in use on one GPU and the memory of the smallest, in MiB; nothing unless both are known of all."""
    used = [sample.memory_mib for _, samples in pods for sample in samples]
    there = [_gpu_memory_mib(nodes.get(place.node)) for place, _ in pods]
    if None in used or 0 in there:
        return 0, 0
    return max(mib for mib in used if mib is not None), min(there)


def _gpu_memory_mib(node: Node | None) -> int:
    return 0 if node is None else node.gpu_memory_bytes // MIB
