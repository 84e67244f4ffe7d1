"""The checker's rules of sessions: what a committer decides passes, and each rule finds what breaks it."""

from collections.abc import Sequence
from typing import Any

import pytest

from tessera.testkit.checker.report import Report
from tessera.testkit.sessions_checker import PodVersion, check_sessions
from tessera_schemas import ledger as m
from tessera_schemas.base import job_id
from tessera_schemas.cluster.labels import RANK_LABEL, RUN_LABEL
from tessera_schemas.config import ConfigBody, Defaults, Limits, PriorityClass
from tessera_schemas.facts import HoldRequested, RequeueRequested, RunEnded
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import SessionUnused, SessionWarned
from tessera_schemas.work.measured_use import Session, SessionDefaults
from tests.builders import SHARD, admitted, config_body, config_proposed, first_run, job_spec, role
from tests.rounds import Rounds
from tests.unit.testkit.stored_ledgers import Shard, allocation, finish

NOTEBOOK = Session(kind="notebook", idle_seconds=60, warning_seconds=10)
PAUSED, ENDED = Reason(code=Code.PAUSED_AS_IDLE), Reason(code=Code.ENDED_AS_IDLE)
JOB = job_id(SHARD, "lab", "k1")


def body(**more: Any) -> ConfigBody:
    classes = tuple(PriorityClass(name=name, value=at) for at, name in enumerate(("low", "normal", "high")))
    defaults = Defaults(sessions=SessionDefaults(resume_class="high"))
    made = config_body(priority_classes=classes, defaults=defaults, **more)
    limits = Limits(sessions=2, sessions_per_user=1)
    return made.model_copy(
        update={"tenants": tuple(each.model_copy(update={"limits": limits}) for each in made.tenants)}
    )


def notebook(user: str = "ann", session: Session = NOTEBOOK) -> JobSpec:
    return job_spec(role(gpus=1), user=user, session=session, priority_class="low")


def violations(stored: Sequence[bytes], pods: Sequence[PodVersion] = ()) -> list[str]:
    report = Report()
    check_sessions(report, stored, pods)
    assert report.examined["session"]
    assert {each.invariant for each in report.violations} <= {"session"}
    return [each.text for each in report.violations]


def pod(n: int, ready: str = "True", since: int = 0, ended: int | None = None, run: str = first_run()) -> PodVersion:
    """A version of the run's pod, with times in seconds of one minute."""
    state = {} if ended is None else {"terminated": {"exitCode": 1, "finishedAt": f"2026-01-01T00:00:{ended:02}Z"}}
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": f"2026-01-01T00:00:{since:02}Z"}
    status = {"conditions": [condition], "containerStatuses": [{"name": "main", "state": state}]}
    return n, {"metadata": {"name": "p", "uid": "uid-0", "labels": {RUN_LABEL: run, RANK_LABEL: "0"}}, "status": status}


def started(spec: JobSpec | None = None) -> Shard:
    shard = Shard(body=body())
    shard.queued(spec=spec or notebook())
    shard.allocated()
    shard.permitted()
    shard.add(m.Started(kind="started", run_id=first_run()))
    return shard


def warn(shard: Shard, seconds: int = 10) -> None:
    stops_ts = shard.ts + 1000 * (seconds + 1) if seconds else 0
    shard.add(SessionWarned(kind="session_warned", run_id=first_run(), stops_ts=stops_ts))


def warned() -> Shard:
    shard = started()
    warn(shard)
    return shard


def hold(undo: bool = False) -> m.Held:
    return m.Held(kind="held", job_id=JOB, by="lab" if undo else "scheduler", undo=undo)


def requeued(why: Reason = PAUSED) -> m.Requeued:
    return m.Requeued(kind="requeued", job_id=JOB, not_before=0, reason=why)


def paused() -> Shard:
    shard = warned()
    shard.revoked(why=PAUSED)
    shard.released(requeued(), hold())
    return shard


def test_what_a_committer_decides_of_a_notebook_breaks_no_rule() -> None:
    rounds = Rounds(nodes={"node-a": 8})
    rounds.commit(config_proposed(body(), rounds.state.config.version, abandon=True))
    rounds.commit(admitted("k1", notebook()), admitted("k2", notebook()))
    rounds.settle()
    run = rounds.job("k1").run_id
    rounds.commit(SessionUnused(kind="session_unused", run_id=run))
    rounds.commit(SessionUnused(kind="session_unused", run_id=run, again=True))
    rounds.commit(SessionUnused(kind="session_unused", run_id=run))
    rounds.commit(RunEnded(kind="run_ended", run_id=run, reason=PAUSED))
    rounds.settle()
    assert rounds.job("k1").held
    rounds.commit(HoldRequested(kind="hold_requested", job_id=JOB, tenant="lab", undo=True))
    rounds.settle()
    assert (rounds.job("k1").priority_class, rounds.running("k1")) == ("high", True)
    rounds.commit(HoldRequested(kind="hold_requested", job_id=JOB, tenant="lab"))
    rounds.commit(RequeueRequested(kind="requeue_requested", job_id=JOB, tenant="lab"))
    rounds.settle()
    assert violations(rounds.stored) == []


def test_more_sessions_than_a_user_or_a_tenant_may_have_are_found() -> None:
    shard = Shard(body=body())
    shard.queued("k1", notebook("ann"))
    shard.queued("k2", notebook("bob"))
    assert violations(shard.stored) == []
    shard.queued("k3", notebook("eve"))
    assert "is taken in beside 2, 0 of them" in violations(shard.stored)[0]
    other = Shard(body=body())
    other.queued("k1", notebook("ann"))
    other.queued("k2", notebook("ann"))
    assert "is taken in beside 1, 1 of them" in violations(other.stored)[0]
    other = Shard(body=body())
    other.queued("k1", notebook("ann"))
    other.add(finish("cancelled", reason=Reason(code=Code.CANCELLED)))
    other.queued("k2", notebook("ann"))
    assert violations(other.stored) == [], "one that has ended counts no more"


def test_a_warning_is_of_a_session_at_work_of_its_time_and_once() -> None:
    assert violations(warned().stored) == []
    early = Shard(body=body())
    early.queued(spec=notebook())
    early.allocated()
    warn(early)
    assert violations(early.stored) == [f"{first_run()} is warned, and is no session at work"]
    never = started(notebook(session=NOTEBOOK.model_copy(update={"idle_seconds": 0})))
    warn(never)
    assert violations(never.stored) == [f"{first_run()} is warned, and idleness never stops it"]
    short = started()
    warn(short, seconds=9)
    assert "is warned until" in violations(short.stored)[0]
    twice = warned()
    warn(twice)
    assert "and 0 is due" in violations(twice.stored)[0]
    back = warned()
    warn(back, seconds=0)
    warn(back)
    assert violations(back.stored) == []


def test_a_warning_is_what_the_pod_has_said_before() -> None:
    shard = warned()
    assert violations(shard.stored, [pod(3), pod(5, "False")]) == []
    told_before = [f"{first_run()} is warned before its pod was"]
    assert violations(shard.stored, [pod(3)]) == told_before
    assert violations(shard.stored, [pod(shard.n + 1, "False")]) == told_before


def test_no_session_is_stopped_as_idle_without_a_warning_that_stands_and_is_old_enough() -> None:
    shard = paused()
    assert violations(shard.stored, [pod(5, "False", 10), pod(7, "False", 10, ended=20)]) == []
    assert violations(shard.stored, [pod(5, "False", 10), pod(7, "False", 10, ended=19)]) == [], "seconds are whole"
    late = violations(shard.stored, [pod(5, "False", 10), pod(7, "False", 10, ended=15)])
    assert late == [f"{first_run()} is PausedAsIdle 5000 ms after its warning"]
    used = violations(shard.stored, [pod(5, "False", 10), pod(7, "True", 19, ended=30)])
    assert used == [f"{first_run()} is PausedAsIdle, and no warning stood when it ended"]


def test_a_session_is_stopped_as_its_spec_says() -> None:
    shard = warned()
    shard.revoked(why=ENDED, then="cancelled")
    assert violations(shard.stored) == [f"{first_run()} is EndedAsIdle, and its spec says nothing of it"]


@pytest.mark.parametrize("why", [PAUSED, Reason(code=Code.IDLE)], ids=lambda why: why.code)
def test_a_paused_session_is_held_and_does_not_start(why: Reason) -> None:
    assert violations(paused().stored) == []
    shard = warned()
    shard.revoked(why=why)
    shard.released(requeued(why))
    assert violations(shard.stored) == [f"{JOB} is {why.code}, and waits in line again"]
    begun = paused()
    begun.add(allocation(attempt=2))
    assert violations(begun.stored) == [f"{JOB} starts, and it is paused"]


def test_a_resumed_session_waits_in_its_class() -> None:
    shard = paused()
    shard.add(hold(undo=True), m.PrioritySet(kind="priority_set", job_id=JOB, priority_class="high"))
    shard.add(allocation(attempt=2), ms=1)
    assert violations(shard.stored) == []
    lower = paused()
    lower.add(hold(undo=True))
    assert violations(lower.stored) == [f"{JOB} is resumed in None, of high"]
    fresh = Shard(body=body())
    fresh.queued(spec=notebook())
    fresh.add(hold())
    fresh.add(hold(undo=True))
    assert violations(fresh.stored) == [], "what never ran waits in its own class"
