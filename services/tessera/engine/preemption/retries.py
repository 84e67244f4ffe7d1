"""
Consequence of a run's end for its job: another attempt, after which pause, or its failure. Pure.

The table of ends decides (`tessera_schemas.work.run_ends`), or the first rule of the job that matches. A rule is asked
once, when the run is stopped: the record has its number, and all later steps go by that.
"""

from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.domain.work.dependencies import explain_detached
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.run_ends import CANCELS_FROM_WITHIN, Limit, PauseRule, RunEnd, Whose

SHORT_PAUSE_MAX_SECONDS = 60
"""Longest pause after a run that was broken by anything but its program."""
TROUBLES_AT_ONCE = 5
"""So many such runs in a row are followed by no pause, where somebody stops pods whose program is well."""


def find_rule(job: Job | None, run: Run, reason: Reason | None, rank: int | None, oom: bool) -> int:
    """Number of the job's rule that decides what follows this end of its run; `rank` is the pod's that ended it."""
    if job is None or reason is None or not job.retry.rules:
        return 0
    roles = (place.role for place in run.all_placements if place.rank == rank)
    return job.retry.find_rule(reason, next(roles, ""), oom)


def fails_by(job: Job | None, number: int) -> bool:
    """Whether the rule of this number fails the job."""
    rule = None if job is None else job.retry.rule_at(number)
    return rule is not None and rule.action == "fail"


def may_try_again(state: State, job: Job, run: Run, code: Code, number: int) -> bool:
    """
    Whether the job is tried again after a run that ended for `code`: only its own program's failures end it, or what
    its rule of this `number` says.
    """
    # A rule that fails the job goes before all budgets: its owner said that nothing is to be tried.
    end = job.retry.end_by(number, code)
    if fails_by(job, number):
        return False
    # Only the program's own failures spend attempts (ADR 0043): a month of node upgrades would else end a job that
    # never failed.
    if job.is_replica or not (end.limit is Limit.FAIL or (number and end.whose is Whose.PROGRAM)):
        return True
    # A rule is the owner's word for its kind of failure, whatever is said of failures in general.
    if not number and not job.retry.on_failure:
        return False
    if end.spends and strikes_before(state, job, run) + 1 >= job.retry.max_attempts:
        return False
    return is_in_time(state, job, run)


def has_held(state: State, run: Run) -> bool:
    """Whether the run worked so long, or saved so much, that the budgets of its job are full again."""
    steady_ms = state.tree.policy.steady_seconds * 1000
    # A run that never started has held nothing, however long it took. Otherwise slow image pulls would fill the budget
    # again.
    return run.started and (run.saved_ts > 0 or (run.stopped_ts or state.ts) - run.started_ts >= steady_ms)


def strikes_before(state: State, job: Job, run: Run) -> int:
    """Counted attempts of the job before this run that are not forgiven by it."""
    return 0 if has_held(state, run) else job.strikes


def is_in_time(state: State, job: Job, run: Run) -> bool:
    """Whether the time in which the job may be tried again has not run out; it begins anew with a run that held."""
    # A budget for trying is not spent by working: a training that fails in its third week has tried once.
    return has_held(state, run) or state.ts < job.first_ts + job.retry.give_up_seconds * 1000


def pause_ms(job: Job, end: RunEnd, strikes: int, troubles: int, runs: int) -> int:
    """
    Time that the job waits for its next attempt, after so many counted attempts and troubles in a row before, and so
    many runs.
    """
    if end.pause is PauseRule.OWN:
        # A failure that a rule does not count still lengthens the pause, or a program would fail every ten seconds.
        tries = strikes if end.spends else strikes + troubles
        # The shift is bounded before the minimum is taken, since many strikes would make an integer of as many bits. A
        # first pause above the maximum is the sender's word and stays.
        seconds = job.retry.backoff_seconds << min(tries, 20)
        return min(seconds, max(job.retry.backoff_max_seconds, job.retry.backoff_seconds)) * 1000
    first = {PauseRule.SHORT: 0, PauseRule.LATE: TROUBLES_AT_ONCE, PauseRule.RUNS: 0}.get(end.pause)
    troubles = runs if end.pause is PauseRule.RUNS else troubles
    if first is None or troubles < first:
        return 0
    # Six doublings pass the maximum of a minute: more would only make larger numbers to cut.
    return min(1 << min(troubles - first, 6), SHORT_PAUSE_MAX_SECONDS) * 1000


def final_reason(state: State, job: Job, run: Run) -> Reason:
    """Why the job ended: the last run's reason, or that its attempts ran out with it."""
    last = job.retry.told_by(run.rule, run.revoked or Reason(code=Code.CANCELLED))
    by_rule = fails_by(job, run.rule)
    # Time before attempts: where both have run out, more attempts would not have helped.
    if run.then == "failed" and not by_rule and last.code is not Code.IDLE and not is_in_time(state, job, run):
        numbers = {"attempts": job.attempt, "give_up_seconds": job.retry.give_up_seconds} | last.numbers
        return Reason(code=Code.RETRY_TIME_EXHAUSTED, numbers=numbers, detail=f"last: {last.sentence()}"[:1024])
    spent = strikes_before(state, job, run) + 1 >= job.retry.max_attempts
    if run.then == "failed" and not by_rule and job.retry.max_attempts > 1 and spent:
        numbers = {"attempts": job.attempt} | last.numbers
        return Reason(code=Code.ATTEMPTS_EXHAUSTED, numbers=numbers, detail=f"last: {last.sentence()}"[:1024])
    # A cancel that came while the run was stopping for another reason leaves no detail of its own.
    cancelled = last.code in (Code.CANCELLED, Code.TARGET_ENDED, *CANCELS_FROM_WITHIN)
    by_target = last.code is Code.TARGET_NOT_RUNNING and job.attached and job.attached.on_detach == "cancel"
    if run.then == "failed" or cancelled or by_target:
        return last
    return explain_detached(state, job) or Reason(code=Code.CANCELLED)
