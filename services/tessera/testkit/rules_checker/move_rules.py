"""
Rules of moves that ask (ADR 0107): no run is moved that has not agreed, by word, by a checkpoint or by its silence
where the policy takes that for a yes; none that has said no, and none is asked again while that stands.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker.quotas import is_within
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.config import Policy
from tessera_schemas.reasons import Code


@dataclass(slots=True)
class _Asked:
    """A run that was asked, for which job, and its answer since `answered_ts`; "" before."""

    owner: str
    offered_ts: int
    deadline: int
    how: str = ""
    moves: bool = False
    answered_ts: int = 0


class MoveRules:
    """Keeps a book of runs that are asked to move."""

    def __init__(self, report: Report) -> None:
        self._report, self._policy = report, Policy()
        self._tenants, self._asked = dict[str, str](), dict[str, _Asked]()
        self._starts_since = 0
        self._moved: dict[str, tuple[str, int]] = {}  # runs that stop for a move: tenant and what they lose
        self._spent: Counter[tuple[str, str]] = Counter()  # of the week, by tenant and what is counted
        self._gains: dict[str, int] = {}  # foretold of moves that are not scored yet, by the job that waits
        self._week: tuple[int, int] = 0, 0
        self._message: m.LedgerMessage

    def take(self, message: m.LedgerMessage) -> None:
        """Check the records of a message in order."""
        self._message = message
        week = datetime.fromtimestamp(message.ts / 1000, UTC).isocalendar()[:2]
        if week != self._week:
            self._week = week
            self._spent.clear()
            self._moved.clear()
        self._starts_since = max(self._starts_since, message.starts_since)
        for record in message.records:
            getattr(self, f"_{record.kind}", lambda _: None)(record)

    def _demand(self, holds: bool, text: str) -> None:
        self._report.demand(holds, "moves", self._message.n, text)

    def _facts(self) -> list[f.AnyFact]:
        return [taken.fact for taken in self._message.facts]

    def _config_set(self, r: m.ConfigSet) -> None:
        facts = self._facts()
        if r.fact < len(facts) and isinstance(fact := facts[r.fact], f.ConfigProposed):
            self._policy = fact.body.policy

    def _job_queued(self, r: m.JobQueued) -> None:
        facts = self._facts()
        if r.fact < len(facts) and isinstance(fact := facts[r.fact], f.JobAdmitted):
            self._tenants[r.job_id] = fact.tenant

    def _task_queued(self, r: m.TaskQueued) -> None:
        self._tenants[r.job_id] = self._tenants.get(r.array, "")

    def _move_offered(self, r: m.MoveOffered) -> None:
        text = f"{r.run_id} is asked to move for {r.by}"
        plans = [fact for fact in self._facts() if isinstance(fact, f.PlanProposed) and fact.cause == "defragment"]
        named = any(plan.job_id == r.by and r.run_id in plan.victims for plan in plans)
        self._demand(named, f"{text}, and no plan says so")
        seconds = self._policy.move_answer_seconds
        self._demand(seconds > 0 and self._policy.defragment, f"{text}, and the policy asks nobody")
        self._demand(r.deadline == self._message.ts + seconds * 1000, f"{text} until {r.deadline}")
        self._demand(self._is_open(), f"{text}, outside of the policy's hours")
        before = self._asked.get(r.run_id)
        self._demand(before is None or not self._stays(before), f"{text}, and has said that it stays")
        self._demand(before is None or (bool(before.how) and not before.moves), f"{text}, and was asked already")
        self._asked[r.run_id] = _Asked(r.by, self._message.ts, r.deadline)

    def _move_answered(self, r: m.MoveAnswered) -> None:
        asked, job = self._asked.get(r.run_id), r.run_id.rpartition("-")[0]
        if asked is None:
            self._demand(False, f"{r.run_id} answers ({r.how}), and was not asked")
            return
        if r.how == "silence":
            whole = asked.deadline - asked.offered_ts
            over = self._message.ts >= max(asked.deadline, self._starts_since + whole)
            means = self._policy.moves.silence == "move"
            right = not asked.how and over and r.moves is means
        elif r.how == "checkpoint":
            saved = [s.run_id for s in self._message.records if isinstance(s, m.Saved)]
            right = not asked.how and r.moves and r.run_id in saved
        else:
            said = [fact for fact in self._facts() if isinstance(fact, f.MoveReplied) and fact.job_id == job]
            words = {(fact.tenant, fact.accept) for fact in said}
            right = (self._tenants.get(job, ""), r.moves) in words and r.moves is (r.how == "accepted")
        self._demand(right, f"{r.run_id} answers {r.how} ({'moves' if r.moves else 'stays'}), and has not")
        asked.how, asked.moves, asked.answered_ts = r.how, r.moves, self._message.ts

    def _move_withdrawn(self, r: m.MoveWithdrawn) -> None:
        asked = self._asked.pop(r.run_id, None)
        text = f"the move of {r.run_id} is taken back, and was not asked for, or refused"
        self._demand(asked is not None and (asked.moves or not asked.how), text)

    def _revoked(self, r: m.Revoked) -> None:
        if r.ended:
            return
        asked = self._asked.pop(r.run_id, None)
        if r.reason.code is not Code.DEFRAGMENTED:
            return
        text = f"{r.run_id} is moved for {r.by}"
        self._count(r, text)
        if not self._policy.move_answer_seconds:
            self._demand(self._is_open(), f"{text}, outside of the policy's hours")
            return
        self._demand(asked is None or not self._stays(asked), f"{text}, and has said that it stays")
        agreed = asked is not None and asked.moves and asked.owner == r.by
        self._demand(agreed, f"{text}, and has not agreed")

    def _count(self, r: m.Revoked, text: str) -> None:
        """Cost of moves to the tenant in this week, as far as a budget of the policy in force bounds it."""
        moves, lost = self._policy.moves, r.reason.numbers.get("lost_gpu_seconds", 0)
        if moves.per_tenant_week is None and moves.lost_gpu_seconds_per_tenant_week is None:
            return
        tenant = self._tenants.get(r.run_id.rpartition("-")[0], "")
        self._spent[tenant, "moves"] += 1
        self._spent[tenant, "lost"] += lost
        self._moved[r.run_id] = tenant, lost
        bounds = {"moves": moves.per_tenant_week, "lost": moves.lost_gpu_seconds_per_tenant_week}
        for what, most in bounds.items():
            spent = self._spent[tenant, what]
            self._demand(most is None or spent <= most, f"{text}: {tenant} has {what} {spent} this week, of {most}")

    def _earmark_set(self, r: m.EarmarkSet) -> None:
        if r.gain_gpu_seconds:
            self._demand(r.cause == "defragment" and bool(r.victims), f"{r.owner} gains by moves, and nothing moves")
            self._gains[r.owner] = r.gain_gpu_seconds

    def _move_scored(self, r: m.MoveScored) -> None:
        gain = self._gains.pop(r.job_id, 0)
        text = f"moves for {r.job_id} gained {r.gained_gpu_seconds} of {r.predicted_gain_gpu_seconds}"
        self._demand(r.gained_gpu_seconds <= gain == r.predicted_gain_gpu_seconds, f"{text}, and {gain} were foretold")

    def _spared(self, r: m.Spared) -> None:
        tenant, lost = self._moved.pop(r.run_id, ("", 0))
        if tenant:
            self._spent[tenant, "moves"] -= 1
            self._spent[tenant, "lost"] -= lost

    def _is_open(self) -> bool:
        windows = self._policy.moves.windows
        return not windows or any(is_within(hours, self._message.ts) for hours in windows)

    def _released(self, r: m.Released) -> None:
        if not r.ranks:
            self._asked.pop(r.run_id, None)
            self._moved.pop(r.run_id, None)

    def _stays(self, asked: _Asked) -> bool:
        stands = self._policy.moves.veto_seconds * 1000
        return bool(asked.how) and not asked.moves and self._message.ts < asked.answered_ts + stands
