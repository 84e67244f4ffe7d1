"""`sacct -D`: a line for each run, as a real Slurm has it for a job that was requeued."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.context import AccessOptions
from tessera.client.commands.shard.views import costs_of_runs
from tessera.client.commands.slurm_words import accounting
from tessera.client.slurm.listing.attempts import runs_of
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.projection.events import events_of
from tessera.projection.views import Views
from tessera_schemas.config import ConfigBody, Flavor
from tessera_schemas.events import CloudEvent
from tessera_schemas.facts import RequeueRequested, RunEnded
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.reasons import Code, PublicReason, Reason
from tessera_schemas.views import JobView
from tessera_schemas.work.money import GPU_HOUR, FlavorPrice, Money, held_cost
from tests.builders import SHARD, admitted, config_body, first_run, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed
from tests.published_devices import claim, claiming, class_seen, layout_seen, offering, whole_gpus
from tests.unit.scheduler.committer_world import made, started

JOB = first_run("k1")[:-2]
SECOND = 1000
FAILED = Reason(code=Code.POD_FAILED, numbers={"exit_code": 3})


def ran_three_times(body: ConfigBody | None = None, claims: bool = False) -> Committed:
    """
    Requeued by its owner after 8 s, then its program failed after 5 s, now it runs since 4 s, on two GPUs.

    With `claims` these are drawn for its pod.
    """
    layout, body = whole_gpus(8), body or config_body()
    nodes = (layout_seen(layout), class_seen(), offering("node-a", layout, 8)) if claims else (node_seen("node-a", 8),)
    ledger = Committed().begin(*nodes, body=body)
    retry = {"max_attempts": 3, "on_failure": True, "backoff_seconds": 1}
    asked = claiming(claim(count=2)) if claims else role(gpus=2)
    ledger.commit(admitted("k1", job_spec(asked, time_limit_seconds=300, retry=retry)))
    for attempt in (1, 2, 3):
        run = f"{JOB}-{attempt}"
        if ledger.state.jobs.get(JOB).phase == "queued":  # after the first run it has begun again at once
            ledger.ts += 20 * SECOND
            ledger.commit(orders=(ledger.line(),))
        ledger.commit(made(run))
        ledger.commit(started(run))
        if attempt == 1:
            asked = RequeueRequested(kind="requeue_requested", job_id=JOB, tenant="lab")
            ledger.commit(asked, ms=7 * SECOND)
            ledger.commit(run_absent(run))
        elif attempt == 2:
            ledger.commit(RunEnded(kind="run_ended", run_id=run, reason=FAILED, own=True, exit_code=3), ms=4 * SECOND)
            ledger.commit(run_absent(run))
    ledger.ts += 4 * SECOND
    return ledger


def job_of(ledger: Committed) -> JobView:
    value = Views(ledger.state).value(("jobs", JOB))
    assert value is not None
    return JobView.from_bytes(value)


def told(ledger: Committed) -> Iterator[CloudEvent]:
    """The public events of the ledger."""
    shard = Shard()
    for data in ledger.stored:
        entry = decode_entry(Message("", LEDGER_MESSAGE.validate_json(data).n, data))
        for event in events_of(SHARD, entry.message, shard.state):
            yield CloudEvent.from_bytes(event.data)
        shard.fold(entry)


def test_each_run_has_its_own_times_nodes_state_and_exit_code() -> None:
    ledger = ran_three_times()
    runs = runs_of(job_of(ledger), told(ledger))
    assert [run.phase for run in runs] == ["requeued", "failed", "running"]
    assert [(run.ended_ts or ledger.ts) - run.started_ts for run in runs] == [8 * SECOND, 5 * SECOND, 4 * SECOND]
    assert [run.submitted_ts for run in runs] == [runs[0].submitted_ts, runs[0].ended_ts, runs[1].ended_ts]
    assert [run.nodes for run in runs] == [("node-a",), ("node-a",), ()]
    assert [run.exit_code for run in runs] == [None, 3, None]
    assert [run.attempt for run in runs] == [1, 2, 3]


def priced() -> ConfigBody:
    """A price of which no run's cost is whole: 7/3.6 millionths a second and GPU."""
    prices = (FlavorPrice(flavor="any", gpu_hour_micros=7),)
    more = {"flavors": (Flavor(name="any"),), "money": Money(currency="EUR", prices=prices)}
    return ConfigBody.model_validate(config_body().model_copy(update=more).model_dump())


def cost_of(row: JobView, now: int) -> int:
    """Cost in millionths."""
    held = held_cost(row.cost_rates, row.gpu_counted_ts, now) if row.gpu_counted_ts else 0
    return row.cost_micros + (row.cost_rest + held) // GPU_HOUR


def test_what_the_runs_cost_sums_to_what_the_job_costs_whenever_one_looks() -> None:
    ledger = ran_three_times(priced())
    job, events = job_of(ledger), list(told(ledger))
    for later in range(0, 5_000_000, 333_333):
        runs = runs_of(job, events)
        costs = [cost_of(run, ledger.ts + later) for run in runs]
        assert sum(costs) == cost_of(job, ledger.ts + later)
        assert {run.currency for run in runs} == {"EUR"}
    held = [2000 * 10 * SECOND, 2000 * 7 * SECOND]
    upto = [sum(held[:count]) * 7 // GPU_HOUR for count in range(3)]
    assert [cost_of(run, ledger.ts) for run in runs_of(job, events)[:2]] == [upto[1] - upto[0], upto[2] - upto[1]]


def test_a_job_that_waits_again_has_cost_nothing_since_its_last_run() -> None:
    ledger = ran_three_times(priced())
    run = f"{JOB}-3"
    ledger.commit(RunEnded(kind="run_ended", run_id=run, reason=FAILED, own=True, exit_code=3), ms=0)
    ledger.commit(run_absent(run), ms=0)
    job = job_of(ledger)
    assert (job.phase, job.attempt) == ("queued", 3)
    runs = runs_of(job, told(ledger))
    assert [run.attempt for run in runs] == [1, 2, 3, 3]
    assert sum(cost_of(run, ledger.ts) for run in runs) == job.cost_micros
    assert cost_of(runs[-1], ledger.ts) == 0
    said = costs_of_runs(runs, ledger.ts)
    assert said == ", ".join(f"{run.attempt}: {run.cost_at(ledger.ts)}" for run in runs[:3])


def test_a_run_of_which_no_event_tells_the_cost_has_none_nor_has_the_one_behind_it() -> None:
    ledger = ran_three_times(priced())
    job, events = job_of(ledger), list(told(ledger))
    requeued = [event for event in events if event.type == "io.tessera.job.requeued.v1"]
    del requeued[0].data["cost_micros"]  # as an earlier version wrote it
    assert [run.currency for run in runs_of(job, events)] == ["", "", "EUR"]
    assert [run.currency for run in runs_of(job, [e for e in events if e is not requeued[1]])] == ["", ""]


@pytest.mark.parametrize("claims", [False, True])
def test_what_the_lines_held_sums_to_what_the_job_held(claims: bool) -> None:
    ledger = ran_three_times(claims=claims)
    job = job_of(ledger)
    runs = runs_of(job, told(ledger))
    held = [run.held_gpu_milli_ms(ledger.ts) for run in runs]
    assert sum(held) == job.held_gpu_milli_ms(ledger.ts)
    assert held == [2000 * 10 * SECOND, 2000 * 7 * SECOND, 2000 * 6 * SECOND]


def test_a_job_whose_events_are_gone_has_its_own_line() -> None:
    ledger = ran_three_times()
    assert runs_of(job_of(ledger), ()) == [job_of(ledger)]


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ran_three_times()

    class Views:
        async def jobs(self, *_: object) -> list[JobView]:
            other = job_of(ledger).model_copy(update={"job_id": "b" * 20, "number": 2, "attempt": 1})
            return [job_of(ledger), other]

        async def as_of(self) -> int:
            return 1

    async def events(_where: object, _identity: object, jobs: list[str]) -> dict[str, Any]:
        return {job: [*told(ledger)] for job in jobs}

    monkeypatch.setattr(AccessOptions, "views", lambda at: Views())
    monkeypatch.setattr(AccessOptions, "find", lambda at: None)
    monkeypatch.setattr(accounting, "events_of_jobs", events)


def said(line: str) -> str:
    done = CliRunner().invoke(app, shlex.split(line))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.usefixtures("shard")
def test_sacct_prints_a_line_for_each_run_of_a_job_that_ran_more_than_once() -> None:
    """A real Slurm: `16|REQUEUED|00:00:03|0:0|n1`, then `16|FAILED|00:00:01|3:0|n1`."""
    lines = said("sacct -D -X -n -P -j 1 -o JobID,State,ExitCode,NodeList,Timelimit,NNodes").splitlines()
    assert lines == [
        "1|REQUEUED|0:0|node-a|00:05:00|1",
        "1|FAILED|3:0|node-a|00:05:00|1",
        "1|RUNNING|0:0|node-a|00:05:00|1",
    ]
    assert said("sacct -n -P -j 1 -o JobID,State") == "1|RUNNING\n"
    assert said("sacct -n -P --duplicates -o JobID,State -s RQ") == "1|REQUEUED\n"
    assert said("sacct -n -P -D -j 2 -o JobID,State") == "2|RUNNING\n"


@pytest.mark.usefixtures("shard")
def test_of_too_many_jobs_that_ran_again_none_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "RAN_AGAIN_MAX", 0)
    done = CliRunner().invoke(app, ["sacct", "-D"])
    assert (done.exit_code, "name at most 0 of them, by --jobs" in done.stderr) == (2, True)


def test_runs_that_were_preempted_or_lost_with_their_node_are_called_so() -> None:
    ledger = ran_three_times()
    requeued = next(event for event in told(ledger) if event.type.endswith("job.requeued.v1"))
    for code, phase in (("Preempted", "preempted"), ("NodeLost", "node_fail"), ("PodDeleted", "requeued")):
        reason = PublicReason(code=code).model_dump(mode="json")
        event = requeued.model_copy(update={"data": {**requeued.data, "reason": reason}})
        assert runs_of(job_of(ledger), [event])[0].phase == phase
