"""Attempts are spent and jobs fail by their own programs alone: each ledger that breaks this is caught."""

from typing import Any

import pytest

from tessera.testkit.checker.report import Report
from tessera.testkit.pays_checker import check_pays
from tessera_schemas import ledger as m
from tessera_schemas.base import job_id
from tessera_schemas.config import Policy
from tessera_schemas.job import JobSpec, Retry, Template
from tessera_schemas.reasons import Code, Reason
from tests.builders import SHARD, config_body, first_run, job_spec, placement, role
from tests.unit.testkit.stored_ledgers import Shard, finish

JOB = job_id(SHARD, "lab", "k1")
SECOND = f"{JOB}-2"


class Judged(Shard):
    """A ledger of the first engine for which the rule is in force, or of another one."""

    engine = "tessera-7"

    def add(self, *records: m.AnyRecord, **more: Any) -> bytes:
        return super().add(*records, **{"engine": self.engine} | more)


def found(shard: Shard) -> list[str]:
    report = Report()
    check_pays(report, shard.stored)
    return [violation.text for violation in report.violations]


def why(code: Code) -> Reason:
    return Reason(code=code)


def again(code: Code, **counts: bool) -> m.Requeued:
    return m.Requeued(kind="requeued", job_id=JOB, not_before=0, reason=why(code), **{"strike": False} | counts)


def held(undo: bool = False, by: str = "scheduler") -> m.Held:
    return m.Held(kind="held", job_id=JOB, by=by, undo=undo)


def shard(exit_code: str = "", **policy: Any) -> Judged:
    """One job runs."""
    made = Judged(body=config_body(policy=Policy(**policy)))
    made.queued(spec=spec(exit_code))
    start(made, 1)
    return made


def spec(exit_code: str = "", **more: Any) -> JobSpec:
    notes = {"tessera.io/simulate-exit-code": exit_code} if exit_code else {}
    worker = role(gpus=1).model_copy(update={"template": Template(image="train:1", annotations=notes)})
    return job_spec(worker, **more)


def start(shard: Shard, attempt: int) -> None:
    shard.allocated(placement(), attempt=attempt)
    shard.add(m.Started(kind="started", run_id=f"{JOB}-{attempt}"))


@pytest.mark.parametrize(
    ("code", "counts", "right"),
    [
        pytest.param(Code.POD_EVICTED, {"trouble": True}, True, id="an eviction costs nothing"),
        pytest.param(Code.POD_EVICTED, {"strike": True}, False, id="an eviction is no strike"),
        pytest.param(Code.POD_FAILED, {"strike": True}, True, id="its own end is one"),
        pytest.param(Code.POD_FAILED, {}, False, id="its own end costs"),
        pytest.param(Code.POD_FAILED, {"strike": True, "trouble": True}, False, id="an end counts once"),
        pytest.param(Code.PREEMPTED, {}, True, id="a preemption counts not at all"),
    ],
)
def test_only_a_programs_own_end_is_a_strike(code: Code, counts: dict[str, bool], right: bool) -> None:
    one = shard()
    one.revoked(why=why(code))
    one.released(again(code, **counts))
    assert (not found(one)) == right


def test_a_job_is_tried_again_for_what_its_run_stopped_for() -> None:
    one = shard()
    one.revoked(why=why(Code.POD_FAILED))
    one.released(again(Code.POD_DELETED))
    assert any("its run stopped for" in text for text in found(one))


@pytest.mark.parametrize(
    ("code", "right"),
    [(Code.POD_FAILED, True), (Code.TIME_LIMIT, True), (Code.IDLE, True), (Code.NODE_LOST, False)],
)
def test_a_job_fails_by_its_own_doing_only(code: Code, right: bool) -> None:
    one = shard()
    one.revoked(then="failed", why=why(code))
    one.released(finish("failed", reason=why(code)))
    assert (not found(one)) == right


def test_attempts_are_exhausted_by_its_own_ends_alone() -> None:
    one = Judged()
    one.queued(spec=spec(retry=Retry(max_attempts=2, on_failure=True)))
    start(one, 1)
    one.revoked(why=why(Code.POD_EVICTED))
    one.released(again(Code.POD_EVICTED, trouble=True))
    start(one, 2)
    one.revoked(run=SECOND, then="failed", why=why(Code.POD_FAILED))
    one.released(finish("failed", reason=why(Code.ATTEMPTS_EXHAUSTED)), run=SECOND)
    assert [text.partition(", ")[2] for text in found(one)] == ["having spent 1"]


@pytest.mark.parametrize(("exit_code", "right"), [("0", False), ("3", True), ("", True)])
def test_a_simulated_program_that_is_to_end_well_is_never_blamed(exit_code: str, right: bool) -> None:
    one = shard(exit_code=exit_code)
    one.revoked(then="failed", why=why(Code.POD_FAILED))
    one.released(finish("failed", reason=why(Code.POD_FAILED)))
    assert any("its program is well" in text for text in found(one)) != right


@pytest.mark.parametrize(("saves", "fresh", "right"), [(True, True, True), (False, True, False), (True, False, False)])
def test_earlier_runs_are_forgiven_when_one_held(saves: bool, fresh: bool, right: bool) -> None:
    one = shard()
    if saves:
        one.add(m.Saved(kind="saved", run_id=first_run(), path="/data/1", at="2026-01-01T00:00:00Z"))
    one.revoked(why=why(Code.POD_EVICTED))
    one.released(again(Code.POD_EVICTED, trouble=True, fresh=fresh))
    assert (not found(one)) == right


@pytest.mark.parametrize(("most", "right"), [(1, True), (2, False)])
def test_the_scheduler_holds_a_job_after_so_many_troubles_in_a_row(most: int, right: bool) -> None:
    one = shard(requeues_max=most)
    one.revoked(why=why(Code.POD_REFUSED_BY_NODE))
    one.released(again(Code.POD_REFUSED_BY_NODE, trouble=True), held())
    assert (not found(one)) == right


def test_a_release_begins_the_row_of_troubles_anew() -> None:
    one = shard(requeues_max=1)
    one.revoked(why=why(Code.START_TIMEOUT))
    one.released(again(Code.START_TIMEOUT, trouble=True), held(), held(undo=True), held())
    assert len(found(one)) == 1


def test_a_ledger_of_an_older_engine_is_not_judged() -> None:
    one = shard()
    one.engine = "tessera-6"
    one.revoked(why=why(Code.POD_DELETED))
    one.released(again(Code.POD_DELETED, strike=True))
    assert not found(one)


RULES = (
    {"exit_codes": [42], "action": "fail"},
    {"signals": ["SIGKILL"], "action": "retry_elsewhere", "count": False},
    {"causes": ["NodeLost"], "action": "retry", "count": True},
)


@pytest.mark.parametrize(
    ("code", "exit_code", "then", "rule", "right"),
    [
        pytest.param(Code.POD_FAILED, 42, "failed", 1, True, id="a rule fails the job"),
        pytest.param(Code.POD_FAILED, 42, "requeue", 1, False, id="and it does not go on"),
        pytest.param(Code.POD_FAILED, 42, "failed", 0, False, id="a rule that holds is named"),
        pytest.param(Code.POD_FAILED, 137, "requeue", 2, True, id="a signal is a code"),
        pytest.param(Code.POD_FAILED, 1, "requeue", 2, False, id="another code is none of the rule's"),
        pytest.param(Code.NODE_RESTARTED, 137, "requeue", 2, False, id="a node's end is not the program's unasked"),
        pytest.param(Code.NODE_LOST, 0, "failed", 3, True, id="a node's failure that counts may be the last"),
        pytest.param(Code.NODE_SHRUNK, 0, "failed", 3, False, id="but no other"),
    ],
)
def test_the_first_rule_of_the_job_that_holds_decides(
    code: Code, exit_code: int, then: Any, rule: int, right: bool
) -> None:
    one = Judged()
    one.queued(spec=spec(retry=Retry.model_validate({"rules": RULES})))
    start(one, 1)
    reason = Reason(code=code, numbers={"exit_code": exit_code})
    one.add(m.Revoked(kind="revoked", run_id=first_run(), reason=reason, then=then, rule=rule))
    assert (not found(one)) == right


@pytest.mark.parametrize(
    ("code", "rule", "strike", "right"),
    [
        (Code.POD_FAILED, 2, False, True),
        (Code.POD_FAILED, 2, True, False),
        (Code.NODE_LOST, 3, True, True),
        (Code.NODE_LOST, 3, False, False),
    ],
)
def test_a_rule_says_who_pays(code: Code, rule: int, strike: bool, right: bool) -> None:
    one = Judged()
    one.queued(spec=spec(retry=Retry.model_validate({"rules": RULES})))
    start(one, 1)
    reason = Reason(code=code, numbers={"exit_code": 137})
    one.add(m.Revoked(kind="revoked", run_id=first_run(), reason=reason, then="requeue", rule=rule))
    back = m.Requeued(kind="requeued", job_id=JOB, not_before=0, reason=reason, strike=strike, rule=rule)
    one.released(back)
    assert (not found(one)) == right
