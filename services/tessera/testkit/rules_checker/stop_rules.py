"""
Rule of stops: what runs is stopped only by a word that says stop, and what was merely observed stops a part of a pool.

The table here is the checker's own: for each reason, the evidence that its message has to carry.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.config import Policy
from tessera_schemas.facts import AnyFact
from tessera_schemas.reasons import Code


class Stopped(NamedTuple):
    """A run that is to be stopped, as the checker's book has it."""

    job_id: str
    started: bool
    preemptible: bool
    nodes: frozenset[str]
    drained_queue: bool


Evidence = Callable[[m.LedgerMessage, m.Revoked, Stopped, Policy], bool]


def _facts_from(message: m.LedgerMessage, service: str) -> Iterator[AnyFact]:
    return (taken.fact for taken in message.facts if taken.service == service)


def _ended(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """The binder has seen its end, or that it cannot start, and said this very reason, or of one of several nodes."""
    for fact in _facts_from(message, "binder"):
        if isinstance(fact, f.RunEnded | f.BindFailed) and fact.run_id == r.run_id and fact.reason is not None:
            stall = {"code": Code.STARTS_STALL, "numbers": r.reason.numbers}
            told = fact.reason.code == Code.START_TIMEOUT and fact.reason.model_copy(update=stall) == r.reason
            if told or fact.reason == r.reason:
                return True
    return False


def _lost(message: m.LedgerMessage, r: m.Revoked) -> Iterator[f.RunLost]:
    for fact in _facts_from(message, "reclamation"):
        if isinstance(fact, f.RunLost) and (fact.run_id, fact.reason, fact.ranks) == (r.run_id, r.reason, ()):
            yield fact


def _proved(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """Reclamation has seen that a node of its own is lost, or that its own device is."""
    return any(run.nodes.intersection(fact.nodes) for fact in _lost(message, r))


def _gone(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """Reclamation has proof, or the cluster itself took the pods of a node away that is gone."""
    return _proved(message, r, run, policy) or _ended(message, r, run, policy)


def _overdue(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    return _ended(message, r, run, policy) or any(_lost(message, r))


def _unstarted(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """The run has ended by itself, or did not start in time for what its binder said."""
    return _ended(message, r, run, policy) or (not run.started and r.by == "deadline")


def _idle(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    facts = _facts_from(message, "reclamation")
    return any(isinstance(fact, f.RunIdle) and fact.run_id == r.run_id for fact in facts)


def _drained(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """An operator evicts a node of it; or one is cordoned, and room elsewhere is kept for it in the same message."""
    facts = [taken.fact for taken in message.facts]
    if any(isinstance(fact, f.DrainRequested) and fact.evict and fact.node in run.nodes for fact in facts):
        return True
    marks = [mark for mark in message.records if isinstance(mark, m.EarmarkSet) and mark.owner == run.job_id]
    elsewhere = any(mark.cause == "cordon" and r.observed not in _nodes(mark) for mark in marks)
    return policy.cordoned == "restart" and run.preemptible and elsewhere and _proved(message, r, run, policy)


def _nodes(mark: m.EarmarkSet) -> set[str]:
    return {place.node for place in mark.placements}


def _by_queue(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    return run.drained_queue


def _elsewhere(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """Judged by other rules: whoever asked for a cancel or a requeue, and plans, which are whole or not at all."""
    return True


WORDS: dict[Code, Evidence] = {
    Code.CANCELLED: _elsewhere,
    Code.REQUEUE_ASKED: _elsewhere,
    Code.PREEMPTED: _elsewhere,
    Code.RECLAIMED: _elsewhere,
    Code.DEFRAGMENTED: _elsewhere,
    Code.IDLE: _idle,
    Code.TIME_LIMIT: _overdue,
    Code.NODE_LOST: _gone,
    Code.NODE_SHRUNK: _proved,
    Code.NODE_DRAINED: _drained,
    Code.QUEUE_DRAINED: _by_queue,
}
"""Words that stop a run which works; for any other reason it has ended by itself, or never began."""
OBSERVED = (Code.NODE_LOST, Code.NODE_SHRUNK, Code.NODE_DRAINED)


def has_word(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """Whether the message carries what allows it to stop the run for that reason."""
    return WORDS.get(Code(r.reason.code), _unstarted)(message, r, run, policy)


def counts(message: m.LedgerMessage, r: m.Revoked) -> str:
    """The node whose seeming loss stops the run, without an operator's word; "" for any other word."""
    lost = list(_lost(message, r)) if r.reason.code in OBSERVED else []
    if not lost or any(fact.told for fact in lost):
        return ""
    return r.observed if r.reason.code is Code.NODE_DRAINED else lost[0].nodes[0]


class Brake:
    """Stops by observation within the policy's time, by pool: when, the node, the job and its weight."""

    def __init__(self) -> None:
        self._stops: dict[str, list[tuple[int, str, str, int]]] = {}

    def stop(self, pool: str, stop: tuple[int, str, str, int], held: Iterable[tuple[int, int]], policy: Policy) -> bool:
        """
        Count a stop; whether it was within what may be stopped at once.

        `held` is the number of runs and their GPUs in thousandths by queue of the pool.
        """
        ts, node, job_id, part = stop
        since = ts - policy.mass_stop_seconds * 1000
        others = [old for old in self._stops.get(pool, []) if old[0] > since and old[2] != job_id]
        self._stops[pool] = [*others, stop]
        alone = all(of == node for _, of, _, _ in others)
        stopped, total = part + sum(weight for *_, weight in others), sum(max(each) for each in held)
        return alone or stopped * 100 <= policy.mass_stop_percent * total

    def ended(self, job_id: str) -> None:
        """The job has ended: what was stopped of it counts no more."""
        for pool, stops in self._stops.items():
            self._stops[pool] = [stop for stop in stops if stop[2] != job_id]
