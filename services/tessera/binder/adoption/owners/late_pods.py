"""
Late pods: an owner's controller makes them once the gang runs, as KubeRay the pod that submits a RayJob's program.

Each counts in the gang from the start, by its template, so that its run holds its room. The pod gets it once it is
there; one that comes in the place of a late pod that is over queues by itself.
"""

from collections.abc import Sequence
from dataclasses import replace

from tessera.binder.adoption.decide.roles import role_of
from tessera.binder.adoption.decide.spec import Adoption, key_of
from tessera.binder.adoption.index import GroupIndex
from tessera.binder.adoption.owners.known import NotAllowed, Owners
from tessera.binder.workloads.reading import text
from tessera.binder.workloads.references import OwnerRef, controller_of
from tessera.binder.workloads.registry import JOB, kind_of, kind_of_group
from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.domain.work.starting import find_awaited
from tessera.kernel.messaging.facts import Facts
from tessera_schemas.base import Json
from tessera_schemas.facts import PodsMade
from tessera_schemas.job import Role


def with_late_pods(found: Adoption, owner: Json | None) -> Adoption:
    """
    The job with the late pods of its owner. One that cannot be placed by us, or has the name of another part, is left
    out: it is told why once it is there.
    """
    templates = {} if owner is None else kind_of_group(found.group).late_pods(owner)
    taken = {role.name for role in found.spec.roles}
    roles = [role for name, template in templates.items() if (role := _role(name, template)) and name not in taken]
    if not roles:
        return found
    spec = found.spec.model_copy(update={"roles": (*found.spec.roles, *roles)})
    adopted = found.adopted.model_copy(update={"late_pods": len(roles)})
    key = key_of(found.key.rpartition(".")[0], spec, adopted.priority)
    return replace(found, key=key, spec=spec, adopted=adopted)


def _role(name: str, pod: Json) -> Role | None:
    found = role_of(pod)
    return found.model_copy(update={"name": name}) if isinstance(found, Role) else None


class LateComers:
    """Late pods that are there: each is said to be made for the rank of its run that holds its room."""

    def __init__(self, state: State, index: GroupIndex, owners: Owners, facts: Facts) -> None:
        self._state, self._index, self._owners, self._facts = state, index, owners, facts
        self._waiting: dict[str, dict[str, None]] = {}

    def groups_of(self, job_id: str) -> Sequence[str]:
        """Ids of the groups that waited for a run of this job to start; each is handed out once."""
        return tuple(self._waiting.pop(job_id, ()))

    async def is_awaited(self, group_id: str, waiting: Sequence[Json]) -> bool:
        """Whether these pods are one for which a run holds room, or will, so that it is no job of its own."""
        controller = controller_of(waiting[0])
        # Several pods at once are a parallel Job of the user, for which no template speaks.
        if controller is None or not JOB.owns(controller) or len(waiting) > 1:
            return False
        above, owner = await self._above(controller)
        kind = None if above is None else kind_of(above)
        templates = {} if kind is None or owner is None else kind.late_pods(owner)
        # A pod that asks for more than its template has no room held for it, and queues by itself.
        roles = {name: role for name, pod in templates.items() if (role := _role(name, waiting[0])) == _role(name, pod)}
        if above is None or not any(roles.values()):
            return False
        whole = f"{above.group}/{above.kind}/{above.namespace}/{text(owner or {}, 'metadata', 'uid')}"
        # Jobs of earlier attempts may be there, too: only one that counts late pods holds their room.
        job = next((job for job in self._index.jobs(whole) if job.adopted and job.adopted.late_pods), None)
        if job is None:
            return False
        run = self._state.runs.get(job.run_id)
        if run is None or run.stopping or not run.started:
            self._waiting.setdefault(job.job_id, {})[group_id] = None
            return True
        return await self._comes(run, text(waiting[0], "metadata", "uid"), frozenset(roles))

    async def _comes(self, run: Run, uid: str, roles: frozenset[str]) -> bool:
        rank = next((rank for rank in find_awaited(run) if run.placements[rank].role in roles), None)
        if rank is not None:
            await self._facts.publish(PodsMade(kind="pods_made", run_id=run.run_id, uids=(uid,), ranks=(rank,)))
        # Told twice, or after its rank has its pod, it changes nothing.
        return rank is not None or (uid in run.uids and run.uids.index(uid) not in run.released_ranks)

    async def _above(self, controller: OwnerRef) -> tuple[OwnerRef | None, Json | None]:
        """The object that made a pod's Job, as far as there is one that we may read."""
        try:
            above = controller_of(await self._owners.look(controller) or {})
            return above, None if above is None else await self._owners.look(above)
        except NotAllowed:
            return None, None
