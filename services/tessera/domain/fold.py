"""
The fold: state(n-1) and a ledger message give state(n). Pure, integers only.

A record that contradicts the state raises Contradiction and leaves the caller to halt: nothing is skipped or guessed.
The committer tries its decisions with the same `apply_record` on an overlay, so what it writes is what others fold.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tessera.domain.checkpoints import marks_with
from tessera.domain.devices import while_held
from tessera.domain.entities import Drain, Earmark, EndedJob, Extra, Job, Left, QueueOrder, RefusedWork, Run, Use
from tessera.domain.errors import Contradiction, UnknownFormat
from tessera.domain.evolve import evolved
from tessera.domain.levels import unknown_levels, with_labels
from tessera.domain.mix import see
from tessera.domain.phases import Phase, moved
from tessera.domain.resources import (
    Amount,
    RoleNeed,
    empty_node,
    gang_amount,
    placed_amount,
    role_need,
    shared,
    within_reach,
)
from tessera.domain.runtimes import kind_of, learn
from tessera.domain.spec_hash import spec_hash
from tessera.domain.state import State
from tessera_schemas.base import run_id
from tessera_schemas.config import Config
from tessera_schemas.facts import ConfigProposed, JobAdmitted, NodeSeen, PricesLearnt, WorkRefused
from tessera_schemas.ledger import (
    FORMAT,
    Allocated,
    AnyRecord,
    BackInLine,
    Bound,
    Checkpoint,
    ConfigRefused,
    ConfigSet,
    EarmarkEnded,
    EarmarkSet,
    EpochOpened,
    Finished,
    FormatRaised,
    Grown,
    Held,
    JobQueued,
    JobTurnedAway,
    LedgerMessage,
    LeftChanged,
    MixPriced,
    NodeChanged,
    NodeDrained,
    OutOfLine,
    Permitted,
    PlanRefused,
    PricesRefused,
    PrioritySet,
    RefusalNoted,
    Released,
    Requeued,
    Revoked,
    Saved,
    Shrunk,
    Spared,
    Started,
    TakenFact,
    Waiting,
    Warned,
    chain_hash,
)
from tessera_schemas.orders import Order
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code

AVOID_MAX = 16
FORMAT_OF_LATER = 2
"""Before, no checkpoints of a run were remembered, nor class and evictions of an ended job: states hash as they did."""
EVICTIONS = frozenset({Code.PREEMPTED, Code.RECLAIMED, Code.DEFRAGMENTED})
"""The reasons that stop a run for another job's sake: they count against the job's eviction budget."""
NO_FAILURES = frozenset({Code.SHRUNK, Code.NODE_LOST, Code.NODE_SHRUNK, Code.NODE_DRAINED})
"""The reasons why an elastic run goes on without pods, and which say nothing of how the next ones will fare."""
ENDS_OF_ITS_OWN = frozenset({Code.POD_FAILED, Code.TIME_LIMIT})
"""The reasons of a revoked run that tell how long such runs take; the others cut it short."""


def fold_message(state: State, message: LedgerMessage, stored: bytes) -> None:
    """Move `state` in place from n-1 to `message.n`; `stored` are the message's bytes as the ledger keeps them."""
    if message.n != state.n + 1:
        raise Contradiction(f"ledger gap: record {message.n} after {state.n}")
    if message.prev != state.chain:
        raise Contradiction(f"ledger fork at {message.n}: it does not continue the chain")
    if message.epoch < state.epoch:
        raise Contradiction(f"record {message.n}: epoch {message.epoch} after {state.epoch}")
    take_in(state, message.n, message.ts, message.facts_upto, message.orders)
    for record in message.records:
        apply_record(state, record, message.facts)
    if message.epoch != state.epoch:
        raise Contradiction(f"record {message.n}: epoch {message.epoch} was never opened")
    state.chain = chain_hash(message.prev, stored)


def take_in(state: State, n: int, ts: int, facts_upto: int, orders: Sequence[Order]) -> None:
    """The first part of a message: the new now, the newest orders, and what time makes forgotten."""
    if ts < state.ts or facts_upto < state.facts_upto:
        raise Contradiction(f"record {n}: ts or facts_upto goes back")
    state.n, state.ts, state.facts_upto = n, ts, facts_upto
    for order in orders:
        state.lines.put(order.pool, QueueOrder(order.pool, order.basis_n, order.ts, order.jobs))
    _forget(state)


def apply_record(state: State, record: AnyRecord, facts: Sequence[TakenFact]) -> None:
    """Apply one decision."""
    APPLY[type(record)](state, record, facts)


def _forget(state: State) -> None:
    """Drop ended jobs whose key need not be known any more; the index is the base's and lists them oldest first."""
    due = []
    for forget_ts, job_id in state.index.forget_at:
        if forget_ts > state.ts:
            break
        due.append(job_id)
    for job_id in due:
        ended = state.ended.get(job_id)
        # A run that is still held keeps its key: the next job of that key would have a run of the same id.
        if ended is not None and state.runs.get(run_id(job_id, ended.attempt)) is None:
            state.drop_ended(ended)


def _job(state: State, job_id: str) -> Job:
    job = state.jobs.get(job_id)
    if job is None:
        raise Contradiction(f"record {state.n} names job {job_id}, which is not live")
    return job


def _run(state: State, name: str) -> Run:
    run = state.runs.get(name)
    if run is None:
        raise Contradiction(f"record {state.n} names run {name}, which holds nothing")
    return run


def _move(state: State, job: Job, to: Phase, **changes: Any) -> Job:
    after = evolved(job, phase=moved(job.job_id, job.phase, to), **changes)
    state.put_job(after)
    return after


def _tally(state: State, queue: str, flavor: str, amount: Amount, sign: int, jobs: int = 1) -> None:
    """What the queue's runs hold: on all nodes, and on those of the run's flavor."""
    for name in (queue, f"{queue}/{flavor}") if flavor else (queue,):
        use = state.queue_use.get(name) or Use(name)
        state.queue_use.put(name, Use(name, use.jobs + sign * jobs, use.amount.plus(amount, sign)))


def _tally_tenant(state: State, tenant: str, amount: Amount, sign: int) -> None:
    use = state.tenant_use.get(tenant) or Use(tenant)
    state.tenant_use.put(tenant, Use(tenant, use.jobs + sign, use.amount.plus(amount, sign)))


def _hold(state: State, roles: Sequence[RoleNeed], placements: Sequence[Placement], sign: int) -> None:
    """Take (1) or give back (-1) what placements hold on their nodes."""
    needs = {role.name: role.need for role in roles}
    for placement in placements:
        node = state.nodes.get(placement.node)
        if node is None:
            raise Contradiction(f"record {state.n} uses node {placement.node}, which is unknown")
        state.nodes.put(node.name, node.taking(needs[placement.role], placement, sign))


def _drop_empty(state: State, placements: Sequence[Placement]) -> None:
    """A node that is gone stays only as long as something holds it."""
    for placement in placements:
        node = state.nodes.get(placement.node)
        if node is not None and node.gone and not node.is_held:
            state.drop_node(node)


def _nothing(state: State, record: Any, facts: Sequence[TakenFact]) -> None:
    """An audit record: it stands in the ledger and changes nothing."""


def _format_raised(state: State, record: FormatRaised, facts: Sequence[TakenFact]) -> None:
    if record.format > FORMAT:
        raise UnknownFormat(f"record {state.n}: the ledger uses format {record.format}, this build knows {FORMAT}")
    state.format = record.format


def _epoch_opened(state: State, record: EpochOpened, facts: Sequence[TakenFact]) -> None:
    if record.epoch <= state.epoch:
        raise Contradiction(f"record {state.n}: epoch {record.epoch} opened after {state.epoch}")
    state.epoch = record.epoch


def _config_set(state: State, record: ConfigSet, facts: Sequence[TakenFact]) -> None:
    fact = facts[record.fact].fact
    if not isinstance(fact, ConfigProposed) or record.version != state.config.version + 1:
        raise Contradiction(f"record {state.n}: configuration {record.version} after {state.config.version}")
    state.set_config(Config(version=record.version, body=fact.body))


def _node_changed(state: State, record: NodeChanged, facts: Sequence[TakenFact]) -> None:
    """The node anew, less what runs and earmarks hold on it."""
    fact = facts[record.fact].fact
    if not isinstance(fact, NodeSeen):
        raise Contradiction(f"record {state.n}: fact {record.fact} is not about a node")
    before = state.nodes.get(fact.name)
    node = empty_node(while_held(fact, before))
    holders: list[Run | Earmark] = []
    if before is not None and before.is_held:  # else nothing holds it, and nobody need be asked
        holders = [*state.runs.found(state.index.runs_on.get(node.name, ())), *state.earmarks.values()]
    for holder in holders:
        needs = {role.name: role.need for role in holder.roles}
        for placement in holder.places if isinstance(holder, Run) else holder.placements:
            if placement.node == node.name:
                node = node.taking(needs[placement.role], placement, 1)
    if node.gone and not node.is_held:
        if before is not None:
            state.drop_node(before)
    else:
        state.put_node(node)


def _job_queued(state: State, record: JobQueued, facts: Sequence[TakenFact]) -> None:
    fact = facts[record.fact].fact
    if not isinstance(fact, JobAdmitted) or fact.job_id != record.job_id or known(state, fact.job_id):
        raise Contradiction(f"record {state.n}: job {record.job_id} cannot be queued")
    spec = fact.spec
    if unknown_levels(spec.roles, state.tree.levels):
        raise Contradiction(f"record {state.n}: job {record.job_id} names a topology level that is not there")
    as_made = fact.adopted is not None
    roles = shared(with_labels([role_need(role, as_made) for role in spec.roles], state.tree.levels))
    job = Job(
        fact.job_id,
        fact.tenant,
        spec.queue,
        spec.name,
        fact.key,
        spec_hash(fact),
        spec.priority_class,
        spec.preemptible,
        roles,
        gang_amount(roles),
        spec.retry,
        state.n,
        record.fact,
        state.ts,
        fact.trace,
        time_limit_seconds=spec.time_limit_seconds or 0,
        adopted=fact.adopted,
        user=spec.user,
        idle=spec.idle,
    )
    state.put_job(job)
    _tally_tenant(state, job.tenant, job.amount, 1)
    pool = state.tree.pool(job.queue)
    if pool is not None:
        see(state.seen, state.mixes, state.nodes, pool, roles)


def known(state: State, job_id: str) -> bool:
    """Whether the job is live or remembered."""
    return state.jobs.get(job_id) is not None or state.ended.get(job_id) is not None


def _waiting(state: State, record: Waiting, facts: Sequence[TakenFact]) -> None:
    state.put_job(evolved(_job(state, record.job_id), reason=record.reason, told_ts=state.ts))


def _allocated(state: State, record: Allocated, facts: Sequence[TakenFact]) -> None:
    job = _job(state, record.job_id)
    if record.attempt != job.attempt + 1:
        raise Contradiction(f"record {state.n}: job {job.job_id} attempt {record.attempt} after {job.attempt}")
    if job.kept_out:
        raise Contradiction(f"record {state.n}: job {job.job_id} is {'held' if job.held else 'without its pods'}")
    first = job.first_ts or state.ts
    job = _move(state, job, Phase.ALLOCATED, attempt=record.attempt, reason=None, not_before=0, first_ts=first)
    _hold(state, job.roles, record.placements, 1)
    _tally(state, job.queue, record.flavor, job.amount, 1)
    state.put_run(
        Run(
            job.run_id,
            job.job_id,
            job.attempt,
            job.tenant,
            job.queue,
            job.roles,
            job.amount,
            record.placements,
            state.ts,
            record.deadline,
            flavor=record.flavor,
            user=job.user,
        )
    )


def _permitted(state: State, record: Permitted, facts: Sequence[TakenFact]) -> None:
    run = _run(state, record.run_id)
    if record.ranks:
        _permit_extra(state, run, record)
        return
    if run.uids or run.stopping or len(record.uids) != len(run.placements):
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot be permitted")
    state.put_run(evolved(run, uids=record.uids))
    _move(state, _job(state, run.job_id), Phase.BINDING)


def _permit_extra(state: State, run: Run, record: Permitted) -> None:
    uids = dict(zip(record.ranks, record.uids, strict=True))
    open_ = {extra.placement.rank for extra in run.extra if not extra.uid and not extra.leaving}
    if run.stopping or not uids.keys() <= open_:
        raise Contradiction(f"record {state.n}: run {run.run_id} has no such pods to permit: {record.ranks}")
    extra = tuple(
        evolved(e, uid=uids[e.placement.rank], deadline=0) if e.placement.rank in uids else e for e in run.extra
    )
    state.put_run(evolved(run, extra=extra))


def _grown(state: State, record: Grown, facts: Sequence[TakenFact]) -> None:
    run = _run(state, record.run_id)
    first = run.next_rank or len(run.placements)
    ranks = [placement.rank for placement in record.placements]
    if run.stopping or not run.started or ranks != list(range(first, first + len(ranks))):
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot grow by ranks {ranks}")
    _hold(state, run.roles, record.placements, 1)
    more = placed_amount(run.roles, record.placements)
    _tally(state, run.queue, run.flavor, more, 1, jobs=0)
    extra = (*run.extra, *(Extra(placement, record.deadline) for placement in record.placements))
    amount = run.amount.plus(more)
    after = evolved(run, extra=extra, amount=amount, resized_ts=state.ts, next_rank=first + len(ranks))
    state.put_run(after)


def _shrunk(state: State, record: Shrunk, facts: Sequence[TakenFact]) -> None:
    run, ranks = _run(state, record.run_id), set(record.ranks)
    staying = {extra.placement.rank for extra in run.surplus}
    if run.stopping or not ranks <= staying:
        raise Contradiction(f"record {state.n}: run {run.run_id} has no such pods to remove: {record.ranks}")
    extra = tuple(evolved(e, leaving=True) if e.placement.rank in ranks else e for e in run.extra)
    failures = run.failures + (record.reason.code not in NO_FAILURES)
    state.put_run(evolved(run, extra=extra, resized_ts=state.ts, failures=failures))


def _bound(state: State, record: Bound, facts: Sequence[TakenFact]) -> None:
    run = _run(state, record.run_id)
    if not run.uids or run.stopping:
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot have been bound")
    state.put_run(evolved(run, bound=True))


def _started(state: State, record: Started, facts: Sequence[TakenFact]) -> None:
    run = _run(state, record.run_id)
    if not run.uids or run.stopping:
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot have started")
    state.put_run(evolved(run, bound=True, started=True, started_ts=state.ts))
    _move(state, _job(state, run.job_id), Phase.RUNNING, started_ts=state.ts)


def _revoked(state: State, record: Revoked, facts: Sequence[TakenFact]) -> None:
    run = _run(state, record.run_id)
    if run.stopping:
        # A cancel that finds the run on its way out changes what becomes of the job afterwards, or ends its notice.
        hurries = record.now and not run.hurried and record.then in (run.then, "cancelled")
        if run.over or not (hurries or (run.then, record.then) == ("requeue", "cancelled")):
            raise Contradiction(f"record {state.n}: run {run.run_id} is stopping already")
        state.put_run(evolved(run, then=record.then, hurried=run.hurried or record.now))
        return
    state.put_run(evolved(run, revoked=record.reason, then=record.then, stopped_ts=state.ts, hurried=record.now))
    job = _job(state, run.job_id)
    if record.reason.code in ENDS_OF_ITS_OWN:
        _learn(state, run, job)
    avoid = tuple(dict.fromkeys((*job.avoid, *record.avoid)))[-AVOID_MAX:]
    roles = shared(tuple(within_reach(role, record.within) for role in job.roles)) if record.within else job.roles
    _move(state, job, Phase.EVICTING, reason=record.reason, avoid=avoid, roles=roles)


def _spared(state: State, record: Spared, facts: Sequence[TakenFact]) -> None:
    """The revoke is undone; what it said of nodes to avoid never comes from another job's plan."""
    run = _run(state, record.run_id)
    if run.revoked is None or run.revoked.code not in EVICTIONS or run.then != "requeue":
        raise Contradiction(f"record {state.n}: run {run.run_id} does not stop for another job")
    kept_ts = state.ts if record.kept else run.kept_ts
    state.put_run(evolved(run, revoked=None, then="", stopped_ts=0, kept_ts=kept_ts))
    _move(state, _job(state, run.job_id), Phase.RUNNING, reason=None)


def _warned(state: State, record: Warned, facts: Sequence[TakenFact]) -> None:
    state.put_run(evolved(_run(state, record.run_id), idle_ts=state.ts if record.idle_seconds else 0))


def _saved(state: State, record: Saved, facts: Sequence[TakenFact]) -> None:
    run = _run(state, record.run_id)
    marks = marks_with(run, record.path, record.at) if state.format >= FORMAT_OF_LATER else run.saved_marks
    state.put_run(evolved(run, saved_ts=state.ts, saved_marks=marks))
    if record.path:
        state.put_job(evolved(_job(state, run.job_id), saved_path=record.path))


def _held(state: State, record: Held, facts: Sequence[TakenFact]) -> None:
    job = _job(state, record.job_id)
    if job.held is not record.undo:
        raise Contradiction(f"record {state.n}: job {job.job_id} is {'held' if job.held else 'not held'} already")
    state.put_job(evolved(job, held=not record.undo))


def _back_in_line(state: State, record: BackInLine, facts: Sequence[TakenFact]) -> None:
    job = _job(state, record.job_id)
    adopted = job.adopted
    if adopted is None or not (job.away or record.preemptible is not None or record.uids != adopted.uids):
        raise Contradiction(f"record {state.n}: job {job.job_id} was not without its pods")
    preemptible = job.preemptible if record.preemptible is None else record.preemptible
    adopted = adopted.model_copy(update={"uids": record.uids})
    state.put_job(evolved(job, away=False, preemptible=preemptible, adopted=adopted))


def _out_of_line(state: State, record: OutOfLine, facts: Sequence[TakenFact]) -> None:
    job = _job(state, record.job_id)
    if job.adopted is None or job.away or job.phase is not Phase.QUEUED:
        raise Contradiction(f"record {state.n}: job {job.job_id} does not wait for room")
    state.put_job(evolved(job, away=True))


def _priority_set(state: State, record: PrioritySet, facts: Sequence[TakenFact]) -> None:
    state.put_job(evolved(_job(state, record.job_id), priority_class=record.priority_class))


def _node_drained(state: State, record: NodeDrained, facts: Sequence[TakenFact]) -> None:
    if record.undo:
        state.drains.drop(record.node)
    else:
        state.drains.put(record.node, Drain(record.node, state.ts, record.why))


def _released(state: State, record: Released, facts: Sequence[TakenFact]) -> None:
    run = _run(state, record.run_id)
    if record.ranks:
        _release_pods(state, run, set(record.ranks))
        return
    if not run.stopping:
        raise Contradiction(f"record {state.n}: run {run.run_id} is released while it may still run")
    state.drop_run(run)
    _hold(state, run.roles, run.places, -1)
    _drop_empty(state, run.places)
    _tally(state, run.queue, run.flavor, run.amount, -1)


def _release_pods(state: State, run: Run, ranks: set[int]) -> None:
    """Of pods by which the run shrinks nothing is left to know; the others are remembered as ended."""
    leaving = {extra.placement.rank for extra in run.extra if extra.leaving}
    gone = tuple(placement for placement in run.places if placement.rank in ranks)
    if len(gone) != len(ranks) or not ranks <= leaving | run.releasable:
        raise Contradiction(f"record {state.n}: run {run.run_id} gives no ranks {sorted(ranks)} back by themselves")
    less = placed_amount(run.roles, gone)
    extra = run.extra if leaving.isdisjoint(ranks) else tuple(e for e in run.extra if e.placement.rank not in ranks)
    released = tuple(sorted({*run.released_ranks, *ranks - leaving}))
    state.put_run(evolved(run, extra=extra, amount=run.amount.plus(less, -1), released_ranks=released))
    _hold(state, run.roles, gone, -1)
    _drop_empty(state, gone)
    _tally(state, run.queue, run.flavor, less, -1, jobs=0)


def _requeued(state: State, record: Requeued, facts: Sequence[TakenFact]) -> None:
    job = _job(state, record.job_id)
    _still_held(state, job)
    _move(
        state,
        job,
        Phase.QUEUED,
        not_before=record.not_before,
        strikes=job.strikes + record.strike,
        evictions=job.evictions + (record.reason.code in EVICTIONS),
        reason=record.reason,
        started_ts=0,
        away=job.adopted is not None,
    )


def _finished(state: State, record: Finished, facts: Sequence[TakenFact]) -> None:
    job = _job(state, record.job_id)
    phase = moved(job.job_id, job.phase, Phase(record.phase))
    if phase is Phase.SUCCEEDED:
        run = _run(state, job.run_id)
        _learn(state, run, job)
        state.put_run(evolved(run, over=True))
    else:
        _still_held(state, job)
    state.drop_job(job)
    state.put_ended(
        EndedJob(
            job.job_id,
            job.tenant,
            job.queue,
            job.name,
            job.key,
            job.spec_hash,
            phase,
            job.attempt,
            job.pods,
            job.amount,
            job.submitted_ts,
            job.started_ts,
            state.ts,
            state.ts + state.tree.policy.key_memory_seconds * 1000,
            job.trace,
            record.reason,
            record.exit_code,
            _class_of(job) if state.format >= FORMAT_OF_LATER else "",
            job.evictions if state.format >= FORMAT_OF_LATER else 0,
        )
    )
    _tally_tenant(state, job.tenant, job.amount, -1)


def _class_of(job: Job) -> str:
    """As it is shown: adopted work has the class that Kubernetes knows."""
    return job.priority_class if job.adopted is None else job.adopted.priority_class


def _learn(state: State, run: Run, job: Job) -> None:
    """A run ended by itself: now it is known how long it took."""
    if run.started_ts:
        learn(state.runtimes, kind_of(job), state.ts - run.started_ts, state.ts)


def _still_held(state: State, job: Job) -> None:
    if state.runs.get(job.run_id) is not None:
        raise Contradiction(f"record {state.n}: job {job.job_id} leaves run {job.run_id} before its release")


def _earmark_set(state: State, record: EarmarkSet, facts: Sequence[TakenFact]) -> None:
    job = _job(state, record.owner)
    if state.earmarks.get(record.owner) is not None:
        raise Contradiction(f"record {state.n}: job {record.owner} has an earmark already")
    mark = Earmark(
        record.owner, record.cause, record.deadline, job.roles, record.placements, record.flavor, record.victims
    )
    state.earmarks.put(record.owner, mark)
    _hold(state, job.roles, record.placements, 1)


def _earmark_ended(state: State, record: EarmarkEnded, facts: Sequence[TakenFact]) -> None:
    mark = state.earmarks.get(record.owner)
    if mark is None:
        raise Contradiction(f"record {state.n}: job {record.owner} has no earmark")
    state.earmarks.drop(record.owner)
    _hold(state, mark.roles, mark.placements, -1)
    _drop_empty(state, mark.placements)


def _left_changed(state: State, record: LeftChanged, facts: Sequence[TakenFact]) -> None:
    state.lefts.put(record.pool, Left(record.pool, record.free))


def _mix_priced(state: State, record: MixPriced, facts: Sequence[TakenFact]) -> None:
    fact, mix = facts[record.fact].fact, state.mixes.get(record.pool)
    if not isinstance(fact, PricesLearnt) or mix is None or len(fact.prices) != len(mix.known):
        raise Contradiction(f"record {state.n}: fact {record.fact} has no prices for the mix of pool {record.pool}")
    state.mixes.put(mix.pool, evolved(mix, prices=fact.prices, priced=fact.settled, priced_gpus=fact.gpus))


def _refusal_noted(state: State, record: RefusalNoted, facts: Sequence[TakenFact]) -> None:
    fact = facts[record.fact].fact
    if not isinstance(fact, WorkRefused):
        raise Contradiction(f"record {state.n}: fact {record.fact} refuses nothing")
    known = state.refused.get(fact.work_id)
    if not fact.reasons:
        state.refused.drop(fact.work_id)
        return
    since = state.ts if known is None else known.since_ts
    work = RefusedWork(fact.work_id, fact.tenant, fact.group, fact.owner, fact.queue, fact.reasons, since)
    state.refused.put(work.work_id, work)


APPLY: dict[type[Any], Callable[[State, Any, Sequence[TakenFact]], None]] = {
    FormatRaised: _format_raised,
    EpochOpened: _epoch_opened,
    Checkpoint: _nothing,
    ConfigSet: _config_set,
    ConfigRefused: _nothing,
    NodeChanged: _node_changed,
    JobQueued: _job_queued,
    JobTurnedAway: _nothing,
    Waiting: _waiting,
    Allocated: _allocated,
    Permitted: _permitted,
    Bound: _bound,
    Started: _started,
    Revoked: _revoked,
    Spared: _spared,
    Grown: _grown,
    Shrunk: _shrunk,
    Warned: _warned,
    Saved: _saved,
    Held: _held,
    BackInLine: _back_in_line,
    OutOfLine: _out_of_line,
    PrioritySet: _priority_set,
    NodeDrained: _node_drained,
    Released: _released,
    Requeued: _requeued,
    Finished: _finished,
    PlanRefused: _nothing,
    EarmarkSet: _earmark_set,
    EarmarkEnded: _earmark_ended,
    LeftChanged: _left_changed,
    MixPriced: _mix_priced,
    PricesRefused: _nothing,
    RefusalNoted: _refusal_noted,
}
