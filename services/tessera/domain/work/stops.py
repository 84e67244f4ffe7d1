"""
The brake on mass stops: how much of a pool's work may be stopped because nodes or devices seem lost. Pure.

One wrong reading (an API server that forgets nodes, a network that is cut, a plugin that is rolled out) looks like the
loss of many nodes. So what is observed stops only a part of what a pool runs within a while; beyond that an operator
has to say so. The runs of one node always may be stopped: a machine that breaks is no mass stop, however small the
cluster. An owner's and an operator's words, time limits, and preemption are not counted.

Turning lost and sick nodes off has a brake of the same kind, counted in nodes. A sick one is turned off though it
answers: once nothing runs there that has not had the time to save its work and to stop.
"""

from collections.abc import Iterable

from tessera.domain.devices.resources import WHOLE_GPU, Node
from tessera.domain.entities import Job, PoolStops, Run
from tessera.domain.health.known import may_ask_again
from tessera.domain.state import NEVER, State
from tessera_schemas.cluster.fencing import FENCED_WITHIN_MS, Fencing
from tessera_schemas.cluster.health import HealthAction, KnownAilment
from tessera_schemas.shard.ledger_form import BOOKS_ANEW_FROM, FENCING_FROM
from tessera_schemas.work.run_ends import Word, end_of

Stop = tuple[int, str, str, int]
"""Time, node, job ("" for several that count as one), and weight."""
STOPS_MAX = 256
"""Stops that a pool remembers each by itself; of more the oldest count as one, as long as its latest."""


def weight(run: Run) -> int:
    """Part of its pool's work that a run is: its GPUs in thousandths; one that has none counts for one thousandth."""
    return max(1, run.amount.gpu_milli)


def pool_weight(state: State, pool: str) -> int:
    """All that runs of the pool's queues hold, by the same measure; at least what their GPUs come to."""
    names = [name for name in state.tree.queues if pool_of(state, name) == pool]
    uses = [use for name in names if (use := state.queue_use.get(name)) is not None]
    return sum(max(use.jobs, use.amount.gpu_milli) for use in uses)


def pool_of(state: State, queue: str) -> str:
    """The pool of what runs of the queue, also when it takes no jobs any more; "" where the queue is not known."""
    if state.format < BOOKS_ANEW_FROM:
        return state.tree.pool(queue) or ""
    known = state.tree.queues.get(queue)
    return "" if known is None else known.pool


def recent_stops(state: State, pool: str) -> tuple[Stop, ...]:
    """The stops that still count, oldest first: those of jobs that have ended since do not."""
    known = state.stops.get(pool)
    since = state.ts - state.tree.policy.mass_stop_seconds * 1000
    stops = () if known is None else known.stops
    return tuple(stop for stop in stops if stop[0] > since and (not stop[2] or state.jobs.get(stop[2]) is not None))


def _others(state: State, pool: str, run: Run) -> tuple[Stop, ...]:
    """Stops of other jobs: one that is stopped again and again is no more of a pool than it is."""
    return tuple(stop for stop in recent_stops(state, pool) if stop[2] != run.job_id)


def count_stop(state: State, run: Run, node: str) -> None:
    """Remembers that a run was stopped because this node seemed lost, as of now."""
    pool = pool_of(state, run.queue)
    stops = (*_others(state, pool, run), (state.ts, node, run.job_id, weight(run)))
    if len(stops) > STOPS_MAX:
        (_, first, _, some), (ts, second, _, more), *others = stops
        stops = ((ts, first if first == second else "", "", some + more), *others)
    state.stops.put(pool, PoolStops(pool, stops))


def is_mass_stop(state: State, run: Run, node: str) -> bool:
    """Whether stopping the run as well, for this node, would be more than may be stopped without an operator's word."""
    policy, pool = state.tree.policy, pool_of(state, run.queue)
    others = _others(state, pool, run)
    if all(of == node for _, of, _, _ in others):
        return False
    stopped = sum(part for *_, part in others) + weight(run)
    return stopped * 100 > policy.mass_stop_percent * pool_weight(state, pool)


def missing_gpus(node: Node, runs: Iterable[Run]) -> int:
    """
    GPUs that these runs hold on the node beyond those that it offers; none where it says nothing that counts.

    Whole GPUs are summed, since slots are interchangeable; of shared ones each that is used at all counts.
    """
    if node.gone or node.silent or node.trouble is not None:
        return 0
    places = [place for run in runs for place in run.places if place.node == node.name]
    whole = sum(len(place.devices) for place in places if place.gpu_milli == WHOLE_GPU)
    shared = {device for place in places if place.gpu_milli != WHOLE_GPU for device in place.devices}
    return max(0, whole + len(shared) - node.gpus)


def is_stuck(state: State, run: Run) -> bool:
    """Whether pods of the run that are to stop, or the whole run, should have been gone by now."""
    return state.ts >= stops_by(state, run)


def stops_by(state: State, run: Run) -> int:
    """
    Time until which a run, or the pods by which it shrinks, is expected to stop: notice, grace and some patience.

    Users' pods may be protected by a disruption budget as long as room is kept; of jobs from before format 4 the
    notice is not known, nor of a run whose job has ended.
    """
    job = state.jobs.get(run.job_id)
    is_guarded = job is not None and job.stop_seconds is not None and job.adopted is not None
    budget = state.tree.policy.earmark_seconds if is_guarded else 0
    return stopped_ts(state, run) + (seconds_to_stop(state, job) + budget) * 1000


def seconds_to_stop(state: State, job: Job | None) -> int:
    """Seconds that a run of the job takes to be gone after it was told to stop, if nobody protects its pods."""
    policy = state.tree.policy
    if job is None or job.stop_seconds is None:
        return policy.earmark_seconds
    return job.stop_seconds + policy.stop_patience_seconds


def stopped_ts(state: State, run: Run) -> int:
    """Time at which the run was revoked, ended by itself or was last resized; 0 when nobody remembers."""
    if not run.stopping:
        return run.resized_ts
    ended = state.ended.get(run.job_id)
    return run.stopped_ts or (0 if ended is None else ended.ended_ts)


def waiting_on(state: State, node: str) -> list[str]:
    """Stopped runs that still hold something on a node that does not answer, and so wait until it is back or fenced."""
    there = state.nodes.get(node)
    if there is None or not there.silent:
        return []
    return [run.run_id for run in state.runs.found(sorted(state.index.runs_on.get(node, ()))) if run.stopping]


def fencing_of(state: State) -> Fencing | None:
    """The webhook that turns lost nodes off, if one is configured and the ledger knows of it."""
    body = state.config.body if state.format >= FENCING_FROM else None
    return None if body is None else body.fencing


def against_fence(state: State, name: str, told: bool = False) -> str:
    """
    Why the node is not to be turned off now, in a sentence; "" where nothing is against it.

    An operator's word (`told`) asks again after a request that failed, for a node on which nothing waits, and beyond
    the brake; a node that answers is turned off by nobody's word.
    """
    fencing, node, fence = fencing_of(state), state.nodes.get(name), state.fences.get(name)
    if fencing is None:
        return "no webhook for it is configured (`fencing`)"
    if node is None or not node.silent:
        return "it answers" if node is not None and not node.gone else "it is not there"
    if fence is not None and not may_ask_again(fence):
        return "a request stands already"
    if told:
        return ""
    if fence is not None and not fence.back_ts:
        return f"the last request has {'failed' if fence.outcome == 'failed' else 'been taken back'}"
    if not waiting_on(state, name):
        return "no stopped run holds anything there"
    return _against_another(state, node, fencing)


def is_kept_out(state: State, node: str) -> bool:
    """Whether the node is drained for its health: not as an operator wants, nor held back."""
    drain = state.drains.get(node)
    return drain is not None and bool(drain.by) and state.health.get(node) is not None


def ailment_to_fence(state: State, node: str) -> KnownAilment | None:
    """The ailment for which a node is kept out that is to be turned off as well; None: none asks for it."""
    body, known = state.config.body, state.health.get(node)
    if body is None or body.health is None or known is None or not is_kept_out(state, node):
        return None
    is_asked = known.wanted(body.health) is HealthAction.FENCE
    return known.gravest(body.health) if is_asked else None


def against_fence_of_sick(state: State, name: str, now: int) -> str:
    """
    Why a sick node is not to be turned off now, in a sentence; "" where nothing is against it.

    Once until it was well, so that a fault that a restart does not end has no machine turned off again and again.
    """
    fencing, node, fence = fencing_of(state), state.nodes.get(name), state.fences.get(name)
    known = state.health.get(name)
    if fencing is None:
        return "no webhook for it is configured (`fencing`)"
    if node is None or node.gone or known is None or ailment_to_fence(state, name) is None:
        return "its health does not ask for it"
    if known.fenced:
        return "it was asked for already, and the node was not well since"
    if fence is not None and not (may_ask_again(fence) and fence.asked_ts <= now - FENCED_WITHIN_MS):
        return "the last request was within the hour, or stands"
    if now < (due := _gone_by(state, name, fencing)):
        return f"what runs there may need {(due - now + 999) // 1000} s more"
    return _against_another(state, node, fencing)


def brake_on_sick(state: State, name: str) -> str:
    """Why a sick node waits to be turned off for others that were; "" for a node for which nobody has to be asked."""
    fencing, node, known = fencing_of(state), state.nodes.get(name), state.health.get(name)
    if fencing is None or node is None or known is None or known.fenced or ailment_to_fence(state, name) is None:
        return ""
    return _against_another(state, node, fencing)


def _gone_by(state: State, name: str, fencing: Fencing) -> int:
    """Time by which all that runs on a drained node should be gone: it has saved its work, or cannot."""
    runs, drain = state.runs_on(name), state.drains.get(name)
    since = state.ts if drain is None else drain.since_ts
    return max([since + fencing.after_seconds * 1000, *(_leaves_by(state, run, name) for run in runs)])


def _leaves_by(state: State, run: Run, node: str) -> int:
    staying = [extra.placement.rank for extra in run.extra if extra.placement.node == node and not extra.leaving]
    goes_on = not run.stopping and (staying or any(place.node == node for place in run.gang_places))
    return NEVER if goes_on else stops_by(state, run)


def _against_another(state: State, node: Node, fencing: Fencing) -> str:
    """The brake: a wrong reading that is taken for the loss of many nodes turns few of them off."""
    pool, since = node.pool, state.ts - FENCED_WITHIN_MS
    others = [fence for name, fence in state.fences.items() if name != node.name]
    lately = sum(fence.pool == pool and fence.asked_ts > since for fence in others)
    nodes = sum(other.pool == pool and not other.gone for other in state.nodes.values())
    if lately < max(1, nodes * fencing.at_most_percent // 100):
        return ""
    return f"{lately} of {nodes} nodes of the pool were fenced within the hour (`fencing.at_most_percent`)"


def tell_fence(state: State, name: str) -> str:
    """Progress of turning a node off, in words; "" where nobody has to be told."""
    fencing, fence, known = fencing_of(state), state.fences.get(name), state.health.get(name)
    # A sick node that answered all the while is to be told of until it is well.
    is_failed = fence is not None and fence.outcome == "failed" and bool(fence.cause and ailment_to_fence(state, name))
    if fence is not None and (is_failed or not fence.back_ts) and fence.outcome != "undone":
        detail = f": {fence.detail}" if fence.detail else ""
        words = {"": "asked", "off": "off", "failed": "failed"}
        return f"{words[fence.outcome]}{detail}" if fence.outcome in words else ""
    if fencing is None:
        return ""
    waits = waiting_on(state, name)
    is_sick = known is not None and not known.fenced and ailment_to_fence(state, name) is not None
    if not waits and not is_sick:
        return ""
    if against := against_fence(state, name) if waits else brake_on_sick(state, name):
        return f"held back: {against}"
    return f"due {fencing.after_seconds} s after the loss" if waits else "due: its runs have their time to stop"


def may_end_instead(run: Run) -> bool:
    """
    Whether a revoked run's own end counts: an observed end wins over an intention.

    Not of a run that was revoked for its end. Nor of one that saved its work since it was told: its program may have
    left on purpose, to go on from there.
    """
    if run.revoked is None:
        return False
    end = end_of(run.revoked.code)
    return end.word is not Word.ENDED and not (end.notice and run.saved_ts > run.stopped_ts)
