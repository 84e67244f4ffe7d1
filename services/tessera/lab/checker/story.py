"""The checker's own reading of the ledger: envelopes, jobs, runs, quotas. It shares no code with the fold."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from tessera.lab.checker.report import Report
from tessera.lab.checker.room import Amounts, Room, amounts
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.config import Queue
from tessera_schemas.job import JobSpec
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code

LATE_MS = 60_000  # how far past a run's deadline its start or revoke may be before it counts as missed
ENDS = ("succeeded", "failed", "cancelled")
CITES: dict[str, Any] = {
    "config_set": f.ConfigProposed,
    "config_refused": f.ConfigProposed,
    "node_changed": f.NodeSeen,
    "job_queued": f.JobAdmitted,
    "job_turned_away": f.JobAdmitted | f.JobRefused,
}
MOVES = {  # record, or how it ended: what is broken if the job is in none of these phases; the phase after
    "waiting": ("I4", ("queued",), "queued"),
    "earmark_set": ("I4", ("queued",), "queued"),
    "allocated": ("I4", ("queued",), "allocated"),
    "permitted": ("I3", ("allocated",), "binding"),
    "bound": ("I3", ("binding", "running"), ""),
    "started": ("I3", ("binding",), "running"),
    "revoked": ("I4", ("allocated", "binding", "running", "evicting"), "evicting"),
    "released": ("I10", ("evicting", *ENDS), ""),
    "requeued": ("I4", ("evicting",), "queued"),
    "succeeded": ("I4", ("running",), "succeeded"),
    "failed": ("I4", ("evicting",), "failed"),
    "cancelled": ("I4", ("queued", "evicting"), "cancelled"),
}
EVENTS = {"job_queued": "admitted", "job_turned_away": "refused", "permitted": "binding"}
EVENTS |= {"started": "running", "revoked": "evicting"}  # the others are called as their record


@dataclass(slots=True)
class Job:
    job_id: str
    tenant: str
    spec: JobSpec
    phase: str = "queued"
    attempt: int = 0
    not_before: int = 0
    forget_ts: int = 0
    run: "Run | None" = None


@dataclass(slots=True)
class Run:
    run_id: str
    job: Job
    deadline: int
    placements: tuple[Placement, ...]
    amounts: Amounts = field(default_factory=Amounts)
    uids: tuple[str, ...] = ()
    then: str = ""
    absent: bool = False
    released: bool = False


Expected = tuple[str, str, Job | None, int, Any]
"""The public event that a record makes: type, tenant, job and its attempt, the record."""


class Story:
    """Takes stored messages in order; what it learnt is there for the other checks."""

    def __init__(self, report: Report) -> None:
        self.report, self.room, self.prev = report, Room(), m.GENESIS
        self.n = self.ts = self.epoch = self.facts_upto = self.version = self.memory_ms = 0
        self.queues: dict[str, Queue] = {}
        self.jobs: dict[str, Job] = {}
        self.runs: dict[str, Run] = {}
        self.earmarks: dict[str, Amounts] = {}
        self.use: dict[str, Counter[str]] = {}
        self.turned_away: set[str] = set()
        self.cancels: set[tuple[str, str]] = set()
        self.repeats: Counter[str] = Counter()
        self.expected: dict[str, Expected] = {}
        self.just_released: list[str] = []

    def demand(self, holds: bool, invariant: str, text: str) -> bool:
        return self.report.demand(holds, invariant, self.n, text)

    def take(self, stored: bytes) -> bool:
        """False when the message cannot be read, so that nothing after it can be judged."""
        self.report.examined["messages"] += 1
        try:
            message = m.LEDGER_MESSAGE.validate_json(stored)
        except ValidationError as error:
            return self.demand(False, "I7", f"the message after {self.n} cannot be read: {error.errors()[0]['msg']}")
        self._envelope(message)
        self.prev, self.just_released = m.chain_hash(self.prev, stored), []
        answered = {r.fact for r in message.records if isinstance(r, m.JobQueued | m.JobTurnedAway)}
        for taken in message.facts:
            self._fact(taken)
        for index, record in enumerate(message.records):
            self.report.examined[record.kind] += 1
            self._record(f"{self.n}.{index}", record, message.facts)
        for index, taken in enumerate(message.facts):
            if isinstance(taken.fact, f.JobAdmitted | f.JobRefused):
                known = index in answered or taken.fact.job_id in self.jobs
                self.demand(known, "I5", f"job {taken.fact.job_id} is taken in without an answer")
        return True

    def _envelope(self, e: m.LedgerMessage) -> None:
        self.demand(e.n == self.n + 1, "I7", f"{e.n} follows {self.n}")
        self.demand(e.prev == self.prev, "I7", f"{e.n} does not continue the chain")
        self.demand(e.ts >= self.ts, "I7", f"{e.n}: ts goes back from {self.ts} to {e.ts}")
        opened = [record.epoch for record in e.records if isinstance(record, m.EpochOpened)]
        rises = e.epoch >= self.epoch and opened == ([] if e.epoch == self.epoch else [e.epoch])
        self.demand(rises, "I7", f"{e.n}: epoch {e.epoch} after {self.epoch}, opened {opened}")
        seqs = [self.facts_upto, *(taken.seq for taken in e.facts)]
        upto = all(a < b for a, b in pairwise(seqs)) and seqs[-1] <= e.facts_upto
        self.demand(upto, "I7", f"{e.n}: facts {seqs[1:]} between {self.facts_upto} and {e.facts_upto}")
        self.n, self.ts, self.epoch, self.facts_upto = e.n, e.ts, e.epoch, e.facts_upto

    def _fact(self, taken: m.TakenFact) -> None:
        fact = taken.fact
        self.report.examined["facts"] += 1
        self.demand(taken.service == f.OWNERS[type(fact)], "I7", f"{taken.service} said {fact.kind}")
        if isinstance(fact, f.RunAbsent) and fact.run_id in self.runs:
            self.runs[fact.run_id].absent = True
        elif isinstance(fact, f.CancelRequested):
            self.cancels.add((fact.job_id, fact.tenant))
        elif isinstance(fact, f.JobRefused):
            self.repeats[fact.tenant] += fact.repeats

    def _record(self, cursor: str, record: Any, facts: tuple[m.TakenFact, ...]) -> None:
        """Judge one record, take it into the book, and remember the public event that it must make."""
        kind, fact, job = getattr(record, "phase", record.kind), None, None
        handle = getattr(self, f"_{record.kind}", lambda *_: None)
        if kind in CITES:
            fact = facts[record.fact].fact if record.fact < len(facts) else None
            if self.demand(isinstance(fact, CITES[kind]), "I7", f"{kind} cites fact {record.fact}, which is another"):
                handle(record, fact)
            job = self.jobs.get(getattr(record, "job_id", ""))
        elif kind in MOVES:
            job = self._moved(kind, record, handle)
        elif kind == "earmark_ended":
            self.room.kept.subtract(self.earmarks.pop(record.owner, Amounts()))
        if kind in EVENTS or (kind in MOVES and kind != "earmark_set"):
            if kind == "job_turned_away" and not record.reasons:  # admission's refusal: the reasons are the fact's
                record = record.model_copy(update={"reasons": getattr(fact, "reasons", ())})
            tenant, attempt = getattr(job or fact, "tenant", ""), job.attempt if job else 0
            self.expected[cursor] = f"io.tessera.job.{EVENTS.get(kind, kind)}.v1", tenant, job, attempt, record

    def _moved(self, kind: str, record: Any, handle: Any) -> Job | None:
        """Hand a record of a job (and of its unreleased run) on, if the job may make that move."""
        invariant, before, after = MOVES[kind]
        run_id = getattr(record, "run_id", "")
        job_id = getattr(record, "job_id", "") or getattr(record, "owner", "") or run_id.partition("-")[0]
        if (job := self.jobs.get(job_id)) is None:
            self.demand(False, "I11" if job_id in self.turned_away else "I4", f"{kind}: job {job_id} was never queued")
            return None
        run = self.runs.get(run_id)
        if run_id and not self.demand(run is not None and not run.released, "I4", f"{kind}: no run {run_id}"):
            return job
        if self.demand(job.phase in before, invariant, f"{kind}: job {job_id} {run_id} is {job.phase}"):
            handle(record, job, run)
            job.phase = after or job.phase
        return job

    def _config_set(self, r: m.ConfigSet, fact: f.ConfigProposed) -> None:
        follows = r.version - 1 == fact.expected_version == self.version
        self.demand(follows, "I7", f"configuration {r.version} after {self.version}")
        self.version, self.memory_ms = r.version, fact.body.policy.key_memory_seconds * 1000
        self.queues = {queue.name: queue for queue in fact.body.queues}

    def _node_changed(self, r: m.NodeChanged, fact: f.NodeSeen) -> None:
        self.room.nodes[fact.name] = fact

    def _job_turned_away(self, r: m.JobTurnedAway, fact: f.JobAdmitted | f.JobRefused) -> None:
        self.turned_away.add(fact.job_id)

    def _job_queued(self, r: m.JobQueued, fact: f.JobAdmitted) -> None:
        self.demand(fact.job_id == r.job_id, "I7", f"job {r.job_id} is not the job of its fact")
        old = self.jobs.get(r.job_id)
        new = old is None or (old.phase in ENDS and old.forget_ts <= self.ts)
        if self.demand(new, "I4", f"job {r.job_id} was queued twice"):
            self.jobs[r.job_id] = Job(r.job_id, fact.tenant, fact.spec)

    def _placed(self, job: Job, owner: str, placements: tuple[Placement, ...]) -> Amounts:
        """What the gang holds there; nothing if it is not the whole gang."""
        gang = [role for role in job.spec.roles for _ in range(role.replicas)]
        whole = [(place.rank, place.role) for place in placements] == [(i, role.name) for i, role in enumerate(gang)]
        if not self.demand(whole, "I1", f"{owner} is not the whole gang in rank order"):
            return Amounts()
        queue = self.queues.get(job.spec.queue)
        for place, role in zip(placements, gang, strict=True):
            self.report.examined["placements"] += 1
            why = self.room.misplaced(role, place, queue.pool if queue else None)
            self.demand(not why, "I1", f"{owner} rank {place.rank} on {place.node}: {why}")
        return amounts({role.name: role for role in gang}, placements)

    def _take(self, book: Amounts, owner: str, added: Amounts) -> None:
        book.update(added)
        over = self.room.overfull(book, added)
        self.demand(not over, "I1", f"{owner} raises use above capacity: {over}")

    def _allocated(self, r: m.Allocated, job: Job, _: None) -> None:
        run = Run(f"{r.job_id}-{r.attempt}", job, r.deadline, r.placements)
        self.demand(r.attempt == job.attempt + 1, "I4", f"{run.run_id} follows attempt {job.attempt}")
        self.demand(self.ts >= job.not_before, "I4", f"{run.run_id} begins before {job.not_before}")
        self.demand(job.run is None or job.run.released, "I2", f"{run.run_id} begins while another is not released")
        run.amounts = self._placed(job, run.run_id, r.placements)
        self.room.kept.subtract(self.earmarks.pop(r.job_id, Amounts()))
        self._take(self.room.held, run.run_id, run.amounts)
        self._take(self.room.kept, run.run_id, run.amounts)
        use, queue = self._charge(run, 1), self.queues.get(job.spec.queue)
        for quota in queue.quotas if queue else ():
            text = f"{run.run_id}: {job.spec.queue} uses {use[quota.resource]} of {quota.nominal} {quota.resource}"
            self.demand(use[quota.resource] <= quota.nominal, "I6", text)
        job.attempt, job.run, self.runs[run.run_id] = r.attempt, run, run

    def _charge(self, run: Run, sign: int) -> Counter[str]:
        use = self.use.setdefault(run.job.spec.queue, Counter())
        for (_, what), amount in run.amounts.items():
            use["gpu_milli" if what.startswith("gpu/") else what] += sign * amount
        return use

    def _permitted(self, r: m.Permitted, job: Job, run: Run) -> None:
        whole = len(set(r.uids)) == len(r.uids) == len(run.placements)
        self.demand(whole, "I3", f"{r.run_id}: {len(r.uids)} UIDs for {len(run.placements)} pods")
        run.uids = r.uids

    def _started(self, r: m.Started, job: Job, run: Run) -> None:
        self.demand(self.ts <= run.deadline + LATE_MS, "I3", f"{r.run_id} starts long after its deadline")

    def _revoked(self, r: m.Revoked, job: Job, run: Run) -> None:
        if job.phase == "evicting":  # a cancel that comes while the run is stopped to be tried again
            self.demand((run.then, r.then) == ("requeue", "cancelled"), "I4", f"{r.run_id} is revoked twice")
            run.then = r.then
            return
        on_time = job.phase == "running" or self.ts <= run.deadline + LATE_MS
        self.demand(on_time, "I3", f"{r.run_id} is revoked long after its deadline")
        self._asked(job, r.reason.code)
        self.room.kept.subtract(run.amounts)
        run.then = r.then

    def _asked(self, job: Job, code: Code | None) -> None:
        asked = code is not Code.CANCELLED or {(job.job_id, job.tenant), (job.job_id, "")} & self.cancels
        self.demand(bool(asked), "I13", f"job {job.job_id} is cancelled; neither its tenant nor an operator asked")

    def _released(self, r: m.Released, job: Job, run: Run) -> None:
        self.demand(run.absent, "I10", f"{r.run_id} is released before its absence was taken in")
        self.room.held.subtract(run.amounts)
        self.room.kept.subtract(Amounts() if run.then else run.amounts)
        self._charge(run, -1)
        run.released = True
        self.just_released.append(r.run_id)

    def _requeued(self, r: m.Requeued, job: Job, _: None) -> None:
        self._leaves(job, "requeue")
        job.not_before = r.not_before

    def _finished(self, r: m.Finished, job: Job, _: None) -> None:
        self._asked(job, r.reason.code if r.reason else None)
        self._leaves(job, r.phase)
        job.forget_ts = self.ts + self.memory_ms

    def _leaves(self, job: Job, to: str) -> None:
        """A job leaves its revoked run only once that is released, and to what the revoke said or a later cancel."""
        if job.phase == "evicting" and (run := job.run):
            self.demand(run.released, "I10", f"job {job.job_id} leaves its run before the release")
            self.demand(to in (run.then, "cancelled"), "I4", f"job {job.job_id}: {to}, but its revoke said {run.then}")

    def _earmark_set(self, r: m.EarmarkSet, job: Job, _: None) -> None:
        self.demand(r.owner not in self.earmarks, "I1", f"job {r.owner} has an earmark already")
        mark = self.earmarks[r.owner] = self._placed(job, f"the earmark of {r.owner}", r.placements)
        self._take(self.room.kept, f"the earmark of {r.owner}", mark)
