"""
The rules of bookings: nobody else's run within a window, none that would not have left by then, and each stop for one
when it is due.

The checker keeps its own book of who is on which node, by docs/reservations.md, and imports the contract alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code
from tessera_schemas.shard.bookings import BookedWindow, BookingShort, Rebooked

PROMISE_LEAD_MS = 10_000


@dataclass(slots=True, eq=False)
class HeldPods:
    """A run: its job, the node of each rank, since when, which pods leave, and whether all of it stops."""

    job_id: str
    places: dict[int, str]
    since_ts: int
    leaving: set[int] = field(default_factory=set)
    stops: bool = False

    @property
    def staying(self) -> set[str]:
        """The nodes of pods that were not told to stop."""
        return set() if self.stops else {node for rank, node in self.places.items() if rank not in self.leaving}


def check_bookings(report: Report, ledger: Iterable[bytes]) -> None:
    """
    Judge a ledger's bookings; each violation names the rule `booking`.

    Args:
        report: what is found goes here, beside what the invariant checker found.
        ledger: the stored bytes of every message, in order, from n = 1. The first that cannot be read ends the check.
    """
    rules = BookingRules(report)
    for stored in ledger:
        try:
            rules.take(m.LEDGER_MESSAGE.validate_json(stored))
        except ValidationError:
            return


@dataclass
class BookingRules:
    """Takes messages in order; `late` are the runs that stood in another's window at the message before."""

    report: Report
    body: ConfigBody | None = None
    n: int = 0
    ts: int = 0
    asked: dict[str, f.BookingAsked] = field(default_factory=dict)
    booked: dict[str, m.Booked] = field(default_factory=dict)
    pools: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, tuple[str, JobSpec, bool]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    runs: dict[str, HeldPods] = field(default_factory=dict)
    late: set[tuple[str, str]] = field(default_factory=set)
    seen: dict[str, bool] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)

    def demand(self, holds: bool, text: str) -> None:
        """Counts one check at the message that is being read, and a violation where it does not hold."""
        self.report.demand(holds, "booking", self.n, text)

    def take(self, message: m.LedgerMessage) -> None:
        """Follows each record of a message, then looks who stands where he should not."""
        self.n, self.ts = message.n, message.ts
        for taken in message.facts:
            if isinstance(taken.fact, f.BookingAsked):
                self.asked[taken.fact.wish.name] = taken.fact
            elif isinstance(taken.fact, f.NodeSeen):
                self.pools[taken.fact.name] = taken.fact.pool
        for record in message.records:
            cited = message.facts[at].fact if 0 <= (at := getattr(record, "fact", -1)) < len(message.facts) else None
            getattr(self, f"_{record.kind}", lambda *_: None)(record, cited)
        if self.booked:
            standing = {(name, run) for name in self.booked for run in self.runs if self._stands_within(name, run)}
            for name, run in sorted(standing & self.late):
                self.demand(False, f"{run} stands within the window of {name}, and is not told to stop")
            self.late = standing

    # -- bookings

    def _booked(self, r: m.Booked, _: Any) -> None:
        if r.job:
            self._promised(r)
            return
        asked = self.asked.get(r.name)
        if asked is None:
            self.demand(False, f"nobody asked for {r.name}")
            return
        wish = asked.wish
        kept = (r.pool, set(r.who)) == (wish.pool, set(wish.who)) and (wish.first or r.windows == wish.windows)
        chosen = set(r.nodes) == set(wish.nodes) or bool(wish.node_count or wish.gpus)
        self.demand(kept and chosen, f"{r.name} is not what was asked for")
        self.demand(wish.node_count in (None, len(r.nodes)), f"{r.name} has {len(r.nodes)} nodes")
        self._check_apart(r)
        self.booked[r.name] = r

    def _promised(self, r: m.Booked) -> None:
        """A promise: for a job that asked for it, of a tenant that is granted it, from shortly before that time on."""
        tenant, spec, _adopted = self.jobs.get(r.job, ("", None, False))
        tenants = () if self.body is None else self.body.tenants
        granted = any(each.name == tenant and each.promises for each in tenants)
        self.demand(
            granted and r.name.startswith("promise-") and r.who == (tenant,),
            f"{r.name} is promised what it may not have",
        )
        begins = None if spec is None else spec.start_by_ts - PROMISE_LEAD_MS
        self.demand([each.start_ts for each in r.windows] == [begins], f"{r.name} is promised another start")
        self._check_apart(r)
        self.booked[r.name] = r

    def _check_apart(self, r: m.Booked) -> None:
        for other in self.booked.values():
            apart = other.pool != r.pool or (r.nodes and other.nodes and not set(r.nodes) & set(other.nodes))
            times = any(a.start_ts < b.end_ts and b.start_ts < a.end_ts for a in r.windows for b in other.windows)
            self.demand(bool(apart) or not times, f"{r.name} and {other.name} have one node at one time")

    def _rebooked(self, r: Rebooked, _: Any) -> None:
        booked = self.booked.pop(r.name, None)
        if booked is None or not (booked.node_count or booked.gpus) or self._window(booked) is not None:
            self.demand(False, f"{r.name} has nodes replaced that are not chosen, or in its window")
            return
        lost, found = {*r.lost}, {*r.found}
        mine = lost <= {*booked.nodes} and not found & {*booked.nodes}
        self.demand(mine and not any(map(self._is_well, lost)), f"{r.name} gives up nodes that it has not lost")
        there = all(self._is_well(node) and self.pools.get(node) == booked.pool for node in found)
        self.demand(there, f"{r.name} gets nodes that are not there")
        self.demand(booked.gpus is not None or len(lost) == len(found), f"{r.name} has another number of nodes")
        anew = booked.model_copy(update={"nodes": tuple(sorted({*booked.nodes} - lost | found))})
        self._check_apart(anew)
        self.booked[r.name] = anew

    def _booking_short(self, r: BookingShort, _: Any) -> None:
        booked = self.booked.get(r.name)
        lacks = booked is not None and bool(booked.who) and all(self._has(booked, node) for node in r.missing)
        self.demand(lacks and not any(map(self._is_well, r.missing)), f"{r.name} does not lack {r.missing}")

    def _node_changed(self, r: m.NodeChanged, fact: Any) -> None:
        if isinstance(fact, f.NodeSeen):
            self.seen[fact.name] = fact.ready and not fact.gone and fact.trouble is None

    def _node_drained(self, r: m.NodeDrained, _: Any) -> None:
        (self.drained.discard if r.undo else self.drained.add)(r.node)

    def _is_well(self, node: str) -> bool:
        return self.seen.get(node, False) and node not in self.drained

    def _booking_ended(self, r: m.BookingEnded, _: Any) -> None:
        known = self.booked.pop(r.name, None)
        over = known is not None and (r.why == "asked" or known.windows[-1].end_ts <= self.ts)
        if known is not None and known.job:
            over = self._promise_ends(known, r)
        self.demand(over, f"{r.name} ends, and is not over")

    def _promise_ends(self, known: m.Booked, r: m.BookingEnded) -> bool:
        """Whether it is kept, broken or dropped as its job's start says; an operator may take any of them back."""
        due = known.windows[0].start_ts + PROMISE_LEAD_MS
        run = next((run for run in self.runs.values() if run.job_id == known.job and not run.stops), None)
        if r.why == "kept":
            return run is not None and run.since_ts <= due
        if r.why == "broken":
            taken_back = r.reason is not None and r.reason.code is Code.CANCELLED
            return taken_back or (self.ts > due and (run is None or run.since_ts > due))
        return run is None

    def _has(self, booked: m.Booked, node: str) -> bool:
        return node in booked.nodes if booked.nodes else self.pools.get(node) == booked.pool

    def _window(self, booked: m.Booked) -> BookedWindow | None:
        """The window that is now."""
        return next((each for each in booked.windows if each.start_ts <= self.ts < each.end_ts), None)

    # -- jobs and their runs

    def _config_set(self, r: m.ConfigSet, fact: Any) -> None:
        self.body = fact.body if isinstance(fact, f.ConfigProposed) else self.body

    def _job_queued(self, r: m.JobQueued, fact: Any) -> None:
        if isinstance(fact, f.JobAdmitted):
            self.jobs[r.job_id] = fact.tenant, fact.spec, fact.adopted is not None
            self.limits[r.job_id] = fact.spec.time_limit_seconds or 0

    def _task_queued(self, r: m.TaskQueued, _: Any) -> None:
        if r.array in self.jobs:
            self.jobs[r.job_id], self.limits[r.job_id] = self.jobs[r.array], self.limits[r.array]

    def _job_updated(self, r: m.JobUpdated, _: Any) -> None:
        if r.changes.time_limit_seconds is not None:
            self.limits[r.job_id] = r.changes.time_limit_seconds

    def _allocated(self, r: m.Allocated, _: Any) -> None:
        places = {place.rank: place.node for place in r.placements}
        self.runs[f"{r.job_id}-{r.attempt}"] = HeldPods(r.job_id, places, self.ts)
        if (job := self.jobs.get(r.job_id)) is None or job[2]:
            return  # what runs already is taken over wherever it is
        tenant, spec, _adopted = job
        nodes, limit_ms = {place.node for place in r.placements}, self.limits[r.job_id] * 1000
        if spec.reservation is not None:
            own = self.booked.get(spec.reservation)
            window = None if own is None else self._window(own)
            within = window is not None and self.ts + limit_ms <= window.end_ts
            there = own is not None and all(self._has(own, node) for node in nodes)
            named = own is not None and not {tenant, f"{tenant}/{spec.user}"}.isdisjoint(own.who)
            self.demand(within and there and named, f"{r.job_id} starts beside its reservation {spec.reservation}")
        for name, each in self.booked.items():
            if name != spec.reservation and each.job != r.job_id and any(self._has(each, node) for node in nodes):
                stays_ms = 1 if spec.preemptible or not limit_ms else limit_ms
                starts = [w.start_ts for w in each.windows if w.end_ts > self.ts]
                left = all(start >= self.ts + stays_ms for start in starts)
                self.demand(left, f"{r.job_id} starts on nodes of {name}, and has not left by its window")

    def _grown(self, r: m.Grown, _: Any) -> None:
        if (run := self.runs.get(r.run_id)) is not None:
            run.places |= {place.rank: place.node for place in r.placements}

    def _shrunk(self, r: m.Shrunk, _: Any) -> None:
        if (run := self.runs.get(r.run_id)) is not None:
            run.leaving |= {*r.ranks}
            if r.reason.code is Code.RESERVATION_BEGINS:
                self._check_told(r.run_id, r.reason.field)

    def _revoked(self, r: m.Revoked, _: Any) -> None:
        if (run := self.runs.get(r.run_id)) is not None:
            if r.reason.code in (Code.RESERVATION_BEGINS, Code.RESERVATION_OVER):
                self._check_told(r.run_id, r.reason.field)
            run.stops = True

    def _spared(self, r: m.Spared, _: Any) -> None:
        if (run := self.runs.get(r.run_id)) is not None:
            run.stops = False

    def _finished(self, r: m.Finished, _: Any) -> None:
        for run in self.runs.values():
            run.stops |= run.job_id == r.job_id

    def _requeued(self, r: m.Requeued, _: Any) -> None:
        for run in self.runs.values():
            run.stops |= run.job_id == r.job_id

    def _released(self, r: m.Released, _: Any) -> None:
        run = self.runs.get(r.run_id)
        if run is not None and r.ranks:
            run.places = {rank: node for rank, node in run.places.items() if rank not in r.ranks}
        elif run is not None:
            del self.runs[r.run_id]

    def _check_told(self, run_id: str, where: str) -> None:
        """Demand that a run is told to stop for a window that is as near as it takes to stop, or has begun."""
        run, booked = self.runs[run_id], self.booked.get(where.partition(".")[2])
        job = self.jobs.get(run.job_id)
        if booked is None or job is None:
            self.demand(False, f"{run_id} stops for {where}, and there is none")
            return
        notice = 0 if job[1].checkpoint is None else job[1].checkpoint.notice_seconds
        patience = 0 if self.body is None else self.body.policy.stop_patience_seconds
        takes_ms = (notice + job[1].termination_grace_seconds + patience) * 1000
        own = job[1].reservation == booked.name
        times = [window.end_ts if own else window.start_ts for window in booked.windows if window.end_ts > self.ts]
        due = bool(times) and self.ts >= min(times) - takes_ms
        self.demand(due, f"{run_id} stops for {booked.name}, which is not near")
        self.demand(own or any(self._has(booked, node) for node in run.places.values()), f"{run_id} is on none of it")

    def _stands_within(self, name: str, run_id: str) -> bool:
        run, booked = self.runs[run_id], self.booked[name]
        job = self.jobs.get(run.job_id)
        own = job is not None and (job[1].reservation == name or booked.job == run.job_id)
        return not own and self._window(booked) is not None and any(self._has(booked, node) for node in run.staying)
