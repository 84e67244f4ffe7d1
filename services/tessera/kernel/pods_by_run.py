"""The pods of each run as an informer shows them, and which runs changed."""

from collections.abc import Callable
from typing import Generic, TypeVar

from tessera.kernel.informer import Delta, Informer
from tessera.kernel.ports import JsonObject
from tessera_schemas.labels import RUN_LABEL

P = TypeVar("P")


class PodsByRun(Generic[P]):
    """
    An index over the informer's copy: run id to its pods by UID, each read once by `read`.

    `on_gone` is told of a pod that was deleted, as it was last seen.
    """

    def __init__(
        self,
        informer: Informer,
        read: Callable[[JsonObject], P],
        on_gone: Callable[[str, P], None] | None = None,
    ) -> None:
        self.informer, self._read, self._on_gone = informer, read, on_gone
        self._runs: dict[str, dict[str, P]] = {}

    def of(self, run_id: str) -> dict[str, P]:
        return self._runs.get(run_id, {})

    def runs(self) -> list[str]:
        return list(self._runs)

    async def next(self) -> list[str]:
        """Wait for changes; returns the runs whose pods changed, each once."""
        changed: dict[str, None] = {}
        for delta in await self.informer.next():
            changed |= dict.fromkeys(self._hold(delta))
        return list(changed)

    def _hold(self, delta: Delta) -> list[str]:
        """A pod may go from one run to another; one that leaves them all is seen as deleted, maybe without its run."""
        uid, now = delta.object["metadata"]["uid"], _run_of(delta.object)
        before = _run_of(delta.old) if delta.old is not None else now
        if delta.type == "DELETED":
            if self._on_gone is not None and uid in self._runs.get(before, ()):
                self._on_gone(before, self._read(delta.object))
            self._drop(before, uid)
            return [before]
        if before != now:
            self._drop(before, uid)
        self._runs.setdefault(now, {})[uid] = self._read(delta.object)
        return [now] if before == now else [before, now]

    def _drop(self, run_id: str, uid: str) -> None:
        pods = self._runs.get(run_id, {})
        pods.pop(uid, None)
        if not pods:
            self._runs.pop(run_id, None)


def _run_of(pod: JsonObject) -> str:
    labels: JsonObject = pod["metadata"].get("labels") or {}
    return str(labels.get(RUN_LABEL, ""))
