"""
Nodes judged by the jobs that failed on them: what the fold has counted becomes an ailment, with its evidence.

A suspect takes only trials, preemptible jobs of one pod that end soon and find no room elsewhere: they tell whether
more fail there. Where several jobs speak against a node it is kept out as any sick one. Both pass with time and with
runs that end well; an operator's `undrain` ends what was counted. With `health.test` a suspect that stands idle gets a
test job, whose failure keeps it out, and whose success forgives half of what was counted.
"""

from collections import Counter
from collections.abc import Iterator
from operator import itemgetter

from tessera.domain.devices.resources import Node, RoleNeed
from tessera.domain.entities import Job
from tessera.domain.folding.steps import known
from tessera.domain.health.folding import find_suspects
from tessera.domain.health.reputation import NodeStanding, Reputation, common_devices, partition_by_test
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.defragmentation.node_tests import against_test, node_to_try, waiting_test
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.queueing.allocation_size import longest_of, most_bytes
from tessera.engine.queueing.readiness import awaits_room, is_in_line, named_in_line, not_in_line, startable
from tessera.engine.queueing.starting import Choice, choose
from tessera.engine.scoring.policies import find_scoring_policy
from tessera.scheduler.decide.draft import Draft, judges, record_waiting
from tessera.scheduler.decide.machines.health import note_word, policy_of
from tessera.scheduler.decide.machines.nodes import end_earmarks_on
from tessera.scheduler.decide.starts import allocate
from tessera_schemas.cluster.health import REPUTATION, Ailment, HealthCause
from tessera_schemas.facts import NodeTestProposed
from tessera_schemas.ledger import Finished, JobQueued, PlanRefused
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import PASSED_MAX, Passed, Placement

CAUSES = {NodeStanding.SUSPECT: HealthCause.SUSPECTED, NodeStanding.BAD: HealthCause.FAILURES}
LINE_MAX = 64
"""So many jobs of a pool's line are asked whether they are a trial for a suspect."""
ALIKE_MIN = 3
"""So many suspects of one domain point at what they share."""


def judge_nodes(draft: Draft) -> None:
    """Notes which nodes are suspect or bad now, and which are no more."""
    state = draft.state
    if not (len(state.reputations) or len(state.health)):
        return
    before = {
        known.node: next((each.ailment.cause for each in known.ailments if each.source == REPUTATION), None)
        for known in state.health.values()
    }
    # Also nodes of which nothing is counted any more: an ailment that was noted has to be taken back by name.
    now = dict(_standings(state))
    for name in sorted({name for name, cause in before.items() if cause} | now.keys()):
        cause = CAUSES.get(now.get(name, NodeStanding.GOOD))
        if before.get(name) is cause:
            continue
        row = state.reputations.get(name)
        said = () if cause is None or row is None else (_ailment(state, row, cause, now),)
        note_word(draft, name, REPUTATION, said)
        # Room that is kept on a suspect is kept where its owner will not start.
        if cause is HealthCause.SUSPECTED:
            end_earmarks_on(draft, name)


def _standings(state: State) -> Iterator[tuple[str, NodeStanding]]:
    """Nodes that are not thought good."""
    if state.reckoning is None or policy_of(state) is None:
        return
    for name, row in state.reputations.items():
        standing = state.reckoning.standing(row, state.ts)
        if standing is not NodeStanding.GOOD:
            yield name, standing


def _ailment(state: State, row: Reputation, cause: HealthCause, now: dict[str, NodeStanding]) -> Ailment:
    """
    The ailment of a node that is not thought good, with what was counted, and the card or the part of the network that
    it points at.
    """
    node, cards, test = state.nodes.get(row.node), common_devices(row), state.node_tests.get(row.node)
    jobs, tests = partition_by_test(row)
    hours = max(1, (state.ts - row.since_ts) // 3_600_000)
    why = f" ({test.detail})" if test is not None and test.detail else ""
    told = [f"test job {tests[-1].job} failed there{why}"] if tests else []
    told.append(f"{len(jobs)} jobs failed there within {hours} h, of {row.runs} runs that ended since")
    if cards:
        told.append(f"each on GPU {', '.join(map(str, cards))}")
    told += _shared(state, row.node, now)
    uuids = () if node is None else node.gpu_uuids
    device = uuids[cards[0]] if len(cards) == 1 and cards[0] < len(uuids) else ""
    return Ailment(cause=cause, device=device, evidence="; ".join(told)[:256])


def _shared(state: State, name: str, now: dict[str, NodeStanding]) -> Iterator[str]:
    """The narrowest domain of the configured levels in which several nodes are not thought good, as below a switch."""
    node, suspects = state.nodes.get(name), state.nodes.found(now)
    for level, label in reversed(state.tree.levels.items()) if node is not None else ():
        count = Counter(other.label(label) for other in suspects)
        at = node.label(label) if node is not None else ""
        if at and count[at] >= ALIKE_MIN:
            yield f"with it {count[at] - 1} more of {level} {at}"
            return


@judges(NodeTestProposed)
def on_node_test_proposed(draft: Draft, index: int, fact: NodeTestProposed) -> None:
    """Takes in a test job of a suspected node, if the node is still due and its GPUs are free."""
    state = draft.state
    if known(state, fact.job_id):
        return
    # Not turned away as a submit: its tenant asked for nothing, and would be told of a refusal.
    against = against_test(state, fact, state.ts, draft.new_arrays)
    if against is not None:
        draft.add(PlanRefused(kind="plan_refused", fact=index, job_id=fact.job_id, reason=against))
        return
    draft.add(JobQueued(kind="job_queued", fact=index, job_id=fact.job_id, number=draft.next_number))
    for waits in filter(None, (not_in_line(job, state.ts) for job in state.jobs.found((fact.job_id,)))):
        record_waiting(draft, fact.job_id, waits)


def end_tests(draft: Draft) -> None:
    """Cancels tests that wait for a node which is not suspected any more."""
    # One that runs goes on to its end, which still tells something of the node.
    state = draft.state
    waiting = [(row.node, job) for row in state.node_tests.values() for job in state.jobs.found((row.job_id,))]
    for name, job in sorted(waiting, key=itemgetter(0)):
        if job.phase is Phase.QUEUED and not draft.full and name not in find_suspects(state):
            reason = Reason(code=Code.NODE_NOT_SUSPECTED, field=f"nodes.{name}")
            draft.add(Finished(kind="finished", job_id=job.job_id, phase="cancelled", reason=reason))


def try_suspects(draft: Draft) -> None:
    """Starts on each suspect the first job in line that may be tried there, and lacks nothing but room; or its test."""
    state, policy = draft.state, policy_of(draft.state)
    if policy is None or policy.reputation is None:
        return
    for name in find_suspects(state):
        node = node_to_try(state, name)
        # A trial is work that somebody waits for, and says of the node what a test does.
        if node is not None and not _start_first(draft, node, _trials(state, node, policy.reputation.trial_seconds)):
            _start_first(draft, node, _tests(state, node))


def _start_first(draft: Draft, node: Node, jobs: Iterator[tuple[Job, list[Job]]]) -> bool:
    """Starts the first of these that finds room on the node, each with those before it; whether one did."""
    # One for each message and suspect: the next message sees what came of the room, and of the quota.
    state = draft.state
    for job, before in jobs:
        found = _place(state, job, node, before)
        if found is not None:
            if most_bytes(state, job, longest_of(found[1])) <= draft.bytes_left:
                passed = tuple(Passed(each.job_id, "beside") for each in before if awaits_room(state, each))
                allocate(draft, job, *found, passed[:PASSED_MAX])
            return True
    return False


def _tests(state: State, node: Node) -> Iterator[tuple[Job, list[Job]]]:
    """The node's test job, if it waits; all who stand in line keep the quota that they have of it."""
    job = waiting_test(state, node.name)
    if job is not None:
        yield job, [each for each in named_in_line(state, node.pool)[:LINE_MAX] if is_in_line(state, each)]


def _trials(state: State, node: Node, seconds: int) -> Iterator[tuple[Job, list[Job]]]:
    """Jobs in line that end soon and lack room, each with those before it."""
    named = named_in_line(state, node.pool)[:LINE_MAX] if seconds else ()
    line = [job for job in named if is_in_line(state, job)]
    for place, job in enumerate(line):
        # What lacks quota, a turn or a budget waits for that: to be tried on a suspect is no way around it. And of a
        # gang one bad node would break all pods, which is what a trial is to spare others.
        lacks_room = job.reason is not None and job.reason.code is Code.NO_FIT
        is_short = job.preemptible and job.pods == 1 and 0 < job.time_limit_seconds <= seconds
        if lacks_room and is_short and node.name not in job.avoid and startable(state, job):
            yield job, line[:place]


def _place(state: State, job: Job, node: Node, before: list[Job]) -> Choice | None:
    """Place at which the job starts; None where it finds no room, or takes quota that those before it wait with."""
    # The node alone is asked, as if it were the whole pool: a trial is for this node, or it tells nothing of it.
    tree, capacity = state.tree, FreeCapacity([node], scoring=find_scoring_policy(state, node.pool))

    def place(roles: tuple[RoleNeed, ...], flavor: str, avoid: tuple[str, ...]) -> tuple[Placement, ...] | Reason:
        there = not flavor or tree.is_on(node, flavor)
        return capacity.find(roles) if there else Reason(code=Code.NO_FIT)

    book = state.quota_book()
    found = choose(tree, book, job, place)
    if isinstance(found, Reason):
        return None
    # Room on a suspect is of no use to those before the job, and their quota is: what they have of it, they keep.
    book.start(job, found[0])
    has_quota = (
        any(book.lacks(other, flavor) is None for flavor in tree.flavors_for(other.queue, other.amount))
        for other in before
    )
    return found if all(has_quota) else None
