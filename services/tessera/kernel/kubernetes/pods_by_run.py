"""The pods of each run as an informer shows them, and which runs changed."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import RUN_LABEL

P = TypeVar("P")


def labelled_run(pod: Json) -> str:
    """Run id on the pod's label; "" for a pod of no run."""
    labels: Json = pod["metadata"].get("labels") or {}
    return str(labels.get(RUN_LABEL, ""))


class PodsByRun(Generic[P]):
    """
    An index over the informer's copy: run id to its pods by UID, each read once by `read`. A pod of no run is left out.

    `on_gone` is told of a pod that was deleted, as it was last seen. `run_of` says which run a pod is of, "" for none.
    """

    def __init__(
        self,
        informer: Informer,
        read: Callable[[Json], P],
        on_gone: Callable[[str, P], None] | None = None,
        run_of: Callable[[Json], str] = labelled_run,
    ) -> None:
        self.informer, self._read, self._on_gone, self._run_of = informer, read, on_gone, run_of
        self._runs: dict[str, dict[str, P]] = {}

    def of(self, run_id: str) -> dict[str, P]:
        """Pods of a run by UID, as last taken; {} for a run without pods. Callers must not change the mapping."""
        return self._runs.get(run_id, {})

    def present(self, run_ids: Iterable[str]) -> list[str]:
        """Runs, of those that are given, that have a pod."""
        return [run_id for run_id in run_ids if run_id in self._runs]

    def runs(self) -> list[str]:
        """Ids of all runs that have at least one pod."""
        return list(self._runs)

    async def next(self) -> list[str]:
        """Wait for changes; returns the runs whose pods changed, each once."""
        return self.take(await self.informer.next())

    def take(self, deltas: Iterable[Delta]) -> list[str]:
        """Hold what the informer has just handed out; returns the runs whose pods changed, each once."""
        changed: dict[str, None] = {}
        for delta in deltas:
            changed |= dict.fromkeys(run_id for run_id in self._hold(delta) if run_id)
        return list(changed)

    def _hold(self, delta: Delta) -> list[str]:
        """A pod may go from one run to another; one that leaves them all is seen as deleted, maybe without its run."""
        uid, now = delta.object["metadata"]["uid"], self._run_of(delta.object)
        before = self._run_of(delta.old) if delta.old is not None else now
        if delta.type == "DELETED":
            if self._on_gone is not None and uid in self._runs.get(before, ()):
                self._on_gone(before, self._read(delta.object))
            self._drop(before, uid)
            return [before]
        if before != now:
            self._drop(before, uid)
        if now:
            self._runs.setdefault(now, {})[uid] = self._read(delta.object)
        return [now] if before == now else [before, now]

    def _drop(self, run_id: str, uid: str) -> None:
        pods = self._runs.get(run_id, {})
        pods.pop(uid, None)
        if not pods:
            self._runs.pop(run_id, None)
