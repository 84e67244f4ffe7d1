"""
The account checker: who had GPUs, CPU and memory, hour by hour, by a book of its own, against the stored account.

Like the invariant checker it imports the contract and nothing else that decides. It divides each node that a message
touches anew, and knows nothing of pools in line: why a free GPU is free is not judged.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from tessera.testkit.account_checker.divided_nodes import AccountLine, CheckedHolder, DividedNodes
from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.base import run_id
from tessera_schemas.cluster.device_claims import OF_CLASS
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.shard.records import ResizeBegun, ResizeEnded
from tessera_schemas.work.spec_changes import SizeOfRole, larger_of, resized_role

__all__ = ["AccountSaid", "check_account"]

HOUR_MS = 3_600_000
RESOURCES = ("gpu", "cpu", "memory")
NAMED = ("used", "unused", "starting", "stopping", "reserved", "earmarked")
KNOWN = (*NAMED, "others", "out", "capacity", "measured", "worked")


@dataclass(frozen=True, slots=True)
class AccountSaid:
    """
    The account from `since_ts` on until message `n`, as it is stored: rows by when their hour begins.

    A row has pool, flavor, cause, tenant, queue, user, job, a project and a class of devices if there is one, and
    amounts times milliseconds: thousandths of a GPU, or these, thousandths of a CPU and bytes of memory; of a class its
    devices.
    """

    n: int
    since_ts: int
    hours: Mapping[int, Sequence[Sequence[Any]]]


def check_account(report: Report, ledger: Iterable[bytes], said: AccountSaid) -> None:
    """
    Causes sum to the capacity in every hour and pool; runs, earmarks, others and nodes that are out have what they had.
    What was told of the use of GPUs counts in the hour in which it was told.

    Args:
        report: what is found goes here; each violation names the rule `account`.
        ledger: the stored bytes of every message, in order, from n = 1. The first that cannot be read ends the check.
        said: what is judged.
    """
    book = AccountBook(said.since_ts)
    for stored in ledger:
        try:
            message = LEDGER_MESSAGE.validate_json(stored)
        except ValidationError:
            return
        if message.n > said.n:
            break
        book.take(message)
    for hour in sorted(book.hours.keys() | said.hours.keys()):
        own, theirs = +book.hours.get(hour, Counter()), _lines(said.hours.get(hour, ()))
        for line in sorted(own.keys() | theirs.keys()):
            text = f"{' '.join(filter(None, line))} from {hour} on: {theirs[line]}, but it was {own[line]}"
            report.demand(own[line] == theirs[line], "account", said.n, text)


def _lines(rows: Sequence[Sequence[Any]]) -> Counter[AccountLine]:
    """Amounts as they were said, in the words of the book: free, whyever; queue, user and flavor are not judged."""
    lines = Counter[AccountLine]()
    for pool, _, cause, tenant, _, _, job, *more, amounts in rows:
        of_class = (OF_CLASS + more[1],) if more[1:] and more[1] else ()
        whole = (amounts, 0, 0) if isinstance(amounts, int) else amounts
        said = zip(of_class or RESOURCES, whole[:1] if of_class else whole, strict=True)
        for resource, amount in said:
            lines[resource, pool, cause if cause in KNOWN else "free", tenant, job] += amount
    return +lines


@dataclass(slots=True)
class HeldRun:
    """One run: its pods by rank, and what is known of those beyond its gang."""

    holder: CheckedHolder
    gang: int
    started: bool = False
    stops: bool = False
    warned: bool = False
    permitted: set[int] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)

    def set_causes(self) -> None:
        """Cause of each of the run's pods, as of now."""
        runs = "unused" if self.warned else "used"
        whole = "stopping" if self.stops else runs if self.started else "starting"
        self.holder.causes = dict.fromkeys(self.holder.places, whole)
        for rank in self.holder.places if whole == runs else ():
            if rank in self.leaving:
                self.holder.causes[rank] = "stopping"
            elif rank >= self.gang and rank not in self.permitted:
                self.holder.causes[rank] = "starting"


class AccountBook:
    """Takes messages in order; `hours` has amounts times milliseconds by line."""

    def __init__(self, since_ts: int) -> None:
        self.hours: dict[int, Counter[AccountLine]] = {}
        self._nodes, self._since, self._ts = DividedNodes(), since_ts, 0
        self._tenants: dict[str, str] = {}
        self._gangs: dict[str, list[Any]] = {}
        self._runs: dict[str, HeldRun] = {}
        self._last: dict[str, str] = {}
        self._used: dict[str, tuple[int, int]] = {}
        self._message: m.LedgerMessage

    def take(self, message: m.LedgerMessage) -> None:
        """Counts the time since the last message, then follows each record."""
        self._go_to(message.ts)
        self._message = message
        for record in message.records:
            getattr(self, f"_{record.kind}", lambda _: None)(record)

    def _go_to(self, ts: int) -> None:
        self._ts = self._ts or ts
        while self._ts < ts:
            end = min(ts, self._ts - self._ts % HOUR_MS + HOUR_MS, self._nodes.next_reopening(self._ts) or ts)
            lasted = end - max(self._ts, self._since)
            if lasted > 0:
                hour = self.hours.setdefault(self._ts - self._ts % HOUR_MS, Counter())
                for line, milli in self._nodes.lines(self._ts).items():
                    hour[line] += milli * lasted
            self._ts = end

    def _job_queued(self, r: m.JobQueued) -> None:
        fact = self._message.facts[r.fact].fact
        if isinstance(fact, f.JobAdmitted):
            self._tenants[r.job_id] = fact.tenant
            self._gangs[r.job_id] = [role for role in fact.spec.roles for _ in range(role.gang)]

    def _task_queued(self, r: m.TaskQueued) -> None:
        self._tenants[r.job_id], self._gangs[r.job_id] = self._tenants[r.array], self._gangs[r.array]

    def _allocated(self, r: m.Allocated) -> None:
        name = run_id(r.job_id, r.attempt)
        holder = self._nodes.hold((0, r.job_id), self._tenants[r.job_id], r.placements, self._roles(r.job_id))
        self._runs[name], self._last[r.job_id] = HeldRun(holder, len(r.placements)), name
        self._changed(name)

    def _roles(self, job_id: str) -> dict[str, Any]:
        return {role.name: role for role in self._gangs[job_id]}

    def _resize_begun(self, r: ResizeBegun) -> None:
        self._asks(r)
        self._holds(r.run_id, larger_of(self._runs[r.run_id].holder.roles[r.role], r))

    def _resize_ended(self, r: ResizeEnded) -> None:
        self._asks(r)
        if r.reason is None:
            self._holds(r.run_id, r)

    def _asks(self, r: ResizeBegun | ResizeEnded) -> None:
        job = r.run_id.partition("-")[0]
        self._gangs[job] = [resized_role(role, r) if role.name == r.role else role for role in self._gangs[job]]

    def _holds(self, name: str, size: SizeOfRole) -> None:
        holder = self._runs[name].holder
        holder.roles = {**holder.roles, size.role: resized_role(holder.roles[size.role], size)}
        self._nodes.touch(holder)

    def _grown(self, r: m.Grown) -> None:
        self._nodes.grow(self._runs[r.run_id].holder, r.placements)
        self._changed(r.run_id)

    def _permitted(self, r: m.Permitted) -> None:
        self._runs[r.run_id].permitted |= {*r.ranks}
        self._changed(r.run_id)

    def _started(self, r: m.Started) -> None:
        self._runs[r.run_id].started = True
        self._nodes.open(self._runs[r.run_id].holder, lasted=False)
        self._changed(r.run_id)

    def _warned(self, r: m.Warned) -> None:
        self._runs[r.run_id].warned = r.idle_seconds > 0
        self._changed(r.run_id)

    def _use_noted(self, r: m.UseNoted) -> None:
        fact, run = self._message.facts[r.fact].fact, self._runs[r.run_id]
        if not isinstance(fact, f.RunUsed):
            return
        now = fact.use.measured_gpu_milli_ms, fact.use.worked_gpu_milli_ms
        before, self._used[r.run_id] = self._used.get(r.run_id, (0, 0)), now
        hour = self.hours.setdefault(self._ts - self._ts % HOUR_MS, Counter()) if self._ts >= self._since else Counter()
        for at, cause in enumerate(("measured", "worked")):
            line = "gpu", self._nodes.pool_of(run.holder), cause, run.holder.tenant, run.holder.key[1]
            hour[line] += now[at] - before[at]

    def _shrunk(self, r: Any) -> None:
        self._runs[r.run_id].leaving |= {*r.ranks}
        self._changed(r.run_id)

    _roles_shifted = _shrunk

    def _revoked(self, r: m.Revoked) -> None:
        self._runs[r.run_id].stops = True
        self._changed(r.run_id)

    def _spared(self, r: m.Spared) -> None:
        self._runs[r.run_id].stops = False
        self._changed(r.run_id)

    def _finished(self, r: m.Finished) -> None:
        name = self._last.pop(r.job_id, "")
        if r.phase == "succeeded" and name in self._runs:
            self._runs[name].stops = True
            self._nodes.open(self._runs[name].holder, lasted=True)
            self._changed(name)

    def _released(self, r: m.Released) -> None:
        self._nodes.give(self._runs[r.run_id].holder, r.ranks)
        if not r.ranks:
            del self._runs[r.run_id]

    def _changed(self, name: str) -> None:
        self._runs[name].set_causes()
        self._nodes.touch(self._runs[name].holder)

    def _earmark_set(self, r: m.EarmarkSet) -> None:
        holder = self._nodes.hold((1, r.owner), self._tenants[r.owner], r.placements, self._roles(r.owner))
        cause = "reserved" if r.cause in ("head", "reservation") else "earmarked"
        holder.causes = dict.fromkeys(holder.places, cause)

    def _earmark_ended(self, r: m.EarmarkEnded) -> None:
        self._nodes.drop((1, r.owner))

    def _node_changed(self, r: m.NodeChanged) -> None:
        fact = self._message.facts[r.fact].fact
        if isinstance(fact, f.NodeSeen):
            self._nodes.see(fact)

    def _devices_noted(self, r: m.DevicesNoted) -> None:
        fact = self._message.facts[r.fact].fact
        if isinstance(fact, LayoutSeen | ClassSeen | DevicesSelected):
            self._nodes.note(fact)

    def _format_raised(self, r: m.FormatRaised) -> None:
        self._nodes.format = r.format

    def _node_drained(self, r: m.NodeDrained) -> None:
        self._nodes.drain(r.node, not r.undo)

    def _mig_change_begun(self, r: m.MigChangeBegun) -> None:
        self._nodes.cut(r.node, True)

    def _mig_change_ended(self, r: m.MigChangeEnded) -> None:
        self._nodes.cut(r.node, r.undo)

    def _node_backed_off(self, r: m.NodeBackedOff) -> None:
        self._nodes.back_off(r)

    def _pods_taken_over(self, r: m.PodsTakenOver) -> None:
        fact = self._message.facts[r.fact].fact
        if isinstance(fact, f.PodsFound):
            for role, node in zip(self._gangs[r.job_id], fact.nodes, strict=False):
                self._nodes.take_over(node, role)
