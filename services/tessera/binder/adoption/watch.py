"""
Users' pods that name our scheduler, gathered into groups as they come and go.

In come the pods of an informer that selects by scheduler name; pods that we made are left out. Out come the ids of
groups of which something changed. Which group a pod is of may need a look at its owner, so it is found out beside the
watch, a few pods at a time.

Of a gang that needs so many pods at least, those beyond start by themselves once that many are at work (`Whole`). So do
those of a gang whose owner has raised its number while all of its run are well; one that replaces a pod waits for the
whole gang.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import structlog

from tessera.binder.adoption.owners.known import NotAllowed, Owners
from tessera.binder.workloads.port import Group, GroupKind, alone
from tessera.binder.workloads.reading import mapping, no, text
from tessera.binder.workloads.references import OwnerRef
from tessera.binder.workloads.registry import domain_beyond, group_of, part_of, size_of, waits
from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import bound_for, has_ended, has_succeeded, shard_of
from tessera_schemas.job import REPLICAS_MAX
from tessera_schemas.reasons import Code, Reason

LOOKS_MAX = 8
ALONE = "alone/"
"""What the ids of pods begin with that are in no group; no group is called so."""
DECIDES = ("labels", "annotations", "ownerReferences")
"""The parts of a pod's metadata by which it may come to another group."""

log = structlog.get_logger()


@dataclass(slots=True)
class Whole:
    """All pods of one owner or gang, also those that stand alone by now; `needs` as it was last known."""

    needs: int = REPLICAS_MAX
    pods: dict[str, None] = field(default_factory=dict)
    at_work: dict[str, None] = field(default_factory=dict)

    @property
    def is_at_work(self) -> bool:
        """Tells whether the least number of pods is at work, so that further ones start by themselves."""
        return len(self.at_work) >= self.needs


class Groups:
    """
    `on_change` is called with a group's id. `alone` are pods that are in no group, by UID, with the reason.

    A pod of another shard is not ours to see: its label says so, and one without a label is the main shard's.
    """

    def __init__(
        self,
        informer: Informer,
        owners: Owners,
        clock: Clock,
        shard: str,
        on_change: Callable[[str], None],
        state: State,
    ) -> None:
        self.informer, self._owners, self._shard, self._on_change = informer, owners, shard, on_change
        self._state, self.alone = state, dict[str, Reason]()
        self._groups: dict[str, Group] = {}
        self._members: dict[str, dict[str, None]] = {}
        self._group_of: dict[str, str] = {}
        self._wholes: dict[str, Whole] = {}
        self._whole_of: dict[str, str] = {}
        self.worklist = Worklist(
            self._resolve, clock, 16, lambda uid: text(informer.objects.get(uid, {}), "metadata", "namespace")
        )

    def get(self, group_id: str) -> Group | None:
        """The group; None once its last pod is gone."""
        group = self._groups.get(group_id)
        return replace(group, beside=self._count_beside(group_id)) if group is not None and group.is_counted else group

    def at_work(self, group_id: str) -> Counter[str]:
        """Pods of the owner that have a node and neither ended nor are on their way out, by part."""
        return Counter(part_of(pod) for pod in self._alive(group_id) if text(pod, "spec", "nodeName"))

    def look_again(self, group_id: str) -> None:
        """Find out anew whether the waiting pods of a group start by themselves."""
        for pod in self.waiting(group_id):
            self.worklist.name(text(pod, "metadata", "uid"))

    def has_pods(self, whole_id: str) -> bool:
        """Whether a pod of the owner is there that has not ended."""
        whole = self._wholes.get(whole_id, Whole())
        return any(not has_ended(pod) for uid in whole.pods if (pod := self.informer.objects.get(uid)) is not None)

    def is_stopping_whole(self, whole_id: str) -> bool:
        """Whether the runs of all pods of the owner that are at work are to stop."""
        runs = [self._state.runs.get(bound_for(pod)) for pod in self._alive(whole_id) if text(pod, "spec", "nodeName")]
        return all(run is not None and run.stopping for run in runs)

    def _alive(self, whole_id: str) -> list[Json]:
        whole = self._wholes.get(whole_id)
        pods = (self.informer.objects.get(uid) for uid in (() if whole is None else whole.pods))
        return [pod for pod in pods if pod is not None and not (has_ended(pod) or _is_leaving(pod))]

    def _count_beside(self, whole_id: str) -> tuple[tuple[str, int], ...]:
        """The pods of an owner that start or run by themselves, by part."""
        apart = [pod for pod in self._alive(whole_id) if self._is_apart(pod, whole_id)]
        return tuple(sorted(Counter(map(part_of, apart)).items()))

    def _is_apart(self, pod: Json, whole_id: str) -> bool:
        if not text(pod, "spec", "nodeName"):
            return self._group_of.get(text(pod, "metadata", "uid")) != whole_id
        run = self._state.runs.get(bound_for(pod))
        job = None if run is None else self._state.jobs.get(run.job_id)
        return job is not None and job.adopted is not None and job.adopted.group != whole_id

    def _goes_on(self, group_id: str) -> bool:
        """Whether a run of the gang is at work, and nothing of it is missing."""
        return any(run.bound and not run.stopping and self._is_well(run) for run in self._runs(group_id))

    def _has_begun(self, group_id: str) -> bool:
        """Whether a run of the gang has started and goes on, with all of its pods or without some."""
        return any(run.started and not run.stopping for run in self._runs(group_id))

    def _runs(self, group_id: str) -> list[Run]:
        bound = dict.fromkeys(bound_for(pod) for pod in self.pods(group_id) if text(pod, "spec", "nodeName"))
        return [run for run in map(self._state.runs.get, bound) if run is not None and self._is_run_of(run, group_id)]

    def count_standing(self, whole_id: str, but: str = "") -> int:
        """Pods of a gang that have a node or start by themselves, and have not failed; without the one of this UID."""
        # What succeeded has done its part and keeps its place; what failed or was deleted leaves it to another.
        whole = self._wholes.get(whole_id, Whole())
        pods = [pod for uid in whole.pods if uid != but and (pod := self.informer.objects.get(uid)) is not None]
        placed = (pod for pod in pods if text(pod, "spec", "nodeName") or self._is_apart(pod, whole_id))
        return sum(map(_is_well, placed))

    def _is_run_of(self, run: Run, group_id: str) -> bool:
        job = self._state.jobs.get(run.job_id)
        return job is not None and job.adopted is not None and job.adopted.group == group_id

    def _is_well(self, run: Run) -> bool:
        staying = (uid for rank, uid in enumerate(run.uids) if uid and rank not in run.released_ranks)
        return all(_is_well(self.informer.objects.get(uid)) for uid in staying)

    def ids(self) -> list[str]:
        """Ids of the groups that have pods now."""
        return list(self._groups)

    def pods(self, group_id: str) -> list[Json]:
        """All of them, also ended ones."""
        found = (self.informer.objects.get(uid) for uid in self._members.get(group_id, ()))
        return [pod for pod in found if pod is not None]

    def waiting(self, group_id: str) -> list[Json]:
        """Pods of the group that are to be placed."""
        return [pod for pod in self.pods(group_id) if waits(pod)]

    def take(self, deltas: Iterable[Delta]) -> None:
        """Take in changes that the informer has handed out."""
        for delta in deltas:
            self._note(delta)

    def resolve_again(self) -> None:
        """Resolve pods again whose group was unknown: their owner may have come."""
        for uid in self.alone:
            self.worklist.name(uid)

    def _note(self, delta: Delta) -> None:
        uid = text(delta.object, "metadata", "uid")
        # Counted before the group is looked at, which depends on how many are at work.
        self._count(uid, delta.object if delta.type != "DELETED" else None)
        if delta.type == "DELETED":
            self.alone.pop(uid, None)
            self._leave(uid)
            if whole_id := self._whole_of.pop(uid, ""):
                self._on_change(whole_id)  # a Job in waves is resumed once its last pod is gone
        # Nearly all news leave a pod in its group, so that its owner need not be looked at again.
        elif uid not in self._group_of or _decides_otherwise(delta):
            self.worklist.name(uid)
        elif not _is_at_work(delta):
            self._on_change(self._group_of[uid])

    async def _resolve(self, uid: str) -> None:
        pod = self.informer.objects.get(uid)
        if pod is None or shard_of(pod) != self._shard:
            self.alone.pop(uid, None)
            self._leave(uid)
            return
        try:
            found = await self._beyond(pod, await self._group(pod))
        except NotAllowed as error:
            found = error.why
        if isinstance(found, Reason):
            self._leave(uid)
            self.alone[uid] = found
            self._on_change(f"{ALONE}{uid}")
        elif uid in self.informer.objects:  # it may have gone while we looked
            self.alone.pop(uid, None)
            self._join(uid, found)

    async def _group(self, pod: Json) -> Group | Reason:
        known: dict[OwnerRef, Json | None] = {}
        # Asked in steps: which object decides may only be known once the one before was seen. Bounded, since owners can
        # name each other in a circle.
        for _ in range(LOOKS_MAX):
            found = group_of(pod, known)
            if not isinstance(found, OwnerRef):
                return found
            known[found] = await self._owners.look(found)
        raise Transient(f"the group of pod {text(pod, 'metadata', 'name')} asks for ever more objects")

    async def _beyond(self, pod: Json, found: Group | Reason) -> Group | Reason:
        """The pod's group, or the pod alone where its gang is at work without it."""
        if isinstance(found, Reason):
            return found
        if not (found.at_least or found.replaces or found.is_counted or found.kind is GroupKind.POD):
            return found
        uid, whole_id = text(pod, "metadata", "uid"), _whole_of(found)
        if not whole_id:
            return found
        whole = self._wholes.setdefault(whole_id, Whole())
        self._whole_of[uid], whole.pods[uid] = whole_id, None
        owner = None if found.owner is None else await self._owners.look(found.owner)
        if found.replaces:
            lacks = waits(pod) and self._has_begun(whole_id) and self.count_standing(whole_id, uid) < found.size
            return _by_itself(pod, found, owner) if lacks else found
        if not found.at_least:
            grows = found.is_counted and waits(pod) and self._goes_on(whole_id)
            return _by_itself(pod, found, owner) if grows else found
        size = 1 if found.settles else size_of(found, owner, [pod])
        if isinstance(size, int):
            whole.needs = size
        elif found.kind is GroupKind.COMPOSITE:
            return found  # a group that the tree does not count would start pod by pod
        self._count(uid, pod)
        goes_on = whole.is_at_work or (found.is_counted and self._goes_on(whole_id))
        return _by_itself(pod, found, owner) if waits(pod) and goes_on else found

    def _count(self, uid: str, pod: Json | None) -> None:
        """Follow which pods of a gang are at work; when enough are, the others are looked at again."""
        whole_id = self._whole_of.get(uid, "")
        whole = self._wholes.get(whole_id)
        if whole is None:
            return
        if pod is None:
            whole.pods.pop(uid, None)
        if pod is None or not text(pod, "spec", "nodeName") or has_ended(pod):
            whole.at_work.pop(uid, None)
            # Kept as long as anybody of the gang is at work or waits: forgotten earlier, its late pods would wait for a
            # whole gang that runs already.
            if not (whole.at_work or whole.pods) and whole_id not in self._groups:
                self._wholes.pop(whole_id, None)
        elif uid not in whole.at_work:
            whole.at_work[uid] = None
            if whole.is_at_work:
                # Pods that joined before that count was reached wait as parts of a gang, and are looked at again as
                # single ones.
                for other in self.waiting(whole_id):
                    self.worklist.name(text(other, "metadata", "uid"))

    def _join(self, uid: str, group: Group) -> None:
        # Out of the old group first: a pod in two would be counted for both, and make one whole that is not.
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


def _whole_of(group: Group) -> str:
    """The id of the group of all pods of the owner, also for one that starts by itself; "" where it has none."""
    if group.kind is not GroupKind.POD:
        return group.id
    ref = group.owner
    return "" if ref is None else f"{ref.group}/{ref.kind}/{ref.namespace}/{ref.uid}"


def _is_well(pod: Json | None) -> bool:
    return pod is not None and not _is_leaving(pod) and (has_succeeded(pod) or not has_ended(pod))


def _is_leaving(pod: Json) -> bool:
    return "deletionTimestamp" in mapping(pod, "metadata")


def _by_itself(pod: Json, of: Group, owner: Json | None) -> Group | Reason:
    """A pod beyond those that its gang needs: nothing would keep it in the domain that the others are in."""
    domain, field = domain_beyond(of, owner, pod)
    if isinstance(domain, Reason):
        return domain
    if isinstance(domain, dict) and domain.get("required", True):
        way_out = "pods beyond the least number are not kept in its domain; raise that number"
        return no(Code.NOT_SUPPORTED_YET, field, way_out)
    return alone(pod, of.owner)


def _is_at_work(delta: Delta) -> bool:
    """Whether the pod was on its node before and has not ended: its own news then concern its run alone."""
    was_placed = bool(text(delta.old, "spec", "nodeName"))
    return was_placed and not has_ended(delta.object)


def _decides_otherwise(delta: Delta) -> bool:
    """Tell whether a change may move the pod to another group; a pod with a node stays in its group."""
    old, new = mapping(delta.old, "metadata"), mapping(delta.object, "metadata")
    return not text(delta.object, "spec", "nodeName") and any(old.get(part) != new.get(part) for part in DECIDES)
