"""Free GPUs of each node over time, and when a gang finds room in them."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from tessera.testkit.line_judge.schedule import AskedJob, WholeGpus

FoundRoom = tuple[int, tuple[str, ...]]
"""When, and the node of each pod."""


class FreeAhead:
    """Free GPUs from `now_ms` on; what holds some until an end is `taken`."""

    def __init__(self, nodes: Iterable[WholeGpus], now_ms: int) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._times = [now_ms]
        self._free = {node.name: [node.gpus] for node in self._nodes.values()}

    def copy(self) -> "FreeAhead":
        made = FreeAhead((), 0)
        made._nodes, made._times = self._nodes, list(self._times)
        made._free = {name: list(free) for name, free in self._free.items()}
        return made

    def take(self, gpus: int, nodes: Sequence[str], begin_ms: int, end_ms: int) -> None:
        """Hold so many GPUs for each entry of `nodes` from `begin_ms` until before `end_ms`."""
        if end_ms <= max(begin_ms, self._times[0]):
            return
        first, last = self._cut(max(begin_ms, self._times[0])), self._cut(end_ms)
        for name in nodes:
            free = self._free[name]
            free[first:last] = [left - gpus for left in free[first:last]]

    def place(self, job: AskedJob, begin_ms: int, end_ms: int) -> tuple[str, ...] | None:
        """Nodes for the gang through all that time, the fullest first; None where it has no room."""
        first, last = self._index(begin_ms), bisect_left(self._times, end_ms)
        able = []
        for name, node in self._nodes.items():
            least = min(self._free[name][first : max(last, first + 1)])
            if least >= job.gpus and (not job.models or node.model in job.models):
                able.append((least, name))
        nodes = [name for least, name in sorted(able) for _ in range(least // job.gpus)]
        return tuple(nodes[: job.pods]) if len(nodes) >= job.pods else None

    def earliest(self, job: AskedJob, length_ms: int) -> FoundRoom | None:
        """The soonest moment from which on the gang has room for so long; None: never."""
        for at_ms in self._times:
            nodes = self.place(job, at_ms, at_ms + length_ms)
            if nodes is not None:
                return at_ms, nodes
        return None

    def _index(self, at_ms: int) -> int:
        at = bisect_left(self._times, at_ms)
        return at if at < len(self._times) and self._times[at] == at_ms else max(0, at - 1)

    def _cut(self, at_ms: int) -> int:
        """Index of the step that begins at this time."""
        at = bisect_left(self._times, at_ms)
        if at == len(self._times) or self._times[at] != at_ms:
            self._times.insert(at, at_ms)
            for free in self._free.values():
                free.insert(at, free[at - 1])
        return at


def meets(job: AskedJob, nodes: Iterable[str], models: dict[str, str]) -> bool:
    """Whether the job may run on any of these nodes."""
    return not job.models or any(models[name] in job.models for name in nodes)
