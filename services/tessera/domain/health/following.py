"""
Ends of runs as evidence for and against their nodes, taken from the records that tell them. Pure.

Only what a program or a kubelet did on a node counts: losses of nodes, drains and preemptions say nothing of how
programs fare there.
"""

from collections.abc import Sequence

from tessera.domain.entities import Run
from tessera.domain.health.reputation import Ended
from tessera.domain.state import State
from tessera.domain.work.stops import pool_of
from tessera_schemas.cluster.devices import NAMES_NO_CARDS
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.run_ends import Whose, end_of

COUNTED = frozenset({Code.POD_FAILED, Code.POD_REFUSED_BY_NODE})
"""Ends of pods that speak against their nodes."""


def note_failure(state: State, run: Run, reason: Reason, nodes: Sequence[str]) -> None:
    """Counts a failure against the nodes of the pods that failed, where it is one that counts."""
    if state.reckoning is not None and reason.code in COUNTED and nodes:
        state.reckoning.failed(state.reputations, state.failure_rates, _ended(state, run, nodes))


def note_lasted(state: State, run: Run) -> None:
    """Counts for all nodes of a run that it ended well, or that others ended it after it had held."""
    if state.reckoning is None or not run.started:
        return
    if run.revoked is not None:
        steady_ms, code = state.tree.policy.steady_seconds * 1000, run.revoked.code
        if code in COUNTED or end_of(code).whose is Whose.NODE or run.stopped_ts - run.started_ts < steady_ms:
            return
    state.reckoning.lasted(state.reputations, state.failure_rates, _ended(state, run, run.nodes))


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
