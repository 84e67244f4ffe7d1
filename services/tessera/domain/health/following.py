"""
Ends of runs as evidence for and against their nodes, taken from the records that tell them. Pure.

Only what a program or a kubelet did on a node counts: losses of nodes, drains and preemptions say nothing of how
programs fare there.
"""

from collections.abc import Sequence

from tessera.domain.entities import Job, Run
from tessera.domain.errors import Contradiction
from tessera.domain.health.node_tests import FAILED, PASSED, NodeTest, counts_against, outcome_of
from tessera.domain.health.reputation import Ended
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.domain.work.stops import pool_of
from tessera_schemas.cluster.devices import NAMES_NO_CARDS
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.run_ends import Whose, end_of

COUNTED = frozenset({Code.POD_FAILED, Code.POD_REFUSED_BY_NODE})
"""Ends of pods that speak against their nodes."""
DETAIL_MAX = 160  # characters of why a test failed, which the evidence of an ailment repeats


def note_failure(state: State, run: Run, reason: Reason, nodes: Sequence[str]) -> None:
    """Counts a failure against the nodes of the pods that failed, where it is one that counts."""
    if state.reckoning is not None and reason.code in COUNTED and nodes and not _is_test(state, run):
        state.reckoning.failed(state.reputations, state.failure_rates, _ended(state, run, nodes))


def note_lasted(state: State, run: Run) -> None:
    """Counts for all nodes of a run that it ended well, or that others ended it after it had held."""
    if state.reckoning is None or not run.started or _is_test(state, run):
        return
    if run.revoked is not None:
        steady_ms, code = state.tree.policy.steady_seconds * 1000, run.revoked.code
        if code in COUNTED or end_of(code).whose is Whose.NODE or run.stopped_ts - run.started_ts < steady_ms:
            return
    state.reckoning.lasted(state.reputations, state.failure_rates, _ended(state, run, run.nodes))


def begin_test(state: State, node: str, job_id: str) -> None:
    """Notes that a test job of the node was taken in; raises Contradiction while there is another."""
    before = state.node_tests.get(node)
    if before is not None and before.is_alive:
        raise Contradiction(f"record {state.n}: job {job_id} tests node {node}, which {before.job_id} does")
    passes, failures = (0, 0) if before is None else (before.passes, before.failures)
    state.node_tests.put(node, NodeTest(node, job_id, state.ts, passes=passes, failures=failures))


def end_test(state: State, job: Job, phase: Phase, reason: Reason | None) -> None:
    """Notes what a test job came to, and counts it for or against its node."""
    row = state.node_tests.get(job.tests)
    if row is None or row.job_id != job.job_id:
        return
    outcome = outcome_of(row, phase, reason)
    row = row.ended(outcome, state.ts, "" if reason is None else reason.sentence()[:DETAIL_MAX])
    state.node_tests.put(row.node, row)
    if state.reckoning is None:
        return
    if outcome == PASSED:
        state.reckoning.passed_test(state.reputations, row.node, state.ts)
    elif outcome == FAILED and counts_against(state.node_tests.values(), row.node):
        state.reckoning.failed_test(state.reputations, row.node, job.job_id, state.ts)


def _is_test(state: State, run: Run) -> bool:
    # What a test says of its node counts by itself, and it says nothing of how often programs fail.
    job = state.jobs.get(run.job_id)
    return job is not None and bool(job.tests)


def _ended(state: State, run: Run, nodes: Sequence[str]) -> Ended:
    job = state.jobs.get(run.job_id)
    known = state.nodes.found(dict.fromkeys(nodes))
    named = {node.name for node in known if node.device_profile not in NAMES_NO_CARDS}
    devices = {
        name: tuple(sorted({device for place in run.all_placements if place.node == name for device in place.devices}))
        for name in named
    }
    whose = run.job_id if job is None or not job.task_of else job.task_of
    there = tuple(node.name for node in known)
    return Ended(state.ts, pool_of(state, run.queue), f"{run.tenant}/{run.user}", whose, there, devices)
