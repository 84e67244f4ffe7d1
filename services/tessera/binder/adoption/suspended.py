"""Suspended owners that name our scheduler: they have no pods yet, so their templates are submitted."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tessera.binder.adoption.decide.from_template import sets_of_suspended, spec_of_suspended
from tessera.binder.adoption.decide.gpu_memory import with_shares
from tessera.binder.adoption.decide.spec import Adoption
from tessera.binder.adoption.owners import Owners
from tessera.binder.adoption.volume_claims import VolumeClaims
from tessera.binder.workloads.reading import Json, mapping, text
from tessera.kernel.kubernetes.informer import Informer
from tessera_schemas.labels import SCHEDULER_NAME, SHARD_LABEL
from tessera_schemas.reasons import Reason
from tessera_schemas.subjects import MAIN_SHARD


class Suspended:
    """Follows the watch of all batch Jobs; `on_change` is called with the group id of one that is, or was, ours."""

    def __init__(
        self,
        jobs: Informer,
        owners: Owners,
        volumes: VolumeClaims,
        gpu_sizes: Callable[[], Sequence[int]],
        shard: str,
        on_change: Callable[[str], None],
    ) -> None:
        self._jobs, self._owners, self._volumes, self._gpu_sizes = jobs, owners, volumes, gpu_sizes
        self._shard, self._on_change = shard, on_change
        self._by_group: dict[str, str] = {}

    def ids(self) -> list[str]:
        """Ids of the groups whose Jobs are suspended now."""
        return list(self._by_group)

    async def follow(self) -> None:
        """Follows the watch of batch Jobs for ever, and notes which of those that name us are suspended."""
        while True:
            for delta in await self._jobs.next():
                job = delta.object
                if self._names_us(job) or (delta.old is not None and self._names_us(delta.old)):
                    self._note(job, gone=delta.type == "DELETED")

    async def adoption(self, group_id: str) -> Adoption | Reason | None:
        """The job of a suspended Job's template; None when the group is not one. Raises ApiError, Transient."""
        job = self.owner(group_id)
        if job is None:
            return None
        sets = sets_of_suspended(job, self._owners.by_queue)
        if sets is None or isinstance(sets, Reason):
            return sets
        placeable = []
        for each in sets:
            template = with_shares([each.template], self._gpu_sizes())
            found = await self._volumes.placeable(text(job, "metadata", "namespace"), template)
            if isinstance(found, Reason):
                return found
            placeable.append(replace(each, template=found[0]))
        return spec_of_suspended(job, placeable, await self._owners.priority_classes())

    def owner(self, group_id: str) -> Json | None:
        """The group's own object as the watch last showed it; None unless it is suspended."""
        return self._jobs.objects.get(self._by_group.get(group_id, ""))

    def _note(self, job: Json, gone: bool) -> None:
        group_id = id_of(job)
        if not gone and mapping(job, "spec").get("suspend") is True:
            self._by_group[group_id] = text(job, "metadata", "uid")
        else:
            self._by_group.pop(group_id, None)
        self._on_change(group_id)

    def _names_us(self, job: Json) -> bool:
        template = mapping(job, "spec", "template")
        shard = mapping(template, "metadata", "labels").get(SHARD_LABEL) or MAIN_SHARD
        return text(template, "spec", "schedulerName") == SCHEDULER_NAME and shard == self._shard


def id_of(job: Json) -> str:
    """The id of the group that a batch Job's pods make."""
    return f"batch/Job/{text(job, 'metadata', 'namespace')}/{text(job, 'metadata', 'uid')}"
