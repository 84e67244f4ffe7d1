"""
The rule that who failed pays: programs alone spend attempts and fail jobs, and troubles in a row hold a job.

A job's own rules may say otherwise: the first that holds decides, and no other. Roles and memory are in no rule of the
simulator, and are not read. The table is this module's own, and short. Ledgers of engines before `tessera-7` had
another rule and are not judged.
"""

from dataclasses import dataclass, field

from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.cluster.labels import SIMULATE_PREFIX
from tessera_schemas.config import Policy
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.run_ends import RULED, SIGNALS, end_of

OWN = frozenset({Code.POD_FAILED, Code.TIME_LIMIT, Code.IDLE, Code.REPLICA_ENDED})
"""What is the program's own doing, or for its owner's rule about it."""
EXHAUSTED = frozenset({Code.ATTEMPTS_EXHAUSTED, Code.RETRY_TIME_EXHAUSTED})
"""Ends that rest on the end of the last run before."""
SCHEDULER = "scheduler"
FIRST_ENGINE = 7
EXIT_CODE = f"{SIMULATE_PREFIX}exit-code"


@dataclass(slots=True, eq=False)
class Payer:
    """One job: what was counted against it, and its last run."""

    spec: JobSpec
    adopted: bool = False
    strikes: int = 0
    troubles: int = 0
    run_id: str = ""
    started_ts: int | None = None
    saved: bool = False
    revoked_ts: int = 0
    codes: set[str] = field(default_factory=set)
    """Why its last run was stopped, by every revoke of it."""

    def has_held(self, steady_seconds: int) -> bool:
        """Whether the last run worked so long, or saved so much, that earlier ones are forgiven."""
        worked = self.started_ts is not None
        return worked and (self.saved or self.revoked_ts - (self.started_ts or 0) >= steady_seconds * 1000)

    def decides(self, reason: Reason) -> int:
        """Number of the rule of the job that decides over an end; 0: none."""
        code, exit_code = reason.code, reason.numbers.get("exit_code")
        words: set[str] = {code, "program" if code in OWN else end_of(code).whose} if code in RULED else set()
        for number, rule in enumerate(self.spec.retry.rules, 1):
            codes = {*rule.exit_codes, *(128 + SIGNALS[name] for name in rule.signals)}
            told = not codes or (code == Code.POD_FAILED and exit_code in codes)
            if told and words & {*(rule.causes or ("program",))}:
                return number
        return 0

    def pays(self, number: int, own: bool) -> bool:
        """Whether an end spends an attempt, the program's `own` one unless its rule says otherwise."""
        count = self.spec.retry.rules[number - 1].count if number else None
        return own if count is None else count

    def fails(self, number: int) -> bool:
        """Whether the rule of this number fails the job."""
        return number > 0 and self.spec.retry.rules[number - 1].action == "fail"

    @property
    def is_well(self) -> bool:
        """Whether its programs are simulated ones that end with 0 by themselves, each of them."""
        codes = [role.template.annotations.get(EXIT_CODE) for role in self.spec.roles]
        return bool(codes) and all(code == "0" for code in codes)


class WhoPays:
    """Takes records in order; each violation names the rule `pays`."""

    def __init__(self, report: Report) -> None:
        self._report, self._policy, self._n, self._ts = report, Policy(), 0, 0
        self.jobs: dict[str, Payer] = {}
        self.array_of: dict[str, str] = {}
        self._failed_tasks: set[str] = set()
        self._in_force = False
        self._message: m.LedgerMessage

    def open(self, message: m.LedgerMessage) -> None:
        """Begin with a message, whose records are taken next."""
        self._n, self._ts, self._message = message.n, message.ts, message
        number = message.engine.rpartition("-")[2]
        self._in_force = number.isdecimal() and int(number) >= FIRST_ENGINE

    def take(self, record: m.AnyRecord) -> None:
        """Follow a record, and check it if this rule was in force."""
        if self._in_force:
            getattr(self, f"_check_{record.kind}", lambda _: None)(record)
        getattr(self, f"_{record.kind}", lambda _: None)(record)

    def _demand(self, holds: bool, text: str) -> None:
        self._report.demand(holds, "pays", self._n, text)

    def _payer_of(self, run_id: str) -> Payer | None:
        job = self.jobs.get(run_id.rpartition("-")[0])
        return job if job is not None and job.run_id == run_id else None

    # -- what is demanded

    def _check_revoked(self, r: m.Revoked) -> None:
        job = self._payer_of(r.run_id)
        own = r.reason.code in OWN or bool(job and job.codes & OWN)  # a cancel may hurry one that fails already
        if job is not None:
            rule = job.decides(r.reason)
            self._demand(r.rule == rule, f"{r.run_id} ends by rule {r.rule}, and rule {rule} is the first that holds")
            self._demand(r.then == "failed" or not job.fails(rule), f"{r.run_id} goes on against rule {rule}")
            own = own or job.fails(rule) or job.pays(rule, own)
        self._demand(r.then != "failed" or own, f"{r.run_id} fails its job by {r.reason.code}")

    def _check_requeued(self, r: m.Requeued) -> None:
        if (job := self.jobs.get(r.job_id)) is None:
            return
        text = f"{r.job_id} is tried again after {r.reason.code}"
        pays = job.pays(r.rule, r.reason.code in OWN)
        self._demand(r.strike == pays, f"{text}, {'' if r.strike else 'not '}at its own cost")
        self._demand(not (r.strike and r.trouble), f"{text}, which counts twice")
        self._demand(r.reason.code in job.codes, f"{text}, but its run stopped for {sorted(job.codes)}")
        held = job.has_held(self._policy.steady_seconds)
        self._demand(r.fresh == held, f"{text}, {'' if r.fresh else 'not '}as new, but its run held: {held}")
        wronged = r.strike and r.reason.code == Code.POD_FAILED and job.is_well
        self._demand(not wronged, f"{text}, and its program is well")

    def _check_finished(self, r: m.Finished) -> None:
        job, code = self.jobs.get(r.job_id), None if r.reason is None else r.reason.code
        if r.phase != "failed" or job is None or (job.spec.array is not None and r.job_id not in self.array_of):
            return  # an array ends as its tasks do
        text = f"{r.job_id} fails: {code}"
        if job.adopted and code in (Code.OWNER_FAILED, Code.TIME_LIMIT):
            return  # as its owner, whatever that counts
        by_rule = job.fails(r.rule) or job.pays(r.rule, own=False)
        self._demand(by_rule or bool(job.codes & OWN), f"{text}, but its last run stopped for {sorted(job.codes)}")
        known = code in OWN | EXHAUSTED | {Code.CANCELLED} or by_rule
        self._demand(known, f"{text}, which is not its program's doing")
        if code == Code.ATTEMPTS_EXHAUSTED:
            spent = 1 + (0 if job.has_held(self._policy.steady_seconds) else job.strikes)
            self._demand(spent >= job.spec.retry.max_attempts, f"{text}, having spent {spent}")
        wronged = Code.POD_FAILED in job.codes and job.is_well
        self._demand(not wronged, f"{text}, and its program is well")

    def _check_held(self, r: m.Held) -> None:
        job = self.jobs.get(r.job_id)
        if r.by != SCHEDULER or r.undo or job is None or job.spec.service is not None:
            return  # a service has no more replicas than it wants
        if job.spec.array is not None and r.job_id not in self.array_of:
            self._demand(r.job_id in self._failed_tasks, f"the array {r.job_id} is held, and none of its tasks failed")
            return
        enough = job.troubles >= self._policy.requeues_max or {Code.PAUSED_AS_IDLE, Code.IDLE} & job.codes
        self._demand(bool(enough), f"{r.job_id} is held after {job.troubles} troubles of {self._policy.requeues_max}")

    # -- what is followed

    def _config_set(self, r: m.ConfigSet) -> None:
        fact = self._message.facts[r.fact].fact if r.fact < len(self._message.facts) else None
        if isinstance(fact, f.ConfigProposed):
            self._policy = fact.body.policy

    def _job_queued(self, r: m.JobQueued) -> None:
        fact = self._message.facts[r.fact].fact if r.fact < len(self._message.facts) else None
        if isinstance(fact, f.JobAdmitted):
            self.jobs[r.job_id] = Payer(fact.spec, fact.adopted is not None)
            self.array_of.pop(r.job_id, None)

    def _task_queued(self, r: m.TaskQueued) -> None:
        if (array := self.jobs.get(r.array)) is not None:
            self.jobs[r.job_id], self.array_of[r.job_id] = Payer(array.spec), r.array

    def _allocated(self, r: m.Allocated) -> None:
        if (job := self.jobs.get(r.job_id)) is not None:
            job.run_id, job.started_ts, job.saved, job.revoked_ts = f"{r.job_id}-{r.attempt}", None, False, 0
            job.codes = set()

    def _started(self, r: m.Started) -> None:
        if (job := self._payer_of(r.run_id)) is not None:
            job.started_ts = self._ts

    def _saved(self, r: m.Saved) -> None:
        if (job := self._payer_of(r.run_id)) is not None:
            job.saved = True

    def _revoked(self, r: m.Revoked) -> None:
        if (job := self._payer_of(r.run_id)) is not None:
            job.codes.add(r.reason.code)
            job.revoked_ts = job.revoked_ts or self._ts

    def _spared(self, r: m.Spared) -> None:
        if (job := self._payer_of(r.run_id)) is not None:
            job.codes, job.revoked_ts = set(), 0

    def _requeued(self, r: m.Requeued) -> None:
        if (job := self.jobs.get(r.job_id)) is not None:
            strikes, troubles = (0, 0) if r.fresh else (job.strikes, job.troubles)
            job.strikes, job.troubles = strikes + r.strike, troubles + r.trouble

    def _held(self, r: m.Held) -> None:
        if r.undo and (job := self.jobs.get(r.job_id)) is not None:
            job.troubles = 0

    def _finished(self, r: m.Finished) -> None:
        if r.phase == "failed" and r.job_id in self.array_of:
            self._failed_tasks.add(self.array_of[r.job_id])
