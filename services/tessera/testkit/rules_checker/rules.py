"""Rules of policy and operators' commands for each record, in the order of the ledger."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import add, sub
from typing import Any

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import rows
from tessera.testkit.rules_checker.budget_rules import BudgetRules
from tessera.testkit.rules_checker.claim_weights import ClaimWeights
from tessera.testkit.rules_checker.line_rules import OrderRules
from tessera.testkit.rules_checker.owner_rules import OwnerRules
from tessera.testkit.rules_checker.quotas import FlavorResource, Quotas
from tessera.testkit.rules_checker.rows import ASKED, JobRow, RunRow, group_of
from tessera.testkit.rules_checker.service_rules import ServiceRules
from tessera.testkit.rules_checker.size_rules import ResizeRules
from tessera.testkit.rules_checker.stop_rules import Brake, SickNodes, Stopped, counts, has_word
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.cluster.health import HealthPolicy
from tessera_schemas.config import ConfigBody, Policy
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.run_ends import DRAINS

CAUSE = {Code.PREEMPTED: "preemption", Code.RECLAIMED: "reclaim", Code.DEFRAGMENTED: "defragment"}
ByResource = dict[str, int]


class Rules(ResizeRules):
    def __init__(self, report: Report) -> None:
        self.report, self.quotas, self.policy = report, Quotas(), Policy()
        self.n = self.ts = self.format = 0
        self.lines, self.brake, self.sick = OrderRules(report), Brake(), SickNodes(report)
        self.nodes, self.drained = dict[str, f.NodeSeen](), self.quotas.drained
        self.jobs, self.runs, self.marks = dict[str, JobRow](), dict[str, RunRow](), dict[str, m.EarmarkSet]()
        self.at_work = ""  # the job whose pods work already where this message allocates them
        self.used: dict[str, m.EarmarkSet] = {}  # earmarks that ended just now because their owner starts
        self.asked: set[tuple[Any, ...]] = set()
        self.owners = OwnerRules(report, self.quotas, self.jobs, self.runs, self.marks)
        self.claims = ClaimWeights(self.nodes, self.quotas, self.jobs, self.runs, self.marks)
        self.services = ServiceRules(report, self.jobs, self.runs)
        self.budgets = BudgetRules(report, self.quotas, self.nodes)
        self.message: m.LedgerMessage

    def demand(self, holds: bool, rule: str, text: str) -> None:
        """Counts one check of a rule at the message that is being read, and a violation where it does not hold."""
        self.report.demand(holds, rule, self.n, text)

    def take(self, message: m.LedgerMessage) -> None:
        """Checks each record of a message in order, then the earmarks used and the plans."""
        self.n, self.ts, self.message, self.used, self.at_work = message.n, message.ts, message, {}, ""
        self.services.mark()
        self.owners.pass_time(self.n, self.ts, self.policy)
        self.quotas.ts = self.ts
        self.sick.take(message)
        self.budgets.pass_time(self.n, self.ts, self.runs.values())
        self.asked |= {ASKED[type(t.fact)](t.fact) for t in message.facts if type(t.fact) in ASKED}
        updates = (t.fact for t in message.facts if isinstance(t.fact, f.UpdateRequested))
        self.asked |= {("job_updated", u.job_id, each, u.tenant) for u in updates for each in u.changes.given.items()}
        self.lines.take_orders(message.orders)
        for record in message.records:
            self.services.follow(message, record)
            getattr(self, f"_{record.kind}", lambda _: None)(record)
        used = sorted(self.used)
        self.demand(not used, "plan", f"the earmarks of {used} are used, but their owners do not start")
        self._plans(message)
        self.owners.take(message)

    def _cited(self, index: int) -> f.AnyFact | None:
        return self.message.facts[index].fact if index < len(self.message.facts) else None

    def _was_asked(self, kind: str, name: str, what: Any, tenant: str = "") -> None:
        names = {name} | ({self.jobs[name].array} if name in self.jobs else set())
        asked = {(kind, each, what, who) for each in names for who in (tenant, "")} & self.asked
        self.demand(bool(asked), "I13", f"{kind} {name} {what}: neither its tenant nor an operator asked for it")

    def _cancels(self, r: m.Revoked | m.Requeued | m.Finished, job_id: str) -> None:
        job, code = self.jobs.get(job_id), None if r.reason is None else Code(r.reason.code)
        # That its owner paused in Kubernetes the binder says: nobody asked for it here.
        is_paused = job is not None and job.adopted is not None and code is Code.REQUEUE_ASKED
        if job is not None and code in ORDERED and not is_paused:
            self._was_asked(ORDERED[code], job_id, True, job.tenant)

    def _config_set(self, r: m.ConfigSet) -> None:
        fact = self._cited(r.fact)
        if isinstance(fact, f.ConfigProposed):
            if not fact.abandon and self.quotas.body is not None and self.format >= rows.FORMAT_OF_REFUSALS:
                named = sorted(rows.stranded(self.quotas.body, fact.body, self.jobs.values(), self.runs.values()))
                self.demand(not named, "config", f"version {r.version} takes away {named}, which live jobs name")
            self._configure(fact.body)
            self.policy, self.sick.policy = fact.body.policy, fact.body.health or HealthPolicy()
            self.lines.configure(fact.body, r.version)

    def _format_raised(self, r: m.FormatRaised) -> None:
        self.format = r.format
        if self.quotas.body is not None:
            self._configure(self.quotas.body)

    def _configure(self, body: ConfigBody) -> None:
        """A configuration comes in force; each run counts by its queue's place and its nodes' flavor in it."""
        runs = [run for run in self.runs.values() if self.format >= rows.FORMAT_OF_BOOKS]
        nodes = [next((self.nodes[pod.node].pool for pod in run.places.values()), "default") for run in runs]
        pools = {run.job.spec.queue: self._pool(run.job) or pool for run, pool in zip(runs, nodes, strict=True)}
        self.quotas.configure(body, pools)
        self.budgets.configure(body)
        for run in self.runs.values():
            self._recount(run, run.job.spec.queue, run.job.spec.queue)

    def _recount(self, run: RunRow, before: str, queue: str) -> None:
        """The run counts in the queue, from format 6 on by the flavor on which most of its GPUs are."""
        self.quotas.add(before, run.flavor, run.amount, -1)
        if self.format >= rows.FORMAT_OF_BOOKS:
            parts = [(self.nodes[p.node], rows.amount_at(run.job, [p])["gpu_milli"] or 1) for p in run.places.values()]
            named = self.quotas.flavors(queue, run.amount) - {""}
            on = {each: -sum(part for node, part in parts if self.quotas.is_on(node, each)) for each in named}
            run.flavor = min((some, each) for each, some in {"": 0, **on}.items())[1]
        self.quotas.add(queue, run.flavor, run.amount)

    def _job_moved(self, r: m.JobMoved) -> None:
        job = self.jobs.get(r.job_id)
        if job is None:
            return
        body, before = self.quotas.body, job.spec.queue
        renamed = body is not None and any((q.name, q.was) == (r.queue, before) for q in body.queues)
        if r.by or not renamed:
            self._was_asked("job_moved", r.job_id, r.queue, job.tenant)
        self.demand(self.quotas.takes_jobs(r.queue), "config", f"{r.job_id}: {r.queue} takes no jobs")
        for run in self.runs.values():
            if run.job is job:
                self._recount(run, before, r.queue)
        mark = self.marks.get(r.job_id)
        if mark is not None:
            self.quotas.add(before, mark.flavor, job.amount, -1)
            self.quotas.add(r.queue, mark.flavor, job.amount)
        job.spec = job.spec.model_copy(update={"queue": r.queue})
        self.lines.forget(r.job_id)

    def _job_updated(self, r: m.JobUpdated) -> None:
        if (job := self.jobs.get(r.job_id)) is not None:
            for field, value in r.changes.given.items():
                self._was_asked("job_updated", r.job_id, (field, value), job.tenant)

    def _node_changed(self, r: m.NodeChanged) -> None:
        fact = self._cited(r.fact)
        if isinstance(fact, f.NodeSeen):
            self.nodes[fact.name] = fact
            self.quotas.seen.setdefault(fact.name, []).append((self.ts, fact))

    def _node_drained(self, r: m.NodeDrained) -> None:
        if not r.by:
            self._was_asked("node_drained", r.node, r.undo)
        self.sick.drained(r, self.nodes)
        (self.drained.discard if r.undo else self.drained.add)(r.node)

    def _health_noted(self, r: m.HealthNoted) -> None:
        self.sick.noted(r)

    def _budget_reached(self, r: m.BudgetReached | m.BudgetReopened) -> None:
        self.budgets.record(r)

    def _booked(self, r: m.Booked | m.BookingEnded) -> None:
        self.budgets.price(r, self.jobs.get(r.job))

    _budget_reopened, _booking_ended = _budget_reached, _booked

    def _budget_granted(self, r: m.BudgetGranted) -> None:
        self._was_asked("budget_granted", r.budget, r.amount)
        self.budgets.record(r)

    def _job_queued(self, r: m.JobQueued) -> None:
        fact = self._cited(r.fact)
        if isinstance(fact, f.JobAdmitted):
            self.jobs[r.job_id] = job = JobRow(fact.tenant, fact.spec, fact.spec.priority_class, {})
            self.claims.weigh(job)
            self.lines.add(r.job_id, fact, (self.n, r.fact), self.ts)
            job.one_model = self.format >= rows.FORMAT_OF_ONE_MODEL
            job.held, job.adopted, job.preemptible = fact.held, fact.adopted, fact.spec.preemptible
            self.asked |= {("held", r.job_id, False, fact.tenant)} if fact.held else set()
            if isinstance(fact, f.NodeTestProposed):
                self.sick.test_queued(fact)

    def _devices_noted(self, r: m.DevicesNoted) -> None:
        self.claims.take(self._cited(r.fact))

    def _task_queued(self, r: m.TaskQueued) -> None:
        if (array := self.jobs.get(r.array)) is not None:
            self.jobs[r.job_id] = replace(array, held=False, evictions=0, array=r.array)
            self.lines.add_task(r.job_id, r.array)

    def _array_closed(self, r: m.ArrayClosed) -> None:
        if (array := self.jobs.get(r.job_id)) is not None:
            array.ended = True  # it asks for nothing more; its tasks have rows of their own

    def _held(self, r: m.Held) -> None:
        if (job := self.jobs.get(r.job_id)) is not None:
            # What the scheduler holds is for the pays checker to judge, and what it lets go of is a service's.
            if r.by != "scheduler" or (r.undo and job.spec.service is None):
                ends_operators = r.undo and job.operator_hold
                self._was_asked("held", r.job_id, r.undo, "" if ends_operators else job.tenant)
            job.held, job.operator_hold = not r.undo, r.operator and not r.undo

    def _service_scaled(self, r: m.ServiceScaled) -> None:
        self._was_asked("scaled", r.job_id, r.replicas, self.jobs[r.job_id].tenant if r.job_id in self.jobs else "")

    def _priority_set(self, r: m.PrioritySet) -> None:
        if (job := self.jobs.get(r.job_id)) is not None:
            body, before = self.quotas.body, job.priority_class
            classes = () if body is None else body.priority_classes
            resumed = job.spec.session and body and r.priority_class == body.defaults.sessions.resume_class
            if not resumed and not any((entry.name, entry.was) == (r.priority_class, before) for entry in classes):
                self._was_asked("priority_set", r.job_id, r.priority_class, job.tenant)
            job.priority_class = r.priority_class
            self.lines.forget(r.job_id)

    def _pods_taken_over(self, r: m.PodsTakenOver) -> None:
        self.at_work = r.job_id

    def _allocated(self, r: m.Allocated) -> None:
        self.sick.test_placed(r)
        if (job := self.jobs.get(r.job_id)) is None:
            return
        self.demand(not job.away, "adopted", f"{r.job_id} starts before its owner has made its pods again")
        job.then = job.over = ""
        self.budgets.begins(r.job_id, job)
        mark = self.used.pop(r.job_id, None)
        if mark is not None and mark.cause != "restart" and not any(run_id in self.runs for run_id in mark.victims):
            same = (mark.placements, mark.flavor) == (r.placements, r.flavor)
            self.demand(same, "plan", f"{r.job_id} starts elsewhere than where room was made for it")
        self.demand(r.job_id not in self.marks, "plan", f"{r.job_id} starts, but room is still kept for it")
        nodes, places = frozenset(place.node for place in r.placements), {place.rank: place for place in r.placements}
        amount = rows.amount_drawn(job.spec, job.amount, r.placements)
        self.services.mark()
        self.runs[f"{r.job_id}-{r.attempt}"] = RunRow(job, r.flavor, amount, nodes=nodes, places=places)
        self._starts(r.job_id, job, r.flavor, r.placements)
        self.quotas.add(job.spec.queue, r.flavor, rows.both(amount, job.amount, sub))

    def _permitted(self, r: m.Permitted) -> None:
        run, facts = self.runs.get(r.run_id), [taken.fact for taken in self.message.facts]
        made = [fact.uids for fact in facts if isinstance(fact, f.PodsMade) and fact.run_id == r.run_id]
        found = [fact.uids for fact in facts if isinstance(fact, f.PodsFound) and r.run_id.startswith(fact.job_id)]
        known = run.job.adopted.uids if run and run.job.adopted and not r.ranks else ()
        seen = {*known}.union(*made, *found)
        self.demand(seen.issuperset(r.uids), "I3", f"{r.run_id} is permitted pods that nobody has seen for it")

    def _grown(self, r: m.Grown) -> None:
        run = self.runs.get(r.run_id)
        if run is not None:
            self.budgets.begins(r.run_id, run.job)
            run.roles |= {place.rank: place.role for place in r.placements}
            pods = Counter(run.roles.values()) + Counter({role.name: role.gang for role in run.job.spec.roles})
            most = all(pods[role.name] <= role.most for role in run.job.spec.roles)
            self.demand(most, "elastic", f"{r.run_id} grows to {dict(pods)}")
            more = rows.amount_at(run.job, r.placements)
            run.amount = rows.both(run.amount, more, add)
            run.places |= {place.rank: place for place in r.placements}
            self._on_one_model(r.run_id, run.job, run.places.values())
            self._takes(r.run_id, run.job, run.flavor, r.placements, more, run.amount)

    def _earmark_set(self, r: m.EarmarkSet) -> None:
        """Room made for a job: the quota of what is being stopped already, and of its victims, counts as given back."""
        job = self.jobs.get(r.owner)
        if job is None:
            return
        self.marks[r.owner] = r
        named = r.preset == self.policy.preset or r.cause not in PLANS
        self.demand(named, "plan", f"the earmark of {r.owner} names preset {r.preset}, not {self.policy.preset}")
        victims = [self.runs[run_id] for run_id in r.victims if run_id in self.runs]
        others = [run for run in self.runs.values() if run not in victims]
        for run in (*victims, *others):  # what stops already for another reason may take long: it was lent all the same
            if r.cause == "reclaim" and run in victims:
                self.demand(self._lent(job, r, run), "plan", f"{r.owner}: {run.job.spec.queue} was lent nothing")
            self._count(run, -1)
        self.services.mark()
        self._starts(f"the earmark of {r.owner}", job, r.flavor, r.placements)
        own = r.cause != "reclaim" or self._keeps_to_its_own(job, r.flavor, [run.job.spec.queue for run in victims])
        self.demand(own, "plan", f"{r.owner} reclaims, but its queue would borrow itself")
        for run in (*victims, *others):
            self._count(run, 1)

    def _lent(self, owner: JobRow, r: m.EarmarkSet, victim: RunRow) -> bool:
        """Every queue from the victim's up to the one that it shares with the owner's takes more than it has."""
        ours = {queue.name for queue in self.quotas.path(owner.spec.queue)}
        path = () if self._is_beside(owner, victim) else self.quotas.path(victim.job.spec.queue)
        below = [queue for queue in path if queue.name not in ours]
        common = rows.both(owner.amount, victim.amount, min)
        below = [] if self.quotas.is_loose(victim.job.spec.queue) else below
        at = r.flavor if r.flavor == victim.flavor else ""
        return all(self.quotas.lent(q, at, common, least=True) for q in below)

    def _keeps_to_its_own(self, owner: JobRow, flavor: str, lenders: list[str]) -> bool:
        """A queue from the owner's up, above none that gives back, has no more than its own; the owner counts."""
        above = {queue.name for name in lenders if name != owner.spec.queue for queue in self.quotas.path(name)}
        loose = any(map(self.quotas.is_loose, lenders))
        own = owner.spec.queue
        apart = [q for q in self.quotas.path(own) if (q.parent or loose or q.name == own) and q.name not in above]
        return not all(self.quotas.lent(queue, flavor, owner.amount) for queue in apart)

    def _is_beside(self, owner: JobRow, run: RunRow) -> bool:
        """Whether the run is without GPUs in the owner's pool, and its tree without a quota of CPU or memory."""
        quotas = (quota for each in self.quotas.tree(run.job.spec.queue) for quota in each.quotas)
        promised = any(quota.resource in ("cpu_milli", "memory_bytes") for quota in quotas)
        beside = self.policy.kept_beside_gpus_percent > 0 and owner.amount["gpu_milli"] > 0 == run.amount["gpu_milli"]
        return beside and not promised and self._pool(owner) == self._pool(run.job)

    def _count(self, run: RunRow, sign: int) -> None:
        """Count the part of the run that is being stopped."""
        part = rows.amount_at(run.job, run.places_of(run.leaving))
        self.quotas.add(run.job.spec.queue, run.flavor, run.amount if run.stopping else part, sign)

    def _starts(self, what: str, job: JobRow, flavor: str, places: tuple[Placement, ...]) -> None:
        self.demand(not job.held, "hold", f"{what}: the job is held")
        if what != self.at_work:
            self._on_one_model(what, job, places)
        self._takes(what, job, flavor, places, job.amount)
        beyond = [] if self.message.engine == rows.OLDER or job.revocable else self._firm_beyond(job, flavor)
        self.demand(not beyond, "I6", f"{what}: it may not be evicted, and borrows {beyond}")

    def _on_one_model(self, what: str, job: JobRow, places: Iterable[Placement]) -> None:
        """The pods of a job that are one group are on one GPU model, and its shares on devices of their own."""
        roles, launched = {role.name: role for role in job.spec.roles}, job.spec.launcher not in (None, "plain")
        pods = [(roles[place.role], place) for place in places if job.one_model and place.node in self.nodes]
        bound = [(r, self.nodes[p.node]) for r, p in pods if r.resources.total_gpu_milli and not r.mixed_models]
        bound = [(role, node) for role, node in bound if not node.gone]  # it is described without its model
        models = {(launched or group_of(r, job.adopted is not None), node.gpu_model) for r, node in bound}
        self.demand(len({of for of, _ in models}) == len(models), "model", f"{what} is on {models}")
        shares = [(p.node, at) for r, p in pods if launched and r.resources.gpu_milli for at in p.devices]
        self.demand(len(set(shares)) == len(shares), "model", f"{what}: several shares on one device: {shares}")

    def _firm_beyond(self, job: JobRow, flavor: str) -> list[FlavorResource]:
        """Resources of which work that may not be evicted holds more than the quotas of its queue and its ancestors."""
        use: Counter[tuple[str, FlavorResource]] = Counter()
        held = [(run.job, run.flavor, run.gang_amount) for run in self.runs.values() if not run.stopping]
        kept = [(self.jobs[o], mark.flavor, self.jobs[o].amount) for o, mark in self.marks.items() if o in self.jobs]
        for each, on, amount in (*held, *kept):
            for cell in () if each.revocable else self.quotas.cells(on, amount):
                use[each.spec.queue, cell] += amount[cell[1]]
        cells = self.quotas.cells(flavor, job.amount)
        return [cell for cell in cells if self.quotas.firm_beyond(job.spec.queue, cell, use)]

    def _takes(
        self,
        what: str,
        job: JobRow,
        flavor: str,
        pods: tuple[Placement, ...],
        amount: ByResource,
        whole: ByResource | None = None,
    ) -> None:
        """Something is given to the job (`whole`: what it has then): quotas, flavors, the queue and nodes allow it."""
        quotas, queue = self.quotas, job.spec.queue
        path = quotas.path(queue)
        self.demand(quotas.takes_jobs(queue), "stop", f"{what}: there is no queue {queue}")
        stopped = [q.name for q in path if q.stop_policy != "none"]
        self.demand(not stopped, "stop", f"{what}: {stopped} are stopped")
        if self.format >= rows.FORMAT_OF_REFUSALS and whole is None:
            there = quotas.body is None or any(tenant.name == job.tenant for tenant in quotas.body.tenants)
            self.demand(there, "config", f"{what}: there is no tenant {job.tenant}")
        drained = sorted({place.node for place in pods} & self.drained) if what != self.at_work else []
        self.demand(not drained, "drain", f"{what}: nodes {drained} are drained")
        named = quotas.flavors(queue, whole or amount)
        self.demand(flavor in named, "I6", f"{what}: flavor {flavor!r} of {sorted(named)}")
        foreign = [p.node for p in pods if p.node in self.nodes and not quotas.is_on(self.nodes[p.node], flavor)]
        self.demand(not foreign, "I6", f"{what}: nodes {foreign} are not of flavor {flavor}")
        quotas.add(queue, flavor, amount)
        over = list(quotas.over(queue, flavor, amount))
        self.demand(not over, "I6", f"{what}: {'; '.join(over)}")

    def _earmark_ended(self, r: m.EarmarkEnded) -> None:
        mark, job = self.marks.pop(r.owner, None), self.jobs.get(r.owner)
        if mark is None or job is None:
            return
        self.quotas.add(job.spec.queue, mark.flavor, job.amount, -1)
        in_time = self.ts < mark.deadline
        self.demand(in_time or r.why != "used", "plan", f"the earmark of {r.owner} is used after its deadline")
        self.demand(not in_time or r.why != "deadline", "plan", f"the earmark of {r.owner} ends before its deadline")
        if r.why == "used":
            self.used[r.owner] = mark

    def _started(self, r: m.Started) -> None:
        if (run := self.runs.get(r.run_id)) is not None:
            run.started_ts = self.ts

    def _warned(self, r: m.Warned) -> None:
        if (run := self.runs.get(r.run_id)) is not None:
            run.warned_ts = self.ts if r.idle_seconds else None

    def _revoked(self, r: m.Revoked) -> None:
        run = self.runs.get(r.run_id)
        self._cancels(r, r.run_id.partition("-")[0])
        if run is not None:
            run.job.then = r.then
        if run is None or run.stopping:
            return
        self._has_word(r, run)
        if r.reason.code is Code.IDLE:
            since, (action, reclaim_seconds) = self.ts - (run.warned_ts or self.ts), self._idle(run.job.spec)
            due = action in ("requeue", "fail") and run.warned_ts and since >= reclaim_seconds * 1000
            self.demand(bool(due), "idle", f"{r.run_id} was warned {since} ms ago")
        if r.reason.code in CAUSE:
            self._evicted(r, run, CAUSE[Code(r.reason.code)])
        run.stopping, run.reclaimed = True, r.reason.code is Code.RECLAIMED
        run.victim = r.reason.code in (*CAUSE, *DRAINS) and r.then == "requeue"

    def _has_word(self, r: m.Revoked, run: RunRow) -> None:
        """Demand a word that says stop for each run that is stopped; by what was observed, only a part of its pool."""
        spec, drains = run.job.spec, [q.stop_policy for q in self.quotas.path(run.job.spec.queue)]
        job_id, drained = r.run_id.partition("-")[0], "hold_and_drain" in drains
        self.services.mark()
        may_go = run.job.preemptible and not run.job.in_minimum
        stopped = Stopped(job_id, run.started_ts is not None, may_go, run.nodes, drained, spec.progress)
        word = self.sick.asks(run.nodes) if r.reason.code is Code.NODE_SICK else None
        word = has_word(self.message, r, stopped, self.policy) if word is None else word
        self.demand(word, "stops", f"{r.run_id} is stopped ({r.reason.code}), and nothing in its message says so")
        node = counts(self.message, r)
        self.demand(r.observed == node, "stops", f"{r.run_id} counts for node {r.observed!r}, not {node!r}")
        if node:
            pool, part = self._pool(run.job), max(1, run.amount["gpu_milli"])
            few = self.brake.stop(pool, (self.ts, node, job_id, part), self._held_in(pool), self.policy)
            self.demand(few, "stops", f"{r.run_id} of {spec.queue}: more is stopped at once than an operator let")

    def _held_in(self, pool: str) -> list[tuple[int, int]]:
        """Number of runs and their GPUs in thousandths, by queue of the pool."""
        held: dict[str, tuple[int, int]] = {}
        for run in self.runs.values():
            if self._pool(run.job) == pool:
                runs, gpus = held.get(run.job.spec.queue, (0, 0))
                held[run.job.spec.queue] = runs + 1, gpus + run.amount["gpu_milli"]
        return list(held.values())

    def _stop_held_back(self, r: m.StopHeldBack) -> None:
        said = [t.fact for t in self.message.facts if isinstance(t.fact, f.RunLost) and t.fact.run_id == r.run_id]
        self.demand(bool(said), "stops", f"{r.run_id} is held back, and nobody said that it is lost")
        self.demand(not any(fact.told for fact in said), "stops", f"{r.run_id} is held back against an operator's word")

    def _spared(self, r: m.Spared) -> None:
        """Checks that the binder alone spares a run, and that the run was to stop for another job's sake."""
        run, said = self.runs.get(r.run_id), [t.fact for t in self.message.facts if isinstance(t.fact, f.RunUntouched)]
        self.demand(r.run_id in [fact.run_id for fact in said], "plan", f"{r.run_id} is spared, nobody said untouched")
        named = [owner for owner, mark in self.marks.items() if r.run_id in mark.victims]
        self.demand(not named, "plan", f"{r.run_id} is spared, but room is still kept for {named}")
        if run is not None:
            self.demand(run.victim, "plan", f"{r.run_id} is spared, but stops for no other job and no drain")
            run.kept_lent_ts = run.kept_lent_ts or (self.ts if r.kept and run.reclaimed else 0)
            run.stopping = run.victim = False

    def _idle(self, spec: JobSpec) -> tuple[str, int]:
        """The action on idle runs of the job and its delay after the warning, from the lowest queue that sets it."""
        rules = [queue.idle for queue in self.quotas.path(spec.queue) if queue.idle is not None]
        if spec.idle is not None and spec.idle.allow_idle and all(rule.jobs_choose for rule in rules):
            return "off", 0
        action = next((rule.action for rule in rules if rule.action), self.policy.idle)
        return action, next((r.reclaim_seconds for r in rules if r.reclaim_seconds), self.policy.idle_reclaim_seconds)

    def _evicted(self, r: m.Revoked, run: RunRow, cause: str) -> None:
        """One run is stopped for another job's sake; whether that plan is whole is judged with its message."""
        policy, owner, victim = self.policy, self.jobs.get(r.by), run.job
        text = f"{r.run_id} is stopped for {r.by} ({cause}, preset {policy.preset})"
        age = None if run.started_ts is None else (self.ts - run.started_ts) // 1000
        self.demand(age is not None and age >= policy.min_runtime_seconds, "plan", f"{text}: its age is {age} s")
        self.services.evicts(self.n, r.run_id, run)
        kept = self.ts - (run.kept_lent_ts or self.ts)
        lets = cause == "reclaim" and 0 < policy.lent_kept_seconds * 1000 <= kept
        self.demand(lets or not r.called_in, "plan", f"{text}: called in, its budget kept lent quota for {kept} ms")
        self.demand(victim.preemptible, "plan", f"{text}: it is not preemptible")
        self.demand(owner is not None, "plan", f"{text}: there is no such job")
        if owner is None:
            return
        queues, lower = (owner.spec.queue, victim.spec.queue), self._priority(owner) - self._priority(victim)
        reclaim = self.quotas.queues[queues[0]].reclaim if queues[0] in self.quotas.queues else "never"
        allowed = {"defragment": policy.defragment, "reclaim": reclaim != "never"}.get(cause, policy.preset != "off")
        self.demand(allowed, "plan", f"{text}: the preset does not allow it")
        lent = cause == "reclaim" and queues[0] != queues[1]
        self.demand(lent or victim.evictions < policy.evictions_max, "plan", f"{text}: {victim.evictions} evictions")
        if cause == "defragment":
            moves = lower >= 0 and self._pool(owner) == self._pool(victim)
            self.demand(moves, "plan", f"{text}: it is of another pool, or {-lower} higher in priority")
            return
        one = self.quotas.is_loose(queues[1]) or len({*map(self.quotas.root, queues)}) == 1
        one = one or self._is_beside(owner, run)
        right = (lower > 0 or reclaim == "any") and lent and one
        right = right if queues[0] != queues[1] else lower > 0 and policy.preset != "off"
        # Work of a spent budget gives way to whoever waits within its own, be it of a lower class, or in another queue.
        unpaid = self.budgets.is_spent(victim) and owner.amount["gpu_milli"] > 0 and not self.budgets.is_spent(owner)
        right = right or (cause == "preemption" and unpaid and self._pool(owner) == self._pool(victim))
        self.demand(right, "plan", f"{text}: queues {queues}, {lower} lower in priority")

    def _pool(self, job: JobRow) -> str:
        return next((queue.pool for queue in self.quotas.path(job.spec.queue)), "")

    def _priority(self, job: JobRow) -> int:
        classes = self.quotas.body.priority_classes if self.quotas.body else ()
        lowest = min((entry.value for entry in classes), default=0) if self.format >= rows.FORMAT_OF_REFUSALS else 0
        value = next((entry.value for entry in classes if entry.name == job.priority_class), lowest)
        return value if job.adopted is None else job.adopted.priority

    def _shrunk(self, r: Any) -> None:
        if (run := self.runs.get(r.run_id)) is not None:
            run.leaving |= run.roles.keys() & {*r.ranks}

    _roles_shifted = _shrunk

    def _released(self, r: m.Released) -> None:
        if (run := self.runs.get(r.run_id)) is None:
            return
        roles = dict(enumerate(role.name for role in run.job.spec.roles for _ in range(role.gang))) | run.roles
        together = {role.name for role in run.job.spec.roles if role.release == "together"}
        early = [rank for rank in r.ranks if roles.get(rank) in together and rank not in run.leaving]
        self.demand(not early, "release", f"{r.run_id} gives ranks {early} back, which go with the whole run")
        part = rows.amount_at(run.job, run.places_of(r.ranks))
        run.roles = {rank: name for rank, name in run.roles.items() if rank not in (r.ranks or run.roles)}
        run.leaving -= {*(r.ranks or run.leaving)}
        run.places = {rank: place for rank, place in run.places.items() if r.ranks and rank not in r.ranks}
        self.quotas.add(run.job.spec.queue, run.flavor, part if r.ranks else run.amount, -1)
        run.amount = rows.both(run.amount, part, sub)
        if not r.ranks:
            run.job.over = run.job.then
            del self.runs[r.run_id]

    def _finished(self, r: m.Finished) -> None:
        self.sick.test_ended(r)
        self._cancels(r, r.job_id)
        if (job := self.jobs.get(r.job_id)) is not None:
            job.ended = True
            by_owner = r.phase != "cancelled" and job.over == "requeue" and job.spec.array is None
            said = job.adopted is not None and ("ended", r.job_id, r.phase, "") in self.asked
            self.demand(said or not by_owner, "I4", f"{r.job_id} is {r.phase}, and its owner did not say so")
        self.brake.ended(r.job_id)
        for run_id, run in self.runs.items():
            run.succeeded |= r.phase == "succeeded" and run_id.startswith(r.job_id)
            run.stopping |= run.succeeded

    def _requeued(self, r: m.Requeued) -> None:
        if (job := self.jobs.get(r.job_id)) is not None:
            self.claims.weigh(job)
            job.evictions += r.reason.code in CAUSE
            job.away = job.adopted is not None

    def _out_of_line(self, r: m.OutOfLine) -> None:
        if (job := self.jobs.get(r.job_id)) is not None:
            self.demand(job.adopted is not None, "adopted", f"{r.job_id} waits for pods that are ours to make")
            job.away = True

    def _back_in_line(self, r: m.BackInLine) -> None:
        if (job := self.jobs.get(r.job_id)) is not None and job.adopted is not None:
            back = [t.fact for t in self.message.facts if isinstance(t.fact, f.PodsBack) and t.fact.job_id == r.job_id]
            self.demand(r.uids in [fact.uids for fact in back], "adopted", f"{r.job_id} is back with pods of nobody")
            job.come_back(r)

    def _plans(self, message: m.LedgerMessage) -> None:
        """A plan is carried out whole in the message that takes it in, or refused there."""
        refused = {r.fact for r in message.records if isinstance(r, m.PlanRefused)}
        marks = [r for r in message.records if isinstance(r, m.EarmarkSet)]
        evicted = [r for r in message.records if isinstance(r, m.Revoked) and r.reason.code in CAUSE]
        revoked = Counter((r.by, r.run_id) for r in evicted)
        facts = [taken.fact for i, taken in enumerate(message.facts) if i not in refused]
        asking = {r.by for r in message.records if isinstance(r, m.MoveOffered)}
        plans = [plan for plan in facts if isinstance(plan, f.PlanProposed)]
        accepted = [plan for plan in plans if plan.cause != "defragment" or plan.job_id not in asking]
        due = Counter((plan.job_id, run_id) for plan in accepted for run_id in plan.victims)
        self.demand(revoked == due, "plan", f"stopped are {sorted(revoked)}, the plans say {sorted(due)}")
        said = [kept for plan in accepted for kept in self._kept(plan)]
        moves = all(tuple(move.run_id for move in plan.moves) == plan.victims for plan in accepted if plan.moves)
        few = all(len(plan.moves) <= self.policy.defragment_moves_max for plan in accepted)
        self.demand(moves and few, "plan", "not every run that moves has a place, or too many move")
        made = [(r.owner, r.cause, r.placements, r.flavor, r.victims) for r in marks if r.cause in PLANS]
        shrunk = {(r.by, r.run_id, r.ranks) for r in message.records if isinstance(r, m.Shrunk) and r.by in self.jobs}
        wanted = {(plan.job_id, part.run_id, part.ranks) for plan in accepted for part in plan.shrinks}
        self.demand(shrunk == wanted, "plan", f"shrunk are {sorted(shrunk)}, the plans say {sorted(wanted)}")
        self.demand(said == made, "plan", f"{len(made)} earmarks are not those of the {len(said)} plans")

    def _kept(self, plan: f.PlanProposed) -> Iterator[tuple[Any, ...]]:
        """The earmarks that a plan is due: for whoever moves where it goes on, then the job's own."""
        for move in plan.moves:
            flavor = self.runs[move.run_id].flavor if move.run_id in self.runs else ""
            yield move.run_id.partition("-")[0], plan.cause, move.placements, flavor, ()
        yield plan.job_id, plan.cause, plan.placements, plan.flavor, plan.victims


PLANS = tuple(CAUSE.values())
ORDERED = {Code.CANCELLED: "cancelled", Code.REQUEUE_ASKED: "requeued"}
