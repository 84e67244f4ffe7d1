"""
Places of jobs that restart: what a gang's last run held and is well stays earmarked until the next one, for a bounded
time; and jobs under whose last run a node broke may start on the spares of their pool.

Whoever is of a higher class, or is owed quota that the gang borrows, may take the room: the earmark ends then. A copy
of a group that starts again by itself stays in its run, and keeps its place with it.
"""

from collections.abc import Collection

from tessera.domain.devices.resources import Node, RoleNeed
from tessera.domain.entities import RESTART, Earmark, Job, Run
from tessera.domain.health.spares import find_spares, may_use_spares
from tessera.domain.queues import QueueTree, QuotaBook
from tessera.domain.state import State
from tessera.engine.ahead.booked_nodes import shut_for
from tessera.engine.placement.capacity import is_avoided, is_closed, nodes_without
from tessera.engine.placement.faults import placement_faults, pod_faults
from tessera.engine.placement.fits import fits
from tessera.engine.preemption.group_restarts import plan_group_restart
from tessera.engine.queueing.allocation_size import longest_of, most_bytes
from tessera.engine.queueing.readiness import awaits_room, is_reserved, named_in_line, startable
from tessera.engine.queueing.scheduling_pass import CapacityCache
from tessera.engine.queueing.starting import Choice, choose, refusal
from tessera.engine.queueing.timeline import BLOCKED
from tessera.scheduler.decide.draft import RECORD_BYTES, Draft, judges, record_waiting
from tessera.scheduler.decide.reservations import OwnerPass
from tessera.scheduler.decide.starts import allocate, choose_without, may_still_be_had, placing
from tessera_schemas.facts import RunEnded
from tessera_schemas.ledger import EarmarkEnded, EarmarkSet
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import RESTART_PLACES_FROM
from tessera_schemas.shard.records import GroupPermitted, GroupPodsMade, GroupRestarted, GroupResumed, GroupStarted
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.run_ends import PauseRule, RunEnd

DISPLACED_MAX = 16
"""So many jobs are tried on spares in one message."""
CLAIMS_MAX = 16
"""So many kinds of jobs of a line are asked whether they take a gang's room, of those that may."""


def keep_place(draft: Draft, run: Run, end: RunEnd, pause: int, tries: int) -> None:
    """
    Earmark what the run, released just now, held and is well; `tries` are failures and troubles in a row before it.

    Nothing is kept through a pause (milliseconds) that outlasts the earmark: its room would stand idle for nobody.
    """
    state, policy = draft.state, draft.state.tree.policy
    job, kept_ms = state.jobs.get(run.job_id), policy.restart_place_seconds * 1000
    if state.format < RESTART_PLACES_FROM or job is None or not _restarts(state, job) or pause >= kept_ms:
        return
    # What nodes and surroundings did is no sign that the next attempt fails as well; a program that fails each time, or
    # starts that are refused each time, would keep GPUs idle for nothing.
    counts = end.pause in (PauseRule.OWN, PauseRule.SHORT)
    if not end.keeps_place or (counts and tries >= policy.restart_place_failures):
        return
    places = _well(state, job, run)
    # One pod is placed anew as easily as any other; it is a gang that never finds its room again among small jobs.
    if job.pods < 2 or not places or state.quota_book().lacks(job, run.flavor) is not None:
        return
    _keep(draft, job.job_id, state.ts + kept_ms, places, run.flavor)


def keep_rest(draft: Draft, mark: Earmark, lost: Collection[Placement]) -> None:
    """Keep what is well of a gang's place that has just lost some of it, until the time that was set at first."""
    rest = tuple(place for place in mark.placements if place not in lost)
    if mark.cause == RESTART and rest:
        _keep(draft, mark.owner, mark.deadline, rest, mark.flavor)


def _keep(draft: Draft, owner: str, deadline: int, places: tuple[Placement, ...], flavor: str) -> None:
    mark = EarmarkSet(
        kind="earmark_set", owner=owner, cause=RESTART, deadline=deadline, placements=places, flavor=flavor
    )
    stored = mark.to_bytes()
    if len(stored) + RECORD_BYTES <= draft.bytes_left:
        draft.add(mark, stored)


def _restarts(state: State, job: Job) -> bool:
    """Whether only time, or its owner's new pods, keep the job from its next run."""
    open_ = state.tree.takes(job) and state.tree.stopped(job.queue) is None
    return open_ and not job.held and state.earmarks.get(job.job_id) is None


def _well(state: State, job: Job, run: Run) -> tuple[Placement, ...]:
    """The places of the run's gang whose nodes and devices would take its pods again."""
    tree, found, pool = state.tree, list[Placement](), state.tree.pool(job.queue)
    nodes = {node.name: node for node in state.nodes.found({place.node for place in run.gang_places})}
    if run.flavor not in tree.flavors_for(job.queue, job.amount):
        return ()
    shut = shut_for(state, job)
    for place in run.gang_places:
        node = nodes.get(place.node)
        if node is None or node.pool != pool or node.name in shut or is_closed(state, node.name):
            continue
        if not tree.is_on(node, run.flavor):
            continue
        trial = {node.name: node}
        if not _has_sick_card(place, node) and not any(pod_faults(job.roles, (place,), trial)):
            nodes |= trial
            found.append(place)
    return tuple(found)


def _has_sick_card(place: Placement, node: Node) -> bool:
    """Whether a card of the place is known to be sick: a restart there takes another one, or goes elsewhere."""
    return not set(place.devices).isdisjoint(node.sick_slots)


def restart_gangs(draft: Draft, known: CapacityCache) -> None:
    """Start each gang whose place is kept, once it may start and what is missing is there; else say what is missing."""
    state = draft.state
    for mark in sorted((m for m in state.earmarks.values() if m.cause == RESTART), key=lambda m: m.owner):
        if (job := state.jobs.get(mark.owner)) is None or draft.full:
            continue
        # Nobody's order is asked before the gang's own: a claim is judged while the room is kept, or never.
        why = "outranked" if _is_claimed(state, job, mark, known) else ""
        if not state.tree.takes(job) or state.tree.stopped(job.queue) is not None:
            why = "owner_gone"
        if why := why or ("" if may_still_be_had(state, job, mark) else "node_lost"):
            draft.add(EarmarkEnded(kind="earmark_ended", owner=mark.owner, why=why))
            continue
        # In its back-off: the room waits for it, as its owner would.
        if not startable(state, job):
            continue
        verdict = _place(state, job, mark, known)
        if isinstance(verdict, Reason):
            # What it was told of room that is kept for it stands until the line is asked again.
            if not (is_reserved(job) and verdict.code in BLOCKED):
                record_waiting(draft, job.job_id, verdict)
        elif most_bytes(state, job, longest_of(verdict[1])) <= draft.bytes_left:
            draft.add(EarmarkEnded(kind="earmark_ended", owner=mark.owner, why="used"))
            allocate(draft, job, *verdict)


def start_on_spares(draft: Draft, known: CapacityCache) -> None:
    """
    Start jobs under whose last run a node broke, where spares give them the room: they need not wait, nor preempt.

    They stand before all lines: until just now they had as much room. Quota binds them as it does all others. What
    they lack even with spares they wait for in line, as anybody does.
    """
    state = draft.state
    jobs = [job for job in state.displaced_jobs() if may_use_spares(state, job)] if state.tree.spares else []
    passes, priority = dict[str, OwnerPass](), state.tree.priority_of
    for job in sorted(jobs, key=lambda job: (-priority(job), job.submitted_ts, job.job_id))[:DISPLACED_MAX]:
        pool = state.tree.pool(job.queue) or ""
        if draft.full or not awaits_room(state, job) or not find_spares(state, pool):
            continue
        # No way around the owners of quota: who borrows what one of them waits for would be stopped for it at once.
        # They are asked for anew after each start, which takes of the same quota.
        places = passes.get(pool)
        if places is None:
            places = passes[pool] = OwnerPass(state, pool, known)
            places.begin(named_in_line(state, pool))
        verdict = _place_displaced(state, job, places, known)
        if not isinstance(verdict, Reason) and most_bytes(state, job, longest_of(verdict[1])) <= draft.bytes_left:
            allocate(draft, job, *verdict)
            passes.clear()


def _place_displaced(state: State, job: Job, places: OwnerPass, known: CapacityCache) -> Choice | Reason:
    pool, book, place = state.tree.pool(job.queue) or "", state.quota_book(), placing(state, job, (), known)

    def lacks(roles: tuple[RoleNeed, ...], flavor: str) -> Code | None:
        return known.renewed(state, pool, flavor, with_spares=True).refusal(roles)

    # A gang that waits for long is refused by counts, in each message, and searched for only when a node has changed.
    code = refusal(state.tree, book, job, lacks)
    if code is not None:
        return Reason(code=code)
    return choose(
        state.tree,
        book,
        job,
        lambda roles, flavor, avoid: places.closed_by_owner(job, flavor) or place(roles, flavor, avoid),
    )


def _place(state: State, job: Job, mark: Earmark, known: CapacityCache) -> Choice | Reason:
    """Choose where the gang starts: its kept places, unless a node of them failed it or some are missing."""
    nodes = nodes_without(state, mark)
    # Where room is kept for another job of the pool, the gang keeps to its own.
    before = named_in_line(state, state.tree.pool(job.queue) or "")
    alone = not any(is_reserved(other) for other in before if other is not job)
    there = [(each, nodes[each.node]) for each in mark.placements if each.node in nodes]
    failed = alone and any(is_avoided(node, job.avoid) or _has_sick_card(each, node) for each, node in there)
    whole = not any(placement_faults(job.roles, mark.placements, nodes))
    if whole and not failed and state.quota_book(besides=job.job_id).lacks(job, mark.flavor) is None:
        return mark.flavor, mark.placements
    return choose_without(state, job, (mark,), known)


def _is_claimed(state: State, job: Job, mark: Earmark, known: CapacityCache) -> bool:
    """Whether somebody in line who may take the room would start in it, and not without it."""
    asked, book = set[tuple[object, ...]](), state.quota_book(besides=job.job_id)
    kept = nodes_without(state, mark).values()
    for other in named_in_line(state, state.tree.pool(job.queue) or ""):
        kind = other.queue, other.gang, state.tree.priority_of(other), other.avoid
        if kind in asked or not awaits_room(state, other) or not _may_take(state.tree, book, job, mark, other):
            continue
        # Whom none of its nodes suits is not asked, and takes nobody's place among those who are.
        if all(fits(role.need, node) is not None for role in other.roles for node in kept):
            continue
        asked.add(kind)
        with_it = choose_without(state, other, (mark,), known)
        if not isinstance(with_it, Reason) and isinstance(choose_without(state, other, (), known), Reason):
            return True
        if len(asked) >= CLAIMS_MAX:
            break
    return False


def _may_take(tree: QueueTree, book: QuotaBook, job: Job, mark: Earmark, other: Job) -> bool:
    """A higher class, or a queue of the same tree within its own quota while the gang's queue borrows."""
    if tree.priority_of(other) > tree.priority_of(job):
        return True
    if other.queue == job.queue or tree.roots[other.queue] != tree.roots[job.queue]:
        return False
    if tree.queues[other.queue].reclaim != "any" or not book.borrows(job.queue, mark.flavor, job.amount):
        return False
    return bool(book.keepers(other.queue, mark.flavor, other.amount))


def restart_group(draft: Draft, run: Run, fact: RunEnded) -> bool:
    """Start the copy of a group again of which this pod failed, if it may; whether it does."""
    state = draft.state
    job = state.jobs.get(run.job_id)
    if job is None or fact.reason is None:
        return False
    found = plan_group_restart(state, job, run, fact.rank, fact.reason.code)
    if found is None:
        return False
    draft.add(
        GroupRestarted(
            kind="group_restarted",
            run_id=run.run_id,
            group=found.group,
            copy_number=found.copy,
            ranks=found.ranks,
            reason=fact.reason,
            restart=found.number,
            count=found.count,
            not_before=found.not_before,
            deadline=found.deadline,
        )
    )
    return True


@judges(GroupPodsMade)
def on_group_pods_made(draft: Draft, index: int, fact: GroupPodsMade) -> None:
    """Permit the next pods of a copy that starts again, once: with the names of the former pods, which are gone."""
    run = draft.state.runs.get(fact.run_id)
    copies = () if run is None or run.stopping else run.restarts
    # By its number: what was made for an earlier restart may be told late, and is no pod of this one.
    for copy in copies:
        is_new = run is not None and set(fact.uids).isdisjoint(run.permitted)
        whole = len(set(fact.uids)) == len(fact.uids) == len(copy.ranks)
        if copy.number == fact.restart and copy.is_out and is_new and whole:
            draft.add(GroupPermitted(kind="group_permitted", run_id=fact.run_id, restart=fact.restart, uids=fact.uids))


@judges(GroupStarted)
def on_group_started(draft: Draft, index: int, fact: GroupStarted) -> None:
    """A copy that started again runs, once."""
    run = draft.state.runs.get(fact.run_id)
    copies = () if run is None or run.stopping else run.restarts
    if any(copy.number == fact.restart and copy.permitted and copy.deadline for copy in copies):
        draft.add(GroupResumed(kind="group_resumed", run_id=fact.run_id, restart=fact.restart))
