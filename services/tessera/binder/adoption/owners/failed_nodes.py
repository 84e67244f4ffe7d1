"""
Nodes on which pods of an owner have failed, for the pods that it makes next.

Pods that start one by one are jobs of their own, and no job knows of another's failures. The failed pods that are still
there tell, so that a binder that starts anew knows as much.
"""

from collections.abc import Iterable

from tessera.binder.decide.steps import failed_at
from tessera.binder.workloads.reading import text
from tessera.binder.workloads.references import controller_of
from tessera.kernel.kubernetes.informer import Delta
from tessera_schemas.base import Json
from tessera_schemas.work.adopted import FAILED_ON_MAX


class FailedNodes:
    """`take` follows users' pods as the informer shows them; what owners whose pods are gone had is forgotten."""

    def __init__(self) -> None:
        self._by_owner: dict[str, dict[str, str]] = {}

    def take(self, deltas: Iterable[Delta]) -> None:
        """Take in changes that the informer has handed out."""
        for delta in deltas:
            owner, uid = controller_of(delta.object), text(delta.object, "metadata", "uid")
            if owner is None:
                continue
            if delta.type == "DELETED":
                failed = self._by_owner.get(owner.uid, {})
                if failed.pop(uid, None) and not failed:
                    del self._by_owner[owner.uid]
            elif node := failed_at(delta.object):
                self._by_owner.setdefault(owner.uid, {})[uid] = node

    def of(self, pods: Iterable[Json]) -> tuple[str, ...]:
        """The nodes on which other pods of the owners of these have failed, the latest last."""
        owners = dict.fromkeys(owner.uid for owner in map(controller_of, pods) if owner is not None)
        nodes = [node for owner in owners for node in self._by_owner.get(owner, {}).values()]
        # Each node once, at the place of its latest failure: where the list is cut, the oldest failures go.
        return tuple(reversed(dict.fromkeys(reversed(nodes))))[-FAILED_ON_MAX:]
