"""
What the committer decides: state(n-1) and one batch of inputs give the records of message n. Pure.

Each decision sees the ones before it: a record is applied to an overlay of the state as soon as it is made, by the
same fold that everybody uses. A replay calls `decide` with the inputs that the ledger recorded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tessera.domain.entities import Job, Run, Use
from tessera.domain.fold import apply_record, known, take_in
from tessera.domain.phases import Phase
from tessera.domain.resources import is_as_seen
from tessera.domain.state import State
from tessera.engine.gangs import Room
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import (
    BindFailed,
    CancelRequested,
    ConfigProposed,
    JobAdmitted,
    JobRefused,
    NodeSeen,
    PodsBound,
    PodsMade,
    RunAbsent,
    RunEnded,
    RunStarted,
)
from tessera_schemas.ledger import (
    FORMAT,
    Allocated,
    AnyRecord,
    Bound,
    Checkpoint,
    ConfigRefused,
    ConfigSet,
    EarmarkEnded,
    EpochOpened,
    Finished,
    FormatRaised,
    JobQueued,
    JobTurnedAway,
    NodeChanged,
    Permitted,
    Released,
    Requeued,
    Revoked,
    Started,
    TakenFact,
    Waiting,
)
from tessera_schemas.orders import Order
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.subjects import MESSAGE_BYTES_MAX

PODS_PER_MESSAGE = 2048
"""How much one message places of one pool, so that it does not take long; the next one reaches the rest of the line."""

ROOM_BYTES = MESSAGE_BYTES_MAX - 4 * 1024  # the envelope takes the rest
RECORD_BYTES = 8 * 1024  # no record but an allocation or a permit is larger
ALLOCATION_BYTES_MAX = 384 * 1024  # so that it gets into a message beside the facts that keep coming

COUNTABLE = 2**62  # sums of a tenant's jobs; the canonical form of the state holds no integer above 64 bits


@dataclass(frozen=True, slots=True)
class Inputs:
    """The first part of a ledger message: everything a decision may depend on besides the state."""

    n: int
    ts: int
    epoch: int
    facts_upto: int
    holder: str = ""
    state_hash: str = ""
    facts: tuple[TakenFact, ...] = ()
    orders: tuple[Order, ...] = ()


@dataclass(slots=True)
class Draft:
    """The records made so far, the state as they leave it, and the bytes left for more."""

    state: State
    facts: tuple[TakenFact, ...]
    room: int = ROOM_BYTES
    records: list[AnyRecord] = field(default_factory=list)

    def add(self, record: AnyRecord) -> None:
        apply_record(self.state, record, self.facts)
        self.records.append(record)
        self.room -= len(record.to_bytes()) + 1

    @property
    def full(self) -> bool:
        """What can wait is left to the next message, so that this one stays below its bound."""
        return self.room < RECORD_BYTES


def decide(state: State, inputs: Inputs) -> tuple[AnyRecord, ...]:
    """The records that follow from `inputs` at `state`, which is not changed."""
    taken_bytes = sum(len(part.to_bytes()) + 1 for part in (*inputs.facts, *inputs.orders))
    draft = Draft(state.overlay(), inputs.facts, ROOM_BYTES - taken_bytes)
    take_in(draft.state, inputs.n, inputs.ts, inputs.facts_upto, inputs.orders)
    open_message(draft, inputs)
    for index, taken in enumerate(inputs.facts):
        JUDGE[type(taken.fact)](draft, index, taken.fact)
    end_overdue(draft)
    say_stranded(draft)
    for pool in sorted(pool for pool, _ in draft.state.lines.items()):
        place_line(draft, pool)
    return tuple(draft.records)


def open_message(draft: Draft, inputs: Inputs) -> None:
    """Format, epoch and checkpoint records, when this message carries them."""
    if draft.state.format < FORMAT:
        draft.add(FormatRaised(kind="format_raised", format=FORMAT))
    if inputs.holder:
        draft.add(EpochOpened(kind="epoch_opened", epoch=inputs.epoch, holder=inputs.holder))
    if inputs.state_hash:
        draft.add(Checkpoint(kind="checkpoint", state_hash=inputs.state_hash))


def place_line(draft: Draft, pool: str) -> None:
    """
    Start what fits, in the order of the pool's line; say why for the rest, when that has changed.

    Most jobs of a long line got their answer before and get it again. From one allocation to the next neither use nor
    room changes, so that equal jobs of one queue share a verdict: those that it tells nothing new are passed over
    without asking again. An earmark is a verdict of its own.
    """
    state = draft.state
    waiting = _startable(state, pool)
    if not waiting:
        return
    marked = {owner for owner, _ in state.earmarks.items()}
    refused: dict[tuple[str, int], Code] = {}  # by queue and identity of the roles, which `waiting` keeps alive
    room = Room(node for node in state.nodes.values() if node.pool == pool)
    longest = max((len(name) for name in room.nodes), default=0)
    pods = 0
    for job in waiting:
        same = (job.queue, id(job.roles))
        if job.reason is not None and refused.get(same) is job.reason.code and job.job_id not in marked:
            continue
        if draft.full:
            return
        mark, size = state.earmarks.get(job.job_id), allocation_bytes(job, longest)
        verdict = _over_quota(state, job) or _too_large(size) or (mark.placements if mark else room.place(job.roles))
        if isinstance(verdict, Reason):
            if mark is None:
                refused[same] = verdict.code
            _wait(draft, job, verdict)
            continue
        if size > draft.room:
            return
        if mark is not None:
            draft.add(EarmarkEnded(kind="earmark_ended", owner=job.job_id, why="used"))
        _allocate(draft, job, verdict)
        refused.clear()
        pods += job.pods
        if pods >= PODS_PER_MESSAGE:
            return


def _wait(draft: Draft, job: Job, reason: Reason) -> None:
    if job.reason is None or job.reason.code is not reason.code:
        draft.add(Waiting(kind="waiting", job_id=job.job_id, reason=reason))


def _allocate(draft: Draft, job: Job, placements: tuple[Placement, ...]) -> None:
    state = draft.state
    deadline = state.ts + state.tree.policy.start_timeout_seconds * 1000
    draft.add(
        Allocated(
            kind="allocated", job_id=job.job_id, attempt=job.attempt + 1, deadline=deadline, placements=placements
        )
    )


def allocation_bytes(job: Job, longest_name: int) -> int:
    """At most how large the record of its allocation is, when the pool's longest node name has that many letters."""
    return 128 + sum(
        role.replicas * (64 + len(role.name) + longest_name + 3 * max(1, role.need.gpus)) for role in job.roles
    )


def _too_large(size: int) -> Reason | None:
    if size <= ALLOCATION_BYTES_MAX:
        return None
    numbers = {"bytes": size, "bytes_max": ALLOCATION_BYTES_MAX}
    return Reason(code=Code.NO_FIT, field="roles", numbers=numbers, detail="one decision cannot name so many pods")


def _startable(state: State, pool: str) -> list[Job]:
    """The jobs of the pool's line that may still start: an order is made from an older state."""
    line, queues, now = state.lines.get(pool), state.tree.queues_of.get(pool, ()), state.ts
    named = dict.fromkeys(line.jobs if line else ())  # a job named twice starts once
    return [
        job
        for job in state.jobs.found(named)
        if job.phase is Phase.QUEUED and job.not_before <= now and job.queue in queues
    ]


def _over_quota(state: State, job: Job) -> Reason | None:
    over = state.tree.over_quota(job.queue, state.held_by_queue(job.queue), job.amount)
    if over is None:
        return None
    resource, use, nominal = over
    numbers = {"would_use": min(use, INT_MAX), "nominal_quota": nominal, "wanted": getattr(job.amount, resource)}
    return Reason(code=Code.WAITING_FOR_QUOTA, field=f"queues.{job.queue}.{resource}", numbers=numbers)


def end_overdue(draft: Draft) -> None:
    """What its deadline ends: runs that did not start in time, earmarks."""
    state = draft.state
    for deadline, run_id in list(state.index.start_by.irange(maximum=(state.ts, "~"))):
        if draft.full:
            return
        run = state.runs.get(run_id)
        if run is not None and not run.started and not run.stopping:
            numbers = {"seconds": (deadline - run.allocated_ts) // 1000}
            revoke(draft, run, Reason(code=Code.START_TIMEOUT, numbers=numbers), "deadline")
    for mark in sorted((m for m in state.earmarks.values() if m.deadline <= state.ts), key=lambda m: m.owner):
        draft.add(EarmarkEnded(kind="earmark_ended", owner=mark.owner, why="deadline"))


def say_stranded(draft: Draft) -> None:
    """Jobs whose queue is gone stand in no line, so that nothing else would tell them."""
    state = draft.state
    stranded = [
        job
        for job_id in state.index.orphaned
        if (job := state.jobs.get(job_id)) is not None
        and job.phase is Phase.QUEUED
        and state.tree.pool(job.queue) is None
        and (job.reason is None or job.reason.code is not Code.NO_SUCH_QUEUE)
    ]
    for job in sorted(stranded, key=lambda job: job.job_id):
        if draft.full:
            return
        draft.add(Waiting(kind="waiting", job_id=job.job_id, reason=_no_queue(job.queue)))


def revoke(draft: Draft, run: Run, reason: Reason, by: str, own: bool = False) -> None:
    """Stop a run; its job is tried again if its retry policy says so."""
    job = draft.state.jobs.get(run.job_id)
    again = job is not None and job.strikes + 1 < job.retry.max_attempts and (job.retry.on_failure or not own)
    then = "requeue" if again else "failed"
    draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=reason, then=then, by=by))


def backoff_ms(job: Job) -> int:
    """How long the job waits after its next strike: doubled each time, up to the job's own bound."""
    seconds = job.retry.backoff_seconds << min(job.strikes, 20)
    return min(seconds, max(job.retry.backoff_max_seconds, job.retry.backoff_seconds)) * 1000


def _active(draft: Draft, run_id: str) -> Run | None:
    """The run, if it has not ended and is not being stopped."""
    run = draft.state.runs.get(run_id)
    return None if run is None or run.stopping else run


def on_job_admitted(draft: Draft, index: int, fact: JobAdmitted) -> None:
    state = draft.state
    if known(state, fact.job_id):
        known_job = state.jobs.get(fact.job_id) or state.ended.get(fact.job_id)
        if known_job is not None and known_job.spec_hash != fact.spec.digest():
            _turn_away(draft, index, Reason(code=Code.IDEMPOTENCY_CONFLICT, field="key", detail=fact.key))
        return
    over = _over_limit(state, fact)
    if over is not None:
        _turn_away(draft, index, over)
        return
    draft.add(JobQueued(kind="job_queued", fact=index, job_id=fact.job_id))
    if state.tree.pool(fact.spec.queue) is None:
        draft.add(Waiting(kind="waiting", job_id=fact.job_id, reason=_no_queue(fact.spec.queue)))


def _no_queue(queue: str) -> Reason:
    return Reason(code=Code.NO_SUCH_QUEUE, field="queue", detail=queue)


def _over_limit(state: State, fact: JobAdmitted) -> Reason | None:
    """Limits that count: here and not in admission, whose replicas race."""
    use = state.tenant_use.get(fact.tenant) or Use(fact.tenant)
    for name in ("cpu_milli", "memory_bytes"):
        more = sum(role.replicas * getattr(role.resources, name) for role in fact.spec.roles)
        if getattr(use.amount, name) + more > COUNTABLE:
            return Reason(code=Code.LIMIT_EXCEEDED, field=name, detail="more than can be counted")
    tenant = state.tree.tenants.get(fact.tenant)
    if tenant is None:
        return None
    limits, jobs, gpu_milli = tenant.limits, use.jobs, use.amount.gpu_milli
    if limits.jobs is not None and jobs + 1 > limits.jobs:
        return Reason(code=Code.LIMIT_EXCEEDED, field="limits.jobs", numbers={"jobs": jobs, "limit": limits.jobs})
    wanted = fact.spec.gpu_milli()
    if limits.gpus is not None and wanted and gpu_milli + wanted > limits.gpus * 1000:
        numbers = {"gpu_milli": gpu_milli, "wanted_gpu_milli": wanted, "limit_gpu_milli": limits.gpus * 1000}
        return Reason(code=Code.LIMIT_EXCEEDED, field="limits.gpus", numbers=numbers)
    return None


def _turn_away(draft: Draft, index: int, *reasons: Reason) -> None:
    draft.add(JobTurnedAway(kind="job_turned_away", fact=index, reasons=reasons))


def on_job_refused(draft: Draft, index: int, fact: JobRefused) -> None:
    _turn_away(draft, index)


def on_cancel_requested(draft: Draft, index: int, fact: CancelRequested) -> None:
    """Another tenant's job is treated as one that does not exist."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or fact.tenant not in ("", job.tenant):
        return
    reason = Reason(code=Code.CANCELLED, detail=fact.why)
    if job.phase is Phase.QUEUED:
        if draft.state.earmarks.get(job.job_id) is not None:
            draft.add(EarmarkEnded(kind="earmark_ended", owner=job.job_id, why="owner_gone"))
        draft.add(Finished(kind="finished", job_id=job.job_id, phase="cancelled", reason=reason))
        return
    run = draft.state.runs.get(job.run_id)
    if run is not None and (not run.stopping or run.then == "requeue"):
        by = fact.tenant or "operator"
        draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=reason, then="cancelled", by=by))


def on_config_proposed(draft: Draft, index: int, fact: ConfigProposed) -> None:
    state = draft.state
    if fact.expected_version != state.config.version:
        if fact.body != state.config.body:  # else a repeat of what is in force already
            numbers = {"expected_version": fact.expected_version, "version": state.config.version}
            reason = Reason(code=Code.CONFIG_CONFLICT, numbers=numbers)
            draft.add(ConfigRefused(kind="config_refused", fact=index, reason=reason))
        return
    draft.add(ConfigSet(kind="config_set", fact=index, version=state.config.version + 1))


def on_node_seen(draft: Draft, index: int, fact: NodeSeen) -> None:
    if not is_as_seen(draft.state.nodes.get(fact.name), fact):
        draft.add(NodeChanged(kind="node_changed", fact=index))


def on_pods_made(draft: Draft, index: int, fact: PodsMade) -> None:
    """One permit per run, ever: it names the pods that may be bound."""
    run = _active(draft, fact.run_id)
    if run is not None and not run.uids and len(fact.uids) == len(run.placements):
        draft.add(Permitted(kind="permitted", run_id=run.run_id, uids=fact.uids))


def on_pods_bound(draft: Draft, index: int, fact: PodsBound) -> None:
    run = _active(draft, fact.run_id)
    if run is not None and run.uids and not run.bound:
        draft.add(Bound(kind="bound", run_id=run.run_id))


def on_bind_failed(draft: Draft, index: int, fact: BindFailed) -> None:
    run = _active(draft, fact.run_id)
    if run is not None and not run.started:
        revoke(draft, run, fact.reason, "binder")


def on_run_started(draft: Draft, index: int, fact: RunStarted) -> None:
    run = _active(draft, fact.run_id)
    if run is not None and run.uids and not run.started:
        draft.add(Started(kind="started", run_id=run.run_id))


def on_run_ended(draft: Draft, index: int, fact: RunEnded) -> None:
    """All pods succeeded: the job is done. One did not: the gang is over and what is left of it is stopped."""
    run = _active(draft, fact.run_id)
    if run is None or not run.uids:
        return
    if fact.reason is not None:
        revoke(draft, run, fact.reason, "binder", own=fact.own)
        return
    if not run.started:
        draft.add(Started(kind="started", run_id=run.run_id))
    draft.add(Finished(kind="finished", job_id=run.job_id, phase="succeeded", exit_code=0))


def on_run_absent(draft: Draft, index: int, fact: RunAbsent) -> None:
    """Only now is the capacity free, and only now may the job start again or end."""
    state = draft.state
    run = state.runs.get(fact.run_id)
    if run is None or not run.stopping:
        return
    draft.add(Released(kind="released", run_id=run.run_id))
    job = state.jobs.get(run.job_id)
    if job is None or run.revoked is None:
        return
    if run.then == "requeue":
        not_before = state.ts + backoff_ms(job)
        draft.add(Requeued(kind="requeued", job_id=job.job_id, not_before=not_before, reason=run.revoked))
        if state.tree.pool(job.queue) is None:
            draft.add(Waiting(kind="waiting", job_id=job.job_id, reason=_no_queue(job.queue)))
        return
    draft.add(
        Finished(
            kind="finished",
            job_id=job.job_id,
            phase="cancelled" if run.then == "cancelled" else "failed",
            reason=_final_reason(job, run),
            exit_code=run.revoked.numbers.get("exit_code"),
        )
    )


def _final_reason(job: Job, run: Run) -> Reason:
    """Why the job ended: the last run's reason, or that its attempts ran out with it."""
    last = run.revoked or Reason(code=Code.CANCELLED)
    if run.then == "failed" and job.retry.max_attempts > 1 and job.strikes + 1 >= job.retry.max_attempts:
        numbers = {"attempts": job.attempt} | last.numbers
        return Reason(code=Code.ATTEMPTS_EXHAUSTED, numbers=numbers, detail=f"last: {last.sentence()}"[:1024])
    # A cancel that came while the run was stopping for another reason leaves no detail of its own.
    return last if run.then == "failed" or last.code is Code.CANCELLED else Reason(code=Code.CANCELLED)


JUDGE: dict[type[Any], Callable[[Draft, int, Any], None]] = {
    JobAdmitted: on_job_admitted,
    JobRefused: on_job_refused,
    CancelRequested: on_cancel_requested,
    ConfigProposed: on_config_proposed,
    NodeSeen: on_node_seen,
    PodsMade: on_pods_made,
    PodsBound: on_pods_bound,
    BindFailed: on_bind_failed,
    RunStarted: on_run_started,
    RunEnded: on_run_ended,
    RunAbsent: on_run_absent,
}
