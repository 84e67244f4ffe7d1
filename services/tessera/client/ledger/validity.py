"""
Whether an allocation, the growth of a run or of its pods may stand in the ledger, whoever decided it: capacity per
device, quota, the gang whole and no run larger than it asked to be.

Asked of every record of any age, also of those whose engine this build does not carry and cannot recompute. The fold
checks phases, epochs and the chain.
"""

from collections.abc import Container, Iterator

from tessera.domain.state import State
from tessera.engine.placement.faults import placement_faults
from tessera.engine.preemption.growth import growth_faults
from tessera.engine.preemption.resizes import lacking
from tessera_schemas.ledger import Allocated, Grown
from tessera_schemas.shard.records import ResizeBegun
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.spec_changes import RoleAmounts

LET_ALL_BORROW = frozenset({"tessera-1", "tessera-2", "tessera-3"})
"""The engines by which work that may not be evicted could borrow, before nominal quota was a promise (ADR 0020)."""


Taking = Allocated | Grown | ResizeBegun
"""Records by which a run takes room and quota."""


def violations(state: State, record: Taking, engine: str, at_work: Container[str] = ()) -> Iterator[str]:
    """
    Rules that `record` breaks in a message of `engine`, judged at the state right before it.

    Earmarks of its owner are ended by then. Pods of the jobs `at_work` are taken over where they stand: what runs goes
    on, whatever keeps new work from these nodes.
    """
    if isinstance(record, Grown):
        yield from _check_growth(state, record)
    elif isinstance(record, ResizeBegun):
        run = state.runs.get(record.run_id)
        to = RoleAmounts(role=record.role, cpu_milli=record.cpu_milli, memory_bytes=record.memory_bytes)
        faults = () if run is None or to.role not in run.gang.need_of else lacking(state, run, to)
        yield from (f"run {record.run_id}: {fault.sentence()}" for fault in faults)
    else:
        yield from _check_allocation(state, record, engine, record.job_id in at_work)


def _check_growth(state: State, record: Grown) -> Iterator[str]:
    run = state.runs.get(record.run_id)
    if run is None:
        return  # the fold refuses it
    pool = state.tree.pool(run.queue)
    if pool is None:
        yield f"run {run.run_id} grows in queue {run.queue}, which does not exist"
        return
    faults = (*_room(state, pool, run.flavor, record.placements), *growth_faults(state, run, record.placements))
    yield from (f"run {run.run_id}: {fault}" for fault in faults)


def _check_allocation(state: State, record: Allocated, engine: str, works: bool) -> Iterator[str]:
    job = state.jobs.get(record.job_id)
    if job is None:
        return  # the fold refuses it
    if job.not_before > state.ts and not works:
        yield f"job {job.job_id} starts before its back-off ends"
    pool = state.tree.pool(job.queue)
    if pool is None:
        yield f"job {job.job_id} starts in queue {job.queue}, which does not exist"
        return
    if record.flavor not in state.tree.flavors_for(job.queue, job.amount):
        yield f"job {job.job_id} starts on flavor {record.flavor or 'any'}, for which it has no quota"
    firm = engine not in LET_ALL_BORROW and not state.tree.revocable(job)
    over = state.quota_book().over(job.queue, record.flavor, job.amount, firm)
    if over is not None and over.firm:
        yield (
            f"job {job.job_id} may not be evicted, and borrows {over.cell} for queue {job.queue}: "
            f"it wants {over.wanted}, {over.available} are left of its own"
        )
    elif over is not None:
        yield (
            f"job {job.job_id} takes queue {job.queue} over its quota of {over.cell}: "
            f"it wants {over.wanted}, {over.available} are left"
        )
    for fault in _room(state, pool, record.flavor, record.placements, works):
        yield f"job {job.job_id}: {fault}"
    if works:
        return
    nodes = {node.name: node for node in state.nodes.found(dict.fromkeys(p.node for p in record.placements))}
    yield from (f"job {job.job_id}: {fault}" for fault in placement_faults(job.roles, record.placements, nodes))


def _room(
    state: State, pool: str, flavor: str, placements: tuple[Placement, ...], works: bool = False
) -> Iterator[str]:
    for placement in placements:
        node = state.nodes.get(placement.node)
        if node is None:
            continue
        if node.pool != pool:
            yield f"rank {placement.rank}: node {node.name} is of pool {node.pool}, not {pool}"
        if not state.tree.is_on(node, flavor):
            yield f"rank {placement.rank}: node {node.name} is not of flavor {flavor}"
        if state.drains.get(node.name) is not None and not works:
            yield f"rank {placement.rank}: node {node.name} is being drained"
