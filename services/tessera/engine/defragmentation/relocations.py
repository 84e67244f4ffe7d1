"""
Runs that move so that another job finds its room in one piece: which may, where to, and what it gains.

The proposer searches and the committer judges; both ask here. A move is an eviction with the next place found and
kept before: so it counts against the job's eviction budget, and neither a run that is too young nor one of a higher
class than the waiting job's moves. Unlike a preemption it takes nothing from anybody's quota: whichever queue of the
pool the run is of, its job starts again as soon as the old pods are gone.
"""

from collections.abc import Collection, Iterable

from tessera.domain.devices.amounts import Over
from tessera.domain.devices.networks import pools_drawn, reached
from tessera.domain.devices.resources import Node
from tessera.domain.entities import Job, Run
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang
from tessera.domain.work.phases import Phase
from tessera.engine.ahead.booked_nodes import shut_for
from tessera.engine.placement.capacity import nodes_for
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.preemption.candidates import eviction_cost, weight
from tessera.engine.preemption.rules import protected
from tessera.engine.queueing.scheduling_pass import SchedulingPass
from tessera.engine.scoring.policies import find_scoring_policy
from tessera_schemas.base import INT_MAX
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement

NO_ROOM = (Code.NO_FIT, Code.RESERVED)
"""What a job was told that waits for room and for nothing else."""

GPU_SECOND = 1_000_000
"""In thousandths of a GPU times milliseconds, in which gains and losses are counted."""


def may_move(state: State, owner: Job, run: Run) -> Reason | None:
    """Why `run` may not be moved for `owner`, naming the rule; None when it may."""
    tree, job = state.tree, state.jobs.get(run.job_id)
    if not tree.policy.defragment:
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="policy.defragment", detail="off")
    # A run that has not started may not have a pod yet, and one that stops is going anyway: neither has anything to
    # move.
    if job is None or job.job_id == owner.job_id or run.stopping or job.phase is not Phase.RUNNING:
        return Reason(code=Code.VICTIM_GONE, detail=run.run_id)
    # What its gang knows of other jobs' pods is from when it started.
    if run.gang.has_neighbours:
        return Reason(code=Code.PLAN_DOES_NOT_FIT, detail=f"{run.run_id} has terms about pods of other jobs, or labels")
    against = protected(state, job, run)
    if against is not None:
        return against
    # Equal classes may move for each other, which preemption forbids: whoever moves goes on at once and loses its place
    # to nobody.
    if tree.priority_of(job) > tree.priority_of(owner):
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="priority_class", detail=run.run_id)
    if state.tree.pool(job.queue) != state.tree.pool(owner.queue) or not could_start_again(state, job, run):
        return Reason(code=Code.PLAN_DOES_NOT_FIT, detail=f"{run.run_id} could not start again at once")
    return _against_asking(state, owner, run)


def _against_asking(state: State, owner: Job, run: Run) -> Reason | None:
    """The reason against moving a run that was asked: it stays for now, or is asked for another job."""
    # Without the policy what was said is void: an operator who asks nobody any more is asked for nothing by it.
    offer, policy = state.moves.get(run.run_id), state.tree.policy
    if offer is None or not policy.move_answer_seconds:
        return None
    if not offer.is_refused:
        # One question at a time: two answers for two jobs would be given for the same move.
        elsewhere = offer.owner != owner.job_id
        return Reason(code=Code.MOVE_OFFERED, detail=f"{run.run_id}, for another job") if elsewhere else None
    left = offer.answered_ts + policy.moves.veto_seconds * 1000 - state.ts
    numbers = {"not_asked_again_for_seconds": -(-left // 1000)}
    return Reason(code=Code.MOVE_VETOED, detail=run.run_id, numbers=numbers) if left > 0 else None


def could_start_again(state: State, job: Job, run: Run) -> bool:
    """
    Tells whether the run could start again with its quota, in its pool and on its flavor. Surplus pods would be lost,
    and so would the work of pods that have ended.
    """
    tree = state.tree
    return (
        not run.extra
        and not run.released_ranks
        and not job.held
        and job.adopted is None  # only its owner can make its pods again, in its own time
        and tree.takes(job)
        and tree.stopped(job.queue) is None
        and run.flavor in tree.flavors_for(job.queue, job.amount)
    )


def lacks_again(state: State, book: QuotaBook, run: Run) -> Over | None:
    """The quota that the job of `run`, which `book` does not count any more, would lack if it came back."""
    job = state.jobs.get(run.job_id)
    firm = job is None or not state.tree.revocable(job)
    return book.over(run.queue, run.flavor, run.amount, firm)


def gained(state: State, owner: Job) -> int:
    """
    Gain from starting the job now, in thousandths of a GPU · ms: its GPUs times the time that it would still wait.

    A reservation gives that time, told to the job or, where the policy keeps room, found by the same timeline: whether
    somebody stands behind the job changes nothing. Without one, the job is assumed to wait as long again as it has
    waited since room was first lacking: so relocations never lose more than waiting has lost before. Time on hold, in
    back-off, or waiting for quota counts for nothing.
    """
    # Only the wait for room is ended by moving others; quota, a hold or a back-off would go on.
    if owner.reason is None or owner.reason.code not in NO_ROOM:
        return 0
    ahead = owner.reason.numbers.get("from_ts", 0) - state.ts if owner.reason.code is Code.RESERVED else 0
    if owner.reason.code is Code.NO_FIT and state.tree.policy.backfill == "reserve":
        entered = SchedulingPass(state, state.tree.pool(owner.queue) or "").timeline().enter(owner)
        ahead = 0 if entered is None else entered[0].at - state.ts
    return weight(owner.amount) * max(0, ahead if ahead > 0 else state.ts - owner.told_ts)


def most_to_lose(state: State, owner: Job) -> int:
    """
    Upper bound of the loss of runs that are relocated for `owner`: beyond it the net gain is below the required
    minimum.
    """
    # More than nothing, even where the policy asks for nothing: moves without a gain could go on for ever.
    least = max(1, state.tree.policy.defragment_min_gain_gpu_seconds * GPU_SECOND)
    return gained(state, owner) - least


def net_gpu_seconds(state: State, owner: Job, runs: Iterable[Run]) -> int:
    """Net gain from relocating the runs, rounded down; negative for a loss."""
    return (gained(state, owner) - sum(eviction_cost(state, run) for run in runs)) // GPU_SECOND


def without_gain(state: State, owner: Job, runs: Iterable[Run]) -> Reason | None:
    """The reason against relocations that lose too much; None when they gain."""
    lost, most = sum(eviction_cost(state, run) for run in runs), most_to_lose(state, owner)
    return None if lost <= most else no_gain(state, owner, lost)


def no_gain(state: State, owner: Job, lost: int, at_least: bool = False) -> Reason:
    """`at_least`: what the cheapest single run loses, since nobody has searched which and how many must move."""
    name = "lost_gpu_seconds_at_least" if at_least else "lost_gpu_seconds"
    numbers = {
        "gained_gpu_seconds": min(gained(state, owner) // GPU_SECOND, INT_MAX),
        # Rounded up, as gains are rounded down: numbers for people must not show a gain where the exact ones refuse.
        name: min(-(-lost // GPU_SECOND), INT_MAX),
        "least_net_gpu_seconds": state.tree.policy.defragment_min_gain_gpu_seconds,
    }
    return Reason(code=Code.NO_NET_GAIN, numbers=numbers)


class NodesOfRuns:
    """The nodes on which runs may go on, as they are now, by queue's pool, flavor and what is to be avoided."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._known: dict[tuple[str, str, tuple[str, ...], frozenset[str]], tuple[dict[str, Node], FeasibleNodes]] = {}

    def of(self, run: Run, avoid: tuple[str, ...] = ()) -> tuple[dict[str, Node], FeasibleNodes]:
        """Nodes by name on which a run may go on without those of `avoid`, and how to look for its place among them."""
        shut = shut_for(self.state, self.state.jobs.get(run.job_id))
        key = self.state.tree.pool(run.queue) or "", run.flavor, avoid, shut
        found = self._known.get(key)
        if found is None:
            nodes = {node.name: node for node in nodes_for(self.state, *key[:3], shut=shut)}
            found = self._known[key] = nodes, FeasibleNodes(nodes, find_scoring_policy(self.state, key[0]))
        return found


class TargetCapacity:
    """
    Target capacity: free for runs that are relocated, one after the other, once the job has taken its part.

    Room of the relocated runs themselves, or of runs that are still stopping, is not counted: each target is earmarked
    before anything is evicted, and is available at once.
    """

    def __init__(self, bases: NodesOfRuns) -> None:
        self._bases = bases
        self._taken: dict[str, Node] = {}

    def take(self, gang: Gang, placements: Collection[Placement]) -> None:
        """Takes what the placements hold from what is free."""
        state = self._bases.state
        names = {placement.node for placement in placements}
        if pools := pools_drawn(placements):
            names |= {node.name for node in reached(state.nodes.values(), pools)}
        for node in state.nodes.found(names - self._taken.keys()):
            self._taken[node.name] = node
        gang.take(self._taken, placements)

    def nodes(self, run: Run, avoid: tuple[str, ...] = ()) -> tuple[dict[str, Node], FeasibleNodes]:
        """The nodes that the run may go on to, and which of them suit whom."""
        nodes, places = self._bases.of(run, avoid)
        # Of what was taken only the nodes of this run's pool and flavor: another flavor's node would else come in by
        # this door. What is drained, or kept for others, among them stays closed.
        taken = {name: node for name, node in self._taken.items() if name in nodes}
        return nodes | {n: node if nodes[n].ready else replace(node, ready=False) for n, node in taken.items()}, places
