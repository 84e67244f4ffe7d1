"""The pods of each run as an informer shows them, and which runs changed."""

from collections.abc import Callable
from typing import Generic, TypeVar

from tessera.kernel.informer import Delta, Informer
from tessera.kernel.ports import JsonObject
from tessera_schemas.labels import RUN_LABEL

P = TypeVar("P")


class PodsByRun(Generic[P]):
    """An index over the informer's copy: run id to its pods by UID, each read once by `read`."""

    def __init__(self, informer: Informer, read: Callable[[JsonObject], P]) -> None:
        self.informer, self._read = informer, read
        self._runs: dict[str, dict[str, P]] = {}

    def of(self, run_id: str) -> dict[str, P]:
        return self._runs.get(run_id, {})

    def runs(self) -> list[str]:
        return list(self._runs)

    async def next(self) -> list[str]:
        """Wait for changes; returns the runs whose pods changed, each once."""
        changed: dict[str, None] = {}
        for delta in await self.informer.next():
            changed[self._hold(delta)] = None
        return list(changed)

    def _hold(self, delta: Delta) -> str:
        meta = delta.object["metadata"]
        run_id: str = meta["labels"][RUN_LABEL]
        if delta.type == "DELETED":
            pods = self._runs.get(run_id, {})
            pods.pop(meta["uid"], None)
            if not pods:
                self._runs.pop(run_id, None)
        else:
            self._runs.setdefault(run_id, {})[meta["uid"]] = self._read(delta.object)
        return run_id
