"""
Consequences of an order before it is given: whom it stops, what work is lost, which promises the cluster cannot hold.

Tried on a fork of the state with the functions that decide; nothing of it is written. What comes of an order is what
happens with it and would not happen without it. Runs that are too young to be evicted now count: they are evicted a
moment later.
"""

from collections.abc import Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

from tessera.domain.devices.resources import WHOLE_GPU, Node
from tessera.domain.entities import Job, Run
from tessera.domain.folding.fold import apply_record
from tessera.domain.queues import QueueTree
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.phases import Phase
from tessera.domain.work.starting import start_timeout_ms
from tessera.engine.ahead.booked_nodes import BookedNodes
from tessera.engine.ahead.choosing import choose_booking
from tessera.engine.explain.blockers import Viewer, name_some
from tessera.engine.placement.capacity import standing
from tessera.engine.preemption.candidates import lost_ms
from tessera.engine.preemption.plans import Plan, plan
from tessera.engine.preemption.rules import EVICTED_AS
from tessera.engine.queueing.ordering import order_jobs
from tessera.engine.queueing.readiness import startable
from tessera.engine.queueing.reservations import Forecast
from tessera.engine.queueing.scheduling_pass import CapacityCache, SchedulingPass
from tessera.engine.queueing.updates import replicas_beyond, scale_fault
from tessera_schemas.cluster.device_claims import OF_CLASS
from tessera_schemas.commands import (
    ApplyConfig,
    CancelJob,
    DrainNode,
    RequeueJob,
    ReserveNodes,
    ScaleService,
    SetPriority,
)
from tessera_schemas.facts import ConfigProposed
from tessera_schemas.ledger import (
    Allocated,
    AnyRecord,
    ConfigSet,
    EarmarkEnded,
    EarmarkSet,
    JobMoved,
    Revoked,
    Shrunk,
    TakenFact,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.orders import HEADS_MAX
from tessera_schemas.text.units import format_memory, format_milli, format_moment

TriedOrder = ApplyConfig | SetPriority | DrainNode | ReserveNodes | CancelJob | RequeueJob | ScaleService

TRIES_MAX = 24
"""So many kinds of waiting jobs of a pool are planned for; what more would evict is not known."""
TOLD_MAX = 10
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class StoppedRun:
    """A run that is stopped, or with `pods` the pods of an elastic run that go; and the GPU time that is lost."""

    run_id: str
    job_id: str
    name: str
    tenant: str
    queue: str
    gpu_milli: int
    lost_gpu_ms: int
    code: Code
    pods: int = 0


@dataclass(frozen=True, slots=True)
class Promise:
    """Nominal quotas of a pool that are more together than its nodes, or those of the flavor, have."""

    pool: str
    flavor: str
    resource: str
    promised: int
    capacity: int
    queues: tuple[str, ...]

    def words(self) -> str:
        """The promise in one sentence."""
        what = _words_of(self.resource) + (f" of flavor {self.flavor}" if self.flavor else "")
        queues = ", ".join(self.queues[:4]) + (f" and {len(self.queues) - 4} more" if len(self.queues) > 4 else "")
        return (
            f"promises {_written(self.promised, self.resource)} {what} in pool {self.pool}, which has "
            f"{_written(self.capacity, self.resource)} "
            f"(queues {queues})"
        )


def _words_of(resource: str) -> str:
    if resource.startswith(OF_CLASS):
        return f"devices of class {resource.removeprefix(OF_CLASS)}"
    return {"gpu_milli": "GPUs", "cpu_milli": "CPUs", "memory_bytes": "of memory"}[resource]


def _written(amount: int, resource: str) -> str:
    if resource.startswith(OF_CLASS):
        return str(amount)
    return format_memory(amount) if resource == "memory_bytes" else format_milli(amount)


@dataclass(frozen=True, slots=True)
class Consequences:
    """
    `stopped` has what loses the most GPU time first. `notes` are sentences on what goes on. `more`: too many wait to
    try all of them, so that more may be stopped.
    """

    stopped: tuple[StoppedRun, ...] = ()
    promises: tuple[Promise, ...] = ()
    notes: tuple[str, ...] = ()
    more: bool = False

    @property
    def lost_gpu_ms(self) -> int:
        """GPU time that is lost in all, in milliseconds of one GPU."""
        return sum(each.lost_gpu_ms for each in self.stopped)

    def words(self, viewer: Viewer) -> list[str]:
        """All of it in sentences; names of tenants whose jobs `viewer` may not see are left out."""
        said = [promise.words() for promise in self.promises]
        if self.stopped:
            jobs, tenants = len({each.job_id for each in self.stopped}), len({each.tenant for each in self.stopped})
            gpus = format_milli(sum(each.gpu_milli for each in self.stopped))
            least = "at least " if self.more else ""
            said.append(
                f"stops pods of {least}{_count(jobs, 'job')} of {_count(tenants, 'tenant')} on {gpus} GPUs; "
                f"{_hours(self.lost_gpu_ms)} since they last saved or started are lost:"
            )
            said += [_line(each, viewer) for each in self.stopped[:TOLD_MAX]]
            if (rest := len(self.stopped) - TOLD_MAX) > 0:
                said.append(f"  and {rest} more")
        return [*said, *self.notes]


def consequences(state: State, order: TriedOrder, now_ms: int) -> Consequences:
    """Consequences of `order` if it is carried out at once."""
    # Everything happens on overlays: the live state is read by other requests meanwhile and must stay as it is.
    now = state.overlay()
    now.ts = max(state.ts, now_ms)
    match order:
        case ApplyConfig():
            return _try_config(now, order)
        case DrainNode():
            return _try_drain(now, order)
        case ReserveNodes():
            return _try_booking(now, order)
        case SetPriority():
            return _try_class(now, order)
        case ScaleService():
            return _try_scale(now, order)
        case CancelJob() | RequeueJob():
            code = Code.CANCELLED if isinstance(order, CancelJob) else Code.REQUEUE_ASKED
            runs = now.runs.found(job.run_id for job in _with_tasks(now, order.job_id))
            return Consequences(_sorted(_stop(now, run, code) for run in runs if not run.stopping))


def _try_config(now: State, order: ApplyConfig) -> Consequences:
    if order.body == now.config.body:
        return Consequences()
    then = now.overlay()
    proposed = ConfigProposed(kind="config_proposed", expected_version=now.config.version, body=order.body)
    record = ConfigSet(kind="config_set", fact=0, version=now.config.version + 1)
    apply_record(then, record, (TakenFact(seq=1, service="admission", fact=proposed),))
    # The committer moves jobs of renamed queues in the messages after; without that they would count as abandoned here.
    for job in list(then.jobs.values()):
        if then.tree.pool(job.queue) is None and (queue := then.tree.new_queues.get(job.queue)) is not None:
            apply_record(then, JobMoved(kind="job_moved", job_id=job.job_id, queue=queue), ())
    then.index = copy(now.index)  # the lines of the waiting are made anew, and the state's own must stay
    then.index.rebuild_waiting(then)
    # Only what the order itself stops: a queue that was stopped before is no consequence of it.
    closed = {name for name in then.tree.queues if then.tree.stopped(name)}
    closed -= {name for name in now.tree.queues if now.tree.stopped(name)}
    drained = then.tree.drained - now.tree.drained
    emptied = [run for run in then.runs.values() if run.queue in drained and not run.stopping]
    stopped = [_stop(now, run, Code.QUEUE_DRAINED) for run in emptied]
    # They stop first, so that nobody is said to be evicted for room that comes free anyway.
    for run in emptied:
        apply_record(then, _revoked(run.run_id, Code.QUEUE_DRAINED), ())
    evicted, more = _evicted_with(now, then)
    notes = _held(then, closed, drained) if closed else ()
    return Consequences(_sorted((*stopped, *evicted)), tuple(_broken(now, then)), tuple(notes), more)


def _held(then: State, closed: Collection[str], drained: Collection[str]) -> Iterator[str]:
    goes_on = [run for run in then.runs.values() if run.queue in closed and run.queue not in drained]
    waiting = sum(job.queue in closed and job.phase is Phase.QUEUED for job in then.jobs.values())
    queues = _count(len(closed), "queue")
    yield f"nothing of {queues} starts any more: {_count(waiting, 'job')} there wait until it is released"
    if goes_on:
        yield f"{_count(len(goes_on), 'run')} there go on to their end"


def _try_drain(now: State, order: DrainNode) -> Consequences:
    if order.undo:
        return Consequences()
    there = [run for run in now.runs.found(sorted(now.index.runs_on.get(order.node, ()))) if not run.stopping]
    marks = [mark for mark in now.earmarks.values() if any(p.node == order.node for p in mark.placements)]
    notes = [f"room kept on {order.node} for {_count(len(marks), 'job')} is given up"] if marks else []
    if order.evict:
        return Consequences(_sorted(_leaves(now, run, order.node) for run in there), notes=tuple(notes))
    if there:
        gpus = format_milli(sum(_on(run, order.node) for run in there))
        notes.insert(0, f"{_count(len(there), 'run')} on {order.node} ({gpus} GPUs) go on to their end")
    return Consequences(notes=tuple(notes))


def _try_booking(now: State, order: ReserveNodes) -> Consequences:
    """Runs that the windows would stop: those there that nothing ends in time."""
    made = choose_booking(now, order)
    if isinstance(made, Reason):
        return Consequences(notes=(made.sentence(),))
    then = now.overlay()
    apply_record(then, made, ())
    # Runs are those of now, windows those of then: only the new booking tells them apart.
    booked = BookedNodes(then, made.pool)
    kept = booked.nodes_of(then.bookings.found((made.name,))[0])
    leaves = {run.run_id: run for name in kept for run in now.runs_on(name) if not run.stopping}
    starts = [run for _, run in sorted(leaves.items()) if _outlasts(then, booked, run)]
    names = name_some(sorted(kept))
    note = f"keeps {names} of pool {made.pool} from {format_moment(made.windows[0].start_ts)} on"
    stopped = _sorted(_stop(now, run, Code.RESERVATION_BEGINS) for run in starts)
    return Consequences(stopped, notes=(note,))


def _outlasts(state: State, booked: BookedNodes, run: Run) -> bool:
    """Whether a run is not expected to have left by the window of its nodes."""
    # Expected without the booking: who ends by itself is stopped by nobody.
    end, by = Forecast(state).end(run), booked.leaves_by(run, run.nodes)
    return by is not None and (end is None or end > by[0])


def _leaves(state: State, run: Run, node: str) -> StoppedRun:
    """The run, or of an elastic one the pods that it grew by, when the node is emptied."""
    # A gang that loses one pod has lost all of them, wherever the others stand; surplus pods go one by one.
    if any(placement.node == node for placement in run.gang_places):
        return _stop(state, run, Code.NODE_DRAINED)
    ranks = sorted(run.surplus_with(extra.placement.rank for extra in run.surplus if extra.placement.node == node))
    return _stop(state, run, Code.NODE_DRAINED, ranks)


def _on(run: Run, node: str) -> int:
    return run.gang.amount_of([p for p in run.places if p.node == node]).gpu_milli


def _try_class(now: State, order: SetPriority) -> Consequences:
    job, then = now.jobs.get(order.job_id), now.overlay()
    if job is None or job.adopted is not None:
        return Consequences()
    then.index = copy(now.index)
    changed = [job, *(task for task in _with_tasks(now, job.job_id)[1:] if task.phase is Phase.QUEUED)]
    changed = [each for each in changed if each.priority_class != order.priority_class]
    for each in changed:
        new = replace(each, priority_class=order.priority_class)
        if each.phase is Phase.QUEUED:
            then.index = then.index.reordered(then, each, new)
        then.put_job(new)
    # What waits is planned for; what runs may be evicted for others from now on, or not any more.
    waiting = {each.job_id for each in changed if each.phase is Phase.QUEUED}
    if waiting:
        evicted, more = _evicted_with(now, then, waiting)
        return Consequences(_sorted(evicted), more=more)
    if then.tree.priority(order.priority_class) >= now.tree.priority_of(job):
        return Consequences()
    # A lower class protects the run from fewer jobs; what other runs lose has nothing to do with this order.
    evicted, _ = _evicted_with(now, then)
    return Consequences(_sorted(each for each in evicted if each.run_id == job.run_id))


def _try_scale(now: State, order: ScaleService) -> Consequences:
    service = now.jobs.get(order.job_id)
    if service is None or service.array is None or scale_fault(service, order.replicas) is not None:
        return Consequences()
    array, more = service.array, order.replicas - service.array.wanted
    if service.held:
        return Consequences(notes=("it is held: its replicas stay as they are until it is released",))
    if array.rollout is not None and array.rollout.goes_on:
        return Consequences(notes=("a rollout goes on: which replicas stop, and when, it decides",))
    if more > 0:
        room = "what is free, or what the usual plans take from preemptible work"
        return Consequences(notes=(f"brings {_count(more, 'more replica')} into line, for {room}",))
    leave = replicas_beyond(_with_tasks(now, service.job_id)[1:], order.replicas)
    runs = now.runs.found(replica.run_id for replica in leave)
    stopped = [_stop(now, run, Code.SCALED_DOWN) for run in runs if not run.stopping]
    waiting = sum(replica.phase is Phase.QUEUED for replica in leave)
    notes = (f"takes {_count(waiting, 'waiting replica')} out of line",) if waiting else ()
    return Consequences(_sorted(stopped), notes=notes)


def _evicted_with(now: State, then: State, jobs: Collection[str] | None = None) -> tuple[list[StoppedRun], bool]:
    """Runs that are evicted in `then` and not in `now` for jobs that wait, all or these; and whether some were left."""
    # Most orders evict nobody: then the line as it stands need not be planned for a second time.
    after, more = _evicted(then, now.ts, jobs)
    # The second search is made only where the first found somebody: most orders evict nobody, and cost one.
    if not after:
        return [], more
    before, _ = _evicted(now, now.ts, jobs)
    found = [(run_id, each) for run_id, each in after.items() if run_id not in before]
    return [
        _stop(now, run, code, ranks)
        for run_id, (code, ranks) in found
        if (run := now.runs.get(run_id)) is not None and not run.stopping
    ], more


def _evicted(
    base: State, ts: int, jobs: Collection[str] | None
) -> tuple[dict[str, tuple[Code, tuple[int, ...]]], bool]:
    """For each run that plans would evict or shrink the code and the pods; the line is gone through as it stands."""
    state, found, more = base.overlay(), dict[str, tuple[Code, tuple[int, ...]]](), False
    # As old as `min_runtime` asks: whom that alone protects now is evicted a moment later.
    later = ts + state.tree.policy.min_runtime_seconds * 1000
    for pool in sorted(state.tree.queues_of):
        refused, closed, tries, known = set[object](), set[str](), 0, CapacityCache()
        for job in state.jobs.found(list(islice(order_jobs(state, pool, ts), HEADS_MAX))):
            kind = job.queue, job.tenant, job.gang, state.tree.priority_of(job)
            if job.queue in closed or kind in refused or (jobs is not None and job.job_id not in jobs):
                continue
            if not startable(state, job) or state.earmarks.get(job.job_id) is not None:
                continue
            # A bound on kinds, not on jobs: equal jobs that are refused cost one try, and a long line is seen whole.
            if tries == TRIES_MAX:
                more = True
                break
            # A start and a plan are carried out here, since what one job gets the next cannot have.
            tries += 1
            made = _makes_room(state, job, pool, later, known)
            # A kind that found no plan finds none later in this pass either, since starts and plans only take room.
            if made is None:
                refused.add(kind)
                if state.tree.queues[job.queue].queueing_strategy == "strict_fifo":
                    closed.add(job.queue)
            elif isinstance(made, Plan):
                for victim in made.victims:
                    found.setdefault(victim.run_id, (EVICTED_AS[made.cause], victim.ranks))
    return found, more


def _makes_room(state: State, job: Job, pool: str, later: int, known: CapacityCache) -> Plan | bool | None:
    """Start the job where it fits, True, or carry out the plan for it; None where there is neither."""
    choice = SchedulingPass(state, pool, known).find(job)
    if not isinstance(choice, Reason):
        deadline = state.ts + start_timeout_ms(state, job)
        record = Allocated(
            kind="allocated",
            job_id=job.job_id,
            attempt=job.attempt + 1,
            deadline=deadline,
            placements=choice[1],
            flavor=choice[0],
        )
        apply_record(state, record, ())
        return True
    # Reclaim first, as the proposers do: a right to quota stands before a higher class, and names other victims.
    made = plan(state, job, later, "reclaim")
    if isinstance(made, Reason) or not made.takes_back:
        made = plan(state, job, later, "preemption")
    if isinstance(made, Reason):
        return None
    # Its victims are gone and its room is kept for the next ones of the line, which must not plan for the same GPUs.
    for carried_out in _records(state, made):
        apply_record(state, carried_out, ())
    return made


def _records(state: State, made: Plan) -> Iterator[AnyRecord]:
    for owner in made.outranked:
        yield EarmarkEnded(kind="earmark_ended", owner=owner, why="outranked")
    for victim in made.victims:
        if victim.ranks:
            reason = Reason(code=Code.SHRUNK)
            yield Shrunk(kind="shrunk", run_id=victim.run_id, ranks=victim.ranks, reason=reason)
        else:
            yield _revoked(victim.run_id, EVICTED_AS[made.cause])
    yield EarmarkSet(
        kind="earmark_set",
        owner=made.job_id,
        cause=made.cause,
        deadline=state.ts + state.tree.policy.earmark_seconds * 1000,
        placements=made.placements,
        flavor=made.flavor,
    )


def _revoked(run_id: str, code: Code) -> Revoked:
    return Revoked(kind="revoked", run_id=run_id, reason=Reason(code=code), then="requeue")


def _broken(now: State, then: State) -> Iterator[Promise]:
    """Promises that exceed the capacity, of those that are larger than they were; a pool without nodes has none."""
    before = _promised(now.tree)
    for (pool, flavor, resource), quotas in sorted(_promised(then.tree).items()):
        nodes = [node for node in then.nodes.values() if node.pool == pool and not node.gone]
        promised = sum(quotas.values())
        capacity = sum(_has(node, resource) for node in nodes if not flavor or then.tree.is_on(node, flavor))
        # What was promised in excess before is known to whoever runs the cluster, and would be said at every order.
        grew = promised > sum(before.get((pool, flavor, resource), {}).values())
        if nodes and grew and promised > capacity:
            queues = tuple(sorted(name for name, nominal in quotas.items() if nominal))
            yield Promise(pool, flavor, resource, promised, capacity, queues)


def _promised(tree: QueueTree) -> dict[tuple[str, str, str], dict[str, int]]:
    """Nominal quotas by pool, flavor and resource, and by queue; an inner queue's are beside those below it."""
    pools = {tree.roots[name]: pool for pool, names in tree.queues_of.items() for name in names}
    found = dict[tuple[str, str, str], dict[str, int]]()
    for name, quotas in tree.quotas.items():
        for (flavor, resource), quota in quotas.items():
            found.setdefault((pools[tree.roots[name]], flavor, resource), {})[name] = quota.nominal
    return found


def _has(node: Node, resource: str) -> int:
    if resource.startswith(OF_CLASS):
        found = None if node.offer is None else node.offer.selected(resource.removeprefix(OF_CLASS), ())
        return 0 if found is None else found.devices.bit_count()
    return {
        "gpu_milli": node.gpus * WHOLE_GPU,
        "cpu_milli": node.cpu_milli,
        "memory_bytes": node.memory_bytes,
    }[resource]


def _with_tasks(state: State, job_id: str) -> list[Job]:
    """The job, and of an array its live tasks."""
    return state.jobs.found([job_id, *sorted(state.relations.tasks.get(job_id, ()))])


def _stop(state: State, run: Run, code: Code, ranks: Collection[int] = ()) -> StoppedRun:
    """Surplus pods lose no work; a run that has not started has none."""
    job = state.jobs.get(run.job_id)
    # Pods that have ended already hold nothing, so that stopping the run costs nothing for them.
    places = [place for place in run.places if place.rank in ranks] if ranks else standing(run)
    gpu_milli = run.gang.amount_of(places).gpu_milli
    # Surplus pods join and leave without a restart, so that the gang goes on from where it is.
    lost = 0 if ranks or not run.started else gpu_milli * lost_ms(state, run) // WHOLE_GPU
    name = "" if job is None else job.name
    return StoppedRun(run.run_id, run.job_id, name, run.tenant, run.queue, gpu_milli, lost, code, len(ranks))


def _sorted(found: Iterable[StoppedRun]) -> tuple[StoppedRun, ...]:
    return tuple(sorted(found, key=lambda each: (-each.lost_gpu_ms, *attrgetter("tenant", "run_id")(each))))


def _line(each: StoppedRun, viewer: Viewer) -> str:
    who = f"{each.name} ({each.job_id}) of {each.tenant} in {each.queue}"
    who = who if viewer.may_see(each.tenant) else "a job of another tenant"
    what = f"{_count(each.pods, 'pod')} of {who}" if each.pods else who
    return f"  {what}: {format_milli(each.gpu_milli)} GPUs, {_hours(each.lost_gpu_ms)} lost ({each.code.value})"


def _hours(gpu_ms: int) -> str:
    """GPU time in hours of one GPU, such as `8.3 GPU-hours`."""
    return f"{format_milli(gpu_ms * 10 // HOUR_MS * 100)} GPU-hours"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
