"""
Whether an allocation may stand in the ledger, whoever decided it: capacity per device, quota, the gang whole.

Asked of every record of any age, also of those whose engine this build does not carry and cannot recompute. The fold
checks phases, epochs and the chain.
"""

from collections.abc import Iterator

from tessera.domain.entities import Job
from tessera.domain.resources import WHOLE_GPU, Need, Node
from tessera.domain.state import State
from tessera.engine.fits import fits
from tessera_schemas.ledger import Allocated
from tessera_schemas.placement import Placement


def violations(state: State, record: Allocated) -> Iterator[str]:
    """What is wrong with `record` at `state`, which is the state right before it; earmarks of its owner are ended."""
    job = state.jobs.get(record.job_id)
    if job is None:
        return  # the fold refuses it
    if job.not_before > state.ts:
        yield f"job {job.job_id} starts before its back-off ends"
    pool = state.tree.pool(job.queue)
    if pool is None:
        yield f"job {job.job_id} starts in queue {job.queue}, which does not exist"
        return
    over = state.tree.over_quota(job.queue, state.held_by_queue(job.queue), job.amount)
    if over is not None:
        resource, use, nominal = over
        yield f"job {job.job_id} takes queue {job.queue} over its quota of {resource}: {use} of {nominal}"
    yield from _gang(job, record.placements)
    yield from _room(state, job, pool, record.placements)


def _gang(job: Job, placements: tuple[Placement, ...]) -> Iterator[str]:
    """One placement per pod, ranks in order, roles in the order of the spec."""
    wanted = [role.name for role in job.roles for _ in range(role.replicas)]
    if [placement.role for placement in placements] != wanted:
        yield f"job {job.job_id} is not placed whole: {len(placements)} of {len(wanted)} pods, or other roles"
    if [placement.rank for placement in placements] != list(range(len(placements))):
        yield f"job {job.job_id}: ranks are not 0, 1, 2, …"


def _room(state: State, job: Job, pool: str, placements: tuple[Placement, ...]) -> Iterator[str]:
    needs = {role.name: role.need for role in job.roles}
    trial: dict[str, Node] = {}
    for placement in placements:
        node, need = trial.get(placement.node) or state.nodes.get(placement.node), needs.get(placement.role)
        if node is None or need is None:
            yield f"job {job.job_id} rank {placement.rank}: no such node or role ({placement.node}, {placement.role})"
            return
        if node.pool != pool:
            yield f"job {job.job_id} rank {placement.rank}: node {node.name} is of pool {node.pool}, not {pool}"
        miss = fits(need, node)
        if miss is not None:
            yield f"job {job.job_id} rank {placement.rank} does not fit node {node.name}: {miss.value}"
        yield from _devices(job, need, node, placement)
        trial[node.name] = node.taking(need, placement, 1)


def _devices(job: Job, need: Need, node: Node, placement: Placement) -> Iterator[str]:
    devices = placement.devices
    milli = WHOLE_GPU if need.gpus else need.gpu_milli
    count = need.gpus or (1 if need.gpu_milli else 0)
    at = f"job {job.job_id} rank {placement.rank} on node {node.name}"
    if placement.gpu_milli != milli or len(devices) != count or len(set(devices)) != count:
        yield f"{at}: asked for {count} devices of {milli}, got {list(devices)} of {placement.gpu_milli}"
    for device in devices:
        left = node.gpu_free[device] if 0 <= device < len(node.gpu_free) else 0
        if left < milli:
            yield f"{at}: device {device} has {left} left, {milli} are taken"
