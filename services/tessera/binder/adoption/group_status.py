"""What Kubernetes' own PodGroups are told: whether their pods have nodes, and why not. One write for each change."""

from datetime import UTC, datetime

import structlog

from tessera.binder.adoption.decide.groups import OwnerRef
from tessera.binder.adoption.decide.pod_groups import UNSCHEDULABLE, status_patch
from tessera.binder.adoption.decide.reading import text
from tessera.binder.adoption.decide.verdicts import Verdict
from tessera.binder.adoption.owners import Owners
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError, Clock, Cluster

PASSES = (403, 404)
"""We may not, or it is gone: its pods say the same, and no repeat changes it."""
REMEMBERED = 4096

log = structlog.get_logger()


class GroupStatus:
    """What was written last is remembered only to save looks: the group itself says it after a restart."""

    def __init__(self, cluster: Cluster, clock: Clock, owners: Owners) -> None:
        self._cluster, self._clock, self._owners = cluster, clock, owners
        self._told: dict[OwnerRef, str] = {}

    async def tell(self, ref: OwnerRef, verdict: Verdict | None) -> None:
        """Why its pods are not placed; None: as many as it needs are. What fails now is said at the next look."""
        code = verdict.code if verdict else ""
        if self._told.get(ref) == code:
            return
        try:
            await self._write(ref, verdict)
        except (ApiError, Transient) as error:
            if not (isinstance(error, ApiError) and error.status in PASSES):
                log.warning("group_not_told", group=ref.name, namespace=ref.namespace, error=str(error))
                return
        if len(self._told) >= REMEMBERED:
            self._told.clear()
        self._told[ref] = code

    async def _write(self, ref: OwnerRef, verdict: Verdict | None) -> None:
        found = await self._owners.look(ref, fresh=True)
        if found is None:
            return
        now = datetime.fromtimestamp(self._clock.now_ms() // 1000, UTC).isoformat().replace("+00:00", "Z")
        if verdict is None:
            patch = status_patch(found, True, "Scheduled", "its pods have their nodes", now)
        else:
            patch = status_patch(found, False, UNSCHEDULABLE, f"{verdict.code}: {verdict.message}", now)
        if patch is not None:
            await self._cluster.patch_status(text(found, "apiVersion"), ref.kind, ref.namespace, ref.name, patch)
