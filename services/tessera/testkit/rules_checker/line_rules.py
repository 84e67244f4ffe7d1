"""Rules of order among jobs that share nothing: by age, and under `order: expected` once they have waited."""

from collections.abc import Iterable
from itertools import pairwise

from tessera.testkit.checker.report import Report
from tessera_schemas import ledger as m
from tessera_schemas.config import OVERTAKING, ConfigBody
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.shard.orders import Order

Line = tuple[str, ...]
"""
Queue, priority class, tenant and user; of a strict queue the class alone tells its lines apart. Where a spent budget
puts jobs behind others, also all that tells them apart: the tenant, the project, and whether they ask for GPUs.
"""


class OrderRules:
    """Facts known of the jobs, and the rule for each order that a message takes in."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._jobs: dict[str, tuple[JobAdmitted, tuple[int, int], int]] = {}
        self._body: ConfigBody | None = None
        self._version = 0

    def configure(self, body: ConfigBody, version: int) -> None:
        """Takes in the configuration by which the next orders are made."""
        self._body, self._version = body, version

    def add(self, job_id: str, fact: JobAdmitted, age: tuple[int, int], ts: int) -> None:
        """Takes in a job as of its submit; adopted ones go by what Kubernetes says and are left out."""
        if fact.adopted is None:
            self._jobs[job_id] = fact, age, ts

    def add_task(self, job_id: str, array_id: str) -> None:
        """Takes in a task of an array, which is as old as the array is."""
        if array_id in self._jobs:
            self._jobs[job_id] = self._jobs[array_id]

    def forget(self, job_id: str) -> None:
        """Leaves out a job whose class changed: an order on its way may be made from before that."""
        self._jobs.pop(job_id, None)

    def take_orders(self, orders: Iterable[Order]) -> None:
        """Demands bounded waiting of each order: nobody who is due, or goes by age, is passed by a younger job."""
        for order in orders:
            if self._body is not None and order.policy == self._version:
                self._check(order, self._body)

    def _check(self, order: Order, body: ConfigBody) -> None:
        queues = {queue.name: queue for queue in body.queues}
        patience_ms = body.policy.order_patience_seconds * 1000
        puts_behind = any(budget.when_spent == "last" for budget in body.budgets)
        lines: dict[Line, list[tuple[bool, tuple[int, int], str]]] = {}
        for job_id in order.jobs:
            found = self._jobs.get(job_id)
            if found is None or found[0].spec.queue not in queues:
                continue
            fact, age, ts = found
            queue, spec = queues[fact.spec.queue], fact.spec
            who: Line = () if queue.queueing_strategy == "strict_fifo" else (fact.tenant, spec.user)
            who += (fact.tenant, spec.project, "gpus" if spec.gpu_milli() else "") if puts_behind else ()
            passed = queue.order in OVERTAKING and order.ts - ts < patience_ms
            lines.setdefault((spec.queue, spec.priority_class, *who), []).append((passed, age, job_id))
        for jobs in lines.values():
            for before, after in pairwise(jobs):
                fair = after[0] or (not before[0] and before[1] <= after[1])
                self._report.demand(fair, "order", order.basis_n, f"{before[2]} stands before {after[2]}, which is due")


ToldCodes = tuple[tuple[str, str], ...]
"""Jobs and the codes of the reasons that they were told, in order."""


class RepeatRules:
    """
    Rule of reasons: a message that only tells jobs why they wait does not tell them what the one before told.

    Nothing has moved between two such messages, so that a third would say it again, and so on: the ledger would fill
    while nothing happens.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._told: ToldCodes = ()

    def take(self, message: m.LedgerMessage) -> None:
        """Compare what a message tells with what the one before told."""
        told = _told_alone(message)
        if told:
            text = f"{told[0][0]} and {len(told) - 1} more are told again what they were told: {told[0][1]}"
            self._report.demand(told != self._told, "repeat", message.n, text)
        self._told = told


def _told_alone(message: m.LedgerMessage) -> ToldCodes:
    """Jobs and codes that the message tells, if it has no fact, no order and no other record; else nothing."""
    records = [record for record in message.records if not isinstance(record, m.Checkpoint)]
    waits = [record for record in records if isinstance(record, m.Waiting)]
    if message.facts or message.orders or len(waits) < len(records):
        return ()
    return tuple((record.job_id, record.reason.code.value) for record in waits)
