"""
Changes of MIG geometry: the idle node of which another cut would let a job start that waits for instances.

A job waits at least for as long as a change takes before a node is changed for it: so at most twice as much time is
lost as by who knows whether instances of its profile come free by themselves. Only nodes on which nothing runs are
changed, and none loses what another job waits for. The first job of a pool's line that one change of one node lets
start gets it. Searches are bounded by counts. Pure; proposer and committer ask the same rules.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tessera.domain.devices.mig.changes import changes_by_pool, config_of, cut_to, instances_of
from tessera.domain.devices.resources import Node, RoleNeed
from tessera.domain.entities import Job
from tessera.domain.health.spares import find_spares
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine import ENGINE_ID
from tessera.engine.ahead.booked_nodes import shut_for
from tessera.engine.placement.capacity import is_closed, nodes_for
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import never_fits
from tessera.engine.placement.gangs import place_gang
from tessera.engine.queueing.starting import choose
from tessera_schemas.cluster.labels import MIG_RESOURCE_PREFIX
from tessera_schemas.cluster.mig import GEOMETRIES
from tessera_schemas.cluster.mig_changes import MigChangeProposed
from tessera_schemas.cluster.pools import MigChanges, MigConfig
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement

JOBS_MAX = 8
"""Jobs of a pool's line that are asked for at a time."""
TRIES_MAX = 8
"""Cuts that are tried for one job, those that lose least first."""
WITHOUT_ROOM = (Code.NO_FIT, Code.NO_NODES, Code.NO_SUITABLE_NODE_NOW)


@dataclass(frozen=True, slots=True)
class _Cut:
    """An idle node, its `gpus` GPUs under configuration `before`, and what it would be under `config`."""

    node: Node
    before: MigConfig
    config: MigConfig
    gpus: int
    after: Node


def next_change(state: State, pool: str, ts: int) -> MigChangeProposed | None:
    """The change to propose for a pool, if any."""
    changes = changes_by_pool(state.tree.pools).get(pool)
    if changes is None or _changing(state, pool) >= changes.nodes_at_once:
        return None
    # A line is walked in its order, so that no younger job has a node cut that an older one could have had.
    for job in islice(_waiting(state, pool, ts, usual_ms(state, pool, changes)), JOBS_MAX):
        cut = _cut_for(state, pool, changes, job, ts)
        if cut is not None:
            return MigChangeProposed(
                kind="mig_change_proposed",
                job_id=job.job_id,
                node=cut.node.name,
                config=cut.config.name,
                basis_n=state.n,
                ts=max(ts, state.ts),
                engine=ENGINE_ID,
                policy=state.config.version,
            )
    return None


def against_change(state: State, fact: MigChangeProposed) -> Reason | tuple[MigConfig, int]:
    """Why the change may not begin at the head; else the configuration that the node has, and its number of GPUs."""
    node, job = state.nodes.get(fact.node), state.jobs.get(fact.job_id)
    changes = None if node is None else changes_by_pool(state.tree.pools).get(node.pool)
    config = None if changes is None else changes.named(fact.config)
    if node is None or changes is None or config is None:
        return _refused(fact, "its pool does not allow it")
    if job is None or job.phase is not Phase.QUEUED:
        return _refused(fact, "the job does not wait any more")
    if _changing(state, node.pool) >= changes.nodes_at_once:
        return _refused(fact, "enough nodes of the pool are being changed")
    now = config_of(node, changes)
    if (
        now is None
        or now[0] is config
        or not is_idle(state, node, state.ts)
        or node.name in find_spares(state, node.pool)
    ):
        return _refused(fact, "the node is in use, or as it should be")
    return now


def is_idle(state: State, node: Node, ts: int) -> bool:
    """Whether nothing runs on the node's GPUs, or is to, and it was not changed lately."""
    if not node.ready or node.trouble is not None or node.device_profile != "mig" or is_closed(state, node.name):
        return False
    # Pods of others that hold no instance, as those of DaemonSets, are on every node and hinder nothing.
    theirs = node.others.gpus or any(name.startswith(MIG_RESOURCE_PREFIX) for name, _ in node.others.devices)
    last = state.mig_changes.get(node.name)
    return not (node.is_held or theirs) and (last is None or (last.ended_ts > 0 and last.until_ts <= ts))


def usual_ms(state: State, pool: str, changes: MigChanges) -> int:
    """Usual duration of a change in the pool, in ms: the longest of its nodes' last ones, else the operator's word."""
    nodes = state.nodes.found(name for name, change in state.mig_changes.items() if change.took_ms)
    # Every change counts by its node's last one alone: a reboot of long ago is forgotten with the next.
    took = [change.took_ms for node in nodes if node.pool == pool and (change := state.mig_changes.get(node.name))]
    return max(took, default=changes.change_seconds * 1000)


def count_troubled(state: State, pool: str, ts: int) -> tuple[int, int]:
    """
    Number of a pool's nodes whose change is not over after twice its usual duration, and of those where one failed.

    One that failed counts until its node may be changed again.
    """
    changes = changes_by_pool(state.tree.pools).get(pool)
    if changes is None:
        return 0, 0
    nodes = state.nodes.found(name for name, _ in state.mig_changes.items())
    there = [change for node in nodes if node.pool == pool and (change := state.mig_changes.get(node.name))]
    # A change may well take somewhat longer than any before, by a reboot say; who is told too early stops listening.
    latest_ms = 2 * usual_ms(state, pool, changes)
    late = sum(not change.ended_ts and ts - change.since_ts > latest_ms for change in there)
    return late, sum(change.times > 0 and change.until_ts > ts for change in there)


def _refused(fact: MigChangeProposed, why: str) -> Reason:
    return Reason(code=Code.PLAN_DOES_NOT_FIT, field=f"nodes.{fact.node}", detail=f"not cut to {fact.config}: {why}")


def _changing(state: State, pool: str) -> int:
    # One that is taken back counts, too: its node gives nothing meanwhile.
    names = (name for name, change in state.mig_changes.items() if not change.ended_ts)
    return sum(node.pool == pool for node in state.nodes.found(names))


def _waiting(state: State, pool: str, ts: int, least_ms: int) -> Iterator[Job]:
    """Jobs of the pool's line that have found no room for their instances for so long, in order, of equal ones one."""
    line, seen = state.lines.get(pool), set[tuple[str, tuple[RoleNeed, ...], tuple[str, ...]]]()
    for job_id in () if line is None else line.jobs:
        job = state.jobs.get(job_id)
        if job is None or job.phase is not Phase.QUEUED or job.reason is None or job.reason.code not in WITHOUT_ROOM:
            continue
        # What no cut lets start lets none of its equals start: an array costs one look.
        alike = job.queue, job.roles, job.avoid
        is_new = alike not in seen and any(role.need.mig_profile for role in job.roles)
        if is_new and ts - max(job.submitted_ts, job.not_before) >= least_ms:
            seen.add(alike)
            yield job


def _cut_for(state: State, pool: str, changes: MigChanges, job: Job, ts: int) -> _Cut | None:
    profiles = {role.need.mig_profile for role in job.roles if role.need.mig_profile}
    if any(change.job_id == job.job_id and not change.ended_ts for _, change in state.mig_changes.items()):
        return None
    cuts = [cut for cut in _cuts(state, pool, changes, ts) if _could_help(cut, job, profiles)]
    # Whoever waits for what the node gives now would next have it changed back.
    wanted = _profiles_of(state, pool, (Phase.QUEUED,))
    cuts = [cut for cut in cuts if not (wanted & cut.before.gives.keys()) - cut.config.gives.keys()]
    if not cuts or _starts(state, pool, job, None):
        return None
    live = wanted | _profiles_of(state, pool, tuple(Phase))
    # Instances of profiles that live jobs have, or wait for, are asked for again soonest. The rest decides ties, and
    # the name comes last, so that equal states give equal changes.
    order = {config.name: at for at, config in enumerate(changes.configs)}
    cuts.sort(key=lambda cut: (_loss(cut, live), _loss(cut, None), cut.gpus, order[cut.config.name], cut.node.name))
    return next((cut for cut in cuts[:TRIES_MAX] if _starts(state, pool, job, cut.after)), None)


def _cuts(state: State, pool: str, changes: MigChanges, ts: int) -> Iterator[_Cut]:
    spares = find_spares(state, pool)
    for node in state.nodes.values():
        able = node.pool == pool and node.name not in spares and is_idle(state, node, ts)
        now = config_of(node, changes) if able else None
        for config in changes.configs if now is not None else ():
            before, gpus = now or (config, 0)
            after = None if config is before else cut_to(node, config, gpus)
            if after is not None:
                yield _Cut(node, before, config, gpus, after)


def _could_help(cut: _Cut, job: Job, profiles: set[str]) -> bool:
    gives, had = cut.config.gives, cut.before.gives
    # Cheap tests before a placement: more of a profile that the job wants, on a node where such a pod may run at all.
    more = any(gives.get(profile, 0) > had.get(profile, 0) for profile in profiles)
    return more and any(role.need.mig_profile and never_fits(role.need, cut.after) is None for role in job.roles)


def _profiles_of(state: State, pool: str, phases: tuple[Phase, ...]) -> set[str]:
    """Profiles that jobs of the pool ask for which are in these phases."""
    tree = state.tree
    jobs = (job for job in state.jobs.values() if job.phase in phases and tree.pool(job.queue) == pool)
    return {role.need.mig_profile for job in jobs for role in job.roles if role.need.mig_profile}


def _loss(cut: _Cut, of: set[str] | None) -> int:
    """Thousandths of GPUs in instances that the node gives now and would not any more, of these profiles or of all."""
    geometry, given = GEOMETRIES[cut.node.mig_geometry], instances_of(cut.config, cut.gpus)
    return sum(
        max(0, count - given.get(profile, 0)) * geometry.profiles[profile].size * geometry.milli_per_slice
        for profile, count in cut.node.mig_instances
        if of is None or profile in of
    )


def _starts(state: State, pool: str, job: Job, instead: Node | None) -> bool:
    """Whether the job has quota and room, with one node as it would be."""

    def place(roles: tuple[RoleNeed, ...], flavor: str, avoid: tuple[str, ...]) -> tuple[Placement, ...] | Reason:
        nodes = {node.name: node for node in nodes_for(state, pool, flavor, avoid, shut=shut_for(state, job))}
        if instead is not None and instead.name in nodes:
            nodes[instead.name] = instead
        return place_gang(roles, nodes, FeasibleNodes(nodes))

    return not isinstance(choose(state.tree, state.quota_book(job.job_id), job, place), Reason)
