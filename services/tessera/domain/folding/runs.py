"""Fold of records about runs, from allocation to release. Pure."""

from collections.abc import Iterable, Sequence

from tessera.domain.devices.datasets import count_data, keep_data
from tessera.domain.devices.resources import within_reach
from tessera.domain.entities import Job, Run, SurplusPod
from tessera.domain.errors import Contradiction
from tessera.domain.folding.steps import (
    FORMAT_OF_LATER,
    applies,
    count_held,
    count_task,
    drop_empty,
    end_backoffs,
    hold,
    is_aside,
    job_of,
    learn_runtime,
    move,
    run_of,
    tally,
    tally_tenant,
    with_nodes_of,
)
from tessera.domain.health.following import note_failure, note_lasted
from tessera.domain.moves.offers import MovedRuns
from tessera.domain.moves.scores import note_saved, note_spared
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.checkpoints import marks_with
from tessera.domain.work.gang import RestartingCopy, gang_of, larger, size_of, sized
from tessera.domain.work.phases import Phase
from tessera.domain.work.starting import find_awaited, note_refusal, note_taken, note_try
from tessera.domain.work.stops import count_stop
from tessera_schemas.facts import PodsFound, RunUsed
from tessera_schemas.ledger import (
    Allocated,
    Bound,
    Delayed,
    Grown,
    Permitted,
    PodsTakenOver,
    Released,
    Revoked,
    Saved,
    Shrunk,
    Spared,
    Started,
    StopHeldBack,
    TakenFact,
    UseNoted,
    Warned,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import (
    GPU_USE_FROM,
    LENT_KEPT_FROM,
    NODE_FAILURES_FROM,
    RUN_ENDS_FROM,
    SESSION_WARNINGS_FROM,
    UNNEEDED_STOPS_FROM,
)
from tessera_schemas.shard.lending import week_of
from tessera_schemas.shard.records import (
    GroupPermitted,
    GroupRestarted,
    GroupResumed,
    ResizeBegun,
    ResizeEnded,
    RolesShifted,
    RungTaken,
    SessionWarned,
    Stalled,
)
from tessera_schemas.work.measured_use import added
from tessera_schemas.work.run_ends import DRAINS, ENDS_OF_ITS_OWN, EVICTIONS, FAILURES_OF_NODES
from tessera_schemas.work.spec_changes import PodResize, RoleAmounts

AVOID_MAX = 16
SHIFTS_KEPT = 16
"""Requests to shift between roles of which a run knows the keys: none of them is carried out twice."""
NO_FAILURES = frozenset({Code.SHRUNK, Code.NODE_LOST, Code.NODE_SHRUNK, *DRAINS})
"""The reasons why an elastic run goes on without pods, and which say nothing of how the next ones will fare."""


@applies(PodsTakenOver)
def apply_pods_taken_over(state: State, record: PodsTakenOver, facts: Sequence[TakenFact]) -> None:
    """Takes the pods off what others use of their nodes; raises Contradiction for other facts, and other gangs."""
    fact, job = facts[record.fact].fact, job_of(state, record.job_id)
    if not isinstance(fact, PodsFound) or len(fact.nodes) != job.pods:
        raise Contradiction(f"record {state.n}: fact {record.fact} has no pods to take over for {record.job_id}")
    for need, name in zip(job.gang.needs, fact.nodes, strict=True):
        node = state.nodes.get(name)
        if node is None:
            raise Contradiction(f"record {state.n} uses node {name}, which is unknown")
        state.nodes.put(name, node.taking_over(need))


@applies(Allocated)
def apply_allocated(state: State, record: Allocated, facts: Sequence[TakenFact]) -> None:
    """Begins a run and takes its devices; raises Contradiction unless the attempt is the next and the job may start."""
    job = job_of(state, record.job_id)
    if record.attempt != job.attempt + 1:
        raise Contradiction(f"record {state.n}: job {job.job_id} attempt {record.attempt} after {job.attempt}")
    if job.is_kept_from_starting:
        raise Contradiction(f"record {state.n}: job {job.job_id} is kept out of line")
    first, was_aside = job.first_ts or state.ts, is_aside(state, job)
    passed, attempt = record.passed, record.attempt
    job = move(state, job, Phase.ALLOCATED, attempt=attempt, reason=None, not_before=0, first_ts=first, passed=passed)
    if job.data_until or job.displaced:
        state.put_job(job := replace(job, data_until=0, displaced=False))
    if job.last_ended_ts:
        state.put_job(job := replace(job, last_end=None, last_started_ts=0, last_ended_ts=0, nodes=()))
    count_task(state, job, waiting=-1, aside=-was_aside)
    hold(state, job.gang, record.placements, 1)
    amount = job.amount
    if job.gang.claims:  # which of its choices were drawn is known from here on
        amount = replace(amount, device_classes=job.gang.amount_of(record.placements).device_classes)
    tally(state, job.queue, record.flavor, amount, 1)
    run = Run(
        job.run_id,
        job.job_id,
        job.attempt,
        job.tenant,
        job.queue,
        job.roles,
        amount,
        record.placements,
        state.ts,
        record.deadline,
        flavor=record.flavor,
        user=job.user,
        project=job.project,
        start_ms=record.deadline - state.ts if state.format >= RUN_ENDS_FROM else 0,
        late=0 if job.adopted is None else job.adopted.late_pods,
    )
    state.put_run(count_data(state, run))
    state.neighbours.stand(run.gang, record.placements, 1)
    note_try(state, run)


@applies(Permitted)
def apply_permitted(state: State, record: Permitted, facts: Sequence[TakenFact]) -> None:
    """Permits the pods of a run by UID, or late and surplus ones by rank; raises Contradiction if it is past that."""
    run = run_of(state, record.run_id)
    if record.ranks:
        _permit_more(state, run, record)
        return
    if run.uids or run.stopping or len(record.uids) != len(run.placements) - run.late:
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot be permitted")
    state.put_run(replace(run, uids=(*record.uids, *[""] * run.late)))
    job = move(state, job_of(state, run.job_id), Phase.BINDING)
    if job.adopted is None:  # users' pods were there before
        note_taken(state, run)


def _permit_more(state: State, run: Run, record: Permitted) -> None:
    uids = dict(zip(record.ranks, record.uids, strict=True))
    open_ = {extra.placement.rank for extra in run.extra if not extra.uid and not extra.leaving}
    if run.stopping or not uids.keys() <= open_.union(find_awaited(run)):
        raise Contradiction(f"record {state.n}: run {run.run_id} has no such pods to permit: {record.ranks}")
    extra = tuple(
        replace(e, uid=uids[e.placement.rank], deadline=0) if e.placement.rank in uids else e for e in run.extra
    )
    gang = tuple(uid or uids.get(rank, "") for rank, uid in enumerate(run.uids)) if run.late else run.uids
    state.put_run(replace(run, extra=extra, uids=gang))


@applies(Grown)
def apply_grown(state: State, record: Grown, facts: Sequence[TakenFact]) -> None:
    """Adds surplus pods with their devices; raises Contradiction unless the run started and the ranks are the next."""
    run = count_held(state, run_of(state, record.run_id))
    first = run.next_rank or len(run.placements)
    ranks = [placement.rank for placement in record.placements]
    if run.stopping or not run.started or ranks != list(range(first, first + len(ranks))):
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot grow by ranks {ranks}")
    hold(state, run.gang, record.placements, 1)
    more = run.gang.amount_of(record.placements)
    tally(state, run.queue, run.flavor, more, 1, jobs=0)
    extra = (*run.extra, *(SurplusPod(placement, record.deadline) for placement in record.placements))
    amount = run.amount.plus(more)
    after = replace(run, extra=extra, amount=amount, resized_ts=state.ts, next_rank=first + len(ranks))
    state.put_run(after)


@applies(Shrunk)
def apply_shrunk(state: State, record: Shrunk, facts: Sequence[TakenFact]) -> None:
    """Marks surplus pods as leaving, with devices taken until the release; raises Contradiction for other ranks."""
    run, ranks = run_of(state, record.run_id), set(record.ranks)
    if run.stopping or ranks != run.surplus_with(ranks):
        raise Contradiction(f"record {state.n}: run {run.run_id} has no such pods to remove: {record.ranks}")
    extra = tuple(replace(e, leaving=True) if e.placement.rank in ranks else e for e in run.extra)
    failures = run.failures + (record.reason.code not in NO_FAILURES)
    state.put_run(replace(run, extra=extra, resized_ts=state.ts, failures=failures))
    job = state.jobs.get(run.job_id)
    if job is not None and record.reason.code in FAILURES_OF_NODES and state.format >= NODE_FAILURES_FROM:
        nodes = tuple(e.placement.node for e in run.extra if e.placement.rank in ranks)
        note_failure(state, run, record.reason, nodes)
        state.put_job(replace(job, avoid=_with_nodes(job, nodes)))


@applies(RolesShifted)
def apply_roles_shifted(state: State, record: RolesShifted, facts: Sequence[TakenFact]) -> None:
    """Marks surplus pods as leaving for others of the run; raises Contradiction for other ranks, and a second shift."""
    run, ranks = run_of(state, record.run_id), set(record.ranks)
    staying = {extra.placement.rank for extra in run.surplus}
    moves = run.stopping or run.shift_ranks or record.request in run.shifts
    if moves or not run.started or not ranks <= staying or (record.gains and not ranks):
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot shift by {record.ranks}")
    extra = tuple(replace(e, leaving=True) if e.placement.rank in ranks else e for e in run.extra)
    shifts = (*run.shifts, record.request)[-SHIFTS_KEPT:]
    gains, sizes = tuple(sorted(record.gains.items())), tuple(sorted(record.sizes.items()))
    given = {"shift_ranks": tuple(sorted(ranks)), "gains": gains, "sizes": sizes, "shifts": shifts}
    state.put_run(replace(run, extra=extra, resized_ts=state.ts, **given))


@applies(GroupRestarted)
def apply_group_restarted(state: State, record: GroupRestarted, facts: Sequence[TakenFact]) -> None:
    """Notes which pods of a run start again; raises Contradiction for others than a copy of one of its groups."""
    run, ranks = run_of(state, record.run_id), set(record.ranks)
    number = 1 + max((copy.number for copy in run.restarts), default=0)
    known = run.gang.copy_of(record.group, record.ranks[0])
    # Nothing of a copy is given back before its run ends, so that it is never without its place.
    whole = known == (record.copy_number, record.ranks) and ranks.isdisjoint(run.released_ranks)
    if run.stopping or not run.started or record.restart != number or not whole:
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot start {record.ranks} again")
    fresh = RestartingCopy(
        record.group,
        record.copy_number,
        record.ranks,
        number,
        record.count,
        state.ts,
        record.not_before,
        record.deadline,
    )
    # Copies within this one begin anew with it. One that it is within has to wait for it.
    around = run.gang.groups_around(record.group)
    kept = tuple(
        replace(copy, deadline=max(copy.deadline, record.deadline))
        if copy.deadline and ranks.issubset(copy.ranks)
        else copy
        for copy in run.restarts
        if copy.group in around or not ranks.issuperset(copy.ranks)
    )
    state.put_run(replace(run, restarts=(*kept, fresh)))


@applies(GroupPermitted)
def apply_group_permitted(state: State, record: GroupPermitted, facts: Sequence[TakenFact]) -> None:
    """Gives pods of a copy that starts again their new UIDs; raises Contradiction for pods that the run has or had."""
    run = run_of(state, record.run_id)
    copy = _restart_of(run, record.restart)
    fits = copy is not None and copy.is_out and len(set(record.uids)) == len(copy.ranks) == len(record.uids)
    if copy is None or run.stopping or not fits or not set(record.uids).isdisjoint(run.permitted):
        raise Contradiction(f"record {state.n}: run {run.run_id} has no such pods to permit again: {record.restart}")
    fresh = dict(zip(copy.ranks, record.uids, strict=True))
    uids = tuple(fresh.get(rank, uid) for rank, uid in enumerate(run.uids))
    state.put_run(replace(run, uids=uids, restarts=_with_restart(run, replace(copy, permitted=True))))


@applies(GroupResumed)
def apply_group_resumed(state: State, record: GroupResumed, facts: Sequence[TakenFact]) -> None:
    """Notes that a copy runs again; raises Contradiction unless its pods were permitted."""
    run = run_of(state, record.run_id)
    copy = _restart_of(run, record.restart)
    if copy is None or run.stopping or not (copy.permitted and copy.deadline):
        raise Contradiction(f"record {state.n}: run {run.run_id} has no restart {record.restart} that may be over")
    state.put_run(replace(run, restarts=_with_restart(run, replace(copy, deadline=0))))


def _restart_of(run: Run, number: int) -> RestartingCopy | None:
    return next((copy for copy in run.restarts if copy.number == number), None)


def _with_restart(run: Run, after: RestartingCopy) -> tuple[RestartingCopy, ...]:
    return tuple(after if copy.number == after.number else copy for copy in run.restarts)


@applies(ResizeBegun)
def apply_resize_begun(state: State, record: ResizeBegun, facts: Sequence[TakenFact]) -> None:
    """
    The run holds the larger of both sizes from here on, and its job asks for the new one.

    Raises Contradiction for a run that does not go on, and while pods of another role are resized.
    """
    run, to = run_of(state, record.run_id), _amounts(record)
    had, under_way, job = size_of(run.roles, to.role), run.resize, job_of(state, run.job_id)
    if had is None or run.stopping or not run.started or (under_way is not None and under_way.to.role != to.role):
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot be resized")
    is_first = all(each.role != to.role for each in job.resized)
    resize = PodResize(request=record.request, to=to, before=had, is_first=is_first)
    if under_way is not None:  # in whose place it comes: what the pods had before that is what they go back to
        resize = under_way.model_copy(update={"request": record.request, "to": to, "is_back": False})
    _hold_as(state, replace(run, resize=resize), larger(had, to))
    _resize_job(state, job, to, keep=True)


@applies(ResizeEnded)
def apply_resize_ended(state: State, record: ResizeEnded, facts: Sequence[TakenFact]) -> None:
    """The run holds the new size alone, or goes back; raises Contradiction where no such resize is under way."""
    run, size = run_of(state, record.run_id), _amounts(record)
    resize = run.resize
    due = None if resize is None else resize.to if record.reason is None else resize.before
    if resize is None or run.stopping or record.request != resize.request or size != due:
        raise Contradiction(f"record {state.n}: no such resize of {run.run_id} is under way")
    if record.reason is None:
        _hold_as(state, replace(run, resize=None), size)
        return
    if resize.is_back:
        raise Contradiction(f"record {state.n}: run {run.run_id} goes back to its size already")
    state.put_run(replace(run, resize=resize.model_copy(update={"to": size, "is_back": True})))
    _resize_job(state, job_of(state, run.job_id), size, keep=not resize.is_first)


def _amounts(record: ResizeBegun | ResizeEnded) -> RoleAmounts:
    return RoleAmounts(role=record.role, cpu_milli=record.cpu_milli, memory_bytes=record.memory_bytes)


def _hold_as(state: State, run: Run, size: RoleAmounts) -> None:
    """Stores the run, of whose role each pod holds this size from here on, on its node and of its queue's quota."""
    gang, places = sized(run.roles, size), run.places
    amount = run.amount.plus(gang.amount_of(places)).plus(run.gang.amount_of(places), -1)
    hold(state, run.gang, places, -1)
    hold(state, gang, places, 1)
    tally(state, run.queue, run.flavor, run.amount, -1, jobs=0)
    tally(state, run.queue, run.flavor, amount, 1, jobs=0)
    state.put_run(replace(run, roles=gang, amount=amount))


def _resize_job(state: State, job: Job, size: RoleAmounts, keep: bool) -> None:
    """Stores the job with a role of this size; `keep`: it is another one than the submit said."""
    gang, others = sized(job.roles, size), tuple(each for each in job.resized if each.role != size.role)
    amount = job.amount.plus(gang.amount).plus(job.gang.amount, -1)
    tally_tenant(state, job, job.amount, -1)
    tally_tenant(state, job, amount, 1)
    state.put_job(replace(job, roles=gang, amount=amount, resized=(*others, size) if keep else others))


@applies(Bound)
def apply_bound(state: State, record: Bound, facts: Sequence[TakenFact]) -> None:
    """Notes that all pods of a run's gang are bound; raises Contradiction unless the pods were permitted."""
    run = run_of(state, record.run_id)
    if not run.uids or run.stopping:
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot have been bound")
    state.put_run(replace(run, bound=True))
    note_taken(state, run)


@applies(Delayed)
def apply_delayed(state: State, record: Delayed, facts: Sequence[TakenFact]) -> None:
    """Notes what keeps a run from starting, and its new deadline; raises Contradiction once it runs or stops."""
    run = run_of(state, record.run_id)
    if not run.uids or run.started or run.stopping or record.deadline < run.deadline:
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot be waited for")
    state.put_run(replace(run, deadline=record.deadline, delay=record.reason, slow_nodes=record.nodes))
    state.put_job(replace(job_of(state, run.job_id), reason=record.reason))


@applies(Started)
def apply_started(state: State, record: Started, facts: Sequence[TakenFact]) -> None:
    """Notes that a run's gang runs, from the message's time on; raises Contradiction unless the pods were permitted."""
    run = run_of(state, record.run_id)
    if not run.uids or run.stopping:
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot have started")
    state.put_run(replace(run, bound=True, started=True, started_ts=state.ts, delay=None, slow_nodes=()))
    end_backoffs(state, run.placements, failed=False)
    keep_data(state, run)
    move(state, job_of(state, run.job_id), Phase.RUNNING, started_ts=state.ts, reason=None)


@applies(Revoked)
def apply_revoked(state: State, record: Revoked, facts: Sequence[TakenFact]) -> None:
    """Begins to stop a run; one that is stopping already takes only a cancel, an end of its notice, or its own end."""
    run = run_of(state, record.run_id)
    if record.ended:
        _apply_own_end(state, run, record)
        return
    if run.stopping:
        # A cancel that finds the run on its way out changes what becomes of the job afterwards, or ends its notice.
        hurries = record.now and not run.hurried and record.then in (run.then, "cancelled")
        if run.over or not (hurries or (run.then, record.then) == ("requeue", "cancelled")):
            raise Contradiction(f"record {state.n}: run {run.run_id} is stopping already")
        state.put_run(replace(run, then=record.then, hurried=run.hurried or record.now))
        return
    if state.moves.get(run.run_id) is not None:
        state.moves.drop(run.run_id)
    if record.reason.code is Code.DEFRAGMENTED:
        _count_moved(state, run, record.reason, 1)
    stopped = replace(run, revoked=record.reason, then=record.then, stopped_ts=state.ts, hurried=record.now)
    state.put_run(replace(stopped, held_back=None, called_in=record.called_in, rule=record.rule))
    if record.observed:
        count_stop(state, run, record.observed)
    if state.format >= RUN_ENDS_FROM:
        note_refusal(state, run, record.reason)
    job = job_of(state, run.job_id)
    if record.reason.code in ENDS_OF_ITS_OWN:
        learn_runtime(state, run, job)
    note_failure(state, run, record.reason, record.avoid)
    avoid = _with_nodes(job, record.avoid)
    gang = gang_of(tuple(within_reach(role, record.within) for role in job.roles)) if record.within else job.gang
    move(state, job, Phase.EVICTING, reason=record.reason, avoid=avoid, roles=gang)


def _apply_own_end(state: State, run: Run, record: Revoked) -> None:
    """The run's own end takes the place of what it was to be stopped for; raises Contradiction for any other run."""
    if run.over or run.revoked is None or run.revoked.code in ENDS_OF_ITS_OWN:
        raise Contradiction(f"record {state.n}: run {run.run_id} is not stopping for another reason than its own end")
    state.put_run(replace(run, revoked=record.reason, then=record.then, rule=record.rule))
    job = job_of(state, run.job_id)
    learn_runtime(state, run, job)
    note_failure(state, run, record.reason, record.avoid)
    state.put_job(replace(job, reason=record.reason, avoid=_with_nodes(job, record.avoid)))


def _count_moved(state: State, run: Run, reason: Reason, sign: int) -> None:
    """Counts a move and what it loses against its tenant's budget of the week, or takes it off, if there is one."""
    if state.tree.policy.moves.has_budget:
        week = week_of(state.ts)
        row = state.moved.get(run.tenant) or MovedRuns(run.tenant, week)
        state.moved.put(run.tenant, row.counting(week, sign, sign * reason.numbers.get("lost_gpu_seconds", 0)))


@applies(StopHeldBack)
def apply_stop_held_back(state: State, record: StopHeldBack, facts: Sequence[TakenFact]) -> None:
    """Notes why a run goes on that seems lost; raises Contradiction for one that is being stopped."""
    run = run_of(state, record.run_id)
    if run.stopping:
        raise Contradiction(f"record {state.n}: run {run.run_id} is stopping already")
    state.put_run(replace(run, held_back=record.reason))


def _with_nodes(job: Job, nodes: Iterable[str]) -> tuple[str, ...]:
    """The nodes that failed the job, with these."""
    return tuple(dict.fromkeys((*job.avoid, *nodes)))[-AVOID_MAX:]


@applies(Spared)
def apply_spared(state: State, record: Spared, facts: Sequence[TakenFact]) -> None:
    """The revoke is undone; what it said of nodes to avoid never comes from another job's plan."""
    run = run_of(state, record.run_id)
    drained = state.format >= UNNEEDED_STOPS_FROM and run.revoked is not None and run.revoked.code in DRAINS
    if run.revoked is None or not (drained or run.revoked.code in EVICTIONS) or run.then != "requeue":
        raise Contradiction(f"record {state.n}: run {run.run_id} does not stop for another job")
    if run.revoked.code is Code.DEFRAGMENTED:
        _count_moved(state, run, run.revoked, -1)
        note_spared(state.move_plans, run.run_id)
    kept_ts = state.ts if record.kept else run.kept_ts
    # From the first time on: an owner that comes later finds a loan that was kept for long enough already.
    lent = record.kept and run.revoked.code is Code.RECLAIMED and state.format >= LENT_KEPT_FROM
    lent_ts = run.kept_lent_ts or (state.ts if lent else 0)
    goes_on = replace(run, revoked=None, then="", stopped_ts=0, kept_ts=kept_ts, unneeded=False)
    state.put_run(replace(goes_on, kept_lent_ts=lent_ts, called_in=False))
    move(state, job_of(state, run.job_id), Phase.RUNNING, reason=None)


@applies(Warned)
def apply_warned(state: State, record: Warned, facts: Sequence[TakenFact]) -> None:
    """Notes when a run was warned of being idle, in ledger milliseconds; `idle_seconds` 0 takes the warning back."""
    state.put_run(replace(run_of(state, record.run_id), idle_ts=state.ts if record.idle_seconds else 0))


@applies(SessionWarned)
def apply_session_warned(state: State, record: SessionWarned, facts: Sequence[TakenFact]) -> None:
    """Notes until when an unused session goes on; raises Contradiction for a run of no session, and for no change."""
    run = run_of(state, record.run_id)
    news = bool(run.unused_until) != bool(record.stops_ts) and state.format >= SESSION_WARNINGS_FROM
    if job_of(state, run.job_id).session is None or not news:
        raise Contradiction(f"record {state.n}: the session of {run.run_id} was not warned")
    state.put_run(replace(run, unused_until=record.stops_ts))


@applies(Stalled)
def apply_stalled(state: State, record: Stalled, facts: Sequence[TakenFact]) -> None:
    """Notes how a run stalls; raises Contradiction for a job that says nothing of progress, and for no change."""
    run = run_of(state, record.run_id)
    if run.stopping or job_of(state, run.job_id).progress is None or record.reason == run.stalled:
        raise Contradiction(f"record {state.n}: run {run.run_id} stalls no other than before")
    state.put_run(replace(run, stalled=record.reason))


@applies(RungTaken)
def apply_rung_taken(state: State, record: RungTaken, facts: Sequence[TakenFact]) -> None:
    """Notes a domain to be avoided; raises Contradiction for a job without a ladder."""
    job = job_of(state, record.job_id)
    if job.retry.ladder is None or bool(record.domain) != (record.rung == "domain"):
        raise Contradiction(f"record {state.n}: job {job.job_id} has no such ladder")
    if record.domain:
        state.put_job(replace(job, avoid=_with_nodes(job, (record.domain,))))


@applies(UseNoted)
def apply_use_noted(state: State, record: UseNoted, facts: Sequence[TakenFact]) -> None:
    """Takes over a measurement that covers more than the one before; raises Contradiction for any other fact."""
    run, fact = run_of(state, record.run_id), facts[record.fact].fact
    known = 0 if run.gpu_use is None else run.gpu_use.measured_gpu_milli_ms
    is_of_it = isinstance(fact, RunUsed) and fact.run_id == run.run_id and state.format >= GPU_USE_FROM
    if not isinstance(fact, RunUsed) or not is_of_it or fact.use.measured_gpu_milli_ms <= known:
        raise Contradiction(f"record {state.n}: fact {record.fact} says nothing new of the GPUs of {run.run_id}")
    state.put_run(replace(run, gpu_use=fact.use.with_most_of(run.gpu_use)))


@applies(Saved)
def apply_saved(state: State, record: Saved, facts: Sequence[TakenFact]) -> None:
    """Notes a checkpoint of a run: its time in ledger milliseconds and, where a path is named, the path."""
    run = run_of(state, record.run_id)
    marks = marks_with(run, record.path, record.at) if state.format >= FORMAT_OF_LATER else run.saved_marks
    state.put_run(replace(run, saved_ts=state.ts, saved_marks=marks))
    if len(state.move_plans):
        note_saved(state.move_plans, run.run_id, state.ts)
    if record.path:
        state.put_job(replace(job_of(state, run.job_id), saved_path=record.path))


@applies(Released)
def apply_released(state: State, record: Released, facts: Sequence[TakenFact]) -> None:
    """Frees the devices of a run, or of single ranks; raises Contradiction while the whole run may still run."""
    run = run_of(state, record.run_id)
    if record.ranks:
        _release_pods(state, run, set(record.ranks))
        return
    if not run.stopping:
        raise Contradiction(f"record {state.n}: run {run.run_id} is released while it may still run")
    count_held(state, run)
    if (job := state.jobs.get(run.job_id)) is not None:
        state.put_job(with_nodes_of(state, job, run))
    _keep_use(state, run)
    if run.started:
        keep_data(state, run)
    if not run.over:
        note_lasted(state, run)
    state.drop_run(run)
    hold(state, run.gang, run.places, -1)
    state.neighbours.stand(run.gang, run.places, -1)
    drop_empty(state, run.places)
    tally(state, run.queue, run.flavor, run.amount, -1)


def _release_pods(state: State, run: Run, ranks: set[int]) -> None:
    """Releases pods of a run: those by which it shrinks are forgotten, all others are remembered as ended."""
    leaving = {extra.placement.rank for extra in run.extra if extra.leaving}
    gone = tuple(placement for placement in run.places if placement.rank in ranks)
    if len(gone) != len(ranks) or not ranks <= leaving | run.releasable:
        raise Contradiction(f"record {state.n}: run {run.run_id} gives no ranks {sorted(ranks)} back by themselves")
    less = run.gang.amount_of(gone)
    run = count_held(state, run)
    extra = run.extra if leaving.isdisjoint(ranks) else tuple(e for e in run.extra if e.placement.rank not in ranks)
    released = tuple(sorted({*run.released_ranks, *ranks - leaving}))
    shifting = tuple(rank for rank in run.shift_ranks if rank not in ranks)
    after = replace(run, extra=extra, amount=run.amount.plus(less, -1), released_ranks=released)
    state.put_run(replace(after, shift_ranks=shifting, gains=run.gains if shifting else ()))
    hold(state, run.gang, gone, -1)
    state.neighbours.stand(run.gang, gone, -1)
    drop_empty(state, gone)
    tally(state, run.queue, run.flavor, less, -1, jobs=0)


def _keep_use(state: State, run: Run) -> None:
    """Adds what was measured of a released run to its job, which has ended before where it succeeded."""
    if run.gpu_use is None:
        return
    if (job := state.jobs.get(run.job_id)) is not None:
        state.put_job(replace(job, gpu_use=added(job.gpu_use, run.gpu_use)))
    elif (ended := state.ended.get(run.job_id)) is not None:
        state.put_ended(replace(ended, gpu_use=added(ended.gpu_use, run.gpu_use)))
