"""
Ends of users' Jobs as the real Job controller brings them about, and as `tessera ls`, `sacct` and the events tell them:
an adopted job ends as its owner says.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.domain.entities import EndedJob
from tests.e2e.live import Heard, configuration, eventually, job, kind
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users, condition
from tests.kubernetes.users_objects import batch_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
LONG = 3600
EXIT_3 = {"tessera.io/simulate-exit-code": "3"}
INDEX = "batch.kubernetes.io/job-completion-index"
FAIL_AT_3 = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(1, "gpu", gpus=8, cpu="16")
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def heard(live: KubernetesLive) -> AsyncIterator[Heard]:
    async with live.listening() as heard:
        yield heard


async def end_of(live: KubernetesLive, heard: Heard, name: str, phase: str, *row: str) -> EndedJob:
    """The job's end, once it has ended so; `row` is its state, and what its exit code may be, by `sacct`."""

    def ended() -> list[EndedJob]:
        return [job for job in live.state.ended.values() if job.name == name]

    await eventually(lambda: bool(ended()), f"job {name} has ended")
    (job,) = ended()
    assert job.phase == phase, job
    events = [kind(event) for event in await heard.of(job.job_id, phase)]
    assert [each for each in events if each in ("succeeded", "failed", "cancelled")] == [phase]
    await live.until_shown()
    shown = (await live.command("ls", "-o", "json")).json["items"]
    assert [one["phase"] for one in shown if one["job_id"] == job.job_id] == [phase]
    said = await live.command("sacct", "-n", "-P", "-j", name, "-o", "State,ExitCode,ElapsedRaw,GPUHours")
    state, code, seconds, gpu_hours = said.out.strip().split("|")
    assert state == row[0]
    assert code in row[1:]
    assert int(seconds) < 60
    assert bool(job.started_ts) == (job.gpu_milli_ms > 0) == (float(gpu_hours) > 0)
    return job


def indexed(name: str, count: int, **more: Any) -> Json:
    return batch_job(name, count, seconds=LONG, completionMode="Indexed", **more)


async def until_all_run(users: Users, name: str, count: int) -> dict[str, Json]:
    """The pods by their index, once so many run and the ledger knows it."""

    def started() -> bool:
        return any(job.name == name and job.phase == "running" for job in users.live.state.jobs.values())

    await eventually(started, f"job {name} runs")
    await users.until(lambda: len(users.in_phase(name, "Running")) == count, f"all {count} pods of {name} run")
    return {pod["metadata"]["annotations"].get(INDEX, ""): pod for pod in users.pods(name)}


def end_pod(users: Users, pod: Json, exit_code: int) -> None:
    notes = {"tessera.io/simulate-seconds": "0", "tessera.io/simulate-exit-code": str(exit_code)}
    path = f"/api/v1/namespaces/{users.namespace}/pods/{pod['metadata']['name']}"
    users.api.patch(path, {"metadata": {"annotations": notes}})


async def test_a_program_that_fails_for_good_is_failed_with_its_exit_code(
    live: KubernetesLive, users: Users, heard: Heard
) -> None:
    users.create(batch_job("exits", notes=EXIT_3, seconds=1, backoffLimit=0))
    job = await end_of(live, heard, "exits", "failed", "FAILED", "3:0")
    assert job.reason is not None
    assert "Job/exits: BackoffLimitExceeded" in job.reason.detail


async def test_a_rule_that_fails_the_job_fails_it_and_every_attempt_counts(
    live: KubernetesLive, users: Users, heard: Heard
) -> None:
    users.create(indexed("ruled", 2, podFailurePolicy=FAIL_AT_3))
    end_pod(users, (await until_all_run(users, "ruled", 2))["1"], exit_code=3)
    job = await end_of(live, heard, "ruled", "failed", "FAILED", "3:0")
    assert job.reason is not None
    assert "Job/ruled: PodFailurePolicy" in job.reason.detail
    users.create(batch_job("again", notes=EXIT_3, seconds=1, backoffLimit=1))
    job = await end_of(live, heard, "again", "failed", "FAILED", "3:0")
    assert (job.attempt, job.earlier_ms > 0) == (2, True)


async def test_a_jobs_own_deadline_is_a_time_limit_also_before_it_has_started(
    live: KubernetesLive, users: Users, heard: Heard
) -> None:
    users.create(batch_job("late", 2, seconds=LONG, activeDeadlineSeconds=20))
    await until_all_run(users, "late", 2)
    users.create(batch_job("never", gpus=8, seconds=LONG, activeDeadlineSeconds=5))
    # Its pods end by SIGTERM as the deadline passes; which of the two is seen first is Kubernetes' to say.
    job = await end_of(live, heard, "late", "failed", "TIMEOUT", "0:0", "0:15")
    assert job.started_ts > 0
    assert (await end_of(live, heard, "never", "failed", "TIMEOUT", "0:0")).started_ts == 0


@pytest.mark.parametrize("number", range(6))
async def test_a_job_whose_first_index_wins_has_succeeded_each_time(
    live: KubernetesLive, users: Users, heard: Heard, number: int
) -> None:
    name = f"wins-{number}"
    users.create(indexed(name, 3, successPolicy={"rules": [{"succeededIndexes": "0"}]}))
    end_pod(users, (await until_all_run(users, name, 3))["0"], exit_code=0)
    job = await end_of(live, heard, name, "succeeded", "COMPLETED", "0:0")
    assert job.attempt == 1
    await users.until_complete(name)


async def test_a_job_that_is_deleted_is_cancelled_and_one_that_goes_when_it_has_failed_has_failed(
    live: KubernetesLive, users: Users, heard: Heard
) -> None:
    users.create(batch_job("deleted", seconds=LONG))
    await users.until_running("deleted")
    users.delete("job", "deleted")
    await end_of(live, heard, "deleted", "cancelled", "CANCELLED", "0:0")
    users.create(batch_job("short", notes=EXIT_3, seconds=1, backoffLimit=0, ttlSecondsAfterFinished=0))
    await end_of(live, heard, "short", "failed", "FAILED", "3:0")


async def test_a_failed_index_gives_its_gpus_back_at_once_and_the_job_ends_as_failed(
    live: KubernetesLive, users: Users, heard: Heard
) -> None:
    users.create(indexed("indexes", 3, gpus=2, backoffLimitPerIndex=0, maxFailedIndexes=3))
    pods = await until_all_run(users, "indexes", 3)
    end_pod(users, pods["1"], exit_code=3)
    (job,) = (job for job in live.state.jobs.values() if job.name == "indexes")
    await live.until(
        lambda state: (run := state.runs.get(job.run_id)) is not None and run.amount.gpu_milli == 4000,
        "the GPUs of the failed index are free",
    )
    assert len(users.in_phase("indexes", "Running")) == 2
    for index in ("0", "2"):
        end_pod(users, pods[index], exit_code=0)
    ended = await end_of(live, heard, "indexes", "failed", "FAILED", "3:0")
    assert ended.attempt == 1
    assert condition(users.job("indexes"), "Failed")["reason"] == "FailedIndexes"


async def test_what_ended_while_the_binder_was_away_is_told_when_it_is_back(
    live: KubernetesLive, users: Users, heard: Heard
) -> None:
    users.create(batch_job("unseen", notes=EXIT_3, seconds=2, backoffLimit=0))
    await users.until_running("unseen")
    async with live.down("binder"):
        await users.until(lambda: condition(users.job("unseen"), "Failed"), "the Job has failed")
    await end_of(live, heard, "unseen", "failed", "FAILED", "3:0")
    own = await live.submit(job("own", seconds=0.2))
    await live.until_phase(own.job_id, "succeeded")
    users.kubectl("delete", "jobs", "--all", "--namespace", users.namespace)
    await live.until_idle()
    await assert_all_is_well(live)
