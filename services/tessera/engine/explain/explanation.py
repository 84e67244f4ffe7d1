"""
Why a job stands where it stands, recomputed from the fold with the functions that decide. Pure.

The ledger records a reason when its code changes; the numbers here are those of the state, so they are never stale.
The first reason is the one that the committer would give now; the others would keep the job waiting without it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tessera.domain.devices.datasets import nodes_with_data
from tessera.domain.devices.offers import Device
from tessera.domain.devices.resources import WHOLE_GPU
from tessera.domain.entities import RESTART, EndedJob, Job, RefusedWork, Run
from tessera.domain.folding.spending import spent_budgets
from tessera.domain.health.folding import find_suspects
from tessera.domain.queues import QuotaBook
from tessera.domain.quota.idle import idle_policy
from tessera.domain.quota.queue_settings import session_address
from tessera.domain.state import State
from tessera.domain.work.evidence import FitFailure, at_their_best
from tessera.domain.work.phases import Phase
from tessera.domain.work.starting import find_awaited
from tessera.domain.work.stops import is_stuck, stopped_ts, stops_by, tell_fence
from tessera.engine.explain.blockers import (
    NOBODY,
    Blockers,
    Viewer,
    find_capacity_blockers,
    find_quota_blockers,
    name_some,
    short_of,
)
from tessera.engine.explain.booked import describe_bookings
from tessera.engine.explain.held_devices import describe_held_devices
from tessera.engine.explain.kept_room import describe_kept_room, describe_spares
from tessera.engine.explain.lent_quota import (
    describe_beside_gpus,
    describe_kept_loan,
    describe_lending_hours,
    describe_lent_quota,
    describe_lower_classes,
)
from tessera.engine.explain.moves import describe_moves, describe_offer
from tessera.engine.explain.order_reasons import describe_jobs_before, describe_order
from tessera.engine.explain.passing import describe_passing
from tessera.engine.explain.stalls import describe_ladder, describe_progress
from tessera.engine.explain.suggestions import TriedChange, suggest_changes
from tessera.engine.explain.what_if import WhatIf
from tessera.engine.placement.gangs import place_gang
from tessera.engine.placement.inadmissible import unreachable
from tessera.engine.queueing.entry import over_limit_of_task
from tessera.engine.queueing.readiness import no_place_in_line, not_in_line, quota_reason
from tessera_schemas.cluster.devices import SHARE_ISOLATION
from tessera_schemas.cluster.labels import say_it_is_off
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.units import format_age, format_memory, format_milli, format_size
from tessera_schemas.work.budgets import day_text, month_end

FLAVORS_MAX = 4  # of which each is told why it does not do
DRAINED_MAX = 3
PASSED_OVER = frozenset({Code.BEHIND_RESERVATION, Code.WAITING_FOR_DATA})
"""Reasons of jobs that have room and quota: kept for somebody else, or far from their data sets."""
LACKING = frozenset({Code.NO_FIT, Code.WAITING_FOR_QUOTA})
REFUSED = "refused"
"""In the place of a phase, for users' work in Kubernetes that never became a job."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """
    `position` counts from 1 among the jobs in line for the pool; 0 when the job is not in line.

    `reason` is what keeps it now, `others` what would keep it besides. `sentences` are further sentences. `changes` are
    single changes after which it would start at once; `tried` is how many were tried, 0 when trying makes no sense.
    """

    job: Job | EndedJob | RefusedWork
    as_of: int
    reason: Reason | None = None
    position: int = 0
    in_line: int = 0
    pool: str = ""
    others: tuple[Reason, ...] = ()
    sentences: tuple[str, ...] = ()
    holders: Blockers = NOBODY
    changes: tuple[TriedChange, ...] = ()
    tried: int = 0

    def sentence(self) -> str:
        """The answer in one line."""
        why = f": {self.reason.sentence()}" if self.reason is not None else ""
        return f"{self.job.name} ({self.job.job_id}) {self.phase}{why}"

    @property
    def phase(self) -> str:
        """Phase of the job; `refused` for work that is none."""
        return REFUSED if isinstance(self.job, RefusedWork) else self.job.phase.value

    @property
    def notes(self) -> tuple[str, ...]:
        """The explanation as sentences, without the reason and the place in the queue order."""
        also = tuple(f"Also {reason.sentence()}" for reason in self.others)
        changes = tuple(f"It would start now with: {change.describe()}" for change in self.changes)
        return (*self.sentences, *also, *self.holders.describe(), *changes)


def explain(state: State, job_id: str, now_ms: int, viewer: str | None = None) -> Explanation | None:
    """
    Explanation of a job or of refused work; None when it was never taken in, or is forgotten.

    `viewer` is the tenant who asks, None an operator: a tenant sees no other tenant's job or run by name.
    """
    job = state.jobs.get(job_id)
    if job is None:
        ended, refused = state.ended.get(job_id), state.refused.get(job_id)
        if ended is None:
            return None if refused is None else _refused(state, refused)
        return Explanation(ended, state.n, ended.reason)
    if job.phase is not Phase.QUEUED:
        reason, *others = _keeping(state, job, max(state.ts, now_ms)) or [job.reason]
        rest = tuple(other for other in others if other is not None)
        return Explanation(job, state.n, reason, others=rest, sentences=tuple(_on_its_way(state, job)))
    return _queued(state, job, max(state.ts, now_ms), Viewer(state.tree, viewer))


def _refused(state: State, work: RefusedWork) -> Explanation:
    """Every reason, and how to get the work into a queue."""
    way_out = (
        f"{work.owner} is in no queue. Correct the object, or delete it and create it anew; it is then looked at again."
    )
    reason, *others = work.reasons
    return Explanation(work, state.n, reason, others=tuple(others), sentences=(way_out,))


def _queued(state: State, job: Job, now: int, viewer: Viewer) -> Explanation:
    pool, absent = state.tree.pool(job.queue), no_place_in_line(state.tree, job)
    if pool is None or absent is not None:  # the same: without its queue a job has no place
        return Explanation(job, state.n, absent)
    if job.array is not None:
        reason, *others = _against_array(state, job, now)
        return Explanation(job, state.n, reason, pool=pool, others=tuple(others))
    what_if = WhatIf(state, job, now)
    reason, *others = _against(what_if, job, pool)
    # Who fits and only waits for its turn is held up by nobody's run, and no change of its own would be the reason that
    # it starts.
    fits = reason.code in (Code.WAITING_FOR_TURN, *PASSED_OVER) and what_if.gate(job) is None
    return Explanation(
        job,
        state.n,
        reason,
        what_if.position,
        len(what_if.order),
        pool,
        tuple(others),
        tuple(_besides(what_if, job, pool, viewer, (reason, *others))),
        NOBODY if fits else _holders(what_if, job, pool, (reason, *others), viewer),
        () if fits else suggest_changes(what_if, job, viewer),
        what_if.tries,
    )


def _against_array(state: State, job: Job, now: int) -> list[Reason]:
    """All that keeps an array from queueing more tasks; at last how far it is."""
    found = [] if job.hold is None else [job.hold]
    stopped = state.tree.stopped(job.queue)
    if stopped is not None:
        found.append(Reason(code=Code.QUEUE_STOPPED, field=f"queues.{stopped}"))
    over = over_limit_of_task(state, job)
    # A full window keeps the array by itself: the limit would only be in its way once there is room in the window.
    if over is not None and job.array is not None and job.array.has_room:
        found.append(over)
    waits = not_in_line(job, now)
    return [*found, *([waits] if waits is not None else [])]


def _against(what_if: WhatIf, job: Job, pool: str) -> list[Reason]:
    """All that keeps the job, what the committer would say first."""
    # Gates first, as the committer asks them: no search is made for a job that would not be looked at.
    found = what_if.gates(job)
    if not found:
        verdict = what_if.verdict(job)
        if not isinstance(verdict, Reason):
            if job.reason is not None and job.reason.code in PASSED_OVER:
                return [job.reason]
            detail = "it fits and starts at its turn"
            return [Reason(code=Code.WAITING_FOR_TURN, numbers={"position": what_if.position}, detail=detail)]
        found = [verdict]
    # Equal in code and field is the same news, whatever the numbers: a pool of many flavors would else say one thing
    # many times.
    sentences = {(reason.code, reason.field) for reason in found}
    for reason in _resources(what_if, job, pool):
        if (reason.code, reason.field) not in sentences:
            sentences.add((reason.code, reason.field))
            found.append(reason)
    return found


def _resources(what_if: WhatIf, job: Job, pool: str) -> Iterator[Reason]:
    """Quota and room of each flavor, each as if the other were there."""
    tree = what_if.state.tree
    own = what_if.state.earmarks.get(job.job_id) is not None
    # A job with an earmark has its room. What other flavors lack is no reason of its wait.
    for flavor in () if own else tree.flavors_for(job.queue, job.amount)[:FLAVORS_MAX]:
        over = what_if.book.lacks(job, flavor)
        if over is not None:
            yield quota_reason(over)
        placed = place_gang(job.roles, *what_if.pool(pool, flavor))
        if isinstance(placed, Reason):
            yield placed


def _besides(what_if: WhatIf, job: Job, pool: str, viewer: Viewer, reasons: tuple[Reason, ...]) -> Iterator[str]:
    """Facts beside the reason that its numbers leave out."""
    state, tree = what_if.state, what_if.state.tree
    mark = what_if.mark
    if mark is not None:
        nodes = sorted({placement.node for placement in mark.placements})
        yield f"Room on {name_some(nodes)} is kept for it ({mark.cause}) for {_left(mark.deadline, state.ts)} more."
        yield from {f"A run is {describe_kept_loan(state, r)}." for r in state.runs.found(mark.victims) if r.called_in}
    yield from describe_kept_room(what_if, job, pool, viewer)
    yield from describe_moves(state, job, viewer)
    yield from describe_passing(what_if.before, job, what_if.state.ts, viewer)
    yield from describe_jobs_before(what_if, job, viewer)
    yield from describe_order(state, job)
    yield from _last_by_budgets(state, job)
    head, _ = what_if.behind(job)
    if head is not None:
        who = f"{head.name} ({head.job_id})" if viewer.may_see(head.tenant) else "of another tenant"
        yield f"The first job of queue {job.queue} is {who}; the queue lets no job pass it (strict_fifo)."
        if head.reason is not None:  # its numbers are for those who may see the job
            yield f"That job waits: {head.reason.sentence() if viewer.may_see(head.tenant) else head.reason.code}."
    codes = {reason.code for reason in reasons}
    if Code.WAITING_FOR_QUOTA in codes:
        yield from describe_lent_quota(state, what_if.book, job, viewer)
        yield from describe_lending_hours(state, job, viewer)
        # Asked of a book in which nobody holds anything: what is lacking there no end of a run will bring.
        empty = QuotaBook(state.tree_of_any_hour, {})
        if all(empty.lacks(job, flavor) for flavor in tree.flavors_for(job.queue, job.amount)):
            yield "It asks for more than the whole quota: it never starts until the quota is raised."
    if Code.NO_FIT in codes or Code.NO_NODES in codes:
        yield from _beside_others(state, pool, reasons)
        yield from describe_beside_gpus(state, what_if.book, job, viewer)
        yield from _hopeless(state, job, pool)
        yield from _being_cut(state, job)
        yield from _drained(state, pool)
        yield from describe_spares(what_if, job, pool)
    yield from describe_lower_classes(state, job, viewer) if codes & LACKING and mark is None else ()
    yield from _not_stopping(state, pool, codes)
    if any(role.more for role in job.roles) and job.amount:
        most = job.pods + sum(role.more for role in job.roles)
        yield f"It is elastic: it starts with {job.pods} pods and grows to {most} while nobody waits."
    yield from _deadline(state, job)
    yield from describe_bookings(state, job, pool, codes)
    if job.avoid:
        yield f"It goes to {name_some(job.avoid)} only when there is nothing else: it failed there before."
    yield from describe_ladder(state, job)
    yield from _data_places(state, job, pool)
    yield from _kept_for_restarts(state, pool, {reason.code for reason in reasons})
    if what_if.crowded:
        yield "Many jobs before it have just come and were not looked at yet; ask again in a moment."


def _last_by_budgets(state: State, job: Job) -> Iterator[str]:
    """Spent budgets for which the job goes behind all others."""
    for budget in spent_budgets(state, job.queue, job.tenant, job.project, ("last",)) if job.amount.gpu_milli else ():
        until = day_text(month_end(state.ts))
        yield f"Budget {budget.name} is spent: it goes behind all others until {until} UTC, or more is granted."


def _kept_for_restarts(state: State, pool: str, codes: set[Code]) -> Iterator[str]:
    """Places of gangs that restart, which are nobody's to take but a higher class's and an owner's of the quota."""
    marks = [m for m in state.earmarks.values() if m.cause == RESTART and _is_of(state, m.placements[0].node, pool)]
    if marks and codes & {Code.NO_FIT, Code.RESERVED, Code.WAITING_FOR_QUOTA}:
        nodes, until = sorted({p.node for m in marks for p in m.placements}), max(m.deadline for m in marks)
        yield f"Gangs that restart keep their places on {name_some(nodes)}, for {_left(until, state.ts)} at most."


def _hopeless(state: State, job: Job, pool: str) -> Iterator[str]:
    """Says so when the pool could not hold the job even if nothing ran there: as it is now, or at its best."""
    tree, nodes = state.tree, list(state.nodes.values())
    flavors = tree.flavors_for(job.queue, job.amount)
    now = unreachable(job.roles, [node for node in nodes if node.pool == pool], tree, job.queue, flavors)
    if now is None:
        return
    # Two questions of growing kindness: the nodes as they are and empty, then each as the best that it ever was. Only
    # who fails the second one waits for something that nobody has seen yet.
    best = [node for node in at_their_best(nodes, state.remembered_nodes.values()) if node.pool == pool]
    never = unreachable(job.roles, best, tree, job.queue, flavors)
    if never is not None:
        yield f"Even empty, the pool could not hold it: {never.sentence()}"
    else:
        found = Reason(code=Code.NO_SUITABLE_NODE_NOW, field=now.field, numbers=now.numbers, detail=now.detail)
        yield f"Even empty, the pool could not hold it now: {found.sentence()}"


def _beside_others(state: State, pool: str, reasons: tuple[Reason, ...]) -> Iterator[str]:
    """CPU and memory that pods of others hold, where nodes are short of them: no run of ours gives these back."""
    theirs = [node.others for node in state.nodes.values() if node.pool == pool and node.ready]
    said = "Pods that Tessera does not manage hold up to"
    cpu = [use.cpu_milli for use in theirs if use.cpu_milli]
    if cpu and any(FitFailure.CPU in reason.numbers for reason in reasons):
        yield f"{said} {format_milli(max(cpu))} CPU on {_each(len(cpu))}."
    memory = [use.memory_bytes for use in theirs if use.memory_bytes]
    if memory and any(FitFailure.MEMORY in reason.numbers for reason in reasons):
        yield f"{said} {format_memory(max(memory))} of memory on {_each(len(memory))}."
    if any(FitFailure.KEPT in reason.numbers for reason in reasons):
        part = "of each free GPU's part of its node's CPU, memory and places for pods"
        kept = f"{state.tree.policy.kept_beside_gpus_percent} % {part}"
        yield f"Jobs without GPUs leave {kept} to jobs with GPUs (policy.kept_beside_gpus_percent)."


def _being_cut(state: State, job: Job) -> Iterator[str]:
    """Nodes whose MIG geometry is being changed for the job."""
    for name, change in sorted(state.mig_changes.items()):
        if change.job_id == job.job_id and not change.ended_ts:
            yield f"Node {name} is being cut {'back ' if change.undo else ''}to {change.config} for it."


def _deadline(state: State, job: Job) -> Iterator[str]:
    if job.deadline_ts:
        left = format_age(max(0, job.latest_start_ts - state.ts))
        yield f"It is cancelled (`{Code.DEADLINE_MISSED}`) unless it starts within {left}, to end by its deadline."


def _drained(state: State, pool: str) -> Iterator[str]:
    named = [drain for _, drain in sorted(state.drains.items()) if _is_of(state, drain.node, pool)]
    for drain in named[:DRAINED_MAX]:
        who = "for its health" if drain.by else "by an operator"
        yield f"Node {drain.node} is drained {who}" + (f": {drain.why}" if drain.why else ".")
    if len(named) > DRAINED_MAX:
        yield f"Further nodes that are drained: {len(named) - DRAINED_MAX}."
    cordoned = sorted(n.name for n in state.nodes.values() if n.cordoned and n.pool == pool and not n.gone)
    if cordoned:
        yield f"Nothing new starts on {name_some(cordoned)}: cordoned (`kubectl uncordon` ends it)."
    suspects = sorted(name for name in find_suspects(state) if _is_of(state, name, pool))
    if suspects:
        yield f"Jobs failed on {name_some(suspects)}: for now only short preemptible jobs of one pod are tried there."


def _not_stopping(state: State, pool: str, codes: set[Code]) -> Iterator[str]:
    """Room and quota of runs that should have stopped by now, by node."""
    if codes.isdisjoint((Code.NO_FIT, Code.WAITING_FOR_QUOTA)):
        return
    stuck = [run for run in state.runs.values() if run.stopping and is_stuck(state, run)]
    nodes = {place.node for run in stuck for place in run.places if _is_of(state, place.node, pool)}
    if nodes:
        yield f"No plan counts on room on {name_some(sorted(nodes))}: runs there were told to stop and do not."


def _is_of(state: State, name: str, pool: str) -> bool:
    node = state.nodes.get(name)
    return node is not None and node.pool == pool and not node.gone


def _holders(what_if: WhatIf, job: Job, pool: str, reasons: tuple[Reason, ...], viewer: Viewer) -> Blockers:
    """Jobs that hold what the first reason that others could lift is about."""
    # Only the first reason that somebody else could lift: holders of several things at once would read as if each of
    # them were to blame.
    for reason in reasons:
        if reason.code is Code.WAITING_FOR_QUOTA:
            flavor = reason.field.partition(" of ")[2]
            return find_quota_blockers(what_if.state, job, short_of(job, reason), flavor, viewer)
        if reason.code is Code.NO_FIT:
            flavors = what_if.state.tree.flavors_for(job.queue, job.amount)[:FLAVORS_MAX]
            places = [what_if.pool(pool, flavor)[1] for flavor in flavors]
            return find_capacity_blockers(what_if.state, job, places, viewer, short_of(job, reason))
    return NOBODY


def _by_themselves(run: Run) -> Iterator[str]:
    """Pods that end before the others, and that come after them."""
    if run.released_ranks:
        yield f"{len(run.released_ranks)} of its pods ended before the others; what they held is free."
    if late := len(find_awaited(run)):
        yield f"The room of {late} of its pods is held: {'it comes' if late == 1 else 'they come'} once the others run."


def _shifting(run: Run) -> Iterator[str]:
    """Pods that move between its roles by its own request, and roles that have been given fewer."""
    if run.shift_ranks:
        roles = Counter(e.placement.role for e in run.extra if e.placement.rank in run.shift_ranks)
        gone = ", ".join(f"{count} of {name}" for name, count in sorted(roles.items()))
        come = ", ".join(f"{count} of {name}" for name, count in run.gains)
        then = f", and {come} start on what they held" if come else ""
        yield f"Its roles change by its own request: {gone} leave{then}."
    for name, size in run.sizes:
        yield f"Role {name} does not grow beyond {size} pods by itself, as its last request has it."


def _restarting(run: Run) -> Iterator[str]:
    """Copies of its groups that started again by themselves."""
    for copy in run.restarts:
        pods = f"{len(copy.ranks)} pods" if len(copy.ranks) > 1 else "1 pod"
        which = f"Copy {copy.copy} of its group {copy.group} ({pods})"
        now = "starts again, while the others go on" if copy.deadline else "started again by itself and runs"
        yield f"{which} {now}: {copy.count} restart{'s' if copy.count > 1 else ''} in a row."


def _resizing(run: Run) -> Iterator[str]:
    """A resize of its pods that is under way, and what they hold meanwhile."""
    if (resize := run.resize) is None:
        return
    to, held = ((each.cpu_milli, each.memory_bytes) for each in (resize.to, run.gang.need_of[resize.to.role]))
    wanted, holds = (format_size(cpu, memory) for cpu, memory in (to, held))
    how = "go back to" if resize.is_back else "are being resized in place to"
    yield f"Its pods of role {resize.to.role} {how} {wanted} each; until their nodes have taken it, each holds {holds}."


def _keeping(state: State, job: Job, now: int) -> list[Reason | None]:
    """Reasons that keep a job which has its devices where it is, before what it was told; nothing where none do."""
    run = state.runs.get(job.run_id)
    if run is None:
        return []
    if run.held_back is not None:
        return [run.held_back, job.reason]
    nodes = [node for node in state.nodes.found(sorted({place.node for place in run.places})) if node.silent]
    if not (run.stopping and nodes):
        return []
    since = min((node.away_ts for node in nodes if node.away_ts), default=0)
    pods = sum(place.node in {node.name for node in nodes} for place in run.places)
    numbers = {"nodes": len(nodes), "pods": pods} | ({"seconds": max(0, now - since) // 1000} if since else {})
    way = f"if it is off, say so: `{say_it_is_off(nodes[0].name)}`"
    if fenced := tell_fence(state, nodes[0].name):
        way += f"; the fencing webhook: {fenced}"
    field = f"nodes.{nodes[0].name}"
    return [Reason(code=Code.WAITING_FOR_NODE, field=field, numbers=numbers, detail=way[:1024]), job.reason]


def _drawn(state: State, run: Run) -> Iterator[Device]:
    """Devices of the run's claims as their drivers publish them, but those that it only looks after."""
    for place in run.places:
        offer = None if (node := state.nodes.get(place.node)) is None else node.offer
        places = () if offer is None else (offer.find(each.id, place.node) for each in place.drawn if not each.admin)
        yield from (offer.devices[at] for at in places if offer is not None and at is not None)


def _on_its_way(state: State, job: Job) -> Iterator[str]:
    run = state.runs.get(job.run_id)
    if run is None:
        return
    nodes = sorted({placement.node for placement in run.places})
    places = "1 place" if len(run.places) == 1 else f"{len(run.places)} places"
    yield f"Attempt {job.attempt} holds {places}{f' on {name_some(nodes)}' if nodes else ''}."
    yield from _domains(state, nodes)
    shared = [state.nodes.get(each.node) for each in run.places if each.mig is None and 0 < each.gpu_milli < WHOLE_GPU]
    profiles = sorted({node.device_profile for node in shared if node is not None})
    yield from (f"Isolation of its shares ({each}): {SHARE_ISOLATION.get(each, 'none')}." for each in profiles)
    drivers = {one.driver: one.isolation for one in _drawn(state, run) if one.is_shared_gpu}
    yield from (f"Isolation of its shares ({each}): {drivers[each]}." for each in sorted(drivers))
    if run.queue in state.tree.removed:
        yield f"Queue {run.queue} was removed: what it holds is borrowed, and goes back to owners of quota who wait."
    if loan := describe_kept_loan(state, run):
        yield f"It was to give back what is lent: {loan}."
    yield from _by_themselves(run)
    going = sum(1 for extra in run.extra if extra.leaving)
    if surplus := len(run.surplus) + going:
        less = f", {going} of which are being stopped" if going else ""
        yield f"{surplus} of its pods are beyond its gang{less}: they go when others need the room."
    yield from _shifting(run)
    yield from _restarting(run)
    yield from _resizing(run)
    if going and not run.stopping:
        yield from _stuck(state, run)
    if run.revoked is not None:
        yield f"It is being stopped, then {run.then}: {run.revoked.sentence()}"
        yield from _stuck(state, run)
    elif not run.started:
        yield f"All its pods have to run within {_left(run.deadline, state.ts)}, else it is tried again."
    yield from _idle(state, job, run)
    yield from describe_progress(job, run)
    yield from describe_offer(state, run)
    yield from _session(state, job, run)
    yield from _use(state, job, run)
    yield from _data(state, run)
    if job.held:
        by = " by an operator" if job.operator_hold else ""
        yield f"It is held{by}: it goes on, but would not start again."
    yield from describe_held_devices(state, job, run)


def _data_places(state: State, job: Job, pool: str) -> Iterator[str]:
    """Nodes of the pool that have a waiting job's data sets, and what reading each anew takes."""
    if not any(role.need.data for role in job.roles):
        return
    rate = state.tree.policy.data_caches.read_bytes_per_second
    nodes = [node for node in state.nodes.values() if node.pool == pool and not node.gone]
    for (name, size), there in nodes_with_data(nodes, (role.need for role in job.roles)).items():
        time = f", {format_age(size * 1000 // rate)} of reading" if rate else ""
        where = f"is on {name_some(there)}" if there else "is on no node"
        yield f"Its data set {name} ({format_memory(size)}{time}) {where}."


def _data(state: State, run: Run) -> Iterator[str]:
    """Data sets of the run's nodes when it was allocated, and what was to be read."""
    rate = state.tree.policy.data_caches.read_bytes_per_second
    if run.near_bytes:
        yield f"Its nodes had {format_memory(run.near_bytes)} of its data sets from earlier runs."
    if run.far_bytes:
        # Nodes read beside one another: of several the sum is more than the run waits.
        time = f", {format_age(run.far_bytes * 1000 // rate)} of reading in all" if rate else ""
        yield f"Its nodes had to read {format_memory(run.far_bytes)} of its data sets{time}."


def _domains(state: State, names: list[str]) -> Iterator[str]:
    """Number of domains of each level of the configuration that several nodes are in, the widest level first."""
    nodes = list(state.nodes.found(names)) if len(names) > 1 else []
    labels = {name: {node.label(label) for node in nodes} - {None} for name, label in state.tree.levels.items()}
    if told := ", ".join(f"{len(found)} of {name}" for name, found in labels.items() if found):
        yield f"Domains of its nodes: {told}."


def _stuck(state: State, run: Run) -> Iterator[str]:
    """A run, or the pods by which it shrinks, that should have stopped by now, and the way out."""
    if is_stuck(state, run):
        since, over = (format_age(state.ts - at) for at in (stopped_ts(state, run), stops_by(state, run)))
        what = "It was" if run.stopping else "They were"
        yield f"{what} told to stop {since} ago and should have been gone {over} ago: no plan counts on its room now."
        yield "What is held stays held until the node says that the pods have ended, or the node is fenced."
    for node in sorted({place.node for place in run.places}) if run.stopping else ():
        if fenced := tell_fence(state, node):
            yield f"The fencing webhook is to turn {node} off: {fenced}."


def _idle(state: State, job: Job, run: Run) -> Iterator[str]:
    """The run's idleness and its consequence, once it uses none of its GPUs, or if the job has a rule of its own."""
    policy = idle_policy(state.tree, run.queue, job)
    if policy.allowed:
        yield "It may hold GPUs and use none (idle.allow_idle)."
    elif run.idle_ts and policy.action != "off":
        since = f"It was warned {format_age(state.ts - run.idle_ts)} ago: it holds GPUs and uses none"
        after = format_age(max(0, run.idle_ts + policy.reclaim_seconds * 1000 - state.ts))
        ends = {"requeue": f"in {after} it goes back to its queue", "fail": f"in {after} it is ended as failed"}
        yield f"{since}; {ends.get(policy.action, 'nothing is taken from it')}."
    elif job.idle is not None and policy.action != "off":
        yield f"It is warned once all its GPUs were unused for {format_age(policy.warn_seconds * 1000)}."


def _session(state: State, job: Job, run: Run) -> Iterator[str]:
    """Address of a session behind an Ingress, and the warning of one that nobody uses."""
    if address := session_address(state.tree, job):
        yield f"A browser reaches it at {address}."
    if run.unused_until and job.session is not None:
        left, ends = format_age(max(0, run.unused_until - state.ts)), {"pause": "it is paused", "end": "it ends"}
        yield f"Nobody uses it, and it has warned: {ends[job.session.on_idle]} in about {left} unless a cell runs."


def _use(state: State, job: Job, run: Run) -> Iterator[str]:
    """Use of the run's GPUs and, with evidence, how to ask for less."""
    if run.gpu_use is not None:
        held = run.amount.gpu_milli * (state.ts - run.allocated_ts)
        yield f"{run.gpu_use.text(held)}."
        yield from run.gpu_use.advice(held, job.pods)


def _each(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"each of {nodes} nodes"


def _left(deadline: int, ts: int) -> str:
    return format_age(deadline - ts + 999)
