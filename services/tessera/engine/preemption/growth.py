"""
Bounds of an elastic run's growth, the same for proposers and committer: its roles' maximum, its queue's quota, its
tenant's limit, and free capacity. The time of growth is the committer's policy.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tessera.domain.devices.resources import Amount, Node, RoleNeed
from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang, gang_of
from tessera.engine.placement.faults import pod_faults
from tessera.engine.placement.fits import closed
from tessera.engine.placement.gangs import FreeCapacity, place_gang
from tessera.engine.placement.gpu_models import on_model
from tessera.engine.placement.relations import broken, shared_devices
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement


def may_have(state: State, run: Run, more: Amount) -> bool:
    """Whether the run may have `more`, its queue's quota and what is free apart."""
    return _keeps_flavor(state, run, more) and _within_tenant(state, run.tenant, more)


def _keeps_flavor(state: State, run: Run, more: Amount) -> bool:
    """A configuration newer than the run may tell flavors apart otherwise: then no quota counts what it grows by."""
    return run.flavor in state.tree.flavors_for(run.queue, run.amount.plus(more))


def _within_tenant(state: State, tenant: str, more: Amount) -> bool:
    """Whether the tenant's limit of GPUs holds `more`, beside what its jobs asked for and what its runs grew by."""
    # The use of a tenant counts its jobs as they were asked for; what its runs grew by is in no job and is added here,
    # or elastic runs would be a way around the limit.
    limit, use = state.tree.limits_of(tenant).gpus, state.tenant_use.get(tenant)
    if limit is None or use is None or not more.gpu_milli:
        return True
    runs = (run for run in state.runs.found(state.index.elastic) if run.tenant == tenant)
    grown = sum(run.gang.amount_of(e.placement for e in run.extra).gpu_milli for run in runs)
    return use.amount.gpu_milli + grown + more.gpu_milli <= limit * 1000


def growth_faults(state: State, run: Run, placements: Sequence[Placement]) -> Iterator[str]:
    """Faults of growing the run so at `state`; none when it may."""
    most = {role.name: role.replicas + role.more for role in run.roles}
    # An unknown role has no bound to compare with below, and the needs of its pods could not be looked up.
    unknown = {placement.role for placement in placements} - most.keys()
    if unknown:
        yield f"it has no roles {sorted(unknown)}"
        return
    for name, pods in sorted(Counter(place.role for place in (*run.all_placements, *placements)).items()):
        if pods > most[name]:
            yield f"role {name} grows to {pods} pods, it asks for {most[name]} at most"
    more = run.gang.amount_of(placements)
    over = state.quota_book().over(run.queue, run.flavor, more)
    if over is not None:
        yield f"its queue goes over its quota of {over.cell}: {over.wanted} more, {over.available} are left"
    if not _keeps_flavor(state, run, more):
        yield f"no quota of its queue counts flavor {run.flavor or 'any'}"
    if not _within_tenant(state, run.tenant, more):
        yield "its tenant goes over its limit of GPUs"
    nodes = {node.name: node for node in state.nodes.found(dict.fromkeys(place.node for place in placements))}
    yield from _copy_faults(state, run, placements, nodes)
    yield from pod_faults(run.roles, tuple(placements), nodes)
    yield from shared_devices(run.roles, (*run.places, *placements))
    for role in run.roles:
        model, grown = model_of(state, run, role), [nodes.get(p.node) for p in placements if p.role == role.name]
        if model is not None and any(node is not None and node.gpu_model != model for node in grown):
            yield f"role {role.name}: its pods are on {model or 'GPUs without a model'}"


def one_more(state: State, run: Run, role: RoleNeed) -> RoleNeed:
    """A role of one pod more of the run, on the GPU model that its pods are on."""
    one, model = replace(role, replicas=1), model_of(state, run, role)
    return one if model is None else on_model(one, model)


def pieces_of_growth(state: State, run: Run) -> Iterator[tuple[Gang, int]]:
    """The pods by which the run grows at a time, and how often it may: those of a copy of its group, or single ones."""
    have, size = Counter(place.role for place in run.all_placements), run.gang.growing
    if not size:
        for role in run.roles:
            yield gang_of((one_more(state, run, role),)), run.most_of(role) - have[role.name]
        return
    # Pods that have ended or leave still count: what is given up is not sought again in the same breath.
    grown = [role for role in run.roles if role.name in size]
    yield _copy_of(state, run), min((run.most_of(role) - have[role.name]) // size[role.name] for role in grown)


def _copy_of(state: State, run: Run) -> Gang:
    """The gang of one copy of the group by which the run grows, with the groups that are within it."""
    size = run.gang.growing
    return gang_of(
        tuple(
            replace(
                one_more(state, run, role),
                replicas=size[role.name],
                more=0,
                # A group that names no pods is all of the job, whose domain a copy does not choose.
                groups=tuple(group for group in role.groups if group[1]),
            )
            for role in run.roles
            if role.name in size
        )
    )


def nodes_beyond(state: State, run: Run) -> tuple[str, ...]:
    """Names of the nodes on which no copy may come, since all pods of the job have to be in one domain; ascending."""
    # The widest level at which the domain was asked for: within a narrower one the gang may stand by chance.
    label = next((g[2][-1] for role in run.roles for g in role.groups if not g[1] and g[3] and g[2]), "")
    if not label or not run.gang.growing:
        return ()
    first = next(iter(state.nodes.found((run.placements[0].node,))), None)
    here = None if first is None else dict(first.labels).get(label)
    beyond = (node.name for node in state.nodes.values() if here is None or dict(node.labels).get(label) != here)
    return tuple(sorted(beyond))


def _copy_faults(state: State, run: Run, placements: Sequence[Placement], nodes: Mapping[str, Node]) -> Iterator[str]:
    """Faults of a growth that is not of whole copies, each with its pods as its groups ask."""
    size = sum(run.gang.growing.values())
    if not size:
        return
    one = _copy_of(state, run)
    # Copies follow each other in a record, and each has its pods in the order of the roles, as a gang does.
    roles = [role.name for role in one for _ in range(role.replicas)]
    for at in range(0, len(placements), size):
        there = placements[at : at + size]
        if [place.role for place in there] != roles:
            yield f"ranks {[place.rank for place in there]} are no whole copy of {roles}"
        elif all(place.node in nodes for place in there):
            yield from broken(one, there, nodes)
    if beyond := sorted({place.node for place in placements}.intersection(nodes_beyond(state, run))):
        yield f"nodes {beyond} are beyond the domain of its other pods"


def place_one_more(one: Gang, capacity: FreeCapacity, run: Sequence[Placement]) -> tuple[Placement, ...] | Reason:
    """Place a pod, or a copy of a group, more of a run that is on these places; taken of the capacity."""
    if not one.apart:
        return capacity.place(one)
    # The run's own devices are closed to it alone: what is left of them stays free for shares of others.
    nodes = dict(capacity.nodes)
    for place in run:
        if place.node in nodes:
            nodes[place.node] = closed(nodes[place.node], place.devices)
    found = place_gang(one, nodes, capacity.places)
    if not isinstance(found, Reason):
        capacity.take(one, found)
    return found


def model_of(state: State, run: Run, role: RoleNeed) -> str | None:
    """The GPU model that further pods of a role of the run are on; None where any will do."""
    # Where its pods are now, and not what was decided at its start: a node's label may have changed since.
    alike = {each.name for each in run.gang.one_model.get(role.one_model, ())}
    on = (state.nodes.get(place.node) for place in run.places if place.role in alike)
    return next((node.gpu_model for node in on if node is not None), None)
