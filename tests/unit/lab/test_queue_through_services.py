"""Queueing through all services in one process: they wait as through the engine alone, and the ledger holds."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tessera.client.commands.lab import lab
from tessera.kernel.errors import StartupError
from tessera.testkit.end_to_end.services import Undecided
from tessera.testkit.sim.loop import VirtualClock
from tessera_lab.queue.configured import POLICIES as CONFIGURED
from tessera_lab.queue.configured import THROUGH, pods_of
from tessera_lab.queue.live import LiveEngine
from tessera_lab.queue.replay import replay
from tessera_lab.queue.services import refuse, through_services
from tessera_lab.traces.philly import TraceJob

DAY_SECONDS = 86_400
SECONDS_BETWEEN_RUNS = 2
"""What the services and kubelets may take from the end of one run to the start of the next in its place."""


def trace(*rows: tuple[int, int, int]) -> list[TraceJob]:
    """(submit, duration, GPUs), of two virtual clusters by turns."""
    return [TraceJob(2 + i, submit, duration, gpus, f"VC {i % 2}") for i, (submit, duration, gpus) in enumerate(rows)]


BLOCKED = trace((0, 100, 6), (20, 60, 8), (30, 40, 1), (40, 500, 2), (50, 20, 16), (60, 15, 4))
SHORT_BEFORE = trace((0, 1000, 4), (10, 100, 8), (20, 10, 1), (1150, 900, 6), (1160, 20, 8), (1170, 8, 1))

LEARNT = trace(*((20 * n, 10, 8) for n in range(5)), (100, 1000, 5), (120, 1000, 5), (140, 10, 8))
"""When the job of 5 GPUs ends, such jobs are known to run long and those of 8 to be short."""


@pytest.mark.parametrize("policy", THROUGH)
@pytest.mark.parametrize("jobs", [BLOCKED, SHORT_BEFORE, LEARNT], ids=["blocked", "short-before", "learnt"])
def test_everybody_waits_as_long_as_through_the_engine_alone(policy: str, jobs: list[TraceJob]) -> None:
    alone, run = replay(jobs, LiveEngine(policy, (8, 8), ())), through_services(jobs, [8, 8], policy)
    for one, by_itself in zip(run.waits, alone, strict=True):
        assert 0 <= one - by_itself <= SECONDS_BETWEEN_RUNS * len(jobs)
    assert run.recomputed == run.messages > len(jobs)


def test_the_policies_differ_as_their_configurations_do() -> None:
    """A job of a whole node is blocked; behind it comes a small one that would run for longer than it must wait."""
    jobs = trace((0, 100, 4), (10, 100, 8), (20, 100, 1))
    waits = {policy: through_services(jobs, [8], policy).waits[2] for policy in CONFIGURED}
    assert waits["skip"] == 0
    assert waits["fifo"] == waits["reserve"] > 150


def test_what_is_expected_to_take_less_goes_first_once_runs_have_ended() -> None:
    waits = {policy: through_services(LEARNT, [8], policy).waits for policy in ("skip", "expected")}
    assert waits["skip"][6] < waits["skip"][7]
    assert waits["expected"][7] < waits["expected"][6]


def test_a_large_job_is_a_gang_of_whole_nodes_and_the_rest() -> None:
    assert [(many, each.gpus) for many, each, _ in pods_of(28, 8)] == [(3, 8), (1, 4)]
    assert [(many, each.gpus) for many, each, _ in pods_of(16, 8)] == [(2, 8)]
    assert [(many, each.gpus) for many, each, _ in pods_of(3, 8)] == [(1, 3)]


def test_a_job_that_can_never_start_ends_the_run_with_its_reason() -> None:
    with pytest.raises(Undecided, match="1 jobs never start; 3: "):
        through_services(trace((0, 10, 1), (5, 10, 16)), [8], "skip")


@pytest.mark.parametrize(
    ("policy", "why"),
    [("sjf-oracle", "it knows durations"), ("best", "not best")],
    ids=["sjf-oracle", "unknown"],
)
def test_what_the_platform_cannot_be_told_is_refused_with_the_reason(policy: str, why: str) -> None:
    with pytest.raises(StartupError, match=why):
        refuse(policy, [8])


def test_a_node_of_more_gpus_than_a_pod_may_have_is_refused() -> None:
    with pytest.raises(StartupError, match="at most 64"):
        refuse("fifo", [128])


def test_the_command_says_how_much_was_decided_again(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("submit_s,duration_s,num_gpus,vc\n0,60,8,A\n10,30,4,b\n20,30,1,b\n30,10,1,b\n")
    asked = ["queue", str(file), "--gpus", "8", "--services", "--most", "3"]
    result = CliRunner().invoke(lab, [*asked, "-o", "json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["jobs"], told["history_jobs"], list(told["policies"])) == (
        3,
        0,
        ["fifo", "skip", "reserve", "expected"],
    )
    assert all(found["recomputed"] == found["messages"] > 3 for found in told["ledger"].values())
    assert "ledger messages decided again" in CliRunner().invoke(lab, [*asked, "--policy", "skip"]).stdout


def test_the_command_refuses_what_has_no_counterpart_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("submit_s,duration_s,num_gpus,vc\n0,60,8,A\n")
    result = CliRunner().invoke(lab, ["queue", str(file), "--gpus", "8", "--services", "--policy", "fifo,sjf-oracle"])
    assert result.exit_code != 0
    assert "not sjf-oracle" in result.output


def test_an_idle_day_costs_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, sleep = 0, VirtualClock.sleep

    async def counted(clock: VirtualClock, seconds: float) -> None:
        nonlocal looks
        looks += 1
        await sleep(clock, seconds)

    monkeypatch.setattr(VirtualClock, "sleep", counted)
    run = through_services(trace((0, DAY_SECONDS, 8), (10, 10, 8)), [8], "expected")
    assert 0 <= run.waits[1] - (DAY_SECONDS - 10) <= SECONDS_BETWEEN_RUNS
    assert looks < DAY_SECONDS // 4, "some forty look each second, whether or not anything can have changed"


def first_day_of(newcomer: str, policy: str) -> float:
    """Part of a day's GPU time that who comes after a week has once what ran then has ended; both ask for all."""
    lasts, later, gpus = 8 * 3600, 7 * DAY_SECONDS, 8
    wanted = [(0, "old")] * (gpus * 3 * 7 + gpus) + [(later, "new")] * 40 + [(later, "old")] * 40
    # The first ones end an hour apart, and so do all that follow them: one GPU at a time becomes free.
    jobs = [TraceJob(2 + n, at, 3600 * (1 + n) if n < gpus else lasts, 1, vc) for n, (at, vc) in enumerate(wanted)]
    had, begin, end = 0, later + lasts, later + lasts + DAY_SECONDS
    for job, wait in zip(jobs, through_services(jobs, [8], policy).waits, strict=True):
        start = job.submit_s + wait
        had += max(0, min(start + job.duration_s, end) - max(start, begin)) if job.vc == newcomer else 0
    return had / (gpus * DAY_SECONDS)


@pytest.mark.nightly("a minute for a week")
def test_who_comes_after_a_week_of_another_gets_more_than_by_what_is_held_now() -> None:
    by_held, over_weeks = (first_day_of("new", policy) for policy in ("skip-users", "skip-share"))
    assert 0.5 <= by_held < 0.6 < over_weeks <= 0.75
