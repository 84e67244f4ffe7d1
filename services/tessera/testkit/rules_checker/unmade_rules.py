"""
Rule of runs without pods (ADR 0068): while a tenant has as many as the bound, no more of it start.

Counted by the records alone. Exempt is what was promised before: who starts by an earmark, its own place after a run
among them, who was told `Reserved`, and whose pods work already.
"""

from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.base import run_id
from tessera_schemas.reasons import Code
from tessera_schemas.shard.ledger_form import UNMADE_FROM

UNMADE_MAX = 64
"""The bound as docs/queues.md says it. It is written here again, since what decides by it is what is checked."""


class UnmadeRules:
    """Follows which runs have no pods, of which tenant, and to whom a start was promised."""

    def __init__(self, report: Report) -> None:
        self._report, self._format = report, 0
        self._tenants: dict[str, str] = {}
        self._unmade: dict[str, str] = {}  # tenants by run; runs that stop are out of it
        self._reserved: set[str] = set()
        self._promised: set[str] = set()  # by an earmark that this message uses, or by pods that work
        self._message: m.LedgerMessage

    def take(self, message: m.LedgerMessage) -> None:
        """Check the records of a message in order."""
        self._message = message
        self._promised.clear()
        for record in message.records:
            getattr(self, f"_{record.kind}", lambda _: None)(record)

    def _format_raised(self, r: m.FormatRaised) -> None:
        self._format = r.format

    def _job_queued(self, r: m.JobQueued) -> None:
        facts = self._message.facts  # which a spoilt ledger may lack: the invariants say so
        if r.fact < len(facts) and isinstance(fact := facts[r.fact].fact, f.JobAdmitted):
            self._tenants[r.job_id] = fact.tenant

    def _task_queued(self, r: m.TaskQueued) -> None:
        self._tenants[r.job_id] = self._tenants.get(r.array, "")

    def _waiting(self, r: m.Waiting) -> None:
        (self._reserved.add if r.reason.code is Code.RESERVED else self._reserved.discard)(r.job_id)

    def _earmark_ended(self, r: m.EarmarkEnded) -> None:
        if r.why == "used":
            self._promised.add(r.owner)

    def _pods_taken_over(self, r: m.PodsTakenOver) -> None:
        self._promised.add(r.job_id)

    def _allocated(self, r: m.Allocated) -> None:
        tenant = self._tenants.get(r.job_id, "")
        unmade = sum(1 for each in self._unmade.values() if each == tenant)
        free = self._format < UNMADE_FROM or r.job_id in self._promised | self._reserved
        self._report.demand(
            free or unmade < UNMADE_MAX,
            "unmade",
            self._message.n,
            f"{r.job_id} starts while {unmade} runs of {tenant} have no pods",
        )
        self._unmade[run_id(r.job_id, r.attempt)] = tenant
        self._reserved.discard(r.job_id)

    def _permitted(self, r: m.Permitted) -> None:
        self._unmade.pop(r.run_id, None)

    _revoked = _permitted

    def _released(self, r: m.Released) -> None:
        if not r.ranks:
            self._unmade.pop(r.run_id, None)
