"""
The last two conditions of a judged command before it becomes a fact: room in the ledger, and its tenant's budget.

Jobs (and the records of refusals) are charged to one budget, orders about jobs to another of the same size, so that a
tenant whose jobs are too many can still cancel them. What the binder adopts it has charged itself. A command that is
handed out again was charged before.
"""

from collections.abc import Callable
from dataclasses import replace

from tessera.admission.decide.outcome import refuse_for
from tessera.admission.orders import Case
from tessera.admission.policy_view import PolicyView
from tessera.domain.queues import QueueTree
from tessera.kernel.ledger.room import LedgerRoom
from tessera.kernel.messaging.budgets import Budgets
from tessera.kernel.ports import Clock
from tessera_schemas.config import Limits
from tessera_schemas.facts import JobAdmitted, JobRefused
from tessera_schemas.reasons import Reason


class TenantLimits:
    def __init__(self, policy: PolicyView, room: LedgerRoom, clock: Clock, replicas: Callable[[], int]) -> None:
        self._policy, self._room, self._replicas = policy, room, replicas
        self._jobs, self._orders = Budgets(clock, replicas), Budgets(clock, replicas)

    @property
    def facts_end(self) -> int:
        """The highest number that a fact was seen to have, as of the last look."""
        return self._room.facts_end

    def limit_tenant_command(self, case: Case, deliveries: int) -> Case:
        """The case; refused where there is no room, or the tenant's budget is spent."""
        return _unless(self._against(case, deliveries), case)

    def limit_operator_command(self, case: Case) -> Case:
        """The case; refused where there is no room for what an operator asks for."""
        return _unless(self._full(case), case)

    def may_record(self, refused: JobRefused) -> bool:
        """Whether the tenant's budget pays for a record of this refusal; beyond it, it is counted."""
        return self._jobs.spend(refused.tenant, self._of(refused.tenant), len(refused.to_bytes()), count=0) is None

    def _against(self, case: Case, deliveries: int) -> Reason | None:
        fact, origin = case.outcome.fact, case.origin
        if isinstance(fact, JobRefused):
            return None
        if (full := self._full(case)) is not None:
            return full
        size = len(fact.to_bytes()) if isinstance(fact, JobAdmitted) and fact.template else len(case.message.data)
        if not origin.adopted and deliveries == 1:
            budget = self._jobs if isinstance(fact, JobAdmitted) else self._orders
            spent = budget.spend(origin.tenant, self._of(origin.tenant), size)
            if spent is not None:
                return spent
        if not case.outcome.dry_run:
            self._room.let_in(origin.tenant, size)
        return None

    def _full(self, case: Case) -> Reason | None:
        fact = case.outcome.fact
        if isinstance(fact, JobRefused):
            return None
        if not isinstance(fact, JobAdmitted):
            return self._room.against_orders()
        tenants = 1 if self._tree is None else max(1, len(self._tree.tenants))
        return self._room.against_work(fact.tenant, tenants * self._replicas())

    def _of(self, tenant: str) -> Limits:
        return Limits() if self._tree is None else self._tree.limits_of(tenant)

    @property
    def _tree(self) -> QueueTree | None:
        """The queues and tenants of the configuration; None before there is one."""
        return self._policy.known.tree if self._policy.known else None


def _unless(against: Reason | None, case: Case) -> Case:
    return case if against is None else replace(case, outcome=refuse_for(case.outcome, case.origin, against))
