"""
Runs that seem lost: what reclamation has seen of their nodes and devices, and whether that stops them.

Proof stops a run, up to the brake on mass stops (`domain.stops`). A cordon stops nothing: where the policy says so, a
run moves off a cordoned node once there is room for all of it elsewhere and the move loses less than it gains.
"""

from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.domain.work.stops import is_mass_stop, pool_of, pool_weight, recent_stops, weight
from tessera.engine.defragmentation.relocations import NodesOfRuns, TargetCapacity, could_start_again, lacks_again
from tessera.engine.placement.gangs import place_gang
from tessera.engine.queueing.allocation_size import longest_of, most_bytes
from tessera.engine.queueing.readiness import book_without
from tessera.scheduler.decide.draft import RECORD_BYTES, Draft, judges
from tessera.scheduler.decide.elastic import go_on_without
from tessera.scheduler.decide.runs import active_run, revoke
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import RunLost
from tessera_schemas.ledger import EarmarkSet, StopHeldBack
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import RunStalled, Stalled
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.run_ends import Word, end_of


@judges(RunLost)
def on_run_lost(draft: Draft, index: int, fact: RunLost) -> None:
    """The gang restarts elsewhere; a run whose gang lost nothing goes on, and so does one too many at once."""
    run = active_run(draft, fact.run_id)
    if run is None:
        return
    # From the harmless to the grave: surplus pods go without their gang, a cordon moves a run only where that gains,
    # and only a proof stops one for the loss.
    if fact.ranks:
        go_on_without(draft, run, fact.ranks, fact.reason, "reclamation")
    elif fact.reason.code is Code.NODE_DRAINED:
        _move_off(draft, run, fact)
    else:
        _stop(draft, run, fact)


def _stop(draft: Draft, run: Run, fact: RunLost) -> None:
    end = end_of(fact.reason.code)
    # What an operator told us to stop is no observation that could be wrong: the brake is for mass errors of our own
    # sight.
    observed = fact.nodes[0] if fact.nodes and end.word is Word.PROOF and not fact.told else ""
    if observed and _is_held_back(draft, run, fact, observed):
        return
    revoke(draft, run, fact.reason, "reclamation", failing=fact.nodes, observed=observed)


@judges(RunStalled)
def on_run_stalled(draft: Draft, index: int, fact: RunStalled) -> None:
    """
    Warn that a run makes no progress, or start it again, as its job says; a warning is taken back once it goes on.

    A run that is one too many at once is warned of, and reclamation says so again.
    """
    run, state = active_run(draft, fact.run_id), draft.state
    job = None if run is None else state.jobs.get(run.job_id)
    if run is None or not run.started or job is None or job.progress is None:
        return
    # Pods that come on again end the warning only: a run that was stopped for its stall is not active any more, and
    # starts anew as it was told.
    if fact.reason is None:
        if run.stalled is not None:
            draft.add(Stalled(kind="stalled", run_id=run.run_id))
        return
    hangs = fact.reason.code is Code.HUNG
    least = job.progress.straggler_seconds
    if hangs:
        # By the job's own word again: what reclamation measured shortens only the wait of who asked for it.
        unused = job.progress.unused_seconds
        is_unused = unused is not None and fact.reason.numbers.get("unused_seconds", 0) >= unused
        least = min(job.progress.hang_seconds, unused) if is_unused and unused else job.progress.hang_seconds
    then = job.progress.then if hangs else job.progress.straggler_then
    if fact.reason.numbers.get("seconds", 0) < least or not (hangs or job.progress.straggler_percent):
        return
    # Reports that cannot be written, as by a webhook that refuses them, look like a hang of every run at once: the same
    # brake stands before these stops as before those of nodes that seem lost.
    node = fact.nodes[0] if fact.nodes else run.places[0].node
    held_back = then != "warn" and is_mass_stop(state, run, node)
    if then != "warn" and not held_back:
        avoid = fact.nodes if then == "elsewhere" else ()
        revoke(draft, run, fact.reason, "reclamation", failing=avoid, observed=node)
    elif run.stalled is None or run.stalled.code is not fact.reason.code:
        draft.add(Stalled(kind="stalled", run_id=run.run_id, reason=fact.reason, nodes=fact.nodes, held_back=held_back))


def _is_held_back(draft: Draft, run: Run, fact: RunLost, node: str) -> bool:
    """Whether the run goes on because too many would be stopped at once; that is recorded once."""
    state = draft.state
    if not is_mass_stop(state, run, node):
        return False
    # Reclamation repeats itself each look: one record per run and node is news, the rest is noise in the ledger.
    if run.held_back is None or run.held_back.field != f"nodes.{node}":
        draft.add(StopHeldBack(kind="stop_held_back", run_id=run.run_id, reason=_too_many(state, run, fact, node)))
    return True


def _too_many(state: State, run: Run, fact: RunLost, node: str) -> Reason:
    policy, pool = state.tree.policy, pool_of(state, run.queue)
    recent = recent_stops(state, pool)
    numbers = {
        "stopped_gpu_milli": min(INT_MAX, sum(part for *_, part in recent)),
        "gpu_milli": weight(run),
        "held_gpu_milli": min(INT_MAX, pool_weight(state, pool)),
        "mass_stop_percent": policy.mass_stop_percent,
        "mass_stop_seconds": policy.mass_stop_seconds,
    }
    way = f"`tessera drain {node} --evict` stops what is there now"
    detail = f"{fact.reason.code}: {fact.reason.detail}; {way}"
    return Reason(code=Code.STOPS_HELD_BACK, field=f"nodes.{node}", numbers=numbers, detail=detail[:1024])


def _move_off(draft: Draft, run: Run, fact: RunLost) -> None:
    """
    The run moves off cordoned nodes to a place that is earmarked for it in the same message; else nothing happens.

    Reclamation says so again and again, so that it moves once there is room.
    """
    state, job = draft.state, draft.state.jobs.get(run.job_id)
    # The cheap refusals first; a placement is searched for only for a run that would be better off elsewhere.
    if job is None or not job.preemptible or job.in_minimum:
        return
    if not _gains(state, run) or not could_start_again(state, job, run):
        return
    node = next(place.node for place in run.gang_places if _is_cordoned(state, place))
    if _is_held_back(draft, run, fact, node):
        return
    # Revoke and earmark need room in one message. A revoke alone would stop the run for a place that the next message
    # may have given away.
    places = _elsewhere(state, job, run)
    if places is None or most_bytes(state, job, longest_of(places)) + 2 * RECORD_BYTES > draft.bytes_left:
        return
    revoke(draft, run, fact.reason, "reclamation", observed=node)
    draft.add(
        EarmarkSet(
            kind="earmark_set",
            owner=job.job_id,
            cause="cordon",
            deadline=state.ts + state.tree.policy.earmark_seconds * 1000,
            placements=places,
            flavor=run.flavor,
        )
    )


def _is_cordoned(state: State, place: Placement) -> bool:
    node = state.nodes.get(place.node)
    return node is not None and node.cordoned


def _gains(state: State, run: Run) -> bool:
    """
    Whether the policy lets it move, and what it has not saved is less than for how long its node has been cordoned.

    Both grow by the second: a run that never saves anything has to be younger than the cordon.
    """
    policy = state.tree.policy
    nodes = state.nodes.found(place.node for place in run.gang_places)
    since = [node.away_ts for node in nodes if node.cordoned and node.away_ts]
    if policy.cordoned != "restart" or not run.started or not since:
        return False
    cordoned_ms, unsaved_ms = state.ts - min(since), state.ts - max(run.started_ts, run.saved_ts)
    return cordoned_ms >= policy.cordoned_seconds * 1000 and unsaved_ms < cordoned_ms


def _elsewhere(state: State, job: Job, run: Run) -> tuple[Placement, ...] | None:
    """Places for the whole gang on what is free now, within its quota; None where there are none."""
    # Quota is asked as if the run were gone, or it would compete with itself for what it holds. Nodes are asked as they
    # are: the move must be possible before anything has left (ADR 0013).
    if lacks_again(state, book_without(state, [(run, run.places)]), run) is not None:
        return None
    found = place_gang(run.roles, *TargetCapacity(NodesOfRuns(state)).nodes(run, job.avoid))
    return None if isinstance(found, Reason) else found
