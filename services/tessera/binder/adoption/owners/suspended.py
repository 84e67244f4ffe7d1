"""Suspended owners that name our scheduler: they have no pods yet, so their templates are submitted."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from tessera.binder.adoption.decide.cluster_marks import ClusterMarks
from tessera.binder.adoption.decide.from_template import sets_of_suspended, spec_of_suspended
from tessera.binder.adoption.decide.spec import Adoption
from tessera.binder.adoption.decide.suspending import explain_resumed_by, is_suspended
from tessera.binder.adoption.owners.device_claims import is_looked_up, read_device_claims, with_hostnames
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.adoption.owners.watches import OwnerWatches
from tessera.binder.adoption.volume_claims import VolumeClaims
from tessera.binder.bounded import BoundedDict
from tessera.binder.workloads.port import PodSet
from tessera.binder.workloads.reading import mapping, text
from tessera.binder.workloads.references import OwnerRef, controller_of, ref_of
from tessera.binder.workloads.registry import kind_of_object
from tessera.kernel.kubernetes.informer import Delta
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import SCHEDULER_NAME, shard_of
from tessera_schemas.reasons import Reason

REMEMBERED = 65_536


class Suspended:
    """Follows the watches of owners; `on_change` is called with the group id of one that is, or was, ours."""

    def __init__(
        self,
        watches: OwnerWatches,
        owners: Owners,
        volumes: VolumeClaims,
        marks: ClusterMarks,
        shard: str,
        on_change: Callable[[str], None],
    ) -> None:
        self._watches, self._owners, self._volumes, self._marks = watches, owners, volumes, marks
        self._shard, self._on_change = shard, on_change
        self._by_group: dict[str, OwnerRef] = {}
        self._known: BoundedDict[str, tuple[Json, Sequence[Json], Adoption | Reason]] = BoundedDict(REMEMBERED)

    def ids(self) -> list[str]:
        """Ids of the groups whose owners are suspended now."""
        return list(self._by_group)

    def follow(self) -> list[Coroutine[Any, Any, None]]:
        """Loops that note, for ever, which owners that name us are suspended."""
        return self._watches.follow(self._take)

    def _take(self, delta: Delta) -> None:
        kind = kind_of_object(delta.object)
        if kind is not None and kind.makes[1]:
            meta = mapping(delta.object, "metadata")
            made = self._watches.named(OwnerRef(*kind.makes, text(meta, "namespace"), text(meta, "name")))
            if made is not None and self._names_us(made):
                self._note(made, gone=False)
            return
        # The old object counts, too: an owner that names another scheduler by now has to be let go of.
        if self._names_us(delta.object) or (delta.old is not None and self._names_us(delta.old)):
            self._note(delta.object, gone=delta.type == "DELETED")

    async def adoption(self, group_id: str) -> Adoption | Reason | None:
        """
        The job of a suspended owner's templates, remembered until the owner changes; None when the group is not one.

        Raises ApiError, Transient.
        """
        job = self.owner(group_id)
        if job is None:
            return None
        above = await self._owners.suspended_by(job)
        maker = controller_of(job)
        if above is None and maker is not None:
            return explain_resumed_by(maker)
        sets = sets_of_suspended(job, self._owners.by_queue, above)
        if sets is None or isinstance(sets, Reason):
            return sets
        classes = await self._owners.all_of("priorityclasses")
        if any(is_looked_up(each.template) or self._marks.are_on(each.template, job) for each in sets):
            return await self._looked_up(job, sets, classes)
        known = self._known.get(group_id)
        # Conditions are written all the time, by us as well: compared as a whole, each write of ours would lead to
        # another look.
        if known is not None and _asks_the_same(known[0], job) and known[1] == classes:
            return known[2]
        answer = spec_of_suspended(job, sets, classes)
        self._known[group_id] = job, classes, answer
        return answer

    async def _looked_up(self, owner: Json, sets: Sequence[PodSet], classes: Sequence[Json]) -> Adoption | Reason:
        """Claims change while their owner does not, and GPUs and configuration, too, so that nothing is remembered."""
        placeable = []
        for each in sets:
            # Twice where there will be several pods: a claim that one pod may name, its template may then not.
            template = self._marks.read([each.template] * min(each.count, 2), owner)
            namespace = text(owner, "metadata", "namespace")
            found = await self._volumes.placeable(namespace, template)
            found = found if isinstance(found, Reason) else await read_device_claims(self._owners, found, namespace)
            if isinstance(found, Reason):
                return found
            found = await with_hostnames(self._owners, found)
            placeable.append(replace(each, template=found[0]) if found else each)
        return spec_of_suspended(owner, placeable, classes)

    def owner(self, group_id: str) -> Json | None:
        """The group's own object as the watch last showed it; None unless it is suspended."""
        ref = self._by_group.get(group_id)
        return None if ref is None else self._watches.find_by_uid(ref.api_version, ref.kind, ref.uid)

    def _note(self, owner: Json, gone: bool) -> None:
        ref = ref_of(owner)
        if gone:
            self._owners.note_gone(owner)
        group_id = f"{ref.group}/{ref.kind}/{ref.namespace}/{ref.uid}"
        if not gone and is_suspended(owner):
            self._by_group[group_id] = ref
        else:
            self._by_group.pop(group_id, None)
            self._known.pop(group_id, None)
        self._on_change(group_id)

    def _names_us(self, owner: Json) -> bool:
        kind = kind_of_object(owner)
        return kind is not None and any(self._is_ours(each.template) for each in kind.pod_sets(owner))

    def _is_ours(self, template: Json) -> bool:
        return text(template, "spec", "schedulerName") == SCHEDULER_NAME and shard_of(template) == self._shard


def _asks_the_same(before: Json, now: Json) -> bool:
    """Tells whether nothing has changed but conditions, which its controller and we ourselves write while it waits."""
    return before is now or _without_conditions(before) == _without_conditions(now)


def _without_conditions(owner: Json) -> tuple[Json, Json, Json, Json]:
    labels, annotations = (mapping(owner, "metadata", part) for part in ("labels", "annotations"))
    counted = {name: value for name, value in mapping(owner, "status").items() if value and name != "conditions"}
    return labels, annotations, mapping(owner, "spec"), counted
