"""
The watches of objects that own users' pods and can be suspended: without pods nothing else would lead to them.

A kind that the cluster does not have, or that we may not watch, is asked for again every two minutes; its objects are
fetched one by one meanwhile.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from tessera.binder.workloads.references import OwnerRef
from tessera.binder.workloads.registry import KINDS
from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.ports import Clock, Cluster, without_managed_fields
from tessera_schemas.base import Json

ABSENT_SECONDS = 120.0


class OwnerWatches:
    """One copy of all objects for each kind that is watched, by apiVersion and kind."""

    def __init__(self, cluster: Cluster, clock: Clock, who: str) -> None:
        watched = [(version, kind) for each in KINDS for version, kind in each.watched]
        self._informers = {
            (version, kind): Informer(
                cluster,
                f"{version}/{kind}",
                clock,
                reduce=partial(_with_its_kind, version, kind),
                who=who,
                longest_retry_seconds=ABSENT_SECONDS,
            )
            for version, kind in watched
        }

    def named(self, ref: OwnerRef) -> Json | None:
        """The object of that name as its watch showed it last; None where there is none, or no watch."""
        informer = self._informers.get((ref.api_version, ref.kind))
        return None if informer is None else informer.named(ref.name, ref.namespace)

    def find_by_uid(self, api_version: str, kind: str, uid: str) -> Json | None:
        """The owner by UID, as last seen; None when it is unknown."""
        informer = self._informers.get((api_version, kind))
        return None if informer is None else informer.objects.get(uid)

    def are_seen(self, api_version: str, kind: str) -> bool:
        """Whether changes of such objects come by themselves."""
        informer = self._informers.get((api_version, kind))
        return informer is not None and informer.synced

    def follow(self, on_change: Callable[[Delta], None]) -> list[Coroutine[Any, Any, None]]:
        """Loops, one for each kind, that hand on every change for ever."""
        return [_follow(informer, on_change) for informer in self._informers.values()]

    async def close(self) -> None:
        """Ends the watches."""
        for informer in self._informers.values():
            await informer.close()


async def _follow(informer: Informer, on_change: Callable[[Delta], None]) -> None:
    while True:
        for delta in await informer.next():
            on_change(delta)


def _with_its_kind(api_version: str, kind: str, found: Json) -> Json:
    """Objects in a list of the API's own kinds do not say of what kind they are."""
    return {**without_managed_fields(found), "apiVersion": api_version, "kind": kind}
