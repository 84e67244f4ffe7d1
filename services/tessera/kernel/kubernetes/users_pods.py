"""
Pods that users made for our scheduler, and whose each is.

The ledger's permit names them by UID, and the bind itself writes the run's name on them: so nothing is written before
it. A bound pod is the run's whose name its bind wrote, and an unbound one of whichever run it is permitted to, until
it is given back: a mark on the pod says up to which allocation runs have let go of it, and it changes the version
that a late bind is held to.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from tessera.domain.entities import Run
from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.kubernetes.pods_by_run import PodsByRun
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import bound_for

REMEMBERED = 16_384
P = TypeVar("P")


class UsersPods(Generic[P]):
    """
    An index over an informer that selects by `USERS_PODS` and `NAMES_US`; each pod that is bound is read once.

    `on_gone` is told of a bound pod that was deleted, as it was last seen. `gone` are the UIDs of pods that were seen
    to go, since no UID comes back; what is in neither may be one that was not seen yet.
    """

    def __init__(
        self,
        informer: Informer,
        read: Callable[[Json], P],
        on_gone: Callable[[str, P], None] | None = None,
    ) -> None:
        self.informer, self._read = informer, read
        self._bound = PodsByRun(informer, read, on_gone, bound_for)
        self.gone: dict[str, None] = {}

    def of(self, run: Run) -> dict[str, P]:
        """Pods by UID that are permitted to the run, and that no other run has bound."""
        bound, found = self._bound.of(run.run_id), dict[str, P]()
        for uid in run.permitted:
            pod = self.informer.objects.get(uid)
            if uid in bound:
                found[uid] = bound[uid]
            elif pod is not None and not bound_for(pod):
                found[uid] = self._read(pod)
        return found

    def bound(self, run_id: str) -> dict[str, P]:
        """Pods whose bind wrote the run's name, whether the ledger knows the run or not."""
        return self._bound.of(run_id)

    def runs(self) -> list[str]:
        """Ids of all runs whose name a bind wrote on a pod that is still there."""
        return self._bound.runs()

    def take(self, deltas: list[Delta]) -> list[str]:
        """Hold what the informer has just handed out; returns the runs whose bound pods changed, each once."""
        for delta in deltas:
            if delta.type == "DELETED":
                self._remember_gone(delta.object["metadata"]["uid"])
        return self._bound.take(deltas)

    def _remember_gone(self, uid: str) -> None:
        if len(self.gone) >= REMEMBERED:
            del self.gone[next(iter(self.gone))]
        self.gone[uid] = None
