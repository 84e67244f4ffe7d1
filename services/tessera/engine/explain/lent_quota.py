"""
Lent quota: queues that hold on loan what is a waiting job's own, and why it has not been given back yet; and runs of
lower classes of its own queue, and why they are not preempted. Pure.

Plans are made by the same verdict: a run without a reason here is one that the next plan may stop.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tessera.domain.devices.resources import NOTHING, Amount
from tessera.domain.entities import Job, Run
from tessera.domain.folding.services import describe_minimum
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.explain.blockers import Viewer, describe_amount, describe_queue
from tessera.engine.preemption.rules import KEPT_SECONDS, gives_back, is_beside_gpus, may_evict
from tessera_schemas.shard.lending import lent_percent, lent_until
from tessera_schemas.text.units import format_age

NAMED_MAX = 2
BY_BUDGET = "for now because a disruption budget forbids it"


@dataclass(slots=True)
class _Loan:
    """Holdings of one queue's runs that stay for one reason, and by queue what it uses beyond its own."""

    runs: list[Run] = field(default_factory=list)
    amount: Amount = NOTHING
    lent: dict[str, Amount] = field(default_factory=dict)
    resource: str = "gpu_milli"

    def describe(self) -> str:
        """Words for what is lent; runs may hold more than that, since the rest of it is their queue's own."""
        beyond = NOTHING
        for amount in self.lent.values():
            beyond = beyond.plus(amount)
        lent, held = (describe_amount(each, self.resource) for each in (beyond.least(self.amount), self.amount))
        return held if lent == held else f"{lent} of the {held}"


def describe_lent_quota(state: State, book: QuotaBook, job: Job, viewer: Viewer) -> Iterator[str]:
    """A sentence for each queue and reason; nothing where the job would itself borrow."""
    loans: dict[tuple[str, str], _Loan] = {}
    whose = ""
    for flavor in state.tree.flavors_for(job.queue, job.amount):
        over = book.lacks(job, flavor)
        # Who has quota, or would borrow, is owed nothing; and a job that is refused as firm waits for its own queue's
        # quota, not for a loan.
        keepers = () if over is None or over.firm else book.keepers(job.queue, flavor, job.amount)
        if over is None or not keepers:
            continue
        resource = over.cell[1]
        for run, lent in _borrowers(state, book, job, flavor, keepers[0]):
            why = _why(state, book, job, run, flavor, viewer)
            loan = loans.setdefault((viewer.queue(run.queue), why), _Loan(resource=resource))
            loan.runs.append(run)
            loan.amount = loan.amount.plus(run.amount)
            loan.lent[run.queue] = lent
        whose = "" if keepers[0] == job.queue else f" of what is {describe_queue(viewer.queue(keepers[0]))}'s own"
        break
    for (queue, why), loan in sorted(loans.items()):
        first = sorted(loan.runs, key=lambda run: (-run.amount.gpu_milli, run.run_id))
        names = [run.run_id for run in first if viewer.may_see(run.tenant)][:NAMED_MAX]
        runs = "1 run" if len(first) == 1 else f"{len(first)} runs"
        named = f" ({', '.join(names)}{', …' if len(names) < len(first) else ''})" if names else ""
        gone = ", which was removed" if queue in state.tree.removed else ""
        yield f"Lent{whose} to {describe_queue(queue)}{gone}, {loan.describe()} in {runs}{named}: {why}."


def describe_lending_hours(state: State, job: Job, viewer: Viewer) -> Iterator[str]:
    """A sentence for each queue beside the job's that lends less by the hour of now, and until when."""
    tree, path = state.tree, state.tree.path(job.queue)
    for name, queue in sorted(tree.queues.items()):
        # Only queues of the same tree could lend to it, and of these only the ones that are not above it.
        if name in path or tree.roots[name] != path[-1] or lent_percent(queue.lending, state.ts) is None:
            continue
        entry, until = queue.lending[0], lent_until(queue.lending, state.ts)
        lends = f"lends {lent_percent(queue.lending, state.ts)} % of its quota by its hours"
        words = describe_queue(viewer.queue(name))
        yield f"{words[0].upper()}{words[1:]} {lends}{f', until {entry.clock(until)}' if until else ''}."


def describe_beside_gpus(state: State, book: QuotaBook, job: Job, viewer: Viewer) -> Iterator[str]:
    """A sentence for each queue and reason about runs without GPUs that hold what lies beside GPUs of the job's own."""
    flavor = state.tree.flavors_for(job.queue, job.amount)[0]
    held: dict[tuple[str, str], _Loan] = {}
    if book.keepers(job.queue, flavor, job.amount):
        for run in state.runs.values():
            if is_beside_gpus(state, job, run):
                loan = held.setdefault((viewer.queue(run.queue), _why(state, book, job, run, flavor, viewer)), _Loan())
                loan.runs.append(run)
                loan.amount = loan.amount.plus(run.amount)
    for (queue, why), loan in sorted(held.items()):
        runs = "1 run" if len(loan.runs) == 1 else f"{len(loan.runs)} runs"
        yield f"Beside GPUs, {runs} of {describe_queue(queue)} without any hold {describe_amount(loan.amount)}: {why}."


def _borrowers(state: State, book: QuotaBook, job: Job, flavor: str, keeper: str) -> Iterator[tuple[Run, Amount]]:
    """
    Runs of queues that are not below `keeper` and hold more than their own of something that the job asks for, each
    with what its queue holds beyond its own. Work that may not be evicted is left out while it is within that.
    """
    tree, root = state.tree, state.tree.roots[job.queue]
    for run in state.runs.values():
        if tree.roots.get(run.queue) == root and keeper not in tree.path(run.queue):
            # On another flavor only what both jobs ask for can be in each other's way.
            amount = run.amount if run.flavor == flavor else run.amount.least(job.amount)
            on, victim = run.flavor if run.flavor == flavor else "", state.jobs.get(run.job_id)
            is_firm = victim is not None and (not victim.preemptible or victim.in_minimum)
            is_own = is_firm and not book.is_firm_lent(run.queue, on, amount)
            if book.holds_lent(run.queue, on, amount) and not is_own:
                yield run, book.lent_to(run.queue, on, amount)


def describe_kept_loan(state: State, run: Run) -> str:
    """Until when the run's disruption budget keeps lent quota; "" where the policy sets no bound, or nobody asked."""
    if run.called_in:
        return "called in, since its disruption budget has kept lent quota for policy.lent_kept_seconds"
    bound = run.kept_lent_ts and state.tree.policy.lent_kept_seconds * 1000
    left = format_age(max(0, run.kept_lent_ts + bound - state.ts + 999))
    return f"its disruption budget keeps lent quota for {left} more (policy.lent_kept_seconds)" if bound else ""


def _why(state: State, book: QuotaBook, job: Job, run: Run, flavor: str, viewer: Viewer) -> str:
    """The rule that keeps the run from being stopped for the job."""
    victim, ours = state.jobs.get(run.job_id), state.tree.queues[job.queue]
    if run.stopping or victim is None:
        return "being stopped already"
    # The rule itself is asked before any words are sought for it, so that what is told can never differ from what a
    # plan may do.
    if may_evict(state, job, run, "reclaim", book, flavor) is None:
        return describe_kept_loan(state, run) or "taken back as soon as a plan fits"
    if ours.reclaim == "never":
        return f"not reclaimable because queues.{job.queue}.reclaim is never"
    kept = _why_protected(state, victim, run, viewer)
    if kept:
        return (describe_kept_loan(state, run) if kept == BY_BUDGET else "") or f"not reclaimable {kept}"
    if not gives_back(state, job, victim, run, "reclaim", book, flavor):
        return f"not reclaimable because queues.{job.queue}.reclaim is {ours.reclaim}, and its class is no lower"
    return "not reclaimable now"


def _why_protected(state: State, victim: Job, run: Run, viewer: Viewer) -> str:
    """Protection of the run from every plan of this moment; "" where nothing does."""
    seconds = state.tree.policy.min_runtime_seconds
    if victim.in_minimum:
        of = describe_minimum(state, victim) if viewer.may_see(victim.tenant) else "a service"
        return f"because it is kept by the minimum of {of}"
    if not victim.preemptible:
        return "because it is not preemptible"
    if victim.phase is not Phase.RUNNING:
        return "before it has started"
    if run.kept_ts and state.ts - run.kept_ts < KEPT_SECONDS * 1000:
        return BY_BUDGET
    is_young = state.ts - run.started_ts < seconds * 1000
    return f"before it has run for {seconds} s (policy.min_runtime_seconds)" if is_young else ""


def describe_lower_classes(state: State, job: Job, viewer: Viewer) -> Iterator[str]:
    """A sentence for each rule by which runs of lower classes of the job's own queue are not preempted for it."""
    policy, kept = state.tree.policy, Counter[str]()
    for run in state.runs.values():
        victim = state.jobs.get(run.job_id)
        if victim is not None and run.queue == job.queue and not run.stopping:
            spent = "because it was evicted too often (policy.evictions_max)"
            spent = spent if victim.evictions >= policy.evictions_max else ""
            why = _why_protected(state, victim, run, viewer) or spent
            is_lower = state.tree.priority_of(victim) < state.tree.priority_of(job)
            kept["because policy.preset is off" if policy.preset == "off" else why] += is_lower
    for why, runs in sorted(kept.items()):
        if why and runs:
            yield f"A lower class in its queue is not preempted {why}: {'1 run' if runs == 1 else f'{runs} runs'}."
