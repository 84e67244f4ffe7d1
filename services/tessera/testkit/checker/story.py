"""The checker's own reading of the ledger: envelopes, jobs, runs, quotas. It shares no code with the fold."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from tessera.testkit.checker.checked_nodes import CheckedNodes, HeldAmounts, amounts
from tessera.testkit.checker.neighbours import NOTHING, StandingPod, crossed
from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.base import INT_MAX
from tessera_schemas.cluster import device_facts as d
from tessera_schemas.config import Queue
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.shard import records as s
from tessera_schemas.shard.ledger_form import chain_hash
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.spec_changes import SizeOfRole, larger_of, resized_role, with_size

LATE_MS = 60_000  # how far past a run's deadline its start or revoke may be before it counts as missed
ENDS = ("succeeded", "failed", "cancelled")
ASKS = f.UpdateRequested | s.RolesRequested | s.ResizeRequested
CITES: dict[str, Any] = {"config_set": f.ConfigProposed, "config_refused": f.ConfigProposed, "node_changed": f.NodeSeen}
CITES |= {"job_queued": f.JobAdmitted, "pods_taken_over": f.PodsFound}
CITES |= {"devices_noted": d.LayoutSeen | d.ClassSeen | d.DevicesSelected}
CITES |= {"job_turned_away": f.JobAdmitted | f.JobRefused | ASKS, "dataset_noted": s.DatasetTold}
MOVES = {  # record, or how it ended: what is broken if the job is in none of these phases; the phase after
    "array_closed": ("I4", ("array",), ""),
    "dependency_met": ("I4", ("queued", "array"), ""),
    "waiting": ("I4", ("queued", "array", "evicting"), ""),  # what keeps a run from going is said, too
    "back_in_line": ("I4", ("queued",), ""),
    "job_updated": ("I4", ("queued", "array", "allocated", "binding", "running", "evicting"), ""),
    "job_moved": ("I4", ("queued", "array", "allocated", "binding", "running", "evicting"), ""),
    "earmark_set": ("I4", ("queued", "evicting"), ""),
    "allocated": ("I4", ("queued",), "allocated"),
    "permitted": ("I3", ("allocated",), "binding"),
    "bound": ("I3", ("binding", "running"), ""),
    "delayed": ("I3", ("binding",), ""),
    "started": ("I3", ("binding",), "running"),
    "revoked": ("I4", ("allocated", "binding", "running", "evicting"), "evicting"),
    "spared": ("I4", ("evicting",), "running"),
    "released": ("I10", ("evicting", *ENDS), ""),
    "grown": ("I3", ("running",), ""),
    "shrunk": ("I4", ("running",), ""),
    "roles_shifted": ("I4", ("running",), ""),
    "group_restarted": ("I4", ("running",), ""),
    "group_permitted": ("I3", ("running",), ""),
    "group_resumed": ("I3", ("running",), ""),
    "resize_begun": ("I4", ("running",), ""),
    "resize_ended": ("I4", ("running",), ""),
    "permitted_part": ("I3", ("running",), ""),
    "released_part": ("I10", ("running", "evicting", *ENDS), ""),
    "requeued": ("I4", ("evicting",), "queued"),
    "owner_end_noted": ("I4", ("allocated", "binding", "running", "evicting"), ""),
    "succeeded": ("I4", ("queued", "running", "evicting", "array"), "succeeded"),
    "failed": ("I4", ("queued", "evicting", "array"), "failed"),
    "cancelled": ("I4", ("queued", "evicting", "array"), "cancelled"),
}


@dataclass(slots=True)
class CheckedJob:
    job_id: str
    tenant: str
    spec: JobSpec
    levels: dict[str, str]  # the labels of topology levels when it was queued
    not_before: int = 0
    adopted: bool = False
    late: int = 0  # its last pods, which come once the others run
    taken_over: tuple[str, ...] = ()  # the nodes where its pods work already, until it is allocated there
    phase: str = "queued"
    forget_ts: int = 0
    runs: "list[CheckedRun]" = field(default_factory=list)
    array: str = ""  # of which it is a task

    @property
    def stands(self) -> str:
        """An array has no run: its end is the relations checker's to judge."""
        return "array" if self.spec.array is not None and self.phase == "queued" else self.phase

    @property
    def latest_start_ts(self) -> int:
        """Last time at which it may start, by its deadline."""
        spec = self.spec
        return spec.deadline_ts - (spec.time_limit_seconds or 0) * 1000 if spec.deadline_ts else INT_MAX

    def amounts(self, gang: Iterable[Role], placements: Iterable[Placement]) -> HeldAmounts:
        """Amounts that these pods of it hold."""
        return amounts(gang, placements, self.tenant, self.array or self.job_id)


@dataclass(slots=True)
class CheckedRun:
    run_id: str
    job: CheckedJob
    deadline: int
    placements: list[Placement]  # by rank
    amounts: HeldAmounts  # held until the release
    kept: HeldAmounts  # the same, but for pods that are to leave
    uids: dict[int, str] = field(default_factory=dict)
    then: str = ""
    absent: bool = False
    released: bool = False
    succeeded: bool = False  # so it was said, and that it saved its work since it was to be stopped
    saved: bool = False
    broken: bool = False  # a pod of it was seen to end otherwise before: what the others make of that says nothing
    leaving: set[int] = field(default_factory=set)  # ranks, and of them those seen absent, and those released
    gone: set[int] = field(default_factory=set)
    free: set[int] = field(default_factory=set)
    start_ms: int = 0  # that it has to start in
    restarts: dict[int, tuple[int, ...]] = field(default_factory=dict)  # ranks that start again, not permitted yet
    former: set[tuple[int, str]] = field(default_factory=set)  # what was permitted before that
    roles: dict[str, Role] = field(default_factory=dict)  # of the sizes that it holds, while resized the larger ones


def _standing(job: CheckedJob, placements: Iterable[Placement]) -> list[StandingPod]:
    roles = {role.name: role for role in job.spec.roles}
    known = (place for place in placements if place.role in roles)
    return [StandingPod(job.tenant, roles[place.role], place.node, job.levels) for place in known]


class Story:
    """Takes stored messages in order; what it learnt is there for the other checks."""

    def __init__(self, report: Report) -> None:
        self.report, self.checked_nodes, self.prev = report, CheckedNodes(), m.GENESIS
        self.n = self.ts = self.epoch = self.facts_upto = self.version = self.memory_ms = 0
        # no deadline is judged before the first, or while facts wait; starts were watched without a gap since the last
        self.led_since, self.facts_wait, self.starts_since = 0, False, 0
        self.queues, self.levels = dict[str, Queue](), dict[str, str]()
        self.jobs, self.runs, self.earmarks = dict[str, CheckedJob](), dict[str, CheckedRun](), dict[str, HeldAmounts]()
        self.turned_away, self.repeats = set[str](), Counter[str]()

    def demand(self, holds: bool, invariant: str, text: str) -> bool:
        """Counts one check of an invariant at the message that is being read; returns `holds`."""
        return self.report.demand(holds, invariant, self.n, text)

    def take(self, stored: bytes) -> bool:
        """False when the message cannot be read, so that nothing after it can be judged."""
        self.report.examined["messages"] += 1
        try:
            message = m.LEDGER_MESSAGE.validate_json(stored)
        except ValidationError as error:
            return self.demand(False, "I7", f"the message after {self.n} cannot be read: {error.errors()[0]['msg']}")
        self._envelope(message)
        self.prev = chain_hash(self.prev, stored)
        for taken in message.facts:
            self._fact(taken)
        for record in message.records:
            self._record(record, message.facts)
        answered = {r.fact for r in message.records if isinstance(r, m.JobQueued | m.JobTurnedAway)}
        new = [taken.fact for i, taken in enumerate(message.facts) if i not in answered]
        lost = [t.job_id for t in new if isinstance(t, f.JobAdmitted | f.JobRefused) and t.job_id not in self.jobs]
        self.demand(not lost, "I5", f"jobs {lost} are taken in without an answer")
        return True

    def _envelope(self, e: m.LedgerMessage) -> None:
        self.demand((e.n, e.prev) == (self.n + 1, self.prev), "I7", f"{e.n} does not continue the chain after {self.n}")
        self.demand(e.ts >= self.ts, "I7", f"{e.n}: ts goes back from {self.ts} to {e.ts}")
        opened = [record.epoch for record in e.records if isinstance(record, m.EpochOpened)]
        rises = e.epoch >= self.epoch and opened == ([] if e.epoch == self.epoch else [e.epoch])
        self.demand(rises, "I7", f"{e.n}: epoch {e.epoch} after {self.epoch}, opened {opened}")
        seqs = [self.facts_upto, *(taken.seq for taken in e.facts)]
        upto = all(a < b for a, b in pairwise(seqs)) and seqs[-1] <= e.facts_upto
        self.demand(upto, "I7", f"{e.n}: facts {seqs[1:]} between {self.facts_upto} and {e.facts_upto}")
        self.demand(not e.facts_wait or self.facts_wait or bool(opened), "I3", f"{e.n} judges no deadlines any more")
        if opened or e.facts_wait:
            self.led_since = e.ts
        self.n, self.ts, self.epoch, self.facts_upto = e.n, e.ts, e.epoch, e.facts_upto
        self.facts_wait = e.facts_wait
        self.demand(e.starts_since <= e.ts, "I3", f"{e.n} watches starts from {e.starts_since} on")
        self.starts_since = max(self.starts_since, e.starts_since)

    def _fact(self, taken: m.TakenFact) -> None:
        fact = taken.fact
        self.report.examined["facts"] += 1
        self.demand(taken.service == f.owner(fact), "I7", f"{taken.service} said {fact.kind}")
        if isinstance(fact, f.RunAbsent) and (run := self.runs.get(fact.run_id)) is not None:
            run.absent |= not fact.ranks
            run.gone |= (run.leaving | {*run.uids}) & {*fact.ranks}
        elif isinstance(fact, f.RunEnded) and (run := self.runs.get(fact.run_id)) is not None:
            run.succeeded |= fact.reason is None
            run.broken |= not run.succeeded
        elif isinstance(fact, f.JobRefused):
            self.repeats[fact.tenant] += fact.repeats

    def _record(self, record: Any, facts: tuple[m.TakenFact, ...]) -> None:
        """Judge one record and take it into the book: one that cites a fact, or moves a job, or neither."""
        self.report.examined[record.kind] += 1
        part = record.kind in ("permitted", "released") and record.ranks
        kind = f"{record.kind}_part" if part else getattr(record, "phase", record.kind)
        handle = getattr(self, f"_{record.kind}", lambda *_: None)
        if kind in CITES:
            fact = facts[record.fact].fact if record.fact < len(facts) else None
            if self.demand(isinstance(fact, CITES[kind]), "I7", f"{kind} cites fact {record.fact}, which is another"):
                handle(record, fact)
        elif kind in MOVES:
            self._move(kind, record, handle)
        else:
            handle(record)

    def _move(self, kind: str, record: Any, handle: Any) -> None:
        """Hand a record of a job (and of its unreleased run) on, if the job may make that move."""
        invariant, before, after = MOVES[kind]
        run_id = getattr(record, "run_id", "")
        job_id = getattr(record, "job_id", "") or getattr(record, "owner", "") or run_id.partition("-")[0]
        job, run = self.jobs.get(job_id), self.runs.get(run_id)
        if job is None:
            self.demand(False, "I11" if job_id in self.turned_away else "I4", f"{kind}: job {job_id} was never queued")
        elif run_id and (run is None or run.released):
            self.demand(False, "I4", f"{kind}: no run {run_id}")
        elif self.demand(job.stands in before, invariant, f"{kind}: job {job_id} {run_id} is {job.phase}"):
            handle(record, job, run)
            job.phase = after or job.phase

    def _config_set(self, r: m.ConfigSet, fact: f.ConfigProposed) -> None:
        self.demand(r.version - 1 == fact.expected_version == self.version, "I7", f"{r} follows version {self.version}")
        self.version, self.memory_ms = r.version, fact.body.policy.key_memory_seconds * 1000
        self.queues, self.levels = {q.name: q for q in fact.body.queues}, {t.name: t.label for t in fact.body.topology}
        self.checked_nodes.bearing = (*fact.body.pools, *fact.body.tenants)
        self.checked_nodes.kept_percent = fact.body.policy.kept_beside_gpus_percent

    def _node_changed(self, r: m.NodeChanged, fact: f.NodeSeen) -> None:
        self.checked_nodes.nodes[fact.name] = fact

    def _devices_noted(self, r: m.DevicesNoted, fact: d.LayoutSeen | d.ClassSeen | d.DevicesSelected) -> None:
        self.checked_nodes.devices.take(fact)

    def _pods_taken_over(self, r: m.PodsTakenOver, fact: f.PodsFound) -> None:
        job = self.jobs.get(r.job_id)
        waits = job is not None and job.stands == "queued" and fact.job_id == r.job_id
        if not self.demand(waits, "I4", f"{r.job_id} does not wait, and pods are taken over for it") or job is None:
            return
        gang = [role for role in job.spec.roles for _ in range(role.gang)]
        if self.demand(len(gang) == len(fact.nodes) == len(fact.uids), "I1", f"{r.job_id} takes over a part of a gang"):
            job.taken_over = fact.nodes
            for role, node in zip(gang, fact.nodes, strict=True):
                self.checked_nodes.take_over(role, node)

    def _job_turned_away(self, r: m.JobTurnedAway, fact: f.JobAdmitted | f.JobRefused | ASKS) -> None:
        if isinstance(fact, f.JobAdmitted | f.JobRefused):
            self.turned_away.add(fact.job_id)

    def _job_queued(self, r: m.JobQueued, fact: f.JobAdmitted) -> None:
        self.demand(fact.job_id == r.job_id, "I7", f"job {r.job_id} is not the job of its fact")
        new = (old := self.jobs.get(r.job_id)) is None or (old.phase in ENDS and old.forget_ts <= self.ts)
        if self.demand(new, "I4", f"job {r.job_id} was queued twice"):
            adopted, late = fact.adopted is not None, fact.adopted.late_pods if fact.adopted else 0
            made = (r.job_id, fact.tenant, fact.spec, self.levels, fact.spec.begin_ts)
            self.jobs[r.job_id] = CheckedJob(*made, adopted, late)

    def _task_queued(self, r: m.TaskQueued) -> None:
        """A task is a job like its array, but for the array."""
        array, old = self.jobs.get(r.array), self.jobs.get(r.job_id)
        new = old is None or (old.phase in ENDS and old.forget_ts <= self.ts)
        if self.demand(new and array is not None, "I4", f"task {r.job_id} was queued twice") and array is not None:
            spec = array.spec.model_copy(update={"array": None})
            task = CheckedJob(r.job_id, array.tenant, spec, array.levels, array.not_before, array=r.array)
            self.jobs[r.job_id] = task

    def _job_moved(self, r: m.JobMoved, job: CheckedJob, _: None) -> None:
        self.demand(job.spec.queue != r.queue, "I4", f"job {r.job_id} moves to {r.queue}, where it is")
        job.spec = job.spec.model_copy(update={"queue": r.queue})

    def _job_updated(self, r: m.JobUpdated, job: CheckedJob, _: None) -> None:
        """A job that waits may get all of it, and one with a run a lower time limit alone."""
        limit, now = r.changes.time_limit_seconds, job.spec.time_limit_seconds
        lowers = set(r.changes.given) == {"time_limit_seconds"} and limit and limit < (now or limit + 1)
        waits = job.stands in ("queued", "array")
        self.demand(bool(waits or lowers), "I4", f"job {r.job_id} is {job.phase} and gets {r.changes.given}")
        given = {**r.changes.given, **({"time_limit_seconds": limit or None} if limit is not None else {})}
        job.spec = job.spec.model_copy(update=given)
        if r.changes.begin_ts is not None:
            job.not_before = r.changes.begin_ts

    def _placed(self, job: CheckedJob, owner: str, placements: tuple[Placement, ...]) -> HeldAmounts:
        """Amounts that the gang holds there; a violation, and nothing, if the placements are not the whole gang."""
        gang = [role for role in job.spec.roles for _ in range(role.gang)]
        whole = [(place.rank, place.role) for place in placements] == [(i, role.name) for i, role in enumerate(gang)]
        if not self.demand(whole, "I1", f"{owner} is not the whole gang in rank order"):
            return HeldAmounts()
        if job.taken_over:
            stands = tuple(place.node for place in placements) == job.taken_over
            self.demand(stands, "I1", f"{owner} is not where its pods work")
            return job.amounts(gang, placements)
        self._may_be(job, owner, gang, placements)
        self.demand(not (apart := self.checked_nodes.apart(gang, placements, job.levels)), "I1", f"{owner}: {apart}")
        scattered = self.checked_nodes.scattered(job.spec, placements, job.levels)
        self.demand(not scattered, "I1", f"{owner}: {scattered}")
        return job.amounts(gang, placements)

    def _may_be(self, job: CheckedJob, owner: str, roles: list[Role], placements: tuple[Placement, ...]) -> None:
        queue, joined = self.queues.get(job.spec.queue), set[str]()
        for place, role in zip(placements, roles, strict=True):
            self.report.examined["placements"] += 1
            why = self.checked_nodes.misplaced(role, place, queue, job.tenant, job.adopted, joined)
            joined |= {claim.shared_as for claim in role.resources.claims if claim.shared_as}
            self.demand(not why, "I1", f"{owner} rank {place.rank} on {place.node}: {why}")

    def _take(self, owner: str, added: HeldAmounts, *books: HeldAmounts) -> None:
        over = {what for book in books for what in self.checked_nodes.take(book, added)}
        self.demand(not over, "I1", f"{owner} raises use above capacity: {sorted(over)}")

    def _allocated(self, r: m.Allocated, job: CheckedJob, _: None) -> None:
        run_id = f"{r.job_id}-{r.attempt}"
        self.demand(r.attempt == len(job.runs) + 1, "I4", f"{run_id} follows {len(job.runs)} attempts")
        early = self.ts < job.not_before and not job.taken_over  # what works already waits for no back-off
        self.demand(not early, "I4", f"{run_id} begins before {job.not_before}")
        self.demand(self.ts <= job.latest_start_ts, "I4", f"{run_id} begins too late to end by its deadline")
        self.demand(all(run.released for run in job.runs), "I2", f"{run_id} begins while another is not released")
        self._heeds_others(run_id, job, r.placements)
        takes, start_ms = self._placed(job, run_id, r.placements), r.deadline - self.ts
        run = CheckedRun(run_id, job, r.deadline, list(r.placements), takes, takes.copy(), start_ms=start_ms)
        run.roles = {role.name: role for role in job.spec.roles}
        self.runs[run_id] = run
        job.runs.append(run)
        self._take(run_id, run.amounts, self.checked_nodes.held, self.checked_nodes.kept)
        self._spares(run_id, job, takes)
        job.taken_over = ()

    def _heeds_others(self, run_id: str, job: CheckedJob, placements: tuple[Placement, ...]) -> None:
        new = [] if job.taken_over else [pod for pod in _standing(job, placements) if pod.terms != NOTHING]
        runs = [run for run in self.runs.values() if new and not run.released]
        places = [(run.job, [p for p in run.placements if p.rank not in run.free]) for run in runs]
        others = [pod for each, held in places for pod in _standing(each, held) if pod.terms != NOTHING]
        for pod in new:
            wrong = [*crossed(pod, others, self.checked_nodes.nodes)]
            self.demand(not wrong, "I1", f"{run_id} on {pod.node}: {'; '.join(wrong)}")

    def _spares(self, run_id: str, job: CheckedJob, added: HeldAmounts) -> None:
        asked = [role.resources for role in job.spec.roles]
        claims = [claim for each in asked for claim in each.claims]
        uses_gpus = any(each.total_gpu_milli for each in asked) or any(
            map(self.checked_nodes.devices.gpu_milli, claims)
        )
        if not (job.taken_over or uses_gpus):
            used = sum(self.earmarks.values(), self.checked_nodes.held.copy())
            self.demand(not self.checked_nodes.crowded(used, added), "I1", f"{run_id} uses what is kept beside GPUs")

    def _permitted(self, r: m.Permitted, job: CheckedJob, run: CheckedRun) -> None:
        every = range(len(run.placements))
        named = r.ranks or every[: len(every) - job.late]
        permits, open_ = dict(zip(named, r.uids, strict=False)), {*every} - {*run.uids, *run.leaving}
        due = len(named) == len(r.uids) == len({*r.uids}) == len(permits.keys() & open_)
        self.demand(due, "I3", f"{r} is not one UID for each pod")
        run.uids = permits | run.uids

    def _grown(self, r: m.Grown, job: CheckedJob, run: CheckedRun) -> None:
        roles, ranks = run.roles, [place.rank for place in r.placements]
        gang = [roles[place.role] for place in r.placements if place.role in roles]
        new = ranks == [*range(len(run.placements), len(run.placements) + len(gang))]
        if not self.demand(new and not run.then, "I3", f"{r.run_id} grows by {ranks} beside {len(run.placements)}"):
            return
        run.placements += r.placements
        self._may_be(job, r.run_id, gang, r.placements)
        scattered = self.checked_nodes.scattered(job.spec, r.placements, job.levels, run.placements[:1])
        self.demand(not scattered, "I1", f"{r.run_id} grows: {scattered}")
        added, nodes = job.amounts(gang, r.placements), self.checked_nodes
        self._take(r.run_id, added, nodes.held, nodes.kept, run.amounts, run.kept)
        self._spares(r.run_id, job, added)

    def _shrunk(self, r: m.Shrunk | s.RolesShifted, job: CheckedJob, run: CheckedRun) -> None:
        extra = {*range(sum(role.gang for role in job.spec.roles), len(run.placements))} - run.leaving - run.free
        if self.demand(not run.then and {*r.ranks} <= extra, "I4", f"{r.run_id} shrinks by {r.ranks} of {extra}"):
            self._give(run, r.ranks, self.checked_nodes.kept, run.kept)
            run.leaving |= {*r.ranks}

    def _roles_shifted(self, r: s.RolesShifted, job: CheckedJob, run: CheckedRun) -> None:
        self._shrunk(r, job, run)

    def _give(self, run: CheckedRun, ranks: Iterable[int], *books: HeldAmounts) -> None:
        places = [run.placements[rank] for rank in ranks]
        for book in books:
            book.subtract(run.job.amounts([run.roles[place.role] for place in places], places))

    def _resize_begun(self, r: s.ResizeBegun, job: CheckedJob, run: CheckedRun) -> None:
        """From here on pods may be of either size: the run holds the larger, and the job asks for the new one."""
        self.demand(not run.then and r.role in run.roles, "I4", f"{r.run_id} is resized while it stops")
        self._holds_as(run, larger_of(run.roles[r.role], r))
        job.spec = with_size(job.spec, r)

    def _resize_ended(self, r: s.ResizeEnded, job: CheckedJob, run: CheckedRun) -> None:
        self.demand(not run.then, "I4", f"{r.run_id} ends its resize while it stops")
        if r.reason is None:
            self._holds_as(run, r)
        else:
            job.spec = with_size(job.spec, r)

    def _holds_as(self, run: CheckedRun, size: SizeOfRole) -> None:
        """Each pod of the role holds this size; what it holds more has to be there, as nodes are."""
        before = run.roles[size.role]
        after, nodes, growth = resized_role(before, size), self.checked_nodes, HeldAmounts()
        pods = [place for place in run.placements if place.role == size.role and place.rank not in run.free]
        going = [place for place in pods if place.rank not in run.leaving]
        for places, book, own in ((pods, nodes.held, run.amounts), (going, nodes.kept, run.kept)):
            more = run.job.amounts([after] * len(places), places)
            more.subtract(run.job.amounts([before] * len(places), places))
            growth = +more
            self._take(run.run_id, growth, book, own)
            book.subtract(-more)
            own.subtract(-more)
        self._spares(run.run_id, run.job, growth)
        run.roles[size.role] = after

    def _group_permitted(self, r: s.GroupPermitted, job: CheckedJob, run: CheckedRun) -> None:
        """New pods of ranks that start again: each UID once in the run, and the former one is bound no more."""
        ranks = run.restarts.pop(r.restart, ())
        due = not run.then and len(ranks) == len(r.uids) == len({*r.uids}) and not {*r.uids} & {*run.uids.values()}
        self.demand(due, "I3", f"{r} is not one new UID for each pod that starts again")
        run.former |= run.uids.items()
        run.uids |= dict(zip(ranks, r.uids, strict=False))

    def _group_restarted(self, r: s.GroupRestarted, job: CheckedJob, run: CheckedRun) -> None:
        run.restarts = {at: ranks for at, ranks in run.restarts.items() if not {*ranks} <= {*r.ranks}}
        run.restarts[r.restart] = r.ranks
        self.demand(not run.then and not {*r.ranks} & run.free, "I4", f"{r} starts pods again that are no more")

    def _delayed(self, r: m.Delayed, job: CheckedJob, run: CheckedRun) -> None:
        self.demand(r.deadline >= run.deadline, "I3", f"{r.run_id} gets less time to start than it had")
        run.deadline = r.deadline

    def _started(self, r: m.Started, job: CheckedJob, run: CheckedRun) -> None:
        self.demand(self._late_ms(run) <= LATE_MS, "I3", f"{r.run_id} starts long after its deadline")

    def _late_ms(self, run: CheckedRun) -> int:
        return self.ts - max(run.deadline, self.led_since, self.starts_since + run.start_ms)

    def _revoked(self, r: m.Revoked, job: CheckedJob, run: CheckedRun) -> None:
        if job.phase == "evicting":  # a cancel that comes while the run is stopped to be tried again
            again = r.now or r.ended or (run.then, r.then) == ("requeue", "cancelled")
            self.demand(again, "I4", f"{r.run_id} is revoked twice")
        else:
            on_time = job.phase == "running" or self._late_ms(run) <= LATE_MS
            self.demand(on_time, "I3", f"{r.run_id} is revoked long after its deadline")
            watched = self.ts >= self.starts_since + run.start_ms
            judged = r.by != "deadline" or (watched and not self.facts_wait)
            self.demand(judged, "I3", f"{r.run_id} is ended by its deadline before all was taken in and watched")
            self.checked_nodes.kept.subtract(run.kept)
        run.then = r.then

    def _saved(self, r: m.Saved) -> None:
        if (run := self.runs.get(r.run_id)) is not None:
            run.saved |= bool(run.then)

    def _spared(self, r: m.Spared, job: CheckedJob, run: CheckedRun) -> None:
        """Count a spared run again, beside earmarks: its room may not have been given away meanwhile."""
        marks = self.earmarks.values()
        over = {
            at for at in self.checked_nodes.take(self.checked_nodes.kept, run.kept) if any(mark[at] for mark in marks)
        }
        spare = run.then == "requeue" and not over
        self.demand(spare, "I1", f"{r.run_id} is spared, kept for others is {sorted(over)}")
        run.then, run.saved = "", False

    def _released(self, r: m.Released, job: CheckedJob, run: CheckedRun) -> None:
        absent = {*r.ranks} <= run.gone - run.free if r.ranks else run.absent
        self.demand(absent, "I10", f"{r.run_id} {r.ranks or ''} is released before its absence was taken in")
        gives = {*r.ranks} & run.gone - run.free
        self._give(run, gives, self.checked_nodes.held, run.amounts)
        early = (
            [run.kept] if run.then else [run.kept, self.checked_nodes.kept]
        )  # what stops counts as gone there already
        self._give(run, gives - run.leaving, *early)
        run.free, run.released = run.free | gives, not r.ranks
        self.checked_nodes.held.subtract(run.amounts if run.released else HeldAmounts())

    def _requeued(self, r: m.Requeued, job: CheckedJob, _: None) -> None:
        self._leaves(r, job, "requeue")
        run = job.runs[-1]
        again = run.saved or run.broken or not run.succeeded or job.spec.service is not None
        self.demand(again, "I4", f"{run.run_id} had succeeded, and is run again")
        job.not_before = r.not_before

    def _finished(self, r: m.Finished, job: CheckedJob, _: None) -> None:
        job.forget_ts = self.ts + self.memory_ms
        if r.reason is not None and r.reason.code == "DeadlineMissed":
            missed = job.phase == "queued" and self.ts > job.latest_start_ts
            self.demand(missed, "I4", f"{r.job_id} is said to miss its deadline")
        if r.phase != "succeeded" or not job.runs or job.runs[-1].released or job.spec.array is not None:
            self._leaves(r, job, r.phase)
            return
        run = job.runs[-1]  # it stops by itself, or has before anything of it was stopped
        self.demand(run.succeeded, "I4", f"job {job.job_id} succeeded, but nobody said so of {run.run_id}")
        if job.phase != "evicting":
            self.checked_nodes.kept.subtract(run.kept)
        run.then = r.phase

    def _leaves(self, r: m.Requeued | m.Finished, job: CheckedJob, to: str) -> None:
        """A job leaves its revoked run only once that is released, and to what the revoke said or a later cancel."""
        if job.phase == "evicting":
            then = job.runs[-1].then
            self.demand(job.runs[-1].released, "I10", f"job {job.job_id} leaves its run before the release")
            own = to in (then, "cancelled") or (then == "requeue" and not isinstance(r, m.Requeued))
            self.demand(own, "I4", f"job {job.job_id}: {to}, but its revoke said {then}")

    def _earmark_set(self, r: m.EarmarkSet, job: CheckedJob, _: None) -> None:
        self.demand(r.owner not in self.earmarks, "I1", f"job {r.owner} has an earmark already")
        # Who moves has its next place kept before it stops.
        moves = r.cause in ("defragment", "cordon")
        self.demand(job.phase == "queued" or moves, "I4", f"room is kept for {r.owner}: {job.phase}")
        what, last = f"the earmark of {r.owner}", job.runs[-1].placements if job.runs else []
        if r.cause == "restart":  # perhaps a part of its last place, and never more
            self.demand(all(place in last for place in r.placements), "I1", f"{what} is not where it ran")
            gang = [role for role in job.spec.roles for _ in range(role.gang)]
            self.earmarks[r.owner] = mark = job.amounts([gang[place.rank] for place in r.placements], r.placements)
        else:
            self.earmarks[r.owner] = mark = self._placed(job, what, r.placements)
        self._take(f"the earmark of {r.owner}", mark, self.checked_nodes.kept)

    def _earmark_ended(self, r: m.EarmarkEnded) -> None:
        self.checked_nodes.kept.subtract(self.earmarks.pop(r.owner, HeldAmounts()))
