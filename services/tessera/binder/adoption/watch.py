"""
Users' pods that name our scheduler, gathered into groups as they come and go.

In come the pods of an informer that selects by scheduler name; pods that we made are left out. Out come the ids of
groups of which something changed. Which group a pod is of may need a look at its owner, so it is found out beside the
watch, a few pods at a time.
"""

from collections.abc import Callable, Iterable

import structlog

from tessera.binder.adoption.groups import Group, OwnerRef, group_of, waits
from tessera.binder.adoption.owners import Owners
from tessera.binder.adoption.reading import Json, mapping, text
from tessera.kernel.errors import Transient
from tessera.kernel.informer import Delta, Informer
from tessera.kernel.ports import Clock
from tessera.kernel.worklist import Worklist
from tessera_schemas.labels import SHARD_LABEL, has_ended
from tessera_schemas.reasons import Reason
from tessera_schemas.subjects import MAIN_SHARD

LOOKS_MAX = 4
ALONE = "alone/"
"""What the ids of pods begin with that are in no group; no group is called so."""
DECIDES = ("labels", "annotations", "ownerReferences")
"""The parts of a pod's metadata by which it may come to another group."""

log = structlog.get_logger()


class Groups:
    """
    `on_change` is called with a group's id. `alone` are pods that are in no group, by UID, with the reason.

    A pod of another shard is not ours to see: its label says so, and one without a label is the main shard's.
    """

    def __init__(
        self, informer: Informer, owners: Owners, clock: Clock, shard: str, on_change: Callable[[str], None]
    ) -> None:
        self.informer, self._owners, self._shard, self._on_change = informer, owners, shard, on_change
        self._groups: dict[str, Group] = {}
        self._members: dict[str, dict[str, None]] = {}
        self._group_of: dict[str, str] = {}
        self.alone: dict[str, Reason] = {}
        self.worklist = Worklist(self._resolve, clock, at_once=16)

    def get(self, group_id: str) -> Group | None:
        """None once its last pod is gone."""
        return self._groups.get(group_id)

    def ids(self) -> list[str]:
        return list(self._groups)

    def pods(self, group_id: str) -> list[Json]:
        """All of them, also ended ones."""
        found = (self.informer.objects.get(uid) for uid in self._members.get(group_id, ()))
        return [pod for pod in found if pod is not None]

    def waiting(self, group_id: str) -> list[Json]:
        """Those that are to be placed."""
        return [pod for pod in self.pods(group_id) if waits(pod)]

    def take(self, deltas: Iterable[Delta]) -> None:
        """What the informer has just handed out."""
        for delta in deltas:
            self._note(delta)

    def resolve_again(self) -> None:
        """What could not be said of a pod may be said now: its owner may have come."""
        for uid in self.alone:
            self.worklist.name(uid)

    def _note(self, delta: Delta) -> None:
        uid = text(delta.object, "metadata", "uid")
        if delta.type == "DELETED":
            self.alone.pop(uid, None)
            self._leave(uid)
        elif uid not in self._group_of or _decides_otherwise(delta):
            self.worklist.name(uid)
        elif not _is_at_work(delta):
            self._on_change(self._group_of[uid])

    async def _resolve(self, uid: str) -> None:
        pod = self.informer.objects.get(uid)
        if pod is None or (mapping(pod, "metadata", "labels").get(SHARD_LABEL) or MAIN_SHARD) != self._shard:
            self.alone.pop(uid, None)
            self._leave(uid)
            return
        found = await self._group(pod)
        if isinstance(found, Reason):
            self._leave(uid)
            self.alone[uid] = found
            self._on_change(f"{ALONE}{uid}")
        elif uid in self.informer.objects:  # it may have gone while we looked
            self.alone.pop(uid, None)
            self._join(uid, found)

    async def _group(self, pod: Json) -> Group | Reason:
        known: dict[OwnerRef, Json | None] = {}
        for _ in range(LOOKS_MAX):
            found = group_of(pod, known)
            if not isinstance(found, OwnerRef):
                return found
            known[found] = await self._owners.look(found)
        raise Transient(f"the group of pod {text(pod, 'metadata', 'name')} asks for ever more objects")

    def _join(self, uid: str, group: Group) -> None:
        if self._group_of.get(uid) != group.id:
            self._leave(uid)
        self._group_of[uid] = group.id
        self._groups[group.id] = group
        self._members.setdefault(group.id, {})[uid] = None
        self._on_change(group.id)

    def _leave(self, uid: str) -> None:
        group_id = self._group_of.pop(uid, None)
        if group_id is None:
            return
        members = self._members[group_id]
        members.pop(uid, None)
        if not members:
            del self._members[group_id], self._groups[group_id]
        self._on_change(group_id)


def _is_at_work(delta: Delta) -> bool:
    """It was on its node before and has not ended: what it says of itself there concerns its run alone."""
    was_placed = bool(text(delta.old, "spec", "nodeName"))
    return was_placed and not has_ended(delta.object)


def _decides_otherwise(delta: Delta) -> bool:
    """Only while it waits: what has a node stays in the group that it was placed with."""
    old, new = mapping(delta.old, "metadata"), mapping(delta.object, "metadata")
    return not text(delta.object, "spec", "nodeName") and any(old.get(part) != new.get(part) for part in DECIDES)
