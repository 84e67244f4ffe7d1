"""
Rules of runs that change in place: shifts between their roles are asked for, once, and of no more GPUs than the run
held before; resizes of their pods are asked for, within quota by the larger size, and told of by the binder.
"""

from collections import Counter
from dataclasses import dataclass, field
from operator import add, sub

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import rows
from tessera.testkit.rules_checker.quotas import Quotas
from tessera.testkit.rules_checker.rows import RunRow
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.job import JobSpec
from tessera_schemas.shard.records import (
    PodsResized,
    ResizeBegun,
    ResizeEnded,
    ResizeRequested,
    RolesRequested,
    RolesShifted,
)
from tessera_schemas.work.spec_changes import SizeOfRole, larger_of, with_size


@dataclass(slots=True)
class ShiftingRun:
    """Pods of a run by rank with their roles, and the shift that is under way."""

    pods: dict[int, str]
    leaving: set[int] = field(default_factory=set)
    gains: Counter[str] = field(default_factory=Counter)
    gpus: int = 0  # thousandths that the run held when the shift began
    due: bool = False  # all that left are released: the others come next


class ShiftRules:
    def __init__(self, report: Report) -> None:
        self.report, self.n = report, 0
        self.specs, self.tenants = dict[str, JobSpec](), dict[str, str]()
        self.runs, self.asked, self.done = dict[str, ShiftingRun](), set[tuple[str, str, str]](), set[tuple[str, str]]()

    def demand(self, holds: bool, text: str) -> None:
        """Counts one check at the message that is being read, and a violation where it does not hold."""
        self.report.demand(holds, "shift", self.n, text)

    def take(self, message: m.LedgerMessage) -> None:
        """Checks each record of a message in order."""
        self.n = message.n
        facts = [taken.fact for taken in message.facts]
        self.asked |= {(a.job_id, a.key, a.tenant) for a in facts if isinstance(a, RolesRequested)}
        for record in message.records:
            cited = facts[record.fact : record.fact + 1] if isinstance(record, m.JobQueued) else []
            if isinstance(record, m.JobQueued) and cited and isinstance(fact := cited[0], f.JobAdmitted):
                self.specs[record.job_id], self.tenants[record.job_id] = fact.spec, fact.tenant
            elif isinstance(record, m.Allocated):
                places = {place.rank: place.role for place in record.placements}
                self.runs[f"{record.job_id}-{record.attempt}"] = ShiftingRun(places)
            elif isinstance(record, RolesShifted | m.Released | m.Grown) and record.run_id in self.runs:
                getattr(self, f"_{record.kind}")(record, self.runs[record.run_id])
            # Between what is released and what comes there nothing is given to anybody.
            if isinstance(record, m.Allocated | m.EarmarkSet | m.Grown):
                others = [name for name, run in self.runs.items() if run.due and name != getattr(record, "run_id", "")]
                self.demand(not others, f"a {record.kind} comes before what {others} gave up for their other roles")
        for run in self.runs.values():
            run.due, run.gains = False, run.gains if run.leaving else Counter()

    def _gpus(self, run_id: str, run: ShiftingRun) -> int:
        spec = self.specs.get(run_id.partition("-")[0])
        each = {} if spec is None else {role.name: role.resources.total_gpu_milli for role in spec.roles}
        return sum(each.get(role, 0) for role in run.pods.values())

    def _roles_shifted(self, r: RolesShifted, run: ShiftingRun) -> None:
        job = r.run_id.partition("-")[0]
        asked = {(job, r.request, who) for who in ("", self.tenants.get(job, ""))} & self.asked
        self.demand(bool(asked), f"{r.run_id} shifts its roles, and nobody asked")
        self.demand((r.run_id, r.request) not in self.done, f"{r.run_id} shifts twice by {r.request}")
        self.demand(not run.leaving and {*r.ranks} <= run.pods.keys(), f"{r.run_id} shifts by {r.ranks}")
        self.done.add((r.run_id, r.request))
        run.leaving, run.gains, run.gpus = {*r.ranks}, Counter(r.gains), self._gpus(r.run_id, run)

    def _released(self, r: m.Released, run: ShiftingRun) -> None:
        if not r.ranks:
            del self.runs[r.run_id]
            return
        run.pods = {rank: role for rank, role in run.pods.items() if rank not in r.ranks}
        was, run.leaving = bool(run.leaving), run.leaving - {*r.ranks}
        run.due = was and not run.leaving and bool(run.gains)

    def _grown(self, r: m.Grown, run: ShiftingRun) -> None:
        run.pods |= {place.rank: place.role for place in r.placements}
        if run.due:
            came = Counter(place.role for place in r.placements)
            self.demand(came <= run.gains, f"{r.run_id} gets {dict(came)} for {dict(run.gains)}")
            self.demand(self._gpus(r.run_id, run) <= run.gpus, f"{r.run_id} holds more GPUs than before its shift")
            run.due = False


class ResizeRules:
    """The part of the rules about resizes; the whole has the books of runs and quotas."""

    report: Report
    runs: dict[str, RunRow]
    quotas: Quotas
    message: m.LedgerMessage
    n: int

    def _resize_begun(self, r: ResizeBegun) -> None:
        if (run := self.runs.get(r.run_id)) is None:
            return
        job, facts = run.job, [taken.fact for taken in self.message.facts]
        asks = [each for each in facts if isinstance(each, ResizeRequested) and each.key == r.request]
        asked = any(r.run_id.startswith(each.job_id) and each.tenant in ("", job.tenant) for each in asks)
        self._demands(asked and job.adopted is None, f"{r.run_id} is resized, and nobody asked who may")
        now, job.due, job.spec = job.spec, r, with_size(job.spec, r)
        job.amount = rows.amount_of(job, [(role.name, role.gang) for role in job.spec.roles])
        job.spec = now  # until the nodes have taken it, what its run holds: of both sizes the larger
        had = next(role for role in now.roles if role.name == r.role)
        self._holds(r.run_id, run, larger_of(had, r))

    def _resize_ended(self, r: ResizeEnded) -> None:
        if (run := self.runs.get(r.run_id)) is None:
            return
        told = [taken.fact for taken in self.message.facts if isinstance(taken.fact, PodsResized)]
        said = any((each.run_id, each.key, each.reason) == (r.run_id, r.request, r.reason) for each in told)
        self._demands(said, f"the resize of {r.run_id} ends, and its binder did not say so")
        run.job.due = r
        if r.reason is None:
            self._holds(r.run_id, run, r)

    def _holds(self, run_id: str, run: RunRow, size: SizeOfRole) -> None:
        """The pods of a role hold this size of the queue's quota; what they hold more is within."""
        job, places = run.job, [place for place in run.places.values() if place.role == size.role]
        before, job.spec = rows.amount_at(job, places), with_size(job.spec, size)
        more = rows.both(rows.amount_at(job, places), before, sub)
        run.amount = rows.both(run.amount, more, add)
        self.quotas.add(job.spec.queue, run.flavor, more)
        grown = {name: amount for name, amount in more.items() if amount > 0}
        over = list(self.quotas.over(job.spec.queue, run.flavor, grown)) if grown else []
        self._demands(not over, f"{run_id} is resized: {'; '.join(over)}")

    def _demands(self, holds: bool, text: str) -> None:
        self.report.demand(holds, "resize", self.n, text)
