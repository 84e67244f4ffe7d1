"""
Nodes that a job's volumes allow, looked at before the first of its pods is made.

No decision knows of volumes until then. So a run that was placed elsewhere fails at once, without a pod, and its
refusal says for each role to which nodes the volumes tie it: the job's next attempt is placed there.
"""

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from tessera.binder.adoption.decide.volumes import reaches
from tessera.binder.adoption.volume_claims import VolumeClaims
from tessera.binder.pods.calls import RefusedByCluster
from tessera.domain.devices.resources import within_reach
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera_schemas.base import Json
from tessera_schemas.job import JobSpec, Role, RoleReach
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement


def claims_of(role: Role) -> list[tuple[str, str]]:
    """The volume claims of a role's pods, each with its field."""
    volumes = enumerate(role.template.volumes)
    return [(f"template.volumes[{index}]", volume.name) for index, volume in volumes if volume.kind == "claim"]


def claims_by_role(spec: JobSpec) -> dict[str, list[tuple[str, str]]]:
    """The volume claims of the pods of each role."""
    return {role.name: claims_of(role) for role in spec.roles}


async def check_volume_reach(volumes: VolumeClaims, state: State, job: Job, run: Run, spec: JobSpec) -> None:
    """Raises Refused where a pod cannot have its volumes on its node; ApiError, Transient."""
    conditions: dict[str, list[Json]] = {}
    for role in (role for role in spec.roles if claims_of(role)):
        ranks = [place.rank for place in run.placements if place.role == role.name]
        found = await volumes.conditions(job.tenant, claims_of(role), len(ranks))
        if isinstance(found, Reason):
            raise RefusedByCluster(min(ranks, default=0), found)
        conditions[role.name] = found
    within = _within(conditions)
    beyond = next(_beyond(state, run, conditions), None) or next(_could_grow_beyond(job, run, within), None)
    if beyond is not None:
        detail = (
            f"the volumes of role {beyond.role} are not within reach of all nodes; its next attempt goes where they are"
        )
        reason = Reason(code=Code.VOLUME_NOT_READY, numbers={"rank": beyond.rank}, detail=detail)
        raise RefusedByCluster(beyond.rank, reason, within)


def _could_grow_beyond(job: Job, run: Run, within: tuple[RoleReach, ...]) -> Iterator[Placement]:
    """The placements of elastic roles that are not kept to their volumes yet: what they grow by goes anywhere."""
    free = {role.name for role in job.roles if role.more and within_reach(role, within) is not role}
    return (place for place in run.placements if place.role in free)


def _beyond(state: State, run: Run, conditions: dict[str, list[Json]]) -> Iterator[Placement]:
    """The placements on nodes that a volume of theirs is not within reach of."""
    for place in run.placements:
        node = state.nodes.get(place.node)
        if node is not None and not reaches(conditions.get(place.role, ()), node):
            yield place


def _within(conditions: dict[str, list[Json]]) -> tuple[RoleReach, ...]:
    """Nodes within reach of each role, for a fact; a role whose conditions no fact can hold is left out."""
    found = (_reach(name, terms) for name, terms in sorted(conditions.items()) if terms)
    return tuple(reach for reach in found if reach is not None)


def _reach(role: str, terms: Sequence[Json]) -> RoleReach | None:
    try:
        return RoleReach.model_validate({"role": role, "terms": [_without_none(term) for term in terms]})
    except ValidationError:
        return None


def _without_none(term: Json) -> Json:
    return {name: value for name, value in term.items() if value}
